"""What the report of a release audit says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxaudit.report.canvas import Picture
from jaxaudit.report.figures_release import attack_scores, confidence, counted
from jaxaudit.report.release_records import operating_section, overlap_section, strata_section
from jaxaudit.report.words import (
    Card,
    Items,
    Page,
    Section,
    Table,
    Text,
    count,
    flatten,
    get,
    interval,
    number,
    p_value,
    percent,
)
from jaxaudit.runtime.result import AuditResult

__all__ = ["release_headline", "release_page"]

_LEVELS = ("0", "0.001", "0.01", "0.1")

_CAVEATS = (
    "Members are records that the generator was trained on, non-members records that it never saw. An attack sees "
    "the released synthetic table and a reference table, and scores each record: higher means more member-like.",
    "The records share one release. Intervals and p-values speak of this release and the attacks run on it; they are "
    "not a bound on the generator, and an attack that fails is not a proof of privacy.",
    "A difference between the populations (members of one year, non-members of another) gives an AUC above 0.5 as "
    "memorisation does. The numbers mean memorisation only where both tables are random draws from one population.",
    "The permutation test and an interval of the AUC answer different questions. The test asks whether these records, "
    "labelled at random, would do as well; the interval asks how far the AUC would move with other records.",
    "An AUC below 0.5 is no evidence here: the direction of each score was fixed beforehand.",
    "A true-positive rate at a small false-positive rate rests on few non-members: FPR = 0 means above every one of "
    "those at hand, and a rate below 1 / (number of non-members) cannot be told from 0.",
)


def _best(result: AuditResult) -> str | None:
    """The attack with the largest AUC, None where no attack has one."""
    areas = {name: get(result.summary, "attacks", name, "auc") for name in result.summary.get("attacks", {})}
    known = {name: area for name, area in areas.items() if math.isfinite(area)}
    return max(known, key=lambda name: known[name]) if known else None


def _smallest_p(result: AuditResult) -> tuple[str, float]:
    attacks = result.summary.get("attacks", {})
    known = [(get(attacks, name, "p_value"), -get(attacks, name, "auc"), str(name)) for name in attacks]
    known = [row for row in known if math.isfinite(row[0])]
    return (min(known)[2], min(known)[0]) if known else ("", math.nan)


def release_headline(result: AuditResult) -> list[tuple[str, str]]:
    """The three numbers that matter: the best attack's AUC, the adjusted p-value, members found at FPR 0."""
    best = _best(result)
    attack = result.summary.get("attacks", {}).get(best, {})
    zero = attack.get("tpr_at_fpr", {}).get("0", {})
    named = f" ({best})" if best else ""
    _, p = _smallest_p(result)
    return [
        (f"AUC of the best attack{named}", f"{number(get(attack, 'auc'))} {interval(attack.get('auc_ci'))}".strip()),
        (f"p-value, adjusted for {counted(len(result.summary.get('attacks', {})), 'attack')}", p_value(p)),
        (
            f"Members it finds at FPR 0{named}",
            f"{count(get(zero, 'true_positives'))} of {count(get(zero, 'n_members'))} (above "
            f"{'' if get(zero, 'n_non_members') == 1 else 'all '}{counted(get(zero, 'n_non_members'), 'non-member')})",
        ),
    ]


def release_page(result: AuditResult, pictures: dict[str, Picture], shared: tuple[Section, ...]) -> Page:
    """The page of a release audit; ``shared`` are the closing sections that both audits have."""
    tone, verdict, explanation = _verdict(result)
    level = confidence(result)
    notes = (f"{level} interval; guessing: 0.5", "smallest over the attacks", "")
    cards = tuple(
        Card(label, value, note) for (label, value), note in zip(release_headline(result), notes, strict=True)
    )
    records = result.summary.get("records", {})
    attacks = result.summary.get("attacks", {})
    sections = (
        Section("The attacks", (_attacks(attacks, level), _p_words(result), pictures["attacks"])),
        Section("Members found at few false alarms", (_tprs(attacks, level), pictures["roc"])),
        Section("Scores", (pictures["scores"],)),
        Section("Most exposed records", _exposed(result)),
        *strata_section(attacks),
        *overlap_section(attacks),
        *operating_section(attacks),
        Section("How to read these numbers", (Items(_CAVEATS),)),
        Section("What was audited", (Table("", ("", ""), tuple(_what(result)), left=2),)),
        *shared,
    )
    return Page(
        title="Membership audit of a synthetic table",
        subtitle=f"{counted(get(records, 'synthetic'), 'released record')}, judged on "
        f"{counted(get(records, 'members'), 'member')} and {counted(get(records, 'non_members'), 'non-member')} "
        f"with {counted(get(records, 'reference'), 'reference record')}",
        tone=tone, verdict=verdict, explanation=explanation, cards=cards, warnings=result.warnings, sections=sections,
    )  # fmt: skip


def _verdict(result: AuditResult) -> tuple[str, str, str]:
    attacks = result.summary.get("attacks", {})
    name, p = _smallest_p(result)
    best = _best(result)
    if math.isnan(p) or best is None:
        return "unknown", "Nothing can be said: no attack gave a result.", ""
    attack = attacks.get(best, {})
    found = f"{number(get(attack, 'auc'))} {interval(attack.get('auc_ci'))}".strip()
    if p <= 0.05:
        strength = "strong evidence" if p <= 0.01 else "evidence"
        winners = [n for n in attacks if get(attacks, n, "p_value") <= 0.05]
        apart = (
            " That an interval covers 0.5 is no contradiction, they answer different questions: it allows for other "
            "records, the test shuffles the labels of these. With few records they can differ; the evidence is weak."
            if any(_covers_half(attacks[n]) for n in winners)
            else ""
        )
        return (
            "leak",
            f"Members can be told from non-members: {strength} of memorisation, if both are from one population.",
            f"{len(winners)} of {counted(len(attacks), 'attack')} {'tells' if len(winners) == 1 else 'tell'} members "
            f"from non-members better than luck explains ({', '.join(map(str, winners))}); the smallest adjusted p is "
            f"{p_value(p)} ({name}). The best attack, {best}, has AUC {found}.{apart}",
        )
    power = [get(attacks, n, "critical_auc") for n in attacks if "critical_auc" in attacks[n]]
    if power and not any(map(math.isfinite, power)):
        rows = attack_scores(result)[1]
        if rows.size and (np.ptp(rows, axis=1) == 0).all():
            return "unknown", "Nothing can be said: every attack gives all records the same score.", ""
        return (
            "unknown",
            "Nothing can be said: too few records: no AUC could be significant at 5 %.",
            f"The best attack, {best}, has AUC {found}; the smallest adjusted p is {p_value(p)}.",
        )
    power = [c for c in power if math.isfinite(c)]
    needed = f" An observed AUC of about {number(max(power), 2)} would have been significant." if power else ""
    seen = [get(attacks, n, "detectable_auc") for n in attacks]
    seen = [c for c in seen if math.isfinite(c)]
    able = f"; a true AUC above {number(max(seen), 2)} would have been seen with probability 0.95" if seen else ""
    return (
        "quiet",
        f"No evidence of memorisation by the attacks run{able}.",
        f"The best attack, {best}, has AUC {found}; the smallest adjusted p is {p_value(p)}.{needed} Other attacks "
        "may find more: this is not a proof of privacy.",
    )


def _covers_half(attack: dict[str, Any]) -> bool:
    low, high = attack.get("auc_ci") or (math.nan, math.nan)
    return bool(low <= 0.5 <= high)


def _attacks(attacks: dict[str, Any], level: str) -> Table:
    rows = [
        (str(name), number(get(attacks, name, "auc")), interval(attacks[name].get("auc_ci")),
         _behind(attacks[name]), percent(get(attacks, name, "first_share")),
         p_value(get(attacks, name, "p_value")), p_value(get(attacks, name, "p_value_unadjusted")))
        for name in sorted(attacks, key=lambda n: -np.nan_to_num(get(attacks, n, "auc"), nan=-1.0))
    ]  # fmt: skip
    return Table(
        "Attacks, best first",
        ("attack", "AUC", f"{level} interval", "behind the best", "first in", "p, adjusted", "p, this attack alone"),
        tuple(rows),
    )


def _behind(attack: dict[str, Any]) -> str:
    """How far an attack's AUC is below the largest one, with the paired interval."""
    if get(attack, "behind_best") == 0:
        return ""
    return f"{number(get(attack, 'behind_best'))} {interval(attack.get('behind_best_ci'))}".strip()


def _p_words(result: AuditResult) -> Text:
    b = get(result.summary, "permutation", "permutations")
    times = "many times" if math.isnan(b) else f"{count(b)} times"
    floor = "" if math.isnan(b) else f" It cannot be smaller than {p_value(1 / (b + 1))}."
    return Text(
        f"The p-value: the labels member / non-member were shuffled {times}, each time for all attacks together. The "
        "adjusted p is the share of shuffles in which the best of all attacks did at least as well as this one; it "
        f"stays honest however many attacks are tried.{floor} The other column ignores that several "
        "attacks were tried. "
        "Behind the best: the AUC's distance from the largest one, with an interval from resampled records, the same "
        "records for both attacks. First in: the share of resamples in which the attack has the largest AUC."
    )


def _tprs(attacks: dict[str, Any], level: str) -> Table:
    rows = []
    for name in attacks:
        found = attacks[name].get("tpr_at_fpr", {})
        rows.append((str(name), *(_tpr_cell(found.get(rate, {})) for rate in _LEVELS)))
    heads = tuple(f"FPR {'' if rate == '0' else '≤ '}{100 * float(rate):g} %" for rate in _LEVELS)
    return Table(
        f"True-positive rate at the largest realised false-positive rate within each level, its exact {level} "
        "interval, and the members found and non-members wrongly called members",
        ("attack", *heads), tuple(rows),
    )  # fmt: skip


def _tpr_cell(row: dict[str, Any]) -> str:
    if math.isnan(get(row, "tpr")):
        return number(math.nan)
    if row.get("supported") is False:
        return "not supported\nby " + counted(get(row, "n_non_members"), "non-member").replace(" ", "\n")
    return (
        f"{number(get(row, 'tpr'))}\n{interval(row.get('tpr_ci'))}\n"
        f"{count(get(row, 'true_positives'))} found, {count(get(row, 'false_positives'))} false"
    )


def _exposed(result: AuditResult, rows: int = 15) -> tuple[Text | Table, ...]:
    """Members by the best attack's score: index, score, and how many non-members score as high; no cell values."""
    names, scores, member = attack_scores(result)
    best = _best(result)
    if best is None or not member.any() or not np.isfinite(scores[names.index(str(best))]).any():
        return (Text("No attack gave a score, so no record can be listed."),)
    row = scores[names.index(str(best))]
    named = "record" in result.table and len(result.table) == member.size
    records = result.table["record"].to_numpy() if named else np.arange(member.size)
    inside = np.flatnonzero(member & np.isfinite(row))
    top = inside[np.argsort(-row[inside], kind="stable")][:rows]
    others = np.sort(row[~member])
    cells = tuple(
        (
            str(records[i]),
            f"{row[i]:.4g}".replace("-", "−"),
            count(others.size - np.searchsorted(others, row[i], side="left")),
        )
        for i in top
    )
    return (
        Text(
            f"Members by their score under {best}, the attack with the largest AUC (chosen after looking). Records are "
            "named by their number in the members' table; no cell values are shown. records.csv has every score."
        ),
        Table(
            f"The {counted(len(cells), 'member')} with the highest scores",
            ("record", "score", f"non-members scoring as high (of {count(others.size)})"), cells,
        ),
    )  # fmt: skip


def _what(result: AuditResult) -> list[tuple[str, str]]:
    records = result.summary.get("records", {})
    return [
        *((f"{name} records", count(get(records, name))) for name in records if name not in result.data),
        *flatten(result.data),
    ]
