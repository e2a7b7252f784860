"""The report of a run as one HTML file, and the numbers that a terminal shows."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from jaxaudit.report.figures import Picture
from jaxaudit.report.graph_page import graph_headline, graph_page
from jaxaudit.report.release_page import release_headline, release_page
from jaxaudit.report.template import render_page
from jaxaudit.report.words import Section, Table, Text, count, flatten, get, number, percent
from jaxaudit.runtime.checks import check_choice
from jaxaudit.runtime.result import AuditResult

__all__ = ["command_line", "headline_numbers", "render"]

_FOOTER = "Written by jaxaudit. All numbers are in results.json beside this page."


def headline_numbers(result: AuditResult) -> list[tuple[str, str]]:
    """The three numbers that matter, as (label, text).

    Graph: the functional lower limits of (r, l), the attack's AUC within a node, the share of exposed nodes.
    Release: the best attack's AUC, the smallest adjusted p, the members found without a false alarm.

    Args:
        result: of either audit; what it lacks is shown as "–".

    Raises:
        InputError: an unknown kind of audit.
    """
    check_choice("audit", result.audit, ("graph", "release"))
    return graph_headline(result) if result.audit == "graph" else release_headline(result)


def render(result: AuditResult, pictures: Sequence[Picture], environment: Mapping[str, Any]) -> str:
    """The report page.

    Args:
        result: of either audit.
        pictures: from ``jaxaudit.report.figures.draw``; they are embedded.
        environment: versions and devices, from ``jaxaudit.runtime.devices.describe``.

    Returns:
        A complete HTML document.

    Raises:
        InputError: an unknown kind of audit.
    """
    check_choice("audit", result.audit, ("graph", "release"))
    named = {picture.name: picture for picture in pictures}
    closing = _closing(result, environment)
    page = (graph_page if result.audit == "graph" else release_page)(result, named, closing)
    return render_page(page, _FOOTER)


def _closing(result: AuditResult, environment: Mapping[str, Any]) -> tuple[Section, ...]:
    spent = {
        str(stage): (get(times, "compile_s"), get(times, "run_s"), get(times, "items"))
        for stage, times in result.timings.items()
    }
    compiling, running = (math.fsum(times[k] for times in spent.values() if times[k] == times[k]) for k in (0, 1))
    rows = [
        (stage, number(compiled, 2), number(ran, 2), percent(ran / running if running > 0 else math.nan), count(items))
        for stage, (compiled, ran, items) in spent.items()
    ]
    rows.append(("total", number(compiling, 2), number(running, 2), "", ""))
    columns = ("stage", "compiling", "running", "share of running", "items")
    return (
        Section("Settings", (Table("", ("setting", "value"), tuple(flatten(result.config)), left=2),)),
        Section("Time", (Table("Seconds per stage", columns, tuple(rows)),)),
        Section("Environment", (Table("", ("", ""), tuple(flatten(environment)), left=2),)),
        Section(
            "How to reproduce",
            (
                Text("The same data, versions, seed and chunk sizes give the same numbers on any number of devices."),
                Text(command_line(result), kind="code"),
            ),
        ),
    )


_BARE = re.compile(r"[A-Za-z0-9_./:+%@-]+")


def command_line(result: AuditResult) -> str:
    r"""The shell command that repeats the run.

    ``config["command"]``, where the caller stored one, is taken as it is. Otherwise the nested settings become Hydra
    overrides: a group with a ``name`` is chosen by it (``sampler=snowball``), everything else is ``group.key=value``.

    Example:
        >>> from types import SimpleNamespace
        >>> config = {"seed": 0, "sampler": {"name": "snowball", "ratio": 0.1}, "attacks": ["dcr", "mc"], "x": "a b"}
        >>> print(command_line(SimpleNamespace(audit="release", config=config)))
        jaxaudit audit=release seed=0 sampler=snowball sampler.ratio=0.1 'attacks=[dcr,mc]' 'x='"'"'a b'"'"''
    """
    given = result.config.get("command")
    if isinstance(given, str):
        return given
    words = [f"audit={result.audit}"]

    def walk(tree: Mapping[str, Any], prefix: str) -> None:
        for name, value in tree.items():
            path = f"{prefix}.{name}" if prefix else str(name)
            if isinstance(value, Mapping):
                if isinstance(value.get("name"), str):
                    words.append(f"{path}={_hydra(value['name'])}")
                walk({k: v for k, v in value.items() if k != "name"}, path)
            elif path != "audit":
                words.append(f"{path}={_hydra(value)}")

    walk(result.config, "")
    return shlex.join(["jaxaudit", *words])


def _hydra(value: Any) -> str:
    """A value in Hydra's override grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(_hydra(item) for item in value)}]"
    text = str(value)
    if not isinstance(value, str) or _BARE.fullmatch(text):
        return text
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
