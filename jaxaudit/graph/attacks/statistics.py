"""What an attack reads off a model's output for a node, one number per (node, model); and how models are halved."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.runtime.checks import check_choice, check_int, require

__all__ = ["STATISTICS", "halves", "node_statistic"]


def _logit(logits: jax.Array, true: jax.Array) -> jax.Array:
    others = jnp.where(true, -jnp.inf, logits)
    return jnp.sum(jnp.where(true, logits, 0), axis=-1) - jax.nn.logsumexp(others, axis=-1)


def _loss(logits: jax.Array, true: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(true, jax.nn.log_softmax(logits), 0), axis=-1)


def _margin(logits: jax.Array, true: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(true, logits, 0), axis=-1) - jnp.max(jnp.where(true, -jnp.inf, logits), axis=-1)


STATISTICS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {"logit": _logit, "loss": _loss, "margin": _margin}
"""Name -> function of logits (..., C) and the one-hot true class (..., C)."""


def node_statistic(logits: np.ndarray, labels: np.ndarray, name: str = "logit") -> np.ndarray:
    """The attack statistic of every node and model.

    Args:
        logits: (K, n, C) float32.
        labels: (n,) int.
        name: see ``AttackConfig``.

    Returns:
        (n, K) float32; NaN or infinite where the logits are not finite.

    Example:
        >>> node_statistic(np.array([[[2.0, 0.0]]]), np.array([0]), "margin").tolist()
        [[2.0]]
    """
    check_choice("attack.statistic", name, STATISTICS)
    true = jnp.asarray(labels)[:, None] == jnp.arange(logits.shape[-1])
    out = jax.jit(STATISTICS[name])(jnp.asarray(logits, jnp.float32), true)
    return np.ascontiguousarray(np.asarray(out).T)


def halves(count: int, paired: bool = False) -> np.ndarray:
    """(K,) bool: the odd-numbered models, which are judged by what the even-numbered ones teach.

    With complementary pairs (models 2j and 2j + 1 share every node out between them) it is the odd-numbered pairs:
    a model and its complement in different halves would make one half's memberships a function of the other's.

    Raises:
        InputError: ``paired`` with an odd count.

    Example:
        >>> halves(4).tolist(), halves(4, paired=True).tolist()
        ([False, True, False, True], [False, False, True, True])
    """
    check_int("count", count, 0)
    require(not paired or count % 2 == 0, "count", "be even for complementary pairs", count)
    return np.arange(count) // (2 if paired else 1) % 2 == 1
