"""The verdict of a release audit in words, with its power."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxaudit.evaluate.canonical import merge_rounding
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
    critical = {n: get(attacks, n, "critical_auc") for n in attacks if "critical_auc" in attacks[n]}
    able = {n: area for n, area in critical.items() if math.isfinite(area)}
    if critical and not able:
        return "unknown", *_blind(result, found)
    needed = f" An observed AUC of about {number(max(able.values()), 2)} would have been significant." if able else ""
    detectable = [get(attacks, n, "detectable_auc") for n in able or attacks if "detectable_auc" in attacks[n]]
    return (
        "quiet",
        f"No evidence of memorisation by the attacks run{_power(detectable)}.",
        f"{found}{needed}{_idle(result, [n for n in critical if n not in able])} Other attacks may find more: this is "
        "not a proof of privacy.",
    )


def _blind(result: AuditResult, found: str) -> tuple[str, str]:
    """Headline and explanation where no attack could be significant: for want of records, or of distinct scores."""
    distinct, records, members = _distinct(result)
    if distinct and max(distinct.values()) == 1:
        return "Nothing can be said: every attack gives all records the same score.", ""
    # With distinct scores, all members on top have p = 1 / (number of labellings), times the attacks at most.
    enough = len(distinct) < 0.05 * math.comb(records, members)
    if distinct and enough and max(distinct.values()) < records:
        return "Nothing can be said: too few distinct scores: with so many ties no AUC could be significant.", found
    return "Nothing can be said: too few records: no AUC could be significant at 5 %.", found


def _idle(result: AuditResult, names: list[str]) -> str:
    """A sentence that names the attacks that could not have been significant where others could."""
    distinct, records, _ = _distinct(result)
    tied = [n for n in names if distinct.get(n, 0) < records]
    other = [n for n in names if n not in tied]
    words = ""
    if tied:
        give = "gives" if len(tied) == 1 else "give"
        words = f" {', '.join(map(str, tied))} {give} too few distinct scores to be significant at all."
    if other:
        words += f" With so few records {', '.join(map(str, other))} could not be significant at all."
    return words


def _distinct(result: AuditResult) -> tuple[dict[str, int], int, int]:
    """Number of distinct scores by attack, up to rounding, as they are judged; of records; and of members."""
    names, scores, member = attack_scores(result)
    counts = [len(np.unique(row)) for row in merge_rounding(scores)] if scores.size else []
    return dict(zip(names, counts, strict=False)), member.size, int(member.sum())


def _power(detectable: list[float]) -> str:
    """What a true AUC would have had to be for the attacks that could be significant to see it."""
    if not detectable:
        return ""
    known = [area for area in detectable if math.isfinite(area)]
    if len(known) < len(detectable):
        return "; how large a true AUC all of them would have seen is not known"
    if max(known) > 0.999:
        return "; no true AUC below 0.999 would have been seen by all of them with probability 0.95"
    return f"; a true AUC above {_up(max(known))} would have been seen with probability 0.95"


def _up(value: float) -> str:
    """Rounded up, since the power is promised, to two decimals, or three near 1."""
    places = 2 if value <= 0.99 else 3
    return number(math.ceil(10**places * value - 1e-9) / 10**places, places)


def _covers_half(attack: dict[str, Any]) -> bool:
    low, high = attack.get("auc_ci") or (math.nan, math.nan)
    return bool(low <= 0.5 <= high)
