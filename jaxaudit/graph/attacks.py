"""Node-level membership attacks on an ensemble: statistics, counting rules, and AUCs without bias.

Everything is an operation on (nodes, models) arrays. A model that is judged never moves its own threshold, for only
then are a node's error counts binomial. Higher statistics are more member-like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from jaxaudit.runtime.checks import check_choice, check_real, require

__all__ = [
    "RULES", "STATISTICS", "AttackConfig", "Counts", "count_errors", "cross_fitted_ratio", "halves", "node_statistic",
]  # fmt: skip

RULES = ("fixed_fpr", "likelihood", "bayes")
MIN_FIT = 2
"""Models that a side must have before anything is fitted to it."""
MIN_OWN_VARIANCE = 3
"""Models that a side must have for a variance of its own; below, the variance is pooled."""
_TINY = 1e-12  # variance floor: a node whose statistic is constant


def _logit(logits: jax.Array, true: jax.Array) -> jax.Array:
    others = jnp.where(true, -jnp.inf, logits)
    return jnp.sum(jnp.where(true, logits, 0), axis=-1) - jax.nn.logsumexp(others, axis=-1)


def _loss(logits: jax.Array, true: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(true, jax.nn.log_softmax(logits), 0), axis=-1)


def _margin(logits: jax.Array, true: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(true, logits, 0), axis=-1) - jnp.max(jnp.where(true, -jnp.inf, logits), axis=-1)


STATISTICS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {"logit": _logit, "loss": _loss, "margin": _margin}
"""Name -> function of logits (..., C) and the one-hot true class (..., C)."""


@dataclass(frozen=True)
class AttackConfig:
    """How a node's models are called member or not.

    Attributes:
        rule: ``fixed_fpr`` thresholds the statistic at a stated false-positive level; ``likelihood`` says member where
            Λ > 1; ``bayes`` where Λ > 1 / prior odds.
        level: nominal false-positive rate of ``fixed_fpr``, in (0, 1).
        statistic: ``logit`` (z_y − LSE of the other logits), ``loss`` (its negative) or ``margin``.
    """

    rule: str = "fixed_fpr"
    level: float = 0.1
    statistic: str = "logit"

    def __post_init__(self) -> None:
        check_choice("attack.rule", self.rule, RULES)
        check_real("attack.level", self.level, 0, 1, open_low=True, open_high=True)
        check_choice("attack.statistic", self.statistic, STATISTICS)


_FIXED_FPR = AttackConfig()


@dataclass(frozen=True, eq=False)
class Counts:
    """Errors of the attack, per node.

    Attributes:
        fp, fn: (n,) float64 false positives and false negatives; NaN where not auditable.
        n_out, n_in: (n,) int64 counted models without and with the node.
        auditable: (n,) bool, the rule could be fitted and both sides have a counted model.
        said_member: (n, K) bool decisions.
        counted: (n, K) bool, the decisions that entered the counts.
    """

    fp: np.ndarray
    n_out: np.ndarray
    fn: np.ndarray
    n_in: np.ndarray
    auditable: np.ndarray
    said_member: np.ndarray
    counted: np.ndarray


class _Moments(NamedTuple):
    """Per node, over some models: how many, their mean, and their sum of squared deviations."""

    number: jax.Array
    mean: jax.Array
    squares: jax.Array


def node_statistic(logits: np.ndarray, labels: np.ndarray, name: str = "logit") -> np.ndarray:
    """The attack statistic of every node and model.

    Args:
        logits: (K, n, C) float32.
        labels: (n,) int.
        name: see ``AttackConfig``.

    Returns:
        (n, K) float32; NaN or infinite where the logits are not finite.

    Example:
        >>> node_statistic(np.array([[[2.0, 0.0]]]), np.array([0]), "margin").tolist()
        [[2.0]]
    """
    check_choice("attack.statistic", name, STATISTICS)
    true = jnp.asarray(labels)[:, None] == jnp.arange(logits.shape[-1])
    out = jax.jit(STATISTICS[name])(jnp.asarray(logits, jnp.float32), true)
    return np.ascontiguousarray(np.asarray(out).T)


def halves(count: int) -> np.ndarray:
    """(K,) bool: the odd-numbered models, which are judged by what the even-numbered ones teach.

    Example:
        >>> halves(4).tolist()
        [False, True, False, True]
    """
    return np.arange(count) % 2 == 1


def _moments(t: jax.Array, use: jax.Array) -> _Moments:
    count = use.sum(axis=1, keepdims=True).astype(t.dtype)
    mean = jnp.sum(jnp.where(use, t, 0), axis=1, keepdims=True) / jnp.maximum(count, 1)
    return _Moments(count, mean, jnp.sum(jnp.where(use, (t - mean) ** 2, 0), axis=1, keepdims=True))


def _ratio(t: jax.Array, member: jax.Array, use: jax.Array) -> jax.Array:
    """Log Λ of every (node, model) under Gaussians fitted to the models in ``use``; NaN where not enough of them.

    A side's own variance needs ``MIN_OWN_VARIANCE`` models; where either side has fewer, both take the node's variance
    pooled over its two sides. Own variances matter under snowball, where they carry part of the signal (Cora, ratio .5:
    AUC .87, with pooled ones .82).
    """
    inside, outside = _moments(t, use & member), _moments(t, use & ~member)
    pooled = (inside.squares + outside.squares) / jnp.maximum(inside.number + outside.number - 2, 1)
    fewest = jnp.minimum(inside.number, outside.number)

    def log_density(side: _Moments) -> jax.Array:
        own = side.squares / jnp.maximum(side.number - 1, 1)
        variance = jnp.maximum(jnp.where(fewest >= MIN_OWN_VARIANCE, own, pooled), _TINY)
        return -0.5 * ((t - side.mean) ** 2 / variance + jnp.log(variance))

    return jnp.where(fewest >= MIN_FIT, log_density(inside) - log_density(outside), jnp.nan)


@jax.jit
def _cross_fitted(t: jax.Array, member: jax.Array, valid: jax.Array, odd: jax.Array) -> jax.Array:
    from_even, from_odd = _ratio(t, member, valid & ~odd), _ratio(t, member, valid & odd)
    return jnp.where(valid, jnp.where(odd, from_even, from_odd), jnp.nan)


@jax.jit
def _fixed_fpr(t: jax.Array, member: jax.Array, valid: jax.Array, z: jax.Array) -> jax.Array:
    """Decisions T > leave-one-out out-mean + z·sd; a member is not among the out-models anyway."""
    out = _moments(t, valid & ~member)
    left = out.number - ~member  # models behind the threshold of each (node, model)
    mean = jnp.where(member, out.mean, out.mean - (t - out.mean) / jnp.maximum(out.number - 1, 1))
    removed = (t - out.mean) ** 2 * out.number / jnp.maximum(out.number - 1, 1)
    squares = jnp.maximum(out.squares - jnp.where(member, 0, removed), 0)
    freedom = jnp.where(valid, jnp.maximum(left - 1, 0), 0)
    own = squares / jnp.maximum(left - 1, 1)
    total = jnp.sum(jnp.where(freedom > 0, squares, 0), axis=0) / jnp.maximum(freedom.sum(axis=0), 1)
    deviation = jnp.sqrt(jnp.where(left >= MIN_OWN_VARIANCE, own, total))
    return valid & (t > mean + z * deviation)


def _checked(statistic: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float64 statistics centred per node (0 where not finite), memberships, and which are finite."""
    t, member = np.asarray(statistic, np.float64), np.asarray(member, bool)
    require(t.ndim == 2 and t.shape == member.shape, "statistic", f"have the shape {member.shape} of member", t.shape)
    valid = np.isfinite(t)
    t = np.where(valid, t, 0)
    t = t - t.sum(axis=1, keepdims=True) / np.maximum(valid.sum(axis=1, keepdims=True), 1)
    return np.where(valid, t, 0), member, valid


def cross_fitted_ratio(statistic: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Log Λ̂ of each (node, model), with in- and out-Gaussians fitted on the half of the models that it is not in.

    Args:
        statistic: (n, K), member-like high or not: the ratio finds the direction.
        member: (n, K) bool.

    Returns:
        (n, K) float64; NaN where the other half has fewer than ``MIN_FIT`` models on a side.
    """
    t, member, valid = _checked(statistic, member)
    with jax.enable_x64(True):
        return np.asarray(_cross_fitted(*map(jnp.asarray, (t, member, valid, halves(t.shape[1])))))


def count_errors(
    statistic: np.ndarray, member: np.ndarray, config: AttackConfig = _FIXED_FPR, prior: np.ndarray | None = None
) -> Counts:
    """Count each node's false positives and false negatives under a rule that keeps them binomial.

    ``fixed_fpr`` judges all K models, by a threshold at the mean of the out-models other than the judged one plus z
    standard deviations; where fewer than three are left, the deviation is pooled over all nodes.
    ``likelihood`` and ``bayes`` fit on the even-numbered models and count on the odd-numbered ones only: adding the
    reverse direction would correlate the errors.

    Args:
        statistic: (n, K), higher is more member-like; not finite: that model is left out for that node.
        member: (n, K) bool.
        config: the rule.
        prior: (n,) P(member), for ``bayes``.

    Example:
        >>> t = np.array([[0.0, 5.0, 1.0, 6.0, 0.5, 7.0, 0.2, 5.5]])
        >>> counts = count_errors(t, t > 3)
        >>> counts.fn.tolist(), counts.n_in.tolist()
        ([0.0], [4])
    """
    t, member, valid = _checked(statistic, member)
    odd = halves(t.shape[1])
    if config.rule == "fixed_fpr":
        with jax.enable_x64(True):
            z = float(stats.norm.isf(config.level))
            said = np.asarray(_fixed_fpr(*map(jnp.asarray, (t, member, valid)), jnp.float64(z)))
        counted = valid
        fitted = (valid & ~member).sum(axis=1) > MIN_FIT
    else:
        ratio = cross_fitted_ratio(statistic, member)
        counted = valid & odd
        fitted = np.isfinite(np.where(counted, ratio, 0)).all(axis=1)
        threshold = np.zeros((t.shape[0], 1))
        if config.rule == "bayes":
            require(prior is not None, "prior", "be given for attack.rule=bayes", "None")
            gamma = np.asarray(prior, np.float64)[:, None]
            with np.errstate(divide="ignore"):
                threshold = np.log1p(-gamma) - np.log(gamma)
        with np.errstate(invalid="ignore"):
            said = ratio > threshold
    n_in, n_out = (counted & member).sum(axis=1), (counted & ~member).sum(axis=1)
    auditable = fitted & (n_in > 0) & (n_out > 0)
    fp = np.where(auditable, (said & counted & ~member).sum(axis=1), np.nan)
    fn = np.where(auditable, (~said & counted & member).sum(axis=1), np.nan)
    return Counts(fp, n_out, fn, n_in, auditable, said, counted)
