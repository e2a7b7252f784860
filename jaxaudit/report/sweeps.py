"""Reading the runs of a sweep back: results.json files, the options they differ in, and the jobs that are missing.

Only strict JSON is read. Whatever is not a result of this version is skipped with a sentence, never an error.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxaudit.report.write import plain
from jaxaudit.runtime.checks import InputError, require
from jaxaudit.runtime.result import SCHEMA_VERSION

__all__ = ["Run", "Sweep", "as_json", "conditional", "option_value", "read_sweeps", "varying_options"]

_BLOCKS = {"config": dict, "data": dict, "summary": dict, "warnings": list}
_UNRELATED = ("command", "devices", "graphs_dir", "cache", "audit", "graph.path", "graph.name")
"""Options that say where things lie or how they are computed; the graph appears under its own name instead."""


@dataclass(frozen=True, eq=False)
class Run:
    """One audit that was found.

    Attributes:
        name: its folder, relative to the folder that was searched.
        folder: its folder.
        audit: "graph" or "release".
        options: dotted option -> word, number, truth value or None; ``graph`` is the name of the graph.
        data, summary: blocks of results.json, undefined numbers as NaN.
        warnings: how many the run gave.
    """

    name: str
    folder: Path
    audit: str
    options: dict[str, Any]
    data: dict[str, Any]
    summary: dict[str, Any]
    warnings: int


@dataclass(frozen=True)
class Sweep:
    """All runs under some folders.

    Attributes:
        runs: in the order of their job numbers.
        jobs: jobs that the sweeps were asked for, None where that is not recorded.
        missing: jobs without a result.
        skipped: one sentence for each file or run that was left out.
    """

    runs: tuple[Run, ...]
    jobs: int | None
    missing: tuple[str, ...]
    skipped: tuple[str, ...]


def read_sweeps(folders: Sequence[str | os.PathLike[str]]) -> Sweep:
    """Every audit below the folders, each once; a run that repeats another's options and data is left out.

    Args:
        folders: sweep folders, or folders of single runs.

    Returns:
        Sweep with at least one run.

    Raises:
        InputError: a folder that does not exist, or no result in any of them.
    """
    require(bool(folders), "compare", "be given at least one folder of runs", "none")
    roots = [Path(folder).expanduser() for folder in folders]
    for root in roots:
        require(root.is_dir(), "folder", "be an existing folder of runs", str(root))
    found: dict[Path, Run] = {}
    skipped: list[str] = []
    expected: dict[Path, int | None] = {}
    for root in roots:
        for place in _places(root):
            if (place / "multirun.yaml").is_file():
                expected[place.resolve()] = _jobs(place / "multirun.yaml")
            file = place / "results.json"
            if place.resolve() in found or not file.is_file():
                continue
            name = (
                str(place.relative_to(root)) if len(roots) == 1 else str(root.resolve().name / place.relative_to(root))
            )
            run = _read(file, name)
            if isinstance(run, Run):
                found[place.resolve()] = run
            elif run not in skipped:
                skipped.append(run)
    if not found:
        shown = ", ".join(str(root) for root in roots) + (f" ({skipped[0]})" if skipped else "")
        raise InputError(f"folder must hold a results.json of an audit, got none in {shown}".replace("\n", " "))
    runs, doubled = _distinct(_name_graphs(_shorten_paths(list(found.values()))))
    missing = [line for place, jobs in expected.items() for line in _missing(place, jobs, set(found))]
    known = [jobs for jobs in expected.values() if jobs is not None]
    return Sweep(tuple(runs), sum(known) if known else None, tuple(missing), (*skipped, *doubled))


def _places(root: Path) -> Iterator[Path]:
    """The folder and all below it, job 2 before job 10; hidden folders and links are not followed."""
    for place, below, _ in os.walk(root):
        below[:] = sorted((b for b in below if not b.startswith(".")), key=lambda b: (not b.isdigit(), len(b), b))
        yield Path(place)


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _read(file: Path, name: str) -> Run | str:
    """The run, or why it was skipped."""
    where = f"skipped {name}/results.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse)
    except OSError as error:
        return f"{where}: {error.strerror}"
    except (ValueError, RecursionError):
        return f"{where}: not strict JSON"
    if not isinstance(content, dict) or "schema_version" not in content or "audit" not in content:
        return f"{where}: not the result of an audit"
    version = content["schema_version"]
    if version != SCHEMA_VERSION or isinstance(version, bool):
        return f"{where}: schema version {version}, and this version of jaxaudit reads {SCHEMA_VERSION}"
    if content["audit"] not in ("graph", "release"):
        return f"{where}: unknown audit {content['audit']}"
    for block, kind in _BLOCKS.items():
        if not isinstance(content.get(block), kind):
            return f"{where}: its {block} is missing"
    options = dict(_flat(content["config"]))
    options = {k: v for k, v in options.items() if k not in _UNRELATED and k.split(".")[0] not in _UNRELATED}
    summary = _revive(content["summary"])
    return Run(name, file.parent, content["audit"], options, content["data"], summary, len(content["warnings"]))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            huge = isinstance(value, int) and abs(value) > sys.float_info.max  # a word: no float holds it
            shown = ",".join(map(str, value)) if isinstance(value, list) else str(value) if huge else value
            yield f"{prefix}{name}", shown


def _revive(value: Any) -> Any:
    """Undo ``plain``: null is NaN, "Infinity" is a number."""
    if isinstance(value, dict):
        return {name: _revive(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_revive(item) for item in value]
    if value is None:
        return math.nan
    return float(value.replace("Infinity", "inf")) if value in ("Infinity", "-Infinity") else value


def _shorten_paths(runs: list[Run]) -> list[Run]:
    """Cut the part that all paths of tables share: only their ends tell the releases apart."""
    names = sorted({name for run in runs for name, value in run.options.items()
                    if name.startswith("release.") and isinstance(value, str) and os.sep in value})  # fmt: skip
    paths = [str(run.options[name]) for run in runs for name in names if isinstance(run.options.get(name), str)]
    try:
        common = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    except ValueError:  # absolute and relative ones
        return runs
    for run in runs:
        for name in names:
            if common and isinstance(run.options.get(name), str):
                run.options[name] = os.path.relpath(run.options[name], common)
    return runs


def _name_graphs(runs: list[Run]) -> list[Run]:
    """Give each graph audit its graph as an option; different data under one name are told apart by their digest."""
    digests: dict[Any, set[str]] = {}
    for run in runs:
        digests.setdefault(_source(run), set()).add(str(run.data.get("digest")))
    for run in runs:
        if run.audit == "graph":
            name = str(run.data.get("name") or "graph")
            alike = len(digests[_source(run)]) > 1
            run.options["graph"] = f"{name} ({str(run.data.get('digest'))[:6]})" if alike else name
    return runs


def _source(run: Run) -> tuple[str, ...]:
    settings = sorted(f"{name}={value}" for name, value in run.options.items() if name.startswith("graph."))
    return (run.audit, str(run.data.get("name")), *settings)


def _distinct(runs: list[Run]) -> tuple[list[Run], list[str]]:
    kept: dict[str, Run] = {}
    doubled = []
    for run in runs:
        identity = json.dumps([run.audit, plain(run.options), run.data.get("digest")], sort_keys=True)
        first = kept.setdefault(identity, run)
        if first is not run:
            doubled.append(f"left out {run.name}: the same audit as {first.name}")
    return list(kept.values()), doubled


def _jobs(file: Path) -> int | None:
    """Number of jobs of a Hydra sweep, from the record that Hydra leaves in its folder; None where it cannot tell."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        record: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
        swept = [f"{name}={value}" for name, value in (record["hydra"]["sweeper"].get("params") or {}).items()]
        given = OverridesParser.create().parse_overrides([*swept, *record["hydra"]["overrides"]["task"]])
        last = {override.key_or_group: override for override in given}  # an option given again replaces the swept one
        return math.prod(len(list(o.sweep_string_iterator())) for o in last.values() if o.is_sweep_override())
    except (HydraException, OmegaConfBaseException, OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _missing(place: Path, jobs: int | None, found: set[Path]) -> list[str]:
    """Jobs of one sweep folder that left no result: numbered ones that failed, or that were never reached."""
    numbers = [int(path.name) for path in found if path.parent == place and path.name.isdigit()]
    total = jobs if jobs is not None else max(numbers, default=-1) + 1
    return [f"{place.name}/{number}" for number in range(total) if number not in set(numbers)]


def varying_options(runs: Sequence[Run]) -> list[str]:
    """Options in which the runs differ, in the order in which the configurations name them.

    An option that exists only under one choice of its group (``sampler.fanout`` under snowball) counts only if it
    takes several values there. The graph comes first, then what has a name, the seed last.

    Example:
        >>> runs = [Run("0", Path("0"), "graph", {"a": 1, "b": 2}, {}, {}, 0)]
        >>> runs.append(Run("1", Path("1"), "graph", {"a": 1, "b": 3}, {}, {}, 0))
        >>> varying_options(runs)
        ['b']
    """
    names = list(dict.fromkeys(name for run in runs for name in run.options))
    names.sort(key=lambda name: (name != "graph", not name.endswith(".name"), name == "seed"))
    differing = []
    for name in names:
        bound = conditional(name, runs)  # then its absence is not a value of its own
        if len({option_value(run, name) for run in runs if name in run.options or not bound}) > 1:
            differing.append(name)
    return differing


def conditional(name: str, runs: Sequence[Run]) -> bool:
    """Whether the presence of an option follows from the chosen name of its group."""
    group = name.split(".")[0]
    chooser = group if group == "graph" else f"{group}.name"
    present: dict[str, set[bool]] = {}
    for run in runs:
        present.setdefault(str(run.options.get(chooser)), set()).add(name in run.options)
    return "." in name and all(len(found) == 1 for found in present.values()) and {False} in present.values()


def as_json(value: Any) -> str:
    """The value of an option as JSON, by which values are compared: 1 and 1.0 are one value, true is another."""
    return json.dumps(float(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def option_value(run: Run, name: str) -> str:
    """``as_json`` of an option of a run; an absent one is null."""
    return as_json(run.options.get(name))
