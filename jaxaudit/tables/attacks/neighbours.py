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

__all__ = ["NeighbourPairs", "check_k", "count_within", "nearest_distance", "nearest_other", "nearest_pairs",
           "squared_differences", "tie_weights"]  # fmt: skip

_TIE = 1e-10
"""Squared distances closer than this share of the k-th are the same distance: re-encoding a table of
categories makes equal distances differ by rounding, and rounding must not choose among neighbours."""

_BUDGET = 16 << 20
"""Bytes of one block's table of distances."""

_FAR = 1e30
"""Squared distance of padding; those of rows are at most 4."""


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
    screen = _screening_tables(targets, rows)
    starts, size = row_blocks(len(targets), screen.slack.nbytes, _BUDGET)
    copies = np.zeros(len(screen.slack), np.int32)
    copies[: len(rows)] = counts
    limit, edge = radius**2 * (1 + _TIE), (radius / screen.scale) ** 2

    def block(start: int) -> np.ndarray:
        count = min(size, len(targets) - start)
        with jax.enable_x64(False):
            upper, share = screen.block(start, size)
            total, mask = _count_inside(upper, copies, share, screen.slack, np.float32(edge))
            inside, unsure = np.asarray(total, dtype=np.int64)[:count], np.asarray(mask)[:count]
        target, row = np.divmod(np.flatnonzero(unsure), unsure.shape[1])
        close = squared_differences(targets, target + start, rows, row) <= limit
        return inside + np.bincount(target, weights=counts[row] * close, minlength=count).astype(np.int64)

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


def _closest(
    targets: np.ndarray, rows: np.ndarray, counts: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Target, row and squared distance of all pairs up to the k-th distance of each target."""
    screen = _screening_tables(targets, rows)
    starts, size = row_blocks(len(targets), screen.slack.nbytes, _BUDGET)
    places = min(k, len(rows))  # k distinct rows are at least k copies

    def block(start: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        target, row = _candidates(screen, start, size, places)
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


@dataclass(frozen=True)
class _Screen:
    """Two float32 tables whose product holds an upper limit of every squared distance.

    Attributes:
        points: (n, c) of the targets.
        columns: (size, c) of the rows, padded.
        share: (n,) and
        slack: (size,): the upper limit less both is a lower one.
        scale: the unit of the limits, in those of the tables.
    """

    points: np.ndarray
    columns: np.ndarray
    share: np.ndarray
    slack: np.ndarray
    scale: float

    def block(self, start: int, size: int) -> tuple[jax.Array, np.ndarray]:
        """Upper limits (size, rows) of a block of targets, the last ones repeated, and their share of the error."""
        part, share = pad_rows((self.points[start : start + size], self.share[start : start + size]), size)
        return _upper_limits(part, self.columns), share


def _screening_tables(targets: np.ndarray, rows: np.ndarray) -> _Screen:
    """The tables of the float32 distances, with a bound on their error.

    Coordinates are centred at the rows' mean and scaled to norms of at most one. With A and B the squared norms, the
    product of ``(a, (1 + g) A, 1)`` and ``(-2 b, 1, (1 + g) B)`` is the squared distance plus ``g (A + B)``. Rounding
    the entries moves it by at most ``3 u (A + B)``, u = 2^-24, the sum of c products in any order by
    ``2 c u (A + B)``, since ``2 |a b| <= A + B``. So ``g = (2 c + 64) u``, with room for the rounding of the bound
    itself and 1e-30 for what underflows, makes it an upper limit, and twice the same less a lower one.
    """
    centre = rows.mean(axis=0)
    a, b = targets - centre, rows - centre
    scale = float(max(np.abs(a).max(), np.abs(b).max()) * np.sqrt(a.shape[1])) or 1.0
    a /= scale
    b /= scale
    a_norms, b_norms = np.einsum("nd,nd->n", a, a), np.einsum("nd,nd->n", b, b)
    d, size = a.shape[1], table_size(len(rows))
    gap = (2 * (d + 10) + 64) * 2.0**-24
    points, columns = np.zeros((len(a), d + 2), np.float32), np.zeros((size, d + 2), np.float32)
    points[:, :d], points[:, d], points[:, d + 1] = a, (1 + gap) * a_norms + 1e-30, 1.0
    columns[: len(b), :d], columns[:, d], columns[: len(b), d + 1] = -2.0 * b, 1.0, (1 + gap) * b_norms
    columns[len(b) :, d + 1] = _FAR
    slack = np.zeros(size, np.float32)
    slack[: len(b)] = 2 * gap * b_norms + 4e-30
    return _Screen(pad_columns(points), pad_columns(columns), (2 * gap * a_norms).astype(np.float32), slack, scale)


def _candidates(screen: _Screen, start: int, size: int, places: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (target of the block, row) that may be as close as the target's ``places``-th nearest.

    Those are the ones whose lower limit is not above the ``places``-th smallest upper limit.
    """
    with jax.enable_x64(False):
        upper, share = screen.block(start, size)
        # on a CPU the table need not move, and a partition is faster than the bisection
        reach = _reach(np.asarray(upper), places) if blocks.on_cpu() else _kth_smallest(upper, np.int32(places))
        mask = np.asarray(_within(upper, np.asarray(reach) * np.float32(1 + 1e-6) + share, screen.slack))
    return np.divmod(np.flatnonzero(mask[: len(screen.points) - start]), mask.shape[1])


def _reach(upper: np.ndarray, places: int) -> np.ndarray:
    """At least the ``places``-th smallest of each row, and little more: that of the minima of groups of columns.

    ``places`` minima are as many entries, so that the bound holds. With four groups or more to a place few entries
    share one; the rows of a table are sorted, so a group takes columns that are far apart.
    """
    size, group = upper.shape[1], 1
    while group < 64 and size % (2 * group) == 0 and size >= 8 * group * places:
        group *= 2
    minima = upper.reshape(len(upper), group, -1).min(axis=1) if group > 1 else upper
    return minima.min(axis=1) if places == 1 else np.partition(minima, places - 1, axis=1)[:, places - 1]


@jax.jit
def _upper_limits(points: jax.Array, columns: jax.Array) -> jax.Array:
    """(targets, rows) float32, never below the squared distance; ``_FAR`` or more for padding."""
    return jnp.dot(points, columns.T, precision=jax.lax.Precision.HIGHEST)


@jax.jit
def _within(upper: jax.Array, limit: jax.Array, slack: jax.Array) -> jax.Array:
    """(targets, rows) bool: the lower limit, which is the upper one less both shares of the error, is in reach."""
    return upper <= limit[:, None] + slack[None, :]


@jax.jit
def _count_inside(
    upper: jax.Array, copies: jax.Array, share: jax.Array, slack: jax.Array, edge: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Copies that are surely within a squared distance of ``edge``, (targets,), and the rows that may be or not."""
    inside = upper <= edge * (1 - 1e-6)
    mask = ~inside & (upper <= (edge * (1 + 1e-6) + share)[:, None] + slack[None, :])
    return jnp.sum(jnp.where(inside, copies, 0), axis=1), mask


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
