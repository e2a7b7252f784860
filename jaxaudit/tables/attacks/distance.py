"""Distance to closest record: copies and near copies of training rows."""

from __future__ import annotations

import numpy as np

from jaxaudit.tables.attacks.neighbours import nearest_distance
from jaxaudit.tables.density import as_rows

__all__ = ["dcr"]


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
