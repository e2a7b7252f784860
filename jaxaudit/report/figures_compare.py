"""Figures of a comparison of runs: one per question, every mark with its interval where the runs have one."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from jaxaudit.report.canvas import BLUE, GREEN, GREY, INK, RED, Picture, finish, grid_figure, note, percent_axis
from jaxaudit.report.effects import Effect, Measured, measure
from jaxaudit.report.figures_release import counted
from jaxaudit.report.sweeps import Run
from jaxaudit.report.words import count, get, number, short

__all__ = ["draw_attacks", "draw_effect", "draw_priors", "draw_ranking", "option_words"]

_COLOURS = (BLUE, RED, GREEN, "#8a5fb0", "#b8860b", GREY)
_ROWS = 40
_AXES = {
    "noise.weights": "noise on the weights (standard deviation)",
    "noise.outputs": "noise on the outputs (standard deviation)",
}
_SHORT = {"noise.weights": "weight noise", "noise.outputs": "output noise"}
_DOTTED = (0, (1, 1.5))


def option_words(options: Mapping[str, Any]) -> str:
    """Options on one line: words as they are, numbers with the last part of their name.

    Example:
        >>> option_words({"graph": "cora", "sampler.ratio": 0.1, "x.paired": True})
        'cora · ratio 0.1 · paired true'
    """
    parts = []
    for name, value in options.items():
        last = name.rsplit(".", 1)[-1]
        if value is None:
            continue
        words = f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
        named = not isinstance(value, str) or ("." in name and last not in ("name", "inference"))
        last = _SHORT.get(name, last)
        parts.append(f"{last} {words.lower() if isinstance(value, bool) else words}" if named else words)
    return short(" · ".join(parts), 60) or "all else equal"


def _rows_figure(labels: Sequence[str], panels: int, widths: Sequence[float]) -> tuple[Any, np.ndarray]:
    figure, axes = grid_figure(1, panels, height=1.5 + 0.24 * max(len(labels), 3), width_ratios=widths)
    for ax in axes[0]:
        ax.set_ylim(len(labels) - 0.4, -0.6)
        ax.set_yticks(range(len(labels)), labels if ax is axes[0, 0] else [""] * len(labels))
        ax.tick_params(axis="y", length=0)
    return figure, axes[0]


def _title(figure: Any, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=10.5, fontweight="bold")


def _legend(figure: Any, ax: Axes) -> None:
    """Below the axes, so that long names move nothing."""
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower left", ncols=5, handletextpad=0.4,
                  columnspacing=1.2, borderpad=0.2)  # fmt: skip


def _mark(ax: Axes, place: float, found: Measured, colour: str, label: str | None = None, shape: str = "o") -> None:
    if math.isfinite(found.low) and math.isfinite(found.high):
        ax.plot([found.low, found.high], [place, place], color=colour, lw=1.3, solid_capstyle="butt", alpha=0.7)
    ax.plot([found.value], [place], shape, color=colour, ms=4.5, ls="none", label=label)


def _small(figure: Any, name: str, caption: str, alt: str) -> Picture:
    """``finish`` with 64 colours: a third of the bytes, since many of these figures are kept."""
    picture = finish(figure, name, caption, alt)
    buffer = io.BytesIO()
    image = Image.open(io.BytesIO(picture.png)).convert("RGB")
    image.quantize(64, dither=Image.Dither.NONE).save(buffer, format="png", optimize=True)
    return replace(picture, png=buffer.getvalue())


def _shown(total: int, what: str) -> str:
    return f" The first {_ROWS} of {total} {what} are drawn." if total > _ROWS else ""


def _settings(effects: Sequence[Effect]) -> list[tuple[str, dict[str, Run]]]:
    """Rows of an effect: what the runs share, and the run of each level."""
    rows: dict[str, dict[str, Run]] = {}
    for effect in effects:
        for pair in effect.pairs:
            row = rows.setdefault(option_words(pair.at), {})
            row[str(effect.baseline)], row[str(effect.level)] = pair.baseline, pair.other
    return list(rows.items())


def draw_effect(effects: Sequence[Effect], title: str) -> Picture:
    """What an option changes: attack and accuracy by level, over the settings that agree in all else.

    Args:
        effects: of one option, from ``compare_levels``; at least one.
        title: of the figure.

    Returns:
        Lines over the option's values where it has three or more numbers, rows of dots otherwise.
    """
    values = [effects[0].baseline, *(effect.level for effect in effects)]
    numeric = len(values) > 2 and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    name = "effect_" + re.sub(r"\W+", "_", effects[0].option)
    if not any(effect.pairs for effect in effects):
        figure, axes = grid_figure(1, 1, height=2.2)
        _title(figure, title)
        note(axes[0, 0], "no two runs agree in all other options")
        return _small(figure, name, "Nothing to compare.", "An empty figure.")
    return _lines(effects, values, name, title) if numeric else _dots(effects, values, name, title)


def _dots(effects: Sequence[Effect], values: Sequence[Any], name: str, title: str) -> Picture:
    settings = _settings(effects)
    drawn = settings[:_ROWS]
    figure, (left, middle, right) = _rows_figure([label for label, _ in drawn], 3, (1.3, 1, 0.9))
    shift = np.linspace(-0.22, 0.22, len(values)) if len(values) > 1 else np.zeros(1)
    for place, (_, runs) in enumerate(drawn):
        for step, colour, value in zip(shift, _COLOURS, values, strict=False):
            if str(value) not in runs:
                continue
            found = measure(runs[str(value)])
            _mark(left, place + step, found["auc"], colour)
            _mark(right, place + step, found["gap"], colour)
    places = {label: place for place, (label, _) in enumerate(drawn)}
    for step, colour, effect in zip(shift[1:], _COLOURS[1:], effects, strict=False):
        for pair in effect.pairs:
            if (label := option_words(pair.at)) in places:
                _mark(middle, places[label] + step, pair.differences["auc"], colour)
    for which, value in enumerate(values[: len(_COLOURS)]):
        left.plot([], [], "o", color=_COLOURS[which], ms=4.5, label=_words(value))
    left.axvline(0.5, color=INK, lw=1, ls=_DOTTED)
    middle.axvline(0, color=INK, lw=1, ls=_DOTTED)
    right.axvline(0, color=INK, lw=1, ls=_DOTTED)
    _title(figure, f"{title} ({counted(len(settings), 'setting')})")
    _legend(figure, left)
    left.set_xlabel("AUC within a node, 95 % interval\n(dotted: guessing)")
    middle.set_xlabel(f"AUC − AUC under {_words(values[0])},\n95 % interval")
    right.set_xlabel("train − test accuracy")
    percent_axis(right.xaxis)
    more = f" The first {len(_COLOURS)} of {len(values)} values are drawn." if len(values) > len(_COLOURS) else ""
    return _small(
        figure, name,
        f"{count(len(settings))} settings, one per row, that differ in {effects[0].option} alone. Left: AUC of the "
        "attack within a node, bars: 95 % intervals over resampled models. Middle: the difference, its interval "
        "combined from the two as if the runs were independent. Right: how much better the models classify their "
        f"training nodes.{_shown(len(settings), 'settings')}{more}",
        f"Rows of dots: AUC, its difference and the accuracy gap by {effects[0].option}.",
    )  # fmt: skip


def _words(value: Any) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else short(value, 24)


def _lines(effects: Sequence[Effect], values: Sequence[Any], name: str, title: str) -> Picture:
    settings = _settings(effects)
    figure, axes = grid_figure(1, 3, height=4.2)
    panels = (
        ("auc", "AUC within a node, 95 % interval\n(dotted: guessing)"),
        ("r_median", "median lower limit of r (natural log)"),
        ("test_accuracy", "test accuracy"),
    )
    groups = list(dict.fromkeys(label.split(" · ")[0] for label, _ in settings))
    for ax, (column, label) in zip(axes[0], panels, strict=True):
        for setting, runs in settings:
            colour = _COLOURS[min(groups.index(setting.split(" · ")[0]), len(_COLOURS) - 1)]
            pairs = [(float(v), measure(runs[str(v)])[column]) for v in values if str(v) in runs]
            x = np.array([value for value, _ in pairs])
            middle, low, high = np.array([(m.value, m.low, m.high) for _, m in pairs]).T
            known = np.isfinite(low) & np.isfinite(high)
            ax.plot(x, middle, marker="o", ms=3.5, lw=1.2, color=colour, alpha=0.85)
            ax.vlines(x[known], low[known], high[known], color=colour, lw=1.2, alpha=0.6)
        ax.set_xlabel(_AXES.get(effects[0].option, effects[0].option))
        ax.set_ylabel(label)
    axes[0, 0].axhline(0.5, color=INK, lw=1, ls=_DOTTED)
    percent_axis(axes[0, 2].yaxis)
    _title(figure, f"{title} ({counted(len(settings), 'setting')})")
    if len(groups) > 1:
        for which, group in enumerate(groups[: len(_COLOURS)]):
            last = which == len(_COLOURS) - 1 and len(groups) > len(_COLOURS)
            axes[0, 0].plot([], [], color=_COLOURS[which], label="others" if last else group)
        _legend(figure, axes[0, 0])
    return _small(
        figure, name,
        f"{count(len(settings))} settings that differ in {effects[0].option} alone, one line each. Left: the attack, "
        "with 95 % intervals over resampled models. Middle: what it shows at the median node. Right: what the option "
        "costs.",
        f"Lines of AUC, r and test accuracy over {effects[0].option}.",
    )  # fmt: skip


def draw_ranking(rows: Sequence[tuple[str, Mapping[str, float]]]) -> Picture:
    """How far the prior reorders the nodes, one row per run.

    Args:
        rows: label and ``ranking`` of each run whose priors differ between nodes; at least one.
    """
    drawn = rows[:_ROWS]
    figure, (left, right) = _rows_figure([label for label, _ in drawn], 2, (1, 1))
    for place, (_, found) in enumerate(drawn):
        _mark(left, place, Measured(get(found, "r_odds")), RED, "r" if not place else None)
        _mark(left, place, Measured(get(found, "prior_odds")), GREY, "prior odds" if not place else None, "s")
        _mark(right, place, Measured(get(found, "top_kept")), BLUE)
    _title(figure, f"Do priors change the ranking of nodes? ({counted(len(rows), 'run')})")
    _legend(figure, left)
    left.set_xlim(-1.05, 1.05)
    left.axvline(0, color=INK, lw=1, ls=_DOTTED)
    left.set_xlabel("rank correlation with the posterior odds")
    right.set_xlim(-0.03, 1.03)
    right.set_xlabel("top tenth by r that stays in the top tenth")
    percent_axis(right.xaxis)
    nodes = [get(found, "nodes") for _, found in rows]
    return _small(
        figure, "ranking",
        f"{count(len(rows))} runs with priors that differ between nodes, {count(min(nodes))} to {count(max(nodes))} "
        "auditable nodes each. Left: how well the order of nodes by their posterior odds (r plus log prior odds) "
        "follows r alone, what the model reveals (1: the prior changes nothing), and the prior alone. Right: share of "
        f"the tenth with the largest r that is also in the tenth with the largest odds.{_shown(len(rows), 'runs')}",
        "Rows of dots: rank correlations and the share of the top tenth that stays.",
    )  # fmt: skip


def draw_priors(rows: Sequence[tuple[str, Run]]) -> Picture:
    """The prior alone, the attack without it, and both together, one row per run; at least one."""
    drawn = rows[:_ROWS]
    figure, (ax,) = _rows_figure([label for label, _ in drawn], 1, (1,))
    for place, (_, run) in enumerate(drawn):
        found = measure(run)
        ends = [found[name].value for name in ("prior_auc", "pooled_auc_with_prior")]
        ax.plot(ends, [place, place], color=GREY, lw=0.8, alpha=0.5)
        for name, colour, shape, label, step in (
            ("prior_auc", GREY, "s", "prior alone (no model)", 0.0), ("pooled_auc", BLUE, "o", "attack alone", -0.14),
            ("pooled_auc_with_prior", RED, "D", "attack with prior", 0.14),
        ):  # fmt: skip
            _mark(ax, place + step, found[name], colour, None if place else label, shape)
    ax.axvline(0.5, color=INK, lw=1, ls=_DOTTED)
    _title(figure, f"What does the prior alone give? ({counted(len(rows), 'run')})")
    _legend(figure, ax)
    ax.set_xlabel("AUC over all pairs of node and model, 95 % interval (dotted: guessing)")
    return _small(
        figure, "prior_alone",
        f"{count(len(rows))} runs. AUC of telling members from non-members over all pairs of node and model: from the "
        "sampling prior alone, from the attack alone, and from both; bars: 95 % intervals over resampled models."
        + _shown(len(rows), "runs"),
        "Rows of three marks: AUC of the prior, of the attack and of both.",
    )  # fmt: skip


def draw_attacks(rows: Sequence[tuple[str, Run]], attacks: Sequence[str]) -> Picture:
    """AUC of every attack on every release, one row per run; at least one."""
    drawn = rows[:_ROWS]
    figure, (ax,) = _rows_figure([label for label, _ in drawn], 1, (1,))
    marks = "osD^vP"
    for which, attack in enumerate(attacks):
        colour, shape = _COLOURS[which % len(_COLOURS)], marks[which // len(_COLOURS) % len(marks)]
        step = 0.5 * ((which + 0.5) / len(attacks) - 0.5)
        for place, (_, run) in enumerate(drawn):
            tree = run.summary.get("attacks", {}).get(attack, {})
            ends = tree.get("auc_ci", ()) if isinstance(tree, dict) else ()
            low, high = (get({"": end}, "") for end in ends) if len(ends) == 2 else (math.nan, math.nan)
            _mark(ax, place + step, Measured(get(tree, "auc"), low, high), colour, None if place else attack, shape)
    ax.axvline(0.5, color=INK, lw=1, ls=_DOTTED)
    _title(figure, f"Which attack finds the members? ({counted(len(rows), 'run')})")
    _legend(figure, ax)
    ax.set_xlabel("AUC, 95 % interval (dotted: guessing)")
    return _small(
        figure, "attacks",
        f"{count(len(rows))} audited releases. AUC of each attack with the interval of its run."
        + _shown(len(rows), "runs"),
        f"Rows of marks: AUC of {number(len(attacks), 0)} attacks per release.",
    )  # fmt: skip
