"""What a model sees of a graph, as device arrays: features (dense or sparse) and the adjacency's entries."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from jaxaudit.graph.data import Graph
from jaxaudit.graph.propagate import Pattern, adjacency, csr_pattern, neighbour_sum

__all__ = [
    "HostGraph", "SparseFeatures", "Structure", "entry_mask", "graph_arrays", "host_graph", "multiply", "one_node",
]  # fmt: skip


class SparseFeatures(NamedTuple):
    """An (n, f) feature matrix kept as CSR."""

    pattern: Pattern
    values: jax.Array  # (nnz,) float32


class Structure(NamedTuple):
    """The adjacency pattern of a graph and the undirected edge behind each of its entries."""

    pattern: Pattern
    edge: jax.Array  # (2E + n,) int32, E for self-loops


class HostGraph(NamedTuple):
    """What a model sees of a graph, as NumPy arrays: the (n, f) features, the structure and the (n,) labels."""

    features: Any
    structure: Structure
    labels: np.ndarray

    @property
    def num_edges(self) -> int:
        """Undirected edges: the entries without the self-loops, by two."""
        return (self.structure.edge.shape[0] - self.labels.shape[0]) // 2


def host_graph(graph: Graph) -> HostGraph:
    """Features, structure and labels of a graph on the host; sparse features stay sparse."""
    x = graph.features
    features = SparseFeatures(csr_pattern(x.indices, x.indptr, x.shape[1]), x.data) if sparse.issparse(x) else x
    return HostGraph(features, Structure(*adjacency(graph.edges, graph.num_nodes)), graph.labels)


def graph_arrays(graph: Graph) -> tuple[jax.Array | SparseFeatures, Structure]:
    """Features and structure of a graph as device arrays; sparse features stay sparse."""
    features, structure, _ = jax.tree.map(jnp.asarray, host_graph(graph))
    return features, structure


def one_node() -> Structure:
    """A single node with its self-loop: enough to initialise a model whose shapes come from its fields."""
    pattern = Pattern(*(jnp.array(part, jnp.int32) for part in ([0], [0], [0, 1], [0], [0], [0, 1], [0])))
    return Structure(pattern, jnp.zeros(1, jnp.int32))


def entry_mask(structure: Structure, edges: Any) -> jax.Array:
    """Per-entry float32 mask of an undirected (E,) edge mask or edge weights; self-loops get 1."""
    return jnp.append(edges.astype(jnp.float32), jnp.float32(1))[structure.edge]


def multiply(features: jax.Array | SparseFeatures, kernel: jax.Array) -> jax.Array:
    """X·W for dense or sparse X; (n, f) x (f, h) -> (n, h)."""
    if isinstance(features, SparseFeatures):
        return neighbour_sum(features.pattern, features.values, kernel)
    return jnp.matmul(features, kernel, precision=jax.lax.Precision.HIGHEST)
