"""Rows that tables share: duplicates, records in two tables, exact copies in the release; and AUCs without them.

Rows are equal when they agree in every column that varies over reference and synthetic, after rounding numbers to
6 significant digits below a million and 9 above. Where the synthetic table prints a column with fewer decimals than the
other tables have, rows are compared with synthetic rows at those decimals: a copy may be printed shorter, and the
number of non-members that match by chance stands beside.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from jaxaudit.evaluate.roc import auc, auc_interval, validate
from jaxaudit.runtime.checks import require
from jaxaudit.tables.columns import decimals, round_numbers

if TYPE_CHECKING:
    from jaxaudit.tables.data import Release

__all__ = ["MEANING", "auc_without", "count_overlaps", "in_release", "overlap_masks"]

MEANING = {
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
"""Counts of rows, and what each says."""

_ENOUGH = 20
"""Numbers that the synthetic table must show in a column before their decimals count as its way of printing."""

Tables = Mapping[str, pd.DataFrame]


def count_overlaps(tables: Tables) -> tuple[dict[str, int], tuple[str, ...]]:
    """Counts of shared rows, of constant and of repeated columns; and warnings about columns.

    Args:
        tables: members, non_members, synthetic and reference, reconciled.

    Returns:
        ``duplicates_T`` = rows of T that repeat an earlier row; ``A_in_B`` = rows of A that also occur in B;
        ``constant_columns`` = columns with one value over all tables; ``repeated_columns`` = columns that equal an
        earlier one in every row. Warnings of one sentence each.
    """
    printed = _printed(tables)
    ids = _row_ids(tables)
    coarse = _row_ids(tables, printed) if printed else ids
    constant, repeated = _odd_columns(tables)
    counts = {"constant_columns": constant, "repeated_columns": len(repeated)}
    for name in MEANING:
        if name.startswith("duplicates_"):
            table = ids[name.removeprefix("duplicates_")]
            counts[name] = int(len(table) - len(np.unique(table)))
        else:
            inner, outer = name.split("_in_")
            by = coarse if "synthetic" in (inner, outer) else ids
            counts[name] = int(np.isin(by[inner], by[outer]).sum())
    notes = []
    if repeated:
        pairs = ", ".join(f"{name!r} ({first!r})" for name, first in repeated.items())
        notes.append(f"Columns that repeat an earlier one count twice in distances: {pairs}.")
    if printed:
        columns = ", ".join(f"{name!r} ({places})" for name, places in printed.items())
        notes.append(
            "The synthetic table prints columns with fewer decimals than the others have; "
            f"exact copies are looked for at those: {columns}."
        )
    return counts, tuple(notes)


def overlap_masks(release: Release) -> dict[str, np.ndarray]:
    """Which scored records are shared, so that an audit can show its results without them.

    Args:
        release: the tables.

    Returns:
        Boolean arrays over members, then non-members (the order of scores): ``in_reference``: the record occurs in
        the reference; ``in_other_class``: a member that is also a non-member, or the reverse; ``in_synthetic``: the
        release has an exact copy; ``any``: one of these.

    Example:
        >>> from jaxaudit.tables.data import load_release
        >>> rows = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0]})
        >>> masks = overlap_masks(load_release(rows[:2], rows[1:3], rows[:1], reference=rows[2:]))
        >>> for name, mask in masks.items():
        ...     print(name, mask.astype(int).tolist())
        in_reference [0, 0, 0, 1]
        in_other_class [0, 1, 1, 0]
        in_synthetic [1, 0, 0, 0]
        any [1, 1, 1, 1]
    """
    ids = _row_ids(release.tables())
    scored = np.concatenate([ids["members"], ids["non_members"]])
    masks = {
        "in_reference": np.isin(scored, ids["reference"]),
        "in_other_class": np.isin(scored, np.intersect1d(ids["members"], ids["non_members"])),
        "in_synthetic": in_release(release)[0],
    }
    return masks | {"any": np.any(list(masks.values()), axis=0)}


def in_release(release: Release) -> tuple[np.ndarray, np.ndarray]:
    """Which scored records (members, then non-members) and which reference rows the release repeats exactly.

    Numbers are compared at the decimals that the release prints, so that a copy which was only written shorter counts.

    Example:
        >>> from jaxaudit.tables.data import load_release
        >>> rows = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0]})
        >>> [mask.astype(int).tolist() for mask in in_release(load_release(rows[:2], rows[2:3], rows[:1], rows[3:]))]
        [[1, 0, 0], [0]]
    """
    tables = release.tables()
    ids = _row_ids(tables, _printed(tables))
    targets = np.concatenate([ids["members"], ids["non_members"]])
    return np.isin(targets, ids["synthetic"]), np.isin(ids["reference"], ids["synthetic"])


def auc_without(
    scores: Any, member: Any, masks: Mapping[str, np.ndarray], level: float = 0.95
) -> dict[str, dict[str, Any]]:
    """The AUC of one attack without the records of each mask.

    Args:
        scores: (n,) finite real numbers.
        member: (n,) of 0/1 or booleans.
        masks: name -> (n,) bool, from ``overlap_masks``.
        level: coverage of the intervals, in (0, 1).

    Returns:
        For every mask with a record: ``left_out_members``, ``left_out_non_members``, ``auc`` and ``auc_ci``
        (DeLong) of the others; both None where a class has no record left.

    Raises:
        InputError: see ``evaluate.roc.validate``; a mask of another shape or type.

    Example:
        >>> found = auc_without([1, 2, 3, 4], [0, 1, 0, 1], {"any": np.array([True, False, False, False])})
        >>> found["any"]["left_out_non_members"], found["any"]["auc"]
        (1, 0.5)
    """
    values, labels = validate(scores, member)
    found = {}
    for name, mask in masks.items():
        mask = np.asarray(mask)
        right = mask.dtype == bool and mask.shape == labels.shape
        require(right, f"masks[{name!r}]", f"be {labels.size} booleans", f"{mask.dtype} of shape {mask.shape}")
        if not mask.any():
            continue
        left = labels[~mask]
        both = bool(left.any() and not left.all())
        found[name] = {
            "left_out_members": int((mask & labels).sum()),
            "left_out_non_members": int((mask & ~labels).sum()),
            "auc": auc(values[~mask], left) if both else None,
            "auc_ci": list(auc_interval(values[~mask], left, level=level)) if both else None,
        }
    return found


def _row_ids(tables: Tables, printed: Mapping[str, int] = {}) -> dict[str, np.ndarray]:
    """One number per distinct row, by table; numbers of the columns in ``printed`` at so many decimals."""
    ends = np.cumsum([0, *map(len, tables.values())])
    where = {name: slice(start, end) for name, (start, end) in zip(tables, itertools.pairwise(ends), strict=True)}
    ids = np.zeros(ends[-1], dtype=np.int64)
    for column in tables["members"].columns:
        codes = pd.factorize(_comparable(tables, column, printed.get(column)))[0]
        judged = np.concatenate([codes[where["reference"]], codes[where["synthetic"]]])
        if judged.min() < judged.max():  # no attack sees the column otherwise
            ids = pd.factorize(ids * (codes.max() + 2) + codes + 1)[0]  # one id per distinct row so far
    return {name: ids[part] for name, part in where.items()}


def _comparable(tables: Tables, column: str, places: int | None = None) -> Any:
    """The cells of a column in all tables, in a form in which equal ones are equal."""
    values = pd.concat([frame[column] for frame in tables.values()], ignore_index=True)  # categories are shared
    if values.dtype != np.float64:
        return values
    numbers = values.to_numpy()
    return round_numbers(numbers if places is None else np.round(numbers, places))


def _printed(tables: Tables) -> dict[str, int]:
    """Decimals of the synthetic table by column, where it has fewer than the other tables together."""
    found = {}
    for column in tables["synthetic"].columns:
        released = tables["synthetic"][column]
        if released.dtype != np.float64 or released.notna().sum() < _ENOUGH:
            continue
        places = decimals(released.to_numpy())
        others = [decimals(frame[column].to_numpy()) for name, frame in tables.items() if name != "synthetic"]
        if places is not None and any(other is None or other > places for other in others):
            found[column] = places
    return found


def _odd_columns(tables: Tables) -> tuple[int, dict[str, str]]:
    """The number of columns with one value, and the columns that repeat an earlier one, with its name."""
    constant = 0
    first: dict[bytes, str] = {}
    repeated: dict[str, str] = {}
    for column in tables["members"].columns:
        codes, values = pd.factorize(_comparable(tables, column))
        if codes.min() == codes.max():
            constant += 1
            continue
        key = _digest(codes, values)
        if key in first:
            repeated[column] = first[key]
        first.setdefault(key, column)
    return constant, repeated


def _digest(codes: np.ndarray, values: Any) -> bytes:
    """The same for columns of equal cells only: where which distinct value occurs, and the values."""
    seen = values.tobytes() if isinstance(values, np.ndarray) else "\0".join(map(str, values)).encode()
    return hashlib.blake2b(codes.tobytes() + seen).digest()
