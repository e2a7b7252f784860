"""Parts of a release report that an audit may lack: a second interval, bounds of epsilon, sensitivity to the reference.

Each section is an empty tuple where the summary holds nothing for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxaudit.report.words import Items, Section, Table, Text, beside, branch, count, ends, get, interval, number

__all__ = ["epsilon_section", "sensitivity_section", "two_intervals"]


def two_intervals(attacks: Mapping[str, Any], level: str) -> tuple[Text | Table, ...]:
    """DeLong's and the bootstrap's interval of every AUC side by side, where ``auc_bca`` is there."""
    known = [name for name in attacks if not all(map(math.isnan, ends(branch(attacks, name).get("auc_bca"))))]
    if not known:
        return ()
    rows = [
        (str(name), number(get(attacks, name, "auc")), interval(attacks[name].get("auc_ci")),
         interval(attacks[name].get("auc_bca")))
        for name in known
    ]  # fmt: skip
    return (
        Text(
            "Two intervals of the AUC by different means: DeLong's, from a formula for its variance, and BCa, from "
            "resampled records, corrected for bias and skew. Where they differ much, few records decide."
        ),
        Table(f"{level} intervals", ("attack", "AUC", "DeLong", "BCa bootstrap"), tuple(rows)),
    )


def epsilon_section(summary: Mapping[str, Any]) -> tuple[Section, ...]:
    """Lower bounds of epsilon from ``summary["epsilon"]`` and from the attacks' own, with what they assume.

    Either is a dict with ``epsilon`` and what belongs to it, or with a ``sentence`` that says why there is none;
    ``assumptions`` is a text or a list of texts.
    """
    shared, attacks = branch(summary, "epsilon"), branch(summary, "attacks")
    found = [(str(shared.get("attack", "")), shared)] if "epsilon" in shared else []
    found += [(str(name), branch(attacks, name, "epsilon")) for name in attacks if branch(attacks, name, "epsilon")]
    if not found and not shared:
        return ()
    told = shared.get("assumptions") or ()
    said = [told] if isinstance(told, str) else [str(text) for text in told]
    blocks: list[Text | Items | Table] = []
    if found:
        blocks.append(
            Text(
                "If the generator were (ε, δ)-differentially private, one record more or less could not change what it "
                "releases by more than these numbers allow. The bound is the smallest ε that the attack leaves "
                "possible at its confidence; 0 says nothing either way, and a large number is bad. Each bound is "
                "for one attack chosen beforehand: the largest of several is not valid at that confidence."
            )
        )
        curved = any("epsilon_if_gaussian" in row for _, row in found)
        heads = ("attack", "ε at least", *(("if it leaks like Gaussian noise",) if curved else ()), "δ", "confidence",
                 "records used")  # fmt: skip
        blocks.append(Table("Lower bounds of ε from this one release", heads,
                            tuple(_bound(name, row, curved) for name, row in found)))  # fmt: skip
    if said:
        blocks.append(Items(tuple(said)))
    if isinstance(shared.get("sentence"), str):
        blocks.append(Text(shared["sentence"]))
    return (Section("Differential privacy: what the attacks rule out", tuple(blocks)),) if blocks else ()


def _bound(name: str, row: Mapping[str, Any], curved: bool) -> tuple[str, ...]:
    level = get(row, "level")
    confidence = "–" if math.isnan(level) else f"{100 * level:.6g} %"
    gaussian = (number(get(row, "epsilon_if_gaussian"), 2),) if curved else ()
    delta = get(row, "delta")
    shown = "–" if math.isnan(delta) else f"{delta:g}".replace("-", "−")
    return name, number(get(row, "epsilon"), 2), *gaussian, shown, confidence, count(get(row, "records"))


def sensitivity_section(summary: Mapping[str, Any]) -> tuple[Section, ...]:
    """AUCs with a smaller or a shifted reference, from the rows of ``summary["sensitivity"]``.

    A row has ``attack``, ``kind`` (what is changed), ``level`` (how much), ``auc``, ``auc_low`` and ``auc_high``.
    """
    given = summary.get("sensitivity")
    rows = [branch(row) for row in given if branch(row)] if isinstance(given, list | tuple) else []
    if not rows:
        return ()
    kinds = list(dict.fromkeys((str(row.get("kind", "")), _level(row)) for row in rows))
    names = list(dict.fromkeys(str(row.get("attack", "")) for row in rows))
    cell = {
        (str(row.get("attack", "")), str(row.get("kind", "")), _level(row)): beside(
            get(row, "auc"), [get(row, "auc_low"), get(row, "auc_high")]
        )
        for row in rows
    }
    table = tuple((kind, level, *(cell.get((name, kind, level), "–") for name in names)) for kind, level in kinds)
    return (
        Section(
            "Does it hang on the reference?",
            (
                Text(
                    "Attacks measure the release against the reference table. Here the reference is made smaller, or "
                    "moved away from the population, and the attacks are run again. An AUC that stays says that the "
                    "finding is one of the release; one that rises with a shift may be made by the reference. A "
                    "shifted reference keeps only a share of the rows (sensitivity.keep), also where the shift is 0: "
                    "compare shifts with that row."
                ),
                Table("AUC with another reference", ("change", "by how much", *names), table, left=2),
            ),
        ),
    )


def _level(row: Mapping[str, Any]) -> str:
    value = get(row, "level")
    return str(row.get("level", "–")) if math.isnan(value) else f"{value:g}".replace("-", "−")
