"""A plan before any training: which nodes a sampler lets an audit reach, and with how many models.

Only the sampler runs. Each node's prior decides how many of K models are trained with it and without it; the width of
its limits follows for an assumed attack strength (``jaxaudit.graph.needed``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxaudit.graph.attacks import AttackConfig
from jaxaudit.graph.data import Graph
from jaxaudit.graph.needed import (
    chance_auditable,
    counted_share,
    expected_width,
    models_auditable,
    models_width,
)
from jaxaudit.graph.sampling import Priors, SamplerConfig, as_sampler, stored_priors
from jaxaudit.graph.shadow import ShadowConfig
from jaxaudit.runtime.checks import InputError, check_int, check_real, require
from jaxaudit.runtime.progress import Progress
from jaxaudit.runtime.store import Store, atomic_write

__all__ = ["AuditPlan", "PlanConfig", "expected_prior_auc", "format_plan", "plan_audit", "write_plan"]

_CURVE = tuple(1 << k for k in range(4, 13))  # 16 ... 4096 models
_SHARES = {"q50": 0.5, "q90": 0.9, "q99": 0.99, "all": 1.0}


@dataclass(frozen=True)
class PlanConfig:
    """What is wanted, and the attack that is assumed.

    Attributes:
        width: wanted width of a node's functional interval of r, > 0.
        level: two-sided level of that interval, in [0.5, 0.99].
        tpr: assumed true-positive rate of the attack at its false-positive level (``attack.level``), in (0, 1).
        chance: probability with which a node shall be auditable, in [0.5, 0.999].
    """

    width: float = 1.0
    level: float = 0.9
    tpr: float = 0.3
    chance: float = 0.95

    def __post_init__(self) -> None:
        check_real("plan.width", self.width, 0, open_low=True)
        check_real("plan.level", self.level, 0.5, 0.99)
        check_real("plan.tpr", self.tpr, 0, 1, open_low=True, open_high=True)
        check_real("plan.chance", self.chance, 0.5, 0.999)


_PLAN, _ATTACK, _SHADOW = PlanConfig(), AttackConfig(), ShadowConfig()


@dataclass(frozen=True)
class AuditPlan:
    """What an audit with this sampler can reach.

    Attributes:
        config: every setting that was used, as plain nested values.
        data: name, size and digest of the graph.
        summary: the numbers of ``format_plan``, as plain nested values; None where no number of models is enough,
            and for an AUC of the prior that is undefined because all nodes are in every draw.
        warnings: one sentence each.
        timings: stage name -> {"compile_s", "run_s", "items"}, in seconds.
        table: one row per node: ``prior`` with its interval; ``expected_in`` and ``expected_out`` counted models,
            ``chance_auditable`` and ``expected_width`` at the planned number of models; ``models_auditable`` and
            ``models_width`` needed (the latter also at the ends of the prior's interval, ``_low`` and ``_high``;
            infinite where none is enough); ``reach``: "yes", "beyond" (drawn in none or all of the prior draws: the
            needed numbers are lower bounds, from the interval's other end) or "never" (prior exactly 0 or 1).
    """

    config: dict[str, Any]
    data: dict[str, Any]
    summary: dict[str, Any]
    warnings: tuple[str, ...]
    timings: dict[str, dict[str, float]]
    table: pd.DataFrame


def plan_audit(
    graph: Graph,
    sampler: SamplerConfig | str | Callable[..., Any] = "snowball",
    *,
    plan: PlanConfig = _PLAN,
    attack: AttackConfig = _ATTACK,
    shadow: ShadowConfig = _SHADOW,
    seed: int = 0,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> AuditPlan:
    """Say before any training which nodes can be audited, and with how many models.

    Args:
        graph: from ``jaxaudit.graph.data``.
        sampler: its settings, its name, or a function of your own.
        plan: what is wanted, and the attack strength that is assumed.
        attack: the rule, which decides what models a node needs and how many are counted, and its level.
        shadow: the planned number of models, and the Monte-Carlo draws for priors without a closed form.
        seed: >= 0; an audit with the same seed finds the priors in ``cache_dir`` again.
        cache_dir: folder for stage results; None keeps none.
        progress: shows and times the stages.

    Raises:
        InputError: a setting that breaks a rule, before anything is computed; a function of your own that draws no
            nodes, as an audit refuses it.

    Example:
        >>> from jaxaudit.graph.data import csbm
        >>> found = plan_audit(csbm(nodes=80), SamplerConfig("uniform", 0.5))
        >>> found.summary["models_auditable"]["all"], found.summary["models_width"]["all"]
        (11, 259)
    """
    require(isinstance(graph, Graph), "graph", "be a Graph (see load_graph)", type(graph).__name__)
    sampler = as_sampler(sampler)
    check_int("seed", seed, 0, 2**32 - 1)
    sampler.quota(graph.num_nodes)
    even = not sampler.paired or shadow.count % 2 == 0
    require(even, "shadow.count", "be even with sampler.paired=true", shadow.count)
    progress = progress or Progress()
    with progress.stage("priors", 1 if sampler.exact else shadow.prior_draws) as bar:
        priors = stored_priors(Store(cache_dir), graph, sampler, seed, shadow.prior_draws, bar.advance)
    if sampler.user is not None:
        empty = f"none in {priors.draws or 'any'} draws of {sampler.user.name}"
        require(bool(priors.gamma.any()), "sampler.path", "draw nodes", empty)
    with progress.stage("plan"):
        table = _table(graph, sampler, priors, plan, attack, shadow.count)
        summary = _summary(table, sampler, priors, plan, attack, shadow.count)
    return AuditPlan(
        config={
            "audit": "plan", "sampler": sampler.settings(), "plan": asdict(plan), "attack": asdict(attack),
            "shadow": {"count": shadow.count, "prior_draws": shadow.prior_draws}, "seed": seed,
        },
        data={"name": graph.name, "nodes": graph.num_nodes, "edges": graph.num_edges, "digest": graph.digest()},
        summary=summary,
        warnings=_warnings(table, priors, plan, shadow.count),
        timings=progress.timings,
        table=table,
    )  # fmt: skip


def _table(
    graph: Graph, sampler: SamplerConfig, priors: Priors, plan: PlanConfig, attack: AttackConfig, count: int
) -> pd.DataFrame:
    """One row per node; see ``AuditPlan``."""
    gamma, rule, paired = priors.usable, attack.rule, sampler.paired
    assumed = (attack.level, plan.tpr, plan.level)
    trials = counted_share(rule) * count
    extreme = (priors.gamma <= 0) | (priors.gamma >= 1)
    reach = np.where(extreme, "never" if priors.exact else "beyond", "yes")
    auditable = models_auditable(rule, gamma, plan.chance, paired)

    def needed(values: np.ndarray) -> np.ndarray:
        floor = models_auditable(rule, values, plan.chance, paired)
        models = np.maximum(models_width(rule, values, plan.width, *assumed), floor)
        return 2 * np.ceil(models / 2) if paired else models

    ends = np.stack([needed(values) for values in ((gamma,) if priors.exact else (gamma, priors.lower, priors.upper))])
    return pd.DataFrame(
        {
            "node": np.arange(graph.num_nodes), "label": graph.labels, "degree": graph.degree,
            "prior": priors.gamma, "prior_lower": priors.lower, "prior_upper": priors.upper,
            "expected_in": trials * priors.gamma, "expected_out": trials * (1 - priors.gamma),
            "chance_auditable": chance_auditable(rule, count, gamma, paired),
            "expected_width": expected_width(trials * (1 - gamma), trials * gamma, *assumed),
            "models_auditable": auditable, "models_width": ends[0],
            "models_width_low": ends.min(axis=0), "models_width_high": ends.max(axis=0), "reach": reach,
        }
    )  # fmt: skip


def expected_prior_auc(gamma: np.ndarray) -> float:
    """Expected AUC of the prior alone: P(gamma_i > gamma_j) + ½P(equal), i drawn ∝ gamma and j ∝ 1 - gamma.

    Over all (node, model) pairs a member is node i in proportion to gamma_i, a non-member node j to 1 - gamma_j.
    NaN where nobody, or everybody, is ever drawn.

    Example:
        >>> expected_prior_auc(np.array([0.5, 0.5])), expected_prior_auc(np.array([0.0, 1.0]))
        (0.5, 1.0)
    """
    _, index = np.unique(gamma, return_inverse=True)
    inside, outside = (np.bincount(index, weights=weights) for weights in (gamma, 1 - gamma))
    below = np.cumsum(outside) - outside / 2
    with np.errstate(invalid="ignore"):
        return float(np.sum(inside * below) / (inside.sum() * outside.sum()))


def _whole(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None


def _defined(value: float) -> float | None:
    """None for NaN, which JSON does not have."""
    return None if np.isnan(value) else value


def _needed(models: np.ndarray) -> dict[str, int | None]:
    """Models with which 50, 90, 99 % and all of the nodes have enough; None where no number does."""
    ordered = np.sort(models)
    return {name: _whole(ordered[int(np.ceil(share * ordered.size)) - 1]) for name, share in _SHARES.items()}


def _summary(
    table: pd.DataFrame, sampler: SamplerConfig, priors: Priors, plan: PlanConfig, attack: AttackConfig, count: int
) -> dict[str, Any]:
    gamma, models = priors.usable, table.models_width.to_numpy()
    reach = table.reach.value_counts()
    curve = {
        str(k): {
            "auditable": float(chance_auditable(attack.rule, k, gamma, sampler.paired).mean()),
            "within_width": float((models <= k).mean()),
        }
        for k in _CURVE
    }
    beyond = table.models_auditable[table.reach == "beyond"]
    return {
        "models": count,
        "nodes": {
            "total": len(table), "expected_auditable": float(table.chance_auditable.sum()),
            "within_width": int((models <= count).sum()),
            "never": int(reach.get("never", 0)), "beyond": int(reach.get("beyond", 0)),
            "beyond_models": None if beyond.empty else _whole(float(beyond.min())),
        },
        "models_auditable": _needed(table.models_auditable.to_numpy()),
        "models_width": _needed(models),
        "curve": curve,
        "prior_only_auc": _defined(expected_prior_auc(priors.gamma)),
        "sampling": {
            "prior_exact": priors.exact, "prior_draws": priors.draws, "prior_min": float(priors.gamma.min()),
            "prior_median": float(np.median(priors.gamma)), "prior_max": float(priors.gamma.max()),
            "prior_draws_exhausted": priors.exhausted,
        },
        "assumed": {
            "rule": attack.rule, "fpr": attack.level, "tpr": plan.tpr, "r": float(_strength(attack.level, plan.tpr)),
        },
    }  # fmt: skip


def _strength(fpr: float, tpr: float) -> float:
    """The r that these error rates show (theory: the smallest that admits them)."""
    return max(np.log(tpr / fpr), np.log((1 - tpr) / (1 - fpr)), 0.0)


def _warnings(table: pd.DataFrame, priors: Priors, plan: PlanConfig, count: int) -> tuple[str, ...]:
    n = len(table)
    never, beyond = (int((table.reach == reach).sum()) for reach in ("never", "beyond"))
    unlikely = int(((table.models_auditable > count) & (table.reach == "yes")).sum())
    dry = round(priors.exhausted * priors.draws)
    found = [
        (never, f"{never} of {n} nodes have a prior of exactly 0 or 1: no number of models audits them"),
        (beyond,
         f"{beyond} of {n} nodes came up in none or in all of {priors.draws} prior draws: what they need is a lower "
         "bound, from the end of the prior's interval"),
        (unlikely,
         f"{unlikely} of {n} nodes need more than {count} models for a chance of {plan.chance:g} to be audited"),
        (dry, f"{dry} of {priors.draws} prior draws ran out of frontier before the quota"),
    ]  # fmt: skip
    return tuple(text for condition, text in found if condition)


def format_plan(plan: AuditPlan) -> str:
    """The plan as a few lines of text."""
    summary, wanted = plan.summary, plan.config["plan"]
    nodes, assumed, n = summary["nodes"], summary["assumed"], summary["nodes"]["total"]
    sampler = ", ".join(
        f"{key} {value}" for key, value in plan.config["sampler"].items() if key not in ("name", "source")
    )

    def row(title: str, cells: list[str]) -> str:
        return f"{title:<34}" + "".join(f"{cell:>9}" for cell in cells)

    def models(entry: dict[str, int | None]) -> list[str]:
        *shares, everyone = ["none" if value is None else str(value) for value in entry.values()]
        return [*shares, f">={everyone}" if nodes["beyond"] and everyone != "none" else everyone]

    curve, auc = summary["curve"], summary["prior_only_auc"]
    lines = [
        f"plan: {plan.config['sampler']['name']} ({sampler}) on {plan.data['name']}, {n} nodes, rule {assumed['rule']}",
        f"with {summary['models']} models: {nodes['expected_auditable']:.0f} nodes auditable (expected), "
        f"{nodes['within_width']} with an interval of r up to {wanted['width']:g} wide",
        row("models needed by this share of nodes", []),
        row("", ["50 %", "90 %", "99 %", "all"]),
        row(f"  auditable, chance {wanted['chance']:g}", models(summary["models_auditable"])),
        row(f"  {100 * wanted['level']:g} % interval of r <= {wanted['width']:g}", models(summary["models_width"])),
        "share of nodes by number of models",
        row("", list(curve)),
        row("  auditable", [f"{100 * entry['auditable']:.1f} %" for entry in curve.values()]),
        row(f"  interval <= {wanted['width']:g}", [f"{100 * entry['within_width']:.1f} %" for entry in curve.values()]),
        f"assumed attack: TPR {assumed['tpr']:g} at FPR {assumed['fpr']:g} (r = {assumed['r']:.2f}); widths at the "
        "expected counts: about half of the nodes end wider",
        f"prior alone: AUC {'undefined' if auc is None else f'{auc:.3f}'}",
    ]
    if nodes["beyond"]:
        least = nodes["beyond_models"]
        lines.append(f"out of sight of the prior draws: {nodes['beyond']} nodes, at least {least} models each")
    if nodes["never"]:
        lines.append(f"out of reach: {nodes['never']} nodes, prior exactly 0 or 1")
    return "\n".join(line.rstrip() for line in lines)


def _write_text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


def write_plan(plan: AuditPlan, folder: str | os.PathLike[str]) -> dict[str, Path]:
    """Write ``plan.csv`` (one row per node; "inf" where no number of models is enough) and ``plan.json``,
    strict JSON with null for what is undefined.

    Returns:
        Paths of "table" and "plan".

    Raises:
        InputError: the folder is a file or cannot be written.
    """
    target = Path(folder).expanduser().resolve()
    content = {name: getattr(plan, name) for name in ("config", "data", "summary", "warnings", "timings")}
    text = json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n"
    paths = {"table": target / "plan.csv", "plan": target / "plan.json"}
    try:
        atomic_write(paths["table"], lambda path: plan.table.to_csv(path, index=False, lineterminator="\n"))
        atomic_write(paths["plan"], partial(_write_text, text))
    except OSError as error:
        raise InputError(f"folder must be writable, got {target}: {error.strerror}") from error
    return paths
