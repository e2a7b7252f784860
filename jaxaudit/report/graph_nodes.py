"""Single nodes in a graph audit's report: which could be audited, and who is exposed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from jaxaudit.report.canvas import Picture
from jaxaudit.report.words import Section, Table, Text, branch, count, get, number, percent

__all__ = ["auditable_section", "exposed_section"]

_PRIOR_ZERO = {
    True: "prior 0: the sampler never draws them (eps infinite by definition)",
    False: "in no prior draw: the prior's upper limit is used",
}
_PRIOR_ONE = {
    True: "prior 1: the sampler always draws them (eps infinite by definition)",
    False: "in every prior draw: the prior's lower limit is used",
}
_ROWS = 15
_TOP = 0.05  # share of the nodes that top_probability speaks of
_SURE = 0.9


def auditable_section(summary: Mapping[str, Any]) -> Section:
    """How many nodes could be audited, and why others could not."""
    nodes, sampling = branch(summary, "nodes"), branch(summary, "sampling")
    exact = sampling.get("prior_exact")
    labels = (
        ("total", "nodes in the graph"),
        ("auditable", "auditable: in some counted models and out of others"),
        ("counted_in_none", "not auditable: in no counted model"),
        ("counted_out_none", "not auditable: out of no counted model"),
        ("not_fitted", "not auditable: too few models on a side to fit the rule"),
        ("prior_zero", _PRIOR_ZERO[bool(exact)]),
        ("prior_one", _PRIOR_ONE[bool(exact)]),
        ("worse_than_chance", "worse than chance (FPR + FNR > 1)"),
    )
    how = "known exactly" if exact else f"estimated from {count(get(sampling, 'prior_draws'))} draws of the sampler"
    return Section(
        "Which nodes could be audited",
        (
            Text(
                "A node needs models trained with it and models trained without it. Nodes that the sampler almost "
                "always or almost never draws lack one side; they are listed with empty cells in nodes.csv and not "
                "counted above."
            ),
            Table("", ("", "nodes"), tuple((text, count(get(nodes, key))) for key, text in labels)),
            Text(
                f"Counted models per node (median): {count(get(nodes, 'median_n_in'))} with it, "
                f"{count(get(nodes, 'median_n_out'))} without it. The prior probability of membership is {how}: lowest "
                f"{number(get(sampling, 'prior_min'))}, median {number(get(sampling, 'prior_median'))}, highest "
                f"{number(get(sampling, 'prior_max'))}."
            ),
        ),
    )


def exposed_section(table: pd.DataFrame, pictures: Mapping[str, Picture]) -> Section:
    """The most exposed nodes by expected rank, or by the lower limit of r where there are no ranks."""
    title, figure = "Who is exposed", pictures["who_leaks"]
    if not _known(table, "r_lower").any():
        return Section(title, (figure, Text("No node could be audited, so none can be listed.")))
    if not _known(table, "rank").any():
        by = [c for c in ("r_lower", "l_lower") if c in table]
        top = table[_known(table, "r_lower")].sort_values(by, ascending=False, kind="stable").head(_ROWS)
        return Section(title, (figure, _exposed(top, "highest lower limit of r")))
    top = table[_known(table, "rank")].sort_values("rank", kind="stable").head(_ROWS)
    return Section(title, (figure, Text(_ranking_words(table)), _exposed(top, "smallest expected rank")))


def _known(table: pd.DataFrame, name: str) -> np.ndarray:
    """Where a column has a number; nowhere if it is not there."""
    if name not in table:
        return np.zeros(len(table), bool)
    return np.isfinite(table[name].to_numpy(dtype=float, na_value=np.nan))


def _ranking_words(table: pd.DataFrame) -> str:
    ranked = int(_known(table, "rank").sum())
    text = (
        f"Rank 1 of {count(ranked)} is the node with the largest r. Ranks are drawn from every node's own functional "
        "posterior, and their intervals say how far the order is resolved. What can be known of a node has two parts: "
        "the prior's (its log prior odds, from the sampling alone) and the model's (r and l). "
    )
    if not _known(table, "top_probability").any():
        return text
    top = max(1, round(_TOP * ranked))
    sure = int((table["top_probability"].to_numpy(float) >= _SURE).sum())
    named = f"The top {percent(_TOP)} are {count(top)} {'nodes' if top > 1 else 'node'}; "
    if not sure:
        return text + named + f"none can be named with a probability of {percent(_SURE)} or more."
    return text + named + f"{count(sure)} can be named with a probability of {percent(_SURE)} or more."


_COLUMNS: tuple[tuple[str, tuple[str, ...], Callable[..., str]], ...] = (
    ("node", ("node",), str),
    ("label", ("label",), str),
    ("degree", ("degree",), count),
    ("expected rank", ("rank",), lambda rank: number(rank, 1)),
    ("90 %", ("rank_q05", "rank_q95"), lambda low, high: f"{count(low)}–{count(high)}"),
    (f"P(top {percent(_TOP)})", ("top_probability",), percent),
    ("log prior odds", ("log_odds",), lambda odds: number(odds, 2)),
    ("r", ("r_lower",), lambda r: number(r, 2)),
    ("l", ("l_lower",), lambda l: number(l, 2)),
    ("false pos.", ("fp", "n_out"), lambda wrong, of: f"{count(wrong)} / {count(of)}"),
    ("false neg.", ("fn", "n_in"), lambda wrong, of: f"{count(wrong)} / {count(of)}"),
    ("AUC", ("auc_likelihood_ratio",), lambda area: number(area, 2)),
)
"""Head, the columns of the table that it needs, and how they become a cell."""


def _exposed(top: pd.DataFrame, chosen_by: str) -> Table:
    shown = [column for column in _COLUMNS if all(name in top for name in column[1])]
    rows = tuple(
        tuple(cell(*(row[name] for name in names)) for _, names, cell in shown) for row in top.to_dict("records")
    )
    return Table(
        f"The {len(rows)} nodes with the {chosen_by}. r and l: functional lower limits, 95 %. The nodes were chosen as "
        "the highest of many, so their r and l tend to be too high: read them as candidates",
        tuple(head for head, _, _ in shown), rows,
    )  # fmt: skip
