"""Blocks of rows: padded sizes, and a map over blocks that keeps every core busy."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

__all__ = ["block_map", "cores", "on_cpu", "row_blocks", "table_size"]


def table_size(n: int, minimum: int = 32) -> int:
    """The padded size of a table of ``n`` rows: a multiple of an eighth of the power of two below it.

    At most an eighth is padding (work on a table grows with its size, so that a coarser bucket costs time), and still
    few sizes are compiled: eight per doubling.

    Example:
        >>> [table_size(n) for n in (1, 33, 100, 1000, 5000, 100_000)]
        [32, 36, 104, 1024, 5120, 106496]
    """
    if n <= minimum:
        return minimum
    step = max(1, (1 << ((n - 1).bit_length() - 1)) // 8)
    return -(-n // step) * step


def row_blocks(rows: int, row_bytes: float, budget: int, most: int = 256) -> tuple[range, int]:
    """Starts of blocks of equal size, and that size: at most ``most`` rows and ``budget`` bytes, at least 8 rows.

    The size follows from sizes alone, never from the number of cores: a row meets the same program everywhere.

    Example:
        >>> row_blocks(1000, 40_000, 64 << 20)
        (range(0, 1000, 256), 256)
    """
    fit = 1 << max(3, int(budget // max(1.0, row_bytes)).bit_length() - 1)
    size = min(fit, most, table_size(rows))
    return range(0, rows, size), size


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_cpu() -> bool:
    """Whether arrays are in the host's memory: small steps that stay in cache, and NumPy where it is faster."""
    return jax.default_backend() == "cpu"


def block_map(function: Callable[[Any], Any], blocks: Iterable[Any]) -> list[Any]:
    """``[function(b) for b in blocks]`` with one thread per core, at most four; the order is kept.

    NumPy and compiled JAX programs release the interpreter's lock, so that blocks run side by side without a second
    JAX device, which a caller of the library seldom has. Thread-local settings (64-bit mode) must be entered inside
    ``function``.

    Example:
        >>> block_map(abs, range(-3, 0))
        [3, 2, 1]
    """
    items = list(blocks)
    workers = min(cores(), 4, len(items))
    if workers < 2:
        return [function(item) for item in items]
    results: list[Any] = [None] * len(items)
    waiting = deque(range(len(items)))

    def work() -> None:
        while waiting:
            try:
                index = waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                results[index] = function(items[index])
            except BaseException:
                waiting.clear()
                raise

    with ThreadPoolExecutor(workers - 1) as pool:  # the caller works too: one thread less to start and to wake
        others = [pool.submit(work) for _ in range(workers - 1)]
        work()
        for other in others:
            other.result()
    return results
