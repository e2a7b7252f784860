"""Error rates over all nodes at once, with intervals that know where the thresholds come from.

All nodes share the models, so models are what is independent (pairs of them, where draws are complementary pairs).

Thresholds of ``fixed_fpr`` come from the very models that are judged: they follow the out-models, and the
false-positive rate hardly moves from one audit to the next. Holding them fixed makes its interval 5 times too wide
and misses what they add to the true-positive rate. ``split_errors`` takes them along: two disjoint halves of the models
are two independent audits of half the size, so a rate's difference between them has, over data, an expected square of
exactly twice that audit's variance, whatever the rule (derived), and the variance falls as one over the models. An
average over random splits; for a mean it is the usual s²/K. (Jackknife and bootstrap replicates with thresholds
derived again are 2 to 4 times too wide for that rate: its first-order terms nearly cancel, and they measure little but
the chance flips of single decisions.)

Rules fitted on half of the models and judged on the other half (``likelihood``, ``bayes``) need none of it: given the
fit, the judged models are independent. Their intervals, of resampled judged models, are of the rule as it was fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from jaxaudit.graph.attacks import MIN_FIT, AttackConfig, Counts
from jaxaudit.graph.attacks.rules import fixed_fpr_decisions
from jaxaudit.graph.auc import interval, model_weights
from jaxaudit.runtime.checks import check_int, require
from jaxaudit.runtime.keys import host_rng

__all__ = ["fixed_fpr_rates", "global_attack", "rates", "resampled_rates", "split_errors"]

_SPLITS = 50
_REPLICATES = 400


def rates(said: np.ndarray, use: np.ndarray, member: np.ndarray, weights: np.ndarray | None = None) -> dict[str, Any]:
    """Accuracy, balanced accuracy, TPR and FPR over the used decisions.

    Args:
        said: (n, K) bool decisions.
        use: (n, K) bool.
        member: (n, K) bool.
        weights: (R, K) multiplicities of the models; None counts each once.

    Returns:
        by name, (R,) float64 each, one value without weights; NaN where a side is empty.

    Example:
        >>> found = rates(np.array([[True, False, True]]), np.ones((1, 3), bool), np.array([[True, True, False]]))
        >>> found["tpr"].tolist(), found["fpr"].tolist()
        ([0.5], [1.0])
    """
    weights = np.ones((1, said.shape[1])) if weights is None else weights
    parts = (member & said, member, ~member & said, ~member)
    tp, positives, fp, negatives = (weights @ (use & part).sum(axis=0) for part in parts)
    with np.errstate(invalid="ignore", divide="ignore"):
        tpr, fpr = tp / positives, fp / negatives
        accuracy = (tp + negatives - fp) / (positives + negatives)
    return {"accuracy": accuracy, "balanced_accuracy": (tpr + 1 - fpr) / 2, "tpr": tpr, "fpr": fpr}


def _units(use: np.ndarray, paired: bool) -> np.ndarray:
    """Models, or pairs, in which any decision is used."""
    size = 2 if paired else 1
    require(use.shape[1] % size == 0, "paired", "have an even number of models", use.shape[1])
    return np.unique(np.flatnonzero(use.any(axis=0)) // size)


def _columns(units: np.ndarray, paired: bool) -> np.ndarray:
    return (2 * units[:, None] + np.arange(2)).ravel() if paired else units


def resampled_rates(
    said: np.ndarray, use: np.ndarray, member: np.ndarray, *, paired: bool = False, seed: int = 0,
    replicates: int = _REPLICATES,
) -> dict[str, Any]:  # fmt: skip
    """``rates`` of decisions that no judged model had a part in; 95 % intervals of resampled judged models.

    Args:
        said: (n, K) bool decisions.
        use: (n, K) bool; models without a used decision are not judged.
        member: (n, K) bool.
        paired: models 2j and 2j + 1 are complements.
        seed: of the resampling.
        replicates: resampled ensembles.

    Returns:
        each rate and its ``_ci``, and ``decisions``, how many there are.

    Example:
        >>> member = np.arange(12).reshape(2, 6) % 2 == 0
        >>> found = resampled_rates(member, np.ones((2, 6), bool), member)
        >>> found["accuracy"], found["accuracy_ci"], found["decisions"]
        (1.0, [1.0, 1.0], 12)
    """
    units = _units(use, paired)
    columns = _columns(units, paired)
    drawn = model_weights(np.zeros(units.size), replicates, host_rng(seed, "bootstrap-decisions"))
    weights = np.concatenate([np.ones((1, columns.size)), np.repeat(drawn, 2 if paired else 1, axis=1)])
    found = rates(said[:, columns], use[:, columns], member[:, columns], weights)
    out: dict[str, Any] = {}
    for name, values in found.items():
        out[name], out[f"{name}_ci"] = float(values[0]), list(interval(values[1:], units.size))
    return out | {"decisions": int(use.sum())}


def split_errors(
    decide: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    use: np.ndarray,
    member: np.ndarray,
    *,
    paired: bool = False,
    seed: int = 0,
    splits: int = _SPLITS,
) -> tuple[dict[str, float], int]:
    """Standard errors of the rates of a rule whose thresholds come from the models that it judges.

    Args:
        decide: the rule on a subset of the models: (h,) columns -> (n, h) bool decisions and (n,) bool, the nodes that
            it could fit; nodes that either half could not are left out of that split.
        use: (n, K) bool; models without a used decision help to set thresholds, and are split apart from the others.
        member: (n, K) bool.
        paired: models 2j and 2j + 1 are complements: they stay together.
        seed: of the splits; one depends on (seed, its number) only.
        splits: >= 1.

    Returns:
        standard error by rate, NaN where no split has both sides in both halves; and how many judged units there are.
    """
    check_int("splits", splits, 1)
    judged = _units(use, paired)
    others = np.setdiff1d(np.arange(use.shape[1] // (2 if paired else 1)), judged)
    each = judged.size // 2
    squares: dict[str, list[float]] = {}
    for number in range(splits if each else 0):
        rng = host_rng(seed, "split-decisions", number)
        orders = [rng.permutation(part) for part in (judged, others)]
        halves = [
            _columns(np.concatenate([part[side::2][: part.size // 2] for part in orders]), paired) for side in (0, 1)
        ]
        decisions = [decide(columns) for columns in halves]
        fitted = (decisions[0][1] & decisions[1][1])[:, None]
        both = [
            rates(said, use[:, columns] & fitted, member[:, columns])
            for columns, (said, _) in zip(halves, decisions, strict=True)
        ]
        for name in both[0]:
            squares.setdefault(name, []).append(float((both[0][name] - both[1][name])[0] ** 2))
    errors = {name: np.array(values)[np.isfinite(values)] for name, values in squares.items()}
    scale = each / max(judged.size, 1) / 2  # of the squares: half of one is the half's variance, and that falls as 1/K
    return {
        name: float(np.sqrt(scale * x.mean())) if x.size else float("nan") for name, x in errors.items()
    }, judged.size


def fixed_fpr_rates(
    statistic: np.ndarray, use: np.ndarray, member: np.ndarray, level: float, *, paired: bool = False, seed: int = 0,
    confidence: float = 0.95, splits: int = _SPLITS,
) -> dict[str, Any]:  # fmt: skip
    """``rates`` of ``fixed_fpr``, with intervals of plus and minus t standard errors by ``split_errors``.

    The interval is for the rule with K models, averaged over audits of these nodes.

    Args:
        statistic: (n, K).
        use: (n, K) bool, the decisions that count.
        member: (n, K) bool.
        level: nominal false-positive rate, in (0, 1).
        paired: models 2j and 2j + 1 are complements.
        seed: of the splits.
        confidence: of the intervals, in (0, 1).
        splits: >= 1.

    Returns:
        as ``resampled_rates``; intervals are NaN with fewer than two judged models (pairs) or too few to split.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> member = rng.random((200, 32)) < 0.5
        >>> found = fixed_fpr_rates(rng.normal(size=(200, 32)), np.ones((200, 32), bool), member, 0.1)
        >>> low, high = found["fpr_ci"]
        >>> low < found["fpr"] < high < low + 0.02
        True
    """
    member = np.asarray(member, bool)
    out = np.isfinite(statistic) & ~member

    def decide(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        said, _ = fixed_fpr_decisions(statistic[:, columns], member[:, columns], level)
        return said, out[:, columns].sum(axis=1) >= MIN_FIT

    errors, units = split_errors(decide, use, member, paired=paired, seed=seed, splits=splits)
    found = rates(fixed_fpr_decisions(statistic, member, level)[0], use, member)
    width = float(stats.t.isf((1 - confidence) / 2, units - 1)) if units > 1 else float("nan")
    result: dict[str, Any] = {}
    for name, values in found.items():
        reach = width * errors.get(name, float("nan"))
        result[name] = float(values[0])
        result[f"{name}_ci"] = [float(end) for end in np.clip([values[0] - reach, values[0] + reach], 0, 1)]
    return result | {"decisions": int(use.sum())}


def global_attack(
    counts: Counts, statistic: np.ndarray, member: np.ndarray, attack: AttackConfig, *, paired: bool = False,
    seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Error rates over all counted decisions of auditable nodes, with 95 % intervals.

    Args:
        counts: of ``count_errors`` under ``attack``.
        statistic: (n, K), what they were counted on.
        member: (n, K) bool.
        attack: the rule.
        paired: models 2j and 2j + 1 are complements.
        seed: of splits and resampling.

    Returns:
        ``rule`` and ``level`` (NaN where it has none), and what ``resampled_rates`` returns.
    """
    use = counts.counted & counts.auditable[:, None]
    named: dict[str, Any] = {"rule": attack.rule, "level": float("nan")}
    if attack.rule != "fixed_fpr":
        return named | resampled_rates(counts.said_member, use, member, paired=paired, seed=seed)
    found = fixed_fpr_rates(statistic, use, member, attack.level, paired=paired, seed=seed)
    return named | {"level": attack.level} | found
