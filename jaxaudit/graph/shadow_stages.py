"""The stages of an ensemble, a group of models at a time: train them, query them, ask them for ``g_base``'s contrast.

The programs are compiled once per type of model. Each model's outcome is stored by itself (``per_model``).
"""

from __future__ import annotations

from collections.abc import Callable
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
from jaxaudit.graph.models import Builder, build_model
from jaxaudit.graph.noise import NoiseConfig, noisy_logits, noisy_params
from jaxaudit.graph.per_model import Entry, PerModel
from jaxaudit.graph.sampling import Samples
from jaxaudit.graph.structure import HostGraph, entry_mask
from jaxaudit.graph.training import TrainConfig, make_fit
from jaxaudit.runtime.chunks import rows_per_chunk
from jaxaudit.runtime.devices import ensemble_map
from jaxaudit.runtime.keys import stream_key

__all__ = ["Models", "Programs", "compiled", "contrast_models", "fit_models", "inference_mask", "query_models"]

_GROUP = 16  # models per compiled call: the unit of progress and of what a killed run can lose
_HOST_BYTES = 192 << 20  # the cut-out subgraphs of a group


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


class Programs(NamedTuple):
    """The jitted functions of a group of models; data are arguments, never closures.

    ``tree`` is the structure of one model's parameters.
    """

    tree: Any
    fit: Callable[..., Any]
    query: Callable[..., Any]
    contrast: Callable[..., Any]


@lru_cache(maxsize=16)
def compiled(
    builder: str | Builder, features: int, classes: int, train: TrainConfig, noisy: tuple[bool, bool], mesh: Mesh,
    chunk: int, sparse_features: bool,
) -> Programs:  # fmt: skip
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
    return Programs(tree, *(jax.jit(ensemble_map(program, mesh, chunk=chunk)) for program in (fit, query, contrast)))


def fit_models(
    graph: Graph, samples: Samples, host: HostGraph, programs: Programs, identity: str, seed: int, each: PerModel
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


class Models:
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


def query_models(
    models: Models, samples: Samples, programs: Programs, identity: str, inference: str, traversed: bool,
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


def contrast_models(models: Models, design: Design, programs: Programs, identity: str, each: PerModel) -> list[Entry]:
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
