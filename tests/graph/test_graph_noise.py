"""Noise on weights and on logits: its size, its independence, and that asking again does not average it away."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxaudit.graph.noise import NoiseConfig, noisy_logits, noisy_params
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.keys import stream_key

KEY = stream_key(0, "noise-outputs")
LOGITS = jax.random.normal(jax.random.key(1), (3000, 4))
PARAMS = {"bias": jnp.ones(40), "kernel": jnp.linspace(-1, 1, 3600).reshape(90, 40)}
on_params, on_logits = jax.jit(noisy_params), jax.jit(noisy_logits)  # the size is traced: compiled once


def drawn(noisy, plain, sigma):
    return [
        np.asarray(a - b, np.float64).ravel() / sigma
        for a, b in zip(*map(jax.tree.leaves, (noisy, plain)), strict=True)
    ]


def test_both_are_gaussian_of_the_size_asked_for():
    for sigma in (0.05, 3.0):
        parts = drawn(on_params(KEY, PARAMS, sigma), PARAMS, sigma)
        parts += drawn(on_logits(KEY, LOGITS, sigma), LOGITS, sigma)
        assert [part.size for part in parts] == [40, 3600, 12000]
        for part in parts:
            assert stats.kstest(part, "norm").pvalue > 1e-4
            low, high = stats.chi2(part.size).ppf([1e-5, 1 - 1e-5])
            assert low < (part**2).sum() < high
    bias, kernel = parts[:2]
    assert abs(np.corrcoef(bias, kernel[:40])[0, 1]) < 0.7  # each leaf has its own


def test_sizes_scale_the_same_noise():
    once, thrice = (on_logits(KEY, jnp.zeros_like(LOGITS), sigma) for sigma in (0.5, 1.5))
    np.testing.assert_allclose(thrice, 3 * once, rtol=1e-6)
    np.testing.assert_allclose(noisy_logits(KEY, jnp.zeros_like(LOGITS), 0.5), once, rtol=1e-6)  # known when traced


def test_asking_again_gives_the_same_answer_whoever_else_is_asked():
    whole = on_logits(KEY, LOGITS, 0.1)
    np.testing.assert_array_equal(on_logits(KEY, LOGITS, 0.1), whole)
    some = jnp.array([2999, 7, 7, 0])
    np.testing.assert_array_equal(on_logits(KEY, LOGITS[some], 0.1, some), whole[some])
    elsewhere = on_logits(KEY, LOGITS + 1, 0.1) - 1  # other logits (edges at inference), the same noise
    np.testing.assert_allclose(elsewhere, whole, atol=1e-6)
    for a, b in zip(*(jax.tree.leaves(on_params(KEY, PARAMS, 0.1)) for _ in range(2)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_models_and_nodes_have_noise_of_their_own():
    keys = jax.vmap(lambda k: jax.random.fold_in(KEY, k))(jnp.arange(3, dtype=jnp.uint32))
    zero = jnp.zeros_like(LOGITS)
    many = jax.jit(jax.vmap(noisy_logits, in_axes=(0, None, None)))(keys, zero, 1.0)
    np.testing.assert_array_equal(many[1], on_logits(keys[1], zero, 1.0))  # however many models there are
    flat = np.asarray(many).reshape(3, -1)
    assert np.abs(np.corrcoef(flat) - np.eye(3)).max() < 4.5 / np.sqrt(flat.shape[1])
    assert np.abs(np.corrcoef(np.asarray(many[0]).T) - np.eye(4)).max() < 4.5 / np.sqrt(3000)
    one, other = (np.concatenate(drawn(on_params(key, PARAMS, 1.0), PARAMS, 1.0)) for key in keys[:2])
    assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / np.sqrt(one.size)


def test_no_noise_is_no_change():
    assert noisy_params(KEY, PARAMS, 0.0) is PARAMS
    assert noisy_logits(KEY, LOGITS, 0) is LOGITS
    np.testing.assert_array_equal(on_logits(KEY, LOGITS, 0.0), LOGITS)


def test_integer_leaves_stay():
    mixed = noisy_params(KEY, {"a": jnp.arange(3), "b": jnp.zeros(2, jnp.bfloat16)}, 1.0)
    assert mixed["a"].tolist() == [0, 1, 2]
    assert mixed["b"].dtype == jnp.bfloat16


def test_settings():
    assert NoiseConfig() == NoiseConfig(0.0, 0.0)
    assert hash(NoiseConfig(0.1)) == hash(NoiseConfig(weights=0.1))
    for options, words in (
        ({"weights": -0.1}, r"noise\.weights must be in \[0, inf\), got -0\.1"),
        ({"outputs": float("inf")}, r"noise\.outputs must be a finite number"),
        ({"outputs": "much"}, r"noise\.outputs must be a finite number, got much"),
    ):
        with pytest.raises(InputError, match=words):
            NoiseConfig(**options)
