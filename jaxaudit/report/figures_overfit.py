"""Figures of a sweep of the local-overfitting model: theory beside simulation, and which attack wins where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from jaxaudit.report.canvas import BLUE, GREEN, GREY, INK, RED, Picture, finish, grid_figure, log_axis, style
from jaxaudit.report.words import count, percent
from jaxaudit.tables.overfit import OverfitResult

__all__ = ["draw_overfit"]

_ATTACKS = {"gen_lra": RED, "dcr": BLUE, "domias": GREEN}
_OTHERS = ("#8a5fb0", "#b8860b", "#3aa6b9", "#c75b9b", "#8c6d46", GREY, INK)
_MARKS = "sD^vP*X<>h"
_PANELS = 3
_DOTTED = (0, (1, 1.5))


def draw_overfit(result: OverfitResult) -> list[Picture]:
    """The figures of a sweep, in the order of the report: predicted_gap, gap_lines, slopes, map, auc_by_rho."""
    with style():
        return [_predicted(result), _lines(result), _slopes(result), _map(result), _by_rho(result)]


def _reach(result: OverfitResult) -> float:
    """Standard errors to either side of a mean over replications, Student's t."""
    used = result.config["overfit"]
    return float(stats.t.ppf((1 + used["level"]) / 2, used["replications"] - 1))


def _colours(values: Sequence[float]) -> dict[float, Any]:
    """A colour per value, dark to light."""
    shades = mpl.colormaps["viridis"](np.linspace(0, 0.85, len(values)))
    return dict(zip(values, shades, strict=True))


def _title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=10.5, fontweight="bold")


def _legend(figure: Figure, ax: Axes, columns: int = 6) -> None:
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower left", ncols=columns, handletextpad=0.4,
                  columnspacing=1.2, borderpad=0.2)  # fmt: skip


def _some(values: Sequence[float]) -> list[float]:
    """At most ``_PANELS`` of the values, both ends among them."""
    places = np.unique(np.linspace(0, len(values) - 1, min(len(values), _PANELS)).round().astype(int))
    return [values[place] for place in places]


def _size(result: OverfitResult) -> str:
    used = result.config["overfit"]
    return f"{used['replications']} data sets each"


def _interval(result: OverfitResult) -> str:
    used = result.config["overfit"]
    return f"{percent(used['level'])} intervals over {used['replications']} data sets"


def _predicted(result: OverfitResult) -> Picture:
    used, reach = result.config["overfit"], _reach(result)
    whole = result.table[result.table.predicted.notna()]
    multipliers, colours = _some(sorted(used["multiplier"])), _colours(sorted(used["rho"]))
    figure, axes = grid_figure(1, len(multipliers), width=3.0 * len(multipliers) + 0.4, height=3.9)
    for ax, multiplier in zip(axes[0], multipliers, strict=True):
        part = whole[whole.multiplier == multiplier]
        for rho, colour in colours.items():
            here = part[part.rho == rho]
            label = f"rho {rho:g}" if ax is axes[0, 0] else None
            across, upright = reach * here.predicted_se, reach * here.gap_se
            ax.errorbar(here.predicted, here.gap, yerr=upright, xerr=across, fmt="o", ms=4, lw=1.1, color=colour,
                        label=label)  # fmt: skip
        top = float(part.predicted.max()) * 1.08 or 1.0
        ax.plot([0, top], [0, top], color=INK, lw=1, ls=_DOTTED, label="equal" if ax is axes[0, 0] else None)
        ax.set_xlabel("predicted score gap (nats)")
        ax.set_title(f"bandwidth × {multiplier:g}", fontsize=9.5)
    axes[0, 0].set_ylabel("simulated score gap (nats)")
    cells = len(whole) // len(used["multiplier"])
    _title(figure, f"Score gap at k = m: theory and simulation ({count(cells)} cells, {_size(result)})")
    _legend(figure, axes[0, 0], 7)
    return finish(
        figure, "predicted_gap",
        "Mean Gen-LRA score of members minus that of non-members, all released rows entering (k = m). Each dot is one "
        f"cell (eps, rho, d, n), bars are {_interval(result)}; horizontal ones, mostly too small to see, are those of "
        "the prediction, which is taken over references and knows nothing of the simulated releases. Dots on the "
        "dotted line agree. Bandwidths are multiples of the rule's.",
        "Dots of simulated against predicted score gaps around the line of equality.",
    )  # fmt: skip


def _line_of_cells(result: OverfitResult, k: int, multiplier: float) -> pd.DataFrame:
    """Gen-LRA rows of the first (d, n) at one k and bandwidth."""
    used, table = result.config["overfit"], result.table
    first = (table.d == used["d"][0]) & (table.n == used["n"][0]) & (table.attack == "gen_lra")
    return table[first & (table.k == k) & (table.multiplier == multiplier)].sort_values("eps")


def _middle(result: OverfitResult) -> float:
    """The bandwidth multiplier closest to 1."""
    return float(min(result.config["overfit"]["multiplier"], key=lambda h: abs(math.log(h))))


def _lines(result: OverfitResult) -> Picture:
    used, reach, multiplier = result.config["overfit"], _reach(result), _middle(result)
    ks = sorted({min(used["k"]), used["release"]})[::-1]
    colours = _colours(sorted(used["rho"]))
    figure, axes = grid_figure(1, len(ks), width=4.3 * len(ks), height=4.0)
    widest = max(used["eps"]) or 1.0
    shift = 0.005 * widest
    for ax, k in zip(axes[0], ks, strict=True):
        part = _line_of_cells(result, k, multiplier)
        for place, (rho, colour) in enumerate(colours.items()):
            here = part[part.rho == rho]
            x = here.eps + shift * (place - len(colours) / 2)
            ax.errorbar(x, here.gap, yerr=reach * here.gap_se, fmt="o", ms=4, lw=1.1, color=colour,
                        label=f"rho {rho:g}" if ax is axes[0, 0] else None)  # fmt: skip
            above = here[here.eps > 0]
            if k == used["release"] and len(above):
                slope = float(above.predicted.iloc[-1] / above.eps.iloc[-1])
                ax.plot([0, widest], [0, slope * widest], color=colour, lw=1)
            else:
                ax.plot(here.eps, here.gap, color=colour, lw=1, ls="--")
        ax.axhline(0, color=GREY, lw=0.8)
        ax.set_xlim(-0.03 * widest, 1.05 * widest)
        ax.set_xlabel("eps: share of near copies among released rows")
        ax.set_title("k = m: all released rows" if k == used["release"] else f"k = {k}", fontsize=9.5)
    axes[0, 0].set_ylabel("score gap (nats)")
    where = f"d = {used['d'][0]}, n = {used['n'][0]}, bandwidth × {multiplier:g}"
    _title(figure, f"Score gap by share of near copies ({where}; {_size(result)})")
    _legend(figure, axes[0, 0])
    return finish(
        figure, "gap_lines",
        "Mean score of members minus that of non-members; dots with " + _interval(result) + ", moved sideways a little "
        "where they would hide each other. Left: with all released rows the theory says a straight line through the "
        "origin, and its slope; the lines are that prediction, not a fit. Right: with few neighbours there is no such "
        "line (dashes join the dots): once the nearest row is a near copy, further ones add nothing.",
        "Score gaps over eps: straight predicted lines at k = m, joined dots at the smallest k.",
    )  # fmt: skip


def _slopes(result: OverfitResult) -> Picture:
    used = result.config["overfit"]
    entries = pd.DataFrame(result.summary["linearity"])
    figure, axes = grid_figure(1, 1, width=6.6, height=3.9)
    ax = axes[0, 0]
    if len(entries):
        first = (entries.d == used["d"][0]) & (entries.n == used["n"][0]) & (entries.k == used["release"])
        for multiplier, colour in _colours(sorted(used["multiplier"])).items():
            here = entries[first & (entries.multiplier == multiplier)].sort_values("rho")
            label = f"bandwidth × {multiplier:g}"
            ax.plot(here.rho, here.predicted, color=colour, lw=1.4, label=label)
            ax.plot(here.rho, _plug_in_slopes(result, multiplier, here.rho), color=colour, lw=1, ls=_DOTTED)
            ax.errorbar(here.rho, here.slope, yerr=1.96 * here.slope_se, fmt="o", ms=4, lw=1.1, color=colour)
        lowest = float(entries[first].predicted.min())
        ax.set_ylim(bottom=max(lowest / 20, 1e-6))
        log_axis(ax, "y")
    ax.set_xlabel("rho: distance of near copies (standard deviations of P)")
    ax.set_ylabel("score gap per eps (nats)")
    _title(figure, f"Slope of the score gap at k = m (d = {used['d'][0]}, n = {used['n'][0]}; {_size(result)})")
    _legend(figure, ax, 4)
    return finish(
        figure, "slopes",
        "How fast the score gap grows with the share of near copies. Lines: prediction over references; dots: slopes "
        f"fitted to the simulated gaps of {sum(eps > 0 for eps in used['eps'])} values of eps with 95 % intervals; "
        "dotted: the closed form with the smoothed density instead of the estimated one, which is too low where a "
        "kernel covers few rows (small bandwidths, distant copies). Logarithmic scale; an interval that reaches 0 "
        "leaves at the bottom.",
        "Slopes over rho for every bandwidth, predicted and fitted.",
    )  # fmt: skip


def _plug_in_slopes(result: OverfitResult, multiplier: float, rhos: Sequence[float]) -> list[float]:
    part = _line_of_cells(result, result.config["overfit"]["release"], multiplier)
    part = part[part.eps > 0].drop_duplicates("rho").set_index("rho")
    return [float(part.plug_in[rho] / part.eps[rho]) for rho in rhos]


def _map(result: OverfitResult) -> Picture:
    used, cells = result.config["overfit"], result.summary["map"]
    panels = list(dict.fromkeys((cell["d"], cell["n"]) for cell in cells))[:4]
    rhos, shares = sorted(used["rho"]), sorted(used["eps"])
    height = 0.9 + (0.62 * len(rhos) + 0.7) * len(panels)
    figure, axes = grid_figure(len(panels), 1, width=2.2 + 1.95 * len(shares), height=height)
    top = max(0.6, *(cell["auc"] for cell in cells))
    for ax, (d, n) in zip(axes[:, 0], panels, strict=True):
        here = {(c["rho"], c["eps"]): c for c in cells if (c["d"], c["n"]) == (d, n)}
        image = ax.imshow([[here[rho, eps]["auc"] for eps in shares] for rho in rhos], cmap="Blues", vmin=0.5,
                          vmax=top + 0.8 * (top - 0.5), aspect="auto", origin="lower")  # fmt: skip
        for (row, rho), (column, eps) in _pairs(rhos, shares):
            ax.text(column, row, _cell_words(here[rho, eps]), ha="center", va="center", fontsize=7.5, color=INK)
        ax.set_xticks(range(len(shares)), [f"{eps:g}" for eps in shares])
        ax.set_yticks(range(len(rhos)), [f"{rho:g}" for rho in rhos])
        ax.set_xlabel("eps: share of near copies among released rows")
        ax.set_ylabel("rho (standard deviations)")
        ax.set_title(f"d = {d} columns, n = {n} reference rows", fontsize=9.5)
        ax.grid(False)
        bar = figure.colorbar(image, ax=ax, label="AUC of the best attack", format="%.2f")
        bar.ax.set_ylim(0.5, top)
    _title(figure, f"Which attack wins where? ({count(len(cells))} cells, {_size(result)})")
    return finish(
        figure, "map",
        "In each cell the attack with the largest AUC, its AUC ± standard error, and below it the attacks whose paired "
        f"difference to it is within error ({_interval(result)}). \"none\": the largest AUC cannot be told from "
        "guessing. Gen-LRA enters at the k and bandwidth that were best on the other data sets of the cell.",
        "A table of cells by eps and rho, coloured by AUC, with the winner's name.",
    )  # fmt: skip


def _pairs(rows: Sequence[float], columns: Sequence[float]) -> list[tuple[tuple[int, float], tuple[int, float]]]:
    return [(row, column) for row in enumerate(rows) for column in enumerate(columns)]


def _cell_words(cell: dict[str, Any]) -> str:
    if cell["winner"] is None:
        return f"none\n{cell['auc']:.3f} ± {cell['auc_se']:.3f}"
    tied = cell["tied"][:2] + ([f"{len(cell['tied']) - 2} more"] if len(cell["tied"]) > 2 else [])
    lines = [cell["winner"], f"{cell['auc']:.3f} ± {cell['auc_se']:.3f}"]
    return "\n".join([*lines, f"~ {', '.join(tied)}"] if tied else lines)


def _by_rho(result: OverfitResult) -> Picture:
    used, reach = result.config["overfit"], _reach(result)
    shares, rhos = sorted(used["eps"])[-2:], sorted(used["rho"])
    d, n = used["d"][0], used["n"][0]
    here = {(c["rho"], c["eps"]): c["attacks"] for c in result.summary["map"] if (c["d"], c["n"]) == (d, n)}
    names = list(here[rhos[0], shares[0]])
    rest = [name for name in names if name not in _ATTACKS]
    colours = _ATTACKS | {name: _OTHERS[place % len(_OTHERS)] for place, name in enumerate(rest)}
    figure, axes = grid_figure(1, len(shares), width=4.3 * len(shares), height=4.3, sharey=True)
    places = np.arange(len(rhos))
    for ax, eps in zip(axes[0], shares, strict=True):
        for which, name in enumerate(names):
            mean, error = np.array([[here[rho, eps][name][key] for key in ("auc", "auc_se")] for rho in rhos]).T
            main = name in _ATTACKS
            ax.errorbar(places + 0.035 * (which - len(names) / 2), mean, yerr=reach * error, color=colours[name],
                        marker="o" if main else _MARKS[which % len(_MARKS)], ms=4.5 if main else 3.5,
                        lw=1.8 if main else 0.9, elinewidth=1, zorder=3 if main else 2,
                        label=name if ax is axes[0, 0] else None)  # fmt: skip
        ax.axhline(0.5, color=INK, lw=1, ls=_DOTTED)
        ax.set_xticks(places, [f"{rho:g}" for rho in rhos])
        ax.set_xlabel("rho (standard deviations of P)")
        ax.set_title(f"eps = {eps:g}", fontsize=9.5)
    axes[0, 0].set_ylabel("AUC (dotted: guessing)")
    _title(figure, f"AUC of every attack by distance of the near copies (d = {d}, n = {n}; {_size(result)})")
    _legend(figure, axes[0, 0], 5)
    return finish(
        figure, "auc_by_rho",
        f"Mean AUC with {_interval(result)}, members against as many non-members ({count(used['scored'])} each); "
        "values of rho stand at equal distances. Gen-LRA at the k and bandwidth that were best on the other data sets.",
        "Lines of AUC over rho, one per attack.",
    )  # fmt: skip
