"""Partial pooling: every node has its own (l, r), drawn from a population that is learned from all of them.

    log l_i ~ Normal(mu_l, tau_l),  log r_i ~ Normal(mu_r, tau_r)   independent, given the four hyperparameters
    mu ~ Normal(0.5, 1),  tau ~ half-normal(1)                      weak: r between .23 and 12 at the median node

The nodes are integrated out on a grid in (log l, log r) that all of them share (``jaxaudit.bmp.table``): a likelihood
that is linear between grid points has the mean sum_a L(t_a) w_a(mu, tau), w_a the mean of the hat function at t_a
under the normal, in closed form also for tau -> 0 (derived: with F(z) = z Phi(z) + phi(z), an integral of Phi, w_a
is tau / h times the second difference of F at the grid). Ends take the tails: the likelihood is flat there.
NUTS then moves in four dimensions whatever the number of nodes, and each node's posterior is its grid posterior
averaged over the draws.

Linear interpolation widens a node's likelihood by h^2/6 in variance: differences between nodes below .06 on the log
scale are not resolved. The nodes share the models; the posterior does not know, see ``jaxaudit.bmp.resampling``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.bmp.chains import failed_diagnostics
from jaxaudit.bmp.counts import distinct, validate
from jaxaudit.bmp.table import log_likelihoods
from jaxaudit.runtime.checks import check_choice, check_int, check_real, require
from jaxaudit.runtime.chunks import bucket
from jaxaudit.runtime.keys import item_keys, stream_key

__all__ = ["HYPERPARAMETERS", "HierarchicalPosterior", "hierarchical_posterior"]

HYPERPARAMETERS = ("mu_l", "mu_r", "tau_l", "tau_r")
"""Means and standard deviations over nodes of log l and log r."""

_POINTS, _LOW, _HIGH = 36, np.log(0.07), np.log(14.0)
_MU_MEAN, _MU_SD, _TAU_SD = 0.5, 1.0, 1.0
_AVERAGED = 200  # draws that the nodes' posteriors are averaged over


class _Data(NamedTuple):
    """Likelihoods (u, points, points) over (log l, log r) relative to each tuple's largest, and multiplicities (u,)."""

    likelihood: Any
    times: Any


@dataclass(frozen=True)
class HierarchicalPosterior:
    """Draws of the hyperparameters with their diagnostics, and every node's shrunken posterior.

    Attributes:
        draws: name in ``HYPERPARAMETERS`` -> (chains, draws) float64.
        rhat: rank-normalised split R-hat by name.
        ess_bulk: effective sample sizes of the bulk.
        ess_tail: effective sample sizes of the tails.
        divergences: number of divergent transitions after warm-up.
        nodes: number of nodes with data on both sides.
        warnings: one sentence for each diagnostic that fails (R-hat > 1.01, bulk ESS < 400, divergences > 0).
    """

    draws: dict[str, np.ndarray]
    rhat: dict[str, float]
    ess_bulk: dict[str, float]
    ess_tail: dict[str, float]
    divergences: int
    nodes: int
    warnings: tuple[str, ...]
    _index: np.ndarray = field(repr=False)
    _below: dict[str, np.ndarray] = field(repr=False)  # (u, points - 1) distribution functions at the cells' borders

    def quantile(self, name: str, q: float) -> np.ndarray:
        """Posterior quantile (n,) of every node's ``name`` ("r" or "l") at ``q`` in [0.001, 0.999]; NaN without data.

        Raises:
            InputError: another name, or a level out of range.
        """
        check_choice("name", name, ("r", "l"))
        check_real("q", q, 0.001, 0.999)
        grid = np.linspace(_LOW, _HIGH, _POINTS)
        borders = np.concatenate([[_LOW], (grid[1:] + grid[:-1]) / 2, [_HIGH]])
        ends = np.zeros((len(self._below[name]), 1))
        cdf = np.concatenate([ends, self._below[name], ends + 1], axis=1)
        values = np.array([np.exp(np.interp(q, row, borders)) for row in cdf])
        return np.where(self._index >= 0, values[self._index], np.nan)


def _hat_means(mu: jax.Array, tau: jax.Array) -> jax.Array:
    """Mean of each grid point's hat function under Normal(mu, tau), (points,), float32; they sum to 1."""
    grid = jnp.linspace(_LOW, _HIGH, _POINTS)
    z = (grid - mu) / tau
    integral = z * jax.scipy.stats.norm.cdf(z) + jax.scipy.stats.norm.pdf(z)
    below = tau * jnp.diff(integral) / (grid[1] - grid[0])  # mean of min(max((t_{a+1} - x) / h, 0), 1)
    weights = jnp.diff(jnp.concatenate([jnp.zeros(1), below, jnp.ones(1)]))
    return jnp.maximum(weights, 0).astype(jnp.float32)


def _node_means(position: jax.Array, data: _Data) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean likelihood (u,) and its parts by grid point of l (u, points), with the weights of l."""
    weight_l, weight_r = (_hat_means(position[k], jnp.exp(position[k + 2])) for k in (0, 1))
    by_l = (data.likelihood @ weight_r) * weight_l
    return by_l.sum(axis=1), by_l, weight_r


def _log_density(position: jax.Array, data: _Data) -> jax.Array:
    """Log posterior of (mu_l, mu_r, log tau_l, log tau_r)."""
    mu, log_tau = position[:2], position[2:]
    mean = _node_means(position, data)[0]
    node = jnp.log(jnp.maximum(mean, 1e-37)).astype(position.dtype)
    prior = -(((mu - _MU_MEAN) / _MU_SD) ** 2).sum() / 2 - (jnp.exp(2 * log_tau) / _TAU_SD**2).sum() / 2
    return (node * data.times).sum() + prior + log_tau.sum()


@partial(jax.jit, static_argnames=("warmup", "draws"))
def _run_chains(keys: jax.Array, data: _Data, warmup: int, draws: int) -> tuple[jax.Array, jax.Array]:
    """Positions (chains, draws, 4) and divergence flags (chains, draws)."""
    import blackjax  # here: importing blackjax 1.7 starts the backend, and the device count is then fixed

    log_density = partial(_log_density, data=data)

    def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        start_key, warmup_key, draw_key = jax.random.split(key, 3)
        start = jnp.array([0.5, 0.5, -0.7, -0.7]) + jax.random.uniform(start_key, (4,), minval=-0.5, maxval=0.5)
        # A mean and its standard deviation are correlated where few nodes say much: a dense mass matrix.
        adaptation = blackjax.window_adaptation(
            blackjax.nuts, log_density, is_mass_matrix_diagonal=False, target_acceptance_rate=0.85
        )
        (state, parameters), _ = adaptation.run(warmup_key, start, num_steps=warmup)
        kernel = blackjax.nuts(log_density, **parameters).step

        def step(state: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            state, info = kernel(key, state)
            return state, (state.position, info.is_divergent)

        return jax.lax.scan(step, state, jax.random.split(draw_key, draws))[1]

    return jax.vmap(run)(keys)


@jax.jit
def _average(positions: jax.Array, data: _Data) -> tuple[jax.Array, jax.Array]:
    """Every tuple's marginal grid posteriors of l and of r (u, points), averaged over hyperparameter draws (s, 4)."""

    def add(total: Any, position: jax.Array) -> tuple[Any, None]:
        mean, by_l, weight_r = _node_means(position, data)
        weight_l = _hat_means(position[0], jnp.exp(position[2]))
        by_r = jnp.einsum("uab,a->ub", data.likelihood, weight_l) * weight_r
        scale = 1 / jnp.maximum(mean, 1e-37)[:, None] / positions.shape[0]
        return (total[0] + by_l * scale, total[1] + by_r * scale), None

    zero = jnp.zeros(data.likelihood.shape[:2], jnp.float32)
    return jax.lax.scan(add, (zero, zero), positions)[0]


def _likelihoods(tuples: np.ndarray, times: np.ndarray) -> _Data:
    """The table in float32, padded so that data of a similar size meet compiled code."""
    axis = np.exp(np.linspace(_LOW, _HIGH, _POINTS))
    l, r = (x.ravel() for x in np.meshgrid(axis, axis, indexing="ij"))
    log_p = log_likelihoods(tuples, l, r)
    likelihood = np.exp(log_p - log_p.max(axis=1, keepdims=True)).astype(np.float32)
    size = bucket(len(tuples), 32)
    padding = size - len(tuples)
    likelihood = np.pad(likelihood, [(0, padding), (0, 0)], constant_values=1.0)
    return _Data(likelihood.reshape(size, _POINTS, _POINTS), np.pad(times.astype(float), (0, padding)))


def hierarchical_posterior(
    fp: Any,
    n_out: Any,
    fn: Any,
    n_in: Any,
    *,
    seed: int = 0,
    chains: int = 4,
    warmup: int = 300,
    draws: int = 500,
) -> HierarchicalPosterior:
    """Posterior of the population of (l, r) and, shrunken towards it, of every node's.

    Args:
        fp: false positives, whole numbers in [0, n_out], scalar or (n,); nodes without data on a side are left out.
        n_out: non-member trials.
        fn: false negatives, in [0, n_in].
        n_in: member trials.
        seed: seed of the chains, >= 0.
        chains: number of chains, >= 2 (R-hat needs two).
        warmup: adaptation steps per chain, >= 20.
        draws: kept draws per chain, >= 4.

    Returns:
        HierarchicalPosterior; look at ``warnings`` first.

    Raises:
        InputError: counts or settings that break a rule, or fewer than two nodes with data on both sides.

    Example:
        >>> post = hierarchical_posterior([1, 5, 9], 30, [9, 20, 21], 30, chains=2, warmup=20, draws=8)
        >>> post.draws["mu_r"].shape, post.quantile("r", 0.5).shape
        ((2, 8), (3,))
    """
    import blackjax

    rows = validate(fp, n_out, fn, n_in)
    check_int("seed", seed, 0)
    check_int("chains", chains, 2)
    check_int("warmup", warmup, 20)
    check_int("draws", draws, 4)
    tuples, index = distinct(rows)
    nodes = int((index >= 0).sum())
    require(nodes > 1, "counts", "have at least two nodes with data on both sides", nodes)
    data = _likelihoods(tuples, np.bincount(index[index >= 0], minlength=len(tuples)))
    keys = item_keys(stream_key(seed, "hierarchical"), 0, chains)
    with jax.enable_x64(True):
        positions, divergent = _run_chains(keys, data, warmup, draws)
        flat = positions.reshape(-1, 4)
        thinned = flat[np.linspace(0, len(flat) - 1, min(_AVERAGED, len(flat))).astype(int)]
        masses = [np.asarray(x)[: len(tuples)] for x in _average(thinned, data)]
        values = np.asarray(jnp.concatenate([positions[..., :2], jnp.exp(positions[..., 2:])], axis=-1))
        samples = {name: values[..., k] for k, name in enumerate(HYPERPARAMETERS)}
        checks = blackjax.rhat, blackjax.ess_bulk, blackjax.ess_tail
        rhat, bulk, tail = ({name: float(check(x)) for name, x in samples.items()} for check in checks)
    below = {name: np.cumsum(mass, axis=1)[:, :-1].astype(float) for name, mass in zip("lr", masses, strict=True)}
    divergences = int(divergent.sum())
    found = failed_diagnostics("partial pooling", rhat, bulk, divergences)
    return HierarchicalPosterior(samples, rhat, bulk, tail, divergences, nodes, found, index, below)
