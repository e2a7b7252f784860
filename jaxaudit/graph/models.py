"""Graph models behind one protocol: ``prepare`` edge weights once, ``init`` parameters, ``apply`` them.

``apply`` sees one model; the caller vmaps or maps. ``MODELS`` is the registry that ``model=`` names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from scipy import sparse

from jaxaudit.graph.data import Graph
from jaxaudit.graph.propagate import Pattern, adjacency, csr_pattern, gcn_weights, neighbour_sum
from jaxaudit.runtime.checks import check_choice

__all__ = [
    "MODELS",
    "Model",
    "ModelConfig",
    "SparseFeatures",
    "Structure",
    "build_model",
    "entry_mask",
    "graph_arrays",
    "multiply",
]


@dataclass(frozen=True)
class ModelConfig:
    """Which architecture the shadows have, by registry name."""

    name: str = "gcn"

    def __post_init__(self) -> None:
        check_choice("model", self.name, MODELS)


class SparseFeatures(NamedTuple):
    """An (n, f) feature matrix kept as CSR."""

    pattern: Pattern
    values: jax.Array  # (nnz,) float32


class Structure(NamedTuple):
    """The adjacency pattern of a graph and the undirected edge behind each of its entries."""

    pattern: Pattern
    edge: jax.Array  # (2E + n,) int32, E for self-loops


class Model(NamedTuple):
    """A graph model as pure functions.

    ``prepare(structure, mask) -> weights`` is done once per model and edge set; mask is (2E + n,) float32.
    ``init(key) -> params``.
    ``apply(params, features, structure, weights) -> logits`` (n, classes) float32.
    """

    prepare: Callable[[Structure, jax.Array], jax.Array]
    init: Callable[[jax.Array], Any]
    apply: Callable[[Any, jax.Array | SparseFeatures, Structure, jax.Array], jax.Array]


def graph_arrays(graph: Graph) -> tuple[jax.Array | SparseFeatures, Structure]:
    """Features and structure of a graph as device arrays; sparse features stay sparse."""
    x = graph.features
    features: jax.Array | SparseFeatures
    if sparse.issparse(x):
        features = SparseFeatures(csr_pattern(x.indices, x.indptr, x.shape[1]), jnp.asarray(x.data))
    else:
        features = jnp.asarray(x)
    return features, Structure(*adjacency(graph.edges, graph.num_nodes))


def entry_mask(structure: Structure, edges: jax.Array) -> jax.Array:
    """Per-entry float32 mask of an undirected (E,) edge mask or edge weights; self-loops get 1."""
    return jnp.append(edges.astype(jnp.float32), jnp.float32(1))[structure.edge]


def multiply(features: jax.Array | SparseFeatures, kernel: jax.Array) -> jax.Array:
    """X·W for dense or sparse X; (n, f) x (f, h) -> (n, h)."""
    if isinstance(features, SparseFeatures):
        return neighbour_sum(features.pattern, features.values, kernel)
    return jnp.matmul(features, kernel, precision=jax.lax.Precision.HIGHEST)


class _GraphConvolution(nn.Module):
    """Â·X·W + b with Glorot-uniform W and zero b; multiplies first, so that hidden columns travel."""

    inputs: int
    outputs: int

    @nn.compact
    def __call__(self, features: jax.Array | SparseFeatures, structure: Structure, weights: jax.Array) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.glorot_uniform(), (self.inputs, self.outputs))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.outputs,))
        return neighbour_sum(structure.pattern, weights, multiply(features, kernel)) + bias


class _GCN(nn.Module):
    """Two graph convolutions with a ReLU between, no dropout."""

    features: int
    hidden: int
    classes: int

    @nn.compact
    def __call__(self, features: jax.Array | SparseFeatures, structure: Structure, weights: jax.Array) -> jax.Array:
        hidden = nn.relu(_GraphConvolution(self.features, self.hidden)(features, structure, weights))
        return _GraphConvolution(self.hidden, self.classes)(hidden, structure, weights)


def _gcn(features: int, hidden: int, classes: int) -> Model:
    """Graph convolutional network: Kipf & Welling 2017 (arXiv:1609.02907), normalised as PyG's GCNConv."""
    module = _GCN(features, hidden, classes)

    def init(key: jax.Array) -> Any:
        # Shapes come from the fields, so a one-node graph without edges is enough to initialise.
        pattern = Pattern(*(jnp.array(part, jnp.int32) for part in ([0], [0], [0, 1], [0], [0], [0, 1], [0])))
        structure = Structure(pattern, jnp.zeros(1, jnp.int32))
        return module.init(key, jnp.zeros((1, features)), structure, jnp.ones(1))

    return Model(lambda structure, mask: gcn_weights(structure.pattern, mask), init, module.apply)


MODELS: dict[str, Callable[[int, int, int], Model]] = {"gcn": _gcn}
"""Name -> builder of (features, hidden, classes)."""


def build_model(name: str, features: int, hidden: int, classes: int) -> Model:
    """The registered model of that name.

    Raises:
        InputError: unknown name.

    Example:
        >>> model = build_model("gcn", features=3, hidden=4, classes=2)
        >>> sorted(model.init(jax.random.key(0))["params"])
        ['_GraphConvolution_0', '_GraphConvolution_1']
    """
    return MODELS[check_choice("model", name, MODELS)](features, hidden, classes)
