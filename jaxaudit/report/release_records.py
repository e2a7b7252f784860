"""Parts of a release report about records: overlaps, typical and unusual records, and a fixed operating point."""

from __future__ import annotations

import math
from typing import Any

from jaxaudit.report.figures_release import counted
from jaxaudit.report.words import Section, Table, Text, count, get, interval, number, p_value

__all__ = ["operating_section", "overlap_section", "strata_section"]

_MASKS = {
    "in_reference": "also in the reference",
    "in_other_class": "both members and non-members",
    "in_synthetic": "copied exactly into the release",
    "any": "any of these",
}


def overlap_section(attacks: dict[str, Any]) -> tuple[Section, ...]:
    """Every attack's AUC with and without the records that occur in another table; nothing where none does."""
    found: dict[str, Any] = {mask: {} for mask in _MASKS}
    for name, attack in attacks.items():
        for mask, row in (attack.get("auc_without") or {}).items():
            found.setdefault(mask, {})[name] = row
    masks = [mask for mask in found if found[mask]]
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
    return f"{number(get(row, 'auc'))} {interval(row.get('auc_ci'))}".strip()


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
                    f"{number(get(row, 'tpr'))} {interval(row.get('tpr_ci'))}".strip(),
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
                    "Decisions on the judged half",
                    ("attack", "non-members called members", "members found", "p, this attack alone", "r at least",
                     "l at least"), tuple(rows),
                ),
            ),
        ),
    )  # fmt: skip
