"""Writing a run: results.json, the tidy table, the figures and the report, all or nothing."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from jaxaudit.report.figures import draw
from jaxaudit.report.html import render
from jaxaudit.runtime.checks import InputError, check_choice
from jaxaudit.runtime.devices import describe
from jaxaudit.runtime.result import SCHEMA_VERSION, AuditResult

__all__ = ["plain", "write_run"]

_TABLES = {"graph": "nodes.csv", "release": "records.csv"}
_FURTHER = ("evidence.csv",)
"""Tables that an audit may have in ``result.tables``, by name without the suffix."""


def write_run(
    result: AuditResult, folder: str | os.PathLike[str], environment: dict[str, Any] | None = None
) -> dict[str, Path]:
    """Write an audit into a folder, which may exist and hold other files.

    ``results.json`` is strict JSON with sorted keys: NaN (undefined) is ``null``, infinities are the strings
    ``"Infinity"`` and ``"-Infinity"``. The table is CSV with every float in the shortest form that reads back to the
    same number, and an empty cell for NaN; further tables (``evidence.csv``) likewise. Everything is made in a hidden
    folder inside ``folder`` (a sibling could lie on another file system) and moved into place when all of it exists,
    ``results.json`` last; a failure leaves the folder as it was.

    Args:
        result: of either audit.
        folder: where to; made if absent.
        environment: the ``environment`` block; None asks ``jaxaudit.runtime.devices.describe``.

    Returns:
        Paths of "results", "table", "report" and "figures" (a folder).

    Raises:
        InputError: the folder is a file or cannot be written, or the kind of audit is unknown.
    """
    check_choice("audit", result.audit, tuple(_TABLES))
    environment = describe() if environment is None else environment
    target = Path(folder).expanduser().resolve()
    made = _first_missing(target)
    try:
        target.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".jaxaudit-", suffix=".part", dir=target))
    except OSError as error:
        raise InputError(f"folder must be writable, got {target}: {error.strerror}") from None
    try:
        _write_files(result, draft, environment)
        _move_into_place(draft, target, _TABLES[result.audit])
    except BaseException:
        shutil.rmtree(made if made is not None else draft, ignore_errors=True)
        raise
    shutil.rmtree(draft)
    names = {"results": "results.json", "table": _TABLES[result.audit], "report": "report.html", "figures": "figures"}
    return {key: target / name for key, name in names.items()}


def _first_missing(target: Path) -> Path | None:
    """The topmost folder that has to be made for ``target``, None where it exists."""
    missing = [path for path in (target, *target.parents) if not path.exists()]
    return missing[-1] if missing else None


def _write_files(result: AuditResult, draft: Path, environment: Mapping[str, Any]) -> None:
    pictures = draw(result)
    (draft / "figures").mkdir()
    for picture in pictures:
        (draft / "figures" / f"{picture.name}.png").write_bytes(picture.png)
    page = render(result, pictures, environment)
    (draft / "report.html").write_bytes(page.encode("utf-8", "xmlcharrefreplace"))
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
    text = json.dumps(plain(content), indent=2, sort_keys=True, allow_nan=False)
    (draft / "results.json").write_text(text + "\n", encoding="utf-8")


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


def _move_into_place(draft: Path, target: Path, table: str) -> None:
    """Old outputs are set aside first, also such as this run does not have, and put back should a move fail."""
    moved: list[str] = []
    aside = draft / "replaced"
    aside.mkdir()
    try:
        for name in ("figures", table, *_FURTHER, "report.html", "results.json"):
            if (target / name).exists():
                os.replace(target / name, aside / name)
            moved.append(name)
            if (draft / name).exists() or name not in _FURTHER:
                os.replace(draft / name, target / name)
    except BaseException:
        for name in moved:
            if (target / name).is_dir():
                shutil.rmtree(target / name)
            else:
                (target / name).unlink(missing_ok=True)
            if (aside / name).exists():
                os.replace(aside / name, target / name)
        raise


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
