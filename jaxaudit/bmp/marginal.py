"""Log marginal likelihoods of many count tuples at many (l, r), by a one-dimensional rule (derived).

The likelihood of a node is the mean over the region R(l, r) of Bin(fp | a) Bin(fn | b). At a given a the region is an
interval lo(a) <= b <= hi(a), so the inner integral is H(hi) - H(lo) with H the primitive of Bin(fn | b): the mean is
int Bin(fp | a) [H(hi(a)) - H(lo(a))] da / area, with 1 / area = 1 + 1/(e^l - 1) + 1/(e^r - 1). What depends on fp and
on fn is separate: both are computed once per distinct (fp, n_out) and (fn, n_in) at the nodes in a that all tuples
share, and a tuple is a dot product of two rows.

Both axes are a = sin^2 t, where every binomial has the same width, 1 / (2 sqrt(trials)). The rule is Gauss-Legendre on
the three pieces between the kinks of lo and hi. H is tabulated by cubic Hermite pieces, below the mode as the integral
from 0, above it as minus the integral to 1: differences keep their digits in both tails.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse
from scipy.special import xlogy

from jaxaudit.bmp.counts import Counts
from jaxaudit.bmp.region import log_vertex
from jaxaudit.runtime.checks import require
from jaxaudit.runtime.chunks import bucket, pad_rows, rows_per_chunk

__all__ = ["log_likelihoods", "summed_log_likelihoods"]

_BLOCK = 20  # points (l, r) per call
_CELLS = 24.0  # cells of the primitive's table per square root of the trials
_DENSITY, _FEWEST = 2.5, 6  # nodes of a piece: _FEWEST + _DENSITY x length x square root of the trials
_FLOOR = 1e-290  # likelihoods below are equally impossible; keeps 0 x log 0 out of the sums


class _Nodes(NamedTuple):
    """The rule in a at every (l, r), (g, m) each; cells of b from 0, and the share of the cell below b."""

    log_a: Any
    log_rest: Any
    weight: Any
    cell_low: Any
    share_low: Any
    cell_high: Any
    share_high: Any


class _Primitives(NamedTuple):
    """Cubic pieces of H, (cells, 4, pairs); the first cell above the mode and the whole integral, (pairs,)."""

    pieces: Any
    mode: Any
    total: Any


def _angle(a: np.ndarray, rest: np.ndarray) -> np.ndarray:
    return np.arctan2(np.sqrt(np.maximum(a, 0.0)), np.sqrt(np.maximum(rest, 0.0)))


def _kernel(counts: np.ndarray, log_b: np.ndarray, log_rest: np.ndarray) -> np.ndarray:
    """(points, pairs) binomial likelihoods, largest possible value 1."""
    hits, misses = counts[:, 0].astype(float), (counts[:, 1] - counts[:, 0]).astype(float)
    largest = xlogy(hits, hits) + xlogy(misses, misses) - xlogy(hits + misses, hits + misses)
    return np.exp(log_b[:, None] * hits + log_rest[:, None] * misses - largest)


def _primitives(counts: np.ndarray, cells: int) -> _Primitives:
    """Hermite pieces of the primitive in t, b = sin^2 t, from a three-point Gauss rule in every cell."""
    step = np.pi / 2 / cells

    def density(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of H in t, (points, pairs), and its derivative."""
        sine, cosine = np.maximum(np.sin(t), 1e-160)[:, None], np.maximum(np.cos(t), 1e-160)[:, None]
        hits, misses = counts[:, 0], counts[:, 1] - counts[:, 0]
        value = _kernel(counts, 2 * np.log(sine[:, 0]), 2 * np.log(cosine[:, 0])) * (2 * sine * cosine)
        return value, value * ((2 * hits + 1) * (cosine / sine) - (2 * misses + 1) * (sine / cosine))

    x, w = np.polynomial.legendre.leggauss(3)
    starts = step * np.arange(cells)
    inside = [v * step / 2 * density(starts + step * (u + 1) / 2)[0] for u, v in zip(x, w, strict=True)]
    parts = inside[0] + inside[1] + inside[2]
    value, derivative = density(step * np.arange(cells + 1))
    slope, bend = step * value, step**2 * derivative
    below = np.concatenate([np.zeros_like(parts[:1]), np.cumsum(parts, axis=0)])
    above = np.concatenate([np.cumsum(parts[::-1], axis=0)[::-1], np.zeros_like(parts[:1])])
    mode = np.rint(_angle(counts[:, 0], counts[:, 1] - counts[:, 0]) / step).astype(np.int32)
    first = np.where(np.arange(cells)[:, None] < mode, below[:-1], -above[:-1])
    (v0, v1), (c0, c1) = ((z[:-1], z[1:]) for z in (slope, bend))
    third = 10 * parts - 6 * v0 - 4 * v1 - 1.5 * c0 + 0.5 * c1
    fourth = -15 * parts + 8 * v0 + 7 * v1 + 1.5 * c0 - c1
    fifth = 6 * parts - 3 * v0 - 3 * v1 - 0.5 * c0 + 0.5 * c1
    pieces = np.stack([first, v0, c0 / 2, third, fourth, fifth], axis=1)
    return _Primitives(pieces, mode, below[-1])


@cache
def _gauss(size: int) -> tuple[np.ndarray, np.ndarray]:
    x, w = np.polynomial.legendre.leggauss(size)
    return (x + 1) / 2, w / 2


def _rule(l: np.ndarray, r: np.ndarray, trials: int, cells: int) -> _Nodes:
    """Nodes and weights at every (l, r); the weights include 1 / area."""
    a, not_a, b, not_b = (np.exp(z) for z in log_vertex(l, r))

    def limits(t: np.ndarray, rows: Any = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Angles of lo and hi at the angles t (g, k) of a."""
        x, rest = np.sin(t) ** 2, np.cos(t) ** 2
        va, vna, vb, vnb = (z[rows, None] for z in (a, not_a, b, not_b))
        above, below = x * vnb / va, rest * vb / vna  # 1 - lo left of the vertex, lo right of it
        low = np.where(x < va, _angle(1 - above, above), _angle(below, 1 - below))
        above, below = x * vb / vna, rest * vnb / va
        high = np.where(x < vna, _angle(1 - above, above), _angle(below, 1 - below))
        return low, high

    kinks = np.sort(np.stack([_angle(a, not_a), _angle(not_a, a)], axis=1), axis=1)
    ends = np.concatenate([np.zeros((l.size, 1)), kinks, np.full((l.size, 1), np.pi / 2)], axis=1)
    length = np.max([np.abs(np.diff(z, axis=1)) for z in (ends, *limits(ends))], axis=0)
    sizes = np.ceil(_FEWEST + _DENSITY * np.sqrt(trials) * length).astype(int)
    most = -(-int(sizes.sum(axis=1).max()) // 32) * 32
    t, weight = np.full((l.size, most), np.pi / 4), np.zeros((l.size, most))
    for g in range(l.size):
        first = 0
        for piece, size in enumerate(sizes[g]):
            x, w = _gauss(size)
            low, width = ends[g, piece], ends[g, piece + 1] - ends[g, piece]
            t[g, first : first + size], weight[g, first : first + size] = low + width * x, width * w
            first += size
    sine, cosine = np.maximum(np.sin(t), 1e-160), np.maximum(np.cos(t), 1e-160)
    weight *= 2 * sine * cosine * (1 + 1 / np.expm1(l) + 1 / np.expm1(r))[:, None]
    places = []
    for angle in limits(t):
        cell = np.clip(np.floor(angle * (cells / (np.pi / 2))), 0, cells - 1)
        places += [cell.astype(np.int32), angle * (cells / (np.pi / 2)) - cell]
    return _Nodes(2 * np.log(sine), 2 * np.log(cosine), weight, *places)


def _primitive(pieces: jax.Array, cell: jax.Array, share: jax.Array) -> jax.Array:
    """H of all pairs at one b, (pairs,)."""
    c = jax.lax.dynamic_index_in_dim(pieces, cell, 0, keepdims=False)
    value = c[5]
    for power in range(4, -1, -1):
        value = value * share + c[power]
    return value


@jax.jit
def _on_points(nodes: _Nodes, out: Any, primitives: _Primitives, index: Any) -> jax.Array:
    """(g, u) log likelihoods; ``out`` holds hits, misses and the log of the largest likelihood of the outer pairs."""
    hits, misses, largest = out

    def interval(node: _Nodes) -> jax.Array:
        """Mass of every inner pair between lo and hi, (pairs,)."""
        value = _primitive(primitives.pieces, node.cell_high, node.share_high)
        value -= _primitive(primitives.pieces, node.cell_low, node.share_low)
        across = (node.cell_low < primitives.mode) & (node.cell_high >= primitives.mode)
        return jnp.maximum(value + jnp.where(across, primitives.total, 0.0), 0.0) * node.weight

    def at(point: _Nodes) -> jax.Array:
        outer = jnp.exp(hits[:, None] * point.log_a + misses[:, None] * point.log_rest - largest[:, None])
        # Both tables are read many times below: fused into the reads they would be computed as often.
        outer, inner = jax.lax.optimization_barrier((outer, jax.lax.map(interval, point).T))
        total = jax.lax.map(lambda pair: (outer[pair[0]] * inner[pair[1]]).sum(), index)
        return jnp.log(jnp.maximum(total, _FLOOR))

    return jax.lax.map(at, nodes)


def _blocks(tuples: Counts, l: np.ndarray, r: np.ndarray) -> Iterator[tuple[np.ndarray, slice, np.ndarray]]:
    """Rows of tuples, grid points and their (g, u) log likelihoods; padded to a few sizes, bounded in memory."""
    require(len(tuples) > 0, "counts", "have at least one node with data on both sides", "none")
    outer, inner = (np.unique(tuples[:, sides], axis=0, return_inverse=True) for sides in ([0, 1], [2, 3]))
    if len(inner[0]) > len(outer[0]):  # a primitive costs more than a kernel; both errors are alike
        outer, inner, l, r = inner, outer, r, l
    trials = int(tuples[:, [1, 3]].max())
    cells = bucket(int(_CELLS * np.sqrt(trials)), 64)
    nodes = _rule(l, r, trials, cells)
    pairs = rows_per_chunk(8 * 6 * cells)
    for first in range(0, len(inner[0]), pairs):
        rows = np.flatnonzero(inner[1].ravel() // pairs == first // pairs)
        index = outer[1].ravel()[rows], inner[1].ravel()[rows] - first
        for part, values in _on_all(outer[0], inner[0][first : first + pairs], index, nodes, cells):
            yield rows, part, values


def _on_all(
    outer: np.ndarray, inner: np.ndarray, index: Any, nodes: _Nodes, cells: int
) -> Iterator[tuple[slice, np.ndarray]]:
    """Blocks of grid points for one chunk of inner pairs."""
    points, tuples = len(nodes.weight), len(index[0])
    outer, inner = (pad_rows(x, bucket(len(x), 64)) for x in (outer, inner))
    index = pad_rows(tuple(x.astype(np.int32) for x in index), bucket(tuples, 64))
    hits, misses = outer[:, 0].astype(float), (outer[:, 1] - outer[:, 0]).astype(float)
    largest = xlogy(hits, hits) + xlogy(misses, misses) - xlogy(hits + misses, hits + misses)
    with jax.enable_x64(True):
        primitives = jax.device_put(_primitives(inner, cells))
        for first in range(0, points, _BLOCK):
            part = slice(first, min(first + _BLOCK, points))
            block = pad_rows(_Nodes(*(x[part] for x in nodes)), _BLOCK)
            values = np.asarray(_on_points(block, (hits, misses, largest), primitives, index))
            yield part, values[: part.stop - part.start, :tuples]


def log_likelihoods(tuples: Counts, l: Any, r: Any) -> np.ndarray:
    """Log marginal likelihood of every count tuple at every (l, r), relative to the tuple's largest possible one.

    Args:
        tuples: (u, 4) int64 rows (fp, n_out, fn, n_in) with trials on both sides, from ``counts.distinct``.
        l: (g,) > 0.
        r: (g,) > 0.

    Returns:
        (u, g) float64, at most 0.

    Raises:
        InputError: no tuple.

    Example:
        >>> log_likelihoods(np.array([[10, 100, 10, 100]]), [0.1, 3.0], [0.1, 3.0]).round(2).tolist()
        [[-70.67, -5.09]]
    """
    l, r = np.asarray(l, float), np.asarray(r, float)
    out = np.empty((len(tuples), l.size))
    for rows, part, values in _blocks(tuples, l, r):
        out[rows, part] = values.T
    return out


def summed_log_likelihoods(tuples: Counts, weights: Any, l: Any, r: Any) -> np.ndarray:
    """Weighted sums over tuples of ``log_likelihoods``, without keeping the table.

    Args:
        tuples: (u, 4) int64.
        weights: (b, u) multiplicities, an array or a SciPy sparse matrix.
        l: (g,) > 0.
        r: (g,) > 0.

    Returns:
        (b, g) float64.
    """
    l, r = np.asarray(l, float), np.asarray(r, float)
    out = np.zeros((weights.shape[0], l.size))
    weights, last, share = sparse.csr_matrix(weights, dtype=float), None, None
    for rows, part, values in _blocks(tuples, l, r):
        if rows is not last:
            last, share = rows, weights[:, rows]
        out[:, part] += share @ values.T
    return out
