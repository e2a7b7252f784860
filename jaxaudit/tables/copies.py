"""Copies and near copies: how close the release comes to the records that it may have been made from.

A generator that repeats its training data puts released rows on, or nearer to, members than to records that it never
saw. Distances to the nearest released row are therefore set beside those of non-members and of the reference.

A near copy is a record closer to the release than the yardstick, the 1 % quantile of the reference's own distances; an
exact copy is at distance 0 and counts among them. Let X_(k) be the k-th smallest of the reference's r distances: a
record from the same population that the generator never saw is closer than X_(k) with probability at most k / (r + 1)
(derived: by exchangeability its distance is equally likely to take every place among the r + 1). The yardstick speaks
for the population alone: neither the labels nor the scored records have a say in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from jaxaudit.evaluate.roc import clopper_pearson, validate
from jaxaudit.runtime.checks import check_real
from jaxaudit.tables.attacks.neighbours import nearest_distance
from jaxaudit.tables.density import as_rows, distinct_rows

__all__ = ["Copies", "copies", "difference_interval"]

_QUANTILES = (0, 0.01, 0.05, 0.25, 0.5)


@dataclass(frozen=True)
class Copies:
    """Distances to the release, and what they say.

    Attributes:
        distance: (n,) float64, of every scored record to its nearest released row, encoded; 0 for an exact copy.
        reference: (r,) float64, the same of the reference rows.
        summary: plain nested values. ``yardstick``, its ``quantile`` and ``expected_share`` (how many records that the
            generator never saw are closer, at most; None where the yardstick is 0, because more of the reference than
            the quantile occurs in the release: then only exact copies count as near). ``groups``: for ``members``,
            ``non_members`` and ``reference`` the number of ``rows``, of ``exact`` and ``near`` copies, their
            ``exact_share`` and ``near_share`` with exact binomial intervals (``_ci``; none for the reference's near
            share, which is about the quantile by construction), and ``quantiles`` of the distance. ``compared``: for
            ``exact`` and ``near`` the ``difference`` of the members' and the non-members' shares, its interval ``ci``,
            and ``p_value``, Fisher's exact test that members have more. ``p_value``: the smaller of the two, doubled
            for looking twice.
    """

    distance: np.ndarray
    reference: np.ndarray
    summary: dict[str, Any]


def copies(
    targets: Any, member: Any, synthetic: Any, reference: Any, level: float = 0.95, quantile: float = 0.01, *,
    repeated: tuple[np.ndarray, np.ndarray] | None = None,
) -> Copies:  # fmt: skip
    """Count exact and near copies of members, of non-members and of reference rows.

    Args:
        targets: (n, d) encoded records.
        member: (n,) of 0/1 or booleans, both classes present.
        synthetic: (m, d) encoded released rows.
        reference: (r, d) encoded reference rows.
        level: coverage of every interval, in (0, 1).
        quantile: of the reference's distances, the yardstick of near copies; in (0, 1).
        repeated: (n,) and (r,) bool, records and reference rows that the release repeats as printed
            (``overlaps.in_release``): their distance counts as 0.

    Raises:
        InputError: tables of different width, values that are not finite, a class without records, level or quantile
            out of range.

    Example:
        >>> found = copies([[0.0], [5.0], [2.0]], [1, 1, 0], [[0.0], [5.1]], [[1.0], [7.0], [9.0]])
        >>> found.summary["groups"]["members"]["exact"], found.summary["groups"]["members"]["near"]
        (1, 2)
        >>> found.summary["yardstick"], found.summary["expected_share"]
        (1.0, 0.25)
    """
    level = check_real("level", level, 0, 1, open_low=True, open_high=True)
    check_real("quantile", quantile, 0, 1, open_low=True, open_high=True)
    rows = as_rows("targets", targets)
    labels = validate(np.zeros(len(rows)), member)[1]
    released = distinct_rows(as_rows("synthetic", synthetic, rows.shape[1]))[0]
    distance = nearest_distance(rows, released)
    others = nearest_distance(as_rows("reference", reference, rows.shape[1]), released)
    if repeated is not None:
        distance, others = (np.where(same, 0.0, d) for same, d in zip(repeated, (distance, others), strict=True))
    yardstick = float(_quantile(others, quantile))
    groups = {"members": distance[labels], "non_members": distance[~labels], "reference": others}
    described = {name: _group(values, yardstick, level) for name, values in groups.items()}
    described["reference"]["near_share_ci"] = None
    compared = {kind: _compare(described, kind, level) for kind in ("exact", "near")}
    return Copies(distance, others, {
        "yardstick": yardstick, "quantile": quantile, "level": level,
        "expected_share": (int((others < yardstick).sum()) + 1) / (len(others) + 1) if yardstick else None,
        "groups": described, "compared": compared,
        "p_value": min(1.0, 2 * min(row["p_value"] for row in compared.values())),
    })  # fmt: skip


def difference_interval(hits: Sequence[int], trials: Sequence[int], level: float = 0.95) -> tuple[float, float]:
    """Interval of the difference of two independent proportions, from their Wilson intervals (Newcombe's method 10).

    Args:
        hits: of the first and of the second sample.
        trials: of both, >= 1.
        level: coverage, in (0, 1).

    Returns:
        (low, high) of ``hits[0] / trials[0] - hits[1] / trials[1]``, within [-1, 1].

    References:
        Newcombe, Statistics in Medicine 17 (1998) 873.

    Example:
        >>> [round(end, 4) for end in difference_interval((56, 48), (70, 80))]
        [0.0524, 0.3339]
    """
    shares = [hit / trial for hit, trial in zip(hits, trials, strict=True)]
    wilson = [
        stats.binomtest(hit, trial).proportion_ci(level, method="wilson")
        for hit, trial in zip(hits, trials, strict=True)
    ]
    gap = shares[0] - shares[1]
    down = np.hypot(shares[0] - wilson[0].low, wilson[1].high - shares[1])
    up = np.hypot(wilson[0].high - shares[0], shares[1] - wilson[1].low)
    return float(max(-1.0, gap - down)), float(min(1.0, gap + up))


def _quantile(values: np.ndarray, share: float) -> np.ndarray:
    """A value that occurs: the smallest with at least ``share`` of all at or below it."""
    return np.quantile(values, share, method="inverted_cdf")


def _group(distance: np.ndarray, yardstick: float, level: float) -> dict[str, Any]:
    exact = int((distance == 0).sum())
    near = exact if yardstick == 0 else int((distance < yardstick).sum())
    found: dict[str, Any] = {"rows": len(distance), "exact": exact, "near": near}
    for kind in ("exact", "near"):
        low, high = clopper_pearson(found[kind], len(distance), level)
        found |= {f"{kind}_share": found[kind] / len(distance), f"{kind}_share_ci": [float(low), float(high)]}
    return found | {"quantiles": {f"{share:g}": float(_quantile(distance, share)) for share in _QUANTILES}}


def _compare(groups: dict[str, Any], kind: str, level: float) -> dict[str, Any]:
    """Members against non-members."""
    hits = [groups[name][kind] for name in ("members", "non_members")]
    rows = [groups[name]["rows"] for name in ("members", "non_members")]
    table = [[hit, row - hit] for hit, row in zip(hits, rows, strict=True)]
    return {
        "difference": hits[0] / rows[0] - hits[1] / rows[1],
        "ci": list(difference_interval(hits, rows, level)),
        "p_value": float(stats.fisher_exact(table, alternative="greater").pvalue),
    }
