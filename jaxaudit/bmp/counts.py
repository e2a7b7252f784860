"""Error counts of tests: validation at the boundary, and equal count tuples found once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxaudit.runtime.checks import require
from jaxaudit.runtime.chunks import bucket, pad_rows

__all__ = ["CHUNK", "MAX_TRIALS", "Counts", "distinct", "map_blocks", "validate"]

CHUNK = 64
"""Rows in flight per step of a compiled block."""

_BLOCK = 4096

MAX_TRIALS = 10_000_000
"""Largest number of trials on one side: counts stay exact in float32."""

Counts = np.ndarray
"""Integer rows (fp, n_out, fn, n_in), shape (n, 4), int64."""


def _whole(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    require(array.dtype.kind in "biuf" and array.ndim <= 1, name, "be a number or a 1-D array of numbers", values)
    require(bool(np.all(np.isfinite(array))), name, "have only finite values", "some that are not")
    require(bool(np.all(array == np.floor(array))), name, "hold whole numbers", "a fraction")
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    require(low >= 0, name, "be >= 0", low)
    require(high <= MAX_TRIALS, name, f"be at most {MAX_TRIALS}", high)
    return array.astype(np.int64)


def validate(fp: Any, n_out: Any, fn: Any, n_in: Any) -> Counts:
    """Check the counts and stack them into rows (fp, n_out, fn, n_in).

    Args:
        fp: false positives among the non-member trials, whole numbers in [0, n_out], scalar or (n,).
        n_out: non-member trials, >= 0.
        fn: false negatives among the member trials, in [0, n_in].
        n_in: member trials, >= 0.

    Returns:
        (n, 4) int64; scalars are broadcast.

    Raises:
        InputError: shapes that do not match, fractions, negative counts, more errors than trials.

    Example:
        >>> validate([1, 2], 10, 0, [5, 6]).tolist()
        [[1, 10, 0, 5], [2, 10, 0, 6]]
    """
    parts = [_whole(name, x) for name, x in (("fp", fp), ("n_out", n_out), ("fn", fn), ("n_in", n_in))]
    sizes = {part.size for part in parts if part.ndim}
    require(len(sizes) <= 1, "fp, n_out, fn, n_in", "have equal lengths", sorted(sizes))
    rows = np.stack(np.broadcast_arrays(*(np.atleast_1d(part) for part in parts)), axis=1)
    require(bool(np.all(rows[:, 0] <= rows[:, 1])), "fp", "be at most n_out", "more errors than trials")
    require(bool(np.all(rows[:, 2] <= rows[:, 3])), "fn", "be at most n_in", "more errors than trials")
    return rows


def distinct(rows: Counts) -> tuple[Counts, np.ndarray]:
    """The distinct rows that have data on both sides, and where each row of the input finds its own.

    Returns:
        (unique, index): (u, 4) int64, and (n,) int64 with -1 for a row without data on a side.

    Example:
        >>> distinct(validate([1, 1, 0], [9, 9, 0], 2, 5))[1].tolist()
        [0, 0, -1]
    """
    index = np.full(len(rows), -1, np.int64)
    usable = (rows[:, 1] > 0) & (rows[:, 3] > 0)
    unique, index[usable] = np.unique(rows[usable], axis=0, return_inverse=True)
    return unique, index


def map_blocks(function: Callable[..., Any], rows: Counts, shared: Any) -> Iterator[tuple[slice, Any]]:
    """Apply a jitted ``function(block, shared)`` to float32 blocks of rows, with bounded memory.

    Blocks are padded to a few fixed sizes, so a second call of a similar size compiles nothing. On CPUs
    one thread per core works on its own block (the small operations of a block use one core only).

    Yields:
        (slice of the rows, tuple of NumPy outputs cut to the slice), in order.
    """

    def run(first: int) -> tuple[slice, Any]:
        part = rows[first : first + _BLOCK].astype(np.float32)
        out = function(pad_rows(part, bucket(len(part), CHUNK)), shared)
        return slice(first, first + len(part)), jax.tree.map(lambda leaf: np.asarray(leaf)[: len(part)], out)

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(8, cores) if jax.default_backend() == "cpu" else 1
    firsts = range(0, len(rows), _BLOCK)
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(run, firsts)
