"""A jitted function for wide vectors is the function, also where the compiler does not know the option."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import pytest

from jaxaudit.runtime import vectors
from jaxaudit.runtime.vectors import FullVectorJit


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    vectors._options.cache_clear()
    yield
    vectors._options.cache_clear()


def power(x: jnp.ndarray, exponent: int) -> jnp.ndarray:
    return x**exponent


@pytest.mark.parametrize("case", ["known", "unknown", "accelerator"])
def test_the_function_is_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if case == "unknown":
        monkeypatch.setattr(vectors, "_OPTIONS", {"xla_cpu_no_such_option": 512})
    elif case == "accelerator":
        monkeypatch.setattr(vectors.jax, "default_backend", lambda: "cuda")
    jitted = FullVectorJit(power, static_argnames="exponent")
    assert np.array_equal(jitted(np.arange(5.0, dtype=np.float32), exponent=3), [0, 1, 8, 27, 64])
    assert (vectors._options() is None) == (case != "known")


def test_it_lowers_and_caches_like_jit() -> None:
    jitted = FullVectorJit(lambda x, exponent: power(x, exponent), static_argnames="exponent")
    assert "func.func public @main" in jitted.trace(1.0, exponent=2).lower(lowering_platforms=("cuda",)).as_text()
    assert [float(jitted(x, exponent=2)) for x in (1.0, 3.0)] == [1.0, 9.0]
    assert jitted._cache_size() == 1
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = jitted.no_such_name
