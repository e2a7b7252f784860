"""Shadow models: train an ensemble on the draws of a sampler, and query every node of every model.

Model k depends on the data, the settings, the seed and k, never on how many models there are. Each
is stored by itself, so that a killed run resumes, a larger ensemble reuses a smaller one, and other
attacks, rules and inference edges train nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from jaxaudit.graph.data import Graph
from jaxaudit.graph.models import GAT_HEADS, Builder, ModelConfig, build_model, entry_mask, graph_arrays
from jaxaudit.graph.sampling import SamplerConfig, Samples
from jaxaudit.graph.training import TrainConfig, make_fit
from jaxaudit.runtime.checks import check_choice, check_int
from jaxaudit.runtime.chunks import pad_rows, rows_per_chunk
from jaxaudit.runtime.devices import ensemble_map, ensemble_mesh, ensemble_size
from jaxaudit.runtime.keys import stream_key
from jaxaudit.runtime.store import Store, digest

__all__ = ["INFERENCE", "Ensemble", "ShadowConfig", "TrainConfig", "inference_mask", "train_and_query"]

INFERENCE = ("split", "full", "none")
_GROUP = 16  # models per compiled call: the unit of progress and of what a killed run can lose
_ACCELERATOR_BYTES = 4 << 30


_GCN, _PUBLISHED = ModelConfig(), TrainConfig()


@dataclass(frozen=True)
class ShadowConfig:
    """The ensemble.

    Attributes:
        count: shadow models, in [4, 100000].
        chunk: models vmapped at a time on each device; 0: 1 on CPUs, up to 16 by memory elsewhere. Floating-point
            sums, and so the logits, depend on it slightly; draws do not.
        prior_draws: Monte-Carlo draws for the priors of samplers without a closed form.
    """

    count: int = 64
    chunk: int = 0
    prior_draws: int = 10_000

    def __post_init__(self) -> None:
        check_int("shadow.count", self.count, 4, 100_000)
        check_int("shadow.chunk", self.chunk, 0, self.count)
        check_int("shadow.prior_draws", self.prior_draws, 1)


@dataclass(frozen=True, eq=False)
class Ensemble:
    """K trained models, queried on all nodes.

    Attributes:
        logits: (K, n, classes) float32 under the chosen inference edges.
        losses: (K,) float32 training loss before the last update.
        finite: (K,) bool, loss and logits are finite.
        trained: models trained in this run; the others came from the store.
    """

    logits: np.ndarray
    losses: np.ndarray
    finite: np.ndarray
    trained: int


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


@lru_cache(maxsize=16)
def _compiled(
    builder: str | Builder, features: int, classes: int, train: TrainConfig, mesh: Mesh, chunk: int
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The jitted training and inference of a group of models; data are arguments, never closures."""
    model = build_model(builder, features, train.hidden, classes)
    train_one = make_fit(model, train)

    def fit(item: Any, shared: Any) -> tuple[Any, jax.Array]:
        key, nodes, edges = item
        x, structure, labels = shared
        return train_one(key, x, structure, entry_mask(structure, edges), labels, nodes)

    def query(item: Any, shared: Any) -> jax.Array:
        params, edges = item
        x, structure, _ = shared
        return model.apply(params, x, structure, model.prepare(structure, entry_mask(structure, edges)))

    return jax.jit(ensemble_map(fit, mesh, chunk=chunk)), jax.jit(ensemble_map(query, mesh, chunk=chunk))


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
    seed: int = 0,
    store: Store | None = None,
    mesh: Mesh | None = None,
    stage: Callable[[str, int], Any] | None = None,
) -> Ensemble:
    """Train one model per draw and query all nodes of each; stored models are loaded instead.

    Args:
        graph: n nodes, E edges.
        samples: K draws of ``sampler`` with ``train_edges`` and ``seed``.
        sampler: how ``samples`` came about, as ``train_edges`` and ``seed``; part of the stored models' identity.
        model: architecture, registered or the user's own builder. Models of the latter are not stored: code has no
            identity that would tell when they are out of date.
        train: optimisation.
        chunk: models vmapped at a time on each device; 0 chooses.
        train_edges: ``induced`` or ``traversed``.
        seed: of ``samples`` and of the initial weights.
        inference: one of ``INFERENCE``.
        store: where models and logits are kept.
        mesh: devices; None takes all.
        stage: opens a progress stage from a name and a number of models.

    Raises:
        InputError: unknown model, edge setting, a bad chunk, or a builder that does not make a ``Model``.
    """
    check_choice("edges.inference", inference, INFERENCE)
    count, traversed = samples.nodes.shape[0], train_edges == "traversed"
    check_int("shadow.chunk", chunk, 0, count)
    builder, named = (model.name, asdict(model)) if isinstance(model, ModelConfig) else (model, None)
    store = store if store and named else Store(None)
    chunk = chunk or _auto_chunk(graph, train.hidden * (GAT_HEADS if builder == "gat" else 1))
    mesh = mesh or ensemble_mesh(min(len(jax.devices()), -(-count // chunk)))  # no device for padding alone
    fit, query = _compiled(builder, graph.num_features, graph.num_classes, train, mesh, chunk)
    shared = (*graph_arrays(graph), jnp.asarray(graph.labels))
    identity = {
        "data": graph.digest(), "sampler": sampler.settings(), "train_edges": train_edges, "model": named,
        "train": asdict(train), "seed": seed, "chunk": chunk, "jax": [jax.__version__, jax.default_backend()],
    }  # fmt: skip
    base = stream_key(seed, "train")

    def fit_group(models: np.ndarray) -> list[dict[str, np.ndarray]]:
        keys = jax.vmap(lambda k: jax.random.fold_in(base, k))(jnp.asarray(models, jnp.uint32))
        params, losses = jax.device_get(fit((keys, samples.nodes[models], samples.edges[models]), shared))
        flat = flatten_dict(params, sep="/")
        return [{"loss": losses[j]} | {name: leaf[j] for name, leaf in flat.items()} for j in range(models.size)]

    fits, trained = _per_model("train", digest(identity), count, mesh, chunk, fit_group, store, stage)

    def query_group(models: np.ndarray) -> list[dict[str, np.ndarray]]:
        names = [name for name in fits[0] if name != "loss"]
        params = unflatten_dict({name: np.stack([fits[k][name] for k in models]) for name in names}, sep="/")
        masks = [inference_mask(samples.nodes[k], graph.edges, samples.edges[k], inference, traversed) for k in models]
        return [{"logits": logits} for logits in jax.device_get(query((params, np.stack(masks)), shared))]

    queries, _ = _per_model("infer", digest(identity, inference), count, mesh, chunk, query_group, store, stage)
    logits = np.stack([entry["logits"] for entry in queries])
    losses = np.array([entry["loss"] for entry in fits], np.float32)
    finite = np.isfinite(losses) & np.isfinite(logits).all(axis=(1, 2))
    return Ensemble(logits, losses, finite, trained)


def _per_model(
    name: str,
    identity: str,
    count: int,
    mesh: Mesh,
    chunk: int,
    compute: Callable[[np.ndarray], list[dict[str, np.ndarray]]],
    store: Store,
    stage: Callable[[str, int], Any] | None,
) -> tuple[list[dict[str, np.ndarray]], int]:
    """One stored entry per model: load what is there, compute the rest in groups of one compiled shape."""
    keys = [digest(identity, k) for k in range(count)]
    entries = [store.load(name, key) for key in keys]
    missing = np.array([k for k, entry in enumerate(entries) if entry is None], dtype=np.int64)
    if missing.size:
        groups = -(-missing.size // max(_GROUP, mesh.size * chunk))
        size = ensemble_size(-(-missing.size // groups), mesh, chunk)
        with _stage(stage, name, missing.size) as bar:
            for first in range(0, missing.size, size):
                group = missing[first : first + size]
                for k, entry in zip(group, compute(pad_rows(group, size)), strict=False):  # the rest is padding
                    entries[k] = entry
                    store.save(name, keys[k], entry)
                bar.advance(group.size)
    return [entry for entry in entries if entry is not None], int(missing.size)


def _stage(stage: Callable[[str, int], Any] | None, name: str, total: int) -> Any:
    from jaxaudit.runtime.progress import Progress

    return (stage or Progress().stage)(name, total)
