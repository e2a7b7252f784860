"""The tables of a release audit: reading, reconciling and counting what a reader should know of.

Four tables take part: the records a generator was trained on (members), records of the same
population it never saw (non-members), the released synthetic table, and an independent reference.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from jaxaudit.runtime.checks import InputError, require
from jaxaudit.runtime.keys import host_rng
from jaxaudit.tables.columns import column_kind, convert, round_numbers
from jaxaudit.tables.identifiers import identifier
from jaxaudit.tables.read import Table, listed, read_table

__all__ = ["Release", "load_release", "reconcile"]

_NAMELESS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
_MOST_MISSING, _HARDLY_MISSING = 0.5, 0.05
_KINDS = {"f": "number", "M": "date"}

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
            in B; ``constant_columns`` = columns with one value over all four tables. Rows are compared in the
            columns that vary over reference and synthetic, after rounding numbers to 6 significant digits
            below a million and 9 above.
        rows: for members and non-members, the row of the table as given that each row was, from 0.
        dropped: columns left out on demand.
    """

    members: pd.DataFrame
    non_members: pd.DataFrame
    synthetic: pd.DataFrame
    reference: pd.DataFrame
    warnings: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    def tables(self) -> dict[str, pd.DataFrame]:
        """The four tables by name."""
        return {name: getattr(self, name) for name in ("members", "non_members", "synthetic", "reference")}


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
                cells = "1 cell counts" if len(unreadable) == 1 else f"{len(unreadable)} cells count"
                notes.append(
                    f"In column {column!r} of {name} {cells} as missing: {unreadable[0]!r} is no {kind}, "
                    "unlike in reference and synthetic."
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
    notes = [f"Columns without a name (a saved row index?) are left out of {listed(nameless)}."] if nameless else []
    for name in others:
        kept = [column for column in shared if column in tables[name].columns]
        if not kept:
            found = listed(tables[name].columns)
            raise InputError(f"release.{name} must share a column with release.{first}, got the columns {found}")
        shared = kept
    require(bool(shared), f"release.{first}", "have a column with a name", "none")
    for name, frame in tables.items():
        extra = [column for column in frame.columns if column not in shared and not _NAMELESS.fullmatch(column)]
        if extra:
            notes.append(f"Columns of {name} that another table lacks are left out: {listed(extra)}.")
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
    words = listed(levels[~numbers.to_numpy()])
    return [f"Column {column!r} is read as text because of {words}; write missing numbers as empty cells."]


def _share_levels(column: str, done: dict[str, dict[str, pd.Series]]) -> None:
    levels = sorted({level for frame in done.values() for level in frame[column].cat.categories})
    dtype = pd.CategoricalDtype(pd.Index(levels, dtype=object))
    for frame in done.values():
        frame[column] = frame[column].astype(dtype)


def load_release(
    members: Table,
    non_members: Table,
    synthetic: Table,
    reference: Table | None = None,
    seed: int = 0,
    drop: str | Iterable[str] = (),
) -> Release:
    """Read and reconcile the tables of an audit, and count duplicates, overlaps and exact copies.

    Args:
        members: a file, a DataFrame or an array, see ``read_table``.
        non_members: likewise.
        synthetic: likewise.
        reference: likewise; without one, a random half of the non-members becomes it, with a warning.
        seed: of that split.
        drop: names of columns to leave out, first of all.

    Returns:
        The release without identifiers (``jaxaudit.tables.identifiers``), which are left out with a warning.
        Each non-zero count of rows is also a warning.

    Raises:
        InputError: see ``read_table`` and ``reconcile``; an unknown name to drop; one non-member only and no
            reference; most numbers or dates of a column missing in members or non-members, unlike in the reference.

    Example:
        >>> rows = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0]})
        >>> release = load_release(rows[:2], rows[2:], rows[1:2], reference=rows[3:] + 1)
        >>> release.counts["members_in_synthetic"], len(release.warnings)
        (1, 2)
    """
    given = {"members": members, "non_members": non_members, "synthetic": synthetic}
    given |= {} if reference is None else {"reference": reference}
    tables = {name: read_table(table, f"release.{name}") for name, table in given.items()}
    tables, dropped = _without(tables, drop)
    notes: list[str] = []
    sources = {name: np.arange(len(tables[name])) for name in ("members", "non_members")}
    if reference is None:
        rows = len(tables["non_members"])
        require(rows > 1, "release.non_members", "have at least 2 rows where no reference is given", f"{rows} row")
        order = host_rng(seed, "tables.reference").permutation(rows)
        half = {"non_members": np.sort(order[: rows - rows // 2]), "reference": np.sort(order[rows - rows // 2 :])}
        tables |= {name: tables["non_members"].iloc[part].reset_index(drop=True) for name, part in half.items()}
        sources["non_members"] = half["non_members"]
        serve = "serves as reference and is" if rows // 2 == 1 else "serve as reference and are"
        notes.append(f"No reference was given: {rows // 2} of the {rows} non-members {serve} not scored.")
    tables, more = reconcile(tables)
    deciding = [tables["reference"], tables["synthetic"]]
    if reference is None:  # the half that became the reference numbers its rows with gaps: look at the whole, too
        deciding.append(pd.concat([tables["non_members"], tables["reference"]], ignore_index=True))
    left_out = _identifiers(deciding)
    named = [name for names in left_out.values() for name in names]
    require(
        len(named) < tables["members"].shape[1], "release.reference", "have a column that can be encoded",
        f"identifiers only: {listed(named)}",
    )  # fmt: skip
    tables = {name: frame.drop(columns=named) for name, frame in tables.items()}
    _check_present(tables)
    counts = _count(tables)
    notes.extend(more)
    notes.extend(f"{why}: {', '.join(map(repr, names))}." for why, names in left_out.items())
    notes.extend(f"{meaning}: {counts[name]}." for name, meaning in _MEANING.items() if counts[name])
    return Release(**tables, warnings=tuple(notes), counts=counts, rows=sources, dropped=dropped)


def _without(
    tables: dict[str, pd.DataFrame], drop: str | Iterable[str]
) -> tuple[dict[str, pd.DataFrame], tuple[str, ...]]:
    """The tables without the named columns, and the names as a tuple."""
    require(isinstance(drop, Iterable), "release.drop", "be a list of column names", type(drop).__name__)
    names = tuple(str(name).strip() for name in ([drop] if isinstance(drop, str) else drop))
    known = {column for frame in tables.values() for column in frame.columns}
    unknown = [name for name in names if name not in known]
    require(not unknown, "release.drop", "name columns of the tables", listed(unknown))
    kept = {name: frame.drop(columns=list(names), errors="ignore") for name, frame in tables.items()}
    for name, frame in kept.items():
        require(frame.shape[1] > 0, "release.drop", f"leave release.{name} a column", listed(names))
    return kept, names


def _identifiers(tables: list[pd.DataFrame]) -> dict[str, list[str]]:
    """Columns that are identifiers, by why they are."""
    found: dict[str, list[str]] = {}
    for column in tables[0].columns:
        kind = _KINDS.get(tables[0][column].dtype.kind, "text")
        if why := identifier(column, kind, [frame[column] for frame in tables]):
            found.setdefault(why, []).append(column)
    return found


def _check_present(tables: dict[str, pd.DataFrame]) -> None:
    """Refuse a column that one class of records lacks: the stand-in for missing cells would tell it apart."""
    for column, expected in tables["reference"].items():
        kind = _KINDS.get(expected.dtype.kind)
        if kind is None or expected.isna().mean() >= _HARDLY_MISSING:
            continue
        for name in ("members", "non_members"):
            missing, rows = int(tables[name][column].isna().sum()), len(tables[name])
            require(
                missing <= _MOST_MISSING * rows, f"release.{name}", f"have readable {kind}s in the column {column!r}",
                f"{missing} of {rows} cells missing or unreadable, unlike the reference (release.drop leaves it out)",
            )  # fmt: skip


def _count(tables: dict[str, pd.DataFrame]) -> dict[str, int]:
    """All counts of ``Release``."""
    ends = np.cumsum([0, *map(len, tables.values())])
    where = {name: slice(start, end) for name, (start, end) in zip(tables, itertools.pairwise(ends), strict=True)}
    ids = np.zeros(ends[-1], dtype=np.int64)
    counts = {"constant_columns": 0}
    for column in tables["members"].columns:
        values = pd.concat([frame[column] for frame in tables.values()], ignore_index=True)  # categories are shared
        codes = pd.factorize(round_numbers(values.to_numpy()) if values.dtype == np.float64 else values)[0]
        counts["constant_columns"] += int(codes.min() == codes.max())
        judged = np.concatenate([codes[where["reference"]], codes[where["synthetic"]]])
        if judged.min() < judged.max():  # no attack sees the column otherwise
            ids = pd.factorize(ids * (codes.max() + 2) + codes + 1)[0]  # one id per distinct row so far
    for name in _MEANING:
        if name.startswith("duplicates_"):
            table = ids[where[name.removeprefix("duplicates_")]]
            counts[name] = int(len(table) - len(np.unique(table)))
        else:
            inner, outer = name.split("_in_")
            counts[name] = int(np.isin(ids[where[inner]], ids[where[outer]]).sum())
    return counts
