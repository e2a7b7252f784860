"""Log marginal likelihoods of many count tuples on one shared (l, r) grid, and the posteriors that sums of them give.

The marginal likelihood of a node is int int Bin(fp | a) Bin(fn | b) du dv over the region (``jaxaudit.bmp.pooled``),
by a Gauss-Legendre rule in (u, v) that all tuples share. For given trials the integrand is a product of a function of
fp and one of fn, so a tile of 16 x 16 count pairs is one matrix product over the quadrature points, and neighbours in a
tile differ by a factor a/(1-a) (derived: Bin(k+1)/Bin(k)): two exponentials per tile and point serve 256 tuples.

Posteriors of sets of nodes are sums of rows: groups, replicates and the pooled posterior differ in weights only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.interpolate import make_interp_spline
from scipy.special import xlogy

from jaxaudit.bmp.counts import Counts
from jaxaudit.bmp.region import log_vertex
from jaxaudit.runtime.checks import check_choice, check_real, require
from jaxaudit.runtime.chunks import bucket, pad_rows, rows_per_chunk

__all__ = ["SharedPosteriors", "log_likelihoods", "rule_size", "shared_posteriors", "summed_log_likelihoods"]

_TILE, _POINTS = 16, 48
_COARSE, _OUTPUT, _DEPTH = 12, 401, 16.0
_FEWEST, _MOST = 14, 36  # points per axis of the fine grid
_RESOLVED = 5  # grid steps that the narrowest posterior must span on the fine grid
_FLOOR = 1e-290  # likelihoods below are equally impossible; keeps 0 x log 0 out of the sums


class _Tiles(NamedTuple):
    """Tiles of equal trials: first count and trials of each side (t,), and where each tuple lies in the tiles (u,)."""

    first_fp: Any
    n_out: Any
    first_fn: Any
    n_in: Any
    position: Any
    constant: Any


def rule_size(tuples: Counts) -> int:
    """Gauss-Legendre points per axis: spaced like a binomial standard deviation, at least 24."""
    return max(24, int(np.ceil(3 * np.sqrt(tuples[:, [1, 3]].max()))))


def _tiles(tuples: Counts) -> _Tiles:
    fp, n_out, fn, n_in = np.asarray(tuples, np.int64).T
    keys = np.stack([fp // _TILE * _TILE, n_out, fn // _TILE * _TILE, n_in], axis=1)
    tiles, index = np.unique(keys, axis=0, return_inverse=True)
    position = (index.ravel() * _TILE + fp % _TILE) * _TILE + fn % _TILE
    powers = np.stack([fp, n_out - fp, fn, n_in - fn]).astype(float)
    constant = xlogy(powers, powers).sum(axis=0) - xlogy(n_out, n_out) - xlogy(n_in, n_in)
    first_fp, trials_out, first_fn, trials_in = tiles.T.astype(float)
    return _Tiles(first_fp, trials_out, first_fn, trials_in, position, constant)


def _side(first: jax.Array, trials: jax.Array, log_rate: jax.Array, log_rest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Likelihoods (16, m) of the counts first .. first + 15 at m rates, and the log scale that was taken out."""
    mean = jnp.minimum(first, trials)
    rest = trials - mean
    scale = jax.scipy.special.xlogy(mean, mean) + jax.scipy.special.xlogy(rest, rest)
    scale = scale - jax.scipy.special.xlogy(trials, trials)
    lowest = jnp.exp(first * log_rate + rest * log_rest - scale)
    step = jnp.exp(log_rate - log_rest)
    rows = lowest[None]
    while rows.shape[0] < _TILE:
        rows = jnp.concatenate([rows, rows * step])
        step = step * step
    return rows, scale


def _at_point(l: jax.Array, r: jax.Array, tiles: _Tiles, x: jax.Array, weight: jax.Array, chunk: int) -> jax.Array:
    """Log likelihood (u,) of every tuple at one (l, r), relative to the tuple's largest possible one."""
    a, not_a, b, not_b = (jnp.exp(z) for z in log_vertex(l, r))
    (u, v), (rest_u, rest_v) = jnp.meshgrid(x, x, indexing="ij"), jnp.meshgrid(x[::-1], x[::-1], indexing="ij")
    rates = u * a + v * not_a, rest_u * a + rest_v * not_a, rest_u * not_b + rest_v * b, u * not_b + v * b
    log_a, log_not_a, log_b, log_not_b = (jnp.log(z).ravel() for z in rates)
    both = (weight[:, None] * weight[None, :]).ravel()

    def tile(part: Any) -> jax.Array:
        first_fp, n_out, first_fn, n_in = part
        out, scale_out = _side(first_fp, n_out, log_a, log_not_a)
        inside, scale_in = _side(first_fn, n_in, log_b, log_not_b)
        total = jnp.matmul(out * both, inside.T, precision="highest")
        return jnp.log(jnp.maximum(total, _FLOOR)) + scale_out + scale_in

    values = jax.lax.map(tile, tiles[:4], batch_size=chunk)
    return values.ravel()[tiles.position] - tiles.constant


@jax.jit
def _on_points(l: jax.Array, r: jax.Array, tiles: _Tiles, x: jax.Array, weight: jax.Array) -> jax.Array:
    """(g, u) log likelihoods."""
    chunk = min(rows_per_chunk(16 * _TILE * x.size**2, 4 << 20), tiles.n_out.shape[0])
    return jax.lax.map(lambda point: _at_point(point[0], point[1], tiles, x, weight, chunk), (l, r))


def _blocks(tuples: Counts, l: np.ndarray, r: np.ndarray, rule: int | None) -> Iterator[tuple[slice, np.ndarray]]:
    """Blocks of grid points with their (g, u) log likelihoods; padded to a few sizes, bounded in memory."""
    require(len(tuples) > 0, "counts", "have at least one node with data on both sides", "none")
    found = _tiles(tuples)
    sides = pad_rows(tuple(found[:4]), bucket(len(found.n_out), 8))
    tuple_parts = pad_rows(tuple(found[4:]), bucket(len(tuples), 64))
    tiles = _Tiles(*sides, *tuple_parts)
    x, w = np.polynomial.legendre.leggauss(rule or rule_size(tuples))
    size = min(rows_per_chunk(8 * tiles.position.size), _POINTS)
    for first in range(0, l.size, size):
        part = slice(first, min(first + size, l.size))
        padded = pad_rows((l[part], r[part]), size)
        with jax.enable_x64(True):
            values = np.asarray(_on_points(*padded, tiles, (x + 1) / 2, w / 2))
        yield part, values[: part.stop - part.start, : len(tuples)]


def log_likelihoods(tuples: Counts, l: Any, r: Any, rule: int | None = None) -> np.ndarray:
    """Log marginal likelihood of every count tuple at every (l, r), relative to the tuple's largest possible one.

    Args:
        tuples: (u, 4) int64 rows (fp, n_out, fn, n_in) with trials on both sides, from ``counts.distinct``.
        l: (g,) > 0.
        r: (g,) > 0.
        rule: Gauss-Legendre points per axis; None takes ``rule_size``.

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
    for part, values in _blocks(tuples, l, r, rule):
        out[:, part] = values.T
    return out


def summed_log_likelihoods(tuples: Counts, weights: Any, l: Any, r: Any, rule: int | None = None) -> np.ndarray:
    """Weighted sums over tuples of ``log_likelihoods``, without keeping the table.

    Args:
        tuples: (u, 4) int64.
        weights: (b, u) multiplicities, an array or a SciPy sparse matrix.
        l: (g,) > 0.
        r: (g,) > 0.
        rule: as above.

    Returns:
        (b, g) float64.
    """
    l, r = np.asarray(l, float), np.asarray(r, float)
    out = np.empty((weights.shape[0], l.size))
    for part, values in _blocks(tuples, l, r, rule):
        out[:, part] = weights @ values.T
    return out


@dataclass(frozen=True)
class SharedPosteriors:
    """Marginal posteriors of r and l of several sets of nodes, each set sharing one (l, r).

    Attributes:
        prior_scale2: squared scale of the half-normal priors.
    """

    prior_scale2: float
    _values: dict[str, np.ndarray] = field(repr=False)  # (b, k)
    _cdf: dict[str, np.ndarray] = field(repr=False)

    def quantile(self, name: str, q: float) -> np.ndarray:
        """Posterior quantiles (b,) of ``name`` ("r" or "l") at level ``q`` in [0.001, 0.999].

        Raises:
            InputError: another name, or a level out of range.
        """
        check_choice("name", name, ("r", "l"))
        check_real("q", q, 0.001, 0.999)
        pairs = zip(self._cdf[name], self._values[name], strict=True)
        return np.array([np.interp(q, cdf, values) for cdf, values in pairs])


def _support(log_p: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last index (b,) along ``axis`` (0: l, 1: r) within _DEPTH of each maximum."""
    keep = (log_p > log_p.max(axis=(1, 2), keepdims=True) - _DEPTH).any(axis=2 - axis)
    return keep.argmax(axis=1), keep.shape[1] - 1 - keep[:, ::-1].argmax(axis=1)


def _log_density(tuples: Counts, weights: Any, scale2: float, grids: list[np.ndarray], rule: int | None) -> np.ndarray:
    """Log posterior density in s = log(exp(x) - 1), (b, grid of l, grid of r); dx/ds = 1 - exp(-x)."""
    l, r = (x.ravel() for x in np.meshgrid(*(np.logaddexp(0, s) for s in grids), indexing="ij"))
    value = summed_log_likelihoods(tuples, weights, l, r, rule) - (l**2 + r**2) / (2 * scale2)
    value += np.log(-np.expm1(-l)) + np.log(-np.expm1(-r))
    return value.reshape(-1, grids[0].size, grids[1].size)


def _close_in(tuples: Counts, weights: Any, scale2: float) -> tuple[list[np.ndarray], np.ndarray]:
    """Grids in s_l and s_r around all supports, and the log densities there; coarse rounds with a rough rule first."""
    boxes = [(-12.0, max(6 * np.sqrt(scale2), 20.0))] * 2
    # A node's own likelihood is smooth on the scale of a binomial standard deviation of s.
    spacing = min(0.25, 1.8 / np.sqrt(tuples[:, [1, 3]].max()))
    coarse = True
    for _ in range(12):
        sizes = [_COARSE if coarse else int(np.clip((high - low) / spacing, _FEWEST, _MOST)) for low, high in boxes]
        grids = [np.linspace(*box, size) for box, size in zip(boxes, sizes, strict=True)]
        log_p = _log_density(tuples, weights, scale2, grids, -(-rule_size(tuples) // 2) if coarse else None)
        ends = [(int(low.min()), int(high.max())) for low, high in (_support(log_p, axis) for axis in (0, 1))]
        full = all(3 * (high - low) >= size for (low, high), size in zip(ends, sizes, strict=True))
        if full and not coarse:
            break
        boxes = [(g[max(low - 1, 0)], g[min(high + 1, g.size - 1)]) for g, (low, high) in zip(grids, ends, strict=True)]
        # The fine grid may still find that the coarse one had missed a narrow peak.
        coarse = coarse and not full
    return grids, log_p


def _marginals(grids: list[np.ndarray], log_p: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Values (k,) and distribution functions (b, k) of l and r: cubic splines of the log density, then trapezoids."""
    fine = [np.linspace(grid[0], grid[-1], _OUTPUT) for grid in grids]
    to_l, to_r = (make_interp_spline(s, np.eye(s.size))(x) for s, x in zip(grids, fine, strict=True))
    cdf: dict[str, list[np.ndarray]] = {"l": [], "r": []}
    for one in log_p:  # one at a time: a density has _OUTPUT^2 values
        log_density = to_l @ (one - one.max()) @ to_r.T
        density = np.exp(log_density - log_density.max())
        for name, marginal in (("l", density.sum(axis=1)), ("r", density.sum(axis=0))):
            steps = np.concatenate([[0.0], np.cumsum(marginal[1:] + marginal[:-1])])
            cdf[name].append(steps / steps[-1])
    return {name: (np.logaddexp(0, x), np.array(cdf[name])) for name, x in zip("lr", fine, strict=True)}


def shared_posteriors(tuples: Counts, weights: Any, prior_scale2: float = 10.0) -> SharedPosteriors:
    """Posteriors of (l, r) for several multisets of count tuples at once, by quadrature.

    One box is closed in around the supports of all of them (with a rough rule), and tabulated finely. A posterior that
    spans fewer than five steps of that grid gets a box of its own.

    Args:
        tuples: (u, 4) int64 distinct rows.
        weights: (b, u) multiplicities, an array or a SciPy sparse matrix; every row has a positive sum.
        prior_scale2: squared scale of the half-normal priors, in [0.01, 10_000].

    Returns:
        SharedPosteriors over the b multisets.

    Raises:
        InputError: no tuple, or a prior scale out of range.

    Example:
        >>> post = shared_posteriors(np.array([[10, 100, 10, 100]]), np.array([[1.0], [20.0]]))
        >>> post.quantile("r", 0.5).round(1).tolist()
        [3.6, 3.5]
    """
    scale2 = check_real("prior_scale2", prior_scale2, 0.01, 10_000)
    require(weights.shape[0] > 0, "weights", "have at least one row", "none")
    grids, log_p = _close_in(tuples, weights, scale2)
    found = _marginals(grids, log_p)
    values = {name: np.repeat(x[None], len(log_p), axis=0) for name, (x, _) in found.items()}
    cdf = {name: y for name, (_, y) in found.items()}
    widths = np.min([high - low for low, high in (_support(log_p, axis) for axis in (0, 1))], axis=0)
    for b in np.flatnonzero(widths < _RESOLVED) if len(log_p) > 1 else ():
        alone = _compact(tuples, weights[[b]])
        own = shared_posteriors(*alone, scale2)
        for name in ("l", "r"):
            values[name][b], cdf[name][b] = own._values[name][0], own._cdf[name][0]
    return SharedPosteriors(scale2, values, cdf)


def _compact(tuples: Counts, weights: Any) -> tuple[Counts, np.ndarray]:
    """Only the tuples with positive weight in the only row of ``weights``."""
    row = np.asarray(weights.todense() if hasattr(weights, "todense") else weights, float).ravel()
    return tuples[row > 0], row[None, row > 0]
