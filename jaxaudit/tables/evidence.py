"""The most exposed records by name, the released rows that betray them, and the closest pairs side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from jaxaudit.runtime.checks import InputError, check_int, require
from jaxaudit.tables.attacks.gen_lra import GenLRAConfig, gen_lra_evidence
from jaxaudit.tables.attacks.neighbours import nearest_pairs
from jaxaudit.tables.data import Release
from jaxaudit.tables.density import distinct_rows

__all__ = ["Exposure", "ReportConfig", "closest_pairs", "expose", "released_evidence", "single_setting"]


@dataclass(frozen=True)
class ReportConfig:
    """What a report shows of single records.

    Attributes:
        rows: show the cells of the closest records and released rows side by side; they are personal data.
        top: number of records in the list of the most exposed ones, and of pairs shown; in [1, 1000].
        evidence: released rows named for each of them; in [1, 100].
    """

    rows: bool = False
    top: int = 10
    evidence: int = 3

    def __post_init__(self) -> None:
        require(isinstance(self.rows, bool), "report.rows", "be true or false", self.rows)
        check_int("report.top", self.top, 1, 1000)
        check_int("report.evidence", self.evidence, 1, 100)


@dataclass(frozen=True)
class Exposure:
    """The most exposed members.

    Attributes:
        summary: plain nested values: ``attack`` that they are ordered by; ``evidence``, the settings of Gen-LRA that
            the released rows are weighed with, or ``no_evidence``, why there are none; ``records``, one dict each:
            ``record`` (its number among the scored ones), ``table``, ``row`` (in that table as given, from 0), ``ids``,
            ``scores`` and ``ranks`` by attack (1 for the highest score of all; the best place of ties),
            ``non_members_as_high``, ``stratum`` (None where unknown), ``distance`` to the nearest released row,
            ``nearest_row``, and ``released``, the rows that betray it.
        table: one row per record and released row: record, table, row, released_row, distance, contribution, share.
    """

    summary: dict[str, Any]
    table: pd.DataFrame


def expose(
    release: Release,
    encoded: Mapping[str, np.ndarray],
    scores: Mapping[str, np.ndarray],
    best: str,
    distance: np.ndarray,
    stratum: np.ndarray | None = None,
    gen_lra: GenLRAConfig | None = None,
    report: ReportConfig = ReportConfig(),
) -> Exposure:
    """List the members with the highest scores under one attack, and the released rows that betray them.

    Args:
        release: the tables as they were scored: members, then non-members.
        encoded: ``targets`` (n, d), ``synthetic`` (m, d) and ``reference`` (r, d).
        scores: attack -> (n,) scores.
        best: the attack to order by. Members with equal scores are ordered by their number.
        distance: (n,) to the nearest released row, from ``copies``.
        stratum: (n,) from ``outlier_strata``.
        gen_lra: settings of the evidence, None for the defaults; of a grid the setting that ``best`` names, or else
            the first.
        report: how many.

    Raises:
        InputError: ``best`` is no attack of ``scores``.
    """
    require(best in scores, "best", f"be one of {', '.join(scores)}", best)
    members = len(release.members)
    top = np.argsort(-scores[best][:members], kind="stable")[: report.top]
    targets = encoded["targets"][top]
    config = single_setting(gen_lra or GenLRAConfig(), best, len(encoded["synthetic"]))
    summary: dict[str, Any] = {"attack": best}
    try:
        table = released_evidence(targets, encoded["synthetic"], encoded["reference"], config, report.evidence)
        summary["evidence"] = {"k": config.ks[0], "bandwidth": config.bandwidth, "multiplier": config.multipliers[0]}
    except InputError as error:  # a reference without densities: other attacks may still have worked
        table, summary["no_evidence"] = _no_evidence(), str(error)
    rows = release.rows.get("members", np.arange(members))
    nearest = _nearest_row(targets, encoded["synthetic"])
    named = ["released_row", "distance", "contribution", "share"]
    summary["records"] = [
        {
            "record": int(i), "table": "members", "row": int(rows[i]), "ids": _ids(release, int(i)),
            "scores": {name: float(values[i]) for name, values in scores.items()},
            "ranks": {name: int((values > values[i]).sum()) + 1 for name, values in scores.items()},
            "non_members_as_high": int((scores[best][members:] >= scores[best][i]).sum()),
            "stratum": None if stratum is None else int(stratum[i]),
            "distance": float(distance[i]), "nearest_row": int(nearest[place]),
            "released": table.loc[table["record"] == place, named].to_dict("records"),
        }
        for place, i in enumerate(top)
    ]  # fmt: skip
    place = table["record"].to_numpy(dtype=int)
    table = table.assign(record=top[place])
    table.insert(1, "table", "members")
    table.insert(2, "row", rows[top[place]])
    return Exposure(summary, table)


def released_evidence(
    targets: Any, synthetic: Any, reference: Any, config: GenLRAConfig | None = None, most: int = 3
) -> pd.DataFrame:
    """The released rows that contribute most to the Gen-LRA score of each record.

    Args:
        targets: (n, d) encoded records.
        synthetic: (m, d) encoded released rows.
        reference: (r, d) encoded reference rows, r >= 2.
        config: one k and one multiplier; None for the defaults.
        most: rows per record, >= 1.

    Returns:
        Tidy table, a record's strongest row first: ``record`` (index among the targets), ``released_row`` (index in the
        synthetic table), ``distance`` (encoded), ``contribution`` (the row's term of the score), and ``share`` of the
        score (NaN where the score is not above 0; above 1 where other terms are negative).

    Raises:
        InputError: a config of another type; see ``gen_lra_evidence``.

    Example:
        >>> x, s, r = np.array([[0.0]]), np.array([[4.0], [0.1], [-3.0]]), np.array([[-1.0], [0.0], [1.0], [2.0]])
        >>> found = released_evidence(x, s, r, GenLRAConfig(k=2), most=1)
        >>> found[["record", "released_row", "distance"]].values.tolist()
        [[0.0, 1.0, 0.1]]
    """
    check_int("most", most, 1)
    ok = config is None or isinstance(config, GenLRAConfig)
    require(ok, "config", "be a GenLRAConfig", type(config).__name__)
    found = gen_lra_evidence(targets, synthetic, reference, config)
    place = np.arange(len(found.target)) - np.searchsorted(found.target, found.target)
    kept = place < most
    record, row, contribution = found.target[kept], found.row[kept], found.contribution[kept]
    x, s = np.asarray(targets, dtype=float), np.asarray(synthetic, dtype=float)
    score = found.scores[record]
    share = np.divide(contribution, score, out=np.full(len(record), np.nan), where=score > 0)
    return pd.DataFrame({
        "record": record, "released_row": row, "distance": np.sqrt(((x[record] - s[row]) ** 2).sum(axis=1)),
        "contribution": contribution, "share": share,
    })  # fmt: skip


def _no_evidence() -> pd.DataFrame:
    kinds = {"record": int, "released_row": int, "distance": float, "contribution": float, "share": float}
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in kinds.items()})


def single_setting(config: GenLRAConfig, name: str, rows: int) -> GenLRAConfig:
    """Of a grid the setting that an attack's name tells, or else the first; k at most the number of released rows.

    Example:
        >>> single_setting(GenLRAConfig(k=(1, 5), multiplier=(0.5, 2)), "gen_lra[k=5,h=2]", 100)
        GenLRAConfig(k=5, bandwidth='fixed', neighbours='encoded', rule='silverman', multiplier=2, precision='float64')
        >>> single_setting(GenLRAConfig(k=10), "dcr", 4).k
        4
    """
    told = dict(re.findall(r"(k|h)=([^,\]]+)", name)) if name.startswith("gen_lra[") else {}
    k = next((k for k in config.ks if f"{k}" == told.get("k")), config.ks[0])
    multiplier = next((h for h in config.multipliers if f"{h:g}" == told.get("h")), config.multipliers[0])
    return replace(config, k=min(k, rows), multiplier=multiplier)


def _nearest_row(targets: np.ndarray, synthetic: np.ndarray) -> np.ndarray:
    """The nearest released row of every target, the first of equally near ones."""
    distinct, counts, origin = distinct_rows(synthetic, origin=True)
    first = np.minimum.reduceat(origin, np.cumsum(counts) - counts)
    pairs = nearest_pairs(targets, distinct, np.ones(len(distinct), np.int64), 1)
    order = np.lexsort((first[pairs.row], pairs.squared, pairs.target))
    starts = np.searchsorted(pairs.target[order], np.arange(len(targets)))
    return first[pairs.row[order[starts]]]


def _ids(release: Release, record: int) -> dict[str, str]:
    """A member's identifiers by column; missing cells are left out."""
    frame = release.ids.get("members")
    if frame is None or frame.empty:
        return {}
    return {str(name): cell for name in frame.columns if (cell := _cell(frame[name].iloc[record])) != ""}


def closest_pairs(
    release: Release, encoded: Mapping[str, np.ndarray], distance: np.ndarray, most: int = 10
) -> list[dict[str, Any]]:
    """The members closest to the release, each with its nearest released row, cell by cell.

    Args:
        release: the tables.
        encoded: ``targets`` (members first) and ``synthetic``.
        distance: (n,) to the nearest released row, from ``copies``.
        most: number of pairs.

    Returns:
        One dict per pair, the closest first: ``record``, ``row``, ``ids``, ``released_row``, ``distance``, and
        ``cells``, column -> [the record's, the released row's] as text, "" for a missing cell.
    """
    members = len(release.members)
    top = np.argsort(distance[:members], kind="stable")[:most]
    nearest = _nearest_row(encoded["targets"][top], encoded["synthetic"])
    rows = release.rows.get("members", np.arange(members))
    return [
        {
            "record": int(i), "row": int(rows[i]), "ids": _ids(release, int(i)), "released_row": int(j),
            "distance": float(distance[i]),
            "cells": {
                str(name): [_cell(frame[name].iloc[at]) for frame, at in ((release.members, i), (release.synthetic, j))]
                for name in release.members.columns
            },
        }
        for i, j in zip(top, nearest, strict=True)
    ]  # fmt: skip


def _cell(value: Any) -> str:
    """A cell as text: numbers in their shortest form, dates in ISO 8601, "" for a missing one."""
    if pd.isna(value):
        return ""
    if isinstance(value, pd.Timestamp):
        return value.isoformat(sep=" ").removesuffix(" 00:00:00")
    return f"{value:.15g}" if isinstance(value, float) else str(value)
