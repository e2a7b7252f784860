"""Writing a run: results.json, the tidy table, the figures and the report, all or nothing."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from jaxaudit.report.draft import drafted, write_json, write_page, write_pictures
from jaxaudit.report.figures import draw
from jaxaudit.report.html import render
from jaxaudit.runtime.checks import InputError, check_choice, require
from jaxaudit.runtime.devices import describe
from jaxaudit.runtime.result import SCHEMA_VERSION, AuditResult

__all__ = ["TABLES", "plain", "write_run"]

_TABLES = {"graph": "nodes.csv", "release": "records.csv"}
TABLES = ("nodes.csv", "records.csv", "evidence.csv", "overfit.csv")
"""Every table that a run may leave in its folder."""

_FURTHER = ("evidence.csv",)
"""Tables that an audit may have in ``result.tables``, by name without the suffix."""


def write_run(
    result: AuditResult, folder: str | os.PathLike[str], environment: dict[str, Any] | None = None
) -> dict[str, Path]:
    """Write an audit into a folder, which may exist and hold other files.

    ``results.json`` is strict JSON with sorted keys: NaN (undefined) is ``null``, infinities are the strings
    ``"Infinity"`` and ``"-Infinity"``. The table is CSV with every float in the shortest form that reads back to the
    same number, and an empty cell for NaN; further tables (``evidence.csv``) likewise. All or nothing is written
    (``jaxaudit.report.draft``), ``results.json`` last.

    Args:
        result: of either audit.
        folder: where to; made if absent.
        environment: the ``environment`` block; None asks ``jaxaudit.runtime.devices.describe``.

    Returns:
        Paths of "results", "table", "report" and "figures" (a folder).

    Raises:
        InputError: the folder is a file or cannot be written, or the kind of audit is unknown.
    """
    check_choice("audit", getattr(result, "audit", type(result).__name__), tuple(_TABLES))
    target = _absolute(folder)
    environment = describe() if environment is None else environment
    others = tuple(name for name in TABLES if name != _TABLES[result.audit])  # of another audit in this folder: gone
    with drafted(target, ("figures", *TABLES, "report.html", "results.json"), optional=others) as draft:
        _write_files(result, draft, environment)
    names = {"results": "results.json", "table": _TABLES[result.audit], "report": "report.html", "figures": "figures"}
    return {key: target / name for key, name in names.items()}


def _absolute(folder: Any) -> Path:
    require(isinstance(folder, str | os.PathLike), "folder", "be a path", type(folder).__name__)
    try:
        return Path(folder).expanduser().resolve()
    except (RuntimeError, ValueError, TypeError, OSError) as error:  # no such user, a null byte, a loop of links
        raise InputError(f"folder must be a path that can be followed, got {str(folder)!r}: {error}") from None


def _write_files(result: AuditResult, draft: Path, environment: Mapping[str, Any]) -> None:
    pictures = draw(result)
    write_pictures(pictures, draft)
    write_page(render(result, pictures, environment), draft)
    _write_table(result.table, draft / _TABLES[result.audit])
    for name, table in result.tables.items():
        if f"{name}.csv" not in _FURTHER:
            raise InputError(f"tables must be named {', '.join(_FURTHER)} without the suffix, got {name}")
        _write_table(table, draft / f"{name}.csv")
    content = {
        "schema_version": SCHEMA_VERSION,
        "audit": result.audit,
        "config": result.config,
        "data": result.data,
        "environment": environment,
        "timings": result.timings,
        "summary": result.summary,
        "warnings": result.warnings,
    }
    write_json(plain(content), draft / "results.json")


def _write_table(table: pd.DataFrame, path: Path) -> None:
    table.to_csv(
        path, index=False, na_rep="", quoting=_quoting(table), lineterminator="\n", encoding="utf-8",
        errors="backslashreplace",
    )  # fmt: skip


def _quoting(table: pd.DataFrame) -> Literal[0, 2]:
    """Quote where needed; all strings where one holds a carriage return, which Python's minimal quoting overlooks."""
    texts = table.select_dtypes(["object", "string", "category"])
    cells = (str(cell) for column in texts for cell in texts[column].unique())
    odd = any("\r" in text for text in (*map(str, table.columns), *cells))
    return csv.QUOTE_NONNUMERIC if odd else csv.QUOTE_MINIMAL


def plain(value: Any) -> Any:
    """Nested values as strict JSON has them: NaN -> None, infinities -> "Infinity" / "-Infinity", arrays -> lists.

    Example:
        >>> plain({"a": np.float32(0.5), 1: (float("nan"), float("-inf")), "n": np.arange(2)})
        {'a': 0.5, '1': [None, '-Infinity'], 'n': [0, 1]}
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        if math.isnan(number):
            return None
        return number if math.isfinite(number) else ("Infinity" if number > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return [plain(item) for item in sorted(value, key=str)]
    return str(value)
