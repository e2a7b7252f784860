"""DPI, the data plagiarism index: whose rows crowd around the record, with closer ones counting more.

Source: Ward, Wang and Cheng, "Data Plagiarism Index: Characterizing the Privacy Risk of Data-Copying in Tabular
Generative Models", arXiv:2406.13012; the weights and the correction for the sizes of the two tables are derived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxaudit.runtime.checks import check_int
from jaxaudit.tables.attacks.neighbours import nearest_pairs
from jaxaudit.tables.density import as_rows, distinct_rows

__all__ = ["DPIConfig", "dpi"]


@dataclass(frozen=True)
class DPIConfig:
    """Settings of DPI.

    Attributes:
        k: nearest rows of release and reference together, >= 1; tables with fewer than k + 1 rows together use
            one less than they have.
    """

    k: int = 20

    def __post_init__(self) -> None:
        check_int("dpi.k", self.k, 1)


def dpi(
    targets: np.ndarray, synthetic: np.ndarray, reference: np.ndarray, config: DPIConfig | None = None
) -> np.ndarray:
    """``log[(sum_S w + 1/2) / (sum_R w + 1/2)] - log(m / n)`` over the k nearest of both tables.

    ``w_j = 1 - d_j / d_{k+1}``: rows at the distance of the (k+1)-th weigh nothing, so that a tie at the k-th place
    needs no choice. Where more than k rows equal the target, they share the k places. A target that is a row of the
    reference adds one row of weight 1 to the reference's side, no more than a row close by does.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows.
        reference: (r, d) independent rows of the same population.
        config: settings; None for the defaults.

    Returns:
        (n,) float64; higher is more member-like.

    Raises:
        InputError: tables of different width, values that are not finite.

    Example:
        >>> s, r = np.array([[0.0], [4.0]]), np.array([[1.0], [9.0]])
        >>> bool(np.isclose(dpi(np.array([[0.0]]), s, r, DPIConfig(k=2))[0], np.log((1 + 0.5) / (0.75 + 0.5))))
        True
    """
    k = (config or DPIConfig()).k
    x = as_rows("targets", targets)
    s_rows, s_counts = distinct_rows(as_rows("synthetic", synthetic, x.shape[1]))
    r_rows, r_counts = distinct_rows(as_rows("reference", reference, x.shape[1]))
    m, n = int(s_counts.sum()), int(r_counts.sum())
    k = min(k, m + n - 1)
    pool, copies = np.concatenate([s_rows, r_rows]), np.concatenate([s_counts, r_counts])
    pairs = nearest_pairs(x, pool, copies, k + 1)

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(pairs.target, weights=values, minlength=len(x))

    edge = np.zeros(len(x))  # squared d_{k+1}
    np.maximum.at(edge, pairs.target, pairs.squared)
    edge = edge[pairs.target]
    count = copies[pairs.row].astype(np.float64)
    # all pairs of a target with d_{k+1} = 0 equal the target
    weight = np.where(edge > 0, 1.0 - np.sqrt(pairs.squared / np.where(edge > 0, edge, 1.0)),
                      k / total(count)[pairs.target])  # fmt: skip
    released = pairs.row < len(s_rows)
    ours, theirs = (total(count * weight * side) for side in (released, ~released))
    return np.log(ours + 0.5) - np.log(theirs + 0.5) - np.log(m / n)
