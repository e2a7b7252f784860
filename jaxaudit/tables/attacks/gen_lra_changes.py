"""How log kernel sums over a table change when its covariance grows along a direction, for many pairs at once.

The exponent ``-E_i = -|v - r_i|^2 / 2 h^2`` of row i of the reference at the point v changes by ``-g E_i + y_i^2``,
``y_i = (v - r_i) . w`` for a direction w of a target. ``g`` is the same for all targets, so weights
``p_i ~ exp(-(1 + g) E_i)`` and the change of their log sum are tables of v alone, and a pair (v, w) costs
``log1p(sum_i p_i expm1(y_i^2))``: one pass over the reference (derived).

Pairs are taken by v, a few points v at a time: their weights stay in cache until all of their pairs are summed. One
shape is compiled however many pairs there are, and a pair's sum does not depend on the pairs beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.runtime.chunks import pad_rows
from jaxaudit.tables import blocks
from jaxaudit.tables.attacks.gen_lra_kernels import (
    KINDS,
    SERIES_LIMIT,
    SHORT_LIMIT,
    SLICES,
    Reference,
    changes_far_out,
    project,
    sum_changes,
)
from jaxaudit.tables.attacks.neighbours import used_rows
from jaxaudit.tables.blocks import block_map, row_blocks, table_size
from jaxaudit.tables.density import KernelDensity, pad_columns, padded_centres, precision_scope

__all__ = ["DirectedPairs", "log_sum_changes"]

_OVERFLOW = {"float32": 60.0, "float64": 500.0}
"""Largest y^2 whose exponential is summed outside log space."""

_TABLE = 24 << 20
"""Bytes of the projections of a block of targets."""

_PIECE = 1024
"""Rows of the reference that one step of a loop takes on a CPU: their projections stay in cache from point to point."""

_CALL = 1 << 16
"""Most pairs of one call."""

_STEP = 1024
"""Pairs that an accelerator sums at a time."""

_POINT = 4
"""What the weights of a point cost, in sums of a pair."""


@dataclass(frozen=True)
class DirectedPairs:
    """Pairs of a target and a point; all (p,).

    Attributes:
        target: index of the target, ascending.
        row: index of the point v.
        along: v . w, w the target's direction.
    """

    target: np.ndarray
    row: np.ndarray
    along: np.ndarray


def log_sum_changes(
    pairs: DirectedPairs, points: np.ndarray, directions: np.ndarray, density: KernelDensity, growth: float, k: int,
    precision: str,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Per pair (p,), float64: the change of the log sum of v, and the log sum before it.

    Args:
        pairs: targets and points.
        points: (m, e) the points v.
        directions: (t, e) w of every target.
        density: of the reference.
        growth: g.
        k: pairs of a target, apart from ties: sizes follow from sizes alone.
        precision: of the sums over the reference.
    """
    change, log_sums = np.empty(len(pairs.row)), np.empty(len(pairs.row))
    with precision_scope(precision) as dtype:
        centres, log_counts, pieces = _in_pieces(*padded_centres(density, dtype))
        table = centres, log_counts, dtype(0.5 / density.bandwidth**2), dtype(growth)
        reference = Reference(*(jnp.asarray(part) for part in table))
        points, directions = (pad_columns(rows).astype(dtype) for rows in (points, directions))
    starts, size = row_blocks(len(directions), centres.nbytes / centres.shape[1], _TABLE, most=2048)
    for start in starts:
        here = slice(*np.searchsorted(pairs.target, [start, start + size]))
        with precision_scope(precision):
            part = pad_rows(directions[start : start + size], size)
            projection, widest = project(reference.centres, part, pieces=pieces)
            reach = np.asarray(widest, dtype=np.float64)
        local = DirectedPairs(pairs.target[here] - start, pairs.row[here], pairs.along[here])
        change[here], log_sums[here] = _of_targets(local, points, projection, reach, reference, size * k)
    return change, log_sums


def _in_pieces(centres: np.ndarray, log_counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The reference, padded further to pieces of one size, a multiple of ``SLICES``; and how many."""
    pieces = -(-len(centres) // _PIECE) if blocks.on_cpu() else 1
    size = pieces * SLICES * -(-len(centres) // (pieces * SLICES))
    padding = np.full(size - len(centres), -np.inf, log_counts.dtype)
    return pad_rows(centres, size), np.concatenate([log_counts, padding]), pieces


def _of_targets(
    pairs: DirectedPairs, points: np.ndarray, projection: jax.Array, reach: np.ndarray, reference: Reference, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """``log_sum_changes`` of one block of targets that has ``most`` pairs, apart from ties."""
    precision, kinds = str(points.dtype), len(KINDS) + 1  # the last kind is summed in log space
    used, row = used_rows(pairs.row, len(points))
    bound = (np.abs(pairs.along) + reach[pairs.target]) ** 2  # |y_i| <= |along| + max_i |r_i . w|
    kind = np.searchsorted([SHORT_LIMIT, SERIES_LIMIT, _OVERFLOW[precision]], bound)
    budget, top, step = (1 << 20, 32, 1) if blocks.on_cpu() else (64 << 20, 512, _STEP)
    _, rows = row_blocks(top, len(reference.centres) * points.itemsize, budget, top)
    count = -(-table_size(len(points)) // rows)
    block, local = np.divmod(row, rows)
    group = block * kinds + kind
    order = np.argsort(group * rows + local)
    edges = np.searchsorted(group[order], np.arange(count * kinds + kinds)).reshape(-1, kinds)
    columns = pairs.target.astype(np.int32), pairs.along.astype(points.dtype), local.astype(np.int32)
    change, log_sums = np.empty(len(row)), np.empty(count * rows)
    with precision_scope(precision):
        near = jnp.asarray(pad_rows(points[used], count * rows))
    capacity = min(_CALL, 1 << (most - 1).bit_length())
    for low in range(0, len(row), capacity):
        at = order[low : low + capacity]
        inside = np.clip(edges - low, 0, len(at)).astype(np.int32)
        filled = pad_rows(tuple(column[at] for column in columns), capacity + step)

        def some(part: tuple[int, int], at=at, inside=inside, filled=filled) -> None:  # type: ignore[no-untyped-def]
            first, last = part
            with precision_scope(precision):
                found = sum_changes(np.int32(first), np.int32(last), inside[:-1], *filled, near, projection, reference,
                                    rows=rows, step=step)  # fmt: skip
                sums, shift, before = (np.asarray(values, dtype=np.float64) for values in found)
            own = slice(inside[first, 0], inside[last, 0])
            change[at[own]] = np.log1p(sums[own]) + shift[row[at[own]]]
            log_sums[first * rows : last * rows] = before[first * rows : last * rows]

        block_map(some, _shares(inside[:, 0], block[at[0]], block[at[-1]] + 1, rows))
    for at in _calls(np.flatnonzero(kind == kinds - 1), 8):
        with precision_scope(precision):
            change[at] = changes_far_out(columns[0][at], columns[1][at], points[pairs.row[at]], projection, reference)
    return change, log_sums[row]


def _shares(edges: np.ndarray, first: int, last: int, rows: int) -> list[tuple[int, int]]:
    """Blocks [first, last) in shares of about the same work, two for each core; ``edges``: where their pairs begin."""
    work = edges[first : last + 1] + _POINT * rows * np.arange(last - first + 1)
    cuts = np.searchsorted(work, np.linspace(work[0], work[-1], 2 * blocks.cores() + 1))
    cuts = first + np.unique(cuts)
    return list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))


def _calls(items: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Pieces of one size, the last one filled up with copies of its last item: one shape to compile."""
    for low in range(0, len(items), size):
        yield pad_rows(items[low : low + size], size)
