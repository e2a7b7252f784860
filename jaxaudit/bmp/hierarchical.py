"""Partial pooling: every node has its own (l, r), drawn from a population that is learned from all of them.

The model, its priors and how the nodes are integrated out: ``jaxaudit.bmp.population``. NUTS moves in the four
hyperparameters whatever the number of nodes, and each node's posterior is averaged over the draws. Simulation-based
calibration: ``jaxaudit.bmp.population_calibration``.

The nodes share the models; the posterior does not know, see ``jaxaudit.bmp.resampling``. They share the population's
estimate too: the nodes' intervals hold their level over data sets, while within one the share that covers moves with
the estimate of tau (800 nodes, 64 trials, tau_r .3: .77 for r in a data set where tau_r came out at about half of
that, .90 with the true hyperparameters).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.bmp.chains import failed_diagnostics
from jaxaudit.bmp.counts import distinct, validate
from jaxaudit.bmp.population import GRID, node_distributions, population_data, population_points, run_chains
from jaxaudit.runtime.checks import check_choice, check_int, check_real, require
from jaxaudit.runtime.keys import item_keys, stream_key

__all__ = ["HYPERPARAMETERS", "HierarchicalPosterior", "hierarchical_posterior"]

HYPERPARAMETERS = ("mu_l", "mu_r", "tau_l", "tau_r")
"""Means and standard deviations over nodes of log l and log r."""

_AVERAGED = 400  # draws that the nodes' posteriors are averaged over
_FEW = 0.05  # share of draws of mu beyond the grid that is not worth a warning


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
        warnings: one sentence for each diagnostic that fails (R-hat > 1.01, bulk ESS < 400, divergences > 0), and for
            a median node whose l or r may lie where the data tell nothing apart.
    """

    draws: dict[str, np.ndarray]
    rhat: dict[str, float]
    ess_bulk: dict[str, float]
    ess_tail: dict[str, float]
    divergences: int
    nodes: int
    warnings: tuple[str, ...]
    _index: np.ndarray = field(repr=False)
    _points: dict[str, np.ndarray] = field(repr=False)  # (f,) of log l, log r
    _below: dict[str, np.ndarray] = field(repr=False)  # (u, f) distribution functions there

    def quantile(self, name: str, q: float) -> np.ndarray:
        """Posterior quantile (n,) of every node's ``name`` ("r" or "l") at ``q`` in [0.001, 0.999]; NaN without data.

        Raises:
            InputError: another name, or a level out of range.
        """
        check_choice("name", name, ("r", "l"))
        check_real("q", q, 0.001, 0.999)
        values = np.array([np.exp(np.interp(q, row, self._points[name])) for row in self._below[name]])
        return np.where(self._index >= 0, values[self._index], np.nan)


def _beyond_the_grid(draws: dict[str, np.ndarray]) -> tuple[str, ...]:
    """Sentences for the medians exp(mu) that may lie where the likelihood no longer tells values apart."""
    found = []
    for x in ("l", "r"):
        mu = draws[f"mu_{x}"]
        for share, where in (((mu > GRID[-1]).mean(), "above"), ((mu < GRID[0]).mean(), "below")):
            if share > _FEW:
                end = np.exp(GRID[-1] if where == "above" else GRID[0])
                found.append(
                    f"partial pooling: the median node's {x} lies {where} {end:.3g} in {share:.0%} of the draws, "
                    "where the data tell no values apart: how far is the prior's"
                )
    return tuple(found)


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
    data = population_data(tuples, np.bincount(index[index >= 0], minlength=len(tuples)))
    keys = item_keys(stream_key(seed, "hierarchical"), 0, chains)
    with jax.enable_x64(True):
        data = jax.device_put(data)
        positions, divergent = run_chains(keys, data, warmup, draws)
        flat = np.asarray(positions).reshape(-1, 4)
        thinned = flat[np.linspace(0, len(flat) - 1, min(_AVERAGED, len(flat))).astype(int)]
        points = population_points(thinned)
        below = np.asarray(node_distributions(thinned, points, data))[: len(tuples)]
        values = np.asarray(jnp.concatenate([positions[..., :2], jnp.exp(positions[..., 2:])], axis=-1))
        samples = {name: values[..., k] for k, name in enumerate(HYPERPARAMETERS)}
        checks = blackjax.rhat, blackjax.ess_bulk, blackjax.ess_tail
        rhat, bulk, tail = ({name: float(check(x)) for name, x in samples.items()} for check in checks)
    divergences = int(divergent.sum())
    found = failed_diagnostics("partial pooling", rhat, bulk, divergences) + _beyond_the_grid(samples)
    return HierarchicalPosterior(
        samples, rhat, bulk, tail, divergences, nodes, found, index,
        dict(zip("lr", points, strict=True)), dict(zip("lr", below.transpose(1, 0, 2), strict=True)),
    )  # fmt: skip
