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


@dataclass(frozen=True)
class _Plan:
    """The work of one block of targets: points in blocks of ``rows``, pairs in the order of their block and kind.

    Attributes:
        order: (p,) the pairs in that order.
        row: (p,) the pairs' points among the used ones, in that order.
        edges: (blocks + 1, kinds) where the pairs of a block and kind begin.
        far: places in that order of the last kind, which is summed in log space.
        columns: target, v . w, and the point's place in its block, (p,) in that order.
        near: (blocks * rows, e) the used points.
        rows: points of a block.
        step: pairs that are summed at a time.
        precision: of the sums.
    """

    order: np.ndarray
    row: np.ndarray
    edges: np.ndarray
    far: np.ndarray
    columns: tuple[np.ndarray, np.ndarray, np.ndarray]
    near: jax.Array
    rows: int
    step: int
    precision: str


def _plan(pairs: DirectedPairs, points: np.ndarray, reach: np.ndarray, row_bytes: int) -> _Plan:
    """``reach``: the largest magnitude of each target's projections; ``row_bytes``: of the weights of a point."""
    precision, kinds = str(points.dtype), len(KINDS) + 1
    bound = (np.abs(pairs.along) + reach[pairs.target]) ** 2  # |y_i| <= |along| + max_i |r_i . w|
    kind = np.searchsorted([SHORT_LIMIT, SERIES_LIMIT, _OVERFLOW[precision]], bound)
    budget, top, step = (1 << 20, 32, 1) if blocks.on_cpu() else (64 << 20, 512, _STEP)
    _, rows = row_blocks(top, row_bytes, budget, top)
    count = -(-table_size(len(points)) // rows)
    used, row = used_rows(pairs.row, len(points))
    block, place = np.divmod(row, rows)
    group = block * kinds + kind
    order = np.argsort(group * rows + place)
    group = group[order]
    edges = np.searchsorted(group, np.arange(count * kinds + kinds)).reshape(-1, kinds)
    far = np.flatnonzero(group % kinds == kinds - 1)
    columns = (
        pairs.target[order].astype(np.int32), pairs.along[order].astype(points.dtype), place[order].astype(np.int32)
    )  # fmt: skip
    with precision_scope(precision):
        near = jnp.asarray(pad_rows(points[used], count * rows))
    return _Plan(order, row[order], edges, far, columns, near, rows, step, precision)


def _of_targets(
    pairs: DirectedPairs, points: np.ndarray, projection: jax.Array, reach: np.ndarray, reference: Reference, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """``log_sum_changes`` of one block of targets that has ``most`` pairs, apart from ties."""
    plan = _plan(pairs, points, reach, len(reference.centres) * points.itemsize)
    capacity = min(_CALL, 1 << (most - 1).bit_length())
    sums, shift, before = np.empty(len(plan.order)), *np.empty((2, len(plan.near)))
    for low in range(0, len(sums), capacity):
        part = slice(low, min(low + capacity, len(sums)))
        _sum_some(plan, part, capacity, projection, reference, sums[part], shift, before)
    change, log_sums = np.empty_like(sums), np.empty_like(sums)
    change[plan.order] = np.log1p(sums) + shift[plan.row]
    log_sums[plan.order] = before[plan.row]
    for at in _calls(plan.far, 8):
        with precision_scope(plan.precision):
            target, along, near = plan.columns[0][at], plan.columns[1][at], np.asarray(plan.near)[plan.row[at]]
            change[plan.order[at]] = changes_far_out(target, along, near, projection, reference)
    return change, log_sums


def _sum_some(
    plan: _Plan, part: slice, capacity: int, projection: jax.Array, reference: Reference, sums: np.ndarray,
    shift: np.ndarray, before: np.ndarray,
) -> None:  # fmt: skip
    """Fill in ``sums`` of a part of the pairs, and ``shift`` and ``before`` of their points, with all cores."""
    edges = (np.clip(plan.edges, part.start, part.stop) - part.start).astype(np.int32)
    columns = pad_rows(tuple(column[part] for column in plan.columns), capacity + plan.step)

    def share(ends: tuple[int, int]) -> None:
        first, last = ends
        with precision_scope(plan.precision):
            found = sum_changes(np.int32(first), np.int32(last), edges[:-1], *columns, plan.near, projection, reference,
                                rows=plan.rows, step=plan.step)  # fmt: skip
            found = [np.asarray(values) for values in found]
        own, points = slice(edges[first, 0], edges[last, 0]), slice(first * plan.rows, last * plan.rows)
        for whole, filled, where in zip((sums, shift, before), found, (own, points, points), strict=True):
            whole[where] = filled[where]

    ends = plan.row[[part.start, part.stop - 1]] // plan.rows
    block_map(share, _shares(edges[:, 0], ends[0], ends[1] + 1, plan.rows))


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
