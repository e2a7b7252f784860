"""Draws of training sets, and the membership priors of a sampler.

``uniform`` takes int(ratio·n) nodes at random, ``bernoulli`` each node by itself, ``degree`` prefers hubs,
``random_walk`` follows walks with restart, and ``snowball`` grows from seeds along edges (Khosla, arXiv:2601.17130):
10 uniform seeds per class, a FIFO frontier, and from each popped node the first 3 of its shuffled neighbours, unseen
ones joining until the quota. Shadow models and Monte-Carlo priors use the same function of a draw's key, so a draw
never depends on chunk size, device count or purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from scipy import stats

from jaxaudit.graph.data import Graph
from jaxaudit.graph.samplers import KERNELS, SamplerConfig, Shape, Tables, make_tables
from jaxaudit.runtime.checks import check_int
from jaxaudit.runtime.chunks import bucket, rows_per_chunk
from jaxaudit.runtime.devices import ensemble_mesh
from jaxaudit.runtime.keys import item_keys, stream_key

__all__ = ["Priors", "SamplerConfig", "Samples", "draw_samples", "estimate_priors"]

_MAX_CHUNK = 512


@dataclass(frozen=True, eq=False)
class Samples:
    """K draws.

    Attributes:
        nodes: (K, n) bool membership.
        edges: (K, E) bool edges that training may use.
        sizes: (K,) int32 realised number of nodes.
        exhausted: (K,) bool, a snowball's frontier ran dry before the quota.
        reseeds: (K,) int32 random nodes added to a snowball because it did (0 under ``stop``), or new seeds of a
            random walk.
        quota: the size asked for; about the expected one of ``bernoulli``.
    """

    nodes: np.ndarray
    edges: np.ndarray
    sizes: np.ndarray
    exhausted: np.ndarray
    reseeds: np.ndarray
    quota: int


@dataclass(frozen=True, eq=False)
class Priors:
    """P(node in the sample), per node.

    Attributes:
        gamma: (n,) float64.
        lower, upper: (n,) float64 95 % Clopper-Pearson limits; equal to gamma where exact.
        exact: known in closed form.
        draws: Monte-Carlo draws behind gamma, 0 where exact.
        exhausted: share of these draws whose frontier ran dry.
    """

    gamma: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    exact: bool
    draws: int
    exhausted: float = 0.0


@lru_cache(maxsize=32)
def _sampler(shape: Shape, mesh: Mesh, count_only: bool) -> Callable[..., dict[str, jax.Array]]:
    """The compiled sampler of a batch, its draws spread over the mesh."""
    draw = KERNELS[shape.config.name]

    def shard(keys: jax.Array, real: jax.Array, tables: Tables) -> dict[str, jax.Array]:
        out = draw(keys, tables, shape)
        if not count_only:
            return out
        counts = jnp.sum(out["nodes"] & real[:, None], axis=0, dtype=jnp.int32)
        return {"counts": counts[None], "exhausted": jnp.sum(out["exhausted"] & real, dtype=jnp.int32)[None]}

    spread, same = PartitionSpec("model"), PartitionSpec()
    mapped = jax.shard_map(shard, mesh=mesh, in_specs=(spread, spread, same), out_specs=spread, check_vma=False)
    return jax.jit(mapped)


def _batches(graph: Graph, shape: Shape, mesh: Mesh, key: jax.Array, count: int, chunk: int, count_only: bool) -> Any:
    """Yield (draws in the batch, outputs) until ``count`` draws are done, in batches of one shape."""
    per_draw = 5 * shape.num_nodes + shape.num_edges
    most = chunk or min(_MAX_CHUNK, rows_per_chunk(per_draw))
    batch = min(most, bucket(-(-count // mesh.size))) * mesh.size
    tables = make_tables(graph)
    sampler = _sampler(shape, mesh, count_only)
    for first in range(0, count, batch):
        real = np.arange(first, first + batch) < count
        yield int(real.sum()), sampler(item_keys(key, first, batch), real, tables)


def draw_samples(
    graph: Graph,
    config: SamplerConfig,
    seed: int,
    count: int,
    edges: str = "induced",
    *,
    mesh: Mesh | None = None,
    chunk: int = 0,
) -> Samples:
    """``count`` training sets; draw k depends on the seed and k alone.

    Args:
        graph: n nodes, E edges.
        config: the sampler.
        seed: >= 0.
        count: K >= 1.
        edges: training edges: ``induced`` (both ends in) or ``traversed`` (walked by the sampler).
        mesh: devices to spread draws over; None takes all.
        chunk: draws per device in flight; 0 chooses by memory.

    Raises:
        InputError: a bad argument, or traversed edges of a sampler that follows none.

    Example:
        >>> from jaxaudit.graph.data import csbm
        >>> draws = draw_samples(csbm(nodes=60), SamplerConfig("uniform", 0.5), seed=0, count=3)
        >>> draws.nodes.sum(axis=1).tolist()
        [30, 30, 30]
    """
    check_int("seed", seed, 0)
    check_int("count", count, 1)
    check_int("chunk", chunk, 0)
    config.check_edges(edges)
    traversed = edges == "traversed"
    quota = config.quota(graph.num_nodes)
    shape = Shape(graph.num_nodes, graph.num_edges if traversed else 0, quota, config)
    mesh = mesh or ensemble_mesh()
    parts = [
        {name: np.asarray(array)[:real] for name, array in out.items()}
        for real, out in _batches(graph, shape, mesh, stream_key(seed, "samples"), count, chunk, count_only=False)
    ]
    out = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if not traversed:
        out["edges"] = out["nodes"][:, graph.edges[0]] & out["nodes"][:, graph.edges[1]]
    return Samples(quota=quota, **out)


def estimate_priors(
    graph: Graph,
    config: SamplerConfig,
    seed: int,
    draws: int = 10_000,
    *,
    mesh: Mesh | None = None,
    chunk: int = 0,
    advance: Callable[[int], None] = lambda done: None,
) -> Priors:
    """Membership priors: quota/n for ``uniform``, ratio for ``bernoulli``, else Monte-Carlo over draws of their own.

    Args:
        graph: n nodes.
        config: the sampler.
        seed: >= 0; the stream is not the shadows'.
        draws: Monte-Carlo draws, >= 1.
        mesh: devices to spread draws over; None takes all.
        chunk: draws per device in flight; 0 chooses by memory. Counts are accumulated over chunks.
        advance: told the number of draws done after each batch.

    Example:
        >>> from jaxaudit.graph.data import csbm
        >>> estimate_priors(csbm(nodes=60), SamplerConfig("uniform", 0.5), seed=0).gamma[:2].tolist()
        [0.5, 0.5]
    """
    check_int("seed", seed, 0)
    check_int("shadow.prior_draws", draws, 1)
    n, quota = graph.num_nodes, config.quota(graph.num_nodes)
    exact = config.exact_prior(n)
    if exact is not None:
        gamma = np.full(n, exact)
        return Priors(gamma, gamma, gamma, exact=True, draws=0)
    counts, dry = np.zeros(n, np.int64), 0
    shape = Shape(n, 0, quota, config)
    mesh = mesh or ensemble_mesh()
    for real, out in _batches(graph, shape, mesh, stream_key(seed, "priors"), draws, chunk, count_only=True):
        counts += np.asarray(out["counts"]).sum(axis=0)
        dry += int(np.asarray(out["exhausted"]).sum())
        advance(real)
    lower = np.where(counts == 0, 0.0, stats.beta.ppf(0.025, np.maximum(counts, 1), draws - counts + 1))
    upper = np.where(counts == draws, 1.0, stats.beta.ppf(0.975, counts + 1, np.maximum(draws - counts, 1)))
    return Priors(counts / draws, lower, upper, exact=False, draws=draws, exhausted=dry / draws)
