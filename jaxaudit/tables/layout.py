"""Which columns of an encoded table are numbers, and which columns together say one category."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxaudit.runtime.checks import require

__all__ = ["LEVEL_SCALE", "Layout", "infer_layout"]

LEVEL_SCALE = 1 / np.sqrt(2)
"""Encoded value of a present level; two rows with different levels are at distance 1."""


@dataclass(frozen=True)
class Layout:
    """The parts of an encoded table of d columns; ``Encoder.layout`` is one.

    Attributes:
        numeric: places of the numeric columns, ascending.
        blocks: per categorical column the places of its encoded columns. A block of w >= 2 columns has one column per
            level, of which at most one is not zero; all zero is a level that is not known. A block of one column is an
            indicator, such as "(missing)": two levels, zero and not zero.

    Raises:
        InputError: a place occurs twice or is left out.

    Example:
        >>> layout = Layout(numeric=(0,), blocks=((1,), (2, 3, 4)))
        >>> layout.columns, layout.levels
        (5, (2, 3))
    """

    numeric: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        places = sorted(self.numeric + tuple(place for block in self.blocks for place in block))
        ok = places == list(range(len(places))) and len(places) > 0 and all(self.blocks)
        require(ok, "layout", "name each encoded column once", places)

    @property
    def columns(self) -> int:
        """Encoded columns d."""
        return len(self.numeric) + sum(map(len, self.blocks))

    @property
    def levels(self) -> tuple[int, ...]:
        """Known levels c of every categorical column, >= 2."""
        return tuple(max(2, len(block)) for block in self.blocks)

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """The numeric columns of encoded rows (n, d): float64 (n, e), e >= 0."""
        return np.take(
            rows, np.array(self.numeric, dtype=np.int64), axis=1
        )  # rows contiguous, as they came: sums round alike

    def codes(self, rows: np.ndarray) -> np.ndarray:
        """The level of every cell of encoded rows (n, d): int (n, blocks) in [0, c), or -1 where it is not known.

        Raises:
            InputError: a row has two levels in one block.

        Example:
            >>> Layout((0,), ((1,), (2, 3))).codes(np.array([[0.3, 1.0, 0.0, 0.7], [0.1, 0.0, 0.0, 0.0]])).tolist()
            [[1, 1], [0, -1]]
        """
        codes = np.empty((len(rows), len(self.blocks)), dtype=np.int64)
        for b, block in enumerate(self.blocks):
            present = rows[:, list(block)] != 0
            count = present.sum(axis=1)
            require(
                int(count.max(initial=0)) <= 1, f"columns {list(block)}", "hold one level per row", int(count.max())
            )
            codes[:, b] = count if len(block) == 1 else np.where(count > 0, present.argmax(axis=1), -1)
        return codes


def infer_layout(*tables: np.ndarray) -> Layout:
    """The layout of encoded tables whose encoder is not at hand, from their values.

    Neighbouring columns of which exactly one is 1/sqrt(2) in every row, the others zero, are a category; a column of
    zeros and ones is a category of two levels; all others are numbers, so that a table of plain numbers has numbers
    only. With the tables that an encoder was fitted on it is the encoder's layout, except that numbers taken as they
    are (``raw``) and no other than 0 and 1 become a category.

    Args:
        tables: (rows, d) each; for an audit the synthetic and the reference table, never the targets.

    Example:
        >>> infer_layout(np.array([[1.5, 0.0, LEVEL_SCALE, 1.0], [0.2, LEVEL_SCALE, 0.0, 0.0]]))
        Layout(numeric=(0,), blocks=((1, 2), (3,)))
    """
    rows = np.concatenate(tables)
    numeric: list[int] = []
    blocks: list[tuple[int, ...]] = []
    j = 0
    while j < rows.shape[1]:
        end = _level_block(rows, j)
        if end > j:
            blocks.append(tuple(range(j, end)))
        elif _two_valued(rows[:, j], 1.0):
            blocks.append((j,))
        else:
            numeric.append(j)
        j = max(end, j + 1)
    return Layout(tuple(numeric), tuple(blocks))


def _level_block(rows: np.ndarray, start: int) -> int:
    """End of the shortest block from ``start`` on in which every row has one level; ``start`` if there is none."""
    count = np.zeros(len(rows), dtype=np.int64)
    for j in range(start, rows.shape[1]):
        if not _two_valued(rows[:, j], LEVEL_SCALE):
            return start
        count += rows[:, j] != 0
        if count.min() == 1:
            return j + 1 if count.max() == 1 else start
    return start


def _two_valued(column: np.ndarray, present: float) -> bool:
    zero, one = column == 0, column == present
    return bool(zero.any() and one.any() and (zero | one).all())
