"""The tables of a release audit: reading, reconciling and counting what a reader should know of.

Four tables take part: the records a generator was trained on (members), records of the same
population it never saw (non-members), the released synthetic table, and an independent reference.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from jaxaudit.runtime.checks import InputError, require
from jaxaudit.runtime.keys import host_rng
from jaxaudit.tables.columns import column_kind, convert, mixed_logical, ordered_levels
from jaxaudit.tables.identifiers import identifier
from jaxaudit.tables.overlaps import MEANING, count_overlaps
from jaxaudit.tables.read import Table, listed, read_table
from jaxaudit.tables.roles import KEPT, Role, Roles, check_roles, inferred_role, settle

__all__ = ["Release", "load_release", "reconcile", "table_digest"]

_NAMELESS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
_MOST_MISSING, _HARDLY_MISSING = 0.5, 0.05
_KINDS = {"f": "number", "M": "date"}


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
        counts: of duplicates, overlaps, copies and odd columns, see ``overlaps.count_overlaps``.
        rows: for members and non-members, the row of the table as given that each row was, from 0.
        dropped: columns left out on demand.
        roles: what every column was taken for, by name; those left out as ``id`` or ``drop`` included.
        ids: for members and non-members, the columns that name the records as they came, one row per record: those
            given the role ``id``, and identifiers found (also where release and reference lack the column).
    """

    members: pd.DataFrame
    non_members: pd.DataFrame
    synthetic: pd.DataFrame
    reference: pd.DataFrame
    warnings: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    roles: dict[str, Role] = field(default_factory=dict)
    ids: dict[str, pd.DataFrame] = field(default_factory=dict)

    def tables(self) -> dict[str, pd.DataFrame]:
        """The four tables by name."""
        return {name: getattr(self, name) for name in ("members", "non_members", "synthetic", "reference")}


def reconcile(
    tables: dict[str, pd.DataFrame], roles: Mapping[str, Role] | None = None
) -> tuple[dict[str, pd.DataFrame], tuple[str, ...]]:
    """Give tables the same columns, in the order of the first, with the same types.

    Columns are matched by name; those that some table lacks are left out, and so are nameless ones (a saved
    row index). The kind of a column is decided from the tables called ``reference`` and ``synthetic`` where
    present, never from members; cells of other tables that do not fit are missing, with a warning.

    Args:
        tables: name -> DataFrame with distinct text column names.
        roles: checked roles of columns (``roles.check_roles``) that overrule the decision; none is ``id`` or ``drop``.

    Returns:
        The tables by name, and warnings of one sentence each.

    Raises:
        InputError: no shared column, an infinite number, or a role that reference or synthetic cannot have.

    Example:
        >>> a, b = pd.DataFrame({"x": [1, 2], "y": ["u", "v"]}), pd.DataFrame({"y": ["u"], "x": ["3.0"]})
        >>> reconcile({"reference": a, "synthetic": b})[0]["synthetic"]
             x  y
        0  3.0  u
    """
    shared, notes = _shared_columns(tables)
    deciding = {name: tables[name] for name in ("reference", "synthetic") if name in tables} or tables
    done: dict[str, dict[str, pd.Series]] = {name: {} for name in tables}
    for column in shared:
        parts = {name: frame[column] for name, frame in tables.items()}
        decisive = {name: parts[name] for name in deciding}
        role = (roles or {}).get(column)
        kind, levels = settle(column, role, decisive) if role else _inferred(list(decisive.values()))
        if kind == "text" and mixed_logical(list(decisive.values())):  # True in one table, 1 in another: one level
            parts = {name: _one_and_zero(part) for name, part in parts.items()}
        for name, part in parts.items():
            done[name][column], unreadable = convert(part, kind, levels)
            if unreadable:
                cells = "1 cell counts" if len(unreadable) == 1 else f"{len(unreadable)} cells count"
                what = "none of the levels" if kind == "ordinal" else f"no {kind}"
                notes.append(
                    f"In column {column!r} of {name} {cells} as missing: {unreadable[0]!r} is {what}, "
                    "unlike in reference and synthetic."
                )
        if kind == "number":
            _check_no_infinity({name: done[name][column] for name in tables})
        if kind == "text":
            notes.extend(_almost_numbers(column, [done[name][column] for name in tables]) if role is None else [])
            _share_levels(column, done)
    return {name: pd.DataFrame(columns) for name, columns in done.items()}, tuple(notes)


def _inferred(parts: list[pd.Series]) -> tuple[str, tuple[str, ...]]:
    kind = column_kind(parts)
    return kind, ordered_levels(parts) if kind == "ordinal" else ()


def _one_and_zero(column: pd.Series) -> pd.Series:
    """True and false, however written, as 1 and 0; other cells as they are."""
    numbers = convert(column, "number")[0].astype(object)
    return numbers.where(numbers.notna(), column.astype(object))


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
    roles: Roles | None = None,
) -> Release:
    """Read and reconcile the tables of an audit, and count duplicates, overlaps and exact copies.

    Args:
        members: a file, a DataFrame or an array, see ``read_table``.
        non_members: likewise.
        synthetic: likewise.
        reference: likewise; without one, a random half of the non-members becomes it, with a warning.
        seed: of that split.
        drop: names of columns to leave out, first of all.
        roles: column -> ``numeric``, ``categorical``, ``ordinal``, ``datetime``, ``id``, ``drop`` or a list of levels
            from low to high (ordinal), see ``jaxaudit.tables.roles``; or a JSON file with such an object. Columns
            without a role are inferred.

    Returns:
        The release without identifiers (``jaxaudit.tables.identifiers``), which are left out with a warning.
        Each non-zero count of rows is also a warning.

    Raises:
        InputError: see ``read_table`` and ``reconcile``; an unknown name to drop; roles that break a rule; one
            non-member only and no reference; most numbers or dates of a column missing in members or non-members,
            unlike in the reference.

    Example:
        >>> rows = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0]})
        >>> release = load_release(rows[:2], rows[2:], rows[1:2], reference=rows[3:] + 1)
        >>> release.counts["members_in_synthetic"], len(release.warnings)
        (1, 2)
    """
    given = {"members": members, "non_members": non_members, "synthetic": synthetic}
    given |= {} if reference is None else {"reference": reference}
    tables = {name: read_table(table, f"release.{name}") for name, table in given.items()}
    tables, dropped = _without(tables, drop, "release.drop")
    given_roles = check_roles(roles, {column for frame in tables.values() for column in frame.columns})
    left = {why: [column for column, role in given_roles.items() if role.name == why] for why in ("id", "drop")}
    ids = {name: tables[name].reindex(columns=left["id"]) for name in ("members", "non_members")}
    tables = _without(tables, [*left["id"], *left["drop"]], "release.roles")[0]
    dropped += tuple(left["drop"])
    notes = [f"Columns declared as identifiers are left out: {listed(left['id'])}."] if left["id"] else []
    sources = {name: np.arange(len(tables[name])) for name in ("members", "non_members")}
    if reference is None:
        rows = len(tables["non_members"])
        require(rows > 1, "release.non_members", "have at least 2 rows where no reference is given", f"{rows} row")
        order = host_rng(seed, "tables.reference").permutation(rows)
        half = {"non_members": np.sort(order[: rows - rows // 2]), "reference": np.sort(order[rows - rows // 2 :])}
        tables |= {name: tables["non_members"].iloc[part].reset_index(drop=True) for name, part in half.items()}
        sources["non_members"] = half["non_members"]
        ids["non_members"] = ids["non_members"].iloc[half["non_members"]].reset_index(drop=True)
        serve = "serves as reference and is" if rows // 2 == 1 else "serve as reference and are"
        notes.append(f"No reference was given: {rows // 2} of the {rows} non-members {serve} not scored.")
    records = {name: tables[name] for name in ids}
    tables, more = reconcile(tables, {column: role for column, role in given_roles.items() if role.name in KEPT})
    deciding = [tables["reference"], tables["synthetic"]]
    if reference is None:  # the half that became the reference numbers its rows with gaps: look at the whole, too
        deciding.append(pd.concat([tables["non_members"], tables["reference"]], ignore_index=True))
    left_out = _identifiers(deciding, given_roles)
    named = [name for names in left_out.values() for name in names]
    require(
        len(named) < tables["members"].shape[1], "release.reference", "have a column that can be encoded",
        f"identifiers only: {listed(named)}",
    )  # fmt: skip
    numbering = [*named, *_only_of_records(records, tables["members"].columns, given_roles)]
    ids = {name: pd.concat([part, records[name].reindex(columns=numbering)], axis=1) for name, part in ids.items()}
    tables = {name: frame.drop(columns=named) for name, frame in tables.items()}
    _check_present(tables)
    counts, about_columns = count_overlaps(tables)
    notes.extend(more)
    notes.extend(f"{why}: {', '.join(map(repr, names))}." for why, names in left_out.items())
    notes.extend(about_columns)
    notes.extend(f"{meaning}: {counts[name]}." for name, meaning in MEANING.items() if counts[name])
    settled = _settled(tables["members"], given_roles) | {name: Role("id", given=False) for name in named}
    settled |= {name: Role("drop") for name in dropped}
    return Release(
        **tables, warnings=tuple(notes), counts=counts, rows=sources, dropped=dropped, roles=settled, ids=ids
    )


def _settled(members: pd.DataFrame, given: Mapping[str, Role]) -> dict[str, Role]:
    """The role of every column: of the kept ones from their dtypes, marked where a person gave it."""
    found = {column: inferred_role(members[column]) for column in members.columns}
    found = {column: replace(role, given=column in given) for column, role in found.items()}
    return found | {column: role for column, role in given.items() if role.name not in KEPT}


def _without(
    tables: dict[str, pd.DataFrame], drop: str | Iterable[str], argument: str
) -> tuple[dict[str, pd.DataFrame], tuple[str, ...]]:
    """The tables without the named columns, and the names as a tuple."""
    require(isinstance(drop, Iterable), argument, "be a list of column names", type(drop).__name__)
    names = tuple(str(name).strip() for name in ([drop] if isinstance(drop, str) else drop))
    known = {column for frame in tables.values() for column in frame.columns}
    unknown = [name for name in names if name not in known]
    require(not unknown, argument, "name columns of the tables", listed(unknown))
    kept = {name: frame.drop(columns=list(names), errors="ignore") for name, frame in tables.items()}
    for name, frame in kept.items():
        require(frame.shape[1] > 0, argument, f"leave release.{name} a column", listed(names))
    return kept, names


def _identifiers(tables: list[pd.DataFrame], given: Mapping[str, Role]) -> dict[str, list[str]]:
    """Columns that are identifiers, by why they are; none that was given a role."""
    found: dict[str, list[str]] = {}
    for column in tables[0].columns:
        if column in given:
            continue
        kind = _KINDS.get(tables[0][column].dtype.kind, "text")
        if why := identifier(column, kind, [frame[column] for frame in tables]):
            found.setdefault(why, []).append(column)
    return found


def _only_of_records(
    records: Mapping[str, pd.DataFrame], shared: Iterable[str], given: Mapping[str, Role]
) -> list[str]:
    """Identifiers that members and non-members have, and some other table has not."""
    members, others = records["members"], records["non_members"]
    left = [name for name in members.columns if name in others.columns and name not in shared and name not in given]
    parts = {name: [members[name], others[name]] for name in left if not _NAMELESS.fullmatch(name)}
    return [name for name, part in parts.items() if identifier(name, column_kind(part), part)]


def table_digest(frame: pd.DataFrame) -> str:
    """SHA-256 over column names and cells, in the order of rows and columns: which table was audited.

    Example:
        >>> table_digest(pd.DataFrame({"x": [1.0]})) == table_digest(pd.DataFrame({"x": [2.0]}))
        False
    """
    digest = hashlib.sha256("\0".join(map(str, frame.columns)).encode())
    digest.update(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes())
    return digest.hexdigest()


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
