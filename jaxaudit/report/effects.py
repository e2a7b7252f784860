"""What one option changes: runs that agree in everything else, their differences, and rankings with and without priors.

All numbers come from the summaries and node tables of finished runs; nothing is refitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from jaxaudit.report.sweeps import Run, as_json, conditional, option_value, varying_options
from jaxaudit.report.words import get

__all__ = [
    "METRICS", "Effect", "Measured", "Metric", "Pair", "compare_levels", "difference", "levels", "mean_difference",
    "measure", "rank_correlation", "ranking",
]  # fmt: skip


@dataclass(frozen=True)
class Metric:
    """A number of a run: its column, what it is called, and where a summary keeps it and its interval."""

    column: str
    label: str
    path: tuple[str, ...]
    interval: tuple[str, ...] | None = None


def _within(name: str) -> tuple[str, ...]:
    return ("attack_auc", "within_node", name)


METRICS: tuple[Metric, ...] = (
    Metric("auc", "AUC within a node", _within("likelihood_ratio"), _within("likelihood_ratio_ci")),
    Metric("auc_standardised", "AUC within a node, standardised", _within("standardised"), _within("standardised_ci")),
    Metric("prior_auc", "AUC of the prior alone", ("prior_only_auc",)),
    Metric("pooled_auc", "AUC pooled", ("attack_auc", "pooled"), ("attack_auc", "pooled_ci")),
    Metric("pooled_auc_with_prior", "AUC pooled, with the prior", ("attack_auc", "pooled_with_prior"),
           ("attack_auc", "pooled_with_prior_ci")),
    *(Metric(f"{x}_{q}", f"{x}, {word}", ("limits", f"{x}_lower", q))
      for x in ("r", "l") for q, word in (("median", "median"), ("q90", "highest tenth from"))),
    Metric("eps_R_median", "eps_R, median", ("limits", "eps_R_lower", "median")),
    Metric("eps_L_median", "eps_L, median", ("limits", "eps_L_lower", "median")),
    Metric("prior_eps_R_median", "eps_R of the prior, median", ("prior_lower_bound", "eps_R_median")),
    Metric("share_r_above_0.1", "nodes with r > 0.1", ("limits", "share_r_above_0.1")),
    *(Metric(f"paper_pooled_{x}_{q}", f"paper's pooled {x}, {q}", ("pooled", x, q))
      for x in ("r", "l") for q in ("q05", "q50", "q95")),
    Metric("train_accuracy", "train accuracy", ("shadows", "train_accuracy", "mean")),
    Metric("test_accuracy", "test accuracy", ("shadows", "test_accuracy", "mean")),
    Metric("global_accuracy", "accuracy of the decisions", ("global_attack", "accuracy"),
           ("global_attack", "accuracy_ci")),
    Metric("balanced_accuracy", "balanced accuracy of the decisions", ("global_attack", "balanced_accuracy"),
           ("global_attack", "balanced_accuracy_ci")),
    Metric("models", "models", ("shadows", "count")),
    Metric("nodes", "nodes", ("nodes", "total")),
)  # fmt: skip
"""Numbers of a graph audit, in the order of summary.csv; r, l and eps are the functional lower limits of nodes."""


@dataclass(frozen=True)
class Measured:
    """A number with its interval, NaN where undefined."""

    value: float
    low: float = math.nan
    high: float = math.nan


def measure(run: Run) -> dict[str, Measured]:
    """All numbers of a graph audit; those that the run lacks are NaN.

    ``gap`` is train minus test accuracy, ``auditable`` the share of auditable nodes, ``sample_filled`` the mean size
    of the samples as a share of their quota.
    """
    out = {}
    for metric in METRICS:
        pair = _at(run.summary, metric.interval) if metric.interval else None
        ends = pair if isinstance(pair, list) and len(pair) == 2 else (math.nan, math.nan)
        out[metric.column] = Measured(get(run.summary, *metric.path), *(get({"": end}, "") for end in ends))
    total, quota = get(run.summary, "nodes", "total"), get(run.summary, "shadows", "sizes", "quota")
    out["gap"] = Measured(out["train_accuracy"].value - out["test_accuracy"].value)
    out["auditable"] = Measured(get(run.summary, "nodes", "auditable") / total if total > 0 else math.nan)
    filled = get(run.summary, "shadows", "sizes", "mean") / quota if quota > 0 else math.nan
    out["sample_filled"] = Measured(filled)
    return out


def _at(tree: Any, path: Iterable[str]) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def difference(first: Measured, second: Measured) -> Measured:
    """``second`` minus ``first`` with an interval from the two intervals, as if the runs were independent.

    The distances from estimates to limits add in squares (MOVER: Zou and Donner, Statistics in Medicine 27, 2008).
    Runs that share models or samples are positively dependent as a rule; the interval is then too wide.

    Example:
        >>> d = difference(Measured(0.5, 0.47, 0.53), Measured(0.7, 0.66, 0.74))
        >>> round(d.value, 3), round(d.low, 3), round(d.high, 3)
        (0.2, 0.15, 0.25)
    """
    value = second.value - first.value
    low = value - math.hypot(second.value - second.low, first.high - first.value)
    return Measured(value, low, value + math.hypot(second.high - second.value, first.value - first.low))


def mean_difference(parts: Sequence[Measured], groups: Sequence[Any] | None = None) -> Measured:
    """The mean of differences, for exactly these settings: it says nothing about other graphs or models.

    Parts of one group rest on the same models, and their half-widths add as they are, which is right if they move
    together and at worst too wide; those of different groups add in squares.

    Args:
        parts: differences; NaN ones are left out, the interval needs those of all the others.
        groups: what each part rests on; None: each on models of its own.

    Example:
        >>> parts = [Measured(0.1, 0.0, 0.2), Measured(0.3, 0.2, 0.4)]
        >>> [round(mean_difference(parts, groups).high, 3) for groups in (None, ["a", "a"])]
        [0.271, 0.3]
    """
    known = [i for i, part in enumerate(parts) if math.isfinite(part.value)]
    if not known:
        return Measured(math.nan)
    value = sum(parts[i].value for i in known) / len(known)
    below: dict[Any, float] = {}
    above: dict[Any, float] = {}
    for i in known:
        group = i if groups is None else groups[i]
        below[group] = below.get(group, 0.0) + parts[i].value - parts[i].low
        above[group] = above.get(group, 0.0) + parts[i].high - parts[i].value
    return Measured(
        value, value - math.hypot(*below.values()) / len(known), value + math.hypot(*above.values()) / len(known)
    )


@dataclass(frozen=True, eq=False)
class Pair:
    """Two runs that differ in one option alone; ``at`` holds the other options in which runs of the sweep differ."""

    at: dict[str, Any]
    baseline: Run
    other: Run
    differences: dict[str, Measured]


@dataclass(frozen=True, eq=False)
class Effect:
    """One level of an option against the baseline level."""

    option: str
    baseline: Any
    level: Any
    pairs: tuple[Pair, ...]
    means: dict[str, Measured] = field(default_factory=dict)

    def tally(self, column: str) -> tuple[int, int, int, int]:
        """Pairs with a known difference, those above 0, and those whose interval lies above 0 and below 0."""
        found = [pair.differences[column] for pair in self.pairs if math.isfinite(pair.differences[column].value)]
        return (len(found), sum(d.value > 0 for d in found), sum(d.low > 0 for d in found),
                sum(d.high < 0 for d in found))  # fmt: skip


_SAME_MODELS = ("edges.inference", "noise.", "attack.", "posterior", "bmp.", "shadow.")
"""Options, or groups of them, that train no other models."""
_BASELINES: dict[str, Any] = {
    "sampler.name": "uniform", "edges.inference": "split", "edges.train": "induced", "model.name": "gcn",
    "attack.observes": "logits",
}  # fmt: skip


def levels(runs: Sequence[Run], option: str) -> list[Any]:
    """Values of an option: the baseline first, numbers ascending, words as they come."""
    found = {option_value(run, option): run.options.get(option) for run in runs}
    values = list(found.values())
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return sorted(values)
    return sorted(values, key=lambda v: v != _BASELINES.get(option))


def compare_levels(runs: Sequence[Run], option: str) -> list[Effect]:
    """Every level of an option against its baseline, over the pairs of runs that agree in all other options.

    Options that exist under one level only (``sampler.fanout``) cannot agree and are left out of the matching; where
    such an option is itself compared, only runs that have it are.

    Args:
        runs: graph audits.
        option: dotted name.

    Returns:
        One Effect per level but the first; without pairs where no two runs match.
    """
    group = option.split(".")[0]
    if conditional(option, runs):
        runs = [run for run in runs if option in run.options]
    others = [name for name in varying_options(runs) if name != option]
    matched = [name for name in others if not (name.split(".")[0] == group and conditional(name, runs))]
    numbers = {run: measure(run) for run in runs}
    base, *rest = levels(runs, option)

    key = {run: tuple(option_value(run, name) for name in matched) for run in runs}

    def at_level(level: Any) -> list[Run]:
        return [run for run in runs if option_value(run, option) == as_json(level)]

    effects = []
    for level in rest:
        pairs = []
        for other in at_level(level):
            for first in (run for run in at_level(base) if key[run] == key[other]):
                gaps = {name: difference(numbers[first][name], numbers[other][name]) for name in numbers[other]}
                pairs.append(Pair({name: other.options.get(name) for name in others}, first, other, gaps))
        names = pairs[0].differences if pairs else ()
        groups = [
            tuple(as_json(v) for name, v in pair.at.items() if not name.startswith(_SAME_MODELS)) for pair in pairs
        ]
        means = {name: mean_difference([pair.differences[name] for pair in pairs], groups) for name in names}
        effects.append(Effect(option, base, level, tuple(pairs), means))
    return effects


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's correlation over the pairs in which both are known; infinities rank last, NaN where one is constant.

    Example:
        >>> rank_correlation(np.array([1.0, 2.0, 9.0]), np.array([0.0, 1.0, np.inf]))
        1.0
    """
    known = ~(np.isnan(first) | np.isnan(second))
    if known.sum() < 2:
        return math.nan
    ranks = np.stack([rankdata(first[known]), rankdata(second[known])])
    ranks -= ranks.mean(axis=1, keepdims=True)
    size = np.sqrt((ranks**2).sum(axis=1).prod())
    return float(np.round((ranks[0] * ranks[1]).sum() / size, 12)) if size > 0 else math.nan


def ranking(run: Run) -> dict[str, float]:
    """How the order of a run's nodes changes when the prior is added to what the model reveals.

    Per node, from nodes.csv: r (functional lower limit), the log posterior odds that the attack reaches, r + log prior
    odds, and eps_R as the run reads it. A Monte-Carlo prior of 0 or 1 stands for the near end of its interval.

    Returns:
        ``nodes`` ranked; ``prior_spread``, the standard deviation of their log prior odds; rank correlations ``r_odds``
        (r with posterior odds), ``r_eps`` (with eps_R), ``prior_odds`` (prior with posterior odds); ``top_kept``, the
        share of the tenth with the largest r that is also in the tenth with the largest odds. NaN without a table.
    """
    names = ["auditable", "prior", "prior_lower", "prior_upper", "r_lower", "eps_R_lower"]
    out = dict.fromkeys(("nodes", "prior_spread", "r_odds", "r_eps", "prior_odds", "top_kept"), math.nan)
    try:
        table = pd.read_csv(run.folder / "nodes.csv", usecols=names)
        numbers = {name: table[name].to_numpy(np.float64) for name in names}
    except (OSError, ValueError):
        return out
    prior, lower, upper, r, eps = (numbers[name] for name in names[1:])
    if _at(run.summary, ("sampling", "prior_exact")) is not True:
        prior = np.where(prior <= 0, upper, np.where(prior >= 1, lower, prior))
    keep = (numbers["auditable"] > 0) & ~np.isnan(r)
    with np.errstate(divide="ignore"):
        log_odds = (np.log(prior) - np.log1p(-prior))[keep]
    r, eps = r[keep], eps[keep]
    if r.size < 2:
        return out
    odds, tenth = r + log_odds, max(1, r.size // 10)
    kept = np.intersect1d(_top(r, tenth), _top(odds, tenth)).size / tenth
    finite = log_odds[np.isfinite(log_odds)]
    return {
        "nodes": float(r.size), "prior_spread": float(finite.std()) if finite.size else math.nan,
        "r_odds": rank_correlation(r, odds), "r_eps": rank_correlation(r, eps),
        "prior_odds": rank_correlation(log_odds, odds), "top_kept": kept,
    }  # fmt: skip


def _top(values: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-values, kind="stable")[:count]
