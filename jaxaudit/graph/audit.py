"""The graph audit: samples → priors → shadow models → attack → privacy parameters, as one result."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from jaxaudit import bmp as privacy
from jaxaudit.graph.attacks import AttackConfig, Context, Counts, count_errors, draw_design, observe, select
from jaxaudit.graph.auc import AttackAUC, attack_auc
from jaxaudit.graph.comparison import compare_attacks, compare_rules, named_attacks
from jaxaudit.graph.data import SOURCES, Graph, load_graph, load_npz
from jaxaudit.graph.models import Builder, ModelConfig
from jaxaudit.graph.noise import NoiseConfig
from jaxaudit.graph.posteriors import (
    ENGINES,
    BMPConfig,
    Exposure,
    Posteriors,
    infer_posteriors,
    measure_exposure,
    node_column,
    share_models,
)
from jaxaudit.graph.rates import global_attack
from jaxaudit.graph.sampling import Priors, SamplerConfig, Samples, as_sampler, stored_priors, stored_samples
from jaxaudit.graph.shadow import INFERENCE, Ensemble, ShadowConfig, train_and_query
from jaxaudit.graph.summary import (
    accuracies,
    find_warnings,
    given_others,
    readings,
    summarise,
    training_warnings,
)
from jaxaudit.graph.training import TrainConfig
from jaxaudit.runtime.checks import InputError, check_choice, check_int, require
from jaxaudit.runtime.progress import Progress
from jaxaudit.runtime.result import AuditResult
from jaxaudit.runtime.store import Store

__all__ = ["BMPConfig", "EdgeConfig", "audit_graph"]


@dataclass(frozen=True)
class EdgeConfig:
    """Edges that training may use (``induced`` or ``traversed``), and that a trained model is queried along
    (``split``, ``full`` or ``none``).
    """

    train: str = "induced"
    inference: str = "split"

    def __post_init__(self) -> None:
        check_choice("edges.train", self.train, ("induced", "traversed"))
        check_choice("edges.inference", self.inference, INFERENCE)


class _Attacked(NamedTuple):
    """Outcome of the attack stage."""

    statistic: np.ndarray
    member: np.ndarray
    counts: Counts
    auc: AttackAUC
    rows: list[dict[str, Any]]
    rules: list[dict[str, Any]]


def audit_graph(
    graph: Graph | str | os.PathLike[str],
    *,
    sampler: SamplerConfig | str | Callable[..., Any] = SamplerConfig(),
    train: TrainConfig = TrainConfig(),
    model: ModelConfig | str | Builder = ModelConfig(),
    shadow: ShadowConfig = ShadowConfig(),
    edges: EdgeConfig = EdgeConfig(),
    noise: NoiseConfig = NoiseConfig(),
    attack: AttackConfig = AttackConfig(),
    posterior: str = "exact",
    bmp: BMPConfig = BMPConfig(),
    column: Any = None,
    seed: int = 0,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Audit what a graph model reveals about the membership of every node.

    Args:
        graph: from ``jaxaudit.graph.data``; or the name of an embedded source ("digits_knn", "csbm"); or the path of
            an npz file.
        sampler: how training nodes are drawn: settings, a name, or a function of your own, see
            ``jaxaudit.graph.samplers.custom``.
        train: how a model is trained.
        model: architecture, as a configuration or by name; or a builder of your own, called with (features, hidden,
            classes), that returns a ``Model`` or ``(init, apply)`` (whose shadow models are not stored).
        shadow: how many models, and how they are computed.
        edges: what training and inference may see.
        noise: Gaussian noise on the trained weights or on the answers.
        attack: what is seen, statistic, decision rule, and the attacks to compare.
        posterior: engine of the pooled and the group posteriors, ``exact``, ``nuts`` or ``mhaar``.
        bmp: reading of the privacy parameters, their prior, and the levels to infer.
        column: (n,) labels of any kind, one per node: a further grouping.
        seed: >= 0; everything random follows from it.
        cache_dir: folder for stage results; None keeps none.
        progress: shows and times the stages.

    Returns:
        AuditResult with one row per node; nodes that cannot be audited have NaN and ``auditable`` False.

    Raises:
        InputError: a graph or a setting that breaks a rule, before anything is computed.

    Example:
        >>> from jaxaudit.graph.data import csbm
        >>> result = audit_graph(
        ...     csbm(nodes=80, classes=2), sampler=SamplerConfig("uniform", 0.5), train=TrainConfig(epochs=5, hidden=4),
        ...     shadow=ShadowConfig(count=8),
        ... )
        >>> len(result.table), result.summary["shadows"]["trained"]
        (80, 8)
    """
    graph, sampler = _as_graph(graph), as_sampler(sampler)
    model = ModelConfig(model) if isinstance(model, str) else model
    names = _check(graph, sampler, edges, shadow, noise, attack, posterior, bmp, column, seed)
    store, progress = Store(cache_dir), progress or Progress()
    with progress.stage("samples", shadow.count + shadow.targets):
        drawn = stored_samples(store, graph, sampler, seed, shadow.count + shadow.targets, edges.train)
    with progress.stage("priors", 1 if sampler.exact else shadow.prior_draws) as bar:
        priors = stored_priors(store, graph, sampler, seed, shadow.prior_draws, bar.advance)
    prior = priors.usable
    everyone = train_and_query(
        graph, drawn, sampler=sampler, model=model, train=train, chunk=shadow.chunk, train_edges=edges.train,
        inference=edges.inference, noise=noise, design=draw_design(prior, seed) if "g_base" in names else None,
        seed=seed, store=store, stage=progress.stage,
    )  # fmt: skip
    samples, ensemble = drawn.part(slice(shadow.count)), everyone.part(slice(shadow.count))
    attacked = _attack(graph, drawn, everyone, sampler, shadow, attack, names, prior, seed, progress)
    counts, member = attacked.counts, attacked.member
    with progress.stage("posterior"):
        found = infer_posteriors(counts, prior, graph, posterior, bmp, column, seed)
    with progress.stage("shared models"):
        shared, alarms = share_models(counts, member, bmp, seed, paired=sampler.paired)
    with progress.stage("exposure"):
        exposure = measure_exposure(counts, attacked.statistic, member, sampler.paired, seed)
    table = _table(graph, priors, counts, attacked.auc, found, exposure)
    accuracy = accuracies(ensemble.logits, graph.labels, samples.nodes)
    summary = summarise(
        table, samples, priors, ensemble, accuracy, counts, attacked.auc, attack, bmp.definition, prior, seed
    )
    summary |= found.blocks | {
        "global_attack": global_attack(counts, attacked.statistic, member, attack, paired=sampler.paired, seed=seed),
        "attacks": attacked.rows, "rules": attacked.rules, "heterogeneity": exposure.heterogeneity,
        "readings": readings(table, prior), "bmdp": given_others(sampler, priors, bmp.definition),
    }  # fmt: skip
    summary["pooled"]["shared_models"] = shared
    named = asdict(model) if isinstance(model, ModelConfig) else {"name": getattr(model, "__qualname__", repr(model))}
    return AuditResult(
        audit="graph",
        config={
            "audit": "graph", "sampler": sampler.settings(), "train": asdict(train), "model": named,
            "shadow": asdict(shadow), "edges": asdict(edges), "noise": asdict(noise), "attack": asdict(attack),
            "posterior": posterior, "bmp": asdict(bmp), "seed": seed,
        },
        data=_describe(graph),
        summary=summary,
        warnings=(
            *graph.warnings(), *find_warnings(graph, sampler, samples, priors, ensemble, table),
            *training_warnings(train, noise), *found.warnings, *alarms,
        ),
        timings=progress.timings,
        table=table,
        evidence=_evidence(counts, attacked.statistic, member),
    )  # fmt: skip


def _as_graph(graph: Any) -> Graph:
    if isinstance(graph, Graph):
        return graph
    if isinstance(graph, str) and graph in SOURCES and graph != "npz":
        return load_graph(graph)
    if isinstance(graph, str | os.PathLike):
        return load_npz(graph)
    raise InputError(f"graph must be a Graph (see graph_from_arrays), a name or a path, got {type(graph).__name__}")


def _check(
    graph: Graph, sampler: SamplerConfig, edges: EdgeConfig, shadow: ShadowConfig, noise: NoiseConfig,
    attack: AttackConfig, posterior: str, bmp: BMPConfig, column: Any, seed: int,
) -> tuple[str, ...]:  # fmt: skip
    """Refuse what breaks a rule before anything is computed; the attacks to compare."""
    check_int("seed", seed, 0, 2**32 - 1)
    check_choice("posterior", posterior, ENGINES)
    sampler.quota(graph.num_nodes)
    sampler.check_edges(edges.train)
    even = not sampler.paired or shadow.count % 2 == 0
    require(even, "shadow.count", "be even with sampler.paired=true", shadow.count)
    if (labels := bmp.column if column is None else column) is not None:
        node_column(labels, graph.num_nodes)
    names = named_attacks(attack.compare)
    whole = attack.observes in ("logits", "probabilities") and not noise.outputs
    if "g_base" in attack.compare:
        rule = "leave g_base out unless attack.observes is logits or probabilities and noise.outputs is 0"
        require(whole, "attack.compare", rule, attack.observes if not noise.outputs else f"outputs={noise.outputs}")
    return names if whole else tuple(name for name in names if name != "g_base")


def _attack(
    graph: Graph, drawn: Samples, everyone: Ensemble, sampler: SamplerConfig, shadow: ShadowConfig,
    attack: AttackConfig, names: tuple[str, ...], prior: np.ndarray, seed: int, progress: Progress,
) -> _Attacked:  # fmt: skip
    """Counts and AUCs of the shadows, and attacks and rules side by side."""
    member, inner = np.ascontiguousarray(drawn.nodes.T), np.clip(prior, 1e-9, 1 - 1e-9)
    models, paired = np.arange(shadow.count), sampler.paired
    with progress.stage("attack"):
        logits = np.where(everyone.finite[:, None, None], everyone.logits, np.nan)
        seen = observe(logits, graph.labels, attack.observes, attack.topk, attack.statistic)
        if everyone.contrast is not None:
            seen = seen._replace(contrast=everyone.contrast.transpose(1, 0, 2))
        shadows, inside = select(seen, models), member[:, : shadow.count]
        statistic = np.asarray(shadows.statistic)
        counts = count_errors(statistic, inside, attack, prior, paired)
        auc = attack_auc(statistic, inside, inner, seed, paired=paired)
    rows: list[dict[str, Any]] = []
    rules: list[dict[str, Any]] = []
    with progress.stage("compare", len(names)):
        if names:
            targets: dict[str, Any] = {}
            if shadow.targets:
                others = np.arange(shadow.count, shadow.count + shadow.targets)
                targets = {"target": select(seen, others), "target_member": member[:, shadow.count :]}
            found = compare_attacks(
                shadows, inside, Context(inner, seed), attacks=names, paired=paired, seed=seed, **targets
            )
            rows = [row.flat() for row in found]
            rules = compare_rules(statistic, inside, prior, level=attack.level, paired=paired, seed=seed)
    return _Attacked(statistic, inside, counts, auc, rows, rules)


def _table(
    graph: Graph, priors: Priors, counts: Counts, auc: AttackAUC, found: Posteriors, exposure: Exposure
) -> pd.DataFrame:
    """One row per node."""
    quantiles = ("q05", "q50", "q95")
    names = [f"{x}_{q}" for x in ("r", "l", "eps_R", "eps_L") for q in quantiles]
    names += ["r_lower", "l_lower", "eps_R_lower", "eps_L_lower"]
    names += [name for name in found.columns if name not in names]
    with np.errstate(invalid="ignore", divide="ignore"):
        worse = counts.auditable & (counts.fp / counts.n_out + counts.fn / counts.n_in > 1)
    return pd.DataFrame(
        {
            "node": np.arange(graph.num_nodes), "label": graph.labels, "degree": graph.degree,
            "prior": priors.gamma, "prior_lower": priors.lower, "prior_upper": priors.upper,
            "log_odds": np.asarray(privacy.prior_lower_bound(priors.usable)[1]),
            "n_in": counts.n_in, "n_out": counts.n_out, "fp": counts.fp, "fn": counts.fn, "auditable": counts.auditable,
            **{name: found.columns[name] for name in names}, **exposure.columns,
            "auc_likelihood_ratio": auc.node_likelihood_ratio, "auc_standardised": auc.node_standardised,
            "worse_than_chance": worse,
        }
    )  # fmt: skip


def _describe(graph: Graph) -> dict[str, Any]:
    return {
        "name": graph.name, "nodes": graph.num_nodes, "edges": graph.num_edges, "features": graph.num_features,
        "classes": graph.num_classes, "isolated": int((graph.degree == 0).sum()),
        "mean_degree": float(graph.degree.mean()), "max_degree": int(graph.degree.max()), "digest": graph.digest(),
    }  # fmt: skip


def _evidence(counts: Counts, statistic: np.ndarray, member: np.ndarray) -> dict[str, np.ndarray]:
    with np.errstate(invalid="ignore", divide="ignore"):
        fpr, fnr = counts.fp / counts.n_out, counts.fn / counts.n_in
    return {"fpr": fpr, "fnr": fnr, "statistic": statistic.astype(np.float32), "member": member}
