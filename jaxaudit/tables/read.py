"""Reading one table from a file, a DataFrame or an array, and refusing what would be misread in silence."""

from __future__ import annotations

import csv
import gzip
import os
import warnings
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet
from pandas.api import types

from jaxaudit.runtime.checks import InputError, require

__all__ = ["Table", "listed", "read_table"]

Table = str | os.PathLike[str] | pd.DataFrame | np.ndarray
"""What is accepted as a table: a file, a DataFrame, or a two-dimensional array."""

_SUFFIXES = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t", ".parquet": "", ".pq": ""}
_UNREADABLE = (UnicodeError, ValueError, EOFError, zlib.error, gzip.BadGzipFile, OSError, csv.Error,
               pd.errors.ParserWarning)  # fmt: skip
_NESTED = (list, tuple, dict, set, frozenset, np.ndarray, complex, np.complexfloating)


def read_table(source: Table, name: str) -> pd.DataFrame:
    """Read a table; an empty cell is missing, words such as ``None`` or ``NA`` are levels.

    Args:
        source: a ``.csv``, ``.csv.gz``, ``.tsv``, ``.tsv.gz`` or ``.parquet`` file with a header, a DataFrame
            (its index is ignored), or a two-dimensional array (columns are then named x0, x1, ...).
        name: what messages call it, such as ``release.members``.

    Returns:
        A new DataFrame with a plain index, at least one row, and distinct text column names.

    Raises:
        InputError: no such file, not a table, no rows, rows shorter or longer than the header, duplicate column
            names, cells that hold several values or complex numbers.

    Example:
        >>> read_table(pd.DataFrame({1: [0.5]}, index=["a"]), "release.members")
             1
        0  0.5
    """
    if isinstance(source, pd.DataFrame):
        frame = source.reset_index(drop=True)
    elif isinstance(source, np.ndarray):
        require(source.ndim == 2, name, "have two dimensions", f"shape {source.shape}")
        frame = pd.DataFrame(source, columns=[f"x{j}" for j in range(source.shape[1])])
    else:
        require(
            isinstance(source, str | os.PathLike), name, "be a file, a DataFrame or a 2-D array", type(source).__name__
        )
        require(os.fspath(source) != "", name, "be an existing file", "''")
        frame = _read_file(Path(source).expanduser(), name)
    frame.columns = pd.Index([str(column).strip() for column in frame.columns], dtype=object)
    _check_distinct(frame.columns, name)
    require(frame.shape[1] > 0, name, "have at least one column", "none")
    require(len(frame) > 0, name, "have at least one row", "a header only")
    for column in frame.columns:
        _check_cells(frame[column], name)
    return frame


def _check_distinct(columns: Iterable[Any], name: str) -> None:
    titles = pd.Index([str(column).strip() for column in columns], dtype=object)
    repeated = sorted(set(titles[titles.duplicated()]))
    require(not repeated, name, "have distinct column names", f"{listed(repeated)} more than once")


def _check_cells(column: pd.Series, name: str) -> None:
    """One plain value a cell: no lists, structs or arrays, no complex numbers."""
    where = f"in column {column.name!r}"
    require(not types.is_complex_dtype(column.dtype), name, "have real numbers", f"complex numbers {where}")
    if not isinstance(column.dtype, pd.ArrowDtype) and not types.is_object_dtype(column.dtype):
        return
    if any(issubclass(kind, _NESTED) for kind in set(map(type, column))):
        row, cell = next((row, cell) for row, cell in enumerate(column) if isinstance(cell, _NESTED))
        rule = "have one number or text in every cell"
        require(False, name, rule, f"a cell of type {type(cell).__name__} {where}, row {row}")


def _read_file(path: Path, name: str) -> pd.DataFrame:
    require(path.is_file(), name, "be an existing file", f"{str(path)!r}")
    suffix = next((known for known in _SUFFIXES if path.name.lower().endswith(known)), None)
    if suffix is None:
        raise InputError(f"{name} must be a {', '.join(_SUFFIXES)} file, got {str(path)!r}")
    require(path.stat().st_size > 0, name, "be a table with a header", f"the empty file {str(path)!r}")
    separator = _SUFFIXES[suffix]
    try:
        return _read_text(path, separator, name) if separator else _read_parquet(path, name)
    except InputError:
        raise
    except pd.errors.EmptyDataError:
        raise InputError(f"{name} must be a table with a header, got the empty file {str(path)!r}") from None
    except _UNREADABLE as error:
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        cause += "; save it as UTF-8" * isinstance(error, UnicodeDecodeError)
        raise InputError(f"{name} must be a readable {suffix} table, got {str(path)!r} ({cause})") from None


def _read_parquet(path: Path, name: str) -> pd.DataFrame:
    _check_distinct(pyarrow.parquet.read_schema(path).names, name)
    return pd.read_parquet(path)


def _read_text(path: Path, separator: str, name: str) -> pd.DataFrame:
    options: dict[str, Any] = {"sep": separator, "encoding": "utf-8-sig", "keep_default_na": False, "na_values": [""]}
    header = pd.read_csv(path, header=None, nrows=1, dtype=str, **options).iloc[0]
    # One column whose name holds other separators: the wrong separator would pass unnoticed as one text column.
    other = [mark for mark in ";\t|," if mark != separator and mark in str(header.iloc[0])]
    require(len(header) > 1 or not other, name, f"be separated by {separator!r}", f"the header {header.iloc[0]!s:.60}")
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
        frame = pd.read_csv(path, index_col=False, low_memory=False, **options)
    _check_lines(path, separator)
    if len(header) == frame.shape[1]:  # pandas renames duplicates to "a.1": keep the names as they are in the file
        named = [frame.columns[j] if pd.isna(title) else title for j, title in enumerate(header)]
        frame.columns = pd.Index(named, dtype=object)
    return frame


def _check_lines(path: Path, separator: str) -> None:
    """Refuse what pandas accepts in silence: rows shorter than the header (filled up) and NUL bytes (cut off)."""
    opened: Any = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as stream:
        rows = csv.reader(_without_nul(stream), delimiter=separator)
        width = 0
        for row in rows:
            blank = len(row) < 2 and not "".join(row).strip()  # pandas skips it
            if blank or 0 < width <= len(row):
                continue
            if width:
                fields = "1 field" if len(row) == 1 else f"{len(row)} fields"
                raise ValueError(f"{fields} in line {rows.line_num}, {width} in the header")
            width = len(row)


def _without_nul(lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if "\0" in line:
            raise ValueError(f"a NUL byte in line {number}")
        yield line


def listed(names: Iterable[Any], most: int = 8) -> str:
    """Names in quotes, the first few of many.

    Example:
        >>> listed("abc", 2)
        "'a', 'b' and 1 more"
    """
    names = [repr(str(name)) for name in names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
