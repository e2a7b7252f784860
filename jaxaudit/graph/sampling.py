"""Training-set samplers, their draws and their membership priors.

``uniform`` takes int(ratio·n) nodes at random. ``snowball`` grows from seeds along edges (Khosla,
arXiv:2601.17130): 10 uniform seeds per class, a FIFO frontier, and from each popped node the first 3 of its
shuffled neighbours, unseen ones joining until the quota. Shadow models and Monte-Carlo priors use
the same function of a draw's key, so a draw never depends on chunk size, device count or purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from scipy import stats

from jaxaudit.graph.data import Graph
from jaxaudit.runtime.checks import check_choice, check_int, check_real, require
from jaxaudit.runtime.chunks import bucket, rows_per_chunk
from jaxaudit.runtime.devices import ensemble_mesh
from jaxaudit.runtime.keys import item_keys, stream_key

__all__ = ["Priors", "SamplerConfig", "Samples", "draw_samples", "estimate_priors"]

SAMPLERS = ("snowball", "uniform")
_MAX_CHUNK = 512


@dataclass(frozen=True)
class SamplerConfig:
    """How training nodes are drawn.

    Attributes:
        name: ``snowball`` or ``uniform``.
        ratio: share of the nodes in (0, 1); the quota is int(ratio·n).
        on_exhausted: what a snowball does when its frontier is empty before the quota: ``stop``, or
            ``reseed`` with a uniformly random node not yet in.
        seeds_per_class: snowball's start, one node of each class in turn; a smaller class gives all its nodes.
        fanout: neighbours taken from a popped node.
    """

    name: str = "snowball"
    ratio: float = 0.1
    on_exhausted: str = "stop"
    seeds_per_class: int = 10
    fanout: int = 3

    def __post_init__(self) -> None:
        check_choice("sampler", self.name, SAMPLERS)
        check_real("sampler.ratio", self.ratio, 0, 1, open_low=True, open_high=True)
        check_choice("sampler.on_exhausted", self.on_exhausted, ("stop", "reseed"))
        check_int("sampler.seeds_per_class", self.seeds_per_class, 1, 1000)
        check_int("sampler.fanout", self.fanout, 1, 1000)

    def quota(self, num_nodes: int) -> int:
        """int(ratio·n), at least 1 by check.

        Example:
            >>> SamplerConfig(ratio=0.5).quota(11)
            5
        """
        quota = int(self.ratio * num_nodes)
        require(quota >= 1, "sampler.ratio", f"select at least 1 of {num_nodes} nodes", self.ratio)
        return quota


@dataclass(frozen=True, eq=False)
class Samples:
    """K draws.

    Attributes:
        nodes: (K, n) bool membership.
        edges: (K, E) bool edges that training may use.
        sizes: (K,) int32 realised number of nodes.
        exhausted: (K,) bool, the frontier ran dry before the quota.
        reseeds: (K,) int32 nodes added because it did (0 under ``stop``).
        quota: the size asked for.
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


class _Tables(NamedTuple):
    """What the sampler reads of a graph: CSR neighbours, edge numbers, and nodes grouped by class."""

    starts: jax.Array  # (n + 1,)
    neighbours: jax.Array  # (2E,) at least 1
    edge: jax.Array  # (2E,)
    class_starts: jax.Array  # (C + 1,)
    by_class: jax.Array  # (n,)


class _State(NamedTuple):
    """A batch of B growing samples."""

    step: jax.Array  # ()
    member: jax.Array  # (B, n) bool
    queue: jax.Array  # (B, quota) int32, the first ``size`` entries are the nodes in order of arrival
    head: jax.Array  # (B,) next queue position to pop
    size: jax.Array  # (B,)
    reseeds: jax.Array  # (B,)
    edges: jax.Array  # (B, E) bool traversed; (B, 0) where not asked for


class _Shape(NamedTuple):
    """Static part of the sampler: what decides array shapes and control flow."""

    num_nodes: int
    num_edges: int  # 0: do not record traversed edges
    quota: int
    config: SamplerConfig


def _tables(graph: Graph) -> _Tables:
    ends = np.concatenate([graph.edges, graph.edges[::-1]], axis=1)
    number = np.tile(np.arange(graph.num_edges), 2)
    order = np.lexsort((ends[1], ends[0]))
    starts = np.concatenate([[0], np.cumsum(graph.degree)])
    by_class = np.argsort(graph.labels, kind="stable")
    class_starts = np.searchsorted(graph.labels[by_class], np.arange(graph.num_classes + 1))
    filler = [0] if graph.num_edges == 0 else []  # a gather needs one entry
    parts = (starts, np.append(ends[1][order], filler), np.append(number[order], filler), class_starts, by_class)
    return _Tables(*(jnp.asarray(part.astype(np.int32)) for part in parts))


def _distinct(uniforms: jax.Array, size: jax.Array) -> jax.Array:
    """The first k entries of a random permutation of 0 .. size-1; entries at or beyond ``size`` are meaningless.

    The j-th pick is a uniform rank r among the size - j positions still free; the r-th free position is
    r + #{i: s_i - i <= r} for the sorted picks s (derived: s_i - i free positions lie below s_i).

    Args:
        uniforms: (k,) float32 in [0, 1).
        size: () int32.
    """
    k = uniforms.shape[0]
    places = jnp.arange(k)
    far = jnp.iinfo(jnp.int32).max

    def pick(taken: jax.Array, item: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        j, u = item
        left = jnp.maximum(size - j, 1)
        rank = jnp.minimum((u * left).astype(jnp.int32), left - 1)
        value = rank + jnp.sum((taken < far) & (taken - places <= rank), dtype=jnp.int32)
        shifted = jnp.concatenate([taken[:1], taken[:-1]])
        above = taken > value
        insert = above & ~jnp.concatenate([jnp.zeros(1, bool), above[:-1]])
        return jnp.where(insert, value, jnp.where(above, shifted, taken)), value

    return jax.lax.scan(pick, jnp.full(k, far, jnp.int32), (places, uniforms), unroll=k if k <= 4 else 1)[1]


def _seeds(key: jax.Array, tables: _Tables, config: SamplerConfig) -> tuple[jax.Array, jax.Array]:
    """Seed nodes in order of arrival and which of them exist; both (seeds_per_class * classes,)."""
    sizes = jnp.diff(tables.class_starts)
    uniforms = jax.random.uniform(key, (sizes.shape[0], config.seeds_per_class))
    places = jax.vmap(_distinct)(uniforms, sizes)
    exists = jnp.arange(config.seeds_per_class) < sizes[:, None]
    nodes = tables.by_class[jnp.where(exists, tables.class_starts[:-1, None] + places, 0)]
    return nodes.T.ravel(), exists.T.ravel()  # one of each class in turn: a small quota cuts all classes alike


def _admit(state: _State, shape: _Shape, nodes: jax.Array, usable: jax.Array) -> tuple[_State, jax.Array]:
    """Append to each sample those of its (B, k) distinct candidates that are unseen, until the quota."""
    batch = jnp.arange(nodes.shape[0])[:, None]
    fresh = usable & ~state.member[batch, nodes]
    place = state.size[:, None] + jnp.cumsum(fresh, axis=1) - fresh
    fresh &= place < shape.quota
    member = state.member.at[batch, jnp.where(fresh, nodes, shape.num_nodes)].set(True, mode="drop")
    queue = state.queue.at[batch, jnp.where(fresh, place, shape.quota)].set(nodes, mode="drop")
    return state._replace(member=member, queue=queue, size=state.size + fresh.sum(axis=1, dtype=jnp.int32)), fresh


def _growing(state: _State, shape: _Shape) -> jax.Array:
    """(B,) bool: below the quota, with a frontier or the right to reseed."""
    more = state.size < shape.quota
    return more if shape.config.on_exhausted == "reseed" else more & (state.head < state.size)


def _grow(state: _State, shape: _Shape, tables: _Tables, keys: jax.Array) -> _State:
    """Pop one node of every growing sample (or, its frontier being empty, propose a reseed)."""
    active = _growing(state, shape)
    frontier = state.head < state.size
    batch = jnp.arange(active.shape[0])
    fanout = shape.config.fanout
    step_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, state.step)
    uniforms = jax.vmap(lambda key: jax.random.uniform(key, (fanout,)))(step_keys)
    popped = state.queue[batch, jnp.minimum(state.head, shape.quota - 1)]
    start = tables.starts[popped]
    degree = tables.starts[popped + 1] - start
    usable = (active & frontier)[:, None] & (jnp.arange(fanout) < degree[:, None])
    entry = jnp.where(usable, start[:, None] + jax.vmap(_distinct)(uniforms, degree), 0)
    nodes = tables.neighbours[entry]
    if shape.config.on_exhausted == "reseed":
        # A uniform node until an unseen one comes up is a uniform unseen node: no permutation to carry.
        propose = active & ~frontier
        random_node = jnp.minimum((uniforms[:, 0] * shape.num_nodes).astype(jnp.int32), shape.num_nodes - 1)
        nodes = nodes.at[:, 0].set(jnp.where(propose, random_node, nodes[:, 0]))
        state, fresh = _admit(state, shape, nodes, usable.at[:, 0].max(propose))
        state = state._replace(reseeds=state.reseeds + (propose & fresh[:, 0]))
    else:
        state, _ = _admit(state, shape, nodes, usable)
    if shape.num_edges:
        walked = usable & state.member[batch[:, None], nodes]  # at the quota, no edge to a node that is not in
        number = jnp.where(walked, tables.edge[entry], shape.num_edges)
        state = state._replace(edges=state.edges.at[batch[:, None], number].set(True, mode="drop"))
    return state._replace(step=state.step + 1, head=state.head + (active & frontier))


def _snowball(keys: jax.Array, tables: _Tables, shape: _Shape) -> dict[str, jax.Array]:
    """B snowballs in one loop. The loop's condition is a scalar, so that no (B, n) array is copied per step."""
    size = keys.shape[0]
    zeros = jnp.zeros(size, jnp.int32)
    state = _State(
        jnp.int32(1), jnp.zeros((size, shape.num_nodes), bool), jnp.zeros((size, shape.quota), jnp.int32),
        zeros, zeros, zeros, jnp.zeros((size, shape.num_edges), bool),
    )  # fmt: skip
    seed_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, 0)
    nodes, exists = jax.vmap(lambda key: _seeds(key, tables, shape.config))(seed_keys)
    state, _ = _admit(state, shape, nodes, exists)
    state = jax.lax.while_loop(
        lambda state: _growing(state, shape).any(), lambda state: _grow(state, shape, tables, keys), state
    )
    dry = (state.size < shape.quota) | (state.reseeds > 0)
    return {
        "nodes": state.member, "edges": state.edges, "sizes": state.size, "exhausted": dry, "reseeds": state.reseeds,
    }  # fmt: skip


def _uniform(keys: jax.Array, tables: _Tables, shape: _Shape) -> dict[str, jax.Array]:
    """B uniform draws: the first ``quota`` entries of a random permutation each."""
    n = shape.num_nodes

    def draw(key: jax.Array) -> jax.Array:
        return jnp.zeros(n, bool).at[jax.random.permutation(key, n)[: shape.quota]].set(True)

    size = keys.shape[0]
    zeros = jnp.zeros(size, jnp.int32)
    return {
        "nodes": jax.vmap(draw)(keys), "edges": jnp.zeros((size, 0), bool), "sizes": zeros + shape.quota,
        "exhausted": jnp.zeros(size, bool), "reseeds": zeros,
    }  # fmt: skip


@lru_cache(maxsize=32)
def _sampler(shape: _Shape, mesh: Mesh, count_only: bool) -> Callable[..., dict[str, jax.Array]]:
    """The compiled sampler of a batch, its draws spread over the mesh."""
    draw = _snowball if shape.config.name == "snowball" else _uniform

    def shard(keys: jax.Array, real: jax.Array, tables: _Tables) -> dict[str, jax.Array]:
        out = draw(keys, tables, shape)
        if not count_only:
            return out
        counts = jnp.sum(out["nodes"] & real[:, None], axis=0, dtype=jnp.int32)
        return {"counts": counts[None], "exhausted": jnp.sum(out["exhausted"] & real, dtype=jnp.int32)[None]}

    spread, same = PartitionSpec("model"), PartitionSpec()
    mapped = jax.shard_map(shard, mesh=mesh, in_specs=(spread, spread, same), out_specs=spread, check_vma=False)
    return jax.jit(mapped)


def _batches(graph: Graph, shape: _Shape, mesh: Mesh, key: jax.Array, count: int, chunk: int, count_only: bool) -> Any:
    """Yield (draws in the batch, outputs) until ``count`` draws are done, in batches of one shape."""
    per_draw = 5 * shape.num_nodes + shape.num_edges
    most = chunk or min(_MAX_CHUNK, rows_per_chunk(per_draw))
    batch = min(most, bucket(-(-count // mesh.size))) * mesh.size
    tables = _tables(graph)
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
        edges: training edges: ``induced`` (both ends in) or ``traversed`` (walked by the snowball).
        mesh: devices to spread draws over; None takes all.
        chunk: draws per device in flight; 0 chooses by memory.

    Raises:
        InputError: a bad argument, or traversed edges of a uniform sample.

    Example:
        >>> from jaxaudit.graph.data import csbm
        >>> draws = draw_samples(csbm(nodes=60), SamplerConfig("uniform", 0.5), seed=0, count=3)
        >>> draws.nodes.sum(axis=1).tolist()
        [30, 30, 30]
    """
    check_int("seed", seed, 0)
    check_int("count", count, 1)
    check_int("chunk", chunk, 0)
    check_choice("edges.train", edges, ("induced", "traversed"))
    traversed = edges == "traversed"
    rule = "be induced with sampler=uniform, which traverses no edges"
    require(not (traversed and config.name == "uniform"), "edges.train", rule, edges)
    quota = config.quota(graph.num_nodes)
    shape = _Shape(graph.num_nodes, graph.num_edges if traversed else 0, quota, config)
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
    """Membership priors: quota/n exactly for ``uniform``, else Monte-Carlo over draws of their own.

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
    if config.name == "uniform":
        gamma = np.full(n, quota / n)
        return Priors(gamma, gamma, gamma, exact=True, draws=0)
    counts, dry = np.zeros(n, np.int64), 0
    shape = _Shape(n, 0, quota, config)
    mesh = mesh or ensemble_mesh()
    for real, out in _batches(graph, shape, mesh, stream_key(seed, "priors"), draws, chunk, count_only=True):
        counts += np.asarray(out["counts"]).sum(axis=0)
        dry += int(np.asarray(out["exhausted"]).sum())
        advance(real)
    lower = np.where(counts == 0, 0.0, stats.beta.ppf(0.025, np.maximum(counts, 1), draws - counts + 1))
    upper = np.where(counts == draws, 1.0, stats.beta.ppf(0.975, counts + 1, np.maximum(draws - counts, 1)))
    return Priors(counts / draws, lower, upper, exact=False, draws=draws, exhausted=dry / draws)
