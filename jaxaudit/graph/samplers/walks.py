"""The random-walk sampler: a batch of walks with restart, one step at a time."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxaudit.graph.samplers.tables import Shape, Tables, random_place

__all__ = ["random_walk"]


class _State(NamedTuple):
    """B walks; all but ``step`` have the leading axis B."""

    step: jax.Array  # ()
    member: jax.Array  # (B, n) bool
    size: jax.Array
    seed: jax.Array  # node that the walk returns to
    here: jax.Array  # node that it is at
    stale: jax.Array  # steps since the last new node
    reseeds: jax.Array
    edges: jax.Array  # (B, E) bool traversed; (B, 0) where not asked for


def _step(state: _State, shape: Shape, tables: Tables, keys: jax.Array) -> _State:
    """Move every unfinished walk along one edge or, its patience being over, propose a new seed."""
    n, config = shape.num_nodes, shape.config
    batch = jnp.arange(keys.shape[0])
    step_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, state.step)
    uniforms = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(step_keys)
    active, stuck = state.size < shape.quota, state.stale >= config.patience
    origin = jnp.where(uniforms[:, 0] < config.restart, state.seed, state.here)
    start = tables.starts[origin]
    degree = tables.starts[origin + 1] - start
    entry = jnp.where(degree > 0, start + random_place(uniforms[:, 1], degree), 0)
    moves = active & ~stuck & (degree > 0)
    # A uniform node until an unseen one comes up is a uniform unseen node: no permutation to carry.
    target = jnp.where(stuck, random_place(uniforms[:, 1], n), jnp.where(moves, tables.neighbours[entry], origin))
    fresh = active & ~state.member[batch, target]
    seeded = stuck & fresh
    lonely = tables.starts[target + 1] == tables.starts[target]
    if shape.num_edges:
        number = jnp.where(moves, tables.edge[entry], shape.num_edges)
        state = state._replace(edges=state.edges.at[batch, number].set(True, mode="drop"))
    return state._replace(
        step=state.step + 1,
        member=state.member.at[batch, jnp.where(fresh, target, n)].set(True, mode="drop"),
        size=state.size + fresh,
        seed=jnp.where(seeded, target, state.seed),
        here=target,
        stale=jnp.where(fresh, jnp.where(lonely, config.patience, 0), state.stale + 1),  # from a lonely node: no steps
        reseeds=state.reseeds + seeded,
    )


def random_walk(keys: jax.Array, tables: Tables, shape: Shape) -> dict[str, jax.Array]:
    """B random walks with restart (Leskovec & Faloutsos 2006), every visited node joining until the quota.

    A walk starts at a uniform seed. Before each step it returns to the seed with probability ``restart``; then it
    moves to a uniform neighbour, and the edge counts as traversed. After ``patience`` steps in a row without a new
    node (at once from a node without neighbours) it goes on from a uniform node not yet in, its new seed, which counts
    as a reseed: no draw can hang or end short.
    """
    batch = keys.shape[0]
    zeros = jnp.zeros(batch, jnp.int32)
    first = jax.vmap(lambda key: random_place(jax.random.uniform(jax.random.fold_in(key, 0)), shape.num_nodes))(keys)
    lonely = tables.starts[first + 1] == tables.starts[first]
    member = jnp.zeros((batch, shape.num_nodes), bool).at[jnp.arange(batch), first].set(True)
    state = _State(
        jnp.int32(1), member, zeros + 1, first, first, jnp.where(lonely, shape.config.patience, 0), zeros,
        jnp.zeros((batch, shape.num_edges), bool),
    )  # fmt: skip
    state = jax.lax.while_loop(
        lambda state: (state.size < shape.quota).any(), lambda state: _step(state, shape, tables, keys), state
    )
    return {
        "nodes": state.member, "edges": state.edges, "sizes": state.size, "exhausted": jnp.zeros(batch, bool),
        "reseeds": state.reseeds,
    }  # fmt: skip
