"""The report as one HTML file: no script, no external address, every string escaped by the template."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from jaxaudit.report.figures import Picture
from jaxaudit.report.graph_page import graph_headline, graph_page
from jaxaudit.report.release_page import release_headline, release_page
from jaxaudit.report.words import Section, Table, Text, flatten, get, number
from jaxaudit.runtime.checks import check_choice
from jaxaudit.runtime.result import AuditResult

__all__ = ["command_line", "headline_numbers", "render"]


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
    folder = resources.files("jaxaudit.report")
    loader = jinja2.FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8"))
    engine = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    engine.filters["embed"] = lambda png: "data:image/png;base64," + base64.b64encode(png).decode()
    engine.filters["glue"] = _glue
    engine.tests["instance"] = lambda block, name: type(block).__name__ == name
    css = Markup(folder.joinpath("style.css").read_text(encoding="utf-8"))
    return engine.get_template("report.html.jinja").render(page=page, css=css)


def _glue(text: str) -> str:
    """No line break inside an interval or before a percent sign; still plain text, escaped later."""
    return re.sub(r"(?<=\d) (?=%)|(?<=\d,) (?=[−\d.]+\])", "\u00a0", text)


def _closing(result: AuditResult, environment: Mapping[str, Any]) -> tuple[Section, ...]:
    rows, totals = [], [0.0, 0.0]
    for stage, spent in result.timings.items():
        parts = [get(spent, "compile_s"), get(spent, "run_s")]
        totals = [total + (part if part == part else 0.0) for total, part in zip(totals, parts, strict=True)]
        rows.append((str(stage), number(parts[0], 2), number(parts[1], 2), number(get(spent, "items"), 0)))
    rows.append(("total", number(totals[0], 2), number(totals[1], 2), ""))
    return (
        Section("Settings", (Table("", ("setting", "value"), tuple(flatten(result.config)), left=2),)),
        Section("Time", (Table("Seconds per stage", ("stage", "compiling", "running", "items"), tuple(rows)),)),
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
