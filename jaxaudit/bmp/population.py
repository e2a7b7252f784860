"""A population of nodes with (l, r) of their own: its log density with the nodes integrated out, chains, and nodes.

    log l_i ~ Normal(mu_l, tau_l),  log r_i ~ Normal(mu_r, tau_r)   independent, given the four hyperparameters
    mu ~ Normal(0.5, 1),  tau ~ half-normal(1)                      weak: r between .23 and 12 at the median node

Nodes are integrated out on a grid in (log l, log r) that all of them share. The likelihood is linear between grid
points and held beyond the ends, the normal is not cut: the mean is sum_ab L(t_a, t_b) w_a w_b, w_a the mean of the
hat function at t_a, closed form also for tau -> 0, and up to any point, which gives each node's distribution function
(derived: with F(z) = z Phi(z) + phi(z), an integral of Phi, the mean of a ramp from p to q is
Phi(q) - tau (F(q) - F(p)) / (q - p), by parts; a hat is a difference of two ramps).

Above 14 the likelihood is flat for up to 100,000 trials. Below .003, where a node lies once in 2,000 draws from the
prior, it changes by less than .01 in total variation (20 trials a side) if the other parameter is above .3; where both
are near 0 their ratio still counts, by up to .2, and is not followed.
Linear interpolation widens a node's likelihood by h^2/6 in variance: differences between nodes below .06 on the log
scale are not resolved (.2 where l or r is below .15, .12 above 6).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr

from jaxaudit.bmp.counts import Counts
from jaxaudit.bmp.table import log_likelihoods
from jaxaudit.runtime.chunks import bucket, chunked_map

__all__ = [
    "GRID",
    "MU_MEAN",
    "MU_SD",
    "TAU_SD",
    "PopulationData",
    "hat_means",
    "log_density",
    "node_distributions",
    "population_data",
    "population_points",
    "run_chains",
]

_KNOTS, _STEPS = np.log([0.003, 0.15, 6.0, 14.0]).tolist(), (8, 24, 3)
GRID = np.interp(np.arange(sum(_STEPS) + 1), np.cumsum([0, *_STEPS]), _KNOTS)
"""Grid points of log l and of log r, (36,) float64: close where the likelihood of a node can be steep."""

MU_MEAN, MU_SD, TAU_SD = 0.5, 1.0, 1.0
"""Priors of the hyperparameters: mu ~ Normal(MU_MEAN, MU_SD), tau ~ half-normal(TAU_SD)."""

_CHUNK = 64  # tuples in flight
_PROBITS = np.linspace(-6.0, 6.0, 121)  # levels of the population where the nodes' distributions are kept


class PopulationData(NamedTuple):
    """Likelihoods (u, points, points) over (log l, log r) relative to each tuple's largest, and multiplicities (u,)."""

    likelihood: Any
    times: Any


def population_data(tuples: Counts, times: np.ndarray) -> PopulationData:
    """The table in float32, padded so that data of a similar size meet compiled code.

    Args:
        tuples: (u, 4) int64 distinct count tuples.
        times: (u,) nodes that have each of them.
    """
    l, r = (x.ravel() for x in np.meshgrid(np.exp(GRID), np.exp(GRID), indexing="ij"))
    log_p = log_likelihoods(tuples, l, r)
    likelihood = np.exp(log_p - log_p.max(axis=1, keepdims=True)).astype(np.float32)
    size = bucket(len(tuples), 32)
    padding = size - len(tuples)
    likelihood = np.pad(likelihood, [(0, padding), (0, 0)], constant_values=1.0)
    return PopulationData(likelihood.reshape(size, GRID.size, GRID.size), np.pad(times.astype(float), (0, padding)))


def hat_means(mu: Any, tau: Any, below: Any = None) -> jax.Array:
    """Mean of every grid point's hat function, times 1{x <= below}, under x ~ Normal(mu, tau).

    Args:
        mu: scalar.
        tau: scalar > 0.
        below: scalar; None: no bound, and the means sum to 1.

    Returns:
        (points,) float32; computed in the type of the arguments, float64 for six digits.

    Example:
        >>> [round(float(hat_means(0.5, 0.3, below).sum()), 3) for below in (None, 0.5)]
        [1.0, 0.5]
    """

    def integral(x: Any) -> Any:
        z = (x - mu) / tau
        return tau * (z * jax.scipy.stats.norm.cdf(z) + jax.scipy.stats.norm.pdf(z))

    start, step = jnp.asarray(GRID[:-1]), jnp.asarray(np.diff(GRID))
    stop = start + step if below is None else jnp.clip(below, start, start + step)
    mass = jnp.ones(()) if below is None else jax.scipy.stats.norm.cdf((below - mu) / tau)
    ramps = ((stop - start) * mass - (integral(stop) - integral(start))) / step
    weights = jnp.append(mass, ramps) - jnp.append(ramps, 0.0)
    return jnp.maximum(weights, 0).astype(jnp.float32)


def _both(position: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Hat means of log l and of log r at (mu_l, mu_r, log tau_l, log tau_r)."""
    return hat_means(position[0], jnp.exp(position[2])), hat_means(position[1], jnp.exp(position[3]))


def log_density(position: jax.Array, data: PopulationData) -> jax.Array:
    """Log posterior density of (mu_l, mu_r, log tau_l, log tau_r), (4,) float64, up to a constant."""
    mu, log_tau = position[:2], position[2:]
    weight_l, weight_r = _both(position)
    mean = (data.likelihood @ weight_r) @ weight_l
    node = jnp.log(jnp.maximum(mean, 1e-37)).astype(position.dtype)
    prior = -(((mu - MU_MEAN) / MU_SD) ** 2).sum() / 2 - (jnp.exp(2 * log_tau) / TAU_SD**2).sum() / 2
    return (node * data.times).sum() + prior + log_tau.sum()


@partial(jax.jit, static_argnames=("warmup", "draws"))
def run_chains(keys: jax.Array, data: PopulationData, warmup: int, draws: int) -> tuple[jax.Array, jax.Array]:
    """One chain of NUTS per key, warm-up included; call it with 64-bit types enabled.

    Returns:
        Positions (chains, draws, 4) as in ``log_density``, and divergence flags (chains, draws).
    """
    import blackjax  # here: importing blackjax 1.7 starts the backend, and the device count is then fixed

    target = partial(log_density, data=data)

    def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        start_key, warmup_key, draw_key = jax.random.split(key, 3)
        start = jnp.array([0.5, 0.5, -0.7, -0.7]) + jax.random.uniform(start_key, (4,), minval=-0.5, maxval=0.5)
        # A mean and its standard deviation are correlated where few nodes say much: a dense mass matrix.
        adaptation = blackjax.window_adaptation(
            blackjax.nuts, target, is_mass_matrix_diagonal=False, target_acceptance_rate=0.85
        )
        (state, parameters), _ = adaptation.run(warmup_key, start, num_steps=warmup)
        kernel = blackjax.nuts(target, **parameters).step

        def step(state: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            state, info = kernel(key, state)
            return state, (state.position, info.is_divergent)

        return jax.lax.scan(step, state, jax.random.split(draw_key, draws))[1]

    return jax.vmap(run)(keys)


def population_points(positions: np.ndarray) -> np.ndarray:
    """Quantiles of log l and log r over the population, mixed over draws, at levels evenly spaced in the probit.

    A node's posterior has a density with respect to that mixture: the points lie close wherever a node can be,
    however small tau is, and beyond the grid.

    Args:
        positions: (s, 4) as in ``log_density``.

    Returns:
        (2, 121) float64, increasing.

    Example:
        >>> population_points(np.array([[0.5, 1.0, 0.0, -1.0]]))[:, [50, 60, 70]].round(2).tolist()
        [[-0.5, 0.5, 1.5], [0.63, 1.0, 1.37]]
    """
    found = []
    for k in (0, 1):
        mu, tau = positions[:, k, None], np.exp(positions[:, k + 2, None])
        ends = mu + tau * _PROBITS
        low, high = ends.min(axis=0), ends.max(axis=0)
        for _ in range(50):
            middle = (low + high) / 2
            below = ndtr((middle - mu) / tau).mean(axis=0) < ndtr(_PROBITS)
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        found.append((low + high) / 2)
    return np.array(found)


@jax.jit
def node_distributions(positions: jax.Array, points: jax.Array, data: PopulationData) -> jax.Array:
    """Posterior distribution functions of every tuple's log l and log r, averaged over hyperparameter draws.

    Args:
        positions: (s, 4) as in ``log_density``, float64.
        points: (2, f) from ``population_points``.
        data: u tuples.

    Returns:
        (u, 2, f) float32.
    """
    weights = jax.vmap(_both)(positions)  # (s, points) each
    below = [
        jax.vmap(lambda p, k=k: jax.vmap(partial(hat_means, p[k], jnp.exp(p[k + 2])))(points[k]))(positions)
        for k in (0, 1)
    ]  # (s, f, points) each

    def one(likelihood: jax.Array) -> jax.Array:
        by_l, by_r = weights[1] @ likelihood.T, weights[0] @ likelihood
        mean = (by_l * weights[0]).sum(axis=1, keepdims=True) * positions.shape[0]
        parts = zip(below, (by_l, by_r), strict=True)
        return jnp.stack([jnp.einsum("sfa,sa->f", part, by / mean) for part, by in parts])

    return chunked_map(one, data.likelihood, chunk=_CHUNK)
