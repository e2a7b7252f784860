"""Gaussian kernel densities: bandwidths, and log densities in bounded memory.

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
    "KernelDensity",
    "as_rows",
    "bandwidth_factor",
    "distinct_rows",
    "fit_density",
    "kernel_exponents",
    "log_density",
    "log_kernel_sums",
    "log_sum_kernels",
    "pad_columns",
    "padded_centres",
    "precision_scope",
    "sum_range",
]

_LARGEST = 1e150
"""Largest number of a table: squares of differences are finite."""

_CENTRES = 512
"""Most centres of one step of a kernel sum."""


def as_rows(name: str, value: Any, columns: int | None = None) -> np.ndarray:
    """``value`` as a float64 matrix (rows, columns) of numbers up to 1e150, at least one row, or an ``InputError``."""
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
    largest = float(np.abs(rows).max())
    require(largest <= _LARGEST, name, f"have numbers of at most {_LARGEST:g} in size", largest)
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
        >>> from jaxaudit.tables.basis import fit_basis
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
