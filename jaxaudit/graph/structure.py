"""What a model sees of a graph, as device arrays: features (dense or sparse) and the adjacency's entries."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from scipy import sparse

from jaxaudit.graph.data import Graph
from jaxaudit.graph.propagate import Pattern, adjacency, csr_pattern, neighbour_sum

__all__ = ["SparseFeatures", "Structure", "entry_mask", "graph_arrays", "multiply", "one_node"]


class SparseFeatures(NamedTuple):
    """An (n, f) feature matrix kept as CSR."""

    pattern: Pattern
    values: jax.Array  # (nnz,) float32


class Structure(NamedTuple):
    """The adjacency pattern of a graph and the undirected edge behind each of its entries."""

    pattern: Pattern
    edge: jax.Array  # (2E + n,) int32, E for self-loops


def graph_arrays(graph: Graph) -> tuple[jax.Array | SparseFeatures, Structure]:
    """Features and structure of a graph as device arrays; sparse features stay sparse."""
    x = graph.features
    features: jax.Array | SparseFeatures
    if sparse.issparse(x):
        features = SparseFeatures(csr_pattern(x.indices, x.indptr, x.shape[1]), jnp.asarray(x.data))
    else:
        features = jnp.asarray(x)
    return features, Structure(*adjacency(graph.edges, graph.num_nodes))


def one_node() -> Structure:
    """A single node with its self-loop: enough to initialise a model whose shapes come from its fields."""
    pattern = Pattern(*(jnp.array(part, jnp.int32) for part in ([0], [0], [0, 1], [0], [0], [0, 1], [0])))
    return Structure(pattern, jnp.zeros(1, jnp.int32))


def entry_mask(structure: Structure, edges: jax.Array) -> jax.Array:
    """Per-entry float32 mask of an undirected (E,) edge mask or edge weights; self-loops get 1."""
    return jnp.append(edges.astype(jnp.float32), jnp.float32(1))[structure.edge]


def multiply(features: jax.Array | SparseFeatures, kernel: jax.Array) -> jax.Array:
    """X·W for dense or sparse X; (n, f) x (f, h) -> (n, h)."""
    if isinstance(features, SparseFeatures):
        return neighbour_sum(features.pattern, features.values, kernel)
    return jnp.matmul(features, kernel, precision=jax.lax.Precision.HIGHEST)
