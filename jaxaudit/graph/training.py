"""How one model is trained: a pure function of its key, its graph and its training nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxaudit.graph.models import Features, Model, Structure
from jaxaudit.runtime.checks import check_int, check_real

__all__ = ["TrainConfig", "make_fit"]


@dataclass(frozen=True)
class TrainConfig:
    """Full-batch training with Adam; weight decay is added to the gradient, as in PyTorch's Adam.

    Attributes:
        epochs: >= 0.
        hidden: width of the hidden layer, >= 1.
        learning_rate: > 0.
        weight_decay: >= 0.
    """

    epochs: int = 200
    hidden: int = 64
    learning_rate: float = 0.01
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        check_int("train.epochs", self.epochs, 0)
        check_int("train.hidden", self.hidden, 1)
        check_real("train.learning_rate", self.learning_rate, 0, open_low=True)
        check_real("train.weight_decay", self.weight_decay, 0)


def make_fit(model: Model, train: TrainConfig) -> Callable[..., tuple[Any, jax.Array]]:
    """The training of one model, to be mapped over an ensemble.

    Args:
        model: architecture.
        train: optimisation, closed over.

    Returns:
        ``fit(key, features, structure, mask, labels, use) -> (params, loss)``: ``mask`` is (m,) float32, the visible
        entries of ``structure``; ``labels`` (n,) int; ``use`` (n,) bool, the nodes in the loss. The loss is the one
        before the last update.
    """
    optimiser = optax.chain(optax.add_decayed_weights(train.weight_decay), optax.adam(train.learning_rate))

    def fit(
        key: jax.Array, features: Features, structure: Structure, mask: jax.Array, labels: jax.Array, use: jax.Array
    ) -> tuple[Any, jax.Array]:
        weights = model.prepare(structure, mask)
        share = use.astype(jnp.float32) / jnp.maximum(use.sum(), 1)  # an empty Bernoulli draw teaches nothing

        def loss(params: Any) -> jax.Array:
            logits = model.apply(params, features, structure, weights)
            return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(logits, labels) * share)

        def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
            params, state = carry
            value, gradient = jax.value_and_grad(loss)(params)
            updates, state = optimiser.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), value

        params = model.init(key)
        (params, _), values = jax.lax.scan(step, (params, optimiser.init(params)), None, length=train.epochs)
        return params, values[-1] if train.epochs else loss(params)

    return fit
