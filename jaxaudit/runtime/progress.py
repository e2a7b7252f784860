"""Stages of a run: their progress on a terminal, and their timings with compilation apart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax.monitoring
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

__all__ = ["Progress", "Stage"]

_COMPILE_EVENTS = "/jax/core/compile/"
_open_recorders: list[list[tuple[float, float]]] = []
_listening = False


def _on_duration(event: str, duration_secs: float, **_: Any) -> None:
    if _open_recorders and event.startswith(_COMPILE_EVENTS):
        end = time.perf_counter()
        for recorder in _open_recorders:
            recorder.append((end - duration_secs, end))


def _union_length(intervals: list[tuple[float, float]]) -> float:
    """Total length of a union of intervals: nested traces are not counted twice."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


class Stage:
    """Handle of a running stage: ``advance(n)`` items done."""

    def __init__(self, bars: Bars | None, task: Any):
        self._bars, self._task = bars, task

    def advance(self, items: int = 1) -> None:
        """Count ``items`` more as done."""
        if self._bars is not None:
            self._bars.advance(self._task, items)


class Progress:
    """Runs stages, shows bars when ``show``, and keeps ``timings``.

    ``timings[name] = {"compile_s", "run_s", "items"}``; ``compile_s`` is the time inside JAX's tracing,
    lowering and compilation, ``run_s`` the rest of the stage's wall time.

    Example:
        >>> progress = Progress()
        >>> with progress.stage("load", 2) as stage:
        ...     stage.advance(2)
        >>> sorted(progress.timings["load"])
        ['compile_s', 'items', 'run_s']
    """

    def __init__(self, show: bool = False):
        global _listening
        self.timings: dict[str, dict[str, float]] = {}
        self._console = Console(stderr=True) if show else None
        if not _listening:
            jax.monitoring.register_event_duration_secs_listener(_on_duration)
            _listening = True

    @contextmanager
    def stage(self, name: str, total: int = 1) -> Iterator[Stage]:
        """Time a named stage of ``total`` items (a repeated name adds up)."""
        compiled: list[tuple[float, float]] = []
        _open_recorders.append(compiled)
        bars = None
        if self._console is not None:
            bars = Bars(
                TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TextColumn("expected"), TimeRemainingColumn(), console=self._console,
            )  # fmt: skip
        start = time.perf_counter()
        try:
            if bars is None:
                yield Stage(None, None)
            else:
                with bars:
                    task = bars.add_task(name, total=total)
                    yield Stage(bars, task)
                    bars.update(task, completed=total)
        finally:
            _open_recorders[:] = [recorder for recorder in _open_recorders if recorder is not compiled]
            wall = time.perf_counter() - start
            compile_s = min(wall, _union_length(compiled))
            entry = self.timings.setdefault(name, {"compile_s": 0.0, "run_s": 0.0, "items": 0})
            entry["compile_s"] += compile_s
            entry["run_s"] += wall - compile_s
            entry["items"] += total
