"""From error counts to privacy parameters: per node, per group, pooled and partially pooled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from jaxaudit import bmp
from jaxaudit.bmp.groups import group_posteriors
from jaxaudit.bmp.pooled import pooled_at_scales
from jaxaudit.graph.attacks import Counts
from jaxaudit.graph.data import Graph
from jaxaudit.runtime.checks import InputError, check_choice, check_int, check_real, require

__all__ = [
    "ENGINES", "BMPConfig", "Exposure", "Posteriors", "infer_posteriors", "measure_exposure", "node_column",
    "share_models",
]  # fmt: skip

ENGINES = ("exact", "nuts", "mhaar")
"""Engines of the posteriors; the first is the default."""
GROUPINGS = ("degree", "class", "prior")
RESAMPLING = ("jackknife", "bootstrap", "none")
_QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
_SENSITIVITY = (1.0, 10.0, 100.0)  # squared prior scales that the pooled posterior is shown for


@dataclass(frozen=True)
class BMPConfig:
    """How (l, r) is read as (eps_L, eps_R), which levels are inferred, and by what.

    Attributes:
        definition: reading of (eps_L, eps_R), one of ``jaxaudit.bmp.DEFINITIONS``.
        prior_scale2: squared scale of the half-normal priors on l and r, in [0.01, 10000].
        nodes: engine of the single nodes' posteriors, ``exact``, ``nuts`` or ``mhaar``.
        strength: with ``mhaar``, whether the attack's strength is a parameter too, as in arXiv:2504.16683.
        groups: any of ``degree``, ``class`` and ``prior``: a posterior for every group of nodes.
        bins: quantile bins of degree and prior, in [1, 100].
        column: further grouping, one label per node: "FILE:COLUMN" of a CSV or Parquet table with a row per node.
        hierarchical: also infer the population of nodes and each node's shrunken posterior (NUTS; about half a minute).
        resampling: how the models that all nodes share enter the pooled interval: ``jackknife`` over blocks of models
            (default), ``bootstrap`` or ``none``.
    """

    definition: str = "posterior_odds"
    prior_scale2: float = 10.0
    nodes: str = "exact"
    strength: bool = False
    groups: tuple[str, ...] = GROUPINGS
    bins: int = 5
    column: str | None = None
    hierarchical: bool = False
    resampling: str = "jackknife"

    def __post_init__(self) -> None:
        check_choice("bmp.definition", self.definition, bmp.DEFINITIONS)
        check_real("bmp.prior_scale2", self.prior_scale2, 0.01, 10_000)
        check_choice("bmp.nodes", self.nodes, ENGINES)
        require(isinstance(self.strength, bool), "bmp.strength", "be true or false", self.strength)
        require(isinstance(self.groups, tuple), "bmp.groups", "be a tuple of names", self.groups)
        for name in self.groups:
            check_choice("bmp.groups", name, GROUPINGS)
        check_int("bmp.bins", self.bins, 1, 100)
        require(isinstance(self.hierarchical, bool), "bmp.hierarchical", "be true or false", self.hierarchical)
        check_choice("bmp.resampling", self.resampling, RESAMPLING)


class Rows(NamedTuple):
    """Counts of the auditable nodes, four (m,) int64 arrays."""

    fp: np.ndarray
    n_out: np.ndarray
    fn: np.ndarray
    n_in: np.ndarray


class Posteriors(NamedTuple):
    """What the counts say about (l, r).

    Attributes:
        columns: node table columns: r and l quantiles, functional lower limits, eps of each; NaN where not auditable.
        blocks: parts of the summary by name: ``pooled``, ``groups`` and, where asked for, ``population``.
        warnings: one sentence each.
    """

    columns: dict[str, np.ndarray]
    blocks: dict[str, Any]
    warnings: tuple[str, ...]


class Exposure(NamedTuple):
    """Who is exposed, and whether nodes differ by more than noise.

    Attributes:
        columns: node table columns: ``rank`` (expected), ``rank_q05``, ``rank_q95``, ``top_probability``.
        heterogeneity: of the true AUC within a node, over nodes; empty where there are too few models.
    """

    columns: dict[str, np.ndarray]
    heterogeneity: dict[str, Any]


def node_column(column: Any, nodes: int) -> np.ndarray:
    """The user's labels: an array, or "FILE:COLUMN" of a table with one row per node.

    Raises:
        InputError: no such file or column, or not one label per node.

    Example:
        >>> node_column(["a", "b"], 2).tolist()
        ['a', 'b']
    """
    if isinstance(column, str):
        path, _, name = column.rpartition(":")
        require(bool(path and name), "bmp.column", "be FILE:COLUMN", column)
        try:
            table = pd.read_parquet(path) if Path(path).suffix == ".parquet" else pd.read_csv(path)
        except FileNotFoundError:
            raise InputError(f"bmp.column must name a table that exists, got {path}") from None
        except (OSError, ValueError) as error:
            raise InputError(
                f"bmp.column must name a readable table, got {path}: {str(error).splitlines()[0]}"
            ) from None
        require(
            name in table.columns, "bmp.column", f"name one of the columns {', '.join(map(str, table.columns))}", name
        )
        column = table[name]
    labels = np.asarray(column, dtype=object)
    require(labels.shape == (nodes,), "bmp.column", f"have one label for each of {nodes} nodes", labels.shape)
    return labels


def _as_counts(counts: Counts) -> Rows:
    """Whole-numbered (fp, n_out, fn, n_in) of the auditable nodes."""
    parts = (counts.fp, counts.n_out, counts.fn, counts.n_in)
    return Rows(*(part[counts.auditable].astype(np.int64) for part in parts))


def infer_posteriors(
    counts: Counts, prior: np.ndarray, graph: Graph, engine: str, config: BMPConfig, column: Any, seed: int
) -> Posteriors:
    """Privacy parameters at every level.

    Args:
        counts: errors of the n nodes.
        prior: (n,) P(member), strictly inside (0, 1) or exact.
        graph: n nodes, for the groups.
        engine: of the pooled and the group posteriors, one of ``ENGINES``.
        config: levels and settings.
        column: the user's grouping, see ``node_column``; None takes ``config.column``.
        seed: of the chains.
    """
    ok = counts.auditable
    names = [f"{x}_{q}" for x in ("r", "l") for q in _QUANTILES] + ["r_lower", "l_lower"]
    columns = {name: np.full(ok.size, np.nan) for name in names}
    pooled: dict[str, Any] = {"engine": engine, "nodes": int(ok.sum())}
    blocks: dict[str, Any] = {"pooled": pooled, "groups": {}}
    warnings: tuple[str, ...] = ()
    if ok.any():
        rows = _as_counts(counts)
        warnings += _nodes(columns, ok, rows, config, seed)
        warnings += _pooled(pooled, rows, engine, config, seed)
        groups, found = _groups(rows, ok, prior, graph, engine, config, column, seed)
        blocks["groups"], warnings = groups, warnings + found
        if config.hierarchical:
            blocks["population"], found = _population(columns, ok, rows, seed)
            warnings += found
    else:
        pooled |= {x: dict.fromkeys(_QUANTILES, float("nan")) for x in ("r", "l")}
    for suffix in (*_QUANTILES, "lower"):
        eps_L, eps_R = bmp.from_canonical(columns[f"l_{suffix}"], columns[f"r_{suffix}"], prior, config.definition)
        columns[f"eps_R_{suffix}"], columns[f"eps_L_{suffix}"] = eps_R, eps_L
    return Posteriors(columns, blocks, warnings)


def _chains(engine: str, rows: Rows, config: BMPConfig, seed: int, groups: Any = None) -> Any:
    """One posterior per node or group by MCMC."""
    if engine == "nuts":
        return bmp.node_nuts(*rows, prior_scale2=config.prior_scale2, groups=groups, seed=seed)
    return bmp.mhaar(*rows, prior_scale2=config.prior_scale2, strength=config.strength, groups=groups, seed=seed)


def _nodes(columns: dict[str, np.ndarray], ok: np.ndarray, rows: Rows, config: BMPConfig, seed: int) -> tuple[str, ...]:
    """Fill the single nodes' quantiles and functional limits."""
    exact = config.nodes == "exact"
    each: Any = (
        bmp.exact_posterior(*rows, prior_scale2=config.prior_scale2)
        if exact
        else _chains(config.nodes, rows, config, seed)
    )
    limits = bmp.functional_limits(*rows)
    for x in ("r", "l"):
        for q, level in _QUANTILES.items():
            columns[f"{x}_{q}"][ok] = each.quantile(x, level)
    columns["r_lower"][ok], columns["l_lower"][ok] = limits.r_lower, limits.l_lower
    return () if exact else each.warnings


def _intervals(posterior: Any) -> dict[str, dict[str, float]]:
    """5, 50 and 95 % quantiles of one shared r and l."""
    return {
        x: {q: float(np.ravel(posterior.quantile(x, level))[0]) for q, level in _QUANTILES.items()} for x in ("r", "l")
    }


def _pooled(pooled: dict[str, Any], rows: Rows, engine: str, config: BMPConfig, seed: int) -> tuple[str, ...]:
    """Fill the pooled block: quantiles by the engine, exact ones at three prior scales, diagnostics."""
    scales = dict.fromkeys((*_SENSITIVITY, config.prior_scale2))
    by_scale = {post.prior_scale2: _intervals(post) for post in pooled_at_scales(*rows, scales=tuple(scales))}
    pooled["prior_sensitivity"] = {f"{scale2:g}": by_scale[scale2] for scale2 in _SENSITIVITY}
    if engine == "exact":
        pooled |= by_scale[config.prior_scale2]
        return ()
    if engine == "nuts":
        draws = bmp.pooled_nuts(*rows, prior_scale2=config.prior_scale2, seed=seed, warmup=300, draws=500)
        pooled |= _intervals(draws) | {
            "rhat": max(draws.rhat.values()), "ess": min(draws.ess_bulk.values()), "divergences": draws.divergences,
        }  # fmt: skip
        return draws.warnings
    shared = np.zeros(rows[0].size, np.int64)
    chains = _chains(engine, rows, config, seed, shared)
    pooled |= _intervals(chains) | {
        "rhat": max(float(v[0]) for v in chains.rhat.values()),
        "ess": min(float(v[0]) for v in chains.ess_bulk.values()),
        "acceptance": float(chains.acceptance[0]), "strength": config.strength,
    }  # fmt: skip
    return chains.warnings


def _groups(
    rows: Rows, ok: np.ndarray, prior: np.ndarray, graph: Graph, engine: str, config: BMPConfig,
    column: Any, seed: int,
) -> tuple[dict[str, Any], tuple[str, ...]]:  # fmt: skip
    """Per grouping: names, auditable nodes, and quantiles of each group's shared r and l."""
    values: dict[str, Any] = {"degree": graph.degree, "class": graph.labels, "prior": prior}
    values = {by: values[by] for by in config.groups}
    column = config.column if column is None else column
    if column is not None:
        values["column"] = node_column(column, ok.size)
    made = {by: bmp.make_groups(by, value, config.bins) for by, value in values.items()}
    made = {by: groups for by, groups in made.items() if len(groups.names) > 1}  # one group is the pooled posterior
    labels = [groups.index[ok] for groups in made.values()]
    exact = engine == "exact" and labels
    posteriors: Any = group_posteriors(*rows, groupings=labels, prior_scale2=config.prior_scale2) if exact else labels
    out: dict[str, Any] = {}
    warnings: tuple[str, ...] = ()
    for (by, groups), index, posterior in zip(made.items(), labels, posteriors, strict=True):
        if exact:
            found = {x: {q: posterior.quantile(x, level) for q, level in _QUANTILES.items()} for x in ("r", "l")}
        else:
            chains = _chains(engine, rows, config, seed, index)
            found, warnings = _of_groups(chains, index, len(groups.names)), warnings + chains.warnings
        sizes = np.bincount(index[index >= 0], minlength=len(groups.names))
        plain = {x: {q: np.asarray(v).tolist() for q, v in parts.items()} for x, parts in found.items()}
        out[by] = {"names": list(groups.names), "nodes": sizes.tolist(), **plain}
    return out, warnings


def _of_groups(chains: Any, index: np.ndarray, groups: int) -> dict[str, dict[str, np.ndarray]]:
    """Chains are looked up per node: one node of each group speaks for it; NaN for a group without any."""
    first = np.array([np.flatnonzero(index == g)[0] if (index == g).any() else -1 for g in range(groups)])
    return {
        x: {q: np.where(first >= 0, chains.quantile(x, level)[first], np.nan) for q, level in _QUANTILES.items()}
        for x in ("r", "l")
    }


def _population(
    columns: dict[str, np.ndarray], ok: np.ndarray, rows: Rows, seed: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Partial pooling: the population's hyperparameters, and shrunken columns of the nodes."""
    found = bmp.hierarchical_posterior(*rows, seed=seed)
    for x in ("r", "l"):
        for q, level in _QUANTILES.items():
            columns[f"{x}_shrunken_{q}"] = np.full(ok.size, np.nan)
            columns[f"{x}_shrunken_{q}"][ok] = found.quantile(x, level)
    block: dict[str, Any] = {
        name: {q: float(np.quantile(draws, level)) for q, level in _QUANTILES.items()}
        for name, draws in found.draws.items()
    }
    block |= {
        "nodes": found.nodes, "rhat": max(found.rhat.values()), "ess": min(found.ess_bulk.values()),
        "divergences": found.divergences,
    }  # fmt: skip
    return block, found.warnings


def share_models(
    counts: Counts, member: np.ndarray, config: BMPConfig, seed: int, paired: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The pooled interval with the uncertainty of the models that all nodes share, and what to warn of.

    Args:
        counts: errors of the n nodes.
        member: (n, K) bool.
        config: which scheme, and the prior.
        seed: of blocks or draws.
        paired: models 2j and 2j + 1 are complements: pairs are left out or drawn.

    Returns:
        ``r`` and ``l`` (median, naive, interval, spread, inflation), scheme and dropped; empty where it is not asked
        for, or with fewer than eight models or four judged ones (pairs); and sentences.
    """
    ok = counts.auditable
    judged = np.flatnonzero(counts.counted[ok].any(axis=0)) // (2 if paired else 1)
    few = member.shape[1] < 8 or np.unique(judged).size < 4
    if config.resampling == "none" or few:
        return {}, []
    found = bmp.bootstrap_posterior(
        counts.said_member[ok], counts.counted[ok], member[ok], config.prior_scale2, scheme=config.resampling,
        replicates=min(32, member.shape[1] // 2) if config.resampling == "jackknife" else 100, paired=paired,
        seed=seed,
    )  # fmt: skip
    block: dict[str, Any] = {"scheme": found.scheme, "dropped": found.dropped}
    warnings = []
    for x in ("r", "l"):
        block[x] = {
            "median": found.median[x], "naive": list(found.naive[x]), "interval": list(found.interval[x]),
            "spread": found.spread[x], "inflation": found.inflation[x],
        }  # fmt: skip
        if found.inflation[x] > 1.5:
            warnings.append(
                f"the pooled interval of {x} is {found.inflation[x]:.1f} times too narrow if nodes are taken as "
                "independent: they share the models"
            )
    return block, warnings


def measure_exposure(counts: Counts, statistic: np.ndarray, member: np.ndarray, paired: bool, seed: int) -> Exposure:
    """Ranks of the nodes by r with intervals, and the spread of the true within-node AUC beyond noise."""
    ok = counts.auditable
    columns = {name: np.full(ok.size, np.nan) for name in ("rank", "rank_q05", "rank_q95", "top_probability")}
    if ok.any():
        ranks = bmp.rank_nodes(*_as_counts(counts), seed=seed)
        for name, values in zip(columns, (ranks.expected, ranks.low, ranks.high, ranks.top_probability), strict=True):
            columns[name][ok] = values
    use = np.isfinite(statistic)
    enough = ((use & member).sum(axis=1) > 1) & ((use & ~member).sum(axis=1) > 1)
    units = int(use.any(axis=0).sum()) // (2 if paired else 1)
    heterogeneity: dict[str, Any] = {}
    if enough.sum() > 1 and units > 3:
        spread = bmp.auc_spread(statistic, member, paired=paired, seed=seed)
        heterogeneity = {
            "nodes": spread.nodes, "mean": spread.mean, "observed_sd": spread.observed_sd, "sd": spread.sd,
            "sd_ci90": [spread.sd_low, spread.sd_high], "real_share": spread.real_share, "p_value": spread.p_value,
        }  # fmt: skip
    return Exposure(columns, heterogeneity)
