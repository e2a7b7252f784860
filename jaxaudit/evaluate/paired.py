"""Attacks compared on the same records: differences of AUCs with the dependence between attacks kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxaudit.evaluate.roc import validate
from jaxaudit.runtime.checks import check_int, check_real, require
from jaxaudit.runtime.chunks import rows_per_chunk
from jaxaudit.runtime.keys import host_rng

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

    A resample is a vector of multiplicities w, and its AUC is w1ᵀ P w0 / (n1 n0), P the matrix of won pairs (ties one
    half): one matrix product for all resamples. Intervals are percentile ones; differences need no transformation.

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
    inside, outside = values[:, labels], values[:, ~labels]
    n1, n0 = inside.shape[1], outside.shape[1]
    rng = host_rng(seed, "paired bootstrap")
    w1, w0 = (rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float32) for n in (n1, n0))
    ones = np.ones((1, n1), np.float32), np.ones((1, n0), np.float32)
    both = np.concatenate([ones[0], w1]), np.concatenate([ones[1], w0])
    areas = np.stack([_weighted(a, b, *both) for a, b in zip(inside, outside, strict=True)])
    auc, drawn = areas[:, 0], areas[:, 1:]
    difference = drawn[:, None] - drawn[None]
    low, high = np.quantile(difference, [(1 - level) / 2, (1 + level) / 2], axis=2)
    best = drawn == drawn.max(axis=0)
    first = (best / best.sum(axis=0)).mean(axis=1)
    return PairedComparison(auc, auc[:, None] - auc[None], low, high, first, level, resamples)


def _weighted(inside: np.ndarray, outside: np.ndarray, w1: np.ndarray, w0: np.ndarray) -> np.ndarray:
    """AUC of every pair of multiplicity vectors (R, n1), (R, n0), members taken in blocks; sums in float64.

    Half wins times small whole numbers: exact in float32 up to 2^24 within a block.
    """
    won = np.zeros(w1.shape[0])
    block = rows_per_chunk(8.0 * outside.size)
    for start in range(0, inside.size, block):
        score = inside[start : start + block, None]
        pairs = (score > outside).astype(np.float32) + np.float32(0.5) * (score == outside)
        won += np.einsum("rj,rj->r", w1[:, start : start + block] @ pairs, w0, dtype=np.float64)
    return won / (inside.size * outside.size)
