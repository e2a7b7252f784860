"""The tables of a release audit: reading, reconciling and counting what a reader should know of.

Four tables take part: the records a generator was trained on (members), records of the same
population it never saw (non-members), the released synthetic table, and an independent reference.
"""

from __future__ import annotations

import gzip
import itertools
import os
import re
import warnings
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxaudit.runtime.checks import InputError, require
from jaxaudit.runtime.keys import host_rng
from jaxaudit.tables.columns import column_kind, convert, round_numbers

__all__ = ["Release", "Table", "load_release", "read_table", "reconcile"]

Table = str | os.PathLike[str] | pd.DataFrame | np.ndarray
"""What is accepted as a table: a file, a DataFrame, or a two-dimensional array."""

_SUFFIXES = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t", ".parquet": "", ".pq": ""}
_NAMELESS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
_UNREADABLE = (UnicodeError, ValueError, EOFError, zlib.error, gzip.BadGzipFile, OSError, pd.errors.ParserWarning)

_MEANING = {
    "duplicates_members": "Members that repeat an earlier member",
    "duplicates_non_members": "Non-members that repeat an earlier non-member",
    "duplicates_synthetic": "Synthetic rows that repeat an earlier one",
    "duplicates_reference": "Reference rows that repeat an earlier one",
    "members_in_non_members": "Members that also occur among the non-members, which makes their label ambiguous",
    "members_in_reference": "Members that also occur in the reference, which should be independent of them",
    "non_members_in_reference": "Non-members that also occur in the reference, which should be independent of them",
    "members_in_synthetic": "Members that the synthetic table reproduces exactly",
    "non_members_in_synthetic": "Non-members that occur exactly in the synthetic table, by chance",
    "synthetic_in_members": "Synthetic rows that equal a member exactly",
    "synthetic_in_non_members": "Synthetic rows that equal a non-member exactly, by chance",
}


@dataclass(frozen=True)
class Release:
    """The four tables of an audit, with the same columns in the same order and the same types.

    Columns are float64, datetime64 or category (``jaxaudit.tables.columns``); missing cells are NaN or NaT.

    Attributes:
        members: records the generator was trained on.
        non_members: records of the same population it did not see.
        synthetic: the released table.
        reference: independent records of the population.
        warnings: one sentence each.
        counts: ``duplicates_T`` = rows of T that repeat an earlier row; ``A_in_B`` = rows of A that also occur
            in B; ``constant_columns`` = columns with one value over all four tables. Values are compared
            after rounding numbers to 6 significant digits below a million and 9 above.
    """

    members: pd.DataFrame
    non_members: pd.DataFrame
    synthetic: pd.DataFrame
    reference: pd.DataFrame
    warnings: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    def tables(self) -> dict[str, pd.DataFrame]:
        """The four tables by name."""
        return {name: getattr(self, name) for name in ("members", "non_members", "synthetic", "reference")}


def read_table(source: Table, name: str) -> pd.DataFrame:
    """Read a table; an empty cell is missing, words such as ``None`` or ``NA`` are levels.

    Args:
        source: a ``.csv``, ``.csv.gz``, ``.tsv``, ``.tsv.gz`` or ``.parquet`` file with a header, a DataFrame
            (its index is ignored), or a two-dimensional array (columns are then named x0, x1, ...).
        name: what messages call it, such as ``release.members``.

    Returns:
        A new DataFrame with a plain index, at least one row, and distinct text column names.

    Raises:
        InputError: no such file, not a table, no rows, duplicate column names.

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
        frame = _read_file(Path(source).expanduser(), name)
    frame.columns = pd.Index([str(column).strip() for column in frame.columns], dtype=object)
    repeated = sorted(set(frame.columns[frame.columns.duplicated()]))
    require(not repeated, name, "have distinct column names", f"{_listed(repeated)} more than once")
    require(frame.shape[1] > 0, name, "have at least one column", "none")
    require(len(frame) > 0, name, "have at least one row", "a header only")
    return frame


def _read_file(path: Path, name: str) -> pd.DataFrame:
    require(path.is_file(), name, "be an existing file", f"{str(path)!r}")
    suffix = next((known for known in _SUFFIXES if path.name.lower().endswith(known)), None)
    if suffix is None:
        raise InputError(f"{name} must be a {', '.join(_SUFFIXES)} file, got {str(path)!r}")
    require(path.stat().st_size > 0, name, "be a table with a header", f"the empty file {str(path)!r}")
    separator = _SUFFIXES[suffix]
    try:
        frame = pd.read_parquet(path) if not separator else _read_text(path, separator)
    except pd.errors.EmptyDataError:
        raise InputError(f"{name} must be a table with a header, got the empty file {str(path)!r}") from None
    except _UNREADABLE as error:
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{name} must be a readable {suffix} table, got {str(path)!r} ({cause})") from None
    # One column whose name holds other separators: the wrong separator would pass unnoticed as one text column.
    other = [mark for mark in ";\t|," if mark != separator and mark in str(frame.columns[0])]
    if separator and frame.shape[1] == 1 and other:
        raise InputError(f"{name} must be separated by {separator!r}, got the header {str(frame.columns[0])[:60]!r}")
    return frame


def _read_text(path: Path, separator: str) -> pd.DataFrame:
    options: dict[str, Any] = {"sep": separator, "encoding": "utf-8-sig", "keep_default_na": False, "na_values": [""]}
    header = pd.read_csv(path, header=None, nrows=1, dtype=str, **options).iloc[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
        frame = pd.read_csv(path, index_col=False, low_memory=False, **options)
    if len(header) == frame.shape[1]:  # pandas renames duplicates to "a.1": keep the names as they are in the file
        named = [frame.columns[j] if pd.isna(title) else title for j, title in enumerate(header)]
        frame.columns = pd.Index(named, dtype=object)
    return frame


def reconcile(tables: dict[str, pd.DataFrame]) -> tuple[dict[str, pd.DataFrame], tuple[str, ...]]:
    """Give tables the same columns, in the order of the first, with the same types.

    Columns are matched by name; those that some table lacks are left out, and so are nameless ones (a saved
    row index). The kind of a column is decided from the tables called ``reference`` and ``synthetic`` where
    present, never from members; cells of other tables that do not fit are missing, with a warning.

    Args:
        tables: name -> DataFrame with distinct text column names.

    Returns:
        The tables by name, and warnings of one sentence each.

    Raises:
        InputError: no shared column, or an infinite number.

    Example:
        >>> a, b = pd.DataFrame({"x": [1, 2], "y": ["u", "v"]}), pd.DataFrame({"y": ["u"], "x": ["3.0"]})
        >>> reconcile({"reference": a, "synthetic": b})[0]["synthetic"]
             x  y
        0  3.0  u
    """
    shared, notes = _shared_columns(tables)
    deciding = [tables[name] for name in ("reference", "synthetic") if name in tables] or list(tables.values())
    done: dict[str, dict[str, pd.Series]] = {name: {} for name in tables}
    for column in shared:
        kind = column_kind([frame[column] for frame in deciding])
        for name, frame in tables.items():
            done[name][column], unreadable = convert(frame[column], kind)
            if unreadable:
                notes.append(
                    f"{_cells(len(unreadable))} of column {column!r} in {name} count as missing: "
                    f"{unreadable[0]!r} is no {kind}, unlike in reference and synthetic."
                )
        if kind == "number":
            _check_no_infinity({name: done[name][column] for name in tables})
        if kind == "text":
            notes.extend(_almost_numbers(column, [done[name][column] for name in tables]))
            _share_levels(column, done)
    return {name: pd.DataFrame(columns) for name, columns in done.items()}, tuple(notes)


def _shared_columns(tables: dict[str, pd.DataFrame]) -> tuple[list[str], list[str]]:
    first, *others = tables
    shared = [column for column in tables[first].columns if not _NAMELESS.fullmatch(column)]
    nameless = [name for name, frame in tables.items() if any(map(_NAMELESS.fullmatch, frame.columns))]
    notes = [f"Columns without a name (a saved row index?) are left out of {_listed(nameless)}."] if nameless else []
    for name in others:
        kept = [column for column in shared if column in tables[name].columns]
        if not kept:
            found = _listed(tables[name].columns)
            raise InputError(f"release.{name} must share a column with release.{first}, got the columns {found}")
        shared = kept
    require(bool(shared), f"release.{first}", "have a column with a name", "none")
    for name, frame in tables.items():
        extra = [column for column in frame.columns if column not in shared and not _NAMELESS.fullmatch(column)]
        if extra:
            notes.append(f"Columns of {name} that another table lacks are left out: {_listed(extra)}.")
    return shared, notes


def _check_no_infinity(parts: dict[str, pd.Series]) -> None:
    for name, part in parts.items():
        infinite = np.flatnonzero(np.isinf(part.to_numpy()))
        if infinite.size:
            where = f"{part.iloc[infinite[0]]} in column {part.name!r}, row {infinite[0]}"
            raise InputError(f"release.{name} must have only finite numbers, got {where}")


def _almost_numbers(column: str, parts: list[pd.Series]) -> list[str]:
    """A warning where a few words (such as NA) turn a column of numbers into text."""
    levels = pd.Index(sorted({level for part in parts for level in part.cat.categories}), dtype=object)
    numbers = convert(levels.to_series(), "number")[0].notna()
    if numbers.sum() < 10 or numbers.mean() < 0.8:
        return []
    words = _listed(levels[~numbers.to_numpy()])
    return [f"Column {column!r} is read as text because of {words}; write missing numbers as empty cells."]


def _share_levels(column: str, done: dict[str, dict[str, pd.Series]]) -> None:
    levels = sorted({level for frame in done.values() for level in frame[column].cat.categories})
    dtype = pd.CategoricalDtype(pd.Index(levels, dtype=object))
    for frame in done.values():
        frame[column] = frame[column].astype(dtype)


def load_release(
    members: Table, non_members: Table, synthetic: Table, reference: Table | None = None, seed: int = 0
) -> Release:
    """Read and reconcile the tables of an audit, and count duplicates, overlaps and exact copies.

    Args:
        members: a file, a DataFrame or an array, see ``read_table``.
        non_members: likewise.
        synthetic: likewise.
        reference: likewise; without one, a random half of the non-members becomes it, with a warning.
        seed: of that split.

    Returns:
        The release; each non-zero count is also a warning.

    Raises:
        InputError: see ``read_table`` and ``reconcile``; or one non-member only and no reference.

    Example:
        >>> rows = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0]})
        >>> release = load_release(rows[:2], rows[2:], rows[1:2], reference=rows[3:] + 1)
        >>> release.counts["members_in_synthetic"], len(release.warnings)
        (1, 2)
    """
    given = {"members": members, "non_members": non_members, "synthetic": synthetic, "reference": reference}
    tables = {name: read_table(table, f"release.{name}") for name, table in given.items() if table is not None}
    notes: list[str] = []
    if reference is None:
        rows = len(tables["non_members"])
        require(rows > 1, "release.non_members", "have at least 2 rows where no reference is given", f"{rows} row")
        order = host_rng(seed, "tables.reference").permutation(rows)
        half = {"non_members": order[: rows - rows // 2], "reference": order[rows - rows // 2 :]}
        tables |= {name: tables["non_members"].iloc[np.sort(part)] for name, part in half.items()}
        tables = {name: frame.reset_index(drop=True) for name, frame in tables.items()}
        notes.append(
            f"No reference was given: {rows // 2} of the {rows} non-members serve as reference and are not scored."
        )
    tables, more = reconcile(tables)
    counts, constant = _count(tables)
    notes.extend(more)
    notes.extend(f"{meaning}: {counts[name]}." for name, meaning in _MEANING.items() if counts[name])
    if constant:
        notes.append(f"Columns with the same value in all tables: {_listed(constant)}.")
    return Release(**tables, warnings=tuple(notes), counts=counts)


def _count(tables: dict[str, pd.DataFrame]) -> tuple[dict[str, int], list[str]]:
    """All counts of ``Release``, and the columns with one value in all tables."""
    columns = list(tables["members"].columns)
    ids = np.zeros(sum(map(len, tables.values())), dtype=np.int64)
    constant = []
    for column in columns:
        parts = [frame[column] for frame in tables.values()]
        values = pd.concat(parts, ignore_index=True)  # shared categories, so a category stays one
        codes = pd.factorize(round_numbers(values.to_numpy()) if values.dtype == np.float64 else values)[0]
        if codes.min() == codes.max():
            constant.append(column)
        ids = pd.factorize(ids * (codes.max() + 2) + codes + 1)[0]  # one id per distinct row so far
    ends = np.cumsum([0, *map(len, tables.values())])
    rows = {name: ids[start:end] for name, (start, end) in zip(tables, itertools.pairwise(ends), strict=True)}
    counts = {"constant_columns": len(constant)}
    for name in _MEANING:
        if name.startswith("duplicates_"):
            table = rows[name.removeprefix("duplicates_")]
            counts[name] = int(len(table) - len(np.unique(table)))
        else:
            inner, outer = name.split("_in_")
            counts[name] = int(np.isin(rows[inner], rows[outer]).sum())
    return counts, constant


def _listed(names: Iterable[Any], most: int = 8) -> str:
    """Names in quotes, the first few of many."""
    names = [repr(str(name)) for name in names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _cells(count: int) -> str:
    return f"{count} cell{'s' if count > 1 else ''}"
