"""Drawing ground of all figures: one style, matplotlib's object API only, PNG bytes out."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import AsinhLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from PIL import Image

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "INK",
    "RED",
    "Picture",
    "finish",
    "grid_figure",
    "log_axis",
    "note",
    "odds_axis",
    "percent_axis",
    "stretched_axis",
    "style",
]

BLUE, RED, GREEN, GREY, INK = "#1f6fb2", "#c8501e", "#1b8a6b", "#7a828c", "#1f2933"

_STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # names from data may hold dollar signs
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
    "axes.labelsize": 9.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9aa2ab",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e9ec",
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": "#4b5560",
    "ytick.color": "#4b5560",
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "figure.facecolor": "white",
}


@dataclass(frozen=True)
class Picture:
    """A finished figure.

    Attributes:
        name: file name without suffix.
        caption: what it shows and how to read it, plain text.
        alt: one sentence for readers who do not see it.
        png: the image.
    """

    name: str
    caption: str
    alt: str
    png: bytes


@contextmanager
def style() -> Iterator[None]:
    """The project's look, whatever the user's matplotlib settings are; theirs come back afterwards."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def grid_figure(
    rows: int, columns: int, width: float = 8.6, height: float = 4.0, sharey: bool = False, **layout: Any
) -> tuple[Figure, np.ndarray]:
    """A figure of ``rows x columns`` axes, outside pyplot's global list; axes as a (rows, columns) array."""
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.06)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, sharey=sharey, gridspec_kw=layout)


def finish(figure: Figure, name: str, caption: str, alt: str) -> Picture:
    """Render at 130 dpi in 128 colours (a third of the size), no software stamp: equal figures are equal bytes."""
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=130, metadata={"Software": None})
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    return Picture(name, caption, alt, small.getvalue())


def note(ax: Axes, text: str) -> None:
    """Say in the middle of the axes why there is nothing to see."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=GREY, wrap=True)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(False)


def percent_axis(axis: mpl.axis.Axis) -> None:
    """Label shares as percentages."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))


def _plain(value: float, _: object = None) -> str:
    return f"{value:g}" if 1e-4 <= abs(value) < 1e6 or value == 0 else f"{value:.0e}"


def log_axis(ax: Axes, which: str) -> None:
    """A logarithmic axis (``which`` = "x" or "y") with plain numbers."""
    (ax.set_xscale if which == "x" else ax.set_yscale)("log")
    axis = ax.xaxis if which == "x" else ax.yaxis
    low, high = ax.get_xlim() if which == "x" else ax.get_ylim()
    narrow = high < 30 * low
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=12))
    axis.set_major_formatter(FuncFormatter(_plain))
    axis.set_minor_formatter(NullFormatter())


def stretched_axis(ax: Axes, width: float) -> None:
    """A horizontal axis that is linear within ``width`` of 0 and logarithmic beyond, with plain numbers."""
    ax.set_xscale("asinh", linear_width=width)
    ax.xaxis.set_major_locator(AsinhLocator(width, numticks=6))
    ax.xaxis.set_major_formatter(FuncFormatter(_plain))
    ax.xaxis.set_minor_locator(NullLocator())


def odds_axis(ax: Axes) -> None:
    """A second scale on top of a log-odds axis: the factor by which the odds move."""
    low, high = ax.get_xlim()
    top = ax.secondary_xaxis("top")
    factors = [f for f in (1, 1.5, 2, 3, 5, 10, 20, 50, 100, 1000, 10_000, 100_000) if low <= math.log(f) <= high]
    kept: list[float] = []
    for factor in factors:
        if not kept or math.log(factor / kept[-1]) > 0.075 * (high - low):
            kept.append(factor)
    top.set_xticks([math.log(f) for f in kept], [f"×{f:,g}" for f in kept])
    top.xaxis.set_minor_locator(NullLocator())
    top.spines["top"].set_visible(False)
    top.tick_params(length=2, colors=GREY, labelsize=8, pad=1)
