"""The report of a sweep of the local-overfitting model, and its files."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from jaxaudit.report.canvas import Picture
from jaxaudit.report.draft import drafted, write_json, write_page, write_pictures
from jaxaudit.report.figures_overfit import draw_overfit
from jaxaudit.report.html import command_line
from jaxaudit.report.template import render_page
from jaxaudit.report.words import Card, Items, Page, Section, Table, Text, count, flatten, get, number, p_value, percent
from jaxaudit.report.write import TABLES, plain
from jaxaudit.runtime.devices import describe
from jaxaudit.runtime.result import SCHEMA_VERSION
from jaxaudit.tables.overfit import OverfitResult
from jaxaudit.tables.overfit_summary import expectations, linearity_sentence

__all__ = ["overfit_page", "write_overfit"]

_FOOTER = "Written by jaxaudit. All numbers are in results.json and overfit.csv beside this page."
_MOST_ROWS = 300
_FILES = ("figures", "overfit.csv", "report.html", "results.json")

_READING = (
    "The model: m released rows, each from the population P with probability 1 − eps and otherwise next to one of N "
    "training rows at random, at a normal distance with standard deviation rho. P has mean zero and covariance I, so "
    "that all lengths are in standard deviations. Nothing here is a real table: the sweep says what attacks can do "
    "when a generator overfits in exactly this way.",
    "The prediction at k = m: gap = eps (m / N) (E g_own − E g_other). g(s; x) is the term of one released row s in "
    "the score of x; own means s drawn next to x, other next to another record. It is exact, and taken by Monte-Carlo "
    "over references of its own. For k below m the rows that enter depend on the release: expect no straight line.",
    "The closed form (plug-in) puts the smoothed density of the reference in the place of the estimated one. By "
    "Jensen's inequality its terms are too small; it is right where a kernel covers many rows of the reference.",
    "The limit: at a fixed bandwidth, as n and m grow, the score at k = m tends to (m / n) ((K_H * (p_S / K_H * "
    "p_R))(x) − 1). With a bandwidth that goes to 0 afterwards this is the published form with p_S / p_R.",
    "Intervals are over data sets drawn anew, within a cell and between cells. Attacks are compared on the same data. "
    "Many comparisons stand side by side; apart from those called adjusted, one in twenty misses by chance.",
)


def overfit_page(result: OverfitResult, pictures: Sequence[Picture], environment: Mapping[str, Any]) -> Page:
    """What the report says.

    Args:
        result: of ``jaxaudit.tables.overfit.sweep_overfit``.
        pictures: from ``draw_overfit``.
        environment: versions and devices.
    """
    named = {picture.name: picture for picture in pictures}
    used, summary = result.config["overfit"], result.summary
    cells, agreement = summary["map"], summary["agreement"]
    firsts: dict[str, int] = {}
    for cell in cells:
        firsts[cell["winner"] or "none"] = firsts.get(cell["winner"] or "none", 0) + 1
    most = max(firsts, key=lambda name: firsts[name])
    return Page(
        title="Which attack finds local overfitting?",
        subtitle=f"{count(len(cells))} cells of {used['replications']} simulated data sets; {count(used['release'])} "
        f"rows released after {count(used['train'])} training rows; population {used['population']}",
        tone="unknown",
        verdict=_verdict(agreement),
        explanation=f"Largest AUC, in cells: {', '.join(f'{name} {n}' for name, n in _sorted(firsts))}.",
        cards=(
            Card("Predicted gaps inside their interval", f"{count(agreement['within'])} of {count(agreement['cells'])}",
                 f"{percent(agreement['level'])} expected; smallest p, adjusted: {p_value(agreement['p_adjusted'])}"),
            Card("Largest difference", f"{number(agreement['largest_z'], 1)} standard errors", "simulated − predicted"),
            Card("Most often ahead", most, f"in {count(firsts[most])} of {count(len(cells))} cells"),
        ),
        warnings=result.warnings,
        sections=(
            Section("Does theory predict the score gap?", (named["predicted_gap"], named["slopes"])),
            Section(
                "Is the gap a straight line in eps?",
                (Text(_sentence(linearity_sentence(summary["linearity"], used["release"]))), named["gap_lines"],
                 _slopes_table(summary["linearity"], used)),
            ),
            *_limit(summary["limit"]),
            Section(
                "Which attack wins where?",
                (named["map"], named["auc_by_rho"],
                 *_claims(summary["claims"]), _map_table(cells)),
            ),
            Section("How to read these numbers", (Items(_READING),)),
            *_closing(result, environment),
        ),
    )  # fmt: skip


def _sorted(firsts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(firsts.items(), key=lambda item: (-item[1], item[0]))


def _sentence(line: str) -> str:
    return f"{line[0].upper()}{line[1:]}."


def _verdict(agreement: Mapping[str, Any]) -> str:
    if agreement["p_adjusted"] < 0.05:
        return "The simulated score gaps differ from the prediction by more than chance."
    return "The simulated score gaps are those that theory predicts, within the error of the simulation."


def _slopes_table(entries: Sequence[Mapping[str, Any]], used: Mapping[str, Any]) -> Table:
    ks = dict.fromkeys((used["release"], min(used["k"])))
    shown = [entry for k in ks for entry in entries if entry["k"] == k]
    rows = tuple(
        (*(f"{entry[name]:g}" for name in ("d", "n", "rho")), "m" if entry["k"] == used["release"] else f"{entry['k']}",
         f"{entry['multiplier']:g}", _with_error(get(entry, "predicted"), get(entry, "predicted_se")),
         _with_error(entry["slope"], entry["slope_se"]), p_value(get(entry, "lack_of_fit_p")),
         _with_error(get(entry, "trend"), get(entry, "trend_se")))
        for entry in shown[:_MOST_ROWS]
    )  # fmt: skip
    return Table(
        "Score gap per eps, at k = m and at the smallest k, with standard errors. p: of a straight line (Welch's test "
        "of equal gap / eps). Trend: change of gap / eps per unit of eps",
        ("d", "n", "rho", "k", "bandwidth", "predicted", "simulated", "p", "trend"), rows, left=0,
    )  # fmt: skip


def _cut(rows: Sequence[Any]) -> str:
    return f". The first {_MOST_ROWS} of {count(len(rows))}; results.json has all" if len(rows) > _MOST_ROWS else ""


def _with_error(value: float, error: float) -> str:
    return number(value) if math.isnan(value) else f"{number(value)} ± {number(error)}"


def _limit(limit: Mapping[str, Any]) -> tuple[Section, ...]:
    if not limit["sizes"]:
        return ()
    case = limit["case"]
    text = (
        f"Root mean square of 1 + (n / m) score − limit over {case['records']} records and {case['draws']} releases, "
        f"as a share of that of the limit; d = {case['d']}, bandwidth {case['bandwidth']:g}, eps {case['eps']:g}, rho "
        f"{case['rho']:g}, {case['train']} training rows. Both errors, of the release and of the reference, fall like "
        "the root of the size."
    )
    rows = tuple((count(row["size"]), _with_error(row["error"], row["error_se"])) for row in limit["sizes"])
    return (
        Section("Does the score tend to its limit?", (Text(text), Table("", ("n = m", "relative error"), rows, 0))),
    )


def _claims(found: Mapping[str, Any]) -> tuple[Items | Table, ...]:
    """Expectations and findings about pairs of attacks; nothing where a pair was not run."""
    rows = tuple(
        (name.replace("-", "−"), f"{row['rho']:g}", f"{number(row['difference'])} ± {number(row['difference_se'])}",
         count(row["ahead"]), count(row["tied"]), count(row["behind"]))
        for name, entries in found.items() for row in entries
    )  # fmt: skip
    if not rows:
        return ()
    return (
        Items(tuple(map(_sentence, expectations(found)))),
        Table("Differences of AUC by rho: mean over the cells ± standard error, and cells by their own interval",
              ("attacks", "rho", "difference", "ahead", "tied", "behind"), rows),
    )  # fmt: skip


def _map_table(cells: Sequence[Mapping[str, Any]]) -> Table:
    names = list(cells[0]["attacks"])
    rows = tuple(
        (*(f"{cell[name]:g}" for name in ("d", "n", "rho", "eps")),
         f"{cell['gen_lra']['k']}, {cell['gen_lra']['multiplier']:g}",
         *(f"{number(cell['attacks'][name]['auc'])}\n± {number(cell['attacks'][name]['auc_se'])}" for name in names))
        for cell in cells[:_MOST_ROWS]
    )  # fmt: skip
    return Table(
        "Mean AUC ± standard error over the data sets of a cell; k, h: best k and bandwidth of Gen-LRA" + _cut(cells),
        ("d", "n", "rho", "eps", "k, h", *(name.replace("_", "_\n") for name in names)), rows, left=0,
    )  # fmt: skip


def _closing(result: OverfitResult, environment: Mapping[str, Any]) -> tuple[Section, ...]:
    times = tuple(
        (str(stage), number(get(spent, "compile_s"), 2), number(get(spent, "run_s"), 2), count(get(spent, "items")))
        for stage, spent in result.timings.items()
    )
    return (
        Section("Settings", (Table("", ("setting", "value"), tuple(flatten(result.config)), left=2),)),
        Section("Time", (Table("Seconds per stage", ("stage", "compiling", "running", "items"), times),)),
        Section("Environment", (Table("", ("", ""), tuple(flatten(environment)), left=2),)),
        Section("How to reproduce", (
            Text("The same versions and seed give the same numbers; a cell depends on no other cell of the sweep."),
            Text(command_line(cast(Any, result)), kind="code"),
        )),
    )  # fmt: skip


def write_overfit(
    result: OverfitResult, folder: str | os.PathLike[str], environment: dict[str, Any] | None = None
) -> dict[str, Path]:
    """Write results.json (strict JSON), overfit.csv, figures/ and report.html; other files in the folder stay.

    All or nothing is written (``jaxaudit.report.draft``).

    Args:
        result: of ``jaxaudit.tables.overfit.sweep_overfit``.
        folder: where to; made if absent.
        environment: versions and devices; None asks ``jaxaudit.runtime.devices.describe``.

    Returns:
        Paths of "results", "table", "report" and "figures" (a folder).

    Raises:
        InputError: the folder is a file or cannot be written.
    """
    environment = describe() if environment is None else environment
    target = Path(folder).expanduser().resolve()
    others = tuple(name for name in TABLES if name not in _FILES)
    with drafted(target, (*others, *_FILES), optional=others) as draft:
        _write_files(result, draft, environment)
    return dict(zip(("figures", "table", "report", "results"), (target / name for name in _FILES), strict=True))


def _write_files(result: OverfitResult, draft: Path, environment: Mapping[str, Any]) -> None:
    pictures = draw_overfit(result)
    write_pictures(pictures, draft)
    write_page(render_page(overfit_page(result, pictures, environment), _FOOTER), draft)
    result.table.to_csv(draft / "overfit.csv", index=False, na_rep="", lineterminator="\n", encoding="utf-8",
                        quoting=csv.QUOTE_MINIMAL)  # fmt: skip
    content = {
        "schema_version": SCHEMA_VERSION, "audit": result.audit, "config": result.config, "environment": environment,
        "timings": result.timings, "summary": result.summary, "warnings": result.warnings,
    }  # fmt: skip
    write_json(plain(content), draft / "results.json")
