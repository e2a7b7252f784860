"""Sums over a reference for many pairs of a point and a direction: the compiled part of ``gen_lra_changes``.

Two things decide the speed on a CPU. Loops over pairs run inside one program, each pair a step of its own: what a call
costs is paid once, and a step is small enough that the compiler does not split it among threads that are busy with
other rows. And the steps are wide: slices of the reference are summed side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from jaxaudit.runtime.vectors import FullVectorJit
from jaxaudit.tables.density import kernel_exponents, sum_range

__all__ = ["KINDS", "SERIES_LIMIT", "SHORT_LIMIT", "SLICES", "Reference", "changes_far_out", "expm1_series", "project",
           "sum_changes"]  # fmt: skip

SHORT_LIMIT, SERIES_LIMIT = 0.4, 1.5
"""Largest y^2 for which ``expm1_series`` stands in for ``expm1``, with few coefficients and with more."""

SLICES = 8
"""Parts of a piece of the reference that are summed side by side: additions that need not wait for each other."""


class Reference(NamedTuple):
    """Padded centres (n, e), log counts (n,), the factor 1 / 2 h^2 of |v - r|^2 in an exponent, and the growth g."""

    centres: jax.Array
    log_counts: jax.Array
    inverse: jax.Array
    growth: jax.Array


def _series(limit: float, degree: int) -> tuple[float, ...]:
    """Coefficients of the polynomial that meets ``expm1(x) / x`` at the Chebyshev points of [0, limit]."""
    fitted = Chebyshev.interpolate(lambda x: np.expm1(x) / x, degree, domain=[0, limit])
    return tuple(float(c) for c in fitted.convert(kind=Polynomial).coef)


_SERIES = {SHORT_LIMIT: _series(SHORT_LIMIT, 7), SERIES_LIMIT: _series(SERIES_LIMIT, 10)}


def expm1_series(x: jax.Array, limit: float = SERIES_LIMIT) -> jax.Array:
    """``exp(x) - 1`` for x in [0, limit], at half of the cost of ``exp``; the limit is one of the two constants.

    ``x P(x)``, where P meets f = expm1(x) / x at m + 1 Chebyshev points. By their remainder, and since the derivative
    of order m + 1 of f is at most e^limit / (m + 2), the relative error is below
    ``2 (limit / 4)^(m + 1) e^limit / ((m + 2) (m + 1)!)``: 9e-14 with m = 7 for 0.4, 4e-13 with m = 10 for 1.5
    (derived). So is that of a mean of such values with weights that add up to one, beyond rounding.
    """
    *others, last = _SERIES[limit]
    total: Any = last
    for coefficient in reversed(others):  # Horner: fewest operations, and many x wait for none
        total = total * x + coefficient
    return x * total


KINDS: tuple[Callable[[jax.Array], jax.Array], ...] = (
    partial(expm1_series, limit=SHORT_LIMIT),
    partial(expm1_series, limit=SERIES_LIMIT),
    jnp.expm1,
)
"""What computes ``expm1(y^2)``, by the size of y^2."""


@partial(jax.jit, static_argnames="pieces")
def project(centres: jax.Array, direction: jax.Array, *, pieces: int) -> tuple[jax.Array, jax.Array]:
    """(pieces, targets, n / pieces): reference rows along each target's direction, piece by piece of the reference.

    And the largest magnitude of each target's projections, (targets,).
    """
    parts = centres.reshape(pieces, -1, centres.shape[1])
    projection = jax.vmap(lambda part: jnp.dot(direction, part.T, precision=jax.lax.Precision.HIGHEST))(parts)
    return projection, jnp.max(jnp.abs(projection), axis=(0, 2))


def _sum_changes(
    first: jax.Array, last: jax.Array, edges: jax.Array, target: jax.Array, along: jax.Array, row: jax.Array,
    points: jax.Array, projection: jax.Array, reference: Reference, *, rows: int, step: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """``sum_i p_i expm1(y_i^2)`` of the pairs of blocks [first, last) of points, and what is of a point alone.

    Args:
        first: first block, int32.
        last: first block after the last one, int32.
        edges: (blocks, kinds + 1) int32, where the pairs of each block and kind begin, and the last kind's end.
        target: (p,) int32 index of a pair's target; p at least ``step`` more than there are pairs.
        along: (p,) v . w.
        row: (p,) int32 place of a pair's point in its block.
        points: (blocks * rows, e) the points v.
        projection: (pieces, t, n / pieces) r_i . w.
        reference: the rows r_i.
        rows: points of a block.
        step: pairs that are summed at a time.

    Returns:
        (p,) sums; (blocks * rows,) change of the log sum by g, and log sum before it. All zero outside of the blocks.
    """
    pieces, _, size = projection.shape
    width = size // SLICES
    put = jax.lax.dynamic_update_slice_in_dim

    def one(
        grow: Callable[[jax.Array], jax.Array], weights: jax.Array, piece: jax.Array, t: jax.Array, a: jax.Array,
        r: jax.Array,
    ) -> jax.Array:  # fmt: skip
        total = jnp.zeros(width, weights.dtype)
        for low in range(0, size, width):
            p = jax.lax.dynamic_slice(weights, (r, piece * size + low), (1, width))[0]
            y = a - jax.lax.dynamic_slice(projection, (piece, t, jnp.int32(low)), (1, 1, width))[0, 0]
            total += grow(y * y) * p
        return jnp.sum(total)

    def of_kind(
        totals: jax.Array, piece: jax.Array, grow: Callable[[jax.Array], jax.Array], weights: jax.Array,
        start: jax.Array, end: jax.Array,
    ) -> jax.Array:  # fmt: skip
        def some(index: jax.Array, totals: jax.Array) -> jax.Array:
            at = start + index * step
            t, a, r, total = (jax.lax.dynamic_slice_in_dim(x, at, step) for x in (target, along, row, totals))
            if step == 1:  # slices of the tables, which vmap would gather
                return put(totals, total + one(grow, weights, piece, t[0], a[0], r[0]), at, 0)
            more = jax.vmap(partial(one, grow, weights, piece))(t, a, r)
            own = at + jnp.arange(step, dtype=at.dtype) < end
            return put(totals, total + jnp.where(own, more, 0), at, 0)

        return jax.lax.fori_loop(jnp.int32(0), (end - start + step - 1) // step, some, totals)

    def of_block(block: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        totals, shifts, sums = found
        weights, shift, before = _weights(jax.lax.dynamic_slice_in_dim(points, block * rows, rows), reference)

        def of_piece(piece: jax.Array, totals: jax.Array) -> jax.Array:
            for kind, grow in enumerate(KINDS):
                totals = of_kind(totals, piece, grow, weights, edges[block, kind], edges[block, kind + 1])
            return totals

        totals = jax.lax.fori_loop(jnp.int32(0), jnp.int32(pieces), of_piece, totals)
        return totals, put(shifts, shift, block * rows, 0), put(sums, before, block * rows, 0)

    empty = jnp.zeros(len(points), points.dtype)
    return jax.lax.fori_loop(first, last, of_block, (jnp.zeros_like(along), empty, empty))


sum_changes = FullVectorJit(_sum_changes, static_argnames=("rows", "step"))


def _weights(points: jax.Array, reference: Reference) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of each point v: weights p_i (b, n), the change of its log sum by g (b,), and the log sum before (b,); traceable.

    float32 cannot afford the difference of two sums of order one, so where all changes are small it sums
    ``p_i expm1(-g E_i)``.
    """
    centres, log_counts, inverse, growth = reference
    low, high = sum_range(points.dtype)

    def stable(exponents: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        log_p = log_counts - exponents
        sums = jax.nn.logsumexp(log_p, axis=1)
        tilted = log_p - growth * exponents
        after = jax.nn.logsumexp(tilted, axis=1)
        shift = after - sums
        if points.dtype == jnp.float32:
            before = jnp.exp(log_p - sums[:, None])
            delta = jnp.where(before > 0, -growth * exponents, 0.0)
            small = jnp.max(jnp.abs(delta), axis=1) < 1.0
            shift = jnp.where(small, jnp.log1p(jnp.sum(before * jnp.expm1(delta), axis=1)), shift)
        return jnp.exp(tilted - after[:, None]), shift, sums

    def quick(exponents: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        kernels = jnp.exp(log_counts - (1 + growth) * exponents)
        after = jnp.sum(kernels, axis=1)
        return kernels / after[:, None], jnp.log(after) - jnp.log(before), jnp.log(before)

    exponents = kernel_exponents(points, centres, inverse)
    if points.dtype == jnp.float32:
        return stable(exponents)
    before = jnp.sum(jnp.exp(log_counts - exponents), axis=1)  # without the shift by the largest term
    safe = (jnp.min(before) > low) & (jnp.max(before) < high)
    return jax.lax.cond(safe, quick, stable, exponents)


@jax.jit
def changes_far_out(
    target: jax.Array, along: jax.Array, points: jax.Array, projection: jax.Array, reference: Reference
) -> jax.Array:
    """Change of the log sum, by g and by y_i^2, pair by pair (p,) in log space: where ``exp(y_i^2)`` would overflow."""
    centres, log_counts, inverse, growth = reference
    exponents = kernel_exponents(points, centres, inverse)
    y = along[:, None] - jnp.moveaxis(projection, 1, 0)[target].reshape(len(target), -1)
    after = jax.nn.logsumexp(log_counts - (1 + growth) * exponents + y**2, axis=1)
    return after - jax.nn.logsumexp(log_counts - exponents, axis=1)
