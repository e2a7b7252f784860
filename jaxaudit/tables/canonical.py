"""Random draws of rows that follow the rows and not their order."""

from __future__ import annotations

import hashlib

import jax
import numpy as np

__all__ = ["content_uniforms"]


def content_uniforms(rows: np.ndarray, key: jax.Array) -> np.ndarray:
    """A uniform number for every row, from a keyed hash of its content; copies are numbered and get their own.

    In another order of the rows the same numbers go with the same content: what is drawn by them is the same table.

    Args:
        rows: (n, d) numbers.
        key: another key, independent numbers.

    Returns:
        (n,) float64 in (0, 1).

    Example:
        >>> rows = np.array([[1.0, 2.0], [1.0, 2.0], [3.0, 0.0]])
        >>> first, second = (content_uniforms(part, jax.random.key(0)) for part in (rows, rows[::-1]))
        >>> bool(first[2] == second[0]), len(set(first))
        (True, 3)
    """
    salt = np.asarray(jax.random.key_data(key)).tobytes()[:64]
    seen: dict[bytes, int] = {}
    words = np.empty(len(rows), dtype=np.uint64)
    for place, row in enumerate(np.asarray(rows, dtype="<f8") + 0.0):  # one zero
        content = row.tobytes()
        copy = seen[content] = seen.get(content, -1) + 1
        digest = hashlib.blake2b(content + copy.to_bytes(8, "little"), digest_size=8, key=salt).digest()
        words[place] = int.from_bytes(digest, "little")
    return (np.right_shift(words, np.uint64(11)) + 0.5) / 2.0**53
