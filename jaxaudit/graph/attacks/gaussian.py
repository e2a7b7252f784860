"""The per-node likelihood ratio: in- and out-distributions of the statistic fitted to shadow models.

Online (Carlini et al., "Membership inference attacks from first principles", arXiv:2112.03570): log p(t | in) −
log p(t | out). Offline: the out-models alone, log P(T ≤ t | out). Both per node, as (nodes, models) arrays.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, digamma, gammaln, log_ndtr, polygamma

from jaxaudit.graph.attacks.statistics import halves
from jaxaudit.runtime.checks import check_choice, require

__all__ = [
    "MIN_FIT", "MIN_OWN_VARIANCE", "VARIANCES", "Moments", "centred", "cross_fitted_ratio", "log_ratio", "moments",
    "out_survival",
]  # fmt: skip

MIN_FIT = 2
"""Models that a side must have before anything is fitted to it."""
MIN_OWN_VARIANCE = 3
"""Models that a side must have for a variance of its own; below, the variance is pooled."""
VARIANCES = ("own", "global", "shrunken")
"""``own``: each node and side its own; ``global``: one for all nodes and both sides; ``shrunken``: between the two."""
_TINY = 1e-12  # variance floor: a node whose statistic is constant
_NEWTON = 12  # steps of the inverse trigamma, which converges monotonically and quadratically
_MOST = 1e6  # degrees of freedom of the prior where the variances differ by no more than chance


class Moments(NamedTuple):
    """Per node, over some models: how many, their mean, and their sum of squared deviations; each (n, 1)."""

    number: jax.Array
    mean: jax.Array
    squares: jax.Array


class _Side(NamedTuple):
    """A fitted side: location, squared scale, and degrees of freedom of a Student t (None: normal); each (n, 1)."""

    mean: jax.Array
    variance: jax.Array
    freedom: jax.Array | None = None


def moments(t: jax.Array, use: jax.Array) -> Moments:
    """Moments of each row of ``t`` over the models in ``use``; both (n, K)."""
    count = use.sum(axis=1, keepdims=True).astype(t.dtype)
    mean = jnp.sum(jnp.where(use, t, 0), axis=1, keepdims=True) / jnp.maximum(count, 1)
    return Moments(count, mean, jnp.sum(jnp.where(use, (t - mean) ** 2, 0), axis=1, keepdims=True))


def centred(statistic: np.ndarray, shadow: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """float64 statistics minus the node's mean over ``shadow`` (itself), 0 where not finite; and which are finite.

    Example:
        >>> centred(np.array([[1.0, 3.0, np.nan]]))[0].tolist()
        [[-1.0, 1.0, 0.0]]
    """
    t, base = (np.asarray(part, np.float64) for part in (statistic, statistic if shadow is None else shadow))
    valid, known = np.isfinite(t), np.isfinite(base)
    mean = np.where(known, base, 0).sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    return np.where(valid, np.where(valid, t, 0) - mean, 0), valid


def _inverse_trigamma(y: jax.Array) -> jax.Array:
    def step(_: int, x: jax.Array) -> jax.Array:
        value = polygamma(1, x)
        return x + value * (1 - value / y) / polygamma(2, x)

    return jax.lax.fori_loop(0, _NEWTON, step, 0.5 + 1 / y)


def _shrink(side: Moments) -> _Side:
    """Variances moderated towards each other, and the predictive Student t they give.

    Prior s² ~ scaled inverse χ²(d0, s0²), its two numbers fitted to the mean and variance over nodes of log s²
    (Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004, eq. 6.2). The posterior variance is (d0·s0² + SS)/(d0 + d), and a new
    value is Student t of d0 + d degrees of freedom with squared scale that times 1 + 1/number (derived: the mean's
    posterior under a flat prior is integrated out).
    """
    freedom = jnp.maximum(side.number - 1, 1)
    use = side.number >= MIN_FIT
    nodes = jnp.maximum(use.sum(), 2)
    own = jnp.maximum(side.squares / freedom, _TINY)
    e = jnp.where(use, jnp.log(own) - digamma(freedom / 2) + jnp.log(freedom / 2), 0)
    centre = e.sum() / nodes
    sampling = jnp.where(use, polygamma(1, freedom / 2), 0).sum() / nodes
    excess = jnp.where(use, (e - centre) ** 2, 0).sum() / (nodes - 1) - sampling
    d0 = jnp.where(excess > 4 / _MOST, 2 * _inverse_trigamma(jnp.maximum(excess, 4 / _MOST)), _MOST)
    s0 = jnp.exp(centre + digamma(d0 / 2) - jnp.log(d0 / 2))
    variance = (d0 * s0 + jnp.where(use, side.squares, 0)) / (d0 + jnp.where(use, freedom, 0))
    return _Side(side.mean, variance * (1 + 1 / jnp.maximum(side.number, 1)), d0 + freedom)


def _sides(t: jax.Array, inside: jax.Array, outside: jax.Array, variance: str) -> tuple[_Side, _Side]:
    """Both sides' fits. A side's own variance needs ``MIN_OWN_VARIANCE`` models; where either side has fewer, both take
    the node's variance pooled over its two sides. Own variances matter under snowball, where they carry part of the
    signal (Cora, ratio .5: AUC .87, with pooled ones .82).
    """
    both = moments(t, inside), moments(t, outside)
    if variance == "shrunken":
        return _shrink(both[0]), _shrink(both[1])
    freedom = [jnp.maximum(side.number - 1, 0) for side in both]
    squares, pooled_freedom = both[0].squares + both[1].squares, freedom[0] + freedom[1]
    if variance == "global":
        shared = squares.sum() / jnp.maximum(pooled_freedom.sum(), 1)
        spreads = [jnp.full_like(side.mean, shared) for side in both]
    else:
        pooled = squares / jnp.maximum(pooled_freedom, 1)
        enough = jnp.minimum(both[0].number, both[1].number) >= MIN_OWN_VARIANCE
        spreads = [
            jnp.where(enough, side.squares / jnp.maximum(d, 1), pooled)
            for side, d in zip(both, freedom, strict=True)
        ]  # fmt: skip
    fits = [_Side(side.mean, jnp.maximum(spread, _TINY)) for side, spread in zip(both, spreads, strict=True)]
    return fits[0], fits[1]


def _log_density(t: jax.Array, side: _Side) -> jax.Array:
    """Up to the constant −½ log 2π, which cancels in ratios."""
    square, d = (t - side.mean) ** 2 / side.variance, side.freedom
    if d is None:
        return -0.5 * (square + jnp.log(side.variance))
    scale = gammaln((d + 1) / 2) - gammaln(d / 2) - 0.5 * jnp.log(d / 2)
    return scale - (d + 1) / 2 * jnp.log1p(square / d) - 0.5 * jnp.log(side.variance)


def _log_distribution(t: jax.Array, side: _Side) -> jax.Array:
    """Log P(T ≤ t)."""
    z, d = (t - side.mean) / jnp.sqrt(side.variance), side.freedom
    if d is None:
        return log_ndtr(z)
    tail = 0.5 * betainc(d / 2, 0.5, d / (d + z**2))
    return jnp.where(z < 0, jnp.log(jnp.maximum(tail, jnp.finfo(t.dtype).tiny)), jnp.log1p(-tail))


def log_ratio(shadow: jax.Array, use: jax.Array, member: jax.Array, t: jax.Array, variance: str = "own") -> jax.Array:
    """Log Λ of every (node, target model); NaN where a side has fewer than ``MIN_FIT`` models. Traceable.

    Args:
        shadow: (n, K) statistics of the shadow models.
        use: (n, K) bool, which of them are fitted.
        member: (n, K) bool.
        t: (n, T) statistics of the target models, centred as ``shadow``.
        variance: one of ``VARIANCES``.
    """
    inside, outside = _sides(shadow, use & member, use & ~member, variance)
    fewest = jnp.minimum((use & member).sum(axis=1), (use & ~member).sum(axis=1))[:, None]
    return jnp.where(fewest >= MIN_FIT, _log_density(t, inside) - _log_density(t, outside), jnp.nan)


def out_survival(
    shadow: jax.Array, use: jax.Array, member: jax.Array, t: jax.Array, variance: str = "own"
) -> jax.Array:
    """Log P(T ≤ t | out), high where t is high for a non-member. Traceable.

    The in-models are not looked at, so one needs none. Arguments and NaN as ``log_ratio``'s, out-side only.
    """
    out = use & ~member
    if variance == "own":  # the sole side: its own variance from three models on, else the one shared by all nodes
        side = moments(shadow, out)
        freedom = jnp.maximum(side.number - 1, 0)
        shared = side.squares.sum() / jnp.maximum(freedom.sum(), 1)
        spread = jnp.where(side.number >= MIN_OWN_VARIANCE, side.squares / jnp.maximum(freedom, 1), shared)
        fit = _Side(side.mean, jnp.maximum(spread, _TINY))
    else:
        fit = _sides(shadow, jnp.zeros_like(out), out, variance)[1]
    return jnp.where(out.sum(axis=1, keepdims=True) >= MIN_FIT, _log_distribution(t, fit), jnp.nan)


@partial(jax.jit, static_argnames="variance")
def _cross_fitted(t: jax.Array, member: jax.Array, valid: jax.Array, odd: jax.Array, variance: str) -> jax.Array:
    from_even, from_odd = (log_ratio(t, valid & half, member, t, variance) for half in (~odd, odd))
    return jnp.where(valid, jnp.where(odd, from_even, from_odd), jnp.nan)


def cross_fitted_ratio(
    statistic: np.ndarray, member: np.ndarray, variance: str = "own", paired: bool = False
) -> np.ndarray:
    """Log Λ̂ of each (node, model), with in- and out-Gaussians fitted on the half of the models that it is not in.

    Args:
        statistic: (n, K), member-like high or not: the ratio finds the direction.
        member: (n, K) bool.
        variance: one of ``VARIANCES``.
        paired: models 2j and 2j + 1 are complements (``halves``).

    Returns:
        (n, K) float64; NaN where the other half has fewer than ``MIN_FIT`` models on a side.

    Raises:
        InputError: shapes that differ, or an unknown variance.

    Example:
        >>> member = np.arange(16)[None] // 2 % 2 == 0
        >>> ratio = cross_fitted_ratio(2.0 * member + np.linspace(0, 1, 16), member)
        >>> bool((ratio[member] > 0).all()), bool((ratio[~member] < 0).all())
        (True, True)
    """
    check_choice("variance", variance, VARIANCES)
    member = np.asarray(member, bool)
    shape = np.shape(statistic)
    require(len(shape) == 2 and shape == member.shape, "statistic", f"have the shape {member.shape} of member", shape)
    t, valid = centred(statistic)
    odd = halves(t.shape[1], paired)
    with jax.enable_x64(True):
        return np.asarray(_cross_fitted(*map(jnp.asarray, (t, member, valid, odd)), variance))
