"""``jaxaudit compare``: the runs of one or more sweeps as one tidy table, one page, one figure per question."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxaudit.report.canvas import Picture, style
from jaxaudit.report.compare_page import QUESTIONS, comparison_page, question
from jaxaudit.report.draft import drafted, write_json, write_page, write_pictures
from jaxaudit.report.effects import METRICS, Effect, Measured, compare_levels, measure, rank_correlation, ranking
from jaxaudit.report.figures_compare import draw_attacks, draw_effect, draw_priors, draw_ranking, option_words
from jaxaudit.report.sweeps import Run, read_sweeps, varying_options
from jaxaudit.report.template import render_page
from jaxaudit.report.words import Page, get
from jaxaudit.report.write import plain
from jaxaudit.runtime.checks import InputError, require

__all__ = ["Comparison", "compare", "main_compare", "tidy", "write_comparison"]

_NOT_COMPARED = ("graph", "seed")  # what is audited, and repetition: settings to pair within, not questions
_FILES = ("figures", "summary.csv", "report.html", "summary.json")
_FOOTER = "Written by jaxaudit. All numbers are in summary.json beside this page."
_USAGE = """usage: jaxaudit compare FOLDER... [output=FOLDER]

Reads every results.json below the folders and writes summary.csv (one row per run), summary.json, report.html and
figures/ into output (default: the folder comparison inside the first one)."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs side by side.

    Attributes:
        table: one row per run.
        content: of summary.json.
        page: what the report says.
        pictures: the figures.
    """

    table: pd.DataFrame
    content: dict[str, Any]
    page: Page
    pictures: tuple[Picture, ...]


def compare(folders: Sequence[str | os.PathLike[str]]) -> Comparison:
    """Compare all runs below some folders.

    Runs are told apart by the options in which they differ. For every option, the runs that agree in all others are
    paired and their numbers subtracted; see ``jaxaudit.report.effects``.

    Args:
        folders: of sweeps or of single runs, of either audit.

    Raises:
        InputError: a folder that does not exist, or none that holds a result.
    """
    sweep = read_sweeps(folders)
    graphs = [run for run in sweep.runs if run.audit == "graph"]
    releases = [run for run in sweep.runs if run.audit == "release"]
    differing = {kind: varying_options(runs) for kind, runs in (("graph", graphs), ("release", releases))}
    labels = {run: _label(run, differing[run.audit]) for run in sweep.runs}
    order = [*QUESTIONS, *differing["graph"]]
    options = sorted((o for o in differing["graph"] if o not in _NOT_COMPARED), key=order.index)
    effects = [compare_levels(graphs, option) for option in options]
    rankings = {run: ranking(run) for run in graphs}
    rows = [(labels[run], rankings[run]) for run in graphs]
    attacks = list(dict.fromkeys(name for run in releases for name in run.summary.get("attacks", {})))
    medians = [[measure(run)[name].value for run in graphs] for name in ("r_median", "eps_R_median")]
    runs_ranking = rank_correlation(*map(np.array, medians)) if len(graphs) > 2 else math.nan
    with style():
        pictures = [draw_effect(one, question(one[0].option)) for one in effects]
        varied = [(label, found) for label, found in rows if get(found, "prior_spread") > 1e-9]
        pictures += [draw_ranking(varied)] if varied else []
        pictures += [draw_priors([(labels[run], run) for run in graphs])] if graphs else []
        pictures += [draw_attacks([(labels[run], run) for run in releases], attacks)] if releases else []
    every = list(dict.fromkeys([*differing["graph"], *differing["release"]]))
    page = comparison_page(sweep, labels, effects, rows, runs_ranking, attacks, every, {p.name: p for p in pictures})
    table = tidy(sweep.runs, every, attacks)
    content = {
        "schema_version": 1,
        "options": every,
        "runs": table.to_dict("records"),
        "effects": [_effect(effect) for one in effects for effect in one],
        "ranking": [{"run": run.name, **rankings[run]} for run in graphs],
        "ranking_of_runs": runs_ranking,
        "jobs": {"asked_for": sweep.jobs, "missing": sweep.missing},
        "skipped": sweep.skipped,
    }
    return Comparison(table, content, page, tuple(pictures))


def _label(run: Run, options: Sequence[str]) -> str:
    return option_words({name: run.options.get(name) for name in options}) if options else run.name


def tidy(runs: Sequence[Run], options: Sequence[str], attacks: Sequence[str] = ()) -> pd.DataFrame:
    """One row per run: its name, audit and options, then its numbers; ``_low`` and ``_high`` are their intervals.

    Args:
        runs: of either audit.
        options: columns of options.
        attacks: on releases; each gives ``auc_NAME`` with its interval and ``p_NAME``, adjusted for the attacks tried.

    Returns:
        Table with NaN where a run lacks a number.
    """
    bounded = {metric.column for metric in METRICS if metric.interval}
    rows = []
    for run in runs:
        row: dict[str, Any] = {"run": run.name, "audit": run.audit}
        row |= {name: run.options.get(name) for name in options}
        for column, found in measure(run).items() if run.audit == "graph" else ():
            row |= _columns(column, found, column in bounded)
        for name in attacks if run.audit == "release" else ():
            found = run.summary.get("attacks", {}).get(name, {})
            ends = found.get("auc_ci", ()) if isinstance(found, dict) else ()
            low, high = (get({"": end}, "") for end in ends) if len(ends) == 2 else (math.nan, math.nan)
            row |= _columns(f"auc_{name}", Measured(get(found, "auc"), low, high), True)
            row[f"p_{name}"] = get(found, "p_value")
        rows.append(row | {"warnings": run.warnings})
    return pd.DataFrame(rows)


def _columns(column: str, found: Measured, bounded: bool) -> dict[str, float]:
    ends = {f"{column}_low": found.low, f"{column}_high": found.high} if bounded else {}
    return {column: found.value} | ends


def _effect(effect: Effect) -> dict[str, Any]:
    def numbers(found: Mapping[str, Measured]) -> dict[str, Any]:
        return {name: {"difference": m.value, "low": m.low, "high": m.high} for name, m in found.items()}

    pairs = [{"at": pair.at, "baseline": pair.baseline.name, "other": pair.other.name,
              "auc": numbers(pair.differences)["auc"]} for pair in effect.pairs]  # fmt: skip
    return {"option": effect.option, "baseline": effect.baseline, "level": effect.level,
            "mean": numbers(effect.means), "pairs": pairs}  # fmt: skip


def write_comparison(comparison: Comparison, folder: str | os.PathLike[str]) -> Path:
    """Write summary.csv, report.html, figures/ and, last, summary.json; other files in the folder stay.

    All or nothing is written (``jaxaudit.report.draft``).

    Returns:
        The path of the report.

    Raises:
        InputError: the folder is a file or cannot be written.
    """
    target = Path(folder).expanduser().resolve()
    with drafted(target, _FILES, what="output") as draft:
        write_pictures(comparison.pictures, draft)
        comparison.table.to_csv(draft / "summary.csv", index=False, lineterminator="\n", encoding="utf-8")
        write_page(render_page(comparison.page, _FOOTER), draft)
        write_json(plain(comparison.content), draft / "summary.json")
    return target / "report.html"


def main_compare(arguments: Sequence[str]) -> None:
    """The subcommand: folders, and ``output=FOLDER``; bad input is one line on stderr and exit status 2."""
    if any(word in ("-h", "--help") for word in arguments):
        print(_USAGE)
        return
    outputs = [word.removeprefix("output=") for word in arguments if word.startswith("output=")]
    folders = [word for word in arguments if not word.startswith("output=")]
    try:
        unknown = [word for word in folders if word.startswith("-")]
        require(not unknown, "compare", "be given folders and output=FOLDER only", unknown[0] if unknown else "")
        require(len(outputs) < 2 and outputs != [""], "output", "be given once, as a folder", ", ".join(outputs))
        comparison = compare(folders)
        report = write_comparison(comparison, outputs[0] if outputs else Path(folders[0]).expanduser() / "comparison")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        print(f"error: cannot use {error.filename}: {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from None
    for line in comparison.page.warnings:
        print(f"warning: {line}", file=sys.stderr)
    print(f"report: {report}")
    print(f"runs: {len(comparison.table)}; options that differ: {', '.join(comparison.content['options']) or 'none'}")
