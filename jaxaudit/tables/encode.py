"""From mixed tables to float64 rows in which distances and densities make sense.

The encoder is fitted on the reference and the synthetic table only. Roles and levels come from both,
so that every released value has its place; centres and scales come from the reference alone, so that the
yardstick is the population's and a release cannot stretch the one it is measured with. A role given to a column
(``jaxaudit.tables.roles``) overrules what its cells suggest.

``standard``
    Numbers, true/false, dates (in days) and ordinal levels (as ranks 0, 1, ...): (x - mean) / sd of the reference, sd
    with ddof 1, so that standardised reference columns have variance one in the covariance of the density attacks too.
    A column with one value in the reference but not in the synthetic table takes both from the two tables together.
    Missing cells take the mean, and a 0/1 column "(missing)" is added where reference or synthetic lack any.
    Text: one column per level, missing being a level of its own, 0 or 1/sqrt(2): two different levels are
    at distance 1, one standard deviation of a number. Levels are not standardised, for then a rare level
    alone would decide who is a neighbour of whom.
``raw``
    The numbers as they are, for tables of numbers without missing cells; only identifiers are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from jaxaudit.runtime.checks import InputError, check_choice, require
from jaxaudit.tables.columns import column_kind, ordered_levels
from jaxaudit.tables.encoded_columns import FARTHEST, LevelColumn, NumberColumn, cell_numbers, fit_levels, fit_numbers
from jaxaudit.tables.identifiers import identifier
from jaxaudit.tables.layout import LEVEL_SCALE, Layout
from jaxaudit.tables.roles import KEPT, Role, check_roles, settle

__all__ = ["FARTHEST", "LEVEL_SCALE", "Encoder", "LevelColumn", "NumberColumn", "fit_encoder"]

EncodedColumn = NumberColumn | LevelColumn


@dataclass(frozen=True)
class Encoder:
    """A fitted encoding of table rows as float64 vectors; made by ``fit_encoder``.

    Attributes:
        encoding: ``"standard"`` or ``"raw"``.
        columns: the encoded columns of the table, in the order of the reference.
        warnings: one sentence for each kind of column that was left out.
        unshared: sentences on columns without a value in one of the two tables, and on levels of the release alone.
    """

    encoding: str
    columns: tuple[EncodedColumn, ...]
    warnings: tuple[str, ...]
    unshared: tuple[str, ...] = ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the d encoded columns."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def layout(self) -> Layout:
        """Which of the d encoded columns are numbers, and which belong to one categorical column.

        True/false, dates and ordinal ranks are numbers; a column "(missing)" of a number is a category of two levels.

        Example:
            >>> table = pd.DataFrame({"age": [20, 40, None], "sex": ["f", "m", "f"]})
            >>> fit_encoder(table, table).layout
            Layout(numeric=(0,), blocks=((1,), (2, 3)))
        """
        numeric: list[int] = []
        blocks: list[tuple[int, ...]] = []
        start = 0
        for column in self.columns:
            places = tuple(range(start, start + len(column.feature_names)))
            start += len(places)
            if isinstance(column, LevelColumn):
                blocks.append(places)
            else:
                value = len(places) - column.indicator
                numeric.extend(places[:value])
                blocks.extend((place,) for place in places[value:])
        return Layout(tuple(numeric), tuple(blocks))

    def transform(self, frame: pd.DataFrame) -> np.ndarray:
        """Encode a table; each row by itself.

        Args:
            frame: n rows with (at least) the fitted columns, matched by name.

        Returns:
            float64 array (n, d), finite, d = ``len(feature_names)``.

        Raises:
            InputError: a column is missing, a number is infinite, or a cell is missing under ``raw``.
        """
        for column in self.columns:
            require(column.name in frame.columns, "the table", f"have the column {column.name!r}", "none of that name")
        if self.encoding == "standard":
            return np.concatenate([column.encode(frame[column.name]) for column in self.columns], axis=1)
        values = [cell_numbers(frame[column.name], "number") for column in self.columns]
        for column, part in zip(self.columns, values, strict=True):
            _require_standard(bool(np.isnan(part).any()), f"missing cells in column {column.name!r}")
        return np.stack(values, axis=1)

    def unseen(self, frame: pd.DataFrame) -> dict[str, int]:
        """Cells whose level occurs neither in the reference nor in the synthetic table, by column, if any."""
        counts = {
            c.name: int((c.positions(frame[c.name]) < 0).sum()) for c in self.columns if isinstance(c, LevelColumn)
        }
        return {name: count for name, count in counts.items() if count}

    def imputed(self, frame: pd.DataFrame) -> dict[str, int]:
        """Missing cells that take the mean and leave no trace (reference and synthetic lack none), by column."""
        columns = [c for c in self.columns if isinstance(c, NumberColumn) and not c.indicator]
        counts = {c.name: int(np.isnan(c.numbers(frame[c.name])).sum()) for c in columns}
        return {name: count for name, count in counts.items() if count}

    def cut(self, frame: pd.DataFrame) -> dict[str, int]:
        """Cells beyond ``FARTHEST`` standard deviations of the reference, which are cut off there, by column."""
        if self.encoding == "raw":
            return {}
        counts = {c.name: c.beyond(frame[c.name]) for c in self.columns if isinstance(c, NumberColumn)}
        return {name: count for name, count in counts.items() if count}

    def notes(self, frame: pd.DataFrame, name: str) -> tuple[str, ...]:
        """Warnings on unseen levels, imputed cells and numbers that are cut off in a table called ``name``, if any."""
        rows = len(frame)
        found = {
            f"Levels in {name} that neither reference nor synthetic have are encoded as zeros": self.unseen(frame),
            f"Missing cells in {name} take the mean of the column, in which neither reference nor synthetic lack "
            "any: attacks may tell such records apart by that alone": self.imputed(frame),
            f"Numbers in {name} farther than {FARTHEST:g} standard deviations from the reference's mean are cut off "
            "there (are they in other units?)": self.cut(frame),
        }
        return tuple(
            f"{what}: " + ", ".join(f"{c!r} ({_share(n, rows)})" for c, n in counts.items()) + "."
            for what, counts in found.items()
            if counts
        )


def fit_encoder(
    reference: pd.DataFrame,
    synthetic: pd.DataFrame,
    encoding: str = "standard",
    roles: Mapping[str, Any] | None = None,
) -> Encoder:
    """Choose a role for every column and fit its encoding; the order of rows has no influence.

    Identifiers (``jaxaudit.tables.identifiers``) are left out with a warning, and so are constant columns and
    columns without any value under ``standard``.

    Args:
        reference: independent records, >= 1 row.
        synthetic: the released table, with the columns of the reference.
        encoding: ``"standard"`` or ``"raw"``, see the module.
        roles: column -> role or list of levels, see ``jaxaudit.tables.roles``; ``Release.roles`` is one. Columns with
            the role ``id`` or ``drop`` are left out, and need not be there.

    Returns:
        The encoder.

    Raises:
        InputError: unknown encoding, column or role; a role that the column cannot have; ``raw`` with text, dates,
            ordinal levels or missing cells; no column left.

    Example:
        >>> reference = pd.DataFrame({"age": [20, 40, None], "sex": ["f", "m", "f"]})
        >>> synthetic = pd.DataFrame({"age": [30, 31], "sex": ["m", "f"]})
        >>> encoder = fit_encoder(reference, synthetic)
        >>> encoder.feature_names
        ('age', 'age (missing)', 'sex=f', 'sex=m')
        >>> encoder.transform(pd.DataFrame({"age": [30.0], "sex": ["x"]})).tolist()
        [[0.0, 0.0, 0.0, 0.0]]
    """
    check_choice("release.encoding", encoding, ("standard", "raw"))
    columns: list[EncodedColumn] = []
    left_out: dict[str, list[str]] = {}
    given = check_roles(roles, {*reference.columns, *_absent(roles)})
    for name in reference.columns:
        role = given.get(name)
        if role and role.name not in KEPT:
            continue
        require(name in synthetic.columns, "release.synthetic", f"have the column {name!r}", "none of that name")
        parts = (reference[name], synthetic[name])
        fitted = _fit_column(name, role, encoding, parts)
        if isinstance(fitted, str):
            left_out.setdefault(fitted, []).append(repr(str(name)))
        else:
            columns.append(fitted)
    require(
        bool(columns), "release.reference", "have a column that can be encoded", "constant or identifying ones only"
    )
    warnings = tuple(f"{why}: {', '.join(names)}." for why, names in left_out.items())
    return Encoder(encoding, tuple(columns), warnings, _unshared(columns, reference, synthetic))


def _fit_column(
    name: str, role: Role | None, encoding: str, parts: tuple[pd.Series, pd.Series]
) -> EncodedColumn | str:  # fmt: skip
    """The fitted column, or why it is left out; ``parts`` are the column in reference and synthetic."""
    if role:
        kind, levels = settle(name, role, {"reference": parts[0], "synthetic": parts[1]})
    else:
        kind, levels = column_kind(parts), ordered_levels(parts)
        if why := identifier(name, kind, parts):
            return why
    if encoding == "raw":
        _require_standard(kind != "number", f"the {kind} column {name!r}")
        _require_standard(any(part.isna().any() for part in parts), f"missing cells in column {name!r}")
        return NumberColumn(name, kind, 0.0, 1.0, False)
    return fit_levels(name, parts) if kind == "text" else fit_numbers(name, kind, parts, levels)


def _unshared(columns: Sequence[EncodedColumn], reference: pd.DataFrame, synthetic: pd.DataFrame) -> tuple[str, ...]:
    """Warnings on columns without a value in one of the tables, and on levels that only the release has."""
    absent: dict[str, list[str]] = {"synthetic": [], "reference": []}
    invented = []
    for column in columns:
        known, released = (column.present(frame[column.name]) for frame in (reference, synthetic))
        for name, part in (("synthetic", released), ("reference", known)):
            if not part.size:
                absent[name].append(repr(str(column.name)))
        if isinstance(column, LevelColumn) and known.size:
            new = released[~np.isin(released, known)]
            if new.size:
                levels = f"{np.unique(new).size} level" + "s" * (np.unique(new).size > 1)
                invented.append(f"{str(column.name)!r} ({levels}, {_share(new.size, len(synthetic))} of the rows)")
    found = [
        f"Columns without any value in {name}, whose cells are all missing: {', '.join(names)}."
        for name, names in absent.items()
        if names
    ]
    if invented:
        found.append(f"Levels that synthetic has and reference has not: {', '.join(invented)}.")
    return tuple(found)


def _share(count: int, rows: int) -> str:
    """A count as ``"3 of 40, 7.5 %"``."""
    percent = 100 * count / rows
    return f"{count} of {rows}, {percent:{'.2g' if percent < 99.5 else '.4g'}} %"


def _absent(roles: Mapping[str, Any] | None) -> list[str]:
    """Columns that are left out by their role."""
    given = roles if isinstance(roles, Mapping) else {}
    names = {name: role.name if isinstance(role, Role) else role for name, role in given.items()}
    return [name for name, role in names.items() if role in ("id", "drop")]


def _require_standard(unfit: bool, because: str) -> None:
    if unfit:
        raise InputError(f"release.encoding must be standard for a table with {because}, got raw")
