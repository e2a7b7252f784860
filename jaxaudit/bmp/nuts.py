"""NUTS for one (l, r) shared by all nodes: the check of ``pooled_posterior`` by simulation.

The target is two-dimensional. The smooth form (a,b) = (0,1) + u [(a*, b*) - (0,1)] + v [(1-a*, 1-b*) - (0,1)] gives
every node its own (u, v); sampling them (2 + 2 n dimensions) works but mixes slowly, since all of them must
move with (l, r). They are integrated out by the quadrature of ``jaxaudit.bmp.pooled``, once
per distinct count tuple, which is exact to rounding and leaves what is asked for. The
sampler moves in log l and log r (Jacobian l r).

Sampler: Hoffman & Gelman 2014, as implemented by BlackJAX; R-hat and ESS: Vehtari et al. 2021, the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.bmp.counts import validate
from jaxaudit.bmp.pooled import PooledData, pooled_data, shared_log_likelihood
from jaxaudit.runtime.checks import check_choice, check_int, check_real
from jaxaudit.runtime.keys import item_keys, stream_key

__all__ = ["NutsPosterior", "pooled_nuts"]


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


@partial(jax.jit, static_argnames=("warmup", "draws"))
def _run_chains(
    keys: jax.Array, data: PooledData, scale2: jax.Array, warmup: int, draws: int
) -> tuple[jax.Array, jax.Array]:
    """Positions (chains, draws, 2) of (log l, log r) and divergence flags (chains, draws)."""
    import blackjax  # here: importing blackjax 1.7 starts the backend, and the device count is then fixed

    def log_density(position: jax.Array) -> jax.Array:
        l, r = jnp.exp(position)
        return shared_log_likelihood(l, r, data) - (l**2 + r**2) / (2 * scale2) + position.sum()

    def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        start_key, warmup_key, draw_key = jax.random.split(key, 3)
        start = jax.random.uniform(start_key, (2,), minval=-1.0, maxval=1.0)
        (state, parameters), _ = blackjax.window_adaptation(blackjax.nuts, log_density, target_acceptance_rate=0.9).run(
            warmup_key, start, num_steps=warmup
        )
        kernel = blackjax.nuts(log_density, **parameters).step

        def step(state: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            state, info = kernel(key, state)
            return state, (state.position, info.is_divergent)

        return jax.lax.scan(step, state, jax.random.split(draw_key, draws))[1]

    return jax.vmap(run)(keys)


def _warnings(rhat: dict[str, float], ess: dict[str, float], divergences: int) -> tuple[str, ...]:
    """What a reader must know before using the draws; a NaN diagnostic fails too."""
    found = [f"NUTS: R-hat of {x} is {value:.3f}, above 1.01" for x, value in rhat.items() if not value <= 1.01]
    found += [f"NUTS: bulk ESS of {x} is {value:.0f}, below 400" for x, value in ess.items() if not value >= 400]
    return (*found, f"NUTS: {divergences} divergent transitions") if divergences else tuple(found)


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
    positions, divergent = _run_chains(keys, data, np.float32(scale2), warmup, draws)
    samples = {"l": jnp.exp(positions[..., 0]), "r": jnp.exp(positions[..., 1])}
    rhat = {name: float(blackjax.rhat(x)) for name, x in samples.items()}
    bulk = {name: float(blackjax.ess_bulk(x)) for name, x in samples.items()}
    tail = {name: float(blackjax.ess_tail(x)) for name, x in samples.items()}
    divergences = int(divergent.sum())
    r, l = np.asarray(samples["r"]), np.asarray(samples["l"])
    return NutsPosterior(r, l, rhat, bulk, tail, divergences, nodes, _warnings(rhat, bulk, divergences))
