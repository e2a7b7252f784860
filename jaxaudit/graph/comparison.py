"""Attacks side by side, and decision rules side by side, with intervals from resampled models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxaudit.evaluate.roc import roc_curve
from jaxaudit.graph.attacks import (
    NODE_ATTACKS,
    Context,
    Observed,
    cross_fitted_ratio,
    halves,
    prior_log_odds,
    score_targets,
    select,
)  # fmt: skip
from jaxaudit.graph.attacks.rules import fixed_fpr_decisions
from jaxaudit.graph.auc import (
    cross_fitted_interval,
    half_weights,
    node_mean,
    pooled_replicates,
    recentred,
    within_node_auc,
)
from jaxaudit.graph.rates import fixed_fpr_rates, resampled_rates
from jaxaudit.runtime.checks import check_choice, check_int, check_real, require

__all__ = ["LEVELS", "AttackRow", "compare_attacks", "compare_rules", "default_attacks", "named_attacks"]

LEVELS = (0.01, 0.001)
"""False-positive rates at which realised true-positive rates are stated."""
_REPLICATES = 400
_DEFAULT = (
    "likelihood_ratio", "likelihood_ratio_shrunken", "likelihood_ratio_offline", "rmia", "base", "loss", "entropy",
)  # fmt: skip
"""What ``default`` stands for: quick, and known from the literature."""


@dataclass(frozen=True, eq=False)
class AttackRow:
    """One attack's figures.

    Attributes:
        attack: registered name.
        values: ``within_node_auc``: mean over nodes of ``node_auc``. ``pooled_auc``: over all (node, model) pairs.
            ``target_auc``: AUC over nodes of one model, mean over target models (what public tools report).
            ``tpr_at_0.01``, ``tpr_at_0.001``: realised true-positive rate over nodes at a false-positive rate of at
            most that, mean over target models; never interpolated.
        intervals: the same names, 95 %, models resampled.
        node_auc: (n,) AUC across models, mean of the directions in which it is defined, NaN where in none
            (``AttackAUC.node_likelihood_ratio`` is that of ``likelihood_ratio``).
    """

    attack: str
    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    node_auc: np.ndarray

    def flat(self) -> dict[str, Any]:
        """A JSON-ready row: the values, and each interval as ``NAME_ci``."""
        return {"attack": self.attack, **self.values} | {f"{k}_ci": list(v) for k, v in self.intervals.items()}


def named_attacks(compare: Sequence[str]) -> tuple[str, ...]:
    """The attacks that ``AttackConfig.compare`` names, each once, in the order of the registry.

    Raises:
        InputError: a name that is neither an attack nor ``default`` nor ``all``.

    Example:
        >>> named_attacks(["loss", "base", "loss"])
        ('base', 'loss')
    """
    for name in compare:
        check_choice("attack.compare", name, ("default", "all", *NODE_ATTACKS))
    chosen = set(compare) | (set(_DEFAULT) if "default" in compare else set())
    return tuple(name for name in NODE_ATTACKS if name in chosen or "all" in chosen)


def default_attacks(observed: Observed) -> tuple[str, ...]:
    """All registered attacks that the observation allows: ``g_base`` needs its contrast."""
    return tuple(name for name in NODE_ATTACKS if name != "g_base" or observed.contrast is not None)


def _over_nodes(scores: np.ndarray, member: np.ndarray) -> dict[str, np.ndarray]:
    """(T,) AUC and realised TPRs of each target model over its nodes; NaN without both classes."""
    out = {name: np.full(scores.shape[1], np.nan) for name in ("target_auc", *(f"tpr_at_{a:g}" for a in LEVELS))}
    for k in range(scores.shape[1]):
        keep = np.isfinite(scores[:, k])
        inside = member[keep, k]
        if inside.any() and not inside.all():
            curve = roc_curve(scores[keep, k], inside)
            out["target_auc"][k] = np.trapezoid(curve.tpr, curve.fpr)
            for level in LEVELS:
                out[f"tpr_at_{level:g}"][k] = curve.tpr[curve.fpr <= level][-1]
    return out


def _direction(scores: np.ndarray, member: np.ndarray, weights: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Every figure's (1 + R,) point and replicates for one set of targets under one fit; and the (n,) node AUCs."""
    by_node = within_node_auc(scores, member, weights)
    figures = {"within_node_auc": node_mean(by_node), "pooled_auc": pooled_replicates(scores, member, weights)}
    for name, each in _over_nodes(scores, member).items():
        use = np.isfinite(each)
        total = weights[:, use].sum(axis=1)
        mean = weights[:, use] @ each[use] / np.where(total > 0, total, 1)
        figures[name] = np.where(total > 0, mean, np.nan)
    return figures, by_node[:, 0]


def _row(
    name: str, directions: list[tuple[np.ndarray, np.ndarray]], weights: list[np.ndarray], units: int, paired: bool
) -> AttackRow:
    found = [_direction(*scored, drawn) for scored, drawn in zip(directions, weights, strict=True)]
    node_auc = node_mean(np.stack([by_node for _, by_node in found]))
    values, intervals = {}, {}
    for figure in found[0][0]:
        both = np.stack([one[figure] for one, _ in found])
        # A node without a pair in one direction counts as much as any other: the mean is over nodes, not directions.
        values[figure] = float(node_mean(node_auc if figure == "within_node_auc" else both[:, 0]))
        both = recentred(both) if paired else both
        intervals[figure] = cross_fitted_interval(values[figure], both, units)
    return AttackRow(name, values, intervals, node_auc)


def compare_attacks(
    observed: Observed,
    member: np.ndarray,
    context: Context,
    *,
    attacks: Sequence[str] | None = None,
    target: Observed | None = None,
    target_member: np.ndarray | None = None,
    paired: bool = False,
    seed: int = 0,
    replicates: int = _REPLICATES,
) -> list[AttackRow]:
    """Every attack on the same models.

    Without ``target`` the halves of the models score each other: every figure is taken inside a half, then averaged.
    With it, all K models teach and the targets are scored once. The intervals resample the judged models
    (pairs of them, when paired) and hold the fit fixed; two directions are added as if perfectly correlated.

    Args:
        observed: K models, or K shadow models with ``target``.
        member: (n, K) bool.
        context: priors and seed.
        attacks: names; None takes ``default_attacks``.
        target: T >= 2 target models.
        target_member: (n, T) bool.
        paired: the K models are complementary pairs 2j, 2j + 1.
        seed: of the resampling.
        replicates: resampled ensembles.

    Raises:
        InputError: an unknown attack, shapes that do not fit, or targets without their memberships.

    Example:
        >>> from jaxaudit.graph.attacks import observe
        >>> rng = np.random.default_rng(0)
        >>> seen = observe(rng.normal(size=(16, 20, 3)), np.zeros(20, int))
        >>> rows = compare_attacks(seen, rng.random((20, 16)) < 0.5, Context(np.full(20, 0.5)), attacks=["loss"])
        >>> 0.3 < rows[0].values["within_node_auc"] < 0.7
        True
    """
    names = default_attacks(observed) if attacks is None else tuple(attacks)
    for name in names:
        check_choice("attack", name, NODE_ATTACKS)
    check_int("replicates", replicates, 0)
    member = np.asarray(member, bool)
    require(member.shape == np.shape(observed.statistic), "member", "have the shape of the models", member.shape)
    require((target is None) == (target_member is None), "target_member", "be given with target, and only then",
            "one of the two")  # fmt: skip
    if target is None:
        odd = halves(member.shape[1], paired)
        even_half, odd_half = select(observed, ~odd), select(observed, odd)
        fits = [(even_half, member[:, ~odd], odd_half, member[:, odd]),
                (odd_half, member[:, odd], even_half, member[:, ~odd])]  # fmt: skip
    else:
        inside = np.asarray(target_member, bool)
        require(inside.shape == np.shape(target.statistic), "target_member", "have the targets' shape", inside.shape)
        fits, paired = [(observed, member, target, inside)], False
    size = 2 if paired else 1
    sizes = [fit[3].shape[1] // size for fit in fits]
    weights = [np.repeat(drawn, size, axis=1) for drawn in half_weights(sizes, replicates, seed)]
    return [
        _row(name, [(score_targets(name, *fit[:3], context), fit[3]) for fit in fits], weights, min(sizes), paired)
        for name in names
    ]


def _held_out_threshold(scores: np.ndarray, member: np.ndarray, level: float) -> float:
    """The smallest score that at most a share ``level`` of the non-members lie above."""
    values = np.sort(scores[np.isfinite(scores) & ~member])
    return float(values[max(int(np.ceil((1 - level) * values.size)) - 1, 0)]) if values.size else float("nan")


def compare_rules(
    statistic: np.ndarray,
    member: np.ndarray,
    prior: np.ndarray,
    *,
    level: float = 0.1,
    variance: str = "own",
    paired: bool = False,
    seed: int = 0,
    replicates: int = _REPLICATES,
) -> list[dict[str, Any]]:
    """Each rule with and without the nodes' priors, against the attack that knows the prior alone.

    All rules are judged on the same (node, odd model) pairs, with log Λ̂ fitted on the even models and o the prior odds:

    ==========  ==================================================  ===================================================
    rule        blind                                               aware
    ==========  ==================================================  ===================================================
    likelihood  Λ̂ > 1                                               Λ̂ > 1/o_i: the larger posterior
    bayes       Λ̂ > 1/ō, ō the odds of the mean prior               Λ̂ > 1/o_i: the same rule as above
    fixed_fpr   the statistic above the node's own threshold, the   Λ̂·o_i above one threshold for all nodes, set on the
                level spent alike on every node                     even models' non-members at the level
    prior_only                                                      γ_i > 1/2
    ==========  ==================================================  ===================================================

    One threshold on the posterior odds is how a total of false positives buys the most true positives (Neyman–Pearson
    with node i's non-members weighted 1 − γ_i and members γ_i, derived): it spends the level where members are likely.

    Args:
        statistic: (n, K).
        member: (n, K) bool.
        prior: (n,) in [0, 1].
        level: of ``fixed_fpr``, in (0, 1).
        variance: of Λ̂, one of ``VARIANCES``.
        paired: complementary pairs.
        seed: of the resampling.
        replicates: resampled ensembles.

    Returns:
        rows: ``rule``, ``prior`` (aware or blind), and what ``rates.resampled_rates`` returns of the odd models'
        decisions (for fixed_fpr, blind, whose thresholds those models help to set: ``rates.fixed_fpr_rates``).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> member = rng.random((50, 32)) < 0.5
        >>> rows = compare_rules(rng.normal(size=(50, 32)) + 2 * member, member, np.full(50, 0.5))
        >>> [row["rule"] for row in rows if row["balanced_accuracy"] > 0.7][:2]
        ['likelihood', 'likelihood']
    """
    check_real("level", level, 0, 1, open_low=True, open_high=True)
    statistic, member, prior = np.asarray(statistic), np.asarray(member, bool), np.asarray(prior, np.float64)
    require(prior.shape == member.shape[:1], "prior", f"have the shape {member.shape[:1]}", prior.shape)
    require(bool(((prior >= 0) & (prior <= 1)).all()), "prior", "be in [0, 1]", "values outside")
    ratio = cross_fitted_ratio(statistic, member, variance, paired)
    odd = halves(member.shape[1], paired)
    own, fitted = fixed_fpr_decisions(statistic, member, level)
    average = float(prior_log_odds(np.array([prior.mean()]))[0])
    with np.errstate(invalid="ignore"):
        posterior = ratio + prior_log_odds(prior)[:, None]
        cut = _held_out_threshold(posterior[:, ~odd], member[:, ~odd], level)
        said = {
            ("likelihood", "blind"): ratio > 0, ("likelihood", "aware"): posterior > 0,
            ("bayes", "blind"): ratio + average > 0, ("bayes", "aware"): posterior > 0,
            ("fixed_fpr", "blind"): own, ("fixed_fpr", "aware"): posterior > cut,
            ("prior_only", "aware"): np.broadcast_to(prior[:, None] > 0.5, member.shape),
        }  # fmt: skip
    use = np.isfinite(ratio) & fitted[:, None] & odd
    return [
        {"rule": rule, "prior": knows}
        | (
            fixed_fpr_rates(statistic, use, member, level, paired=paired, seed=seed)
            if (rule, knows) == ("fixed_fpr", "blind")
            else resampled_rates(decision, use, member, paired=paired, seed=seed, replicates=replicates)
        )
        for (rule, knows), decision in said.items()
    ]
