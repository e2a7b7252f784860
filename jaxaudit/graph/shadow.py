"""Shadow models: train an ensemble on the draws of a sampler, and query every node of every model.

Each model trains on the subgraph of its own draw, cut out and padded (``compact``), and is queried on the whole graph.
Model k depends on the data, the settings, the seed and k, never on how many models there are. Each
is stored by itself, so that a killed run resumes, a larger ensemble reuses a smaller one, and other
attacks, rules and inference edges train nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from scipy import sparse

from jaxaudit.graph.attacks.g_base import Design, contrast_queries
from jaxaudit.graph.compact import Part, capacities, cut_out, whole
from jaxaudit.graph.data import Graph
from jaxaudit.graph.models import GAT_HEADS, Builder, ModelConfig, build_model
from jaxaudit.graph.noise import NoiseConfig, noisy_logits, noisy_params
from jaxaudit.graph.per_model import Entry, PerModel
from jaxaudit.graph.sampling import SamplerConfig, Samples
from jaxaudit.graph.structure import HostGraph, entry_mask, host_graph
from jaxaudit.graph.training import TrainConfig, make_fit
from jaxaudit.runtime.checks import check_choice, check_int, require
from jaxaudit.runtime.chunks import rows_per_chunk
from jaxaudit.runtime.devices import ensemble_map, ensemble_mesh
from jaxaudit.runtime.keys import stream_key
from jaxaudit.runtime.store import Store, digest

__all__ = ["INFERENCE", "Ensemble", "ShadowConfig", "TrainConfig", "inference_mask", "train_and_query"]

INFERENCE = ("split", "full", "none")
_GROUP = 16  # models per compiled call: the unit of progress and of what a killed run can lose
_ACCELERATOR_BYTES = 4 << 30
_HOST_BYTES = 192 << 20  # the cut-out subgraphs of a group
# Raised whenever a model of the same settings comes out or is stored otherwise: 2 trains on the cut-out subgraph,
# 3 stores the parameters leaf by leaf.
_TRAINING = 3

_GCN, _PUBLISHED, _NO_NOISE = ModelConfig(), TrainConfig(), NoiseConfig()


@dataclass(frozen=True)
class ShadowConfig:
    """The ensemble.

    Attributes:
        count: shadow models, in [4, 100000].
        chunk: models vmapped at a time on each device; 0: 1 on CPUs, up to 16 by memory elsewhere. Floating-point
            sums, and so the logits, depend on it slightly; draws do not.
        prior_draws: Monte-Carlo draws for the priors of samplers without a closed form.
        targets: further models, from the draws after the shadows', that the attacks of ``attack.compare`` are judged
            on while all shadows teach; 0, or in [2, 100000]. Without them the two halves of the shadows judge each
            other. Error counts and posteriors rest on the shadows in either case.
    """

    count: int = 64
    chunk: int = 0
    prior_draws: int = 10_000
    targets: int = 0

    def __post_init__(self) -> None:
        check_int("shadow.count", self.count, 4, 100_000)
        check_int("shadow.chunk", self.chunk, 0, self.count)
        check_int("shadow.prior_draws", self.prior_draws, 1)
        check_int("shadow.targets", self.targets, 0, 100_000)
        require(self.targets != 1, "shadow.targets", "be 0 or at least 2", self.targets)


@dataclass(frozen=True, eq=False)
class Ensemble:
    """K trained models, queried on all nodes.

    Attributes:
        logits: (K, n, classes) float32 under the chosen inference edges.
        losses: (K,) float32 training loss before the last update.
        finite: (K,) bool, loss and logits are finite.
        epochs: (K,) int32 epochs run.
        trained: models trained in this run; the others came from the store.
        contrast: (K, n, S) float32, what ``g_base`` asks for; None where it was not asked.
    """

    logits: np.ndarray
    losses: np.ndarray
    finite: np.ndarray
    epochs: np.ndarray
    trained: int
    contrast: np.ndarray | None = None

    def part(self, models: slice) -> Ensemble:
        """Some of the models; ``trained`` stays that of the run."""
        contrast = None if self.contrast is None else self.contrast[models]
        return Ensemble(
            self.logits[models], self.losses[models], self.finite[models], self.epochs[models], self.trained, contrast
        )


def inference_mask(nodes: Any, edges: Any, train_edges: Any, setting: str, traversed: bool) -> Any:
    """Edges along which a trained model may look when queried; NumPy or JAX arrays.

    Args:
        nodes: (n,) bool membership.
        edges: (2, E) int.
        train_edges: (E,) bool, edges used in training.
        setting: ``split`` keeps the two parts apart: members see edges with both ends in (or, where the model was
            trained on ``traversed`` edges, those), non-members edges with both ends out. ``full``: all edges.
            ``none``: self-loops only.
        traversed: whether training used traversed edges.

    Returns:
        (E,) bool.
    """
    first, second = nodes[edges[0]], nodes[edges[1]]
    if setting == "full":
        return first | True
    if setting == "none":
        return first & False
    return (train_edges if traversed else first & second) | ~(first | second)


class _Programs(NamedTuple):
    """The jitted functions of a group of models; data are arguments, never closures.

    ``tree`` is the structure of one model's parameters.
    """

    tree: Any
    fit: Callable[..., Any]
    query: Callable[..., Any]
    contrast: Callable[..., Any]


@lru_cache(maxsize=16)
def _compiled(
    builder: str | Builder, features: int, classes: int, train: TrainConfig, noisy: tuple[bool, bool], mesh: Mesh,
    chunk: int, sparse_features: bool,
) -> _Programs:  # fmt: skip
    """Programs of one model type; ``noisy`` says whether weights and outputs carry noise, of traced size."""
    model = build_model(builder, features, train.hidden, classes, sparse=sparse_features)
    train_one = make_fit(model, train, report_epochs=True)
    ask = contrast_queries(model)

    def fit(item: tuple[jax.Array, Part], _: None) -> tuple[Any, jax.Array, jax.Array]:
        key, part = item
        mask = entry_mask(part.structure, part.edges)
        return train_one(key, part.features, part.structure, mask, part.labels, part.use)

    def released(params: Any, key: jax.Array, sigma: jax.Array) -> Any:
        return noisy_params(key, params, sigma) if noisy[0] else params

    def query(item: Any, shared: Any) -> jax.Array:
        params, (weight_key, output_key), edges = item
        x, structure, (weights, outputs) = shared
        params = released(params, weight_key, weights)
        logits = model.apply(params, x, structure, model.prepare(structure, entry_mask(structure, edges)))
        return noisy_logits(output_key, logits, outputs) if noisy[1] else logits

    def contrast(item: Any, shared: Any) -> jax.Array:
        params, (weight_key, _) = item
        x, structure, (weights, _), labels, edges, design = shared
        return ask(released(params, weight_key, weights), x, structure, labels, edges, design)

    tree = jax.tree.structure(jax.eval_shape(model.init, jax.random.key(0)))
    return _Programs(tree, *(jax.jit(ensemble_map(program, mesh, chunk=chunk)) for program in (fit, query, contrast)))


def _auto_chunk(graph: Graph, hidden: int) -> int:
    """1 on CPUs; elsewhere as many models as memory allows, at most 16. Never depends on the count."""
    if jax.default_backend() == "cpu":
        return 1
    entries = 2 * graph.num_edges + graph.num_nodes + getattr(graph.features, "nnz", 0)
    per_model = 4 * hidden * (2 * entries + 8 * graph.num_nodes + 4 * graph.num_features)
    return min(16, rows_per_chunk(per_model, _ACCELERATOR_BYTES))


def train_and_query(
    graph: Graph,
    samples: Samples,
    *,
    sampler: SamplerConfig,
    model: ModelConfig | Builder = _GCN,
    train: TrainConfig = _PUBLISHED,
    chunk: int = 0,
    train_edges: str = "induced",
    inference: str = "split",
    noise: NoiseConfig = _NO_NOISE,
    design: Design | None = None,
    seed: int = 0,
    store: Store | None = None,
    mesh: Mesh | None = None,
    stage: Callable[[str, int], Any] | None = None,
) -> Ensemble:
    """Train one model per draw and query all nodes of each; stored models are loaded instead.

    Args:
        graph: n nodes, E edges.
        samples: K draws of ``sampler`` with ``train_edges`` and ``seed``, from the first on.
        sampler: how ``samples`` came about, as ``train_edges`` and ``seed``; part of the stored models' identity.
        model: architecture, registered or the user's own builder. Models of the latter are not stored: code has no
            identity that would tell when they are out of date. The same holds for a sampler without one.
        train: optimisation.
        chunk: models vmapped at a time on each device; 0 chooses.
        train_edges: ``induced`` or ``traversed``.
        inference: one of ``INFERENCE``.
        noise: added to the trained weights and to the answers; trains nothing.
        design: also ask each model the queries of ``g_base``.
        seed: of ``samples`` and of the initial weights.
        store: where models and logits are kept.
        mesh: devices; None takes all.
        stage: opens a progress stage from a name and a number of models.

    Raises:
        InputError: unknown model, edge setting, a bad chunk, or a builder that does not make a ``Model``.
    """
    check_choice("edges.inference", inference, INFERENCE)
    count = samples.nodes.shape[0]
    check_int("shadow.chunk", chunk, 0, count)
    builder, named = (model.name, asdict(model)) if isinstance(model, ModelConfig) else (model, None)
    require(isinstance(builder, Hashable), "model", "be hashable, as functions are", type(builder).__name__)
    store = store if store and named and sampler.storable else Store(None)
    chunk = chunk or _auto_chunk(graph, train.hidden * (GAT_HEADS if builder == "gat" else 1))
    mesh = mesh or ensemble_mesh(min(len(jax.devices()), -(-count // chunk)))  # no device for padding alone
    noisy = noise.weights > 0, noise.outputs > 0
    sizes = graph.num_features, graph.num_classes
    programs = _compiled(builder, *sizes, train, noisy, mesh, chunk, sparse.issparse(graph.features))
    identity = {
        "training": _TRAINING, "data": graph.digest(), "sampler": sampler.settings(), "train_edges": train_edges,
        "model": named, "train": asdict(train), "seed": seed, "chunk": chunk,
        "jax": [jax.__version__, jax.default_backend()],
    }  # fmt: skip
    each = PerModel(mesh, chunk, store, stage)
    host = host_graph(graph)
    fits, trained = _fit(graph, samples, host, programs, digest(identity), seed, each)
    models = _Models(graph, host, fits, programs.tree, noise, seed)
    asked = digest(identity, asdict(noise), inference)
    queries = _query(models, samples, programs, asked, inference, train_edges == "traversed", each)
    logits = np.stack([entry["logits"] for entry in queries])
    losses = np.array([entry["loss"] for entry in fits], np.float32)
    epochs = np.array([entry["epochs"] for entry in fits], np.int32)
    finite = np.isfinite(losses) & np.isfinite(logits).all(axis=(1, 2))
    contrast = None
    if design is not None:
        asked = digest(identity, noise.weights, *(np.asarray(part) for part in design))
        contrast = np.stack([entry["contrast"] for entry in _contrast(models, design, programs, asked, each)])
    return Ensemble(logits, losses, finite, epochs, trained, contrast)


def _fit(
    graph: Graph, samples: Samples, host: HostGraph, programs: _Programs, identity: str, seed: int, each: PerModel
) -> tuple[list[Entry], int]:
    """Trained parameters, loss and epochs of every model, and how many were trained now."""
    rooms = capacities(host, samples.nodes, samples.edges, samples.quota)
    base = stream_key(seed, "train")
    buffers: dict[Any, Any] = {}  # one group's parts side by side, written anew for the next

    def fit_group(models: np.ndarray) -> list[Entry]:
        parts = [cut_out(host, samples.nodes[k], samples.edges[k], rooms[k]) for k in models]
        if (shape := (rooms[models[0]], models.size)) not in buffers:
            buffers.clear()
            buffers[shape] = jax.tree.map(lambda leaf: np.empty((models.size, *leaf.shape), leaf.dtype), parts[0])
        jax.tree.map(lambda out, *leaves: np.stack(leaves, out=out), buffers[shape], *parts)
        found = programs.fit((_folded(base, models), buffers[shape]), None)
        params, losses, epochs = jax.device_get(found)  # done: the buffers are free again
        leaves = {_leaf(i): leaf for i, leaf in enumerate(jax.tree.leaves(params))}
        named = {"loss": losses, "epochs": epochs} | leaves
        return [{name: values[j] for name, values in named.items()} for j in range(models.size)]

    dense = 0 if sparse.issparse(graph.features) else graph.num_features
    group = min(_GROUP, rows_per_chunk(max(room.bytes(dense) for room in rooms), _HOST_BYTES))
    return each("train", identity, rooms, group, fit_group)


class _Models:
    """Trained models as they are released, on a graph padded to its bucket."""

    def __init__(
        self, graph: Graph, host: HostGraph, fits: list[Entry], tree: Any, noise: NoiseConfig, seed: int
    ) -> None:
        self.graph, self.fits, self.tree, self.whole = graph, fits, tree, whole(host)
        self.keys = [stream_key(seed, f"noise-{place}") for place in ("weights", "outputs")]
        sigmas = jnp.float32(noise.weights), jnp.float32(noise.outputs)
        features, structure = jax.tree.map(jnp.asarray, (self.whole.features, self.whole.structure))
        self.shared = (features, structure, sigmas)

    def items(self, models: np.ndarray) -> tuple[Any, Any]:
        """Parameters and noise keys of some models."""
        names = map(_leaf, range(self.tree.num_leaves))
        leaves = [np.stack([self.fits[k][name] for k in models]) for name in names]
        return jax.tree.unflatten(self.tree, leaves), tuple(_folded(key, models) for key in self.keys)


def _query(
    models: _Models, samples: Samples, programs: _Programs, identity: str, inference: str, traversed: bool,
    each: PerModel,
) -> list[Entry]:  # fmt: skip
    """The logits of every model at every node."""
    edges, n = models.graph.edges, models.graph.num_nodes

    def query_group(group: np.ndarray) -> list[Entry]:
        masks = np.zeros((group.size, models.whole.edges.size), bool)
        for j, k in enumerate(group):
            mask = inference_mask(samples.nodes[k], edges, samples.edges[k], inference, traversed)
            masks[j, : edges.shape[1]] = mask
        logits = jax.device_get(programs.query((*models.items(group), masks), models.shared))
        return [{"logits": one[:n]} for one in logits]

    return each("infer", identity, [None] * len(models.fits), _GROUP, query_group)[0]


def _contrast(models: _Models, design: Design, programs: _Programs, identity: str, each: PerModel) -> list[Entry]:
    """What ``g_base`` asks of every model; padding nodes are in no mask, toggled in no block, and spare
    edges end at the last of them.
    """
    n, room, size = models.graph.num_nodes, models.whole.labels.size, models.whole.edges.size
    edges = np.full((2, size), room - 1, np.int32)
    edges[:, : models.graph.num_edges] = models.graph.edges
    beside = (0, 0), (0, room - n)
    masks, blocks = np.pad(design.masks, beside), np.pad(design.blocks, beside, constant_values=-1)
    shared = (
        *models.shared,
        jnp.asarray(models.whole.labels),
        jnp.asarray(edges),
        Design(masks, blocks, design.number),
    )

    def ask_group(group: np.ndarray) -> list[Entry]:
        found = jax.device_get(programs.contrast(models.items(group), shared))
        return [{"contrast": one[:n]} for one in found]

    return each("contrast", identity, [None] * len(models.fits), _GROUP, ask_group)[0]


def _folded(base: jax.Array, models: np.ndarray) -> jax.Array:
    """The key of each model in a stream."""
    return jax.vmap(lambda k: jax.random.fold_in(base, k))(jnp.asarray(models, jnp.uint32))


def _leaf(number: int) -> str:
    """Under which name a parameter is stored: by place, as a user's own may have any name, or none."""
    return f"leaf{number}"
