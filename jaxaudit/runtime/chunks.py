"""Bounded memory: map over rows in chunks of one fixed shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["DEFAULT_BYTES", "bucket", "chunked_map", "pad_rows", "rows_per_chunk"]

DEFAULT_BYTES = 64 << 20
"""Working-set budget of one chunk, in bytes."""


def rows_per_chunk(bytes_per_row: float, budget: int = DEFAULT_BYTES) -> int:
    """How many rows fit the byte budget; at least one.

    Example:
        >>> rows_per_chunk(1 << 20, budget=8 << 20)
        8
    """
    return max(1, int(budget // max(1.0, bytes_per_row)))


def bucket(n: int, minimum: int = 32) -> int:
    """The padded size for ``n`` rows: ``minimum``, then powers of two and their halves-way points.

    At most a third of the rows are padding, and a second data set of similar size meets compiled code.

    Example:
        >>> [bucket(n) for n in (1, 33, 50, 100)]
        [32, 48, 64, 128]
    """
    if n <= minimum:
        return minimum
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if n <= power * 3 // 4 else power


def pad_rows(tree: Any, size: int) -> Any:
    """Pad every NumPy leaf along axis 0 to ``size`` rows by repeating its last row."""

    def pad(leaf: np.ndarray) -> np.ndarray:
        missing = size - leaf.shape[0]
        return leaf if missing == 0 else np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)])

    return jax.tree.map(pad, tree)


def chunked_map(function: Callable[[Any], Any], rows: Any, *, chunk: int) -> Any:
    """``vmap(function)`` over axis 0 of ``rows`` with at most ``chunk`` rows in flight; traceable.

    Rows are padded to a multiple of the chunk (repeating the last), so one shape is compiled.

    Args:
        function: acts on a single row (a pytree without the leading axis).
        rows: pytree of arrays sharing a leading axis of length n >= 1.
        chunk: rows per step, >= 1.

    Returns:
        pytree of outputs with leading axis n.

    Example:
        >>> chunked_map(lambda x: x * 2, jnp.arange(5), chunk=2).tolist()
        [0, 2, 4, 6, 8]
    """
    n = jax.tree.leaves(rows)[0].shape[0]
    chunk = min(chunk, n)
    steps = -(-n // chunk)
    padding = steps * chunk - n

    def split(leaf: jax.Array) -> jax.Array:
        if padding:
            leaf = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], padding, axis=0)])
        return leaf.reshape(steps, chunk, *leaf.shape[1:])

    out = jax.lax.map(jax.vmap(function), jax.tree.map(split, rows))
    return jax.tree.map(lambda leaf: leaf.reshape(steps * chunk, *leaf.shape[2:])[:n], out)
