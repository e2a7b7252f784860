"""The terms of Gen-LRA: per pair (target, neighbour) the log density ratio, for one bandwidth.

``fixed`` keeps covariance and bandwidth of the reference: one more kernel. ``refit`` re-estimates them with the target
added, without a refit: with n reference rows of mean zero and identity covariance, adding u changes the covariance to
``a (I + (b/a) u u^T)``, ``a = (n-1)/n``, ``b = 1/(n+1)``; Sherman-Morrison and the determinant lemma give distances and
volume. The exponent ``-E_i = -|v - r_i|^2 / 2 h^2`` of reference row i at the neighbour v changes by

    ``Delta_i = -g E_i + y_i^2``,  ``y_i = sqrt(stretch) (v - r_i) . u / |u|``.

``g`` is the same for all targets. So weights ``p_i ~ exp(-(1 + g) E_i)`` and the change of their log sum are tables of
the neighbour alone, and a pair costs ``log1p(sum_i p_i expm1(y_i^2))``: one pass over the reference (derived).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from jaxaudit.runtime.chunks import pad_rows
from jaxaudit.tables import blocks
from jaxaudit.tables.attacks.neighbours import NeighbourPairs, squared_differences
from jaxaudit.tables.blocks import block_map, row_blocks
from jaxaudit.tables.density import (
    KernelDensity,
    kernel_exponents,
    log_kernel_sums,
    pad_columns,
    padded_centres,
    precision_scope,
    sum_range,
)

__all__ = ["SERIES_LIMIT", "SHORT_LIMIT", "expm1_series", "fixed_terms", "refit_terms"]

SHORT_LIMIT, SERIES_LIMIT = 0.4, 1.5
"""Largest y^2 for which ``expm1_series`` stands in for ``expm1``, with few coefficients and with more."""

_OVERFLOW = {"float32": 60.0, "float64": 500.0}
"""Largest y^2 whose exponential is summed outside log space."""

_PAIRS = 1 << 14
"""Pairs that one thread takes at a time."""

_TABLES = 48 << 20
"""Bytes of one block's table over the reference."""


def fixed_terms(
    pairs: NeighbourPairs, u: np.ndarray, v: np.ndarray, density: KernelDensity, n: int, precision: str
) -> np.ndarray:
    """Per pair (p,): ``log(n / (n + 1)) + softplus(-|v - u|^2 / 2 h^2 - LSE_R(v))``; one LSE per distinct neighbour.

    Args:
        pairs: targets and their neighbours.
        u: (t, e) whitened targets.
        v: (m, e) whitened distinct synthetic rows.
        density: of the reference, n rows.
        n: rows of the reference, copies counted.
        precision: of the log sums over the reference.
    """
    used, row = _used(pairs.row, len(v))
    sums = log_kernel_sums(density, v[used], precision)

    def some(low: int) -> np.ndarray:
        part = slice(low, low + _PAIRS)
        own = squared_differences(u, pairs.target[part], v, pairs.row[part]) * (0.5 / density.bandwidth**2)
        own += sums[row[part]]  # minus the exponent of the one more kernel, less the log sum
        return np.log1p(np.exp(-np.abs(own))) - np.minimum(own, 0.0)  # softplus(-own)

    return np.concatenate(block_map(some, range(0, len(row), _PAIRS))) - np.log1p(1.0 / n)


def _used(row: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that occur, ascending, and the place of every ``row`` among them: ``np.unique`` without a sort."""
    seen = np.zeros(rows, bool)
    seen[row] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[row]


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
    terms: list[Any] = list(_SERIES[limit])
    power = x
    while len(terms) > 1:  # pairs of terms (Estrin): a short chain of operations
        pairs = [low + high * power for low, high in zip(terms[::2], terms[1::2], strict=False)]
        terms, power = pairs + terms[len(pairs) * 2 :], power * power
    return x * terms[0]


@dataclass(frozen=True)
class _Pairs:
    """What the terms of pairs need besides sums over the reference; all (p,).

    ``along``: sqrt(stretch) v . u / |u|; ``own``: exponent of the target's own kernel, negated.
    """

    target: np.ndarray
    row: np.ndarray
    along: np.ndarray
    own: np.ndarray


def refit_terms(
    pairs: NeighbourPairs, u: np.ndarray, v: np.ndarray, density: KernelDensity, n: int, h_next: float, precision: str
) -> tuple[np.ndarray, np.ndarray]:
    """Per pair (p,): the log density ratio after exact re-estimation, and the log density of the row before it.

    Targets are taken in blocks and neighbours in blocks whose tables over the reference, (block, n), fit the memory
    budget; ``h_next`` is the bandwidth with n + 1 rows. Arguments otherwise as ``fixed_terms``.
    """
    per_target, scalars = _refit_constants(u, density, n, h_next)
    change, log_sums = np.empty(len(pairs.row)), np.empty(len(pairs.row))
    detail = _pair_constants(pairs, u, v, per_target, scalars)
    with precision_scope(precision) as dtype:
        centres, log_counts = padded_centres(density, dtype)
        reference = (centres, log_counts, dtype(scalars["inverse"]), dtype(scalars["growth"]))
        points = pad_columns(v).astype(dtype)
        directions = pad_columns(per_target["direction"]).astype(dtype)
    starts, size = row_blocks(len(u), centres.nbytes / centres.shape[1], _TABLES, most=2048)
    for start in starts:
        here = slice(*np.searchsorted(pairs.target, [start, start + size]))
        with precision_scope(precision):
            projection = _project(centres, pad_rows(directions[start : start + size], size))
            widest = np.asarray(_widest(projection), dtype=np.float64)
        local = _Pairs(detail.target[here] - start, detail.row[here], detail.along[here], detail.own[here])
        change[here], log_sums[here] = _block_changes(local, points, projection, widest, reference, size * pairs.k)
    own = -detail.own - log_sums
    return per_target["constant"][pairs.target] + np.logaddexp(change, own), log_sums - density.log_norm


def _refit_constants(
    u: np.ndarray, density: KernelDensity, n: int, h_next: float
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """What depends on the target alone, in float64: unit vector, norm, shrinkage along it, log volume.

    Along u the covariance grows by ``1 / shrink``, ``shrink = a / (a + b q)``; writing it so, and with unit
    vectors, loses nothing however far out the target is.
    """
    e, h, a, b = u.shape[1], density.bandwidth, (n - 1) / n, 1.0 / (n + 1)
    norm = np.linalg.norm(u, axis=1)
    q = norm**2
    ratio = np.log(h_next / h)
    unit = u / np.where(norm > 0, norm, 1.0)[:, None]
    stretch = (b * q / (a + b * q)) / (2 * a * h_next**2)
    per_target = {
        "unit": unit,
        "norm": norm,
        "shrink": a / (a + b * q),
        "root": np.sqrt(stretch),
        "direction": np.sqrt(stretch)[:, None] * unit,
        "constant": -np.log1p(1.0 / n) - e * ratio - 0.5 * (e * np.log(a) + np.log1p(b * q / a)),
    }
    scalars = {
        "inverse": 0.5 / h**2,
        "inverse_next": 0.5 / (a * h_next**2),
        "growth": float(np.expm1(-2 * ratio - np.log(a))),
    }
    return per_target, scalars


def _pair_constants(
    pairs: NeighbourPairs, u: np.ndarray, v: np.ndarray, per_target: dict[str, np.ndarray], scalars: dict[str, float]
) -> _Pairs:
    """Components of every neighbour along and across its target's direction, a few pairs at a time."""
    along, own = np.empty(len(pairs.row)), np.empty(len(pairs.row))
    step = max(1, (1 << 18) // (8 * u.shape[1]))
    for low in range(0, len(along), step):
        part = slice(low, low + step)
        t = pairs.target[part]
        near, unit = v[pairs.row[part]], per_target["unit"][t]
        reach = np.einsum("pe,pe->p", near, unit)
        unit *= reach[:, None]
        near -= unit
        across = np.einsum("pe,pe->p", near, near)
        own[part] = across + per_target["shrink"][t] * (reach - per_target["norm"][t]) ** 2
        along[part] = per_target["root"][t] * reach
    return _Pairs(pairs.target, pairs.row, along, own * scalars["inverse_next"])


Reference = tuple[np.ndarray, np.ndarray, Any, Any]


def _block_changes(
    pairs: _Pairs, points: np.ndarray, projection: jax.Array, widest: np.ndarray, reference: Reference, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Per pair of one block of targets: the change of its log sum without the own kernel, and the log sum."""
    used, row = _used(pairs.row, len(points))
    bound = (np.abs(pairs.along) + widest[pairs.target]) ** 2  # |y_i| <= |along| + max_i |r_i . direction|
    order = np.lexsort((bound, row))
    _, size = row_blocks(min(len(points), most), projection.shape[1] * points.itemsize, _TABLES // 2, most=512)
    starts = range(0, len(used), size)
    edges = np.searchsorted(row[order], [*starts, len(used)])
    change, log_sums = np.empty(len(row)), np.empty(len(row))
    lane = _lanes(most, len(points))
    dtype = points.dtype

    def block(index: int) -> None:
        chosen, low = order[edges[index] : edges[index + 1]], starts[index]
        near = pad_rows(points[used[low : low + size]], size)
        with precision_scope(str(dtype)):
            weights, shift, sums = _weights(near, *reference)
            pending = []  # all calls are on their way before the first is waited for
            places = _groups(row[chosen], lane)
            largest = bound[chosen[places]].max(axis=1)
            far = largest > _OVERFLOW[str(dtype)]
            short, long = largest <= SHORT_LIMIT, largest <= SERIES_LIMIT
            for part, series in ((short, SHORT_LIMIT), (long & ~short, SERIES_LIMIT), (~far & ~long, None)):
                for at in _calls(chosen[places[part]], 128):
                    target, along = pairs.target[at].astype(np.int32), pairs.along[at].astype(dtype)
                    local = (row[at[:, 0]] - low).astype(np.int32)
                    found = _changes(
                        target, along, local, weights, shift, projection, series=series, wide=not blocks.on_cpu()
                    )
                    pending.append((at, found))
            for at in _calls(chosen[np.unique(places[far])], 8):
                local = row[at] - low
                target, along = pairs.target[at].astype(np.int32), pairs.along[at].astype(dtype)
                found = _far(target, along, near[local], projection, np.asarray(shift)[local], *reference)
                pending.append((at, found))
            log_sums[chosen] = np.asarray(sums)[row[chosen] - low]
            for at, found in pending:
                change[at] = found

    block_map(block, range(len(starts)))
    return change, log_sums


def _lanes(pairs: int, rows: int) -> int:
    """Pairs of one neighbour that are summed together; from sizes alone."""
    return int(np.clip(1 << int(np.log2(max(1.0, pairs / rows / 2))), 1, 16))


def _calls(items: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Pieces of one size, the last one filled with copies of its last item: one shape to compile."""
    for low in range(0, len(items), size):
        yield pad_rows(items[low : low + size], size)


def _groups(row: np.ndarray, lane: int) -> np.ndarray:
    """Places (groups, lane) in the ascending ``row`` that share a value; short groups repeat their last place."""
    first = np.flatnonzero(np.concatenate([[True], row[1:] != row[:-1]]))
    count = np.diff(np.append(first, len(row)))
    groups = -(-count // lane)
    number = np.arange(groups.sum()) - np.repeat(np.cumsum(groups) - groups, groups)
    places = np.repeat(first, groups)[:, None] + lane * number[:, None] + np.arange(lane)
    return np.minimum(places, np.repeat(first + count, groups)[:, None] - 1)


@jax.jit
def _project(centres: jax.Array, direction: jax.Array) -> jax.Array:
    """(targets, n): reference rows along each target's direction."""
    return jnp.dot(direction, centres.T, precision=jax.lax.Precision.HIGHEST)


@jax.jit
def _widest(projection: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(projection), axis=1)


@jax.jit
def _weights(
    v: jax.Array, centres: jax.Array, log_counts: jax.Array, inverse: jax.Array, growth: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of each neighbour: weights p_i (b, n), the change of its log sum by g (b,), and the log sum before (b,).

    A few rows at a time, so that their tables stay in cache. float32 cannot afford the difference of two sums of order
    one, so where all changes are small it sums ``p_i expm1(-g E_i)``.
    """
    low, high = sum_range(v.dtype)

    def stable(exponents: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        log_p = log_counts - exponents
        sums = jax.nn.logsumexp(log_p, axis=1)
        tilted = log_p - growth * exponents
        after = jax.nn.logsumexp(tilted, axis=1)
        shift = after - sums
        if v.dtype == jnp.float32:
            before = jnp.exp(log_p - sums[:, None])
            delta = jnp.where(before > 0, -growth * exponents, 0.0)
            small = jnp.max(jnp.abs(delta), axis=1) < 1.0
            shift = jnp.where(small, jnp.log1p(jnp.sum(before * jnp.expm1(delta), axis=1)), shift)
        return jnp.exp(tilted - after[:, None]), shift, sums

    def some(part: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        exponents = kernel_exponents(part, centres, inverse)
        if v.dtype == jnp.float32:
            return stable(exponents)
        before = jnp.sum(jnp.exp(log_counts - exponents), axis=1)  # without the shift by the largest term

        def quick(exponents: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            kernels = jnp.exp(log_counts - (1 + growth) * exponents)
            after = jnp.sum(kernels, axis=1)
            return kernels / after[:, None], jnp.log(after) - jnp.log(before), jnp.log(before)

        safe = (jnp.min(before) > low) & (jnp.max(before) < high)
        return jax.lax.cond(safe, quick, stable, exponents)

    weights, shift, sums = jax.lax.map(some, v.reshape(-1, math.gcd(len(v), 32), v.shape[1]))
    return weights.reshape(len(v), -1), shift.ravel(), sums.ravel()


@partial(jax.jit, static_argnames=("series", "wide"))
def _changes(
    target: jax.Array, along: jax.Array, row: jax.Array, weights: jax.Array, shift: jax.Array, projection: jax.Array,
    *, series: float | None, wide: bool,
) -> jax.Array:  # fmt: skip
    """``shift + log(sum_i p_i exp(y_i^2))`` of groups (g, lane) of pairs that share a neighbour.

    By ``expm1``, so that float32 keeps small changes; float64 has digits to spare where y^2 is not small, and ``exp``
    is faster.
    """
    plain = series is None and weights.dtype == jnp.float64
    grow = jnp.exp if plain else jnp.expm1 if series is None else partial(expm1_series, limit=series)

    def one(group: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        t, a, s = group
        y = a[:, None] - projection[t]
        p = jax.lax.dynamic_index_in_dim(weights, s, keepdims=False)
        total = jnp.dot(grow(y * y), p, precision=jax.lax.Precision.HIGHEST)
        return shift[s] + (jnp.log(total) if plain else jnp.log1p(total))

    groups = (target, along, row)
    return jax.vmap(one)(groups) if wide else jax.lax.map(one, groups)


@jax.jit
def _far(
    target: jax.Array, along: jax.Array, v: jax.Array, projection: jax.Array, shift: jax.Array, centres: jax.Array,
    log_counts: jax.Array, inverse: jax.Array, growth: jax.Array,
) -> jax.Array:  # fmt: skip
    """The same in log space, pair by pair (p,), where ``exp(y_i^2)`` would overflow."""
    log_p = log_counts - kernel_exponents(v, centres, inverse) * (1 + growth)
    log_p = log_p - jax.nn.logsumexp(log_p, axis=1)[:, None]
    return shift + jax.nn.logsumexp(log_p + (along[:, None] - projection[target]) ** 2, axis=1)
