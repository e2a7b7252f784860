"""Random streams. A draw depends on (seed, stream name, item number) and on nothing else.

Chunk size, padding, device count and resume point therefore never change what is drawn.
"""

from __future__ import annotations

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.runtime.checks import require

__all__ = ["check_key", "host_rng", "item_keys", "stream_key"]


def check_key(name: str, key: Any) -> None:
    """Raise ``InputError`` unless ``key`` is one JAX key, as ``stream_key`` and ``jax.random.key`` make them.

    Example:
        >>> check_key("key", jax.random.key(0))
    """
    ok = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0
    require(ok, name, "be a key made by jax.random.key", type(key).__name__)


def stream_key(seed: int, stream: str) -> jax.Array:
    """The JAX key of a named stream: ``fold_in(key(seed), crc32(stream))``.

    Example:
        >>> bool(jax.random.uniform(stream_key(0, "a")) == jax.random.uniform(stream_key(0, "b")))
        False
    """
    return jax.random.fold_in(jax.random.key(seed), np.uint32(_checksum(stream)))


def item_keys(key: jax.Array, first: int, count: int) -> jax.Array:
    """Keys of items ``first .. first + count - 1`` of a stream, shape (count,)."""
    return jax.vmap(lambda item: jax.random.fold_in(key, item))(np.arange(first, first + count, dtype=np.uint32))


def host_rng(seed: int, stream: str, *items: int) -> np.random.Generator:
    """A NumPy generator for host-side draws of a named stream and item numbers.

    Example:
        >>> int(host_rng(0, "demo", 3).integers(10)) == int(host_rng(0, "demo", 3).integers(10))
        True
    """
    return np.random.default_rng([seed, _checksum(stream), *items])


def _checksum(stream: str) -> int:
    return zlib.crc32(stream.encode("utf-8", "surrogatepass"))  # a stream may be named by a file name or a function
