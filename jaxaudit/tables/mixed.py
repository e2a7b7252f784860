"""Kernel densities of tables with numbers and categories: a Gaussian kernel times Aitchison and Aitken's.

Kernel of a categorical column with c levels: ``1 - lam`` for equal levels, ``lam / (c - 1)`` for different ones, lam in
[0, (c-1)/c] (Aitchison and Aitken, Biometrika 63, 1976; products with kernels of numbers: Li and Racine, J.
Multivariate Analysis 86, 2003). Here ``lam = t (c-1)/c`` with t in (0, 1], so that the two values are ``1 - t + t/c``
and ``t/c``: a cell is kept, or with probability t drawn anew among all levels. t = 1 takes away the column's influence,
t towards 0 counts frequencies. A level that is not known gets t/c from every row, as a level that no row has.

The product is a Gaussian kernel in disguise (derived): ``log K = sum_b log(1 - lam_b) - sum_b w_b [levels differ]``,
``w_b = log1p(c_b (1-t)/t)``, and [levels differ] is the squared distance of indicator columns. Indicators scaled by
``h sqrt(2 w_b)`` beside whitened numbers give ``exp(-|z - z'|^2 / 2 h^2)``: sums over tables, neighbours and blocks
are those of ``jaxaudit.tables.density``, one matrix product for numbers and categories together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.runtime.checks import check_choice, check_real, require
from jaxaudit.runtime.chunks import pad_rows
from jaxaudit.tables import blocks
from jaxaudit.tables.blocks import block_map, row_blocks, table_size
from jaxaudit.tables.density import (
    KernelDensity,
    bandwidth_factor,
    kernel_exponents,
    log_kernel_sums,
    pad_columns,
    padded_centres,
    precision_scope,
)

__all__ = ["SHARES", "Categories", "MixedDensity", "MixedRows", "check_lam", "fit_mixed", "marginal_shares"]

SHARES = (0.001, 0.003, 0.01, 0.02, 0.04, 0.07, 0.11, 0.16, 0.22, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares t among which cross-validation chooses; not 1, for a density that is constant ranks no record."""

_HELD_OUT = 1024
"""Most rows that cross-validation leaves out in turn; at least a quarter of that."""

_KERNELS = 1 << 25
"""Kernels per share t beyond which cross-validation leaves fewer rows out."""


@dataclass(frozen=True)
class Categories:
    """Indicator columns in which two rows with different levels are at squared distance 1 per categorical column.

    Attributes:
        levels: (b,) known levels c of each column, >= 2.
        unknown: (b,) bool, whether a level that is not known occurs: a value of its own, none of the c.
    """

    levels: np.ndarray
    unknown: np.ndarray

    @property
    def widths(self) -> np.ndarray:
        """(b,) indicators of each column: one says which of two levels it is."""
        return np.where(self.unknown, self.levels + 1, np.where(self.levels == 2, 1, self.levels))

    def indicators(self, codes: np.ndarray) -> np.ndarray:
        """Codes (n, b) in [0, c), -1 for not known, as float64 (n, widths.sum()).

        Example:
            >>> Categories(np.array([2, 3]), np.array([False, False])).indicators(np.array([[1, 0], [0, 2]])).round(2)
            array([[1.  , 0.  , 0.  , 0.71],
                   [0.  , 0.71, 0.  , 0.  ]])
        """
        widths = self.widths
        last = np.repeat(self.levels, widths) - 1
        place = np.arange(widths.sum()) - np.repeat(np.cumsum(widths) - widths, widths)
        value = last - place  # counted down from the last level: a single column says "is level 1"
        scale = np.repeat(np.where(widths == 1, 1.0, np.sqrt(0.5)), widths)
        return scale * (np.repeat(codes, widths, axis=1) == value)


@dataclass(frozen=True)
class MixedRows:
    """n rows of a mixed table.

    Attributes:
        numbers: (n, e) whitened coordinates, float64; e = 0 for a table of categories.
        codes: (n, b) level of each categorical cell in [0, c), -1 for not known.
    """

    numbers: np.ndarray
    codes: np.ndarray


@dataclass(frozen=True)
class MixedDensity:
    """A product kernel density ready to be evaluated.

    Attributes:
        categories: how levels become columns.
        shares: (b,) t of each categorical column, in (0, 1].
        kernel: its rows in the coordinates of ``embed``; ``log_norm`` holds the norms of both kinds of kernels.
        rows: n, copies counted.
    """

    categories: Categories
    shares: np.ndarray
    kernel: KernelDensity
    rows: int

    def embed(self, rows: MixedRows) -> np.ndarray:
        """Rows as coordinates (n, e + indicators) in which the product kernel is the Gaussian of this bandwidth."""
        return _embed(rows.numbers, self.categories.indicators(rows.codes), self.categories, self.shares,
                      self.kernel.bandwidth)  # fmt: skip

    def log_density(self, rows: MixedRows, precision: str = "float64") -> np.ndarray:
        """Log density at rows (n,), float64: of the numbers' volume, and of the probability of the levels."""
        return log_kernel_sums(self.kernel, self.embed(rows), precision) - self.kernel.log_norm


def fit_mixed(
    rows: MixedRows, counts: np.ndarray, categories: Categories, *, rule: str | float = "silverman",
    multiplier: float = 1.0, lam: str | float = 0.1, log_volume: float = 0.0, precision: str = "float64",
) -> MixedDensity:  # fmt: skip
    """The product kernel density of a table.

    Args:
        rows: n distinct rows, their numbers whitened by their own covariance.
        counts: (n,) how often each occurs, two rows or more in all.
        categories: the levels of the categorical columns.
        rule: bandwidth of the numbers, in e dimensions, as ``density.bandwidth_factor``.
        multiplier: of that bandwidth.
        lam: t in [1e-6, 1], the share of its largest value (c-1)/c that lam takes in every column; or "cv": one t for
            all columns, by leave-one-out likelihood (Li and Racine 2003), among ``SHARES``; or "rule": a t per column,
            ``marginal_shares``.
        log_volume: undoes the whitening's Jacobian, ``Basis.log_volume``.
        precision: of cross-validation.

    Returns:
        The density; its rows are in the order given.

    Example:
        >>> rows = MixedRows(np.zeros((2, 0)), np.array([[0], [1]]))
        >>> fitted = fit_mixed(rows, np.array([3, 1]), Categories(np.array([2]), np.array([False])), lam=0.5)
        >>> np.exp(fitted.log_density(rows)).round(9).tolist()  # half of the mass as counted, half of it uniform
        [0.625, 0.375]
    """
    lam = check_lam("lam", lam)
    n, e = int(counts.sum()), rows.numbers.shape[1]
    require(n >= 2, "the table", "have at least 2 rows", n)
    h = bandwidth_factor(n, e, rule, multiplier) if e else 1.0
    indicators = categories.indicators(rows.codes)
    if not len(categories.levels):
        shares = np.empty(0)
    elif lam == "rule":
        shares = marginal_shares(rows.codes, counts, categories.levels)
    else:
        likeliest = partial(_likeliest_share, rows.numbers, indicators, counts, categories, h, precision)
        shares = np.full(len(categories.levels), likeliest() if lam == "cv" else lam, dtype=np.float64)
    norm = np.log(n) + e * (np.log(h) + 0.5 * np.log(2 * np.pi)) + log_volume - _log_equal(categories, shares)
    centres = _embed(rows.numbers, indicators, categories, shares, h)
    return MixedDensity(categories, shares, KernelDensity(centres, np.log(counts), h, float(norm)), n)


def check_lam(name: str, value: Any) -> str | float:
    """``value`` as "cv", "rule" or a share in [1e-6, 1], or an ``InputError``."""
    if isinstance(value, str):
        return check_choice(name, value, ("cv", "rule"))
    return check_real(name, value, 1e-6, 1.0)


def marginal_shares(codes: np.ndarray, counts: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """A rule of thumb for t, column by column: (b,) in [1/(n+1), 1].

    The estimate of a column alone is ``(1-t) f + t/c``, f the frequencies; its mean squared error summed over levels is
    ``t^2 sum (p - 1/c)^2 + (1-t)^2 (1 - sum p^2) / n``, smallest at ``t = V / (V + n B)`` with ``V = 1 - sum p^2`` and
    ``B = sum p^2 - 1/c``; f is put in for p (after Chu, Henderson and Parmeter, Econometrics 3, 2015). The lower limit
    is that of one row more whose level is drawn uniformly. It looks at one column at a time: in many columns it
    smooths too little.

    Args:
        codes: (n, b) levels in [0, c), -1 for not known (counted as no level).
        counts: (n,) how often each row occurs.
        levels: (b,) c.

    Example:
        >>> marginal_shares(np.array([[0, 0], [1, 0]]), np.array([5, 5]), np.array([2, 2]))
        array([1.        , 0.09090909])
    """
    n = counts.sum()
    shares = np.empty(len(levels))
    for b, c in enumerate(levels):
        known = codes[:, b] >= 0
        square = np.sum((np.bincount(codes[known, b], weights=counts[known], minlength=c) / n) ** 2)
        shares[b] = (1 - square) / (1 - square + n * max(square - 1 / c, 0.0)) if square < 1 else 0.0
    return np.maximum(shares, 1 / (n + 1))


def _embed(
    numbers: np.ndarray, indicators: np.ndarray, categories: Categories, shares: np.ndarray, h: float
) -> np.ndarray:
    weights = np.log1p(categories.levels * (1 - shares) / shares)
    return np.hstack([numbers, indicators * np.repeat(h * np.sqrt(2 * weights), categories.widths)])


def _log_equal(categories: Categories, shares: np.ndarray) -> float:
    """Log kernel of two rows that agree in all categories, ``sum_b log(1 - lam_b)``."""
    return float(np.log(1 - shares * (1 - 1 / categories.levels)).sum())


def _likeliest_share(
    numbers: np.ndarray, indicators: np.ndarray, counts: np.ndarray, categories: Categories, h: float, precision: str
) -> float:
    """The t in ``SHARES`` under which rows are likeliest given all other rows; the largest of equals.

    One t for all columns keeps the search a short grid. In long tables rows evenly spaced in the order given (that of
    ``distinct_rows``) are left out in turn, each against the whole table.
    """
    n = len(counts)
    most = min(n, max(_HELD_OUT // 4, min(_HELD_OUT, _KERNELS // n)))
    held = np.linspace(0, n - 1, most).round().astype(np.int64)

    def fit(share: float) -> float:
        shares = np.full(len(categories.levels), share)
        centres = _embed(numbers, indicators, categories, shares, h)
        sums = _left_out_sums(KernelDensity(centres, np.log(counts), h, 0.0), counts, held, precision)
        return float(counts[held] @ (sums + _log_equal(categories, shares)))

    return max(zip(block_map(fit, SHARES), SHARES, strict=True))[1]


def _left_out_sums(density: KernelDensity, counts: np.ndarray, held: np.ndarray, precision: str) -> np.ndarray:
    """``log sum_i (count_i - [i = j]) K(z_j, z_i)`` for the rows j in ``held``, shape (len(held),)."""
    with precision_scope(precision) as dtype:
        centres, log_counts = padded_centres(density, dtype)
        budget, most = (8 << 20, 128) if blocks.on_cpu() else (256 << 20, 8192)
        chunk = row_blocks(len(held), centres.itemsize * len(centres), budget, most)[1]
        size = -(-table_size(len(held)) // chunk) * chunk
        with np.errstate(divide="ignore"):
            others = np.log(counts[held] - 1.0)
        points = (pad_columns(density.centres[held]).astype(dtype), held.astype(np.int32), others.astype(dtype))
        inverse = dtype(0.5 / density.bandwidth**2)
        sums = _log_sums_of_others(*pad_rows(points, size), centres, log_counts, inverse, chunk=chunk)
        return np.asarray(sums, dtype=np.float64)[: len(held)]


@partial(jax.jit, static_argnames="chunk")
def _log_sums_of_others(
    points: jax.Array, own: jax.Array, others: jax.Array, centres: jax.Array, log_counts: jax.Array,
    inverse: jax.Array, *, chunk: int,
) -> jax.Array:  # fmt: skip
    """(p,), ``chunk`` points at a time; a point's own row counts ``others`` (log) instead, at distance exactly zero."""

    def block(part: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        rows, place, less = part
        terms = log_counts - kernel_exponents(rows, centres, inverse)
        mine = jnp.arange(len(centres), dtype=place.dtype) == place[:, None]
        return jax.nn.logsumexp(jnp.where(mine, less[:, None], terms), axis=1)

    parts = jax.tree.map(lambda leaf: leaf.reshape(-1, chunk, *leaf.shape[1:]), (points, own, others))
    return jax.lax.map(block, parts).ravel()
