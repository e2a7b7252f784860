"""Graph models behind one protocol of two functions: ``init`` parameters, ``apply`` them.

``apply`` sees one model; the caller vmaps or maps. ``MODELS`` is the registry that ``model=`` names; a user's own
builder of the same signature serves as well. All models have two layers, are initialised as their PyTorch Geometric
namesakes, and send values along edges through ``neighbour_sum`` only. Dropout is an option of training.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.graph.propagate import adjacency, csr_pattern, gcn_weights, mean_weights, neighbour_softmax, neighbour_sum
from jaxaudit.graph.structure import SparseFeatures, Structure, entry_mask, graph_arrays, multiply, one_node
from jaxaudit.runtime.checks import InputError, check_choice, require

__all__ = [
    "MODELS",
    "Builder",
    "Model",
    "ModelConfig",
    "SparseFeatures",
    "Structure",
    "build_model",
    "drop",
    "entry_mask",
    "graph_arrays",
    "multiply",
]

Features = jax.Array | SparseFeatures
GAT_HEADS = 8


@dataclass(frozen=True)
class ModelConfig:
    """Which architecture the shadows have, by registry name."""

    name: str = "gcn"

    def __post_init__(self) -> None:
        check_choice("model", self.name, MODELS)


def _mask_itself(structure: Structure, mask: jax.Array) -> jax.Array:
    return mask


class Model(NamedTuple):
    """A graph model as pure functions; the first two suffice.

    Edges are the entries of ``structure.pattern``: entry j goes from the sender ``columns[j]`` to the receiver
    ``rows[j]``. What a model may see is a (2E + n,) float32 mask over them, 1 on self-loops; an entry with mask 0
    must have no influence.

    Attributes:
        init: ``init(key) -> params``, any pytree of floating-point arrays.
        apply: ``apply(params, features, structure, weights) -> logits``, (n, classes) float32 for any n; the call of
            inference. Features are (n, f) float32 or ``SparseFeatures``; ``multiply`` takes both. A model that can
            be trained with dropout has a further parameter ``dropout=None``, which training sets to (key, rate); see
            ``drop``.
        prepare: ``prepare(structure, mask) -> weights``, any pytree: what depends on the visible edges alone is
            computed once per model, not in every epoch. Default: the weights are the mask itself.
    """

    init: Callable[[jax.Array], Any]
    apply: Callable[..., jax.Array]
    prepare: Callable[[Structure, jax.Array], Any] = _mask_itself


Builder = Callable[[int, int, int], Model | tuple[Callable[..., Any], Callable[..., Any]]]
"""Makes a model, or the pair (init, apply), of (features, hidden, classes)."""

Dropout = tuple[jax.Array, float]


def drop(hidden: jax.Array, dropout: Dropout | None) -> jax.Array:
    """Zero a random share of the activations and scale the others by 1/(1 − rate), which keeps the mean.

    Placed where node-level audits of two-layer models have it: on the hidden activations, between the ReLU and the
    second layer (``BaseGNN.forward`` of the public MIA-audit-GNN, arXiv:2505.24089); neither on the input features nor
    on attention weights, unlike the GAT of Veličković et al.

    Args:
        hidden: (n, h) float.
        dropout: (key, rate in [0, 1)), or None, which returns ``hidden`` itself.

    Returns:
        (n, h) float; row i depends on the key and on i, so that appended rows change nothing.

    Example:
        >>> drop(jnp.ones((1, 4)), (jax.random.key(1), 0.5)).tolist()
        [[2.0, 0.0, 2.0, 2.0]]
    """
    if dropout is None:
        return hidden
    key, rate = dropout
    return jnp.where(jax.random.bernoulli(key, 1 - rate, hidden.shape), hidden / (1 - rate), 0)


def _fan_in(inputs: int) -> Callable[..., jax.Array]:
    """U(±1/√inputs): kernel and bias of torch.nn.Linear."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -1, 1) / jnp.sqrt(jnp.asarray(inputs, dtype))

    return init


class _GraphConvolution(nn.Module):
    """Â·X·W + b with Glorot-uniform W and zero b; multiplies first, so that hidden columns travel."""

    inputs: int
    outputs: int

    @nn.compact
    def __call__(self, features: Features, structure: Structure, weights: jax.Array) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.glorot_uniform(), (self.inputs, self.outputs))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.outputs,))
        return neighbour_sum(structure.pattern, weights, multiply(features, kernel)) + bias


class _SageConvolution(nn.Module):
    """X·W_self + mean over neighbours(X)·W_neighbour + b; one product with both kernels side by side."""

    inputs: int
    outputs: int

    @nn.compact
    def __call__(self, features: Features, structure: Structure, weights: jax.Array) -> jax.Array:
        shape, init = (self.inputs, self.outputs), _fan_in(self.inputs)
        own, neighbour = self.param("kernel_self", init, shape), self.param("kernel_neighbour", init, shape)
        bias = self.param("bias", init, (self.outputs,))
        mine, sent = jnp.split(multiply(features, jnp.concatenate([own, neighbour], axis=1)), 2, axis=1)
        return mine + neighbour_sum(structure.pattern, weights, sent) + bias


class _GinConvolution(nn.Module):
    """MLP((1 + 0)·x + sum over neighbours), MLP = linear, ReLU, linear; the first product is done before the sum."""

    inputs: int
    hidden: int
    outputs: int

    @nn.compact
    def __call__(self, features: Features, structure: Structure, weights: jax.Array) -> jax.Array:
        kernel = self.param("kernel", _fan_in(self.inputs), (self.inputs, self.hidden))
        bias = self.param("bias", _fan_in(self.inputs), (self.hidden,))
        second = self.param("kernel_out", _fan_in(self.hidden), (self.hidden, self.outputs))
        second_bias = self.param("bias_out", _fan_in(self.hidden), (self.outputs,))
        hidden = nn.relu(neighbour_sum(structure.pattern, weights, multiply(features, kernel)) + bias)
        return multiply(hidden, second) + second_bias


class _AttentionConvolution(nn.Module):
    """Σ_j softmax_j(LeakyReLU(a_from·W x_j + a_to·W x_i)) W x_j per head, heads side by side, + b.

    j runs over the visible neighbours and i itself; slope .2; Glorot-uniform W and a, zero b.
    """

    inputs: int
    outputs: int  # of one head
    heads: int

    @nn.compact
    def __call__(self, features: Features, structure: Structure, weights: jax.Array) -> jax.Array:
        glorot = nn.initializers.glorot_uniform()
        kernel = self.param("kernel", glorot, (self.inputs, self.heads * self.outputs))
        sends = self.param("attention_from", glorot, (self.heads, self.outputs))
        receives = self.param("attention_to", glorot, (self.heads, self.outputs))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.heads * self.outputs,))
        # Heads come first: with nodes first, the backward pass takes twice as long on CPUs.
        values = multiply(features, kernel).reshape(-1, self.heads, self.outputs).transpose(1, 0, 2)  # (H, n, F)
        exact = jax.lax.Precision.HIGHEST
        sent, received = (jnp.einsum("hnf,hf->nh", values, a, precision=exact) for a in (sends, receives))
        scores = nn.leaky_relu(sent[structure.pattern.columns] + received[structure.pattern.rows], 0.2)
        attention = neighbour_softmax(structure.pattern, weights, scores)
        out = jax.vmap(neighbour_sum, in_axes=(None, 1, 0))(structure.pattern, attention, values)
        return out.transpose(1, 0, 2).reshape(-1, self.heads * self.outputs) + bias


class _Linear(nn.Module):
    """X·W + b, initialised like a graph convolution."""

    inputs: int
    outputs: int

    @nn.compact
    def __call__(self, features: Features, structure: Structure, weights: jax.Array) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.glorot_uniform(), (self.inputs, self.outputs))
        return multiply(features, kernel) + self.param("bias", nn.initializers.zeros_init(), (self.outputs,))


class _GCN(nn.Module):
    """Two graph convolutions with a ReLU between."""

    features: int
    hidden: int
    classes: int

    @nn.compact
    def __call__(
        self, features: Features, structure: Structure, weights: jax.Array, dropout: Dropout | None = None
    ) -> jax.Array:
        hidden = nn.relu(_GraphConvolution(self.features, self.hidden)(features, structure, weights))
        return _GraphConvolution(self.hidden, self.classes)(drop(hidden, dropout), structure, weights)


class _TwoLayers(nn.Module):
    """Two layers with a ReLU between."""

    first: nn.Module
    second: nn.Module

    def __call__(
        self, features: Features, structure: Structure, weights: jax.Array, dropout: Dropout | None = None
    ) -> jax.Array:
        hidden = nn.relu(self.first(features, structure, weights))
        return self.second(drop(hidden, dropout), structure, weights)


def _flax_model(
    module: nn.Module, features: int, prepare: Callable[[Structure, jax.Array], jax.Array] = _mask_itself
) -> Model:
    def init(key: jax.Array) -> Any:
        # Shapes come from the fields, so a one-node graph without edges is enough to initialise.
        return module.init(key, jnp.zeros((1, features)), one_node(), jnp.ones(1))

    def apply(
        params: Any, features: Features, structure: Structure, weights: Any, dropout: Dropout | None = None
    ) -> jax.Array:
        return module.apply(params, features, structure, weights, dropout)

    return Model(init, apply, prepare)


def _gcn(features: int, hidden: int, classes: int) -> Model:
    """Graph convolutional network: Kipf & Welling 2017 (arXiv:1609.02907), normalised as PyG's GCNConv."""
    module = _GCN(features, hidden, classes)
    return _flax_model(module, features, lambda structure, mask: gcn_weights(structure.pattern, mask))


def _sage(features: int, hidden: int, classes: int) -> Model:
    """GraphSAGE, mean aggregator: Hamilton et al. 2017 (arXiv:1706.02216), without sampling, as PyG's SAGEConv."""
    module = _TwoLayers(_SageConvolution(features, hidden), _SageConvolution(hidden, classes))
    return _flax_model(module, features, lambda structure, mask: mean_weights(structure.pattern, mask))


def _gin(features: int, hidden: int, classes: int) -> Model:
    """Graph isomorphism network: Xu et al. 2019 (arXiv:1810.00826); ε fixed at 0 (GIN-0), as PyG's GINConv default."""
    module = _TwoLayers(_GinConvolution(features, hidden, hidden), _GinConvolution(hidden, hidden, classes))
    return _flax_model(module, features)


def _gat(features: int, hidden: int, classes: int) -> Model:
    """Graph attention network: Veličković et al. 2018 (arXiv:1710.10903), 8 heads of ``hidden``, then 1 head.

    ReLU between the layers, as in Khosla, arXiv:2601.17130.
    """
    first = _AttentionConvolution(features, hidden, GAT_HEADS)
    module = _TwoLayers(first, _AttentionConvolution(GAT_HEADS * hidden, classes, 1))
    return _flax_model(module, features)


def _mlp(features: int, hidden: int, classes: int) -> Model:
    """The baseline without edges: the GCN with the identity in place of Â."""
    module = _TwoLayers(_Linear(features, hidden), _Linear(hidden, classes))
    return _flax_model(module, features)


MODELS: dict[str, Callable[[int, int, int], Model]] = {
    "gcn": _gcn,
    "sage": _sage,
    "gin": _gin,
    "gat": _gat,
    "mlp": _mlp,
}
"""Name -> builder of (features, hidden, classes)."""


def build_model(model: str | Builder, features: int, hidden: int, classes: int, *, sparse: bool = False) -> Model:
    """The registered model of that name, or what the user's own builder makes.

    A model of one's own is traced once on a small graph, which computes nothing, and refused if that fails.

    Args:
        model: name, or builder of (features, hidden, classes).
        features: columns of the feature matrix.
        hidden: width of the hidden layer.
        classes: columns of the logits.
        sparse: whether the model will be given ``SparseFeatures``.

    Raises:
        InputError: unknown name; or a model of one's own that breaks the protocol of ``Model``.

    Example:
        >>> model = build_model("gcn", features=3, hidden=4, classes=2)
        >>> sorted(model.init(jax.random.key(0))["params"])
        ['_GraphConvolution_0', '_GraphConvolution_1']
    """
    if not callable(model):
        return MODELS[check_choice("model", model, MODELS)](features, hidden, classes)
    made = _tried("be a function of (features, hidden, classes)", model, features, hidden, classes)
    pair = isinstance(made, tuple) and len(made) in (2, 3) and all(callable(part) for part in made)
    require(pair, "model", "build a jaxaudit.graph.Model or a pair (init, apply)", type(made).__name__)
    built = made if isinstance(made, Model) else Model(*made)
    rule = "have an init(key) that JAX can trace to a pytree of arrays"
    params = _tried(rule, jax.eval_shape, built.init, jax.random.key(0))
    kinds = {str(leaf.dtype) for leaf in jax.tree.leaves(params) if not jnp.issubdtype(leaf.dtype, jnp.floating)}
    some = bool(jax.tree.leaves(params))
    require(some and not kinds, "model", "have floating-point parameters", ", ".join(sorted(kinds)) or "none")
    _check_logits(built, params, features, classes, sparse)
    return built


_PROBE = 3  # nodes, of which two share an edge: a model that answers for one row, or that misreads entries, shows


def _check_logits(model: Model, params: Any, features: int, classes: int, sparse: bool) -> None:
    """Trace the model on a graph of ``_PROBE`` nodes; all are arguments, since in training all are traced."""
    x: Any = np.zeros((_PROBE, features), np.float32)
    if sparse:
        pattern = csr_pattern(np.zeros(1, np.int32), np.minimum(np.arange(_PROBE + 1, dtype=np.int32), 1), features)
        x = SparseFeatures(pattern, np.zeros(1, np.float32))  # type: ignore[arg-type]  # NumPy's will be traced
    structure = Structure(*adjacency(np.array([[0], [1]], np.int32), _PROBE))
    mask = np.ones(structure.edge.shape, np.float32)

    def logits(options: dict[str, Any], params: Any, x: Any, structure: Structure, mask: Any) -> Any:
        return model.apply(params, x, structure, model.prepare(structure, mask), **options)

    call = "params, features, structure, prepare(structure, mask)"
    signature = _tried(f"have an apply({call})", inspect.signature, model.apply)
    calls: list[tuple[str, dict[str, Any]]] = [(call, {})]
    if "dropout" in signature.parameters:
        calls.append((f"{call}, dropout=(key, rate)", {"dropout": (jax.random.key(0), 0.5)}))
    for call, options in calls:
        rule = f"have an apply({call}) that JAX can trace"
        found = _tried(rule, jax.eval_shape, partial(logits, options), params, x, structure, mask)
        one = isinstance(found, jax.ShapeDtypeStruct)
        shown = f"{found.dtype} of {found.shape} for {_PROBE} nodes" if one else type(found).__name__
        fits = one and found.shape == (_PROBE, classes) and jnp.issubdtype(found.dtype, jnp.floating)
        rule = f"give logits of the shape (nodes, {classes}), one floating-point array"
        require(fits, "model", rule, shown)


def _tried(rule: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What the user's function returns; whatever it raises, ``sys.exit`` as well, becomes one line naming the rule."""
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise InputError(f"model must {rule}, got {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")
    except (Exception, SystemExit):  # an error of the user's own, whose text fails
        return type(error).__name__
