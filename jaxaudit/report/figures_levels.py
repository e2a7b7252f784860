"""Figures of a graph audit with one row per attack and one row per group."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes

from jaxaudit.report.attack_words import ATTACKS, FITS, attack_rows
from jaxaudit.report.canvas import BLUE, GREEN, GREY, INK, RED, Picture, finish, grid_figure, note, percent_axis
from jaxaudit.report.graph_levels import usable_groups
from jaxaudit.report.words import branch, count, ends, get, short
from jaxaudit.runtime.result import AuditResult

__all__ = ["draw_attack_comparison", "draw_groups"]

_COLOURS = {"both": RED, "out": BLUE, "none": INK}
_MOST = 48  # groups in the figure


def draw_attack_comparison(result: AuditResult) -> list[Picture]:
    """AUC within a node and TPR at 1 % of every compared attack; nothing where none was compared."""
    rows = attack_rows(result.summary)
    if not rows:
        return []
    rows.sort(key=lambda row: -_or_lowest(get(row, "within_node_auc")))
    figure, axes = grid_figure(1, 2, height=1.7 + 0.27 * max(3, len(rows)), sharey=True)
    panels = (("within_node_auc", 0.5, "AUC within a node"), ("tpr_at_0.01", 0.01, "TPR at 1 % FPR, over nodes"))
    for ax, (name, guess, title) in zip(axes[0], panels, strict=True):
        ax.set_title(title)
        shown = [guess]
        for k, row in enumerate(rows):
            fits = ATTACKS.get(str(row.get("attack")), ("", ""))[0]
            shown += _row(ax, k, get(row, name), ends(row.get(f"{name}_ci")), _COLOURS.get(fits, GREY))
        _frame(ax, guess, shown)
    axes[0, 0].set_yticks(range(len(rows)), [short(row.get("attack"), 36) for row in rows])
    axes[0, 0].set_ylim(len(rows) - 0.4, -0.6)
    percent_axis(axes[0, 1].xaxis)
    seen = {ATTACKS[str(row.get("attack"))][0] for row in rows if str(row.get("attack")) in ATTACKS}
    for fits in (name for name in FITS if name in seen):
        axes[0, 0].plot([], [], "o-", color=_COLOURS[fits], ms=5, label=f"fitted to {FITS[fits]}")
    if seen:
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return [
        finish(
            figure,
            "attack_comparison",
            "Every compared attack, best AUC first, with 95 % intervals over the judged models. Dotted: guessing. The "
            "AUC on the left compares models within a node; the share on the right compares a model's nodes. In and "
            "out models: those trained with and without the node.",
            "Two forest plots with one row per attack: AUC within a node and TPR at 1 % false positives.",
        )
    ]


def _or_lowest(value: float) -> float:
    return value if math.isfinite(value) else -1.0


def _row(ax: Axes, place: float, value: float, ends: tuple[float, float], colour: str) -> list[float]:
    """A dot with its interval; the numbers that the axis has to hold."""
    low, high = ends
    if math.isfinite(low) and math.isfinite(high):
        ax.plot([low, high], [place, place], color=colour, lw=2, solid_capstyle="butt")
    if math.isfinite(value):
        ax.plot([value], [place], "o", color=colour, ms=5)
    return [v for v in (low, value, high) if math.isfinite(v)]


def _frame(ax: Axes, guess: float, shown: Sequence[float]) -> None:
    ax.axvline(guess, color=INK, lw=1, ls=(0, (1, 1.5)))
    room = 0.05 * (max(shown) - min(shown)) + 0.005
    ax.set_xlim(min(shown) - room, max(shown) + room)
    ax.grid(axis="y", visible=False)


def draw_groups(result: AuditResult) -> list[Picture]:
    """Intervals of every group's r and l; nothing where there is no grouping."""
    found = usable_groups(result.summary)
    if not found:
        return []
    each = max(6, _MOST // len(found))
    places, names, rows = [], [], []
    left_out, at = 0, 0.0
    for groups in found.values():
        largest = sorted(range(len(groups)), key=lambda k: (-_or_lowest(groups[k][1]), k))[:each]
        left_out += len(groups) - len(largest)
        for k in sorted(largest):
            name, nodes, quantiles = groups[k]
            places.append(at)
            names.append(f"{short(name, 28)}  ({count(nodes)})")
            rows.append(quantiles)
            at += 1
        at += 0.8
    figure, axes = grid_figure(1, 2, height=1.4 + 0.23 * max(4.0, at), sharey=True)
    for ax, x, direction in zip(axes[0], "rl", ("membership", "non-membership"), strict=True):
        ax.set_title(f"{x}: odds of {direction}")
        shown = [0.0]
        for place, quantiles in zip(places, rows, strict=True):
            low, middle, high = quantiles[x]
            shown += _row(ax, place, middle, (low, high), BLUE)
        shown += _pooled(ax, result, x)
        if len(shown) == 1:
            note(ax, "no auditable node")
            continue
        ax.set_xlim(0, 1.04 * max(shown) + 0.05)
        ax.grid(axis="y", visible=False)
        ax.set_xlabel(f"{x}, natural log of the odds ratio")
    axes[0, 0].set_yticks(places, names)
    axes[0, 0].set_ylim(at - 1.2, -0.6)
    rest = f" Drawn are the largest groups of each kind; {count(left_out)} more are not." if left_out else ""
    return [
        finish(
            figure,
            "groups",
            "The paper's posterior of each group's shared r and l: 90 % interval and median, nodes taken as "
            "independent; in brackets the auditable nodes. Green: the same for all nodes as one group, widened for "
            f"shared models where that was measured.{rest}",
            "Intervals of r and l, one row per group, in blocks by grouping.",
        )
    ]


def _pooled(ax: Axes, result: AuditResult, x: str) -> list[float]:
    pooled = branch(result.summary, "pooled")
    low, high = ends(branch(pooled, "shared_models", x).get("interval"))
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = get(pooled, x, "q05"), get(pooled, x, "q95")
    middle = get(pooled, x, "q50")
    if math.isfinite(low) and math.isfinite(high):
        ax.axvspan(low, high, color=GREEN, alpha=0.13, lw=0)
    if math.isfinite(middle):
        ax.axvline(middle, color=GREEN, lw=1.2)
    return [v for v in (low, middle, high) if math.isfinite(v)]
