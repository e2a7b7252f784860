"""Parts of a release report about records: the exposed ones, overlaps, typical ones, and a fixed operating point."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxaudit.report.figures_release import attack_scores, counted
from jaxaudit.report.release_copies import distance_text, record_name
from jaxaudit.report.words import (
    Section,
    Table,
    Text,
    beside,
    branch,
    count,
    get,
    interval,
    number,
    p_value,
    percent,
    short,
)
from jaxaudit.runtime.result import AuditResult

__all__ = ["exposed_section", "operating_section", "overlap_section", "strata_section"]

_MASKS = {
    "in_reference": "also in the reference",
    "in_other_class": "both members and non-members",
    "in_synthetic": "copied exactly into the release",
    "any": "of any of these kinds",
}


_ATTACKS, _BESIDE = 12, 4
"""Attacks under which an exposed record's score and place are shown, and how many in one table."""


def exposed_section(result: AuditResult, best: str | None) -> tuple[Section, ...]:
    """The most exposed members and what betrays them; from the scores alone where the summary has no list of them."""
    found = branch(result.summary, "exposed")
    rows = found.get("records")
    rows = [branch(row) for row in rows] if isinstance(rows, list | tuple) else []
    blocks = _exposed(found, rows, result) if rows else _by_score(result, best)
    return (Section("Most exposed records", blocks),)


def _exposed(found: Mapping[str, Any], rows: list[Mapping[str, Any]], result: AuditResult) -> tuple[Text | Table, ...]:
    attack, summary = str(found.get("attack", "")), result.summary
    others = get(summary, "records", "non_members")
    names = sorted(branch(rows[0], "scores"), key=lambda name: -np.nan_to_num(get(summary, "attacks", name, "auc")))
    names = [attack, *(name for name in names if name != attack)]
    shown = names[:_ATTACKS]
    cells = [
        (record_name(row), count(get(row, "stratum") + 1), distance_text(get(row, "distance")),
         f"{get(row, 'nearest_row'):.0f}", count(get(row, "non_members_as_high")))
        for row in rows
    ]  # fmt: skip
    records = count(get(summary, "records", "members") + others)
    left_out = f" of the {_ATTACKS} attacks with the largest AUC" if len(names) > len(shown) else ""
    heads = ("member", "quarter", "distance to the release", "nearest released row",
             f"non-members scoring as high (of {count(others)})")  # fmt: skip
    return (
        Text(
            f"Members by their score under {attack}, the attack with the largest AUC (chosen after looking). Rows "
            "count from 0, without the header; a column with the role id (release.roles) gives records their names. "
            "Quarter: from the most typical (1) to the most unusual records (4). No cell values are shown; "
            "records.csv has every score."
        ),
        Table(f"The {counted(len(rows), 'member')} with the highest scores", heads, tuple(cells)),
        *(
            _places(rows, shown[start : start + _BESIDE], f"Scores{left_out}, and in brackets the place among all "
                    f"{records} records, 1 being the most member-like")
            for start in range(0, len(shown), _BESIDE)
        ),
        *_betrayed(found, rows),
    )  # fmt: skip


def _places(rows: list[Mapping[str, Any]], names: list[str], caption: str) -> Table:
    cells = [
        (record_name(row),
         *(f"{score_text(get(row, 'scores', n))} ({count(get(row, 'ranks', n))})" for n in names))
        for row in rows
    ]  # fmt: skip
    return Table(caption, ("member", *(short(name, 24) for name in names)), tuple(cells))


def _betrayed(found: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> tuple[Text | Table, ...]:
    if "no_evidence" in found:
        return (Text(f"Which released rows betray them cannot be said: {found['no_evidence']}."),)
    cells: list[tuple[str, ...]] = []
    for row in rows:
        telling = [one for one in row.get("released") or [] if get(one, "contribution") > 0]
        cells += [
            (record_name(row) if place == 0 else "", f"{get(one, 'released_row'):.0f}",
             distance_text(get(one, "distance")), number(get(one, "contribution")), percent(get(one, "share")))
            for place, one in enumerate(telling)
        ] or [(record_name(row), "none", "", "", "")]  # fmt: skip
    return (
        Text(
            "Which released rows betray them, and by how much: Gen-LRA's score "
            f"(k = {count(get(found, 'evidence', 'k'))}) is a sum over the released rows near a record, and a row's "
            "term says how much likelier the record makes it (1: by a factor of 2.7); only terms above 0 are shown. "
            "Share: of the record's score, above 100 % where other terms are below 0. evidence.csv has these rows."
        ),
        Table("Released rows", ("member", "released row", "distance", "term", "share of score"), tuple(cells)),
    )


def score_text(score: float) -> str:
    """A score with four significant digits."""
    return number(score) if math.isnan(score) else f"{score:.4g}".replace("-", "−")


def _by_score(result: AuditResult, best: str | None, rows: int = 15) -> tuple[Text | Table, ...]:
    """Members by the best attack's score: number, score, and how many non-members score as high."""
    names, scores, member = attack_scores(result)
    if best is None or not member.any() or not np.isfinite(scores[names.index(str(best))]).any():
        return (Text("No attack gave a score, so no record can be listed."),)
    row = scores[names.index(str(best))]
    named = "record" in result.table and len(result.table) == member.size
    records = result.table["record"].to_numpy() if named else np.arange(member.size)
    inside = np.flatnonzero(member & np.isfinite(row))
    top = inside[np.argsort(-row[inside], kind="stable")][:rows]
    others = np.sort(row[~member])
    cells = tuple(
        (str(records[i]), score_text(row[i]), count(others.size - np.searchsorted(others, row[i], side="left")))
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


def overlap_section(attacks: dict[str, Any]) -> tuple[Section, ...]:
    """Every attack's AUC with and without the records that occur in another table; nothing where none does."""
    found: dict[str, Any] = {mask: {} for mask in _MASKS}
    for name, attack in attacks.items():
        for mask, row in (attack.get("auc_without") or {}).items():
            found.setdefault(mask, {})[name] = row
    masks = [mask for mask in found if found[mask]]
    masks = [mask for mask in masks if mask != "any" or len(masks) > 2]  # with one kind it repeats that
    if not masks:
        return ()
    heads = ["attack", "all records"]
    for mask in masks:
        row = next(iter(found[mask].values()))
        left = [counted(get(row, f"left_out_{kind}s"), kind.replace("_", "-")) for kind in ("member", "non_member")]
        heads.append(f"without records {_MASKS.get(mask, mask)} ({', '.join(left)})")
    rows = [
        (name, _auc(attack), *(_auc(found[mask].get(name, {})) for mask in masks)) for name, attack in attacks.items()
    ]
    return (
        Section(
            "With and without records that occur twice",
            (
                Text(
                    "A record in two tables blurs what is tested: in the reference or in both classes it speaks for "
                    "neither side, and an exact copy in the release is found by any attack. Each AUC is given with "
                    "all records and without these."
                ),
                Table("AUC of each attack", tuple(heads), tuple(rows)),
            ),
        ),
    )


def _auc(row: dict[str, Any]) -> str:
    return beside(get(row, "auc"), row.get("auc_ci"))


def strata_section(attacks: dict[str, Any]) -> tuple[Section, ...]:
    """AUC and true-positive rate among typical and unusual records."""
    rows = []
    for name, attack in attacks.items():
        for number_, row in enumerate(attack.get("strata") or []):
            rows.append(
                (
                    name if number_ == 0 else "",
                    str(number_ + 1),
                    interval(row.get("distance"), 2),
                    f"{count(get(row, 'members'))} / {count(get(row, 'non_members'))}",
                    _auc(row),
                    beside(get(row, "tpr"), row.get("tpr_ci")),
                    number(get(row, "fpr")),
                )
            )
    if not rows:
        return ()
    return (
        Section(
            "Are unusual records more exposed?",
            (
                Text(
                    "Records are ordered by their distance to the fifth-nearest reference record, from the most "
                    "typical quarter (1) to the most unusual one (4). The threshold behind the rates is the same in "
                    "all of them: the one with a false-positive rate of 10 % over all non-members."
                ),
                Table(
                    "By typicality",
                    ("attack", "quarter", "distance", "members / non-members", "AUC", "TPR", "FPR"), tuple(rows),
                    left=2,
                ),
            ),
        ),
    )  # fmt: skip


def operating_section(attacks: dict[str, Any]) -> tuple[Section, ...]:
    """Limits of (l, r) at a threshold fixed on one half of the records and judged on the other."""
    rows = []
    for name, attack in attacks.items():
        point = attack.get("operating")
        if not isinstance(point, dict):
            continue
        sure = get(point, "p_value") <= 0.05
        limits = [f"{number(get(point, f'{x}_lower'), 2)}" if sure else "no evidence" for x in ("r", "l")]
        rows.append(
            (
                name,
                f"{count(get(point, 'fp'))} of {count(get(point, 'n_out'))}",
                f"{count(get(point, 'n_in') - get(point, 'fn'))} of {count(get(point, 'n_in'))}",
                p_value(get(point, "p_value")),
                *limits,
            )
        )
    if not rows:
        return ()
    points = [attack.get("operating") for attack in attacks.values()]
    level = next((get(point, "level") for point in points if isinstance(point, dict)), math.nan)
    return (
        Section(
            "At one threshold",
            (
                Text(
                    "The threshold aims at a false-positive rate of 10 % on one half of the records and is judged on "
                    f"the other. r and l bound from below, one-sided at {100 * level:g} %, by how much the decision "
                    "moves the log odds of membership and of non-membership. They describe this attack on this "
                    "release, not the generator and not single records; where members are not called members more "
                    "often than non-members (p above .05), a limit above 0 would be no evidence and is not shown."
                ),
                Table(
                    "Decisions on the judged half; false alarms: non-members called members; p: this attack alone",
                    ("attack", "false alarms", "members found", "p", "r at least", "l at least"), tuple(rows),
                ),
            ),
        ),
    )  # fmt: skip
