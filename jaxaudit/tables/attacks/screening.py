"""Which rows can be near a target, by float32 distances and a bound on their error.

A product of two matrices holds an upper limit of every squared distance; less a share of its target and one of its row
it is a lower limit. Only rows that the limits leave in doubt are looked at in float64 (``neighbours``).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.runtime.chunks import pad_rows
from jaxaudit.tables import blocks
from jaxaudit.tables.blocks import table_size
from jaxaudit.tables.density import pad_columns

__all__ = ["Screen", "candidates", "counted", "screening_tables"]

_FAR = 1e30
"""Squared distance of padding; those of rows are at most 4."""


@dataclass(frozen=True)
class Screen:
    """Two float32 tables whose product holds an upper limit of every squared distance.

    Attributes:
        points: (n, c) of the targets.
        columns: (size, c) of the rows, padded.
        share: (n,) and
        slack: (size,): the upper limit less both is a lower one.
        scale: the unit of the limits, in those of the tables.
    """

    points: np.ndarray
    columns: np.ndarray
    share: np.ndarray
    slack: np.ndarray
    scale: float

    def block(self, start: int, size: int) -> tuple[jax.Array, np.ndarray]:
        """Upper limits (size, rows) of a block of targets, the last ones repeated, and their share of the error."""
        part, share = pad_rows((self.points[start : start + size], self.share[start : start + size]), size)
        return _upper_limits(part, self.columns), share


def screening_tables(targets: np.ndarray, rows: np.ndarray) -> Screen:
    """The tables of the float32 distances, with a bound on their error.

    Coordinates are centred at the rows' mean and scaled to norms of at most one. With A and B the squared norms, the
    product of ``(a, (1 + g) A, 1)`` and ``(-2 b, 1, (1 + g) B)`` is the squared distance plus ``g (A + B)``. Rounding
    the entries moves it by at most ``3 u (A + B)``, u = 2^-24, the sum of c products in any order by
    ``2 c u (A + B)``, since ``2 |a b| <= A + B``. So ``g = (2 c + 64) u``, with room for the rounding of the bound
    itself and 1e-30 for what underflows, makes it an upper limit, and twice the same less a lower one.
    """
    centre = rows.mean(axis=0)
    a, b = targets - centre, rows - centre
    scale = float(max(np.abs(a).max(), np.abs(b).max()) * np.sqrt(a.shape[1])) or 1.0
    a /= scale
    b /= scale
    a_norms, b_norms = np.einsum("nd,nd->n", a, a), np.einsum("nd,nd->n", b, b)
    d, size = a.shape[1], table_size(len(rows))
    gap = (2 * (d + 10) + 64) * 2.0**-24
    points, columns = np.zeros((len(a), d + 2), np.float32), np.zeros((size, d + 2), np.float32)
    points[:, :d], points[:, d], points[:, d + 1] = a, (1 + gap) * a_norms + 1e-30, 1.0
    columns[: len(b), :d], columns[:, d], columns[: len(b), d + 1] = -2.0 * b, 1.0, (1 + gap) * b_norms
    columns[len(b) :, d + 1] = _FAR
    slack = np.zeros(size, np.float32)
    slack[: len(b)] = 2 * gap * b_norms + 4e-30
    return Screen(pad_columns(points), pad_columns(columns), (2 * gap * a_norms).astype(np.float32), slack, scale)


def candidates(screen: Screen, start: int, size: int, places: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (target of the block, row) that may be as close as the target's ``places``-th nearest.

    Those are the ones whose lower limit is not above the ``places``-th smallest upper limit.

    Example:
        >>> screen = screening_tables(np.array([[0.0]]), np.array([[-1.0], [1.0], [5.0]]))
        >>> [part.tolist() for part in candidates(screen, 0, 1, 1)]
        [[0, 0], [0, 1]]
    """
    with jax.enable_x64(False):
        upper, share = screen.block(start, size)
        # on a CPU the table need not move, and a partition is faster than the bisection
        reach = _reach(np.asarray(upper), places) if blocks.on_cpu() else _kth_smallest(upper, np.int32(places))
        mask = np.asarray(_within(upper, np.asarray(reach) * np.float32(1 + 1e-6) + share, screen.slack))
    return np.divmod(np.flatnonzero(mask[: len(screen.points) - start]), mask.shape[1])


def counted(
    screen: Screen, start: int, size: int, copies: np.ndarray, edge: float
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Copies that are surely within ``edge`` of each target of a block, and a table of the rows that may be or not.

    Args:
        screen: of n targets and m rows.
        start: the block's first target.
        size: targets of a block.
        copies: (padded m,) int32, 0 for padding.
        edge: squared distance in the screen's unit.

    Returns:
        (b,) int64 and (b, padded m) bool, b <= size the targets of the block.

    Example:
        >>> screen = screening_tables(np.array([[0.0]]), np.array([[-1.0], [1.0], [5.0]]))
        >>> copies = np.zeros(len(screen.slack), np.int32)
        >>> copies[:3] = 1, 4, 1
        >>> inside, unsure = counted(screen, 0, 1, copies, 4 / screen.scale**2)
        >>> inside.tolist(), int(unsure.sum())
        ([5], 0)
    """
    count = min(size, len(screen.points) - start)
    with jax.enable_x64(False):
        upper, share = screen.block(start, size)
        total, mask = _count_inside(upper, copies, share, screen.slack, np.float32(edge))
        return np.asarray(total, dtype=np.int64)[:count], np.asarray(mask)[:count]


def _reach(upper: np.ndarray, places: int) -> np.ndarray:
    """At least the ``places``-th smallest of each row, and little more: that of the minima of groups of columns.

    ``places`` minima are as many entries, so that the bound holds. With four groups or more to a place few entries
    share one; the rows of a table are sorted, so a group takes columns that are far apart.
    """
    size, group = upper.shape[1], 1
    while group < 64 and size % (2 * group) == 0 and size >= 8 * group * places:
        group *= 2
    minima = upper.reshape(len(upper), group, -1).min(axis=1) if group > 1 else upper
    return minima.min(axis=1) if places == 1 else np.partition(minima, places - 1, axis=1)[:, places - 1]


@jax.jit
def _upper_limits(points: jax.Array, columns: jax.Array) -> jax.Array:
    """(targets, rows) float32, never below the squared distance; ``_FAR`` or more for padding."""
    return jnp.dot(points, columns.T, precision=jax.lax.Precision.HIGHEST)


@jax.jit
def _within(upper: jax.Array, limit: jax.Array, slack: jax.Array) -> jax.Array:
    """(targets, rows) bool: the lower limit, which is the upper one less both shares of the error, is in reach."""
    return upper <= limit[:, None] + slack[None, :]


@jax.jit
def _count_inside(
    upper: jax.Array, copies: jax.Array, share: jax.Array, slack: jax.Array, edge: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Copies that are surely within a squared distance of ``edge``, (targets,), and the rows that may be or not."""
    inside = upper <= edge * (1 - 1e-6)
    mask = ~inside & (upper <= (edge * (1 + 1e-6) + share)[:, None] + slack[None, :])
    return jnp.sum(jnp.where(inside, copies, 0), axis=1), mask


@jax.jit
def _kth_smallest(table: jax.Array, k: jax.Array) -> jax.Array:
    """The k-th smallest of each row of a float32 table >= 0, without a sort.

    Positive floats order like their bit patterns, so bisection of the patterns finds it in 31 counts.
    """

    def halve(_: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = state  # count(low) < k <= count(high)
        middle = low + (high - low) // 2
        limit = jax.lax.bitcast_convert_type(middle, jnp.float32)
        enough = jnp.sum(table <= limit[:, None], axis=1, dtype=jnp.int32) >= k
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    high = jax.lax.bitcast_convert_type(jnp.full(len(table), jnp.inf, jnp.float32), jnp.int32)
    _, high = jax.lax.fori_loop(0, 31, halve, (jnp.full(len(table), -1, jnp.int32), high))
    return jax.lax.bitcast_convert_type(high, jnp.float32)
