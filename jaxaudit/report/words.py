"""Words and numbers of a report: formatting, and the plain blocks a page is built of.

Blocks hold plain text only; the template escapes every one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from jaxaudit.report.canvas import Picture

__all__ = [
    "Card",
    "Items",
    "Page",
    "Section",
    "Table",
    "Text",
    "beside",
    "branch",
    "count",
    "ends",
    "factor",
    "flatten",
    "get",
    "interval",
    "number",
    "p_value",
    "percent",
    "short",
]

MISSING = "–"
_LISTED = 20


@dataclass(frozen=True)
class Text:
    """A paragraph; ``kind`` is "plain", "note" (set apart) or "code"."""

    text: str
    kind: str = "plain"


@dataclass(frozen=True)
class Items:
    """A bulleted list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table of ready-made cells; the first ``left`` columns are text, the others right-aligned numbers."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: tuple[Text | Items | Table | Picture, ...]


@dataclass(frozen=True)
class Card:
    """One of the numbers that matter."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Page:
    """A whole report; ``tone`` is "leak", "quiet" or "unknown"."""

    title: str
    subtitle: str
    tone: str
    verdict: str
    explanation: str
    cards: tuple[Card, ...]
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]


def get(tree: Any, *path: str) -> float:
    """The number at a path of nested mappings, NaN where there is none that a float can hold.

    Example:
        >>> get({"a": {"0.1": 3}}, "a", "0.1"), get({}, "a"), get({"a": 10**400}, "a")
        (3.0, nan, nan)
    """
    for name in path:
        if not isinstance(tree, Mapping) or name not in tree:
            return math.nan
        tree = tree[name]
    try:
        return float(tree) if isinstance(tree, Real) and not isinstance(tree, bool) else math.nan
    except OverflowError:
        return math.nan


def branch(tree: Any, *path: str) -> Mapping[str, Any]:
    """The mapping at a path of nested mappings, an empty one where there is none.

    Example:
        >>> branch({"a": {"b": {"c": 1}}}, "a", "b"), branch({"a": None}, "a", "b")
        ({'c': 1}, {})
    """
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree if isinstance(tree, Mapping) else {}


def number(value: float, digits: int = 3) -> str:
    """A number with fixed decimals, "–" for NaN.

    Example:
        >>> number(0.81437), number(float("nan")), number(float("-inf"), 2), number(-0.0001)
        ('0.814', '–', '−∞', '0.000')
    """
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−")


def count(value: float) -> str:
    """A whole number with thousands separated, "–" for NaN.

    Example:
        >>> count(1797), count(float("nan"))
        ('1,797', '–')
    """
    value = float(value)
    return number(value, 0)


def percent(share: float, digits: int = 0) -> str:
    """A share as a percentage.

    Example:
        >>> percent(0.345), percent(float("nan"))
        ('34 %', '–')
    """
    return MISSING if math.isnan(share) else f"{number(100 * share, digits)} %"


def ends(pair: Any) -> tuple[float, float]:
    """Low and high end of an interval, NaN where there is none.

    Example:
        >>> ends([0.5, 1]), ends(None), ends("ab")
        ((0.5, 1.0), (nan, nan), (nan, nan))
    """
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        return math.nan, math.nan
    return get({"v": pair[0]}, "v"), get({"v": pair[1]}, "v")


def interval(pair: Any, digits: int = 3) -> str:
    """An interval as "[low, high]", "" where there is none.

    Example:
        >>> interval([0.5, 0.75], 2), interval(None)
        ('[0.50, 0.75]', '')
    """
    low, high = ends(pair)
    return "" if math.isnan(low) and math.isnan(high) else f"[{number(low, digits)}, {number(high, digits)}]"


def beside(value: float, pair: Any, digits: int = 3) -> str:
    r"""A number with its interval below it.

    Example:
        >>> beside(0.8, [0.75, 0.85], 2), beside(0.8, None, 1)
        ('0.80\n[0.75, 0.85]', '0.8')
    """
    return f"{number(value, digits)}\n{interval(pair, digits)}".rstrip()


def factor(log_ratio: float) -> str:
    """The factor exp(x) by which odds move.

    Example:
        >>> factor(0.0), factor(math.log(12.34)), factor(50.0), factor(math.inf)
        ('×1.00', '×12.3', '> ×1,000,000', '×∞')
    """
    if math.isnan(log_ratio):
        return MISSING
    if log_ratio > math.log(1e6):
        return "×∞" if math.isinf(log_ratio) else "> ×1,000,000"
    value = math.exp(log_ratio)
    return f"×{value:,.0f}" if value >= 99.5 else f"×{value:.3g}" if value >= 9.95 else f"×{value:.2f}"


def p_value(p: float) -> str:
    """A p-value with two significant digits.

    Example:
        >>> p_value(0.0001), p_value(0.0467), p_value(1.0)
        ('0.0001', '0.047', '1.00')
    """
    if math.isnan(p):
        return MISSING
    return f"{p:.2f}" if p >= 0.1 else f"{p:.3f}" if p >= 0.01 else f"{p:.4f}" if p >= 1e-4 else f"{p:.1e}"


def short(text: Any, length: int = 40) -> str:
    r"""One line of at most ``length`` printable characters.

    Example:
        >>> short("a\nb" + "c" * 9, 8)
        'a bcccc…'
    """
    line = "".join(c if c.isprintable() else " " for c in str(text))
    return line if len(line) <= length else line[: length - 1] + "…"


def flatten(tree: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    """Nested settings as dotted names and plain values.

    Example:
        >>> list(flatten({"train": {"epochs": 200}, "k": [1, 2], "x": None}))
        [('train.epochs', '200'), ('k', '1, 2'), ('x', '–')]
    """
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from flatten(value, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(tree, list | tuple):
        shown = ", ".join(str(item) for item in tree[:_LISTED])
        yield prefix, shown + (f", … ({len(tree)} in all)" if len(tree) > _LISTED else "") if tree else "none"
    elif tree is None or (isinstance(tree, float) and math.isnan(tree)):
        yield prefix, MISSING
    else:
        yield prefix, str(tree)
