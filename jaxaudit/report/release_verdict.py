"""The verdict of a release audit in words, with its power."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxaudit.report.figures_release import attack_scores, counted
from jaxaudit.report.release_copies import copied, copies_words
from jaxaudit.report.words import branch, get, interval, number, p_value
from jaxaudit.runtime.result import AuditResult

__all__ = ["best_attack", "smallest_p", "verdict"]


def best_attack(result: AuditResult) -> str | None:
    """The attack with the largest AUC, None where no attack has one."""
    areas = {name: get(result.summary, "attacks", name, "auc") for name in result.summary.get("attacks", {})}
    known = {name: area for name, area in areas.items() if math.isfinite(area)}
    return max(known, key=lambda name: known[name]) if known else None


def smallest_p(result: AuditResult) -> tuple[str, float]:
    """The attack with the smallest adjusted p (of ties the one with the larger AUC), and the p; ("", NaN) for none."""
    attacks = result.summary.get("attacks", {})
    known = [(get(attacks, name, "p_value"), -get(attacks, name, "auc"), str(name)) for name in attacks]
    known = [row for row in known if math.isfinite(row[0])]
    return (min(known)[2], min(known)[0]) if known else ("", math.nan)


def verdict(result: AuditResult) -> tuple[str, str, str]:
    """Tone ("leak", "quiet" or "unknown"), headline and explanation.

    Attacks speak first. Where they find nothing, copies of members in the release still count as a leak when members
    have more of them than non-members by more than luck.
    """
    _, p = smallest_p(result)
    best = best_attack(result)
    if math.isnan(p) or best is None:
        tone, headline, explanation = "unknown", "Nothing can be said: no attack gave a result.", ""
    elif p <= 0.05:
        tone, headline, explanation = "leak", *_leak(result, best)
    else:
        tone, headline, explanation = _no_leak(result, best)
    if copied(result.summary) and tone != "leak":
        tone = "leak"
        headline = (
            "The release repeats members more often than luck explains, if members and non-members are from one "
            f"population. {headline}"
        )
    return tone, headline, f"{explanation} {copies_words(result.summary)}".strip()


def _found(result: AuditResult, best: str) -> str:
    attack = branch(result.summary, "attacks", best)
    return f"The best attack, {best}, has AUC {number(get(attack, 'auc'))} {interval(attack.get('auc_ci'))}".strip()


def _leak(result: AuditResult, best: str) -> tuple[str, str]:
    attacks = result.summary["attacks"]
    name, p = smallest_p(result)
    winners = [n for n in attacks if get(attacks, n, "p_value") <= 0.05]
    apart = (
        " That an interval covers 0.5 is no contradiction, they answer different questions: it allows for other "
        "records, the test shuffles the labels of these. With few records they can differ; the evidence is weak."
        if any(_covers_half(attacks[n]) for n in winners)
        else ""
    )
    strength = "strong evidence" if p <= 0.01 else "evidence"
    return (
        f"Members can be told from non-members: {strength} of memorisation, if both are from one population.",
        f"{len(winners)} of {counted(len(attacks), 'attack')} {'tells' if len(winners) == 1 else 'tell'} members "
        f"from non-members better than luck explains ({', '.join(map(str, winners))}); the smallest adjusted p is "
        f"{p_value(p)} ({name}). {_found(result, best)}.{apart}",
    )


def _no_leak(result: AuditResult, best: str) -> tuple[str, str, str]:
    """No attack is significant: either nothing was found, and what would have been, or nothing could be."""
    attacks, (_, p) = result.summary["attacks"], smallest_p(result)
    found = f"{_found(result, best)}; the smallest adjusted p is {p_value(p)}."
    power = [get(attacks, n, "critical_auc") for n in attacks if "critical_auc" in attacks[n]]
    if power and not any(map(math.isfinite, power)):
        rows = attack_scores(result)[1]
        if rows.size and (np.ptp(rows, axis=1) == 0).all():
            return "unknown", "Nothing can be said: every attack gives all records the same score.", ""
        return "unknown", "Nothing can be said: too few records: no AUC could be significant at 5 %.", found
    power = [c for c in power if math.isfinite(c)]
    needed = f" An observed AUC of about {number(max(power), 2)} would have been significant." if power else ""
    seen = [c for c in (get(attacks, n, "detectable_auc") for n in attacks) if math.isfinite(c)]
    able = "; with so few records no true AUC would have been seen with probability 0.95" if power else ""
    if seen:  # rounded up: the power is promised
        able = f"; a true AUC above {number(_up(max(seen)), 2)} would have been seen with probability 0.95"
    return (
        "quiet",
        f"No evidence of memorisation by the attacks run{able}.",
        f"{found}{needed} Other attacks may find more: this is not a proof of privacy.",
    )


def _up(value: float) -> float:
    """Rounded up to two decimals."""
    return math.ceil(100 * value - 1e-9) / 100


def _covers_half(attack: dict[str, Any]) -> bool:
    low, high = attack.get("auc_ci") or (math.nan, math.nan)
    return bool(low <= 0.5 <= high)
