"""Coordinates in which a table has the identity as covariance, also where it is singular.

Constant and collinear columns, one-hot blocks and tables with fewer rows than columns leave fewer directions than
columns; what lies outside of them is measured and warned about.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxaudit.runtime.checks import require
from jaxaudit.runtime.chunks import pad_rows

__all__ = ["EIGENVALUE_FLOOR", "Basis", "SpanReport", "fit_basis", "span_report"]

EIGENVALUE_FLOOR = 1e-10
"""Directions whose correlation eigenvalue is below this share of the largest one count as absent."""

_CONSTANT = 1e-12
"""A column whose standard deviation is below this share of its largest absolute value is constant."""


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
