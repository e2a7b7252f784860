"""``jax.jit`` for loops of arithmetic that gain from a CPU's widest vectors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["FullVectorJit"]

_OPTIONS = {"xla_cpu_prefer_vector_width": 512}


class FullVectorJit:
    """A jitted function compiled for vectors of 512 bits where the CPU has them; the compiler prefers 256.

    Worth it for long chains of multiplications and additions, not for exponentials or for what waits for memory. On
    accelerators, and where the compiler does not know the option, it is ``jax.jit``. What is compiled is decided at the
    first call, because asking for the platform starts it.

    Args:
        function: traceable.
        static_argnames: as in ``jax.jit``.

    Example:
        >>> double = FullVectorJit(lambda x: 2 * x)
        >>> float(double(21.0))
        42.0
    """

    def __init__(self, function: Callable[..., Any], static_argnames: str | tuple[str, ...] = ()) -> None:
        self.function, self.static_argnames = function, static_argnames

    @cached_property
    def jitted(self) -> Any:
        return jax.jit(self.function, static_argnames=self.static_argnames, compiler_options=_options())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.jitted(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:  # trace, lower, clear_cache
        if name in ("jitted", "function", "static_argnames") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.jitted, name)


@cache
def _options() -> dict[str, Any] | None:
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(lambda x: x, compiler_options=_OPTIONS).lower(jnp.float32(0)).compile()
    except Exception:  # whatever a compiler says of an option that it does not know
        return None
    return dict(_OPTIONS)
