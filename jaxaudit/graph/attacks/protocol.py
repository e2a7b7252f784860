"""One protocol for all node attacks: target models are scored by what shadow models teach.

``score(shadow, member, target, context) -> (n, T)`` is pure; ``NODE_ATTACKS`` names every one. With targets of their
own it is called once; without, the two halves of the models score each other (``cross_fit``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.graph.attacks import gaussian, global_mlp, references, thresholds
from jaxaudit.graph.attacks.g_base import g_base
from jaxaudit.graph.attacks.observed import Context, Observed, select
from jaxaudit.graph.attacks.rules import AttackConfig, Counts, count_said, fixed_fpr_decisions, prior_log_odds
from jaxaudit.graph.attacks.statistics import halves
from jaxaudit.runtime.checks import check_choice, require

__all__ = ["NODE_ATTACKS", "NodeAttack", "attack_counts", "cross_fit", "score_targets"]

Score = Callable[[Observed, np.ndarray, Observed, Context], np.ndarray]

_FIXED_FPR = AttackConfig()


@dataclass(frozen=True)
class NodeAttack:
    """A registered attack.

    Attributes:
        score: (shadow, member (n, K) bool, target, context) -> (n, T) float64, NaN where it cannot.
        log_ratio: the score is an estimate of log Λ, so that 0 decides and the prior log odds may be added.
        uses: what it fits: "in and out", "out" or "nothing".
    """

    score: Score
    log_ratio: bool
    uses: str


@partial(jax.jit, static_argnames=("offline", "variance"))
def _gaussian(shadow: Any, use: Any, member: Any, target: Any, valid: Any, offline: bool, variance: str) -> jax.Array:
    function = gaussian.out_survival if offline else gaussian.log_ratio
    return jnp.where(valid, function(shadow, use, member, target, variance), jnp.nan)


def _likelihood(offline: bool, variance: str) -> Score:
    def score(shadow: Observed, member: np.ndarray, target: Observed, context: Context) -> np.ndarray:
        t, valid = gaussian.centred(np.asarray(target.statistic), np.asarray(shadow.statistic))
        fitted, use = gaussian.centred(np.asarray(shadow.statistic))
        with jax.enable_x64(True):
            arrays = map(jnp.asarray, (fitted, use, member, t, valid))
            return np.asarray(_gaussian(*arrays, offline=offline, variance=variance))

    return score


NODE_ATTACKS: dict[str, NodeAttack] = {
    "likelihood_ratio": NodeAttack(_likelihood(False, "own"), True, "in and out"),
    "likelihood_ratio_global": NodeAttack(_likelihood(False, "global"), True, "in and out"),
    "likelihood_ratio_shrunken": NodeAttack(_likelihood(False, "shrunken"), True, "in and out"),
    "likelihood_ratio_offline": NodeAttack(_likelihood(True, "own"), False, "out"),
    "likelihood_ratio_offline_global": NodeAttack(_likelihood(True, "global"), False, "out"),
    "likelihood_ratio_offline_shrunken": NodeAttack(_likelihood(True, "shrunken"), False, "out"),
    "rmia": NodeAttack(references.rmia, False, "in and out"),
    "rmia_offline": NodeAttack(references.rmia_offline, False, "out"),
    "base": NodeAttack(references.base, True, "in and out"),
    "base_offline": NodeAttack(references.base_offline, True, "out"),
    "g_base": NodeAttack(g_base, True, "in and out"),
    "loss": NodeAttack(thresholds.loss, False, "nothing"),
    "confidence": NodeAttack(thresholds.confidence, False, "nothing"),
    "entropy": NodeAttack(thresholds.entropy, False, "nothing"),
    "modified_entropy": NodeAttack(thresholds.modified_entropy, False, "nothing"),
    "global_mlp": NodeAttack(global_mlp.global_mlp, False, "in and out"),
}
"""Name -> attack."""


def score_targets(name: str, shadow: Observed, member: np.ndarray, target: Observed, context: Context) -> np.ndarray:
    """Score target models by shadow models.

    Args:
        name: of ``NODE_ATTACKS``.
        shadow: K models.
        member: (n, K) bool, the shadows' training sets.
        target: T other models.
        context: priors and seed.

    Returns:
        (n, T) float64, higher is more member-like; NaN where it cannot.

    Raises:
        InputError: an unknown name, or shapes that do not fit.
    """
    check_choice("attack", name, NODE_ATTACKS)
    member, shape = np.asarray(member, bool), np.shape(shadow.statistic)
    require(member.shape == shape, "member", f"have the shape {shape} of the shadow models", member.shape)
    nodes = np.shape(target.statistic)[0]
    require(nodes == shape[0], "target", f"have the {shape[0]} nodes of the shadow models", nodes)
    return NODE_ATTACKS[name].score(shadow, member, target, context)


def cross_fit(name: str, observed: Observed, member: np.ndarray, context: Context, paired: bool = False) -> np.ndarray:
    """Score every model by the half that it is not in (``halves``).

    Args:
        name: of ``NODE_ATTACKS``.
        observed: K models.
        member: (n, K) bool.
        context: priors and seed.
        paired: models 2j and 2j + 1 are complements: the halves are then of pairs.

    Returns:
        (n, K) float64. Scores of the two halves come from two fits: compare them within a half.

    Example:
        >>> from jaxaudit.graph.attacks import observe
        >>> seen = observe(np.random.default_rng(0).normal(size=(8, 3, 2)), np.zeros(3, int))
        >>> cross_fit("loss", seen, np.ones((3, 8), bool), Context(np.full(3, 0.5))).shape
        (3, 8)
    """
    member = np.asarray(member, bool)
    odd = halves(member.shape[1], paired)
    out = np.full(member.shape, np.nan)
    for half in (odd, ~odd):
        out[:, half] = score_targets(name, select(observed, ~half), member[:, ~half], select(observed, half), context)
    return out


def attack_counts(
    name: str,
    observed: Observed,
    member: np.ndarray,
    context: Context,
    config: AttackConfig = _FIXED_FPR,
    paired: bool = False,
) -> Counts:
    """Error counts per node of any attack, under a rule that keeps them binomial.

    The even half teaches, the odd half is judged; the scores of the odd half share one fit and none of them entered it.
    ``fixed_fpr`` thresholds them at the mean of the odd out-models other than the judged one plus z deviations;
    ``likelihood`` at 0 and ``bayes`` at minus the prior log odds, for attacks whose score is a log ratio.

    Args:
        name: of ``NODE_ATTACKS``.
        observed: K models.
        member: (n, K) bool.
        context: priors and seed.
        config: the rule and its level; its statistic is ``observed``'s.
        paired: models 2j and 2j + 1 are complements.

    Raises:
        InputError: a likelihood rule for an attack whose score is no log ratio.
    """
    member = np.asarray(member, bool)
    odd = halves(member.shape[1], paired)
    scores = score_targets(name, select(observed, ~odd), member[:, ~odd], select(observed, odd), context)
    said, counted = np.zeros(member.shape, bool), np.zeros(member.shape, bool)
    counted[:, odd] = np.isfinite(scores)
    if config.rule == "fixed_fpr":
        said[:, odd], fitted = fixed_fpr_decisions(scores, member[:, odd], config.level)
    else:
        ok = NODE_ATTACKS[name].log_ratio
        require(ok, "attack.rule", f"be fixed_fpr for {name}, whose score is no log ratio", config.rule)
        threshold = -prior_log_odds(context.prior)[:, None] if config.rule == "bayes" else 0.0
        with np.errstate(invalid="ignore"):
            said[:, odd] = scores > threshold
        fitted = np.ones(member.shape[0], bool)
    return count_said(said, counted, member, fitted)
