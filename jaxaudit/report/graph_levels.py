"""The paper's posterior in a graph audit's report: single nodes, all nodes, groups and the population."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from jaxaudit.report.canvas import Picture
from jaxaudit.report.words import Items, Section, Table, Text, branch, count, ends, get, number, short

__all__ = ["groups_section", "optimistic", "posterior_section", "usable_groups"]

_Q = ("q05", "q50", "q95")
_HEADS = ("5 %", "50 %", "95 %")
_MOST_GROUPS = 30
_GRID_END = 14  # of the grid of jaxaudit.bmp.population
_BY = {
    "degree": "degree (bins of about equal size)",
    "class": "class",
    "prior": "sampling prior (bins of about equal size)",
    "column": "the column given",
}


def _quantiles(label: str, tree: Any, names: tuple[str, ...] = _Q) -> tuple[str, ...]:
    return (label, *(number(get(tree, name), 2) for name in names))


def posterior_section(summary: Mapping[str, Any], table: pd.DataFrame) -> Section:
    """The paper's posterior at single nodes and pooled, with what the pooled number rests on."""
    paper, pooled = branch(summary, "paper_posterior"), branch(summary, "pooled")
    rows = [
        _quantiles(f"{x}, per node (medians over nodes)", paper.get(x), tuple(f"median_of_{q}" for q in _Q))
        for x in "rl"
    ]
    rows += [_quantiles(f"{x}, one value for all {count(get(pooled, 'nodes'))} nodes", pooled.get(x)) for x in "rl"]
    shared = branch(pooled, "shared_models")
    for x in "rl":
        low, high = ends(branch(shared, x).get("interval"))
        if not math.isnan(low):
            wide = {"q05": low, "q50": get(shared, x, "median"), "q95": high}
            rows.append(_quantiles(f"{x}, one value, widened for the models that nodes share", wide))
    for scale, found in branch(pooled, "prior_sensitivity").items():
        rows += [_quantiles(f"{x}, pooled, prior scale² {scale}", branch(found, x)) for x in "rl" if branch(found, x)]
    return Section(
        "The paper's posterior, and what it assumes",
        (
            Text(
                "The posterior of the paper assumes that the attack's errors sit uniformly inside the region that "
                "(l, r) allows. Its lower limit can therefore overshoot the truth where the attack is near-optimal "
                "(on a two-output channel the 5 % limit lay above the true r in 87 % of cases with 500 models, the "
                "functional limit in 5 %), and its upper limit is driven by the prior on (l, r) and not by data. It "
                "is shown beside the evidence, not as evidence."
            ),
            Table("The paper's posterior (5, 50 and 95 % quantiles)", ("", *_HEADS), tuple(rows)),
            Items(tuple(text for text in _pooled_words(summary) if text)),
            *_population(summary, table),
        ),
    )


def _pooled_words(summary: Mapping[str, Any]) -> tuple[str, ...]:
    pooled = branch(summary, "pooled")
    labels = (("rhat", "R-hat", 3), ("ess", "effective draws", 0), ("divergences", "divergences", 0),
              ("acceptance", "acceptance rate", 2))  # fmt: skip
    checks = [f"{label} {number(get(pooled, key), digits)}" for key, label, digits in labels
              if not math.isnan(get(pooled, key))]  # fmt: skip
    engine = f"Pooled posterior by engine {pooled.get('engine', 'exact')}" + (
        f": {', '.join(checks)}." if checks else "."
    )
    if pooled.get("strength") is True:
        engine += " The attack's strength is a parameter too, so (l, r) has another meaning than under exact."
    models = count(get(summary, "shadows", "count"))
    return (
        engine,
        _shared_words(summary),
        f"The pooled r and l depend on the number of models ({models} here): the paper's model takes the attack as "
        "uniform in the region, and one attack is not. Compare pooled values between runs with equally many models "
        "only.",
        _sensitivity_words(pooled),
    )


def _shared_words(summary: Mapping[str, Any]) -> str:
    """What leaving out models does to the pooled interval; that nobody looked, where nobody did."""
    pooled = branch(summary, "pooled")
    shared, models = branch(pooled, "shared_models"), count(get(summary, "shadows", "count"))
    how = {"jackknife": "Leaving out blocks of models", "bootstrap": "Resampling the models"}.get(
        str(shared.get("scheme")), "Resampling the models"
    )
    said: list[str] = []
    for x in "rl":
        naive, wide = (ends(branch(shared, x).get(key)) for key in ("naive", "interval"))
        if math.isnan(naive[0]) or math.isnan(wide[0]):
            continue
        old, new = ("–".join(number(v, 2) for v in pair) for pair in (naive, wide))
        which = "that" if said else "the pooled 90 % interval"
        if old == new:
            said.append(f"leaves {which} of {x} at {old}")
        else:
            times = number(get(shared, x, "inflation"), 2)
            said.append(f"widens {which} of {x} from {old} to {new} (×{times} on the log scale)")
    if not said:
        return "The nodes share their models, so the pooled interval, which takes them as independent, is optimistic."
    of = "" if pooled.get("engine", "exact") == "exact" else " of the exact posterior"
    return f"Nodes share the {models} models. {how} {' and '.join(said)}{of}."


def _sensitivity_words(pooled: Mapping[str, Any]) -> str:
    found = branch(pooled, "prior_sensitivity")
    scales = [scale for scale in found if branch(found, scale)]
    if len(scales) < 2:
        return ""
    first, last = scales[0], scales[-1]
    moves = [
        f"{x} from {number(get(found, first, x, 'q50'), 2)} to {number(get(found, last, x, 'q50'), 2)}" for x in "rl"
    ]
    return (
        f"From prior scale² {first} to {last} the pooled medians move: {' and '.join(moves)}. What moves with the "
        "prior is no evidence."
    )


def optimistic(summary: Mapping[str, Any]) -> str:
    """Which intervals still take the nodes as independent."""
    if branch(summary, "pooled", "shared_models"):
        return (
            "the pooled posterior is widened for it; those of groups and of the population are not and are optimistic."
        )
    return "the pooled posterior does not and is optimistic, and so are those of groups and of the population."


def _population(summary: Mapping[str, Any], table: pd.DataFrame) -> tuple[Text | Table, ...]:
    found = branch(summary, "population")
    if not found:
        return ()
    far = max(math.exp(get(found, f"mu_{x}", "q95")) for x in "rl") > _GRID_END
    beyond = f"The grid of r and l ends at {_GRID_END}: nothing in the data limits what lies beyond. " if far else ""
    rows = []
    for x in "rl":
        middle = {q: math.exp(get(found, f"mu_{x}", q)) for q in _Q}
        rows += [
            _quantiles(f"mu_{x}: mean over nodes of log {x}", found.get(f"mu_{x}")),
            _quantiles(f"exp(mu_{x}): {x} of the median node", middle),
            _quantiles(f"tau_{x}: sd over nodes of log {x}", found.get(f"tau_{x}")),
        ]
    return (
        Text(
            f"Partial pooling: each of {count(get(found, 'nodes'))} nodes has an (l, r) of its own, from a population "
            "that is learned from all of them. It pulls nodes with few models towards the population, and it makes the "
            "same assumption: the attack may err very differently at nodes that share one (l, r), so a small tau does "
            f"not say that they leak alike. {_shrunken(table)}{beyond}Chains: R-hat {number(get(found, 'rhat'))}, "
            f"effective draws {number(get(found, 'ess'), 0)}, divergences {number(get(found, 'divergences'), 0)}."
        ),
        Table("The population of nodes (5, 50 and 95 % quantiles)", ("", *_HEADS), tuple(rows)),
    )


def _shrunken(table: pd.DataFrame) -> str:
    """How far the nodes' medians of r reach before and after shrinking."""
    reach = []
    for name in ("r_q50", "r_shrunken_q50"):
        values = table[name].to_numpy(float) if name in table else np.zeros(0)
        values = values[np.isfinite(values)]
        if not values.size:
            return ""
        reach.append("–".join(number(float(np.quantile(values, q)), 2) for q in (0.05, 0.95)))
    return f"The medians of r of nine nodes in ten lie in {reach[0]} each on its own and in {reach[1]} shrunken. "


def usable_groups(summary: Mapping[str, Any]) -> dict[str, list[tuple[str, float, dict[str, tuple[float, ...]]]]]:
    """Per grouping the groups: name, auditable nodes, and ``r`` and ``l`` as (5, 50, 95 %) quantiles.

    Example:
        >>> one = {"q05": [0.1], "q50": [0.2], "q95": [0.3]}
        >>> usable_groups({"groups": {"class": {"names": ["class 0"], "nodes": [7], "r": one, "l": one}}})["class"]
        [('class 0', 7.0, {'r': (0.1, 0.2, 0.3), 'l': (0.1, 0.2, 0.3)})]
    """
    out = {}
    for by, found in branch(summary, "groups").items():
        tree = branch({"found": found}, "found")
        names = tree.get("names")
        if not isinstance(names, list | tuple):
            continue
        nodes = _listed(tree.get("nodes"), len(names))
        columns = {x: [_listed(branch(tree, x).get(q), len(names)) for q in _Q] for x in "rl"}
        out[str(by)] = [
            (str(name), nodes[k], {x: tuple(column[k] for column in columns[x]) for x in "rl"})
            for k, name in enumerate(names)
        ]
    return {by: groups for by, groups in out.items() if groups}


def _listed(values: Any, size: int) -> list[float]:
    """``size`` numbers, NaN where the list lacks them."""
    values = list(values) if isinstance(values, list | tuple) else []
    return [get({"v": values[k]}, "v") if k < len(values) else math.nan for k in range(size)]


def groups_section(summary: Mapping[str, Any], pictures: Mapping[str, Picture]) -> tuple[Section, ...]:
    """A table for each grouping; no section where there is none."""
    found = usable_groups(summary)
    if not found:
        return ()
    tables = []
    for by, groups in found.items():
        cut = f". The first {_MOST_GROUPS} of {count(len(groups))}; results.json has all"
        rows = tuple(
            (short(name), count(nodes), *(number(v, 2) for x in "rl" for v in quantiles[x]))
            for name, nodes, quantiles in groups[:_MOST_GROUPS]
        )
        tables.append(Table(
            f"By {_BY.get(by, by)}" + (cut if len(groups) > _MOST_GROUPS else ""),
            ("group", "nodes", *(f"{x}, {q}" for x in "rl" for q in _HEADS)), rows,
        ))  # fmt: skip
    picture = pictures.get("groups")
    return (
        Section(
            "Which groups of nodes leak",
            (
                Text(
                    "One (l, r) for each group, by the paper's posterior, with what it assumes. Groups are compared "
                    "by all of their nodes, but their intervals take the nodes as independent although these share "
                    "their models, so they are optimistic: intervals that are just apart are no evidence. A group's r "
                    "also depends on how many models its nodes were in and out of, which differs between groups of "
                    "different prior, and what the prior scale moves in the pooled posterior it moves here too."
                ),
                *((picture,) if picture else ()),
                *tables,
            ),
        ),
    )
