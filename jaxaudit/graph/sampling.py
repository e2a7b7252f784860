"""Draws of training sets, and the membership priors of a sampler.

``uniform`` takes int(ratio·n) nodes at random, ``bernoulli`` each node by itself, ``degree`` prefers hubs,
``random_walk`` follows walks with restart, and ``snowball`` grows from seeds along edges (Khosla, arXiv:2601.17130):
10 uniform seeds per class, a FIFO frontier, and from each popped node the first 3 of its shuffled neighbours, unseen
ones joining until the quota. ``custom`` is a function of the user's own. Shadow models and Monte-Carlo priors use the
same function of a draw's key, so a draw never depends on chunk size, device count or purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from scipy import stats

from jaxaudit.graph.data import Graph
from jaxaudit.graph.samplers import KERNELS, SamplerConfig, Shape, Tables, as_sampler, make_tables
from jaxaudit.graph.samplers.custom import exact_inclusion, host_draws
from jaxaudit.graph.samplers.tables import outcome
from jaxaudit.runtime.checks import check_int, require
from jaxaudit.runtime.chunks import bucket, rows_per_chunk
from jaxaudit.runtime.devices import ensemble_mesh
from jaxaudit.runtime.keys import item_keys, stream_key
from jaxaudit.runtime.store import Store, digest

__all__ = [
    "Priors", "SamplerConfig", "Samples", "as_sampler", "draw_samples", "estimate_priors", "stored_priors",
    "stored_samples",
]  # fmt: skip

_MAX_CHUNK = 512
_HOST_CHUNK = 256  # draws between two reports of progress


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
        quota: the size asked for; about the expected one of ``bernoulli``, and the first draw's of ``custom``
            (not a mean, so that it does not depend on how many there are).
    """

    nodes: np.ndarray
    edges: np.ndarray
    sizes: np.ndarray
    exhausted: np.ndarray
    reseeds: np.ndarray
    quota: int

    def part(self, draws: slice) -> Samples:
        """Some of the draws."""
        return Samples(
            self.nodes[draws], self.edges[draws], self.sizes[draws], self.exhausted[draws], self.reseeds[draws],
            self.quota,
        )  # fmt: skip


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

    @property
    def usable(self) -> np.ndarray:
        """gamma, with a Monte-Carlo estimate of 0 or 1 replaced by the other end of its interval.

        No draw in 10,000 does not make a probability 0; its odds would be infinite for want of draws.
        """
        if self.exact:
            return self.gamma
        return np.where(self.gamma <= 0, self.upper, np.where(self.gamma >= 1, self.lower, self.gamma))


@lru_cache(maxsize=32)
def _sampler(shape: Shape, mesh: Mesh, count_only: bool) -> Callable[..., dict[str, jax.Array]]:
    """The compiled sampler of a batch, its draws spread over the mesh."""
    draw = KERNELS[shape.config.name]

    def shard(keys: jax.Array, odd: jax.Array, real: jax.Array, tables: Tables) -> dict[str, jax.Array]:
        out = draw(keys, tables, shape)
        if shape.config.paired:
            out = outcome(out["nodes"] ^ odd[:, None])
        if not count_only:
            return out
        counts = jnp.sum(out["nodes"] & real[:, None], axis=0, dtype=jnp.int32)
        return {"counts": counts[None], "exhausted": jnp.sum(out["exhausted"] & real, dtype=jnp.int32)[None]}

    spread, same = PartitionSpec("model"), PartitionSpec()
    mapped = jax.shard_map(
        shard, mesh=mesh, in_specs=(spread, spread, spread, same), out_specs=spread, check_vma=False
    )  # fmt: skip
    return jax.jit(mapped)


def _batches(
    graph: Graph, shape: Shape, mesh: Mesh, seed: int, stream: str, count: int, chunk: int, count_only: bool
) -> Any:
    """Yield (draws in the batch, outputs) until ``count`` draws are done, in batches of one shape."""
    if shape.config.user is not None:
        yield from _host_batches(graph, shape, seed, stream, count, chunk, count_only)
        return
    per_draw = 5 * shape.num_nodes + shape.num_edges
    most = chunk or min(_MAX_CHUNK, rows_per_chunk(per_draw))
    batch = min(most, bucket(-(-count // mesh.size))) * mesh.size
    tables, key = make_tables(graph), stream_key(seed, stream)
    sampler = _sampler(shape, mesh, count_only)
    for first in range(0, count, batch):
        draws = np.arange(first, first + batch)
        own = draws // 2 if shape.config.paired else draws  # the two of a pair share a key
        keys = item_keys(key, own[0], own[-1] - own[0] + 1)[own - own[0]]
        real = draws < count
        yield int(real.sum()), sampler(keys, draws % 2 == 1, real, tables)


def _host_batches(graph: Graph, shape: Shape, seed: int, stream: str, count: int, chunk: int, count_only: bool) -> Any:
    """The same of a user's sampler, one draw after another on the host."""
    assert shape.config.user is not None
    traversed = shape.num_edges > 0
    draws = host_draws(shape.config.user, graph, seed, stream, count, traversed)
    while part := list(islice(draws, chunk or _HOST_CHUNK)):
        nodes = np.stack([nodes for nodes, _ in part])
        zeros = np.zeros(len(part), np.int32)
        out = {"exhausted": zeros > 0, "counts": nodes.sum(axis=0, dtype=np.int32)[None]} if count_only else {
            "nodes": nodes, "edges": np.stack([edges for _, edges in part]),
            "sizes": nodes.sum(axis=1, dtype=np.int32), "exhausted": zeros > 0, "reseeds": zeros,
        }  # fmt: skip
        yield len(part), out


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
        InputError: a bad argument, traversed edges of a sampler that follows none, or code of the user's that breaks a
            rule of ``jaxaudit.graph.samplers.custom``.

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
        for real, out in _batches(graph, shape, mesh, seed, "samples", count, chunk, count_only=False)
    ]
    out = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if not traversed:
        out["edges"] = out["nodes"][:, graph.edges[0]] & out["nodes"][:, graph.edges[1]]
    if config.user is not None:
        require(bool(out["sizes"].any()), "sampler.path", "draw nodes", f"none in {count} draws of {config.user.name}")
        quota = max(1, int(out["sizes"][0]))
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
    """Membership priors: exact for ``uniform``, ``bernoulli`` and a ``custom`` one with a prior of its own, else
    Monte-Carlo over draws of their own stream.

    Args:
        graph: n nodes.
        config: the sampler.
        seed: >= 0; the stream is not the shadows'.
        draws: Monte-Carlo draws, >= 1.
        mesh: devices to spread draws over; None takes all.
        chunk: draws per device in flight; 0 chooses by memory. Counts are accumulated over chunks.
        advance: told the number of draws done after each batch.

    Raises:
        InputError: a bad argument, or code of the user's that breaks a rule, such as a prior that its draws refute.

    Example:
        >>> from jaxaudit.graph.data import csbm
        >>> estimate_priors(csbm(nodes=60), SamplerConfig("uniform", 0.5), seed=0).gamma[:2].tolist()
        [0.5, 0.5]
    """
    check_int("seed", seed, 0)
    check_int("shadow.prior_draws", draws, 1)
    n, quota = graph.num_nodes, config.quota(graph.num_nodes)
    if config.exact:
        user = config.user
        gamma = np.full(n, config.exact_prior(n)) if user is None else exact_inclusion(user, graph, seed)
        return Priors(gamma, gamma, gamma, exact=True, draws=0)
    counts, dry = np.zeros(n, np.int64), 0
    shape = Shape(n, 0, quota, config)
    mesh = mesh or ensemble_mesh()
    for real, out in _batches(graph, shape, mesh, seed, "priors", draws, chunk, count_only=True):
        counts += np.asarray(out["counts"]).sum(axis=0)
        dry += int(np.asarray(out["exhausted"]).sum())
        advance(real)
    lower = np.where(counts == 0, 0.0, stats.beta.ppf(0.025, np.maximum(counts, 1), draws - counts + 1))
    upper = np.where(counts == draws, 1.0, stats.beta.ppf(0.975, counts + 1, np.maximum(draws - counts, 1)))
    return Priors(counts / draws, lower, upper, exact=False, draws=draws, exhausted=dry / draws)


def _identity(graph: Graph, config: SamplerConfig, seed: int) -> dict[str, Any]:
    return {"data": graph.digest(), "sampler": config.settings(), "seed": seed}


def stored_samples(
    store: Store, graph: Graph, config: SamplerConfig, seed: int, count: int, edges: str = "induced"
) -> Samples:
    """``draw_samples`` through a store; a sampler without an identity is drawn anew."""

    def draw() -> dict[str, Any]:
        return vars(draw_samples(graph, config, seed, count, edges))

    store = store if config.storable else Store(None)
    drawn = store.cached("samples", digest(_identity(graph, config, seed), edges, count), draw)
    return Samples(**{**drawn, "quota": int(drawn["quota"])})  # type: ignore[arg-type]  # arrays but for the quota


def stored_priors(
    store: Store,
    graph: Graph,
    config: SamplerConfig,
    seed: int,
    draws: int = 10_000,
    advance: Callable[[int], None] = lambda done: None,
) -> Priors:
    """``estimate_priors`` through a store; a sampler without an identity is drawn anew."""

    def estimate() -> dict[str, Any]:
        return vars(estimate_priors(graph, config, seed, draws, advance=advance))

    store = store if config.storable else Store(None)
    found: dict[str, Any] = store.cached("priors", digest(_identity(graph, config, seed), draws), estimate)
    scalars = {"exact": bool(found["exact"]), "draws": int(found["draws"]), "exhausted": float(found["exhausted"])}
    return Priors(**{**found, **scalars})
