"""Distances to the release as a figure, and axes on which both small shares and 0 can be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from jaxaudit.report.canvas import BLUE, GREY, INK, RED, Picture, finish, grid_figure, note
from jaxaudit.report.words import branch, count, get
from jaxaudit.runtime.result import AuditResult

__all__ = ["draw_copies", "share_axes"]


def draw_copies(result: AuditResult) -> list[Picture]:
    """Distances to the nearest released row: members against those that the generator never saw."""
    if not {"nearest", "nearest_reference", "member"} <= set(result.evidence):
        return []
    nearest, member = result.evidence["nearest"], np.asarray(result.evidence["member"], dtype=bool)
    groups = ((nearest[member], RED, "members"), (nearest[~member], BLUE, "non-members"),
              (result.evidence["nearest_reference"], GREY, "reference rows"))  # fmt: skip
    figure, axes = grid_figure(1, 1, width=8.6, height=4.2)
    ax, positive = axes[0, 0], nearest[nearest > 0]
    if positive.size:
        _draw_copies(ax, groups, get(result.summary, "copies", "yardstick"))
        figure.legend(loc="outside right upper")
    else:
        note(ax, "every record occurs exactly in the release")
    raw = branch(result.config, "release").get("encoding") == "raw"
    unit = "" if raw else " Distance 1: one column differs by a standard deviation, or one level is another."
    return [
        finish(
            figure,
            "copies",
            f"Share of records whose nearest released row is at most so far away, both on log scales.{unit} The dots "
            "at the far left are exact copies. Where the red line is above the blue one, the release is closer to "
            "members than to records that the generator never saw. Dashed: the yardstick of near copies.",
            "Distribution functions of the distance to the nearest released row, for members, non-members, reference.",
        )
    ]


def _draw_copies(ax: Axes, groups: Sequence[tuple[np.ndarray, str, str]], yardstick: float) -> None:
    least, most = (f([f(d[d > 0]) for d, _, _ in groups if (d > 0).any()]) for f in (np.min, np.max))
    least = max(least, 1e-9 * most)  # what is closer still is drawn there
    zero, bottom = least / (most / least) ** 0.08 / 1.3, 0.5 / max(d.size for d, _, _ in groups)
    for place, (distance, colour, noun) in enumerate(groups):
        ordered = np.maximum(np.sort(distance[distance > 0]), least)
        exact = distance.size - ordered.size
        shares = (exact + np.arange(1, ordered.size + 1)) / distance.size
        start = max(exact / distance.size, bottom)
        ax.step([least, *ordered, most], [start, *shares, 1.0], where="post", color=colour, lw=2.0 - 0.35 * place,
                zorder=5 - place, label=f"{noun} ({count(distance.size)})")  # fmt: skip
        aside = zero * (least / zero) ** (0.12 * (place - 1))
        ax.plot(aside, start, "o", color=colour, ms=5, zorder=5 - place)
    if yardstick > 0:
        ax.axvline(yardstick, color=INK, lw=1, ls="--")
    ax.set_xlim(zero / (least / zero) ** 0.4, most * (most / least) ** 0.02)
    share_axes(ax, zero, least, bottom, shares=False)
    ax.set_title("Distance from a record to the nearest released row")
    ax.set_xlabel("distance to the nearest released row (0: an exact copy)")
    ax.set_ylabel("share of records at most so far")


def _log_ticks(low: float, high: float) -> list[float]:
    """At most nine round numbers in [low, high]: powers of ten, or 1, 2 and 5 times them, or else the two ends."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    slack = 1 + 1e-9
    for steps in ((1.0,), (1.0, 2.0, 5.0)):
        ticks = [step * 10.0**k for k in range(first, last + 1) for step in steps]
        ticks = [tick for tick in ticks if low / slack <= tick <= high * slack]
        if len(ticks) > 1:
            return ticks[:: 1 + (len(ticks) - 1) // 8]
    return [float(f"{end:.3g}") for end in (low, high)]


def share_axes(ax: Axes, zero: float, least: float, bottom: float, shares: bool = True) -> None:
    """Log axes on which 0 has a place of its own. Set the horizontal limits first.

    Args:
        ax: its vertical values are shares.
        zero: where 0 was drawn horizontally; a grey line parts it from the others.
        least: the smallest other value.
        bottom: where 0 was drawn vertically.
        shares: the horizontal values are shares, too, and labelled in percent.
    """
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(bottom / 1.15, 1.15)
    tens = [10.0**k for k in range(math.ceil(math.log10(1.3 * bottom)), 1)]
    ax.set_yticks([bottom, *tens], ["0", *(f"{100 * ten:g} %" for ten in tens)])
    ticks = _log_ticks(least, ax.get_xlim()[1])
    texts = (f"{100 * tick:g} %" if shares else f"{tick:g}" for tick in ticks)
    ax.set_xticks([zero, *ticks], ["0", *texts])
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.axvline(math.sqrt(zero * least), color=GREY, lw=0.8)
