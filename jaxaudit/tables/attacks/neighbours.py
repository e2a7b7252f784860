"""Nearest rows with deterministic ties, in bounded memory.

A table of float32 distances in the matrix-product form is fast and inexact; it only leaves out rows that a bound on
its error excludes. Who is a neighbour, and how close, is decided by float64 sums of squared differences: an exact copy
is at distance exactly zero, whatever the size of the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.runtime.checks import check_int, require
from jaxaudit.runtime.chunks import pad_rows
from jaxaudit.tables import blocks
from jaxaudit.tables.blocks import block_map, row_blocks, table_size
from jaxaudit.tables.density import pad_columns

__all__ = ["NeighbourPairs", "check_k", "nearest_distance", "nearest_pairs", "squared_differences", "tie_weights"]

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


def tie_weights(pairs: NeighbourPairs, counts: np.ndarray, k: int) -> np.ndarray:
    """Weight of every pair in the sum over the k nearest, for any ``k <= pairs.k``; shape (p,).

    A row closer than the k-th distance counts once per copy; the rows at the k-th distance share what is
    left: ``(k - closer) / tied`` per copy. The weights of a target add up to k.
    """
    require(k <= pairs.k, "k", f"be at most {pairs.k}", k)
    copies = counts[pairs.row].astype(np.float64)
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
    for low in range(0, len(i), step):
        difference = a[i[low : low + step]]
        difference -= b[j[low : low + step]]
        np.einsum("pd,pd->p", difference, difference, out=out[low : low + step])
    return out


def _closest(
    targets: np.ndarray, rows: np.ndarray, counts: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Target, row and squared distance of all pairs up to the k-th distance of each target."""
    points, columns, slack, gap = _screening_tables(targets, rows)
    starts, size = row_blocks(len(targets), columns[1].nbytes, _BUDGET)
    places = min(k, len(rows))  # k distinct rows are at least k copies

    def block(start: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        count = min(size, len(targets) - start)
        part = pad_rows(tuple(leaf[start : start + size] for leaf in points), size)
        target, row = _candidates(part, columns, slack, gap, places, len(rows), count)
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


Points = tuple[np.ndarray, np.ndarray]


def _screening_tables(targets: np.ndarray, rows: np.ndarray) -> tuple[Points, Points, np.ndarray, np.float32]:
    """float32 coordinates and squared norms of targets and rows, the rows' share of the error, and its factor.

    Coordinates are centred at the rows' mean and scaled to norms of at most one. Rounding the coordinates moves a
    squared distance by at most ``4 u (A + B)``, u = 2^-24, A and B the squared norms; the product of matrices by
    ``d u (A + B)`` in any order of summation, norms and sums by ``6 u (A + B)``. So ``(d + 32) u (A + B)``, plus
    what underflows, bounds the error with room for the rounding of the bound itself.
    """
    centre = rows.mean(axis=0)
    a, b = targets - centre, rows - centre
    scale = max(np.abs(a).max(), np.abs(b).max()) * np.sqrt(a.shape[1]) or 1.0
    a, b = pad_columns(a / scale), pad_columns(b / scale)
    gap = np.float32(2 * (a.shape[1] + 32) * 2.0**-24)
    size = table_size(len(rows))
    norms = np.full(size, np.inf, np.float32)
    norms[: len(rows)] = np.einsum("nd,nd->n", b, b)
    slack = np.zeros(size, np.float32)
    slack[: len(rows)] = gap * norms[: len(rows)] + np.float32(1e-30)
    points = (a.astype(np.float32), np.einsum("nd,nd->n", a, a).astype(np.float32))
    return points, (pad_rows(b.astype(np.float32), size), norms), slack, gap


def _candidates(
    part: Points, columns: Points, slack: np.ndarray, gap: np.float32, places: int, rows: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (target, row) of the first ``count`` targets that may be as close as the target's ``places``-th nearest.

    Those are the ones whose lower limit is not above the ``places``-th smallest upper limit.
    """
    with jax.enable_x64(False):
        upper = _upper_limits(*part, *columns, gap)
        if not blocks.on_cpu():
            reach = np.asarray(_kth_smallest(upper, np.int32(places)))
        elif places == 1:
            reach = np.asarray(upper)[:, :rows].min(axis=1)
        else:
            # on a CPU the table need not move, and a partition is five times faster than the bisection
            reach = np.partition(np.asarray(upper)[:, :rows], places - 1, axis=1)[:, places - 1]
        limit = reach * np.float32(1 + 1e-6) + gap * part[1]
        mask = np.asarray(_within(upper, limit, slack))
    return np.divmod(np.flatnonzero(mask[:count]), mask.shape[1])


@jax.jit
def _upper_limits(a: jax.Array, a_norms: jax.Array, b: jax.Array, b_norms: jax.Array, gap: jax.Array) -> jax.Array:
    """(targets, rows) float32, never below the squared distance; infinite for padding."""
    cross = jnp.dot(a, b.T, precision=jax.lax.Precision.HIGHEST)
    norms = a_norms[:, None] + b_norms[None, :]
    return jnp.maximum(norms - 2.0 * cross + (0.5 * gap) * norms, 0.0) + 1e-30


@jax.jit
def _within(upper: jax.Array, limit: jax.Array, slack: jax.Array) -> jax.Array:
    """(targets, rows) bool: the lower limit, which is the upper one less both shares of the error, is in reach."""
    return upper <= limit[:, None] + slack[None, :]


@jax.jit
def _kth_smallest(table: jax.Array, k: jax.Array) -> jax.Array:
    """The k-th smallest of each row of a float32 table >= 0, without a sort.

    Positive floats order like their bit patterns, so bisection of the patterns finds it in 31 counts.
    """

    def halve(_: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = state  # count(low) < k <= count(high)
        middle = low + (high - low) // 2
        limit = jax.lax.bitcast_convert_type(middle, jnp.float32)
        enough = jnp.sum(table <= limit[:, None], axis=1, dtype=jnp.int32) >= k
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    high = jax.lax.bitcast_convert_type(jnp.full(len(table), jnp.inf, jnp.float32), jnp.int32)
    _, high = jax.lax.fori_loop(0, 31, halve, (jnp.full(len(table), -1, jnp.int32), high))
    return jax.lax.bitcast_convert_type(high, jnp.float32)
