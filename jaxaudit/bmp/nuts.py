"""NUTS, two ways: one (l, r) per node, and one (l, r) shared by a group of nodes or by all.

Nodes. NUTS on the two error rates, with (l, r) drawn exactly given them (``jaxaudit.bmp.node_chain``). A node whose
chains fail twice gets the next form.

Groups. With (l, r) shared, every node would bring its own pair and all pairs had to move with (l, r). They are
integrated out by the quadrature of ``jaxaudit.bmp.pooled``, once per distinct count tuple, which is
exact to rounding and leaves two dimensions: log l and log r (Jacobian l r).

Sampler: Hoffman & Gelman 2014, as implemented by BlackJAX; R-hat and ESS: Vehtari et al. 2021, the same.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.bmp.chains import (
    ChainPosterior,
    Demands,
    Report,
    Settings,
    by_group,
    collect,
    failed_diagnostics,
    summarise,
)
from jaxaudit.bmp.counts import distinct, validate
from jaxaudit.bmp.node_chain import PriorTables, node_chain, prior_tables
from jaxaudit.bmp.pooled import PooledData, pooled_data, shared_log_likelihood
from jaxaudit.runtime.checks import check_choice, check_int, check_real
from jaxaudit.runtime.keys import item_keys, stream_key

__all__ = ["NutsPosterior", "node_nuts", "pooled_nuts"]

_BLOCK, _DOUBLINGS = 32, 6


@dataclass(frozen=True)
class NutsPosterior:
    """Draws of the shared r and l with their diagnostics.

    Attributes:
        r: (chains, draws) float32.
        l: (chains, draws) float32.
        rhat: rank-normalised split R-hat of "r" and "l".
        ess_bulk: effective sample sizes of the bulk.
        ess_tail: effective sample sizes of the 5 % and 95 % tails.
        divergences: number of divergent transitions after warm-up.
        nodes: number of nodes with data on both sides.
        warnings: one sentence for each diagnostic that fails (R-hat > 1.01, bulk ESS < 400, divergences > 0).
    """

    r: np.ndarray
    l: np.ndarray
    rhat: dict[str, float]
    ess_bulk: dict[str, float]
    ess_tail: dict[str, float]
    divergences: int
    nodes: int
    warnings: tuple[str, ...]

    def quantile(self, name: str, q: float) -> float:
        """Quantile of the draws of ``name`` ("r" or "l") at level ``q`` in [0, 1].

        Raises:
            InputError: another name, or a level out of range.
        """
        check_choice("name", name, ("r", "l"))
        check_real("q", q, 0, 1)
        return float(np.quantile(self.r if name == "r" else self.l, q))


def _chain(key: jax.Array, start: jax.Array, target: Any, warmup: int, draws: int, thin: int, acceptance: Any) -> Any:
    """One chain, warm-up included: what ``target`` returns beside the log density, divergences, mean acceptance.

    ``target`` maps a position to (log density, anything to keep); every ``thin``-th draw is kept.
    """
    import blackjax  # here: importing blackjax 1.7 starts the backend, and the device count is then fixed

    def log_density(position: jax.Array) -> jax.Array:
        return target(position)[0]

    warmup_key, draw_key = jax.random.split(key)
    # At most 63 steps a transition: chains in one block wait for the longest; the geometry needs 5 to 20.
    adaptation = blackjax.window_adaptation(
        blackjax.nuts, log_density, target_acceptance_rate=acceptance, max_num_doublings=_DOUBLINGS
    )
    (state, parameters), _ = adaptation.run(warmup_key, start, num_steps=warmup)
    kernel = blackjax.nuts(log_density, **parameters).step

    def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
        state, info = kernel(key, state)
        return state, (info.is_divergent, info.acceptance_rate)

    def kept(state: Any, key: jax.Array) -> tuple[Any, Any]:
        state, (divergent, rate) = jax.lax.scan(step, state, jax.random.split(key, thin))
        return state, (target(state.position)[1], divergent.sum(), rate.mean())

    _, (values, divergent, rate) = jax.lax.scan(kept, state, jax.random.split(draw_key, draws))
    return values, divergent.sum(), rate.mean()


def _shared_target(position: jax.Array, data: PooledData, scale2: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    l, r = jnp.exp(position)
    density = shared_log_likelihood(l, r, data) - (l**2 + r**2) / (2 * scale2) + position.sum()
    return density, {"r": r, "l": l}


@partial(jax.jit, static_argnames=("settings", "keep"))
def _run_nodes(key: jax.Array, counts: jax.Array, tables: PriorTables, settings: Settings, keep: bool) -> Report:
    """All chains of a block of count tuples (block, 4)."""

    def problem(counts: jax.Array) -> Report:
        # The tuple is the item: a node's draws depend on its counts and the seed, not on the other nodes.
        own = key
        for count in counts.astype(jnp.uint32):
            own = jax.random.fold_in(own, count)

        chain = partial(node_chain, counts=counts, tables=tables, lengths=_lengths(settings))
        values, divergent, rate = jax.vmap(chain)(item_keys(own, 0, settings.chains))
        return summarise(values, divergent, rate, keep)

    return jax.vmap(problem)(counts)


@partial(jax.jit, static_argnames=("settings", "keep"))
def _run_groups(
    key: jax.Array, labels: jax.Array, data: PooledData, scale2: jax.Array, settings: Settings, keep: bool
) -> Report:
    """All chains of some groups, one group after the other: a likelihood of a group fills the machine by itself."""

    def problem(item: tuple[jax.Array, PooledData]) -> Report:
        label, data = item
        target = partial(_shared_target, data=data, scale2=scale2)

        def chain(key: jax.Array) -> Any:
            start_key, run_key = jax.random.split(key)
            start = jax.random.uniform(start_key, (2,), minval=-1.0, maxval=1.0)
            warmup, draws, thin, acceptance = _lengths(settings)
            return _chain(run_key, start, target, 3 * warmup, draws, thin, acceptance)  # the scales are learned too

        keys = item_keys(jax.random.fold_in(key, label), 0, settings.chains)
        values, divergent, rate = jax.vmap(chain)(keys)
        return summarise(values, divergent, rate, keep)

    return jax.lax.map(problem, (labels, data))


def _lengths(settings: Settings) -> tuple[int, int, int, float]:
    """Warm-up, draws, thinning and target acceptance of an attempt: reruns are longer, with smaller steps."""
    return settings.warmup * settings.factor, settings.draws, settings.factor, (0.8, 0.9, 0.97)[settings.attempt]


def _group_data(rows: np.ndarray, problem: np.ndarray, groups: int) -> PooledData:
    """The quadrature data of every group, padded to one shape: leaves (groups, ...), float32."""
    usable = (rows[:, 1] > 0) & (rows[:, 3] > 0)
    # One rule for all groups, fine enough for the largest counts.
    whole, _ = pooled_data(rows[(problem >= 0) & usable], np.float32)
    parts = [pooled_data(rows[(problem == g) & usable], np.float32)[0] for g in range(groups)]
    flat = [(p.powers.reshape(-1, 4), p.constants.ravel(), p.times.ravel()) for p in parts]
    chunk = min(whole.powers.shape[1], max(len(times) for *_, times in flat))
    size = -(-max(len(times) for *_, times in flat) // chunk) * chunk
    padded = [[np.pad(x, [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1)) for x in arrays] for arrays in flat]
    powers, constants, times = (np.stack(column) for column in zip(*padded, strict=True))
    shape = (groups, size // chunk, chunk)
    u, log_w = (np.broadcast_to(x, (groups, x.size)) for x in (whole.u, whole.log_w))
    return PooledData(powers.reshape(*shape, 4), constants.reshape(shape), times.reshape(shape), u, log_w)


def _as_groups(counts: np.ndarray) -> tuple[np.ndarray, PooledData]:
    """A block of tuples as groups of one node, labelled by the tuple."""
    rows = counts.astype(np.int64)
    labels = np.array([zlib.crc32(row.tobytes()) for row in rows], np.uint32)
    return labels, _group_data(rows, np.arange(len(rows)), len(rows))


def node_nuts(
    fp: Any,
    n_out: Any,
    fn: Any,
    n_in: Any,
    prior_scale2: float = 10.0,
    *,
    groups: Any = None,
    seed: int = 0,
    chains: int = 4,
    warmup: int = 100,
    draws: int = 1000,
    demands: Demands = Demands(),  # noqa: B008 (frozen)
    keep_draws: bool = False,
) -> ChainPosterior:
    """Posterior of one (l, r) per node, or per group of nodes, by NUTS.

    Equal count tuples run once. A problem fails when an R-hat or an effective sample size misses ``demands``,
    or a transition diverges; it runs again with twice, then four times the warm-up and
    the transitions per kept draw, at target acceptance .9 and .97. What then fails (divergences: more than one in
    a thousand) gives NaN and a warning. Memory: some MiB per block of 32 tuples.

    Args:
        fp: false positives, whole numbers in [0, n_out], scalar or (n,).
        n_out: non-member trials.
        fn: false negatives, in [0, n_in].
        n_in: member trials.
        prior_scale2: squared scale of the half-normal priors, in [0.01, 10_000].
        groups: (n,) integer labels: nodes of one label share (l, r), by the product of their marginal likelihoods;
            negative: in no group. None: every node by itself.
        seed: seed of the chains, >= 0.
        chains: number of chains, >= 2.
        warmup: adaptation steps per chain, >= 20; groups, whose scales must be learned too, take three times as many.
        draws: kept draws per chain, >= 4.
        demands: R-hat, effective sample sizes and number of reruns.
        keep_draws: keep all draws (8 bytes per draw and problem).

    Returns:
        ChainPosterior; look at ``warnings`` first.

    Raises:
        InputError: counts or settings that break a rule, or no node with data on both sides.

    Example:
        >>> few = Demands(rhat=1.1, ess=20, reruns=0)
        >>> post = node_nuts([10, 0], [100, 9], [10, 0], [100, 0], chains=2, warmup=100, draws=500, demands=few)
        >>> post.quantile("r", 0.5).round(0).tolist()
        [4.0, nan]
    """
    rows = validate(fp, n_out, fn, n_in)
    scale2 = np.float32(check_real("prior_scale2", prior_scale2, 0.01, 10_000))
    settings = Settings(chains, warmup, draws)
    key = stream_key(check_int("seed", seed, 0), "node_nuts")
    unique, problem = distinct(rows)
    data: Any = unique.astype(np.float32)
    tables = prior_tables(float(scale2))
    if groups is not None:
        labels, problem = by_group(groups, problem >= 0)
        data = (labels.astype(np.uint32), _group_data(rows, problem, len(labels))) if len(labels) else labels

    def run(part: Any, settings: Settings) -> Report:
        own = jax.random.fold_in(key, settings.attempt)
        if groups is None and settings.attempt < 2:
            return _run_nodes(own, part, tables, settings, keep_draws)
        if groups is None:
            # A form of another kind, in case the first one is what fails.
            part = _as_groups(part)
        return _run_groups(own, *part, scale2, settings, keep_draws)

    return collect(
        run,
        data,
        problem,
        settings,
        engine="nuts",
        names=("r", "l"),
        block=_BLOCK if groups is None else 1,
        demands=demands,
    )


@partial(jax.jit, static_argnames=("warmup", "draws"))
def _run_chains(keys: jax.Array, data: PooledData, scale2: jax.Array, warmup: int, draws: int) -> Any:
    """Draws (chains, draws) of r and l, and divergences (chains,)."""

    def run(key: jax.Array) -> Any:
        start_key, run_key = jax.random.split(key)
        start = jax.random.uniform(start_key, (2,), minval=-1.0, maxval=1.0)
        target = partial(_shared_target, data=data, scale2=scale2)
        return _chain(run_key, start, target, warmup, draws, 1, 0.9)[:2]

    return jax.vmap(run)(keys)


def pooled_nuts(
    fp: Any,
    n_out: Any,
    fn: Any,
    n_in: Any,
    prior_scale2: float = 10.0,
    *,
    seed: int = 0,
    chains: int = 4,
    warmup: int = 500,
    draws: int = 1000,
) -> NutsPosterior:
    """Draws from the posterior of one (l, r) shared by all nodes.

    Args:
        fp: false positives, whole numbers in [0, n_out], scalar or (n,); nodes without data on a side are left out.
        n_out: non-member trials.
        fn: false negatives, in [0, n_in].
        n_in: member trials.
        prior_scale2: squared scale of the half-normal priors, in [0.01, 10_000].
        seed: seed of the chains, >= 0.
        chains: number of chains, >= 2 (R-hat needs two).
        warmup: adaptation steps per chain, >= 20.
        draws: kept draws per chain, >= 4.

    Returns:
        NutsPosterior; look at ``warnings`` first.

    Raises:
        InputError: counts or settings that break a rule.

    Example:
        >>> post = pooled_nuts(10, 100, 10, 100, chains=2, warmup=50, draws=50)
        >>> post.r.shape, bool(post.quantile("r", 0.5) > 1)
        ((2, 50), True)
    """
    import blackjax

    rows = validate(fp, n_out, fn, n_in)
    scale2 = check_real("prior_scale2", prior_scale2, 0.01, 10_000)
    check_int("seed", seed, 0)
    check_int("chains", chains, 2)
    check_int("warmup", warmup, 20)
    check_int("draws", draws, 4)
    data, nodes = pooled_data(rows, np.float32)
    keys = item_keys(stream_key(seed, "pooled_nuts"), 0, chains)
    samples, divergent = _run_chains(keys, data, np.float32(scale2), warmup, draws)
    rhat = {name: float(blackjax.rhat(x)) for name, x in samples.items()}
    bulk = {name: float(blackjax.ess_bulk(x)) for name, x in samples.items()}
    tail = {name: float(blackjax.ess_tail(x)) for name, x in samples.items()}
    divergences = int(divergent.sum())
    r, l = np.asarray(samples["r"]), np.asarray(samples["l"])
    return NutsPosterior(
        r, l, rhat, bulk, tail, divergences, nodes, failed_diagnostics("NUTS", rhat, bulk, divergences)
    )
