"""Gaussian kernel densities: a basis that survives singular tables, and log densities in bounded memory.

Everything is computed in log space and in coordinates whitened by a table's own covariance, so that a
density neither underflows in many columns nor depends on the units of a column.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.runtime.checks import InputError, check_choice, check_finite, check_real, require
from jaxaudit.runtime.chunks import pad_rows
from jaxaudit.tables import blocks
from jaxaudit.tables.blocks import block_map, row_blocks, table_size

__all__ = [
    "EIGENVALUE_FLOOR",
    "Basis",
    "KernelDensity",
    "SpanReport",
    "as_rows",
    "bandwidth_factor",
    "distinct_rows",
    "fit_basis",
    "fit_density",
    "kernel_exponents",
    "log_density",
    "log_kernel_sums",
    "log_sum_kernels",
    "pad_columns",
    "padded_centres",
    "precision_scope",
    "span_report",
    "sum_range",
]

EIGENVALUE_FLOOR = 1e-10
"""Directions whose correlation eigenvalue is below this share of the largest one count as absent."""

_CENTRES = 512
"""Most centres of one step of a kernel sum."""

_CONSTANT = 1e-12
"""A column whose standard deviation is below this share of its largest absolute value is constant."""


def as_rows(name: str, value: Any, columns: int | None = None) -> np.ndarray:
    """``value`` as a finite float64 matrix (rows, columns) with at least one row, or an ``InputError``."""
    try:
        require(not np.iscomplexobj(value), name, "have real numbers", "complex ones")
        rows = np.asarray(value, dtype=np.float64)
    except InputError:
        raise
    except (TypeError, ValueError):
        require(False, name, "be a table of numbers", type(value).__name__)
    require(rows.ndim == 2 and rows.size > 0, name, "be a matrix (rows, columns), not empty", f"shape {rows.shape}")
    require(columns is None or rows.shape[1] == columns, name, f"have {columns} columns", rows.shape[1])
    check_finite(name, rows)
    return rows


@overload
def distinct_rows(rows: np.ndarray, *, origin: Literal[False] = False) -> tuple[np.ndarray, np.ndarray]: ...
@overload
def distinct_rows(rows: np.ndarray, *, origin: Literal[True]) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def distinct_rows(rows: np.ndarray, *, origin: bool = False) -> tuple[np.ndarray, ...]:
    """The distinct rows in lexicographic order and how often each occurs.

    Every kernel works on this form: copies are met once, and the row order of a table cannot change a
    single bit of a score. ``origin=True`` adds the indices of all rows in that order, copies side by side.

    Example:
        >>> distinct_rows(np.array([[2.0], [1.0], [2.0]]))
        (array([[1.],
               [2.]]), array([1, 2]))
        >>> distinct_rows(np.array([[2.0], [1.0], [2.0]]), origin=True)[2]
        array([1, 0, 2])
    """
    order = _lexicographic(rows)
    rows = rows[order]
    first = np.flatnonzero(np.concatenate([[True], np.any(rows[1:] != rows[:-1], axis=1)]))
    counts = np.diff(np.append(first, len(rows)))
    return (rows[first], counts, order) if origin else (rows[first], counts)


def _lexicographic(rows: np.ndarray) -> np.ndarray:
    """Order of the rows: by the first column, and by all of them only where that one ties."""
    order = np.argsort(rows[:, 0], kind="stable")
    first = rows[order, 0]
    equal = first[1:] == first[:-1]
    tied = np.flatnonzero(np.append(equal, False) | np.insert(equal, 0, False))
    if tied.size:  # the tied rows, sorted by all columns, fill the same places group by group
        part = order[tied]
        order[tied] = part[np.lexsort(rows[part].T[::-1])]
    return order


def bandwidth_factor(n: int, dimension: int, rule: str | float = "silverman", multiplier: float = 1.0) -> float:
    """Bandwidth in units of the standard deviation, as SciPy's ``gaussian_kde`` defines it.

    ``(n (d + 2) / 4)^(-1/(d + 4))`` (Silverman), ``n^(-1/(d + 4))`` (Scott), or a number > 0 that is the bandwidth
    itself, whatever n; times the multiplier.

    Raises:
        InputError: another rule, a number outside [1e-6, 1e6].

    Example:
        >>> round(bandwidth_factor(100, 2, "scott"), 4), bandwidth_factor(100, 2, 0.5, 2.0)
        (0.4642, 1.0)
    """
    if not isinstance(rule, str):
        return multiplier * check_real("rule", rule, 1e-6, 1e6)
    check_choice("rule", rule, ("silverman", "scott"))
    base = n * (dimension + 2) / 4 if rule == "silverman" else n
    return float(multiplier * base ** (-1.0 / (dimension + 4)))


@dataclass(frozen=True)
class Basis:
    """Coordinates in which a table has mean zero and the identity as covariance.

    Attributes:
        mean: (d,) column means.
        scale: (d,) column standard deviations (ddof 1); 1 where a column is constant.
        directions: (d, e) orthonormal eigenvectors of the correlation matrix that the table spans.
        deviations: (e,) square roots of their eigenvalues.
        constant: (d,) bool, columns without variation.
    """

    mean: np.ndarray
    scale: np.ndarray
    directions: np.ndarray
    deviations: np.ndarray
    constant: np.ndarray

    @property
    def dimension(self) -> int:
        """Effective dimension e, 1 <= e <= d."""
        return int(self.directions.shape[1])

    @property
    def log_volume(self) -> float:
        """Half the log determinant of the covariance (of its spanned part where it is singular)."""
        return float(np.log(self.scale).sum() + np.log(self.deviations).sum())

    def whiten(self, rows: np.ndarray) -> np.ndarray:
        """Whitened coordinates (rows, e), float64; a row's result does not depend on the other rows."""
        return _row_products((rows - self.mean) / self.scale, self.directions / self.deviations)

    def out_of_span(self, rows: np.ndarray) -> np.ndarray:
        """(rows,) distance from the table's span in column standard deviations; 0 below rounding error.

        A column that is constant in the table counts in its own units.
        """
        centred = (rows - self.mean) / self.scale
        inside = _row_products(centred, self.directions)
        outside = np.linalg.norm(centred - _row_products(inside, self.directions.T), axis=1)
        # directions below the eigenvalue floor have deviations up to its root: not evidence of anything
        noise = 10 * np.sqrt(EIGENVALUE_FLOOR) * (1.0 + np.linalg.norm(centred, axis=1))
        return np.where(outside > noise, outside, 0.0)


def fit_basis(
    rows: np.ndarray, counts: np.ndarray | None = None, *, name: str = "reference", standardise: bool = True,
) -> Basis:  # fmt: skip
    """Mean, covariance (ddof 1) and its spanned eigenvectors, from one table.

    Columns are standardised first, so that the eigenvalue threshold does not depend on units. Constant
    and collinear columns, one-hot blocks and tables with fewer rows than columns leave fewer
    directions than columns; what lies outside is reported by ``Basis.out_of_span``.

    Args:
        rows: (n, d) float64, finite.
        counts: (n,) how often each row occurs; None: once.
        name: how an error calls the table.
        standardise: False for columns that share one unit already; ``EIGENVALUE_FLOOR`` is then in that unit
            instead of relative to the largest eigenvalue.

    Raises:
        InputError: fewer than two rows, or no column varies.

    Example:
        >>> table = np.random.default_rng(0).normal(size=(50, 2))
        >>> table = np.column_stack([table, table[:, 0] + table[:, 1], np.ones(50)])
        >>> basis = fit_basis(table)
        >>> basis.dimension, np.cov(basis.whiten(table).T).round(6) + 0.0
        (2, array([[1., 0.],
               [0., 1.]]))
    """
    weights = np.ones(len(rows)) if counts is None else counts.astype(np.float64)
    n = weights.sum()
    require(n >= 2, name, "have at least 2 rows", int(n))
    mean = np.einsum("n,nd->d", weights, rows) / n  # einsum: threads of a BLAS cost more than they save here
    centred = rows - mean
    scale = np.sqrt(np.einsum("n,nd,nd->d", weights, centred, centred) / (n - 1))
    constant = scale <= _CONSTANT * np.abs(rows).max(axis=0)
    require(not constant.all(), name, "vary in at least one column", f"{int(n)} equal rows")
    scale = np.where(constant, 1.0, scale) if standardise else np.ones_like(scale)
    centred = np.where(constant, 0.0, centred / scale) * np.sqrt(weights / (n - 1))[:, None]
    # singular values of the triangular factor: as accurate as those of the table, and cheap for long tables
    _, singular, directions = np.linalg.svd(_triangular(centred), full_matrices=False)
    keep = singular**2 > EIGENVALUE_FLOOR * (singular[0] ** 2 if standardise else 1.0)
    require(bool(keep.any()), name, "vary in at least one direction", f"{int(n)} nearly equal rows")
    return Basis(mean, scale, directions[keep].T, singular[keep], constant)


def _row_products(rows: np.ndarray, matrix: np.ndarray, block: int = 64) -> np.ndarray:
    """``rows @ matrix``, always as products of ``block`` rows: BLAS rounds differently with the number of rows."""
    if len(rows) > block and (whole := len(rows) // block * block):
        left = np.matmul(rows[:whole].reshape(-1, block, rows.shape[1]), matrix).reshape(whole, -1)
        return left if whole == len(rows) else np.concatenate([left, _row_products(rows[whole:], matrix, block)])
    return np.asarray(pad_rows(rows, block) @ matrix)[: len(rows)]


def _triangular(rows: np.ndarray, block: int = 128) -> np.ndarray:
    """R of rows = Q R (up to signs), by factors of blocks of rows that fit the cache: as stable as one factor.

    Blocks of 128 x 64 numbers are also below the size at which a BLAS wakes its threads, which wait for each other
    longer than they work. Rows of zeros fill the last block; they add nothing to R.
    """
    d = rows.shape[1]
    while len(rows) > block and d <= block // 2:
        filled = np.zeros((-(-len(rows) // block) * block, d))
        filled[: len(rows)] = rows
        rows = np.asarray(np.linalg.qr(filled.reshape(-1, block, d), mode="r")).reshape(-1, d)
    return np.asarray(np.linalg.qr(rows, mode="r"))


@dataclass(frozen=True)
class SpanReport:
    """What the reference can and cannot describe.

    Attributes:
        effective_dimension: directions that the reference spans.
        out_of_span: (n,) distance of each target from that span, in column standard deviations: itself a
            signal, since no density sees it.
        warnings: one sentence each.
    """

    effective_dimension: int
    out_of_span: np.ndarray
    warnings: tuple[str, ...]


def span_report(targets: np.ndarray, synthetic: np.ndarray, basis: Basis) -> SpanReport:
    """Effective dimension, out-of-span distances and warnings for one reference basis."""
    outside = basis.out_of_span(targets)
    notes = []
    columns, constant = len(basis.mean), int(basis.constant.sum())
    if basis.dimension < columns:
        notes.append(
            f"the reference spans {basis.dimension} of {columns} dimensions "
            f"({constant} constant column{'' if constant == 1 else 's'}): "
            "densities and bandwidths use the spanned ones"
        )
        for what, distance in (("target", outside), ("synthetic", basis.out_of_span(synthetic))):
            if count := int(np.count_nonzero(distance)):
                leave = "leaves" if count == 1 else "leave"
                notes.append(
                    f"{count} of {len(distance)} {what} rows {leave} the span of the reference, by up to "
                    f"{distance.max():.3g} standard deviations: densities do not see that part"
                )
    return SpanReport(basis.dimension, outside, tuple(notes))


@contextmanager
def precision_scope(precision: str) -> Iterator[Any]:
    """Local 32- or 64-bit mode; yields the NumPy dtype that inputs must be converted to inside."""
    check_choice("precision", precision, ("float32", "float64"))
    with jax.enable_x64(precision == "float64"):
        yield np.dtype(precision).type


def pad_columns(rows: np.ndarray) -> np.ndarray:
    """Add zero columns up to a multiple of 8: few shapes to compile, distances unchanged."""
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8)))


def kernel_exponents(points: jax.Array, centres: jax.Array, inverse: jax.Array) -> jax.Array:
    """``|v - r|^2 * inverse`` for points (p, e) against centres (n, e), shape (p, n); traceable.

    By the matrix-product form. The error is that of one rounding of |v|^2 + |r|^2, and centres that are
    whitened by their own covariance have |r|^2 <= (n - 1)^2 / n, so a point close to one is not far out.
    """
    cross = jnp.dot(points, centres.T, precision=jax.lax.Precision.HIGHEST)
    squares = jnp.sum(points**2, axis=-1)[:, None] + jnp.sum(centres**2, axis=-1)[None, :]
    return jnp.maximum(squares - 2.0 * cross, 0.0) * inverse


def log_sum_kernels(points: jax.Array, centres: jax.Array, log_counts: jax.Array, inverse: jax.Array) -> jax.Array:
    """``log sum_i count_i exp(-|v - r_i|^2 inverse)`` for points (p, e) against centres (n, e), shape (p,); traceable.

    Block by block of centres, so that the (p, block) table and the block stay in cache, and without the usual shift by
    the largest term; where a sum leaves the range in which that is safe, all are summed with it.
    """
    count = -(-len(centres) // _CENTRES)
    while len(centres) % count:
        count += 1
    other = log_counts - inverse * jnp.sum(centres**2, axis=1)
    parts = tuple(part.reshape(count, -1, *part.shape[1:]) for part in (centres, log_counts, other))
    scaled, own = 2.0 * inverse * points, inverse * jnp.sum(points**2, axis=1)

    def quick(total: jax.Array, block: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        rows, _, other = block
        cross = jnp.dot(scaled, rows.T, precision=jax.lax.Precision.HIGHEST)
        return total + jnp.sum(jnp.exp(cross + other - own[:, None]), axis=1), None

    def stable(total: jax.Array, block: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        rows, log_count, _ = block
        more = jax.nn.logsumexp(log_count - kernel_exponents(points, rows, inverse), axis=1)
        return jnp.logaddexp(total, more), None

    total = jax.lax.scan(quick, jnp.zeros_like(own), parts)[0]
    low, high = sum_range(points.dtype)
    safe = (jnp.min(total) > low) & (jnp.max(total) < high)
    empty = jnp.full_like(own, -jnp.inf)
    return jax.lax.cond(safe, lambda: jnp.log(total), lambda: jax.lax.scan(stable, empty, parts)[0])


def sum_range(dtype: Any) -> tuple[float, float]:
    """Sums of kernels whose largest terms are neither lost nor infinite, with room for the terms that matter."""
    return (1e-65, 1e300) if dtype == jnp.float64 else (1e-25, 1e37)


@dataclass(frozen=True)
class KernelDensity:
    """A Gaussian kernel density ready to be evaluated.

    Attributes:
        centres: (n, e) distinct rows in whitened coordinates, float64.
        log_counts: (n,) log multiplicities.
        bandwidth: kernel standard deviation in whitened units.
        log_norm: what is subtracted from the log kernel sum: rows, bandwidth and volume.
    """

    centres: np.ndarray
    log_counts: np.ndarray
    bandwidth: float
    log_norm: float


def fit_density(centres: np.ndarray, counts: np.ndarray, bandwidth: float, log_volume: float) -> KernelDensity:
    """The density whose rows, whitened, are ``centres``; ``log_volume`` undoes the whitening's Jacobian."""
    e = centres.shape[1]
    norm = np.log(counts.sum()) + e * (np.log(bandwidth) + 0.5 * np.log(2 * np.pi)) + log_volume
    return KernelDensity(centres, np.log(counts), bandwidth, float(norm))


def log_density(density: KernelDensity, points: np.ndarray, precision: str = "float64") -> np.ndarray:
    """Log density at whitened ``points`` (p, e), shape (p,), float64.

    Matches ``scipy.stats.gaussian_kde(...).logpdf`` where the covariance has full rank.

    Example:
        >>> from scipy.stats import gaussian_kde
        >>> table = np.random.default_rng(0).normal(size=(60, 2)) * [1.0, 9.0]
        >>> rows, counts = distinct_rows(table)
        >>> basis = fit_basis(rows, counts)
        >>> kde = fit_density(basis.whiten(rows), counts, bandwidth_factor(60, 2, "scott"), basis.log_volume)
        >>> bool(np.allclose(log_density(kde, basis.whiten(table)), gaussian_kde(table.T).logpdf(table.T)))
        True
    """
    return log_kernel_sums(density, points, precision) - density.log_norm


def log_kernel_sums(density: KernelDensity, points: np.ndarray, precision: str = "float64") -> np.ndarray:
    """``log sum_i count_i exp(-|v - r_i|^2 / 2 h^2)`` at whitened points (p, e), shape (p,), float64."""

    def some(start: int) -> np.ndarray:
        with precision_scope(precision):
            part = pad_rows(rows[start : start + size], size)
            return np.asarray(_log_kernel_sums(part, centres, log_counts, inverse, chunk=chunk), dtype=np.float64)

    with precision_scope(precision) as dtype:
        centres, log_counts = padded_centres(density, dtype)
        rows = pad_columns(points).astype(dtype)
        inverse = dtype(0.5 / density.bandwidth**2)
    budget, most = (8 << 20, 512) if blocks.on_cpu() else (256 << 20, 8192)
    chunk = row_blocks(len(rows), centres.itemsize * min(_CENTRES, len(centres)), budget, most)[1]
    size = chunk * min(2, -(-len(rows) // chunk))
    return np.concatenate(block_map(some, range(0, len(rows), size)))[: len(rows)]


def padded_centres(density: KernelDensity, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Centres and log counts padded to a table size; padding has count zero."""
    size = table_size(len(density.centres))
    log_counts = np.full(size, -np.inf, dtype)
    log_counts[: len(density.centres)] = density.log_counts
    return pad_rows(pad_columns(density.centres).astype(dtype), size), log_counts


@partial(jax.jit, static_argnames="chunk")
def _log_kernel_sums(
    points: jax.Array, centres: jax.Array, log_counts: jax.Array, inverse: jax.Array, *, chunk: int
) -> jax.Array:
    """(p,), ``chunk`` points at a time (p a multiple of it): a product of matrices and a table that stays in cache."""

    def block(part: jax.Array) -> jax.Array:
        return log_sum_kernels(part, centres, log_counts, inverse)

    return jax.lax.map(block, points.reshape(-1, chunk, points.shape[1])).ravel()
