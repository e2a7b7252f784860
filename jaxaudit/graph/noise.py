"""Noise injected into a finished model: on its weights, or on its answers; nothing is ever trained again for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxaudit.runtime.checks import check_real

__all__ = ["NoiseConfig", "noisy_logits", "noisy_params"]


@dataclass(frozen=True)
class NoiseConfig:
    """Standard deviations of the Gaussian noise that every query of a model meets; no privacy guarantee is claimed.

    Attributes:
        weights: on each trained parameter, >= 0; arXiv:2504.16683 takes .01, .05 and .1.
        outputs: on each logit, >= 0.
    """

    weights: float = 0.0
    outputs: float = 0.0

    def __post_init__(self) -> None:
        check_real("noise.weights", self.weights, 0)
        check_real("noise.outputs", self.outputs, 0)


def noisy_params(key: jax.Array, params: Any, sigma: float | jax.Array) -> Any:
    """Params plus N(0, sigma²) on every floating-point entry, as in arXiv:2504.16683 on the final weights.

    The key alone decides the noise: the same model queried again, or along other edges, has the same weights.

    Args:
        key: of the model: ``fold_in(stream_key(seed, "noise-weights"), k)``.
        params: pytree of arrays; integer leaves stay as they are.
        sigma: >= 0; a Python 0 draws nothing and returns ``params`` itself.

    Returns:
        pytree like ``params``.

    Example:
        >>> noisy = noisy_params(jax.random.key(0), {"w": jnp.zeros(2), "steps": jnp.array(3)}, 0.1)
        >>> int(noisy["steps"]), bool((noisy["w"] != 0).all())
        (3, True)
    """
    if _is_zero(sigma):
        return params
    leaves, tree = jax.tree.flatten(params)

    def noisy(number: int, leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        noise = jax.random.normal(jax.random.fold_in(key, number), leaf.shape, leaf.dtype)
        return leaf + jnp.asarray(sigma, leaf.dtype) * noise

    return jax.tree.unflatten(tree, [noisy(number, leaf) for number, leaf in enumerate(leaves)])


def noisy_logits(
    key: jax.Array, logits: jax.Array, sigma: float | jax.Array, nodes: jax.Array | None = None
) -> jax.Array:
    """Logits plus N(0, sigma²), drawn once for each node of a model: asking again averages nothing away.

    The noise of a node depends on the key and on its number, not on which other nodes are asked or in which order.

    Args:
        key: of the model: ``fold_in(stream_key(seed, "noise-outputs"), k)``.
        logits: (m, classes) float32.
        sigma: >= 0; a Python 0 draws nothing and returns ``logits`` itself.
        nodes: (m,) int number in the whole graph of each row; None: row i is node i.

    Returns:
        (m, classes) float32.

    Example:
        >>> key, logits = jax.random.key(0), jnp.zeros((3, 2))
        >>> whole = noisy_logits(key, logits, 0.1)
        >>> bool((noisy_logits(key, logits[2:], 0.1, jnp.array([2])) == whole[2:]).all())
        True
    """
    if _is_zero(sigma):
        return logits
    numbers = jnp.arange(logits.shape[0]) if nodes is None else jnp.asarray(nodes)
    keys = jax.vmap(lambda node: jax.random.fold_in(key, node))(numbers)
    noise = jax.vmap(lambda own: jax.random.normal(own, logits.shape[1:], logits.dtype))(keys)
    return logits + jnp.asarray(sigma, logits.dtype) * noise


def _is_zero(sigma: float | jax.Array) -> bool:
    return isinstance(sigma, int | float) and sigma == 0
