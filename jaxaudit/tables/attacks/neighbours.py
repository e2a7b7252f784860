"""Nearest rows with deterministic ties, in bounded memory.

A table of float32 distances in the matrix-product form is fast and inexact; it only leaves out rows that a bound on
its error excludes (``screening``). Who is a neighbour, and how close, is decided by float64 sums of squared
differences: an exact copy is at distance exactly zero, whatever the size of the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxaudit.runtime.checks import check_int, require
from jaxaudit.tables.attacks.screening import candidates, counted, screening_tables
from jaxaudit.tables.blocks import block_map, row_blocks

__all__ = ["NeighbourPairs", "check_k", "count_within", "nearest_distance", "nearest_other", "nearest_pairs",
           "squared_differences", "tie_weights", "used_rows"]  # fmt: skip

_TIE = 1e-10
"""Squared distances closer than this share of the k-th are the same distance: re-encoding a table of
categories makes equal distances differ by rounding, and rounding must not choose among neighbours."""

_BUDGET = 16 << 20
"""Bytes of one block's table of distances."""


@dataclass(frozen=True)
class NeighbourPairs:
    """All (target, row) pairs up to and including the k-th distance, target by target.

    Attributes:
        target: (p,) index of the target, ascending.
        row: (p,) index of the distinct row, ascending within a target.
        squared: (p,) squared distance, float64.
        k: the k they were found for.
        tie: relative tolerance within which squared distances are equal.
    """

    target: np.ndarray
    row: np.ndarray
    squared: np.ndarray
    k: int
    tie: float = _TIE


def check_k(k: Any, rows: int) -> int:
    """``k`` as an int in [1, rows], or ``InputError("gen_lra.k must be in [1, rows], got k")``."""
    return check_int("gen_lra.k", k, 1, rows)


def nearest_pairs(targets: np.ndarray, rows: np.ndarray, counts: np.ndarray, k: int) -> NeighbourPairs:
    """The k nearest rows of every target, with all rows at the k-th distance.

    Args:
        targets: (n, d) float64.
        rows: (m, d) distinct rows, float64.
        counts: (m,) how often each occurs; ``counts.sum() >= k``.
        k: number of neighbours, copies counted.

    Example:
        >>> pairs = nearest_pairs(np.array([[0.0]]), np.array([[-1.0], [1.0], [5.0]]), np.array([1, 1, 1]), 1)
        >>> pairs.row.tolist(), tie_weights(pairs, np.array([1, 1, 1]), 1).tolist()
        ([0, 1], [0.5, 0.5])
    """
    check_int("k", k, 1, int(counts.sum()))
    return NeighbourPairs(*_closest(targets, rows, counts, k), k)


def nearest_distance(targets: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Distance of every target to its nearest row, (n,) float64; exactly 0 for a copy.

    Example:
        >>> nearest_distance(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0], [9.0, 9.0]])).tolist()
        [5.0]
    """
    target, _, squared = _closest(targets, rows, np.ones(len(rows), np.int64), 1)
    return np.sqrt(np.minimum.reduceat(squared, np.searchsorted(target, np.arange(len(targets)))))


def nearest_other(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Distance of each chosen row to the nearest of the other distinct rows; infinite where there is none.

    Example:
        >>> nearest_other(np.array([[0.0], [3.0], [4.0]]), np.array([0, 2])).tolist()
        [3.0, 1.0]
    """
    squared = np.full(len(chosen), np.inf)
    if len(rows) > 1:
        target, row, found = _closest(rows[chosen], rows, np.ones(len(rows), np.int64), 2)
        others = row != chosen[target]
        np.minimum.at(squared, target[others], found[others])
    return np.sqrt(squared)


def count_within(targets: np.ndarray, rows: np.ndarray, counts: np.ndarray, radius: float) -> np.ndarray:
    """Rows within ``radius`` of every target, copies counted, (n,) int64; ties at the radius are inside.

    Example:
        >>> count_within(np.zeros((1, 1)), np.array([[-1.0], [1.0], [2.0]]), np.array([1, 2, 1]), 1.0).tolist()
        [3]
    """
    screen = screening_tables(targets, rows)
    starts, size = row_blocks(len(targets), screen.slack.nbytes, _BUDGET, most=512)
    copies = np.zeros(len(screen.slack), np.int32)
    copies[: len(rows)] = counts
    limit, edge = radius**2 * (1 + _TIE), (radius / screen.scale) ** 2

    def block(start: int) -> np.ndarray:
        inside, unsure = counted(screen, start, size, copies, edge)
        target, row = np.divmod(np.flatnonzero(unsure), unsure.shape[1])
        close = squared_differences(targets, target + start, rows, row) <= limit
        return inside + np.bincount(target, weights=counts[row] * close, minlength=len(inside)).astype(np.int64)

    return np.concatenate(block_map(block, starts))


def tie_weights(pairs: NeighbourPairs, counts: np.ndarray, k: int) -> np.ndarray:
    """Weight of every pair in the sum over the k nearest, for any ``k <= pairs.k``; shape (p,).

    A row closer than the k-th distance counts once per copy; the rows at the k-th distance share what is
    left: ``(k - closer) / tied`` per copy. The weights of a target add up to k.
    """
    require(k <= pairs.k, "k", f"be at most {pairs.k}", k)
    copies = counts[pairs.row].astype(np.float64)
    if k == pairs.k and copies.sum() == k * (int(pairs.target[-1]) + 1):
        return copies  # every target holds at least k, so all hold exactly k: nothing to share
    kth = _kth_squared(pairs.target, pairs.squared, copies, k)[pairs.target]
    closer = pairs.squared < kth * (1 - pairs.tie)
    tied = ~closer & (pairs.squared <= kth * (1 + pairs.tie))
    n_closer, n_tied = (np.bincount(pairs.target, weights=copies * mask) for mask in (closer, tied))
    share = (k - n_closer) / np.maximum(n_tied, 1.0)
    return copies * (closer + tied * share[pairs.target])


def squared_differences(a: np.ndarray, i: np.ndarray, b: np.ndarray, j: np.ndarray) -> np.ndarray:
    """``|a[i] - b[j]|^2`` by subtracting first, for index vectors (p,); a few rows at a time stay in cache.

    Example:
        >>> squared_differences(np.array([[1.0, 2.0]]), np.array([0]), np.array([[4.0, 6.0]]), np.array([0])).tolist()
        [25.0]
    """
    out = np.empty(len(i))
    step = max(1, (1 << 18) // (8 * a.shape[1]))
    buffers = np.empty((2, min(step, len(i)), a.shape[1]))
    for low in range(0, len(i), step):
        left, right = buffers[:, : len(i) - low]
        np.take(a, i[low : low + step], axis=0, out=left, mode="clip")  # clip: written in place, not by a copy
        np.take(b, j[low : low + step], axis=0, out=right, mode="clip")
        np.subtract(left, right, out=left)
        np.einsum("pd,pd->p", left, left, out=out[low : low + step])
    return out


def used_rows(row: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that occur, ascending, and the place of every ``row`` among them: ``np.unique`` without a sort.

    Example:
        >>> [part.tolist() for part in used_rows(np.array([3, 1, 3]), 5)]
        [[1, 3], [1, 0, 1]]
    """
    seen = np.zeros(rows, bool)
    seen[row] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[row]


def _closest(
    targets: np.ndarray, rows: np.ndarray, counts: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Target, row and squared distance of all pairs up to the k-th distance of each target."""
    screen = screening_tables(targets, rows)
    starts, size = row_blocks(len(targets), screen.slack.nbytes, _BUDGET, most=512)
    places = min(k, len(rows))  # k distinct rows are at least k copies

    def block(start: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        target, row = candidates(screen, start, size, places)
        squared = squared_differences(targets, target + start, rows, row)
        kth = _kth_squared(target, squared, counts[row], k)
        keep = squared <= kth[target] * (1 + _TIE)
        return target[keep] + start, row[keep], squared[keep]

    found = block_map(block, starts)
    target, row, squared = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return target, row, squared


def _kth_squared(target: np.ndarray, squared: np.ndarray, copies: np.ndarray, k: int) -> np.ndarray:
    """The k-th smallest squared distance of each target, copies counted; targets are 0, 1, ... and ascending."""
    starts = np.searchsorted(target, np.arange(int(target[-1]) + 1))
    place = np.arange(len(target)) - starts[target]
    table = np.full((len(starts), int(place.max()) + 1), np.inf)
    table[target, place] = squared
    if (copies == 1).all():
        return np.partition(table, k - 1, axis=1)[:, k - 1]
    times = np.zeros(table.shape)
    times[target, place] = copies
    order = np.argsort(table, axis=1)
    reached = np.cumsum(np.take_along_axis(times, order, axis=1), axis=1) >= k
    at = np.take_along_axis(order, reached.argmax(axis=1)[:, None], axis=1)
    return np.take_along_axis(table, at, axis=1)[:, 0]
