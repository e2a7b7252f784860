"""Training of block neural autoregressive flows: steps of Adam, and the step with the best held-out loss."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxaudit.tables.bnaf_network import Shape, log_p

__all__ = ["EVERY", "Learner", "learn", "train_members"]

EVERY = 25
"""Steps between two looks at the held-out rows."""


class Learner(NamedTuple):
    """Parameters in one vector (p,) and the state of Adam; an ensemble has a leading axis."""

    parameters: Any
    memory: Any


def learn(
    learner: Learner, steps: tuple[Any, Any], key: jax.Array, rows: jax.Array, among: tuple[Any, Any],
    extra: jax.Array, weight: Any, dimension: jax.Array, noise: jax.Array, rate: jax.Array, shape: Shape,
) -> Learner:  # fmt: skip
    """Steps ``steps[0] <= t < steps[1]`` of Adam on ``(1 - weight) mean(batch) + weight extra``; traceable.

    The batch of step t is drawn from ``rows[among[0]:among[1]]`` by the key and t alone, and so is the noise. A record
    that joins n others has weight 1 / (n + 1): the mean over all batches in which it may occur, without the luck of
    being drawn. With weight 0 the same steps are taken on the same batches without it.
    """
    adam = optax.scale_by_adam()

    def loss(parameters: jax.Array, batch: jax.Array) -> jax.Array:
        values = log_p(parameters, batch, dimension, shape)
        return -(1 - weight) * jnp.mean(values[:-1]) - weight * values[-1]

    def step(t: jax.Array, learner: Learner) -> Learner:
        drawn = jax.random.fold_in(key, t)
        place = jax.random.uniform(drawn, (shape.batch,), rows.dtype) * (among[1] - among[0])
        chosen = jnp.minimum(among[0] + place.astype(jnp.int32), among[1] - 1)
        batch = jnp.concatenate([rows[chosen], extra[None]])
        batch = batch + noise * jax.random.normal(jax.random.fold_in(drawn, 1), batch.shape, rows.dtype)
        update, memory = adam.update(jax.grad(loss)(learner.parameters, batch), learner.memory)
        return Learner(learner.parameters - rate * update, memory)

    return jax.lax.fori_loop(*steps, step, learner)


@partial(jax.jit, static_argnames="shape")
def train_members(
    keys: jax.Array, first: Learner, tables: jax.Array, held_out: jax.Array, n: jax.Array, dimension: jax.Array,
    numbers: Any, *, shape: Shape,
) -> tuple[Learner, jax.Array, jax.Array]:  # fmt: skip
    """Each member at its best step, that step, and its held-out loss; all but the numbers have a member axis.

    A member's table (size, d) holds its rows in its own order, the first ``numbers["held_out"]`` of n held out;
    ``held_out`` are these with their noise, and some more that do not count.
    """
    dtype = tables.dtype

    def member(key: jax.Array, learner: Learner, rows: jax.Array, held: jax.Array) -> tuple[Learner, Any, Any]:
        share = jnp.where(jnp.arange(len(held)) < numbers["held_out"], 1.0 / numbers["held_out"], 0.0).astype(dtype)

        def more(state: Any) -> Any:
            number, learner, best, best_loss, best_number = state
            steps, among = (number * EVERY, (number + 1) * EVERY), (numbers["held_out"], n)
            learner = learn(
                learner, steps, key, rows, among, rows[0], jnp.zeros((), dtype), dimension, numbers["noise"],
                numbers["rate"], shape,
            )  # fmt: skip
            loss = -jnp.sum(share * log_p(learner.parameters, held, dimension, shape))
            better = loss < best_loss
            best = jax.tree.map(lambda new, old: jnp.where(better, new, old), learner, best)
            best_number = jnp.where(better, number + 1, best_number)
            return number + 1, learner, best, jnp.where(better, loss, best_loss), best_number

        def go_on(state: Any) -> jax.Array:
            return (state[0] < numbers["rounds"]) & (state[0] - state[4] < numbers["patience"])

        state = (jnp.int32(0), learner, learner, jnp.asarray(jnp.inf, dtype), jnp.int32(0))
        _, _, best, best_loss, best_number = jax.lax.while_loop(go_on, more, state)
        return best, best_number * EVERY, best_loss

    return jax.vmap(member)(keys, first, tables, held_out)
