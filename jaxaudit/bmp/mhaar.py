"""MHAAR: the sampler of the papers, Metropolis-Hastings with averaged acceptance ratios.

State: log l, log r, with attack strength also s, and one (alpha, beta) per count pair. A move proposes new parameters,
surrounds every pair with K - 1 uniform draws on [0,1]^2 and accepts with probability
    prior ratio x (l' r')/(l r) x product over pairs of  sum_k w'_k / sum_k w_k,   w = likelihood 1[in region] / area,
the same K particles above and below; then every pair is drawn anew from its particles by their weights under the
parameters now in force. With strength s ~ U(0,1) the attack lies outside what a learner of (s l, s r) admits: the
region is R(l, r) without R(sl, sr), the area the difference, and s has a move of its own.

Sampler: Yildirim et al., arXiv:2504.16683 (there symmetric, l = r, with one joint proposal); MHAAR: Andrieu et al.
2020; asymmetric (l, r): Yildirim & Khosla, arXiv:2606.04069. Deviation: the step sizes adapt during warm-up, towards
acceptance .3 (Robbins-Monro), and are then frozen.

The weights are noisy at large counts (of K uniform draws few hit the likelihood), so this mixes far more slowly than
``jaxaudit.bmp.nuts``; it is kept because it is the papers', and as a check that shares no formula with the others.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.bmp.chains import ChainPosterior, Demands, Report, Settings, by_group, collect, summarise
from jaxaudit.bmp.counts import distinct, validate
from jaxaudit.bmp.region import contains, tightest
from jaxaudit.runtime.checks import check_int, check_real, require
from jaxaudit.runtime.chunks import chunked_map, rows_per_chunk
from jaxaudit.runtime.keys import item_keys, stream_key

__all__ = ["log_ring_area", "mhaar"]

_BLOCK, _ACCEPT = 8, 0.3


class _Pairs(NamedTuple):
    """Counts of one problem: (pairs, 4) float32, and a mask (pairs,) bool that is False for padding."""

    counts: Any
    used: Any


class _State(NamedTuple):
    """Parameters (3,): log l, log r, s; rates (pairs, 2): alpha, beta of every pair."""

    parameters: jax.Array
    rates: jax.Array


def _log_gap(x: jax.Array) -> jax.Array:
    """log(1 - e^-x)."""
    return jnp.log(-jnp.expm1(-x))


def log_ring_area(l: jax.Array, r: jax.Array, s: jax.Array) -> jax.Array:
    """Log of area R(l, r) - area R(sl, sr), l, r > 0, 0 < s < 1, without cancellation at s near 1.

    Derived: 1/area = 1 + 1/(e^l - 1) + 1/(e^r - 1), so the difference of areas is area x area_s x [D(l) + D(r)],
    D(x) = 1/(e^sx - 1) - 1/(e^x - 1) = e^sx (e^(1-s)x - 1) / ((e^sx - 1)(e^x - 1)).

    Example:
        >>> from jaxaudit.bmp.region import area
        >>> ring, whole = jnp.exp(log_ring_area(2.0, 1.0, 0.5)), area(2.0, 1.0) - area(1.0, 0.5)
        >>> bool(abs(ring - whole) < 1e-6)
        True
    """

    def excess(x: jax.Array) -> jax.Array:
        return _log_gap((1 - s) * x) - s * x - _log_gap(s * x) - _log_gap(x)

    return jnp.logaddexp(excess(l), excess(r)) + _log_area(l, r) + _log_area(s * l, s * r)


def _log_area(l: jax.Array, r: jax.Array) -> jax.Array:
    return _log_gap(l) + _log_gap(r) - _log_gap(l + r)


def _log_region(rates: jax.Array, parameters: jax.Array, strength: bool) -> jax.Array:
    """Log of 1[in region] / area for rates (particles, 2)."""
    l, r, s = jnp.exp(parameters[0]), jnp.exp(parameters[1]), parameters[2]
    alpha, beta = rates.T
    inside = contains(alpha, beta, l, r)
    if strength:
        inside &= ~contains(alpha, beta, s * l, s * r)
    log_area = log_ring_area(l, r, s) if strength else _log_area(l, r)
    return jnp.where(inside, -log_area, -jnp.inf)


def _log_prior(parameters: jax.Array, scale2: jax.Array) -> jax.Array:
    """Of (log l, log r, s), Jacobian included; -inf for s outside (0, 1)."""
    l, r = jnp.exp(parameters[0]), jnp.exp(parameters[1])
    inner = (parameters[2] > 0) & (parameters[2] < 1)
    return jnp.where(inner, parameters[:2].sum() - (l**2 + r**2) / (2 * scale2), -jnp.inf)


def _surround(
    item: Any, old: jax.Array, new: jax.Array, particles: int, strength: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One pair: log ratio of summed weights new/old, and the pair drawn anew under old and under new."""
    key, rates, counts, used = item
    draw_key, pick_key = jax.random.split(key)
    tiny = jnp.finfo(jnp.float32).tiny
    others = jax.random.uniform(draw_key, (particles - 1, 2), minval=tiny)
    cloud = jnp.concatenate([rates[None], others])
    trials = jnp.stack([counts[1] - counts[0], counts[3] - counts[2]])
    likelihood = (jnp.log(cloud) * counts[jnp.array([0, 2])] + jnp.log1p(-cloud) * trials).sum(axis=1)
    uniform = jax.random.uniform(pick_key)

    def under(parameters: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_w = likelihood + _log_region(cloud, parameters, strength)
        top = log_w.max()
        safe = jnp.where(jnp.isfinite(top), top, 0.0)
        below = jnp.cumsum(jnp.exp(log_w - safe))
        pick = jnp.searchsorted(below, uniform * below[-1], side="right")
        return safe + jnp.log(below[-1]), cloud[jnp.minimum(pick, particles - 1)]

    (sum_old, rates_old), (sum_new, rates_new) = under(old), under(new)
    return jnp.where(used, sum_new - sum_old, 0.0), rates_old, rates_new


def _move(
    key: jax.Array, state: _State, jump: jax.Array, data: _Pairs, scale2: jax.Array, particles: int, strength: bool
) -> tuple[_State, jax.Array]:
    """One Metropolis-Hastings step by ``jump`` in the parameters; also its acceptance probability."""
    particle_key, accept_key = jax.random.split(key)
    new = state.parameters + jump
    keys = item_keys(particle_key, 0, data.used.shape[0])
    surround = partial(_surround, old=state.parameters, new=new, particles=particles, strength=strength)
    items = keys, state.rates, data.counts, data.used
    ratios, rates_old, rates_new = chunked_map(surround, items, chunk=rows_per_chunk(64 * particles))
    log_ratio = ratios.sum() + _log_prior(new, scale2) - _log_prior(state.parameters, scale2)
    log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
    accept = jnp.log(jax.random.uniform(accept_key, minval=1e-30)) < log_ratio
    moved = _State(jnp.where(accept, new, state.parameters), jnp.where(accept, rates_new, rates_old))
    return moved, jnp.exp(jnp.minimum(log_ratio, 0.0))


def _start(key: jax.Array, data: _Pairs) -> _State:
    """Rates from their Beta posteriors; l, r above what these need, s l or s r below it for every pair."""
    rate_key, excess_key, strength_key = jax.random.split(key, 3)
    fp, n_out, fn, n_in = data.counts.T
    shapes = jnp.stack([fp, n_out - fp, fn, n_in - fn]) + 1.0
    gamma = jax.random.gamma(rate_key, shapes)
    alpha, beta = gamma[0] / (gamma[0] + gamma[1]), gamma[2] / (gamma[2] + gamma[3])
    l, r = tightest(alpha, beta)
    excess = jnp.exp(jax.random.uniform(excess_key, (2,), minval=0.02, maxval=0.7))
    top_l = jnp.where(data.used, l, 0.0).max() * excess[0] + 0.01
    top_r = jnp.where(data.used, r, 0.0).max() * excess[1] + 0.01
    bound = jnp.where(data.used, jnp.maximum(l / top_l, r / top_r), 1.0).min()
    s = jnp.clip(bound * jax.random.uniform(strength_key, minval=0.1, maxval=0.9), 1e-3, 0.999)
    return _State(jnp.stack([jnp.log(top_l), jnp.log(top_r), s]), jnp.stack([alpha, beta], axis=1))


def _chain(key: jax.Array, data: _Pairs, scale2: jax.Array, step: jax.Array, static: Any) -> Any:
    """Draws name -> (draws,) and the mean acceptance of one chain."""
    settings, particles, strength = static
    start_key, warmup_key, draw_key = jax.random.split(key, 3)

    def sweep(state: _State, log_steps: jax.Array, key: jax.Array) -> tuple[_State, jax.Array]:
        """The move of (l, r), then that of s; acceptance probabilities (2,)."""
        jump_key, first_key, second_key = jax.random.split(key, 3)
        jump = jax.random.normal(jump_key, (3,)) * jnp.exp(log_steps)[jnp.array([0, 0, 1])]
        main = jump.at[2].set(0.0)
        state, rate = _move(first_key, state, main, data, scale2, particles, strength)
        if not strength:
            return state, jnp.stack([rate, rate])
        state, own = _move(second_key, state, jump - main, data, scale2, particles, strength)
        return state, jnp.stack([rate, own])

    def adapt(carry: Any, item: Any) -> tuple[Any, None]:
        state, log_steps = carry
        time, key = item
        state, rates = sweep(state, log_steps, key)
        return (state, jnp.clip(log_steps + (rates - _ACCEPT) / (time + 1) ** 0.6, -6.0, 3.0)), None

    def kept(state: _State, key: jax.Array) -> tuple[_State, Any]:
        state, rates = jax.lax.scan(lambda s, k: sweep(s, log_steps, k), state, jax.random.split(key, settings.factor))
        return state, (state.parameters, rates.mean())

    warmup = settings.warmup * settings.factor
    times = jnp.arange(warmup, dtype=jnp.float32)
    carry = _start(start_key, data), jnp.log(jnp.stack([step, 0.3]))
    (state, log_steps), _ = jax.lax.scan(adapt, carry, (times, jax.random.split(warmup_key, warmup)))
    _, (parameters, rates) = jax.lax.scan(kept, state, jax.random.split(draw_key, settings.draws))
    values = {"r": jnp.exp(parameters[:, 1]), "l": jnp.exp(parameters[:, 0])}
    return (values | {"s": parameters[:, 2]} if strength else values), rates.mean()


@partial(jax.jit, static_argnames=("static", "keep", "together"))
def _run(
    key: jax.Array,
    items: jax.Array,
    data: _Pairs,
    scale2: jax.Array,
    step: jax.Array,
    static: Any,
    keep: bool,
    together: bool,
) -> Report:
    """Problems of a block; ``together`` vectorises over them and their chains, else one after the other."""

    def problem(row: Any) -> Report:
        item, data = row
        own = key
        for number in item:
            own = jax.random.fold_in(own, number)
        keys = item_keys(own, 0, static[0].chains)
        chain = partial(_chain, data=data, scale2=scale2, step=step, static=static)
        values, rates = jax.vmap(chain)(keys) if together else jax.lax.map(chain, keys)
        return summarise(values, jnp.zeros((), jnp.int32), rates, keep)

    return jax.vmap(problem)((items, data)) if together else jax.lax.map(problem, (items, data))


def _problems(rows: np.ndarray, groups: Any) -> tuple[tuple[np.ndarray, _Pairs], np.ndarray]:
    """Items (p, k) that name a problem, its padded pairs, and each node's problem."""
    unique, problem = distinct(rows)
    if groups is None:
        return (
            unique.astype(np.uint32),
            _Pairs(unique[:, None].astype(np.float32), np.ones((len(unique), 1), bool)),
        ), problem
    usable = problem >= 0
    labels, problem = by_group(groups, usable)
    require(labels.size > 0, "counts", "have at least one node with data on both sides", "none")
    members = [np.flatnonzero((problem == g) & usable) for g in range(labels.size)]
    size = max(len(part) for part in members)
    counts, used = np.ones((labels.size, size, 4), np.float32), np.zeros((labels.size, size), bool)
    for g, part in enumerate(members):
        counts[g, : len(part)], used[g, : len(part)] = rows[part], True
    return (labels[:, None].astype(np.uint32), _Pairs(counts, used)), problem


def mhaar(
    fp: Any,
    n_out: Any,
    fn: Any,
    n_in: Any,
    prior_scale2: float = 10.0,
    *,
    strength: bool = False,
    groups: Any = None,
    seed: int = 0,
    chains: int = 4,
    warmup: int = 1000,
    draws: int = 5000,
    particles: int = 1000,
    step: float = 0.5,
    demands: Demands = Demands(),  # noqa: B008 (frozen)
    keep_draws: bool = False,
) -> ChainPosterior:
    """Posterior of one (l, r) per node, or per group of nodes, by the papers' sampler.

    A problem fails, runs again and is reported as in ``node_nuts`` (there are no divergences here).

    Args:
        fp: false positives, whole numbers in [0, n_out], scalar or (n,).
        n_out: non-member trials.
        fn: false negatives, in [0, n_in].
        n_in: member trials.
        prior_scale2: squared scale of the half-normal priors, in [0.01, 10_000].
        strength: whether the attack's strength s ~ U(0, 1) is a parameter.
        groups: (n,) integer labels: nodes of one label share (l, r, s), each with its own pair of rates; a constant
            array pools all nodes; negative: in no group. None: every node by itself.
        seed: seed of the chains, >= 0.
        chains: number of chains, >= 2.
        warmup: adaptation steps per chain, >= 20.
        draws: kept draws per chain, >= 4.
        particles: K, particles per pair, >= 2.
        step: first standard deviation of the random walk on log l and log r, in (0, 10].
        demands: R-hat, effective sample sizes and number of reruns.
        keep_draws: keep all draws.

    Returns:
        ChainPosterior with names "r", "l" and, with ``strength``, "s"; look at ``warnings`` first.

    Raises:
        InputError: counts or settings that break a rule, or no node with data on both sides.

    Example:
        >>> few = Demands(rhat=1.2, ess=1, reruns=0)
        >>> post = mhaar(10, 100, 10, 100, chains=2, warmup=100, draws=200, particles=200, demands=few)
        >>> post.names, post.runs.shape
        (('r', 'l'), (1,))
    """
    rows = validate(fp, n_out, fn, n_in)
    scale2 = np.float32(check_real("prior_scale2", prior_scale2, 0.01, 10_000))
    settings = Settings(chains, warmup, draws)
    key = stream_key(check_int("seed", seed, 0), "mhaar")
    particles = check_int("particles", particles, 2)
    first = np.float32(check_real("step", step, 0, 10, open_low=True))
    data, problem = _problems(rows, groups)

    def run(part: Any, settings: Settings) -> Report:
        own, static = jax.random.fold_in(key, settings.attempt), (settings, particles, bool(strength))
        return _run(own, *part, scale2, first, static=static, keep=keep_draws, together=groups is None)

    names = ("r", "l", "s") if strength else ("r", "l")
    block = _BLOCK if groups is None else 1
    return collect(run, data, problem, settings, engine="mhaar", names=names, block=block, demands=demands)
