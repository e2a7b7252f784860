"""Simulation-based calibration of partial pooling (Talts et al., arXiv:1804.06788), many small data sets at once.

Per data set: hyperparameters from their priors, log l and log r of every node from the population, (alpha, beta)
uniform in the node's region, binomial counts. The posterior levels of the true values are then uniform. Nodes of
one data set share its posterior: one node of each enters the histograms; all enter the coverage, whose standard
error is over data sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from scipy.stats import chisquare

from jaxaudit.bmp import region
from jaxaudit.bmp.calibration import Calibration
from jaxaudit.bmp.counts import distinct, validate
from jaxaudit.bmp.hierarchical import HYPERPARAMETERS
from jaxaudit.bmp.population import (
    MU_MEAN,
    MU_SD,
    TAU_SD,
    PopulationData,
    node_distributions,
    population_data,
    population_points,
    run_chains,
)
from jaxaudit.runtime.checks import check_int
from jaxaudit.runtime.keys import host_rng, item_keys, stream_key

__all__ = ["PopulationCalibration", "Populations", "calibrate_populations", "simulate_populations"]

_BATCH = 25  # data sets whose chains move in step
_RANKS = 99  # draws a true value is ranked among: ten bins of ten ranks


class Populations(NamedTuple):
    """Data sets drawn from the whole model.

    Attributes:
        truth: name in ``HYPERPARAMETERS`` -> (size,); "l" and "r" -> (size, nodes).
        fp: (size, nodes) false positives among ``n_out`` trials.
        fn: (size, nodes) false negatives among ``n_in`` trials.
    """

    truth: dict[str, np.ndarray]
    fp: np.ndarray
    fn: np.ndarray


@dataclass(frozen=True)
class PopulationCalibration:
    """Rank histograms, coverage and the levels they come from.

    Attributes:
        ranks: each of ``HYPERPARAMETERS`` and "l", "r" of one node -> Calibration (ten bins, one value per data set).
        covered: "l" and "r" -> (share of nodes inside their 90 % interval, standard error over data sets).
        levels: the posterior levels, (size,) of hyperparameters, (size, nodes) of "l" and "r".
        divergences: (size,) divergent transitions of each data set's chain.
    """

    ranks: dict[str, Calibration]
    covered: dict[str, tuple[float, float]]
    levels: dict[str, np.ndarray]
    divergences: np.ndarray


def simulate_populations(size: int, nodes: int, n_out: int, n_in: int, *, seed: int = 0) -> Populations:
    """Hyperparameters from their priors, and data sets from these.

    Args:
        size: number of data sets, >= 1.
        nodes: nodes in each, >= 2.
        n_out: non-member trials of every node, >= 1.
        n_in: member trials, >= 1.
        seed: >= 0.

    Raises:
        InputError: a number out of range.

    Example:
        >>> data = simulate_populations(3, 5, 20, 20)
        >>> data.truth["tau_l"].shape, data.truth["r"].shape, data.fp.shape
        ((3,), (3, 5), (3, 5))
    """
    for name, value, least in (("size", size, 1), ("nodes", nodes, 2), ("n_out", n_out, 1), ("n_in", n_in, 1)):
        check_int(name, value, least)
    rng = host_rng(check_int("seed", seed, 0), "simulate_populations")
    mu, tau = rng.normal(MU_MEAN, MU_SD, (2, size)), np.abs(rng.normal(0, TAU_SD, (2, size)))
    l, r = np.exp(mu[..., None] + tau[..., None] * rng.standard_normal((2, size, nodes)))
    corners, (u, v) = region.vertices(l, r), rng.random((2, size, nodes, 1))
    start = corners[..., 0, :]  # vertices: (0,1), (a*, b*), (1,0), (1-a*, 1-b*)
    rates = np.clip(start + u * (corners[..., 1, :] - start) + v * (corners[..., 3, :] - start), 0, 1)
    truth = dict(zip(HYPERPARAMETERS, (*mu, *tau), strict=True)) | {"l": l, "r": r}
    return Populations(truth, rng.binomial(n_out, rates[..., 0]), rng.binomial(n_in, rates[..., 1]))


@partial(jax.jit, static_argnames=("warmup", "draws"))
def _one_chain_each(
    keys: jax.Array, likelihood: jax.Array, times: jax.Array, warmup: int, draws: int
) -> tuple[jax.Array, jax.Array]:
    """Positions (b, draws, 4) and divergences (b,) of b data sets with likelihoods (b, nodes, points, points)."""

    def one(key: jax.Array, own: jax.Array) -> tuple[jax.Array, jax.Array]:
        positions, divergent = run_chains(key[None], PopulationData(own, times), warmup, draws)
        return positions[0], divergent.sum()

    return jax.vmap(one)(keys, likelihood)


def _positions(
    table: np.ndarray, index: np.ndarray, seed: int, warmup: int, draws: int
) -> tuple[np.ndarray, np.ndarray]:
    """Positions (size, draws, 4) and divergences (size,), in batches; ``index`` finds the nodes' rows."""
    keys = item_keys(stream_key(seed, "calibrate_populations"), 0, len(index))
    found, times = [], np.ones(index.shape[1])
    for first in range(0, len(index), _BATCH):
        rows = np.arange(first, first + _BATCH) % len(index)  # the last batch is filled up from the start
        found.append(jax.tree.map(np.asarray, _one_chain_each(keys[rows], table[index[rows]], times, warmup, draws)))
    positions, divergences = (np.concatenate(x)[: len(index)] for x in zip(*found, strict=True))
    return positions, divergences


def _node_levels(positions: np.ndarray, data: PopulationData, values: np.ndarray) -> np.ndarray:
    """Posterior levels (2, nodes) of log l and log r at ``values`` (2, nodes) in one data set."""
    points = population_points(positions)
    below = np.asarray(node_distributions(positions, points, data))
    return np.array(
        [[np.interp(x, points[k], row[k]) for x, row in zip(values[k], below, strict=True)] for k in (0, 1)]
    )


def _calibration(levels: np.ndarray) -> Calibration:
    histogram = np.histogram(levels, bins=10, range=(0, 1))[0]
    return Calibration(histogram, float(chisquare(histogram).pvalue), 0)


def calibrate_populations(
    data: Populations, n_out: int, n_in: int, *, seed: int = 0, warmup: int = 300, thin: int = 3
) -> PopulationCalibration:
    """Chains on every data set, and where the true values lie in their posteriors.

    Args:
        data: ``simulate_populations(size, nodes, n_out, n_in)``.
        n_out: as there.
        n_in: as there.
        seed: seed of the chains, >= 0.
        warmup: adaptation steps of a chain, >= 20.
        thin: transitions per draw that enters the ranks, >= 1.

    Returns:
        PopulationCalibration.

    Raises:
        InputError: a number out of range.
    """
    for name, value, least in (("seed", seed, 0), ("warmup", warmup, 20), ("thin", thin, 1)):
        check_int(name, value, least)
    size, nodes = data.fp.shape
    tuples, index = distinct(validate(data.fp.ravel(), n_out, data.fn.ravel(), n_in))
    table, index = population_data(tuples, np.ones(len(tuples))).likelihood, index.reshape(size, nodes)
    values = np.log([data.truth["l"], data.truth["r"]])
    with jax.enable_x64(True):
        positions, divergences = _positions(table, index, seed, warmup, thin * _RANKS)
        own = (PopulationData(table[rows], np.ones(nodes)) for rows in index)
        found = np.array([_node_levels(positions[d], one, values[:, d]) for d, one in enumerate(own)])
    # Ranks need nearly independent draws. The nodes take all: noise in an average over few would cost coverage.
    thinned = positions[:, thin - 1 :: thin]
    draws = np.concatenate([thinned[..., :2], np.exp(thinned[..., 2:])], axis=-1)
    levels = {  # the rank of the truth among the draws, 0 to 99, in the middle of its hundredth
        name: ((draws[..., k] < data.truth[name][:, None]).sum(axis=1) + 0.5) / (_RANKS + 1)
        for k, name in enumerate(HYPERPARAMETERS)
    }
    ranks = {name: _calibration(level) for name, level in levels.items()}
    covered = {}
    for k, name in enumerate(("l", "r")):
        levels[name] = found[:, k]
        ranks[name] = _calibration(found[:, k, 0])
        share = ((found[:, k] >= 0.05) & (found[:, k] <= 0.95)).mean(axis=1)
        covered[name] = float(share.mean()), float(share.std(ddof=1) / np.sqrt(size))
    return PopulationCalibration(ranks, covered, levels, divergences)
