"""What every sampler works on: the graph as flat tables, the static shape, and random places."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.graph.data import Graph
from jaxaudit.graph.samplers.config import SamplerConfig

__all__ = ["Shape", "Tables", "distinct", "make_tables", "outcome", "random_place"]


class Tables(NamedTuple):
    """What a sampler reads of a graph: CSR neighbours, edge numbers, and nodes grouped by class."""

    starts: jax.Array  # (n + 1,)
    neighbours: jax.Array  # (2E,) at least 1
    edge: jax.Array  # (2E,)
    class_starts: jax.Array  # (C + 1,)
    by_class: jax.Array  # (n,)


class Shape(NamedTuple):
    """Static part of a sampler: what decides array shapes and control flow."""

    num_nodes: int
    num_edges: int  # 0: do not record traversed edges
    quota: int
    config: SamplerConfig


def make_tables(graph: Graph) -> Tables:
    """The tables of a graph, as int32 device arrays."""
    ends = np.concatenate([graph.edges, graph.edges[::-1]], axis=1)
    number = np.tile(np.arange(graph.num_edges), 2)
    order = np.lexsort((ends[1], ends[0]))
    starts = np.concatenate([[0], np.cumsum(graph.degree)])
    by_class = np.argsort(graph.labels, kind="stable")
    class_starts = np.searchsorted(graph.labels[by_class], np.arange(graph.num_classes + 1))
    filler = [0] if graph.num_edges == 0 else []  # a gather needs one entry
    parts = (starts, np.append(ends[1][order], filler), np.append(number[order], filler), class_starts, by_class)
    return Tables(*(jnp.asarray(part.astype(np.int32)) for part in parts))


def random_place(uniforms: jax.Array, size: jax.Array | int) -> jax.Array:
    """Uniform int32 places in 0 .. size-1 from float32 uniforms in [0, 1); 0 where size is 0."""
    return jnp.minimum((uniforms * size).astype(jnp.int32), jnp.maximum(size - 1, 0))


def outcome(nodes: jax.Array) -> dict[str, jax.Array]:
    """The outputs of a sampler that walks along no edges, from (B, n) memberships."""
    batch = nodes.shape[0]
    return {
        "nodes": nodes, "edges": jnp.zeros((batch, 0), bool), "sizes": nodes.sum(axis=1, dtype=jnp.int32),
        "exhausted": jnp.zeros(batch, bool), "reseeds": jnp.zeros(batch, jnp.int32),
    }  # fmt: skip


def distinct(uniforms: jax.Array, size: jax.Array) -> jax.Array:
    """The first k entries of a random permutation of 0 .. size-1; entries at or beyond ``size`` are meaningless.

    The j-th pick is a uniform rank r among the size - j positions still free; the r-th free position is
    r + #{i: s_i - i <= r} for the sorted picks s (derived: s_i - i free positions lie below s_i).

    Args:
        uniforms: (k,) float32 in [0, 1).
        size: () int32.
    """
    k = uniforms.shape[0]
    places = jnp.arange(k)
    far = jnp.iinfo(jnp.int32).max

    def pick(taken: jax.Array, item: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        j, u = item
        left = jnp.maximum(size - j, 1)
        rank = jnp.minimum((u * left).astype(jnp.int32), left - 1)
        value = rank + jnp.sum((taken < far) & (taken - places <= rank), dtype=jnp.int32)
        shifted = jnp.concatenate([taken[:1], taken[:-1]])
        above = taken > value
        insert = above & ~jnp.concatenate([jnp.zeros(1, bool), above[:-1]])
        return jnp.where(insert, value, jnp.where(above, shifted, taken)), value

    return jax.lax.scan(pick, jnp.full(k, far, jnp.int32), (places, uniforms), unroll=k if k <= 4 else 1)[1]
