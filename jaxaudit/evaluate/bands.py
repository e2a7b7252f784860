"""ROC curves of several attacks on one grid of false-positive rates, with bands that hold at small rates too.

The curve at a rate f is the step: the share of members above the lowest threshold that lets in at most f of the
non-members, tied records let in together or not at all; nothing is interpolated.

The bands are of the population's curve R(f), so that they carry both sampling errors: of the threshold, which is known
from the non-members only, and of the share of members above it. The threshold that lets in a share f of the population
has N ~ Binomial(n0, f) of the n0 scored non-members above it, whatever the scores. So it lies between the (N+1)-th and
the N-th largest of their scores, and between k(N-1) and k(N) members lie above it, k(j) = members that outscore all but
j of the non-members (derived). Given N, Clopper and Pearson bound R(f) by quantiles of Beta(k(N-1), n1-k(N-1)+1)
and Beta(k(N)+1, n1-k(N)); the limits are the quantiles of the mixtures of these over N. Near rate 0 the lower limit is
0, because no sample shows what happens above every non-member of the population. ``evaluate.tpr_at_fpr`` has the
interval at the realised threshold, a narrower question.

Where few distinct scores make the curve jump, a band next to the jump is as uncertain as the place of the jump.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

from jaxaudit.evaluate.canonical import merge_rounding
from jaxaudit.evaluate.roc import validate
from jaxaudit.runtime.checks import check_int, check_real, require

__all__ = ["Bands", "fpr_counts", "roc_bands"]


class Bands(NamedTuple):
    """ROC curves on a common grid.

    Attributes:
        fpr: (g,) float64, ascending from 0 to 1, multiples of 1 / non-members.
        tpr: (a, g) float64, the realised step of every attack at or below that rate.
        low: (a, g) float64, lower limits, at most ``tpr``.
        high: (a, g) float64, upper limits, at least ``tpr``.
    """

    fpr: np.ndarray
    tpr: np.ndarray
    low: np.ndarray
    high: np.ndarray


def fpr_counts(non_members: int, most: int = 400) -> np.ndarray:
    """False-positive counts 0, 1, ..., n0, thinned to at most ``most`` of them in equal steps of the logarithm.

    Example:
        >>> fpr_counts(5).tolist(), fpr_counts(1000, 6).tolist()
        ([0, 1, 2, 3, 4, 5], [0, 1, 6, 32, 178, 1000])
    """
    check_int("most", most, 3)
    if non_members < most:
        return np.arange(non_members + 1)
    return np.unique(np.append(0, np.rint(np.geomspace(1, non_members, most - 1)).astype(int)))


def roc_bands(scores: Any, member: Any, level: float = 0.95) -> Bands:
    """ROC curves of several attacks on the same records, with pointwise bands of the population's curves.

    Scores that differ by rounding only count as equal (``jaxaudit.evaluate.canonical.merge_rounding``).

    Args:
        scores: (a, n) finite real numbers, one row per attack, higher = more member-like.
        member: (n,) of 0/1 or booleans.
        level: coverage at each single rate, in (0, 1).

    Returns:
        ``Bands`` on at most 400 realised rates, from 0 by 1 / non-members, then in steps of the logarithm.

    Raises:
        InputError: no attack, a level out of its range, or see ``jaxaudit.evaluate.roc.validate``.

    References:
        Clopper & Pearson, Biometrika 26 (1934) 404, for the limits at a known threshold; the rest is derived above.

    Example:
        >>> bands = roc_bands([[1, 2, 3, 4, 5, 6]], [0, 0, 1, 0, 1, 1])
        >>> bands.fpr.round(2).tolist(), bands.tpr.round(2).tolist()
        ([0.0, 0.33, 0.67, 1.0], [[0.67, 1.0, 1.0, 1.0]])
    """
    values, labels = validate(scores, member, ndim=2)
    level = check_real("level", level, 0, 1, open_low=True, open_high=True)
    require(values.shape[0] >= 1, "scores", "have at least one attack", values.shape)
    values = merge_rounding(values)
    hits = _hits(values[:, labels], values[:, ~labels])
    n1, n0 = int(labels.sum()), int((~labels).sum())
    counts = fpr_counts(n0)
    tpr = hits[:, counts + 1] / n1
    low, high = _limits(hits, counts, n1, n0, (1 - level) / 2)
    return Bands(counts / n0, tpr, np.minimum(low, tpr), np.maximum(high, tpr))


def _hits(members: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(a, n0 + 2) members above the threshold that lets in at most j - 1 non-members, j = 0, ..., n0 + 1."""
    found = np.zeros((len(members), others.shape[1] + 2), dtype=np.int64)
    for row, inside, outside in zip(found, np.sort(members, axis=1), np.sort(others, axis=1), strict=True):
        row[1:-1] = inside.size - np.searchsorted(inside, outside[::-1], side="right")
        row[-1] = inside.size
    return found


def _limits(hits: np.ndarray, counts: np.ndarray, n1: int, n0: int, tail: float) -> tuple[np.ndarray, np.ndarray]:
    """Limits (a, g) at the rates counts / n0, members counted in bins of close numbers."""
    few = fpr_counts(n1, 1000)
    bins = np.unique(np.append(few, n1 - few))
    weights = np.zeros((2, counts.size, len(hits), bins.size))
    attack = np.arange(len(hits))[:, None]
    for place, count in enumerate(counts):
        first, last = stats.binom.ppf([1e-9, 1 - 1e-9], n0, count / n0).astype(int).clip(0, n0)
        weight = stats.binom.pmf(np.arange(first, last + 1), n0, count / n0)[None]
        surely, possibly = hits[:, first : last + 1], n1 - hits[:, first + 1 : last + 2]
        for side, number in enumerate((surely, possibly)):
            np.add.at(weights[side, place], (attack, np.searchsorted(bins, number, side="right") - 1), weight)
    grid = np.sin(np.linspace(0, np.pi / 2, 513)) ** 2  # fine where limits are near 0 or 1
    below = special.betainc(np.maximum(bins, 1), n1 - bins + 1, grid[:, None])
    below[:, 0] = 1.0  # no member for sure: the limit is 0
    limits = [_lower(below @ side.reshape(-1, bins.size).T, grid, tail).reshape(-1, len(hits)).T for side in weights]
    return limits[0], 1.0 - limits[1]


def _lower(below: np.ndarray, grid: np.ndarray, tail: float) -> np.ndarray:
    """The quantile at ``tail`` of every column of distribution functions on the grid."""
    after = np.argmax(below > tail, axis=0)
    before = np.maximum(after - 1, 0)
    column = np.arange(after.size)
    start, stop = below[before, column], below[after, column]
    share = np.where(after > 0, (tail - start) / np.where(stop > start, stop - start, 1.0), 0.0)
    return grid[before] + share * (grid[after] - grid[before])
