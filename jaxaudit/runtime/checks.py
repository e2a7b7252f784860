"""One error type and one message shape for everything a user can get wrong.

Messages name the argument, the rule and the value: ``k must be in [1, 200], got 500``.
The command line turns an ``InputError`` into one line on stderr and exit status 2.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

__all__ = ["InputError", "check_choice", "check_finite", "check_int", "check_real", "require"]


class InputError(ValueError):
    """An argument or an input file breaks a rule; the message is one line meant for the user."""


def require(ok: bool, name: str, rule: str, value: Any) -> None:
    """Raise ``InputError("{name} must {rule}, got {value}")`` unless ``ok``.

    Example:
        >>> require(3 > 2, "k", "be above 2", 3)
    """
    if not ok:
        shown = value if isinstance(value, str) else repr(value)
        raise InputError(f"{name} must {rule}, got {shown}".replace("\n", " "))


def check_int(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return ``value`` as an ``int`` in ``[low, high]`` (``high=None``: unbounded), or raise.

    Example:
        >>> check_int("k", 5, 1, 10)
        5
    """
    require(isinstance(value, Integral) and not isinstance(value, bool), name, "be an integer", value)
    rule = f"be in [{low}, {high}]" if high is not None else f"be {low} or more"
    require(value >= low and (high is None or value <= high), name, rule, value)
    return int(value)


def check_real(
    name: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> float:
    """Return ``value`` as a finite ``float`` in the interval, or raise.

    Example:
        >>> check_real("ratio", 0.5, 0, 1, open_low=True, open_high=True)
        0.5
    """
    try:
        ok = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an int such as 10**400
        ok = False
    require(ok, name, "be a finite number", value)
    right = ")" if open_high or math.isinf(high) else "]"
    inside = (value > low or (value == low and not open_low)) and (value < high or (value == high and not open_high))
    require(inside, name, f"be in {'(' if open_low else '['}{low:g}, {high:g}{right}", value)
    return float(value)


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Return ``value`` if it is one of ``choices``, or raise.

    Example:
        >>> check_choice("rule", "bayes", ("bayes", "fixed_fpr"))
        'bayes'
    """
    require(isinstance(value, str) and value in choices, name, f"be one of {', '.join(sorted(choices))}", value)
    return str(value)


def check_finite(name: str, array: Any) -> None:
    """Raise unless every entry of the float array is finite; the message counts the bad entries."""
    import numpy as np

    bad = int(np.size(array) - np.isfinite(array).sum())
    require(bad == 0, name, "have only finite values", f"{bad} that are not")
