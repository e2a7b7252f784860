"""The snowball sampler: a batch of samples that grow along edges, one popped node at a time."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxaudit.graph.samplers.config import SamplerConfig
from jaxaudit.graph.samplers.tables import Shape, Tables, distinct, random_place

__all__ = ["snowball"]


class _State(NamedTuple):
    """A batch of B growing samples."""

    step: jax.Array  # ()
    member: jax.Array  # (B, n) bool
    queue: jax.Array  # (B, quota) int32, the first ``size`` entries are the nodes in order of arrival
    head: jax.Array  # (B,) next queue position to pop
    size: jax.Array  # (B,)
    reseeds: jax.Array  # (B,)
    edges: jax.Array  # (B, E) bool traversed; (B, 0) where not asked for


def _seeds(key: jax.Array, tables: Tables, config: SamplerConfig) -> tuple[jax.Array, jax.Array]:
    """Seed nodes in order of arrival and which of them exist; both (seeds_per_class * classes,)."""
    sizes = jnp.diff(tables.class_starts)
    uniforms = jax.random.uniform(key, (sizes.shape[0], config.seeds_per_class))
    places = jax.vmap(distinct)(uniforms, sizes)
    exists = jnp.arange(config.seeds_per_class) < sizes[:, None]
    nodes = tables.by_class[jnp.where(exists, tables.class_starts[:-1, None] + places, 0)]
    return nodes.T.ravel(), exists.T.ravel()  # one of each class in turn: a small quota cuts all classes alike


def _admit(state: _State, shape: Shape, nodes: jax.Array, usable: jax.Array) -> tuple[_State, jax.Array]:
    """Append to each sample those of its (B, k) distinct candidates that are unseen, until the quota."""
    batch = jnp.arange(nodes.shape[0])[:, None]
    fresh = usable & ~state.member[batch, nodes]
    place = state.size[:, None] + jnp.cumsum(fresh, axis=1) - fresh
    fresh &= place < shape.quota
    member = state.member.at[batch, jnp.where(fresh, nodes, shape.num_nodes)].set(True, mode="drop")
    queue = state.queue.at[batch, jnp.where(fresh, place, shape.quota)].set(nodes, mode="drop")
    return state._replace(member=member, queue=queue, size=state.size + fresh.sum(axis=1, dtype=jnp.int32)), fresh


def _growing(state: _State, shape: Shape) -> jax.Array:
    """(B,) bool: below the quota, with a frontier or the right to reseed."""
    more = state.size < shape.quota
    return more if shape.config.on_exhausted == "reseed" else more & (state.head < state.size)


def _grow(state: _State, shape: Shape, tables: Tables, keys: jax.Array) -> _State:
    """Pop one node of every growing sample (or, its frontier being empty, propose a reseed)."""
    active = _growing(state, shape)
    frontier = state.head < state.size
    batch = jnp.arange(active.shape[0])
    fanout = shape.config.fanout
    step_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, state.step)
    uniforms = jax.vmap(lambda key: jax.random.uniform(key, (fanout,)))(step_keys)
    popped = state.queue[batch, jnp.minimum(state.head, shape.quota - 1)]
    start = tables.starts[popped]
    degree = tables.starts[popped + 1] - start
    usable = (active & frontier)[:, None] & (jnp.arange(fanout) < degree[:, None])
    entry = jnp.where(usable, start[:, None] + jax.vmap(distinct)(uniforms, degree), 0)
    nodes = tables.neighbours[entry]
    if shape.config.on_exhausted == "reseed":
        # A uniform node until an unseen one comes up is a uniform unseen node: no permutation to carry.
        propose = active & ~frontier
        nodes = nodes.at[:, 0].set(jnp.where(propose, random_place(uniforms[:, 0], shape.num_nodes), nodes[:, 0]))
        state, fresh = _admit(state, shape, nodes, usable.at[:, 0].max(propose))
        state = state._replace(reseeds=state.reseeds + (propose & fresh[:, 0]))
    else:
        state, _ = _admit(state, shape, nodes, usable)
    if shape.num_edges:
        walked = usable & state.member[batch[:, None], nodes]  # at the quota, no edge to a node that is not in
        number = jnp.where(walked, tables.edge[entry], shape.num_edges)
        state = state._replace(edges=state.edges.at[batch[:, None], number].set(True, mode="drop"))
    return state._replace(step=state.step + 1, head=state.head + (active & frontier))


def snowball(keys: jax.Array, tables: Tables, shape: Shape) -> dict[str, jax.Array]:
    """B snowballs in one loop. The loop's condition is a scalar, so that no (B, n) array is copied per step."""
    size = keys.shape[0]
    zeros = jnp.zeros(size, jnp.int32)
    state = _State(
        jnp.int32(1), jnp.zeros((size, shape.num_nodes), bool), jnp.zeros((size, shape.quota), jnp.int32),
        zeros, zeros, zeros, jnp.zeros((size, shape.num_edges), bool),
    )  # fmt: skip
    seed_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, 0)
    nodes, exists = jax.vmap(lambda key: _seeds(key, tables, shape.config))(seed_keys)
    state, _ = _admit(state, shape, nodes, exists)
    state = jax.lax.while_loop(
        lambda state: _growing(state, shape).any(), lambda state: _grow(state, shape, tables, keys), state
    )
    dry = (state.size < shape.quota) | (state.reseeds > 0)
    return {
        "nodes": state.member, "edges": state.edges, "sizes": state.size, "exhausted": dry, "reseeds": state.reseeds,
    }  # fmt: skip
