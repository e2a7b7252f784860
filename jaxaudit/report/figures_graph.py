"""Figures of a graph audit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Polygon
from scipy.special import logit

from jaxaudit.bmp.region import vertices
from jaxaudit.report.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    RED,
    Picture,
    finish,
    grid_figure,
    log_axis,
    note,
    odds_axis,
    percent_axis,
)
from jaxaudit.report.figures_levels import draw_attack_comparison, draw_groups
from jaxaudit.report.words import count, get
from jaxaudit.runtime.result import AuditResult

__all__ = ["draw_graph"]


def draw_graph(result: AuditResult) -> list[Picture]:
    """The figures of a graph audit, in the order of the report; never fails for want of data."""
    return [
        _limits(result), _prior_and_model(result), _error_plane(result), *draw_attack_comparison(result),
        *draw_groups(result), _who_leaks(result),
    ]  # fmt: skip


def _column(result: AuditResult, name: str) -> np.ndarray:
    """A column of the node table as float64; NaN where the table lacks it."""
    if name not in result.table:
        return np.full(len(result.table), np.nan)
    return result.table[name].to_numpy(dtype=np.float64, na_value=np.nan)


def _exceedance(ax: Axes, values: np.ndarray, **line: Any) -> None:
    ordered = np.sort(values)
    share = 1.0 - np.arange(ordered.size) / ordered.size  # share of nodes with at least this value
    ax.step(np.append(0.0, ordered), np.append(1.0, share), where="pre", **line)


def _limits(result: AuditResult) -> Picture:
    figure, axes = grid_figure(1, 2, height=4.3)
    for ax, name, direction in zip(axes[0], "rl", ("membership", "non-membership"), strict=True):
        lower, q05, q50 = (_column(result, f"{name}_{part}") for part in ("lower", "q05", "q50"))
        known = np.isfinite(lower)
        ax.set_title(f"{name}: evidence of {direction}", pad=22)
        if not known.any():
            note(ax, "no auditable node")
            continue
        top = max(0.5, *(float(np.nanquantile(v, 0.995)) for v in (lower, q50) if np.isfinite(v).any()))
        ax.set_xlim(0, 1.05 * top)
        ax.set_ylim(0, 1.02)
        _exceedance(ax, lower[known], color=RED, label="functional lower limit (95 %)", lw=2.4)
        ordered = np.sort(lower[known])
        ax.fill_between(ordered, 0, 1 - np.arange(ordered.size) / ordered.size, step="pre", color=RED, alpha=0.12, lw=0)
        for values, dash, text in (
            (q05, (0, (1, 1.2)), "paper's lower limit (5 %)"),
            (q50, (0, (5, 2)), "paper's median"),
        ):
            if np.isfinite(values).any():
                _exceedance(ax, values[np.isfinite(values)], color=BLUE, ls=dash, lw=1.6, label=text)
        percent_axis(ax.yaxis)
        odds_axis(ax)
        ax.set_xlabel(f"{name}, natural log of the odds ratio (top: the factor)")
        ax.set_ylabel(f"share of {count(known.sum())} auditable nodes\nwith at least this value")
        ax.legend(loc="upper right")
    return finish(
        figure,
        "limits",
        "Share of auditable nodes whose r (left) or l (right) is at least the value on the axis. Red: the functional "
        "lower limit, the evidence of this attack. Blue: the paper's posterior, which assumes more; the gap between "
        "the two is what that assumption adds.",
        "Two falling curves per panel: functional lower limits lie left of the paper's posterior medians.",
    )


def _prior_and_model(result: AuditResult) -> Picture:
    figure, axes = grid_figure(1, 1, width=7.2, height=4.8)
    ax = axes[0, 0]
    prior, lower = _column(result, "prior"), _column(result, "r_lower")
    with np.errstate(divide="ignore"):
        odds = logit(prior)
    known = np.isfinite(odds) & np.isfinite(lower)
    ax.set_title("What was known before, and what the model adds")
    if not known.any():
        note(ax, "no auditable node with a prior between 0 and 1")
    elif np.ptp(odds[known]) < 1e-9:
        _one_prior(ax, float(prior[known][0]), odds[known] + lower[known])
    else:
        _added(ax, odds[known], lower[known])
    return finish(
        figure,
        "prior_and_model",
        "The posterior odds of membership have two parts: the prior odds, known from the sampling alone, and the "
        "part driven by the model (r, functional lower limit). Along a slanted line their sum is constant: the "
        "attack can be that sure of a member.",
        "Prior log odds against the model-driven part, one point per auditable node.",
    )


def _one_prior(ax: Axes, prior: float, total: np.ndarray) -> None:
    start = float(logit(prior))
    ax.hist(total, bins=40, color=RED, alpha=0.75)
    ax.axvline(start, color=INK, lw=1.4)
    ax.set_xlim(min(start, total.min()) - 0.05 * (np.ptp(total) + 0.1), None)
    ax.annotate(
        f"prior log odds {start:.2f}\n(every node: {100 * prior:.3g} %)",
        (start, 0.97), xycoords=("data", "axes fraction"), xytext=(5, 0), textcoords="offset points", va="top",
    )  # fmt: skip
    ax.set_xlabel("log posterior odds that the attack reaches (prior log odds + lower limit of r)")
    ax.set_ylabel(f"nodes (of {count(total.size)})")


def _added(ax: Axes, odds: np.ndarray, lower: np.ndarray) -> None:
    ax.scatter(odds, lower, s=12, color=RED, alpha=max(0.15, min(0.6, 500 / odds.size)), lw=0)
    left, right = odds.min() - 0.3, odds.max() + 0.3
    top = max(0.5, 1.12 * lower.max())
    ax.set_xlim(left, right)
    ax.set_ylim(0, top)
    for sure in (0.1, 0.5, 0.9, 0.99):
        total = float(logit(sure))
        x = np.array([left, right])
        ax.plot(x, total - x, color=GREY, lw=0.9, ls=(0, (4, 3)), zorder=1)
        # Label where the line leaves the frame at the top or on the left.
        at = (total - top, top) if left <= total - top <= right else (left, total - left)
        if left <= at[0] <= right and 0 <= at[1] <= top:
            above = at[1] == top
            ax.annotate(f"{100 * sure:.0f} % sure", at, xytext=(0, 3) if above else (8, 2),
                        textcoords="offset points", ha="center" if above else "left",
                        color=GREY, fontsize=8, annotation_clip=False)  # fmt: skip
    ax.title.set_position((0, 1.0))
    ax.set_title(ax.get_title(loc="left"), pad=20)
    ax.set_xlabel("prior log odds of membership (from the sampling alone)")
    ax.set_ylabel("added by the model: lower limit of r")
    ax.text(0.99, 0.985, f"{count(odds.size)} nodes", transform=ax.transAxes, ha="right", va="top", color=GREY)


def _region(ax: Axes, l: float, r: float, **look: Any) -> bool:
    if not (math.isfinite(l) and math.isfinite(r)):
        return False
    ax.add_patch(Polygon(np.asarray(vertices(l, r), dtype=float), closed=True, fill=False, **look))
    return True


def _error_plane(result: AuditResult) -> Picture:
    figure, axes = grid_figure(1, 1, width=6.6, height=6.0)
    ax = axes[0, 0]
    fpr, fnr = (np.asarray(result.evidence.get(name, []), dtype=float) for name in ("fpr", "fnr"))
    known = np.isfinite(fpr) & np.isfinite(fnr) if fpr.size == fnr.size else np.zeros(0, bool)
    ax.set_title(f"Errors of the attack at {count(known.sum())} nodes")
    ax.set_aspect("equal")
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)
    if not known.any():
        note(ax, "no auditable node")
    else:
        cells, size = np.unique(np.round(100 * np.stack([fpr[known], fnr[known]])), axis=1, return_counts=True)
        worse = cells.sum(axis=0) > 100
        area = 9 + 260 * size / max(size.max(), 12)
        for which, colour, text in ((~worse, BLUE, "nodes (area: how many)"), (worse, GREY, "worse than chance")):
            if which.any():
                ax.scatter(*cells[:, which] / 100, s=area[which], color=colour, alpha=0.45, lw=0, label=text)
        ax.plot([0, 1], [1, 0], color=INK, lw=1, ls=(0, (1, 1.5)), label="guessing (FPR + FNR = 1)")
        l, r = (get(result.summary, "limits", f"{name}_lower", "median") for name in "lr")
        _region(ax, l, r, ec=RED, lw=2, label=f"median lower limits: l = {l:.2f}, r = {r:.2f}")
        l, r = (get(result.summary, "pooled", name, "q50") for name in "lr")
        _region(ax, l, r, ec=GREEN, lw=1.6, ls="--", label=f"paper's model, pooled: l = {l:.2f}, r = {r:.2f}")
        ax.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none")
    percent_axis(ax.xaxis)
    percent_axis(ax.yaxis)
    ax.set_xlabel("false positives: models without the node that the attack calls members")
    ax.set_ylabel("false negatives: models with the node that the attack misses")
    return finish(
        figure,
        "error_plane",
        f"False-positive and false-negative rate of the attack at each of {count(known.sum())} auditable nodes, over "
        "the counted models. Points far below the dotted line leak. A parallelogram holds every pair of errors that "
        "is possible under its (l, r). Rates rest on few models a node, so points scatter by chance too.",
        "Scatter of error rates per node with the chance line and two parallelograms.",
    )


def _bins(x: np.ndarray, limit: int = 10) -> list[np.ndarray]:
    """Index sets of at most ``limit`` bins of about equal size, equal values never split."""
    edges = np.unique(np.quantile(x, np.linspace(0, 1, limit + 1)))
    place = np.searchsorted(edges[1:-1], x, side="left") if edges.size > 2 else np.zeros(x.size, int)
    return [np.flatnonzero(place == b) for b in np.unique(place)]


def _trend(ax: Axes, x: np.ndarray, y: np.ndarray, colour: str) -> bool:
    known = np.isfinite(x) & np.isfinite(y)
    if not known.any():
        note(ax, "no auditable node")
        return False
    x, y = x[known], y[known]
    if np.ptp(x) < 1e-12:
        note(ax, f"the same for all {count(x.size)} nodes ({x[0]:.3g})")
        return False
    bins = _bins(x)
    middle = np.array([np.median(x[b]) for b in bins])
    low, median, high = np.array([np.quantile(y[b], (0.25, 0.5, 0.75)) for b in bins]).T
    ax.fill_between(middle, low, high, color=colour, alpha=0.18, lw=0)
    ax.plot(middle, median, color=colour, marker="o", ms=4)
    sizes = [b.size for b in bins]
    if max(sizes) <= 1.05 * min(sizes):
        ax.annotate(f"{len(bins)} bins of about {count(float(np.mean(sizes)))} nodes", (1, 1), xycoords="axes fraction",
                    xytext=(0, 2), textcoords="offset points", ha="right", fontsize=7.5, color=GREY)  # fmt: skip
    else:
        for place, b in zip(middle, bins, strict=True):
            ax.annotate(f"{b.size}", (place, 1), xycoords=("data", "axes fraction"), xytext=(0, 2),
                        textcoords="offset points", ha="center", fontsize=7, color=GREY)  # fmt: skip
    if x.min() > 0 and x.max() > 5 * x.min():
        log_axis(ax, "x")
    return True


def _who_leaks(result: AuditResult) -> Picture:
    figure, axes = grid_figure(2, 2, height=6.2)
    rows = (
        ("r_lower", RED, "lower limit of r"),
        ("auc_likelihood_ratio", BLUE, "AUC within the node"),
    )
    for row, (name, colour, label) in zip(axes, rows, strict=True):
        for ax, (by, text) in zip(row, (("prior", "sampling prior"), ("degree", "degree")), strict=True):
            ax.set_title(f"{label} by {text}", pad=14)
            drawn = _trend(ax, _column(result, by), _column(result, name), colour)
            if drawn and name == "auc_likelihood_ratio":
                ax.axhline(0.5, color=INK, lw=1, ls=(0, (1, 1.5)))
            ax.set_xlabel("prior probability of membership" if by == "prior" else "degree (neighbours)")
            ax.set_ylabel(label)
    return finish(
        figure,
        "who_leaks",
        "Who leaks: nodes in up to ten bins of about equal size by sampling prior and by degree. Dot: median of the "
        "bin; band: its middle half; grey: nodes in the bin. Dotted line: an AUC of guessing.",
        "Four panels of binned medians with interquartile bands.",
    )
