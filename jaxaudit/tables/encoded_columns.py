"""One column of a mixed table as float64 columns: how its cells are encoded, and how that is fitted.

Numbers, true/false, dates and ordinal levels become one standardised column, text one column per level; the rules, and
the reasons for them, are those of ``standard`` in ``jaxaudit.tables.encode``, which puts the columns together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from jaxaudit.runtime.checks import require
from jaxaudit.tables.columns import convert
from jaxaudit.tables.layout import LEVEL_SCALE

__all__ = ["FARTHEST", "LevelColumn", "NumberColumn", "cell_numbers", "fit_levels", "fit_numbers"]

FARTHEST = 1e9
"""Standardised numbers are cut off here, so that squared distances stay finite in float32 as well."""


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers, true/false, dates or ordinal levels.

    Attributes:
        name: of the column.
        kind: ``"number"``, ``"date"`` or ``"ordinal"``.
        centre: what is subtracted; also stands in for missing cells, hence encoded as 0.
        scale: what is divided by, > 0; None where the value is constant and only its absence says something.
        indicator: whether a column "(missing)" follows.
        levels: of an ordinal column, from low to high.
    """

    name: str
    kind: str
    centre: float
    scale: float | None
    indicator: bool
    levels: tuple[str, ...] = ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded columns."""
        value = () if self.scale is None else (self.name,)
        return (*value, f"{self.name} (missing)") if self.indicator else value

    def numbers(self, column: pd.Series) -> np.ndarray:
        """The cells as numbers before scaling; float64 (n,), missing cells are NaN."""
        return cell_numbers(column, self.kind, self.levels)

    def encode(self, column: pd.Series) -> np.ndarray:
        """Encode n cells of any dtype; float64 (n, width)."""
        values = self.numbers(column)
        missing = np.isnan(values)
        parts = []
        if self.scale is not None:
            parts.append(np.where(missing, 0.0, np.clip(self._scaled(values), -FARTHEST, FARTHEST)))
        if self.indicator:
            parts.append(missing.astype(np.float64))
        return np.stack(parts, axis=1)

    def present(self, column: pd.Series) -> np.ndarray:
        """The numbers of the cells that are not missing; float64 (<= n,)."""
        values = self.numbers(column)
        return values[~np.isnan(values)]

    def beyond(self, column: pd.Series) -> int:
        """Cells that are cut off at ``FARTHEST``."""
        return 0 if self.scale is None else int((np.abs(self._scaled(self.numbers(column))) > FARTHEST).sum())

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return (values - self.centre) / (self.scale or 1.0)


@dataclass(frozen=True)
class LevelColumn:
    """A column of text, one encoded column per level.

    Attributes:
        name: of the column.
        levels: known levels, sorted.
        missing: whether a missing cell is a known level.
    """

    name: str
    levels: tuple[str, ...]
    missing: bool

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded columns."""
        names = tuple(f"{self.name}={level}" for level in self.levels)
        return (*names, f"{self.name} (missing)") if self.missing else names

    def positions(self, column: pd.Series) -> np.ndarray:
        """Index of each cell's level among the encoded columns, -1 for a level that is not known; (n,)."""
        found = convert(column, "text")[0].cat
        places = np.append(pd.Index(self.levels, dtype=object).get_indexer(found.categories), -1)
        absent = len(self.levels) if self.missing else -1
        return np.where(found.codes < 0, absent, places[found.codes.to_numpy()])

    def present(self, column: pd.Series) -> np.ndarray:
        """Positions of the cells that are not missing; (<= n,)."""
        positions = self.positions(column)
        return positions[positions < len(self.levels)]

    def encode(self, column: pd.Series) -> np.ndarray:
        """Encode n cells of any dtype; float64 (n, width); a level that is not known is a row of zeros."""
        positions = self.positions(column)
        return LEVEL_SCALE * (positions[:, None] == np.arange(len(self.feature_names)))


def cell_numbers(column: pd.Series, kind: str, levels: Sequence[str] = ()) -> np.ndarray:
    """Numbers, days since 1970, or ranks of levels, as float64 (n,); missing cells are NaN.

    Raises:
        InputError: a number is infinite.

    Example:
        >>> cell_numbers(pd.Series(["1970-01-02", None]), "date").tolist()
        [1.0, nan]
        >>> cell_numbers(pd.Series(["high", "low"]), "ordinal", ("low", "high")).tolist()
        [1.0, 0.0]
    """
    converted = convert(column, kind, levels)[0]
    if kind == "ordinal":
        ranks = converted.cat.codes.to_numpy().astype(np.float64)
        return np.where(ranks < 0, np.nan, ranks)
    if kind == "date":
        days = converted.to_numpy(dtype="datetime64[us]").astype(np.int64) / 86_400e6
        return np.where(converted.isna(), np.nan, days)
    values = converted.to_numpy(dtype=np.float64)
    infinite = int(np.isinf(values).sum())
    require(infinite == 0, f"column {column.name!r}", "have only finite numbers", f"{infinite} infinite")
    return values


def fit_numbers(
    name: str, kind: str, parts: Sequence[pd.Series], levels: tuple[str, ...] = ()
) -> NumberColumn | str:  # fmt: skip
    """Centre, scale and indicator of a column of numbers, or a sentence on why it is left out.

    Args:
        name: of the column.
        kind: ``"number"``, ``"date"`` or ``"ordinal"``.
        parts: the column in the reference and in the synthetic table.
        levels: of an ordinal column, from low to high.

    Raises:
        InputError: a number is infinite.

    Example:
        >>> column = fit_numbers("age", "number", (pd.Series([20.0, 40.0]), pd.Series([30.0, None])))
        >>> column.centre, round(column.scale, 3), column.feature_names
        (30.0, 14.142, ('age', 'age (missing)'))
    """
    # sorted: sums without an order of rows
    reference, synthetic = (np.sort(cell_numbers(part, kind, levels)) for part in parts)
    both = np.sort(np.concatenate([reference, synthetic]))
    if np.isnan(both).all():
        return "Columns without any value in reference and synthetic are left out"
    indicator = bool(np.isnan(both).any())
    if _moments(both)[1] == 0:
        if not indicator:
            return "Columns with one value in reference and synthetic are left out"
        return NumberColumn(name, kind, _moments(both)[0], None, True, levels)
    centre, scale = _moments(reference)
    if scale == 0:
        centre, scale = _moments(both)
    return NumberColumn(name, kind, centre, scale, indicator, levels)


def _moments(values: np.ndarray) -> tuple[float, float]:
    """Mean and sd (ddof 1) of the values present; sd 0 where they differ by rounding only, or are too few."""
    values = values[~np.isnan(values)]
    if not values.size:
        return 0.0, 0.0
    unit = float(np.abs(values).max()) or 1.0  # no overflow of squares
    middle = values[values.size // 2]
    shifted = values / unit - middle / unit  # no cancellation
    mean = float(middle + unit * shifted.mean())
    if shifted.max() - shifted.min() <= 1e-12:
        return mean, 0.0
    return mean, float(unit * shifted.std(ddof=1))


def fit_levels(name: str, parts: Sequence[pd.Series]) -> LevelColumn | str:
    """The levels of a column of text, or a sentence on why it is left out.

    Args:
        name: of the column.
        parts: the column in the reference and in the synthetic table.

    Example:
        >>> column = fit_levels("sex", (pd.Series(["f", None]), pd.Series(["m", "f"])))
        >>> column.feature_names
        ('sex=f', 'sex=m', 'sex (missing)')
        >>> column.positions(pd.Series(["m", None, "x"])).tolist()
        [1, 2, -1]
    """
    observed = [convert(part, "text")[0].dropna() for part in parts]
    levels = tuple(sorted({level for part in observed for level in part.unique()}))
    missing = any(len(part) < len(whole) for part, whole in zip(observed, parts, strict=True))
    if not levels:
        return "Columns without any value in reference and synthetic are left out"
    if len(levels) + missing == 1:
        return "Columns with one value in reference and synthetic are left out"
    return LevelColumn(name, levels, missing)
