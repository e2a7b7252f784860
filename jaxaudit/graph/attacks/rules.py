"""Decisions and error counts per node, under rules that keep the counts binomial.

A model that is judged never moves its own threshold, for only then are a node's error counts binomial. Given its
threshold, that is: the threshold itself is fitted to other models, and what the counts say is said of the threshold as
it came out. Without a leak FPR + FNR has the binomial variance; with one, FPR varies less and FNR more than binomial
counts around the rule's average over fits do. Limits of (r, l) hold for the realised threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from jaxaudit.graph.attacks.gaussian import MIN_FIT, MIN_OWN_VARIANCE, centred, cross_fitted_ratio, moments
from jaxaudit.graph.attacks.observed import OBSERVES
from jaxaudit.graph.attacks.statistics import STATISTICS, halves
from jaxaudit.runtime.checks import check_choice, check_int, check_real, require

__all__ = ["RULES", "AttackConfig", "Counts", "count_errors", "count_said", "fixed_fpr_decisions", "prior_log_odds"]

RULES = ("fixed_fpr", "likelihood", "bayes")


@dataclass(frozen=True)
class AttackConfig:
    """How a node's models are called member or not.

    Attributes:
        rule: ``fixed_fpr`` thresholds the statistic at a stated false-positive level; ``likelihood`` says member where
            Λ > 1; ``bayes`` where Λ > 1 / prior odds.
        level: nominal false-positive rate of ``fixed_fpr``, in (0, 1).
        statistic: ``logit`` (z_y − LSE of the other logits), ``loss`` (its negative) or ``margin``.
        observes: what the attacker sees of an output: ``logits``, ``probabilities``, ``topk`` or ``label``.
        topk: classes shown under ``topk``, >= 1.
        compare: attacks to run side by side, any of ``NODE_ATTACKS`` and the groups ``default`` (the quick and known
            ones) and ``all``; none: no comparison.
    """

    rule: str = "fixed_fpr"
    level: float = 0.1
    statistic: str = "logit"
    observes: str = "logits"
    topk: int = 3
    compare: tuple[str, ...] = ("default",)

    def __post_init__(self) -> None:
        check_choice("attack.rule", self.rule, RULES)
        check_real("attack.level", self.level, 0, 1, open_low=True, open_high=True)
        check_choice("attack.statistic", self.statistic, STATISTICS)
        check_choice("attack.observes", self.observes, OBSERVES)
        check_int("attack.topk", self.topk, 1)
        require(isinstance(self.compare, tuple), "attack.compare", "be a list of attacks", self.compare)


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


@jax.jit
def _fixed_fpr(t: jax.Array, member: jax.Array, valid: jax.Array, z: jax.Array) -> jax.Array:
    """Decisions T > leave-one-out out-mean + z·sd; a member is not among the out-models anyway."""
    out = moments(t, valid & ~member)
    left = out.number - ~member  # models behind the threshold of each (node, model)
    mean = jnp.where(member, out.mean, out.mean - (t - out.mean) / jnp.maximum(out.number - 1, 1))
    removed = (t - out.mean) ** 2 * out.number / jnp.maximum(out.number - 1, 1)
    squares = jnp.maximum(out.squares - jnp.where(member, 0, removed), 0)
    freedom = jnp.where(valid, jnp.maximum(left - 1, 0), 0)
    own = squares / jnp.maximum(left - 1, 1)
    total = jnp.sum(jnp.where(freedom > 0, squares, 0), axis=0) / jnp.maximum(freedom.sum(axis=0), 1)
    deviation = jnp.sqrt(jnp.where(left >= MIN_OWN_VARIANCE, own, total))
    return valid & (t > mean + z * deviation)


def fixed_fpr_decisions(statistic: np.ndarray, member: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Which models are called member at a nominal false-positive level, and which nodes the rule fits.

    Args:
        statistic: (n, K); the threshold is the out-models' mean plus Φ⁻¹(1 − level) standard deviations, without the
            judged model.
        member: (n, K) bool.
        level: in (0, 1).

    Returns:
        (n, K) bool decisions and (n,) bool.
    """
    t, valid = centred(statistic)
    with jax.enable_x64(True):
        z = jnp.float64(stats.norm.isf(level))
        said = np.asarray(_fixed_fpr(*map(jnp.asarray, (t, np.asarray(member, bool), valid)), z))
    return said, (valid & ~member).sum(axis=1) > MIN_FIT


def prior_log_odds(prior: np.ndarray) -> np.ndarray:
    """(n,) log γ − log(1 − γ); ±infinite at 0 and 1.

    Example:
        >>> prior_log_odds(np.array([0.5, 1.0])).tolist()
        [0.0, inf]
    """
    gamma = np.asarray(prior, np.float64)
    with np.errstate(divide="ignore"):
        return np.log(gamma) - np.log1p(-gamma)


def count_said(said: np.ndarray, counted: np.ndarray, member: np.ndarray, fitted: np.ndarray) -> Counts:
    """The counts of given decisions: (n, K) bool each, and (n,) bool nodes whose rule could be fitted."""
    n_in, n_out = (counted & member).sum(axis=1), (counted & ~member).sum(axis=1)
    auditable = fitted & (n_in > 0) & (n_out > 0)
    fp = np.where(auditable, (said & counted & ~member).sum(axis=1), np.nan)
    fn = np.where(auditable, (~said & counted & member).sum(axis=1), np.nan)
    return Counts(fp, n_out, fn, n_in, auditable, said, counted)


def count_errors(
    statistic: np.ndarray,
    member: np.ndarray,
    config: AttackConfig = _FIXED_FPR,
    prior: np.ndarray | None = None,
    paired: bool = False,
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
        paired: models 2j and 2j + 1 are complements; ``even`` and ``odd`` are then said of pairs.

    Example:
        >>> t = np.array([[0.0, 5.0, 1.0, 6.0, 0.5, 7.0, 0.2, 5.5]])
        >>> counts = count_errors(t, t > 3)
        >>> counts.fn.tolist(), counts.n_in.tolist()
        ([0.0], [4])
    """
    member, shape = np.asarray(member, bool), np.shape(statistic)
    require(len(shape) == 2 and shape == member.shape, "statistic", f"have the shape {member.shape} of member", shape)
    valid = np.isfinite(np.asarray(statistic, np.float64))
    if config.rule == "fixed_fpr":
        said, fitted = fixed_fpr_decisions(statistic, member, config.level)
        return count_said(said, valid, member, fitted)
    ratio = cross_fitted_ratio(statistic, member, paired=paired)
    counted = valid & halves(shape[1], paired)
    fitted = np.asarray(np.isfinite(np.where(counted, ratio, 0)).all(axis=1))
    threshold = np.zeros((shape[0], 1))
    if config.rule == "bayes":
        require(prior is not None, "prior", "be given for attack.rule=bayes", "None")
        threshold = -prior_log_odds(np.asarray(prior))[:, None]
    with np.errstate(invalid="ignore"):
        said = ratio > threshold
    return count_said(said, counted, member, fitted)
