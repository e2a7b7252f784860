"""Nearest rows with deterministic ties, in bounded memory.

Distances are always sums of squared differences, never the matrix-product form: an exact copy is at
distance exactly zero, whatever the size of the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.runtime.checks import check_int, require
from jaxaudit.runtime.chunks import bucket, chunked_map, pad_rows, rows_per_chunk
from jaxaudit.tables.density import pad_columns, precision_scope

__all__ = ["NeighbourPairs", "check_k", "nearest_distance", "nearest_pairs", "tie_weights", "target_blocks"]

_TIE = {"float64": 1e-10, "float32": 1e-6}
"""Squared distances closer than this share of the k-th are the same distance: re-encoding a table of
categories makes equal distances differ by rounding, and rounding must not choose among neighbours."""


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
    tie: float


def check_k(k: Any, rows: int) -> int:
    """``k`` as an int in [1, rows], or ``InputError("gen_lra.k must be in [1, rows], got k")``."""
    return check_int("gen_lra.k", k, 1, rows)


def target_blocks(targets: int, row_bytes: float, budget: int = 64 << 20) -> tuple[range, int]:
    """Starts of the blocks of targets whose (block, rows) tables fit the budget, and the padded block size."""
    size = min(bucket(targets), 1 << max(3, int(np.log2(max(1.0, budget / row_bytes)))))
    return range(0, targets, size), size


def nearest_pairs(
    targets: np.ndarray, rows: np.ndarray, counts: np.ndarray, k: int, precision: str = "float64"
) -> NeighbourPairs:
    """The k nearest rows of every target, with all rows at the k-th distance.

    The k-th smallest distance comes from bisecting the bit patterns of the distances (positive floats
    order like integers), so nothing is sorted and ties enter by themselves.

    Args:
        targets: (n, d) float64.
        rows: (m, d) distinct rows, float64.
        counts: (m,) how often each occurs; ``counts.sum() >= k``.
        k: number of neighbours, copies counted.
        precision: "float64", or "float32" for data that are centred.

    Example:
        >>> pairs = nearest_pairs(np.array([[0.0]]), np.array([[-1.0], [1.0], [5.0]]), np.array([1, 1, 1]), 1)
        >>> pairs.row.tolist(), tie_weights(pairs, np.array([1, 1, 1]), 1).tolist()
        ([0, 1], [0.5, 0.5])
    """
    check_int("k", k, 1, int(counts.sum()))
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    tie = _TIE[precision]
    with precision_scope(precision) as dtype:
        columns, copies = _padded(rows, counts, dtype)
        coordinates = pad_columns(targets).astype(dtype)
        starts, size = target_blocks(len(targets), columns.shape[1] * columns.itemsize)
        chunk = rows_per_chunk(4 * columns.nbytes / len(columns), budget=16 << 20)
        for start in starts:
            part = coordinates[start : start + size]
            squared, kth = _kth_distance(pad_rows(part, size), columns, copies, np.int32(k), chunk=chunk)
            table = np.asarray(squared)[: len(part), : len(rows)]
            target, row = np.nonzero(table <= (np.asarray(kth)[: len(part), None] * dtype(1 + tie)))
            found.append((target + start, row, table[target, row].astype(np.float64)))
    target, row, distance = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return NeighbourPairs(target, row, distance, k, tie)


def tie_weights(pairs: NeighbourPairs, counts: np.ndarray, k: int) -> np.ndarray:
    """Weight of every pair in the sum over the k nearest, for any ``k <= pairs.k``; shape (p,).

    A row closer than the k-th distance counts once per copy; the rows at the k-th distance share what is
    left: ``(k - closer) / tied`` per copy. The weights of a target add up to k.
    """
    require(k <= pairs.k, "k", f"be at most {pairs.k}", k)
    copies = counts[pairs.row].astype(np.float64)
    order = np.lexsort((pairs.squared, pairs.target))
    target, running = pairs.target[order], np.cumsum(copies[order])
    first = np.flatnonzero(np.concatenate([[True], target[1:] != target[:-1]]))
    group = np.cumsum(np.concatenate([[0], target[1:] != target[:-1]]))
    before = (running - copies[order])[first][group]  # copies of all earlier targets
    within = running - before
    is_kth = (within >= k) & (within - copies[order] < k)  # exactly one per target
    kth = np.empty(int(target[-1]) + 1)
    kth[target[is_kth]] = pairs.squared[order][is_kth]
    kth = kth[pairs.target]
    closer = pairs.squared < kth * (1 - pairs.tie)
    tied = ~closer & (pairs.squared <= kth * (1 + pairs.tie))
    n_closer, n_tied = (np.bincount(pairs.target, weights=copies * mask) for mask in (closer, tied))
    share = (k - n_closer) / np.maximum(n_tied, 1.0)
    return copies * (closer + tied * share[pairs.target])


def nearest_distance(targets: np.ndarray, rows: np.ndarray, precision: str = "float64") -> np.ndarray:
    """Distance of every target to its nearest row, (n,) float64; exactly 0 for a copy.

    Example:
        >>> nearest_distance(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0], [9.0, 9.0]])).tolist()
        [5.0]
    """
    with precision_scope(precision) as dtype:
        columns, _ = _padded(rows, np.ones(len(rows), np.int64), dtype)
        part = pad_rows(pad_columns(targets).astype(dtype), bucket(len(targets)))
        chunk = rows_per_chunk(4 * columns.nbytes / len(columns), budget=16 << 20)
        nearest = np.asarray(_nearest(part, columns, chunk=chunk))[: len(targets)]
    return np.sqrt(nearest.astype(np.float64))


def _padded(rows: np.ndarray, counts: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Columns (d', m') and copies (m',), padded; padding is infinitely far and occurs zero times."""
    size = bucket(len(rows))
    columns = np.full((size, pad_columns(rows[:1]).shape[1]), np.inf, dtype)
    columns[: len(rows)] = pad_columns(rows)
    copies = np.zeros(size, np.int32)
    copies[: len(rows)] = counts
    return np.ascontiguousarray(columns.T), copies


def _squared_distances(point: jax.Array, columns: jax.Array) -> jax.Array:
    """(m,) squared distances of one point (d,) to rows given as columns (d, m), d a multiple of 8."""
    width = 8 if len(point) == 8 else 16  # a block of columns per pass keeps the sums in cache

    def add(total: jax.Array, block: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        for j in range(width):
            total = total + (block[0][j] - block[1][j]) ** 2
        return total, None

    blocks = (point.reshape(-1, width), columns.reshape(-1, width, columns.shape[1]))
    return jax.lax.scan(add, jnp.zeros(columns.shape[1], columns.dtype), blocks)[0]


@partial(jax.jit, static_argnames="chunk")
def _nearest(points: jax.Array, columns: jax.Array, *, chunk: int) -> jax.Array:
    return chunked_map(lambda point: jnp.min(_squared_distances(point, columns)), points, chunk=chunk)


@partial(jax.jit, static_argnames="chunk")
def _kth_distance(
    points: jax.Array, columns: jax.Array, copies: jax.Array, k: jax.Array, *, chunk: int
) -> tuple[jax.Array, jax.Array]:
    """Squared distances (n, m) and the k-th smallest of each row, copies counted."""
    bits = jnp.int64 if columns.dtype == jnp.float64 else jnp.int32

    def one(point: jax.Array) -> tuple[jax.Array, jax.Array]:
        squared = _squared_distances(point, columns)

        def count(pattern: jax.Array) -> jax.Array:
            limit = jax.lax.bitcast_convert_type(pattern, squared.dtype)
            return jnp.sum(jnp.where(squared <= limit, copies, 0), dtype=jnp.int32)

        def halve(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
            low, high, reached = state
            middle = low + (high - low) // 2
            n = count(middle)
            enough = n >= k
            return jnp.where(enough, low, middle), jnp.where(enough, middle, high), jnp.where(enough, n, reached)

        # count(low) < k <= count(high) throughout; done once exactly k lie below, or no pattern is between
        low = jax.lax.bitcast_convert_type(jnp.min(squared), bits) - 1
        high = jax.lax.bitcast_convert_type(jnp.max(jnp.where(copies > 0, squared, 0)), bits)
        start = (low, high, jnp.sum(copies, dtype=jnp.int32))
        _, high, _ = jax.lax.while_loop(lambda s: (s[1] - s[0] > 1) & (s[2] != k), halve, start)
        limit = jax.lax.bitcast_convert_type(high, squared.dtype)
        return squared, jnp.max(jnp.where(squared <= limit, squared, 0))

    return chunked_map(one, points, chunk=chunk)
