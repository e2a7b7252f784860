"""Attacks compared on the same records: differences of AUCs with the dependence between attacks kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxaudit.evaluate.bca import bootstrap_wins
from jaxaudit.evaluate.canonical import by_class, merge_rounding, shuffled_order
from jaxaudit.evaluate.roc import placements, validate
from jaxaudit.runtime.checks import check_int, check_real, require

__all__ = ["PairedComparison", "compare_aucs"]


@dataclass(frozen=True)
class PairedComparison:
    """AUCs of several attacks against each other.

    Attributes:
        auc: (a,) observed AUCs.
        difference: (a, a) AUC of the row's attack minus the column's.
        low, high: (a, a) interval of the difference; 0 on the diagonal.
        first: (a,) share of resamples in which the attack has the largest AUC, ties shared; sums to 1.
        level: of the intervals.
        resamples: number of resamples.
    """

    auc: np.ndarray
    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray
    first: np.ndarray
    level: float
    resamples: int


def compare_aucs(
    scores: Any, member: Any, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> PairedComparison:
    """Paired bootstrap: members and non-members are resampled, each resample for all attacks at once.

    Records are resampled in one order common to all attacks, ``jaxaudit.evaluate.canonical.shuffled_order``.
    Intervals are percentile ones; differences need no transformation.

    Args:
        scores: (a, n) finite real numbers, one row per attack, higher = more member-like.
        member: (n,) of 0/1 or booleans.
        level: coverage of each interval, in (0, 1); not adjusted for the number of pairs.
        resamples: >= 100.
        seed: of the resampling.

    Raises:
        InputError: no attack, an argument out of its range, or see ``jaxaudit.evaluate.roc.validate``.

    Example:
        >>> member = np.arange(40) < 20
        >>> found = compare_aucs(np.stack([member + 0.0, np.tile([0.0, 1.0], 20)]), member)
        >>> found.difference[0, 1].item(), bool(found.low[0, 1] > 0.1), found.first.tolist()
        (0.5, True, [1.0, 0.0])
    """
    values, labels = validate(scores, member, ndim=2)
    check_real("level", level, 0, 1, open_low=True, open_high=True)
    check_int("resamples", resamples, 100)
    require(values.shape[0] >= 1, "scores", "have at least one attack", values.shape)
    values = merge_rounding(values)
    order = shuffled_order(values, labels, seed)
    values, labels = values[:, order], labels[order]
    inside, outside = values[:, labels], values[:, ~labels]
    n1, n0 = inside.shape[1], outside.shape[1]
    auc = np.array([placements(*pair)[0].mean() for pair in zip(*by_class(values, labels), strict=True)])
    drawn = bootstrap_wins(inside, outside, resamples, seed) / (2 * n1 * n0)
    difference = drawn[:, None] - drawn[None]
    low, high = np.quantile(difference, [(1 - level) / 2, (1 + level) / 2], axis=2)
    best = drawn == drawn.max(axis=0)
    first = (best / best.sum(axis=0)).mean(axis=1)
    return PairedComparison(auc, auc[:, None] - auc[None], low, high, first, level, resamples)
