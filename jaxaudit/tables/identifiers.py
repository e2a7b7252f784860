"""Columns that number or name the rows: they say who a row is, not what it is like, and are left out.

A row number separates members from non-members where one table was cut into both, whatever the release
reveals, and it hides exact copies where the release numbers its rows anew. Decided from the reference and
the synthetic table, never from members, and without regard to the order of rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from jaxaudit.tables.columns import convert

__all__ = ["identifier"]

MIN_IDENTIFIER_LEVELS = 20
MAX_LEVELS = 1000
MAX_DISTINCT_SHARE = 0.5
"""A text column is an identifier with more than MAX_LEVELS levels in all, or where more than
MIN_IDENTIFIER_LEVELS levels make up more than MAX_DISTINCT_SHARE of its cells in reference or synthetic."""

MIN_DENSITY = 0.9
"""Whole numbers that never repeat number the rows where they fill at least this share of their range."""

_NAME = re.compile(r"(.*[\W_])?(id|uuid|guid|rowid)|row[\W_]?(number|no|index)|index|unnamed.*", re.IGNORECASE)
_CAMEL = re.compile(r".*[a-z](Id|ID)")

_TEXT = "Text columns that hardly repeat a value (identifiers?) are left out, look for copied values yourself"
_NUMBER = "Columns of whole numbers that never repeat and number the rows (identifiers) are left out"


def identifier(name: str, kind: str, parts: Sequence[pd.Series]) -> str | None:
    """Why a column is left out as an identifier; None where it is none.

    Args:
        name: of the column. Whole numbers without repeats are an identifier by name (``id``, ``person_id``,
            ``rowid``, ``index``, ...) or by density, in more than 20 cells of either table.
        kind: ``"number"``, ``"date"`` or ``"text"``.
        parts: the column of the reference, of the synthetic table, and of others that have a say.

    Returns:
        The beginning of a warning, the same for all columns of one sort.

    Example:
        >>> rows = pd.Series(range(100, 130))
        >>> identifier("n", "number", [rows, rows]) is None, identifier("n", "number", [rows**2, rows**2]) is None
        (False, True)
        >>> identifier("person_id", "number", [rows**2, rows**2]) is None
        False
    """
    if kind == "number":
        named = bool(_NAME.fullmatch(str(name)) or _CAMEL.fullmatch(str(name)))
        return _NUMBER if any(_numbers_rows(part, named) for part in parts) else None
    if kind == "text":
        observed = [convert(part, "text")[0].dropna() for part in parts]
        levels = [set(part.unique()) for part in observed]
        hardly_repeats = any(
            len(own) > max(MIN_IDENTIFIER_LEVELS, MAX_DISTINCT_SHARE * len(part))
            for own, part in zip(levels, observed, strict=True)
        )
        return _TEXT if hardly_repeats or len(set().union(*levels)) > MAX_LEVELS else None
    return None


def _numbers_rows(part: pd.Series, named: bool) -> bool:
    values = convert(part, "number")[0].dropna().to_numpy()
    if len(values) <= MIN_IDENTIFIER_LEVELS or (values != np.floor(values)).any():
        return False
    if len(np.unique(values)) < len(values):
        return False
    return named or len(values) >= MIN_DENSITY * (values.max() - values.min() + 1)
