"""Shadow models: train an ensemble on the draws of a sampler, and query every node of every model.

Each model trains on the subgraph of its own draw, cut out and padded (``compact``), and is queried on the whole graph.
Model k depends on the data, the settings, the seed and k, never on how many models there are. Each
is stored by itself, so that a killed run resumes, a larger ensemble reuses a smaller one, and other
attacks, rules and inference edges train nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from scipy import sparse

from jaxaudit.graph.attacks.g_base import Design
from jaxaudit.graph.data import Graph
from jaxaudit.graph.models import GAT_HEADS, Builder, ModelConfig
from jaxaudit.graph.noise import NoiseConfig
from jaxaudit.graph.per_model import PerModel
from jaxaudit.graph.sampling import SamplerConfig, Samples
from jaxaudit.graph.shadow_stages import Models, compiled, contrast_models, fit_models, inference_mask, query_models
from jaxaudit.graph.structure import host_graph
from jaxaudit.graph.training import TrainConfig
from jaxaudit.runtime.checks import check_choice, check_int, require
from jaxaudit.runtime.chunks import rows_per_chunk
from jaxaudit.runtime.devices import ensemble_mesh
from jaxaudit.runtime.store import Store, digest

__all__ = ["INFERENCE", "Ensemble", "ShadowConfig", "TrainConfig", "inference_mask", "train_and_query"]

INFERENCE = ("split", "full", "none")
# Raised whenever a model of the same settings comes out or is stored otherwise: 2 trains on the cut-out subgraph,
# 3 stores the parameters leaf by leaf.
_TRAINING = 3
_ACCELERATOR_BYTES = 4 << 30

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
    programs = compiled(builder, *sizes, train, noisy, mesh, chunk, sparse.issparse(graph.features))
    identity = {
        "training": _TRAINING, "data": graph.digest(), "sampler": sampler.settings(), "train_edges": train_edges,
        "model": named, "train": asdict(train), "seed": seed, "chunk": chunk,
        "jax": [jax.__version__, jax.default_backend()],
    }  # fmt: skip
    each = PerModel(mesh, chunk, store, stage)
    host = host_graph(graph)
    fits, trained = fit_models(graph, samples, host, programs, digest(identity), seed, each)
    models = Models(graph, host, fits, programs.tree, noise, seed)
    asked = digest(identity, asdict(noise), inference)
    queries = query_models(models, samples, programs, asked, inference, train_edges == "traversed", each)
    logits = np.stack([entry["logits"] for entry in queries])
    losses = np.array([entry["loss"] for entry in fits], np.float32)
    epochs = np.array([entry["epochs"] for entry in fits], np.int32)
    finite = np.isfinite(losses) & np.isfinite(logits).all(axis=(1, 2))
    contrast = None
    if design is not None:
        asked = digest(identity, noise.weights, *(np.asarray(part) for part in design))
        contrast = np.stack([entry["contrast"] for entry in contrast_models(models, design, programs, asked, each)])
    return Ensemble(logits, losses, finite, epochs, trained, contrast)
