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

from jaxaudit.graph.layers import (
    GCN,
    AttentionConvolution,
    Dropout,
    Features,
    GinConvolution,
    Linear,
    SageConvolution,
    TwoLayers,
    drop,
)
from jaxaudit.graph.propagate import adjacency, csr_pattern, gcn_weights, mean_weights
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
    module = GCN(features, hidden, classes)
    return _flax_model(module, features, lambda structure, mask: gcn_weights(structure.pattern, mask))


def _sage(features: int, hidden: int, classes: int) -> Model:
    """GraphSAGE, mean aggregator: Hamilton et al. 2017 (arXiv:1706.02216), without sampling, as PyG's SAGEConv."""
    module = TwoLayers(SageConvolution(features, hidden), SageConvolution(hidden, classes))
    return _flax_model(module, features, lambda structure, mask: mean_weights(structure.pattern, mask))


def _gin(features: int, hidden: int, classes: int) -> Model:
    """Graph isomorphism network: Xu et al. 2019 (arXiv:1810.00826); ε fixed at 0 (GIN-0), as PyG's GINConv default."""
    module = TwoLayers(GinConvolution(features, hidden, hidden), GinConvolution(hidden, hidden, classes))
    return _flax_model(module, features)


def _gat(features: int, hidden: int, classes: int) -> Model:
    """Graph attention network: Veličković et al. 2018 (arXiv:1710.10903), 8 heads of ``hidden``, then 1 head.

    ReLU between the layers, as in Khosla, arXiv:2601.17130.
    """
    first = AttentionConvolution(features, hidden, GAT_HEADS)
    module = TwoLayers(first, AttentionConvolution(GAT_HEADS * hidden, classes, 1))
    return _flax_model(module, features)


def _mlp(features: int, hidden: int, classes: int) -> Model:
    """The baseline without edges: the GCN with the identity in place of Â."""
    module = TwoLayers(Linear(features, hidden), Linear(hidden, classes))
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
