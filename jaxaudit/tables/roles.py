"""Roles of columns: what a person says a column is, where the inference from its cells would say otherwise.

===========  ====================================================================================================
role         what it means
===========  ====================================================================================================
numeric      a number (true/false: 1/0), standardised; never taken for a row number
categorical  one encoded column per level, whole numbers included; never taken for an identifier
ordinal      the rank 0, 1, ... of its level, standardised like a number: neighbouring levels are equally far apart.
             The order is a list of all levels, from low to high, or else that of the values (numbers by size)
datetime     ISO 8601 dates or times, in days, standardised
id           says who a row is: kept out of the attacks
drop         left out of everything, as ``release.drop`` does
===========  ====================================================================================================

A role is checked on the reference and the synthetic table, which every cell has to fit; cells of members and
non-members that do not fit count as missing, with a warning, as they do for an inferred role.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxaudit.runtime.checks import InputError, require
from jaxaudit.tables.columns import convert, ordered_levels, spelling
from jaxaudit.tables.read import listed

__all__ = ["KEPT", "ROLES", "Role", "Roles", "check_roles", "inferred_role", "settle"]

Roles = Mapping[str, Any] | str | os.PathLike[str]
"""Column -> role; or a JSON file with such an object."""

ROLES = ("numeric", "categorical", "ordinal", "datetime", "id", "drop")
"""Names of the roles."""

KEPT = ROLES[:4]
"""Roles of columns that take part in the attacks."""

_KINDS = {"numeric": "number", "categorical": "text", "ordinal": "ordinal", "datetime": "date"}
_TAKES = {"numeric": "of numbers", "datetime": "of ISO 8601 dates", "ordinal": "whose levels are all in the list"}


@dataclass(frozen=True)
class Role:
    """What a column is taken for.

    Attributes:
        name: one of ``ROLES``.
        given: whether a person said so; otherwise it was inferred.
        order: levels of an ordinal column, from low to high; empty where the values decide, and for other roles.
    """

    name: str
    given: bool = True
    order: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a result: ``role``, ``given``, and ``order`` of an ordinal column.

        Example:
            >>> Role("numeric").as_dict()
            {'role': 'numeric', 'given': True}
        """
        return {"role": self.name, "given": self.given} | ({"order": list(self.order)} if self.order else {})


def check_roles(roles: Roles | None, known: Iterable[str]) -> dict[str, Role]:
    """Roles by column, checked.

    Args:
        roles: column -> name of a role, a list of the levels of an ordinal column, or a ``Role``; or a JSON file with
            such an object; None: no roles.
        known: names of the columns that may have one.

    Raises:
        InputError: no mapping, a file that cannot be read as one, an unknown column, an unknown role, an order of
            fewer than two levels or with repeats.

    Example:
        >>> check_roles({"grade": ["low", "high"]}, ["grade"])
        {'grade': Role(name='ordinal', given=True, order=('low', 'high'))}
    """
    given = _read(Path(roles)) if isinstance(roles, str | os.PathLike) else {} if roles is None else roles
    require(isinstance(given, Mapping), "release.roles", "map columns to roles", type(given).__name__)
    found = {str(column).strip(): _role(str(column).strip(), value) for column, value in given.items()}
    unknown = sorted(set(found) - set(known))
    require(not unknown, "release.roles", "name columns of the tables that are not dropped", listed(unknown))
    return found


def _read(path: Path) -> Any:
    rule = "release.roles must be a mapping or a JSON file"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{rule}, cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{rule}, cannot read {path}: {error}") from None


def _role(column: str, value: Any) -> Role:
    name = f"release.roles[{column!r}]"
    if isinstance(value, Role):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        order = tuple(spelling(level) for level in value)
        distinct = len(order) > 1 and len(set(order)) == len(order) and all(order)
        require(distinct, name, "list two or more distinct levels, from low to high", repr(list(value)))
        return Role("ordinal", order=order)
    known = isinstance(value, str) and value in ROLES
    require(known, name, f"be one of {', '.join(ROLES)}, or a list of levels", value)
    return Role(value)


def settle(column: str, role: Role, parts: Mapping[str, pd.Series]) -> tuple[str, tuple[str, ...]]:
    """The kind of a column with a role, and the levels of an ordinal one.

    Args:
        column: its name.
        role: neither ``id`` nor ``drop``.
        parts: the column of the tables that decide (reference and synthetic), by the name of the table.

    Returns:
        A kind for ``jaxaudit.tables.columns.convert``, and levels from low to high (empty for other kinds).

    Raises:
        InputError: a cell that the role cannot have.

    Example:
        >>> settle("size", Role("ordinal"), {"reference": pd.Series(["10", "9"]), "synthetic": pd.Series([9])})
        ('ordinal', ('9', '10'))
        >>> settle("age", Role("numeric"), {"synthetic": pd.Series(["old"])})
        Traceback (most recent call last):
        jaxaudit.runtime.checks.InputError: release.roles['age'] must be numeric only for a column of numbers, \
got 'old' in release.synthetic
    """
    kind = _KINDS[role.name]
    levels = role.order
    if kind == "ordinal" and not levels:
        levels = ordered_levels(list(parts.values())) or _sorted_levels(parts.values())
        require(bool(levels), f"release.roles[{column!r}]", "be ordinal only for a column with values", "none")
    for table, part in parts.items():
        lost = convert(part, kind, levels)[1]
        if lost:
            rule = f"be {role.name} only for a column {_TAKES[role.name]}"
            raise InputError(f"release.roles[{column!r}] must {rule}, got {lost[0]!r} in release.{table}")
    return kind, levels


def _sorted_levels(parts: Collection[pd.Series]) -> tuple[str, ...]:
    levels = sorted({level for part in parts for level in convert(part, "text")[0].cat.categories})
    numbers = convert(pd.Series(levels, dtype=object), "number")[0].to_numpy()
    if not np.isnan(numbers).any():
        levels = [levels[place] for place in np.argsort(numbers, kind="stable")]
    return tuple(levels)


def inferred_role(column: pd.Series) -> Role:
    """The role of a reconciled column, from its dtype.

    Example:
        >>> inferred_role(pd.Series([1.0])).name, inferred_role(pd.Series(["a"], dtype="category")).name
        ('numeric', 'categorical')
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        if column.cat.ordered:
            return Role("ordinal", given=False, order=tuple(column.cat.categories))
        return Role("categorical", given=False)
    return Role({"f": "numeric", "M": "datetime"}[column.dtype.kind], given=False)
