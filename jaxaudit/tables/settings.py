"""Checks of settings that are lists, shared by the settings of attacks and sweeps."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from jaxaudit.runtime.checks import require

__all__ = ["as_list"]


def as_list(name: str, value: Any, *, empty: bool = False) -> tuple[Any, ...]:
    """A list of names or numbers, none of them twice, as a tuple; a name alone is no list.

    Args:
        name: of the setting.
        value: a list, tuple or array.
        empty: whether the list may be empty.

    Raises:
        InputError: no list, another kind of item, a repeated or no value.

    Example:
        >>> as_list("sensitivity.sizes", [0.25, 0.5])
        (0.25, 0.5)
    """
    listed = isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim > 0)
    require(listed, name, "be a list", value)
    require(all(isinstance(item, str | Real) for item in value), name, "hold names or numbers only", value)
    require(empty or len(value) > 0, name, "hold at least one value", "none")
    require(len(set(value)) == len(value), name, "hold each value once", list(value))
    return tuple(value)
