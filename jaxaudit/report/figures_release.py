"""Figures of a release audit."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxaudit.evaluate.bands import roc_bands
from jaxaudit.evaluate.roc import clopper_pearson
from jaxaudit.report.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    RED,
    Picture,
    finish,
    grid_figure,
    note,
    percent_axis,
    stretched_axis,
)
from jaxaudit.report.figures_copies import draw_copies, share_axes
from jaxaudit.report.words import count, get, number, p_value, short
from jaxaudit.runtime.result import AuditResult

__all__ = ["attack_scores", "confidence", "counted", "draw_release"]


PALETTE = (RED, BLUE, GREEN, "#7a4fa3", "#b8860b", GREY)
"""Colours of the attacks from the best on; all further ones have the last."""

_PANELS = 9
"""Attacks whose scores are drawn."""


def draw_release(result: AuditResult) -> list[Picture]:
    """The figures of a release audit, in the order of the report; copies only where the audit has distances."""
    return [_forest(result), _rocs(result), _distributions(result), *draw_copies(result)]


def attack_scores(result: AuditResult) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Attack names in the summary's order, their scores (a, n) float64, and membership (n,) bool.

    Scores come from ``evidence``, or from the table where it holds none; unknown ones are NaN.
    """
    names = [str(name) for name in result.summary.get("attacks", {})]
    member = np.asarray(result.evidence.get("member", result.table.get("member", np.zeros(0)))).astype(bool)
    scores = np.asarray(result.evidence.get("scores", np.zeros((0, 0))), dtype=float)
    if scores.shape != (len(names), member.size):
        missing = np.full(member.size, np.nan)
        columns = [result.table[n].to_numpy(dtype=float) if n in result.table else missing for n in names]
        scores = np.stack(columns) if columns else np.zeros((0, member.size))
    return names, scores, member


def _forest(result: AuditResult) -> Picture:
    attacks = result.summary.get("attacks", {})
    ordered = sorted(attacks, key=lambda name: (-_sortable(get(attacks, name, "auc")), str(name)))
    figure, axes = grid_figure(1, 2, height=1.5 + 0.42 * max(2, len(ordered)), width_ratios=(2.3, 1))
    ax, beside = axes[0]
    beside.set_axis_off()
    ax.set_title("How well each attack tells members from non-members", pad=22)
    if not ordered:
        note(ax, "no attack was run")
    drawn = [0.5]
    for row, name in enumerate(ordered):
        area, (low, high) = get(attacks, name, "auc"), _interval(attacks[name])
        p = get(attacks, name, "p_value")
        colour = RED if p <= 0.05 else GREY
        if math.isfinite(area):
            ax.plot([low, high], [row, row], color=colour, lw=2, solid_capstyle="butt")
            ax.plot(area, row, "o", color=colour, ms=6)
            drawn += [v for v in (low, high, area) if math.isfinite(v)]
        critical = get(attacks, name, "critical_auc")
        if math.isfinite(critical):
            ax.plot(
                [critical, critical], [row - 0.3, row + 0.3], color=INK, lw=1, label="" if row else "AUC with p = .05"
            )
        text = f"{number(area)} [{number(low)}, {number(high)}]"
        beside.text(0, row, text, va="center", fontsize=8.5)
        beside.text(0.72, row, p_value(p), va="center", fontsize=8.5, color=colour)
    if ordered:
        for x, head in ((0, f"AUC [{confidence(result)}]"), (0.72, "p, adjusted")):
            beside.text(x, -0.85, head, va="center", fontsize=8.5, color=GREY)
        ax.axvline(0.5, color=INK, lw=1, ls=(0, (1, 1.5)))
        ax.set_xlim(max(-0.01, min(drawn) - 0.03), min(1.01, max(drawn) + 0.03))
        ax.set_yticks(range(len(ordered)), [short(name, 24) for name in ordered])
        for side in (ax, beside):
            side.set_ylim(len(ordered) - 0.4, -0.6)
        ax.grid(axis="y", visible=False)
        ax.set_xlabel(f"AUC over {_sizes(result)} (dotted: guessing)")
    return finish(
        figure,
        "attacks",
        f"AUC of each attack with its {confidence(result)} interval; red: adjusted p at most .05, more than luck even "
        "though all these attacks were tried. Short black bars, where shown: the AUC an attack needs for that.",
        "Forest plot of attack AUCs with intervals.",
    )


def counted(value: float, noun: str) -> str:
    """A count with its noun.

    Example:
        >>> counted(1, "member"), counted(2000, "non-member"), counted(math.nan, "member")
        ('1 member', '2,000 non-members', '– members')
    """
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def _level(result: AuditResult) -> float:
    level = get(result.summary, "permutation", "level")
    return 0.95 if math.isnan(level) else level


def confidence(result: AuditResult) -> str:
    """The confidence level of all intervals, as text."""
    return f"{100 * _level(result):.6g} %"


def _sortable(value: float) -> float:
    return value if math.isfinite(value) else -1.0


def _interval(attack: dict[str, object]) -> tuple[float, float]:
    interval = attack.get("auc_ci")
    if isinstance(interval, list | tuple) and len(interval) == 2:
        low, high = (get({"v": v}, "v") for v in interval)
        return low, high
    return math.nan, math.nan


def _sizes(result: AuditResult) -> str:
    records = result.summary.get("records", {})
    return f"{counted(get(records, 'members'), 'member')} and {counted(get(records, 'non_members'), 'non-member')}"


def _panels(attacks: int, height: float) -> tuple[Figure, list[Axes]]:
    columns = min(3, max(1, attacks))
    rows = -(-max(1, attacks) // columns)
    figure, axes = grid_figure(rows, columns, width=(4.8, 7.4, 8.8)[columns - 1], height=height * rows + 0.5)
    flat = list(axes.flat)
    for ax in flat[max(1, attacks) :]:
        ax.set_axis_off()
    return figure, flat


def _usable(scores: np.ndarray, member: np.ndarray) -> bool:
    return bool(np.isfinite(scores).all() and member.any() and not member.all())


def _rocs(result: AuditResult) -> Picture:
    names, scores, member = attack_scores(result)
    usable = [place for place, row in enumerate(scores) if _usable(row, member)]
    usable.sort(key=lambda place: -_sortable(get(result.summary, "attacks", names[place], "auc")))
    figure, axes = grid_figure(1, 1, width=8.6, height=4.6)
    ax, level = axes[0, 0], confidence(result)
    if usable:
        _draw_rocs(figure, ax, [names[place] for place in usable], scores[usable], member, result)
    else:
        note(ax, "no usable scores" if names else "no attack was run")
    return finish(
        figure,
        "roc",
        "Share of members found (TPR) against share of non-members wrongly called members (FPR), both on log scales: "
        "the left end is what matters for a person in the table. Steps are the thresholds that exist, nothing is "
        f"interpolated; the band is the {level} interval of the attack with the largest AUC, at each FPR taken alone. "
        "The dots at the far left are the members above every non-member (FPR = 0), the bar there their exact "
        f"{level} interval; dotted: guessing.",
        "Log-log ROC curves of all attacks, with the band of the best one.",
    )


def _draw_rocs(
    figure: Figure, ax: Axes, names: list[str], scores: np.ndarray, member: np.ndarray, result: AuditResult
) -> None:
    """The best attack comes first and has the band; lines beyond the palette are grey and share one legend entry."""
    bands = roc_bands(scores, member, _level(result))
    n1, n0 = int(member.sum()), int((~member).sum())
    zero, bottom, x = 0.35 / n0, 0.4 / n1, bands.fpr[1:]
    low, high = (np.maximum(limit[0, 1:], bottom) for limit in (bands.low, bands.high))
    ax.fill_between(x, low, high, step="post", color=RED, alpha=0.15, lw=0)
    for place, (name, tpr) in enumerate(zip(names, bands.tpr, strict=True)):
        colour, width = PALETTE[min(place, len(PALETTE) - 1)], 1.3 if place else 2.0
        ax.step(x, np.maximum(tpr[1:], bottom), where="post", color=colour, lw=width, zorder=3 if place else 4,
                label=_legend_entry(place, name, len(names), result))  # fmt: skip
        aside = zero * 1.1 ** ((place + 1) // 2 % 4 * (-1) ** place)  # side by side, for ties
        ax.plot(aside, max(tpr[0], bottom), "o", color=colour, ms=5, zorder=3 if place else 4)
    ends = clopper_pearson(round(bands.tpr[0, 0] * n1), n1, _level(result))
    ax.plot([zero, zero], np.maximum(ends, bottom), color=RED, lw=1.2)
    line = np.geomspace(max(1 / n0, bottom), 1, 50)
    ax.plot(line, line, color=INK, lw=1, ls=(0, (1, 1.5)))
    ax.set_xlim(zero / 1.6, 1.05)
    share_axes(ax, zero, 1 / n0, bottom)
    ax.set_title(f"Members found at few false alarms (band: {confidence(result)} interval)")
    ax.set_xlabel(f"FPR ({counted(n0, 'non-member')})")
    ax.set_ylabel(f"TPR ({counted(n1, 'member')})")
    figure.legend(loc="outside right upper", title="attack (AUC)", alignment="left")


def _legend_entry(place: int, name: str, attacks: int, result: AuditResult) -> str:
    if place < len(PALETTE) - 1 or attacks == len(PALETTE):
        return f"{short(name, 24)} ({number(get(result.summary, 'attacks', name, 'auc'))})"
    return f"{attacks - place} others" if place == len(PALETTE) - 1 else ""


def _distributions(result: AuditResult) -> Picture:
    names, scores, member = attack_scores(result)
    areas = [-_sortable(get(result.summary, "attacks", name, "auc")) for name in names]
    shown = sorted(np.argsort(areas, kind="stable")[:_PANELS])  # the best, in the order of the audit
    figure, axes = _panels(len(shown), 2.6)
    left_out = f" The {_PANELS} attacks with the largest AUC are shown." if len(names) > len(shown) else ""
    names, scores = [names[place] for place in shown], scores[shown]
    if not names:
        note(axes[0], "no attack was run")
    for name, row, ax in zip(names, scores, axes, strict=False):
        ax.set_title(short(name, 28))
        if not _usable(row, member):
            note(ax, "no usable scores")
            continue
        low, high = np.quantile(row, (0.01, 0.99))
        if high <= low:
            low, high = row.min() - 0.5, row.max() + 0.5
        width = float(np.subtract(*np.quantile(row, (0.75, 0.25))))
        if 0 < 10 * width < high - low:  # long tails: an axis that is linear near 0 and logarithmic far out
            edges = (width * np.sinh(np.linspace(np.arcsinh(low / width), np.arcsinh(high / width), 31))).tolist()
            stretched_axis(ax, width)
        else:
            edges = np.linspace(low, high, 31).tolist()
        for which, colour, text in ((~member, BLUE, "non-member"), (member, RED, "member")):
            values = np.clip(row[which], low, high)
            ax.hist(values, edges, weights=np.full(values.size, 1 / values.size), histtype="stepfilled", color=colour,
                    alpha=0.3, label=counted(values.size, text))  # fmt: skip
            ax.hist(values, edges, weights=np.full(values.size, 1 / values.size), histtype="step", color=colour, lw=1.2)
            ax.axvline(np.clip(np.median(row[which]), low, high), color=colour, lw=1.4, ls="--")
        if ax.get_xscale() == "asinh":
            _thin_ticks(ax, width)
        else:
            ax.locator_params(axis="x", nbins=4)
        percent_axis(ax.yaxis)
        ax.set_xlabel("score (higher = more member-like)")
        ax.set_ylabel("share of records")
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return finish(
        figure,
        "scores",
        "Scores of members (red) and non-members (blue), dashed: their medians. The outermost bars also hold all "
        "scores beyond the 1 % and 99 % quantiles. Where tails are long the axis is logarithmic far from 0." + left_out,
        "Histograms of attack scores for members and non-members.",
    )


def _thin_ticks(ax: Axes, width: float) -> None:
    """Leave out the ticks of a stretched axis whose labels would run into others; 0 and the large ones stay."""
    low, high = np.arcsinh(np.array(ax.get_xlim()) / width)
    ticks = [tick for tick in ax.get_xticks() if low <= np.arcsinh(tick / width) <= high]
    kept: list[float] = []
    for tick in sorted(ticks, key=lambda tick: (tick != 0, -abs(tick))):
        if all(abs(np.arcsinh(tick / width) - np.arcsinh(other / width)) > 0.13 * (high - low) for other in kept):
            kept.append(tick)
    ax.set_xticks(sorted(kept))
