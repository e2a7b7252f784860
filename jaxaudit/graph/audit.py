"""The graph audit: samples → priors → shadow models → attack → privacy parameters, as one result."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from jaxaudit import bmp as privacy
from jaxaudit.graph.attacks import AttackConfig, Counts, count_errors, node_statistic
from jaxaudit.graph.auc import AttackAUC, attack_auc
from jaxaudit.graph.data import SOURCES, Graph, load_graph, load_npz
from jaxaudit.graph.models import Builder, ModelConfig
from jaxaudit.graph.sampling import Priors, SamplerConfig, Samples, draw_samples, estimate_priors
from jaxaudit.graph.shadow import INFERENCE, ShadowConfig, train_and_query
from jaxaudit.graph.summary import accuracies, find_warnings, summarise
from jaxaudit.graph.training import TrainConfig
from jaxaudit.runtime.checks import InputError, check_choice, check_int, check_real
from jaxaudit.runtime.progress import Progress
from jaxaudit.runtime.result import AuditResult
from jaxaudit.runtime.store import Store, digest

__all__ = ["BMPConfig", "EdgeConfig", "audit_graph"]

POSTERIORS = ("exact", "nuts")
_QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
_SENSITIVITY = (1.0, 10.0, 100.0)  # squared prior scales that the pooled posterior is shown for


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


@dataclass(frozen=True)
class BMPConfig:
    """How (l, r) is read as (eps_L, eps_R), and the squared scale of the half-normal priors on l and r."""

    definition: str = "posterior_odds"
    prior_scale2: float = 10.0

    def __post_init__(self) -> None:
        check_choice("bmp.definition", self.definition, privacy.DEFINITIONS)
        check_real("bmp.prior_scale2", self.prior_scale2, 0.01, 10_000)


class _Posteriors(NamedTuple):
    """Per node: columns of the node table. Pooled: the summary's block, and sentences to warn with."""

    columns: dict[str, np.ndarray]
    pooled: dict[str, Any]
    warnings: tuple[str, ...]


def audit_graph(
    graph: Graph | str | os.PathLike[str],
    *,
    sampler: SamplerConfig = SamplerConfig(),
    train: TrainConfig = TrainConfig(),
    model: ModelConfig | str | Builder = ModelConfig(),
    shadow: ShadowConfig = ShadowConfig(),
    edges: EdgeConfig = EdgeConfig(),
    attack: AttackConfig = AttackConfig(),
    posterior: str = "exact",
    bmp: BMPConfig = BMPConfig(),
    seed: int = 0,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Audit what a graph model reveals about the membership of every node.

    Args:
        graph: from ``jaxaudit.graph.data``; or the name of an embedded source ("digits_knn", "csbm"); or the path of
            an npz file.
        sampler: how training nodes are drawn.
        train: how a model is trained.
        model: architecture, as a configuration or by name; or a builder of your own, called with (features, hidden,
            classes), that returns a ``Model`` (whose shadow models are not stored).
        shadow: how many models, and how they are computed.
        edges: what training and inference may see.
        attack: statistic and decision rule.
        bmp: reading of the privacy parameters and their prior.
        posterior: engine of the pooled posterior, ``exact`` or ``nuts``; nodes always get the exact one.
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
    graph = _as_graph(graph)
    model = ModelConfig(model) if isinstance(model, str) else model
    _check(graph, sampler, edges, posterior, seed)
    store, progress = Store(cache_dir), progress or Progress()
    samples, priors = _draw(graph, sampler, edges, shadow, seed, store, progress)
    ensemble = train_and_query(
        graph, samples, sampler=sampler, model=model, train=train, chunk=shadow.chunk, train_edges=edges.train,
        inference=edges.inference, seed=seed, store=store, stage=progress.stage,
    )  # fmt: skip
    member = np.ascontiguousarray(samples.nodes.T)
    with progress.stage("attack"):
        logits = np.where(ensemble.finite[:, None, None], ensemble.logits, np.nan)
        statistic = node_statistic(logits, graph.labels, attack.statistic)
        prior = usable_prior(priors)
        counts = count_errors(statistic, member, attack, prior)
        auc = attack_auc(statistic, member, np.clip(prior, 1e-9, 1 - 1e-9), seed)
    with progress.stage("posterior"):
        posteriors = _posteriors(counts, prior, posterior, bmp, seed)
    table = _table(graph, priors, counts, auc, posteriors)
    accuracy = accuracies(ensemble.logits, graph.labels, samples.nodes)
    named = asdict(model) if isinstance(model, ModelConfig) else {"name": getattr(model, "__qualname__", repr(model))}
    config = {
        "audit": "graph", "sampler": sampler.settings(), "train": asdict(train), "model": named,
        "shadow": asdict(shadow), "edges": asdict(edges), "attack": asdict(attack), "posterior": posterior,
        "bmp": asdict(bmp), "seed": seed,
    }  # fmt: skip
    summary = summarise(table, samples, priors, ensemble, accuracy, counts, auc, attack, bmp.definition, prior, seed)
    summary["pooled"] = posteriors.pooled
    warnings = find_warnings(graph, sampler, samples, priors, ensemble, table)
    return AuditResult(
        audit="graph",
        config=config,
        data=_describe(graph),
        summary=summary,
        warnings=graph.warnings() + warnings + posteriors.warnings,
        timings=progress.timings,
        table=table,
        evidence=_evidence(counts, statistic, member),
    )


def _as_graph(graph: Any) -> Graph:
    if isinstance(graph, Graph):
        return graph
    if isinstance(graph, str) and graph in SOURCES and graph != "npz":
        return load_graph(graph)
    if isinstance(graph, str | os.PathLike):
        return load_npz(graph)
    raise InputError(f"graph must be a Graph (see graph_from_arrays), a name or a path, got {type(graph).__name__}")


def _check(graph: Graph, sampler: SamplerConfig, edges: EdgeConfig, posterior: str, seed: int) -> None:
    check_int("seed", seed, 0, 2**32 - 1)
    check_choice("posterior", posterior, POSTERIORS)
    sampler.quota(graph.num_nodes)
    sampler.check_edges(edges.train)


def _draw(
    graph: Graph,
    sampler: SamplerConfig,
    edges: EdgeConfig,
    shadow: ShadowConfig,
    seed: int,
    store: Store,
    progress: Progress,
) -> tuple[Samples, Priors]:
    """The shadows' training sets and the sampler's priors, from the store where they are there."""
    identity = {"data": graph.digest(), "sampler": sampler.settings(), "seed": seed}

    def draw() -> dict[str, Any]:
        return vars(draw_samples(graph, sampler, seed, shadow.count, edges.train))

    with progress.stage("samples", shadow.count):
        drawn: dict[str, Any] = store.cached("samples", digest(identity, edges.train, shadow.count), draw)
        samples = Samples(**{**drawn, "quota": int(drawn["quota"])})
    with progress.stage("priors", 1 if sampler.exact_prior(graph.num_nodes) is not None else shadow.prior_draws) as bar:

        def estimate() -> dict[str, Any]:
            return vars(estimate_priors(graph, sampler, seed, shadow.prior_draws, advance=bar.advance))

        found: dict[str, Any] = store.cached("priors", digest(identity, shadow.prior_draws), estimate)
    scalars = {"exact": bool(found["exact"]), "draws": int(found["draws"]), "exhausted": float(found["exhausted"])}
    return samples, Priors(**{**found, **scalars})


def usable_prior(priors: Priors) -> np.ndarray:
    """The prior, with a Monte-Carlo estimate of 0 or 1 replaced by the other end of its interval.

    No draw in 10,000 does not make a probability 0; its odds would be infinite for want of draws.
    """
    gamma = priors.gamma
    if priors.exact:
        return gamma
    return np.where(gamma <= 0, priors.upper, np.where(gamma >= 1, priors.lower, gamma))


def _posteriors(counts: Counts, prior: np.ndarray, engine: str, bmp: BMPConfig, seed: int) -> _Posteriors:
    """Privacy parameters of the auditable nodes, NaN elsewhere, and of all of them pooled."""
    ok = counts.auditable
    names = [f"{x}_{q}" for x in ("r", "l") for q in _QUANTILES] + ["r_lower", "l_lower"]
    columns = {name: np.full(ok.size, np.nan) for name in names}
    pooled: dict[str, Any] = {"engine": engine, "nodes": int(ok.sum())}
    warnings: tuple[str, ...] = ()
    if ok.any():
        fp, n_out, fn, n_in = (part[ok].astype(np.int64) for part in (counts.fp, counts.n_out, counts.fn, counts.n_in))
        exact = privacy.exact_posterior(fp, n_out, fn, n_in, bmp.prior_scale2)
        limits = privacy.functional_limits(fp, n_out, fn, n_in)
        for x in ("r", "l"):
            for q, level in _QUANTILES.items():
                columns[f"{x}_{q}"][ok] = exact.quantile(x, level)
        columns["r_lower"][ok], columns["l_lower"][ok] = limits.r_lower, limits.l_lower
        scales = dict.fromkeys((*_SENSITIVITY, bmp.prior_scale2) if engine == "exact" else _SENSITIVITY)
        by_scale = {scale2: _intervals(privacy.pooled_posterior(fp, n_out, fn, n_in, scale2)) for scale2 in scales}
        pooled["prior_sensitivity"] = {f"{scale2:g}": by_scale[scale2] for scale2 in _SENSITIVITY}
        if engine == "nuts":
            draws = privacy.pooled_nuts(fp, n_out, fn, n_in, bmp.prior_scale2, seed=seed, warmup=300, draws=500)
            warnings = draws.warnings
            pooled |= {
                "rhat": max(draws.rhat.values()), "ess": min(draws.ess_bulk.values()), "divergences": draws.divergences,
            }  # fmt: skip
            pooled |= _intervals(draws)
        else:
            pooled |= by_scale[bmp.prior_scale2]
    else:
        pooled |= {x: dict.fromkeys(_QUANTILES, float("nan")) for x in ("r", "l")}
    for suffix in (*_QUANTILES, "lower"):
        eps_L, eps_R = privacy.from_canonical(columns[f"l_{suffix}"], columns[f"r_{suffix}"], prior, bmp.definition)
        columns[f"eps_R_{suffix}"], columns[f"eps_L_{suffix}"] = eps_R, eps_L
    return _Posteriors(columns, pooled, warnings)


def _intervals(pooled: Any) -> dict[str, dict[str, float]]:
    """5, 50 and 95 % quantiles of the pooled r and l."""
    return {x: {q: float(pooled.quantile(x, level)) for q, level in _QUANTILES.items()} for x in ("r", "l")}


def _table(graph: Graph, priors: Priors, counts: Counts, auc: AttackAUC, posteriors: _Posteriors) -> pd.DataFrame:
    """One row per node."""
    names = [f"{x}_{q}" for x in ("r", "l", "eps_R", "eps_L") for q in _QUANTILES]
    names += ["r_lower", "l_lower", "eps_R_lower", "eps_L_lower"]
    with np.errstate(invalid="ignore", divide="ignore"):
        worse = counts.auditable & (counts.fp / counts.n_out + counts.fn / counts.n_in > 1)
    return pd.DataFrame(
        {
            "node": np.arange(graph.num_nodes), "label": graph.labels, "degree": graph.degree,
            "prior": priors.gamma, "prior_lower": priors.lower, "prior_upper": priors.upper,
            "n_in": counts.n_in, "n_out": counts.n_out, "fp": counts.fp, "fn": counts.fn, "auditable": counts.auditable,
            **{name: posteriors.columns[name] for name in names},
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
