"""BCa bootstrap intervals of the AUCs of several attacks on the same records, resampled together."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from jaxaudit.evaluate.canonical import by_class, merge_rounding, shuffled_order
from jaxaudit.evaluate.roc import placements, validate, widened
from jaxaudit.runtime.checks import check_int, check_real, require
from jaxaudit.runtime.keys import host_rng

__all__ = ["auc_bca", "bootstrap_wins"]

_BLOCK = 64
"""Resamples drawn together: few enough for 100,000 records in memory."""


def auc_bca(scores: Any, member: Any, level: float = 0.95, seed: int = 0, resamples: int = 2000) -> np.ndarray:
    """Bias-corrected and accelerated bootstrap intervals; members and non-members are resampled apart.

    Acceleration is that of the jackknife over both classes, in closed form: without record i the AUC falls by
    (placement_i - A) / (n - 1), a placement being the share of the other class that the record is ordered rightly
    with, ties one half; times (n - 1) / n these are its influences (derived). Few misordered pairs make any resampling
    too sure of itself: such intervals are widened, see ``jaxaudit.evaluate.roc.auc_interval``.

    Args:
        scores: (a, n) finite real numbers, one row per attack, higher = more member-like.
        member: (n,) of 0/1 or booleans.
        level: coverage of each interval, in (0, 1).
        seed: of the resampling; all attacks see the same resamples.
        resamples: >= 100.

    Returns:
        (a, 2) float64, 0 <= low <= A <= high <= 1. An attack's interval does not depend on the other attacks, nor
        on the order of the records.

    Raises:
        InputError: no attack, an argument out of its range, or see ``jaxaudit.evaluate.roc.validate``.

    References:
        Efron, JASA 82 (1987) 171.

    Example:
        >>> member = np.arange(60) < 30
        >>> low, high = auc_bca((np.arange(60) % 30 + 9 * member)[None], member)[0]
        >>> bool(0.6 < low < high < 0.9)
        True
    """
    values, labels = validate(scores, member, ndim=2)
    level = check_real("level", level, 0, 1, open_low=True, open_high=True)
    check_int("resamples", resamples, 100)
    require(values.shape[0] >= 1, "scores", "have at least one attack", values.shape)
    values = merge_rounding(values)
    n1, n0 = int(labels.sum()), int((~labels).sum())
    wins = _wins(values, labels, resamples, seed) if min(n1, n0) > 1 else None
    intervals = np.empty((len(values), 2))
    for index, (members, others) in enumerate(zip(*by_class(values, labels), strict=True)):
        below, above = placements(members, others)
        area = float(below.mean())
        drawn = None if wins is None else wins[index] / (2 * n1 * n0)
        intervals[index] = widened(_interval(area, below, above, drawn, level), area, n1, n0, level)
    return intervals


def _interval(
    area: float, below: np.ndarray, above: np.ndarray, drawn: np.ndarray | None, level: float
) -> tuple[float, float] | None:
    """The interval of one attack; None where the resamples do not vary."""
    if drawn is None or np.ptp(drawn) == 0.0:
        return None
    moved = np.concatenate([(below - area) / below.size, (above - area) / above.size])
    acceleration = np.sum(moved**3) / (6.0 * np.sum(moved**2) ** 1.5)
    tiny = 1e-12  # equal wins may differ by rounding from the area as a mean of placements
    share = (np.mean(drawn < area - tiny) + np.mean(drawn <= area + tiny)) / 2
    bias = stats.norm.ppf(np.clip(share, 0.5 / drawn.size, 1 - 0.5 / drawn.size))
    shifted = bias + stats.norm.ppf([0.5 - level / 2, 0.5 + level / 2])
    low, high = np.quantile(drawn, stats.norm.cdf(bias + shifted / (1.0 - acceleration * shifted)))
    return float(min(low, area)), float(max(high, area))


def _wins(values: np.ndarray, labels: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """``bootstrap_wins`` with every attack's records in an order of their own, so that its interval is its own."""
    orders = [shuffled_order(row[None], labels, seed) for row in values]
    placed = [(row[order], labels[order]) for row, order in zip(values, orders, strict=True)]
    inside, outside = (np.stack([row[own == side] for row, own in placed]) for side in (True, False))
    return bootstrap_wins(inside, outside, resamples, seed)


def bootstrap_wins(inside: np.ndarray, outside: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Twice the won pairs (ties count one) of every attack in every resample, (a, resamples) float64 whole numbers.

    A resample counts how often each record is drawn, for all attacks alike; sums of the non-members' counts in the
    order of an attack's scores, read off below and above each member's place, are its wins. Records are rows and
    resamples columns, so that everything moves in contiguous rows, nothing is sorted again, and nothing is compiled.

    Args:
        inside: (a, n1) scores of members.
        outside: (a, n0) scores of non-members.
        resamples: number of resamples.
        seed: of the resampling.

    Example:
        >>> bootstrap_wins(np.ones((1, 4)), np.zeros((1, 3)), 2, 0).tolist()
        [[24.0, 24.0]]
    """
    n1, n0 = inside.shape[1], outside.shape[1]
    order = np.argsort(outside, axis=1)
    ordered = np.take_along_axis(outside, order, axis=1)
    pairs = list(zip(ordered, inside, strict=True))
    places = [[np.searchsorted(row, members, side=side) for side in ("left", "right")] for row, members in pairs]
    wins = np.empty((len(inside), resamples))
    for start in range(0, resamples, _BLOCK):
        rng = host_rng(seed, "auc bootstrap", start)
        times1, times0 = (_times_drawn(rng, n) for n in (n1, n0))
        kept = slice(start, min(start + _BLOCK, resamples))
        for attack, (first, last) in enumerate(places):
            passed = np.concatenate([np.zeros((1, _BLOCK)), np.cumsum(times0[order[attack]], axis=0)])
            won = np.einsum("ij,ij->j", times1, passed[first]) + np.einsum("ij,ij->j", times1, passed[last])
            wins[attack, kept] = won[: kept.stop - start]
    return wins


def _times_drawn(rng: np.random.Generator, n: int) -> np.ndarray:
    """How often each of n records is drawn in n draws with replacement, (n, _BLOCK) float64."""
    drawn = rng.integers(n, size=(n, _BLOCK)) * _BLOCK + np.arange(_BLOCK)
    return np.bincount(drawn.ravel(), minlength=n * _BLOCK).reshape(n, _BLOCK).astype(np.float64)
