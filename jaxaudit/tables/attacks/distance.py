"""Distance to closest record: copies and near copies of training rows."""

from __future__ import annotations

import numpy as np

from jaxaudit.tables.attacks.neighbours import nearest_distance, nearest_pairs
from jaxaudit.tables.density import as_rows, distinct_rows

__all__ = ["dcr", "dcr_diff"]


def dcr(targets: np.ndarray, synthetic: np.ndarray) -> np.ndarray:
    """Minus the Euclidean distance to the nearest synthetic row (distance to closest record).

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows.

    Returns:
        (n,) float64, <= 0, exactly 0 for a copy; higher is more member-like.

    Raises:
        InputError: tables of different width, values that are not finite.

    Example:
        >>> dcr(np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[3.0, 4.0]])).tolist()
        [-5.0, 0.0]
    """
    rows = as_rows("targets", targets)
    return 0.0 - nearest_distance(rows, as_rows("synthetic", synthetic, rows.shape[1]))


def dcr_diff(targets: np.ndarray, synthetic: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Distance to the reference minus distance to the release: closeness, corrected for how crowded the place is.

    The nearest of m rows is closer than the nearest of n < m for no reason but their number, so the tables are
    compared at the same rank per row: the nearest of the smaller against the ``ceil(m / n)``-th nearest of the
    larger, copies counted. The price: a single near copy in a release of two or more times the reference's size is not
    seen by this attack (``dcr`` sees it). A target that is a row of the reference (of the smaller or an equally
    large one) scores minus its distance to the release, at most 0: the release can be no closer.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows.
        reference: (r, d) independent rows of the same population.

    Returns:
        (n,) float64, in the unit of the distance; higher is more member-like.

    Raises:
        InputError: tables of different width, values that are not finite.

    Example:
        >>> s, r = np.array([[3.0], [4.0], [6.0], [9.0]]), np.array([[1.0], [2.0]])
        >>> dcr_diff(np.array([[0.0], [3.0]]), s, r).tolist()
        [-3.0, 0.0]
    """
    x = as_rows("targets", targets)
    s, s_counts = distinct_rows(as_rows("synthetic", synthetic, x.shape[1]))
    r, r_counts = distinct_rows(as_rows("reference", reference, x.shape[1]))
    m, n = int(s_counts.sum()), int(r_counts.sum())
    return _kth_nearest(x, r, r_counts, -(-n // m)) - _kth_nearest(x, s, s_counts, -(-m // n))


def _kth_nearest(targets: np.ndarray, rows: np.ndarray, counts: np.ndarray, k: int) -> np.ndarray:
    """Distance of every target to its k-th nearest row, copies counted; (n,) float64."""
    if k == 1:
        return nearest_distance(targets, rows)
    pairs = nearest_pairs(targets, rows, counts, k)
    squared = np.zeros(len(targets))
    np.maximum.at(squared, pairs.target, pairs.squared)
    return np.sqrt(squared)
