"""The global attack of earlier work: one classifier of all nodes' outputs, which no node has to itself.

A multilayer perceptron learns member against non-member from the shadow models' outputs, sorted so that classes do not
matter, and scores the target models' (Olatunji et al. 2021, arXiv:2101.06570; He et al. 2021, arXiv:2102.05429). Its
accuracy is what a global figure shows and what hides that nodes differ.
"""

from __future__ import annotations

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxaudit.graph.attacks.observed import Context, Observed
from jaxaudit.runtime.keys import stream_key

__all__ = ["global_mlp"]

_FLOOR = -16.0  # smallest log-probability that is told apart
_STEPS, _BATCH, _RATE = 600, 1024, 1e-2


class _Network(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in (64, 32):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(1)(x)[..., 0]


@partial(jax.jit, static_argnames="steps")
def _train(key: jax.Array, x: jax.Array, y: jax.Array, weight: jax.Array, steps: int) -> dict[str, object]:
    """Adam with a cosine schedule on minibatches drawn with replacement."""
    start, draws = jax.random.split(key)
    network, optimiser = _Network(), optax.adam(optax.cosine_decay_schedule(_RATE, steps))
    params = network.init(start, x[:1])

    def loss(params: object, rows: jax.Array) -> jax.Array:
        each = optax.sigmoid_binary_cross_entropy(network.apply(params, x[rows]), y[rows])
        return jnp.sum(each * weight[rows]) / jnp.maximum(weight[rows].sum(), 1)

    def step(carry: tuple[object, object], t: jax.Array) -> tuple[tuple[object, object], None]:
        params, state = carry
        rows = jax.random.randint(jax.random.fold_in(draws, t), (min(_BATCH, x.shape[0]),), 0, x.shape[0])
        updates, state = optimiser.update(jax.grad(loss)(params, rows), state)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, optimiser.init(params)), jnp.arange(steps))
    return params


@jax.jit
def _apply(params: dict[str, object], x: jax.Array) -> jax.Array:
    return _Network().apply(params, x)


def _features(seen: Observed) -> np.ndarray:
    """(n, K, C) float32 sorted log-probabilities, floored and scaled to about one."""
    return np.asarray(np.maximum(seen.outputs, _FLOOR), np.float32) / 8 + 1


def global_mlp(
    shadow: Observed, member: np.ndarray, target: Observed, context: Context, steps: int = _STEPS
) -> np.ndarray:
    """Logits of "member" for every node and target model, (n, T); the same seed gives the same network."""
    x, mine = _features(shadow), _features(target)
    flat, inside = x.reshape(-1, x.shape[-1]), np.asarray(member, np.float32).ravel()
    use = np.isfinite(flat).all(axis=1)
    flat = np.where(use[:, None], flat, 0)
    key = stream_key(context.seed, "global_mlp")
    params = _train(key, flat, inside, use.astype(np.float32), steps)
    scores = np.asarray(_apply(params, np.where(np.isfinite(mine), mine, 0)), np.float64)
    return np.where(np.isfinite(mine).all(axis=-1), scores, np.nan)
