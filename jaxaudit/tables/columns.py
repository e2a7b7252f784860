"""What a column holds (numbers, dates, text, or levels in an order), decided jointly over tables, and its conversion.

One column may arrive as integers in one table, as floats with missing cells in a second and as
words in a third. A kind is therefore decided from the columns of several tables at once, and
every table is then converted to it:

========  ================================  ==============================================================
kind      stored as                         when
========  ================================  ==============================================================
number    float64, missing = NaN            every cell is a number or true/false (1/0), in any spelling
date      datetime64[us], UTC, missing NaT  every cell is an ISO 8601 date or date and time
text      category, missing = NaN           anything else, and whatever is declared as category
ordinal   ordered category, missing = NaN   an ordered pandas category, the same in all tables
========  ================================  ==============================================================

Integer columns are numbers, codes included: whether 1, 2, 3 are grades or nominal codes cannot be read
from the values, and a wrong guess in either direction changes every distance. Nominal codes are declared
by a role (``jaxaudit.tables.roles``), or by writing them as words or as a pandas category.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

__all__ = ["column_kind", "convert", "decimals", "mixed_logical", "ordered_levels", "round_numbers", "spelling"]

_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)", re.IGNORECASE | re.ASCII)
_PLAIN_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?", re.ASCII)
_LOGICAL = {"true": 1.0, "false": 0.0}


def _is_number(column: pd.Series) -> bool:
    return types.is_numeric_dtype(column.dtype) and not types.is_complex_dtype(column.dtype)


def _is_category(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.CategoricalDtype)


def spelling(value: Any) -> str:
    """One cell as text; a number has one spelling (1, "1", "1.0" are "1"), but codes such as "007" stay."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    text = str(float(value)) if isinstance(value, Real) else str(value).strip()
    if not _PLAIN_NUMBER.fullmatch(text):
        return text
    number = float(text) + 0.0  # no negative zero
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:.12g}"


def _texts(column: pd.Series) -> np.ndarray:
    """The cells as an object array of ``str``; missing and blank cells are None."""
    # Each level once. Not in object columns, in which 1 and True would be one level.
    if _is_category(column) or isinstance(column.dtype, pd.StringDtype):
        codes, found = pd.factorize(column)
        levels = _texts(pd.Series(found.astype(object), dtype=object))
        return np.array([*levels, None], dtype=object)[codes]
    cells = column.astype(object)
    return np.array(
        [None if absent else (spelling(cell) or None) for cell, absent in zip(cells, column.isna(), strict=True)],
        dtype=object,
    )


def _parse_number(text: str) -> float:
    if _NUMBER.fullmatch(text):
        return float(text)
    return _LOGICAL.get(text.lower(), np.nan)


def _parse_dates(texts: Sequence[str]) -> pd.DatetimeIndex:
    kept = [text if _DATE.fullmatch(text) else None for text in texts]
    dates = pd.to_datetime(pd.Series(kept, dtype=object), format="ISO8601", utc=True, errors="coerce")
    return pd.DatetimeIndex(dates).tz_localize(None).as_unit("us")


def column_kind(parts: Sequence[pd.Series]) -> str:
    """The kind of a column, from its appearance in one or several tables.

    Args:
        parts: the column of each table, any dtype. Missing cells have no say.

    Returns:
        ``"number"``, ``"date"``, ``"text"`` or ``"ordinal"``; ``"number"`` where every cell is missing.

    Example:
        >>> column_kind([pd.Series([1, 0]), pd.Series(["True", "False"])])
        'number'
        >>> column_kind([pd.Series(["2024-01-31"]), pd.Series(["2024-02-01 12:30"])])
        'date'
        >>> column_kind([pd.Series([1, 2]), pd.Series(["1", "?"])])
        'text'
    """
    found: set[str] = set()
    if ordered_levels(parts):
        return "ordinal"
    for part in parts:
        if _is_category(part):
            return "text"
        if part.isna().all():
            continue
        if _is_number(part) or types.is_timedelta64_dtype(part.dtype):
            found.add("number")
        elif types.is_datetime64_any_dtype(part.dtype):
            found.add("date")
        else:
            tokens = sorted({text for text in _texts(part) if text is not None})
            if not tokens:
                continue
            if all(not np.isnan(_parse_number(token)) for token in tokens):
                found.add("number")
            elif all(map(_DATE.fullmatch, tokens)) and not _parse_dates(tokens).hasnans:
                found.add("date")
            else:
                return "text"
    if len(found) > 1:
        return "text"
    return found.pop() if found else "number"


def ordered_levels(parts: Sequence[pd.Series]) -> tuple[str, ...]:
    """The levels, from low to high, where every part is an ordered category of the same levels; empty otherwise.

    Example:
        >>> grades = pd.Series(pd.Categorical(["mid"], categories=["low", "mid", "high"], ordered=True))
        >>> ordered_levels([grades, grades]), ordered_levels([grades, grades.astype(str)])
        (('low', 'mid', 'high'), ())
    """
    if not parts or not all(_is_category(part) and part.cat.ordered for part in parts):
        return ()
    found = {tuple(map(spelling, part.cat.categories)) for part in parts}
    return found.pop() if len(found) == 1 else ()


def mixed_logical(parts: Sequence[pd.Series]) -> bool:
    """Whether true/false is written in several ways, such as True in one table and 1 in the next."""
    tokens = {text for part in parts for text in _texts(part) if text is not None}
    words = {token.lower() for token in tokens}
    return words <= {*_LOGICAL, "0", "1"} and any(
        a != b and _parse_number(a) == _parse_number(b) for a in tokens for b in tokens
    )


def convert(column: pd.Series, kind: str, levels: Sequence[str] = ()) -> tuple[pd.Series, tuple[str, ...]]:
    """The column in the form of its kind, and the cells that could not be read so.

    Args:
        column: n cells of any dtype.
        kind: ``"number"``, ``"date"``, ``"text"`` or ``"ordinal"``.
        levels: of an ordinal column, from low to high.

    Returns:
        The column (n cells; float64, datetime64[us] or category), and the texts of the cells that are
        no number, no date or none of the levels: these are missing in the returned column.

    Example:
        >>> convert(pd.Series(["1.50", "True", "", "?"], name="x"), "number")
        (0    1.5
        1    1.0
        2    NaN
        3    NaN
        Name: x, dtype: float64, ('?',))
    """
    values: Any
    unreadable: tuple[str, ...] = ()
    if kind == "number" and _is_number(column):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    elif kind == "number" and types.is_timedelta64_dtype(column.dtype):
        values = pd.TimedeltaIndex(column).total_seconds().to_numpy() / 86400  # days
    elif kind == "date" and types.is_datetime64_any_dtype(column.dtype):
        values = pd.DatetimeIndex(pd.to_datetime(column, utc=True)).tz_localize(None).as_unit("us")
    else:
        texts = _texts(column)
        if kind == "text":
            found = sorted({text for text in texts if text is not None})
            values = pd.Categorical(texts, categories=pd.Index(found, dtype=object))
        elif kind == "ordinal":
            order = pd.Index(list(levels), dtype="object")
            places = order.get_indexer(pd.Index(texts, dtype="object"))
            values = pd.Categorical.from_codes(places, order, ordered=True)
            unreadable = _lost(texts, places < 0)
        elif kind == "number":
            values = np.array([np.nan if text is None else _parse_number(text) for text in texts])
            unreadable = _lost(texts, np.isnan(values))
        else:
            values = _parse_dates(["" if text is None else text for text in texts])
            unreadable = _lost(texts, np.asarray(values.isna()))
    return pd.Series(values, name=column.name), unreadable


def _lost(texts: np.ndarray, absent: np.ndarray) -> tuple[str, ...]:
    return tuple(text for text, gone in zip(texts, absent, strict=True) if gone and text is not None)


def round_numbers(values: np.ndarray) -> np.ndarray:
    """Numbers as they are compared for equality: 6 significant digits below a million, 9 above.

    Tables of one release are often printed with different precision; equal records should still be found.

    Example:
        >>> round_numbers(np.array([0.12345678, 1234567.8, -0.0])).tolist()
        [0.123457, 1234567.8, 0.0]
    """
    values = np.asarray(values, dtype=np.float64)
    size = np.abs(values)
    ordinary = (size > 1e-280) & (size < 1e280)  # elsewhere the powers below would over- or underflow
    magnitude = np.floor(np.log10(np.where(ordinary, size, 1.0)))
    factor = 10.0 ** (np.where(size < 1e6, 5, 8) - magnitude)
    with np.errstate(over="ignore"):
        return np.where(ordinary, np.round(values * factor) / factor, values) + 0.0


def decimals(values: np.ndarray, most: int = 6) -> int | None:
    """The fewest decimals, at most ``most``, that print every number without loss; None where more are needed.

    Example:
        >>> decimals(np.array([0.5, 1.25, np.nan])), decimals(np.array([1 / 3]))
        (2, None)
    """
    values = values[np.isfinite(values)]
    for places in range(most + 1):
        scaled = values * 10.0**places
        if np.all(np.abs(scaled - np.rint(scaled)) <= 1e-9 * np.maximum(1.0, np.abs(scaled))):
            return places
    return None
