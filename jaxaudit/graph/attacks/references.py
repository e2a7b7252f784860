"""Attacks that compare a true-class probability with its mean over shadow models: BASE and RMIA.

BASE (Lassila et al., "Practical Bayes-optimal membership inference attacks", arXiv:2505.24089). Derivation: with
weights distributed as p(W | training set) ∝ exp(−Σ losses), adding node i multiplies the density by exp(−ℓ_i(W)) / Z_i,
Z_i = E[exp(−ℓ_i(W′))] over models W′ trained without i. So log Λ_i = −ℓ_i(W) − log E_out[exp(−ℓ_i)], and exp(−ℓ_i) is
the true class's probability. ``base_offline`` averages over the out-models, as derived; ``base`` over all, the authors'
choice, which stands between the two sides.

RMIA (Zarifzadeh et al., "Low-cost high-power membership inference attacks", arXiv:2312.03262): the share of reference
nodes z whose own ratio p(z)/E[p(z)] the node's exceeds γ times. Here all other nodes of the graph are the reference,
weighted alike, so the score is an empirical distribution function within a target model (derived): one sort per model,
no pairs. At γ = 1 it ranks the nodes of a model as the ratio itself does, which is the authors' equivalence with BASE.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.graph.attacks.observed import Context, Observed

__all__ = ["OFFLINE_SLOPE", "base", "base_offline", "rmia", "rmia_offline"]

OFFLINE_SLOPE = 0.3
"""a of RMIA's offline guess at the in-models, E[p] ≈ ½((1 + a)·E_out[p] + 1 − a); the authors' value for CIFAR-10."""


def _log_mean(log_p: jax.Array, use: jax.Array) -> jax.Array:
    """(n, 1) log of the mean probability over the models in ``use``; NaN without one."""
    number = use.sum(axis=1, keepdims=True)
    total = jax.nn.logsumexp(jnp.where(use, log_p, -jnp.inf), axis=1, keepdims=True)
    return jnp.where(number > 0, total - jnp.log(jnp.maximum(number, 1)), jnp.nan)


@jax.jit
def _base(shadow: jax.Array, use: jax.Array, target: jax.Array) -> jax.Array:
    return target - _log_mean(shadow, use)


def _arrays(shadow: Observed, member: np.ndarray, target: Observed) -> tuple[jax.Array, jax.Array, jax.Array]:
    log_p, own = (jnp.asarray(seen.log_prob, jnp.float64) for seen in (shadow, target))
    return log_p, jnp.asarray(member, bool), jnp.where(jnp.isfinite(own), own, jnp.nan)


def base(shadow: Observed, member: np.ndarray, target: Observed, context: Context) -> np.ndarray:
    """BASE over all shadow models: (n, T) log-odds at prior ½, that is log p − log mean p."""
    with jax.enable_x64(True):
        log_p, _, own = _arrays(shadow, member, target)
        return np.asarray(_base(log_p, jnp.isfinite(log_p), own))


def base_offline(shadow: Observed, member: np.ndarray, target: Observed, context: Context) -> np.ndarray:
    """BASE over the models trained without the node: (n, T) log-odds at prior ½."""
    with jax.enable_x64(True):
        log_p, inside, own = _arrays(shadow, member, target)
        return np.asarray(_base(log_p, jnp.isfinite(log_p) & ~inside, own))


@jax.jit
def _exceedance(log_ratio: jax.Array, log_gamma: jax.Array) -> jax.Array:
    """Share of the other nodes z of each model with ratio(x) >= γ·ratio(z)."""
    valid = jnp.isfinite(log_ratio)
    at_least = jnp.where(valid, log_ratio, jnp.inf)
    asked = jnp.where(valid, log_ratio - log_gamma, -jnp.inf)
    below = jax.vmap(lambda z, x: jnp.searchsorted(jnp.sort(z), x, side="right"), 1, 1)(at_least, asked)
    others = jnp.maximum(valid.sum(axis=0) - 1, 1)
    return jnp.where(valid, (below - (log_gamma <= 0)) / others, jnp.nan)


@jax.jit
def _rmia(log_p: jax.Array, inside: jax.Array, own: jax.Array, log_gamma: jax.Array) -> jax.Array:
    use = jnp.isfinite(log_p)
    sides = _log_mean(log_p, use & inside), _log_mean(log_p, use & ~inside)
    return _exceedance(own - (jnp.logaddexp(*sides) - jnp.log(2.0)), log_gamma)


@jax.jit
def _rmia_offline(log_p: jax.Array, inside: jax.Array, own: jax.Array, log_gamma: jax.Array) -> jax.Array:
    outside = jnp.exp(_log_mean(log_p, jnp.isfinite(log_p) & ~inside))
    return _exceedance(own - jnp.log(0.5 * ((1 + OFFLINE_SLOPE) * outside + 1 - OFFLINE_SLOPE)), log_gamma)


def rmia(shadow: Observed, member: np.ndarray, target: Observed, context: Context) -> np.ndarray:
    """RMIA with in- and out-models averaged half and half: (n, T) in [0, 1]; NaN where a side has no model."""
    with jax.enable_x64(True):
        return np.asarray(_rmia(*_arrays(shadow, member, target), jnp.log(jnp.float64(context.rmia_gamma))))


def rmia_offline(shadow: Observed, member: np.ndarray, target: Observed, context: Context) -> np.ndarray:
    """RMIA from the models trained without the node: (n, T) in [0, 1]."""
    with jax.enable_x64(True):
        return np.asarray(_rmia_offline(*_arrays(shadow, member, target), jnp.log(jnp.float64(context.rmia_gamma))))
