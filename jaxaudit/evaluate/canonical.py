"""Scores freed of what must not matter: rounding that breaks ties, and the order of the records.

The functions that judge several attacks together do this themselves; those for one attack (``auc``, ``tpr_at_fpr``)
take scores as they are. The release audit merges right after scoring, so that records.csv holds the scores judged.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from scipy import stats

from jaxaudit.runtime.keys import host_rng

__all__ = ["by_class", "canonical_order", "merge_rounding", "shuffled_order"]

_TOLERANCE = 1e-12
"""Differences below this share of max(1, |score|) are rounding: other orders of columns move the scores of real tables
by up to 6e-13 of it. Much above it real differences of likelihood ratios near 0 would go."""


def merge_rounding(scores: Any) -> np.ndarray:
    """Scores that differ by rounding only become equal, in every row apart.

    Sums in another order of columns differ by 1e-16 or so, which breaks ties at random. Scores within 1e-12 max(1, |s|)
    of the smallest of their cluster, s, get its value. Clusters start at the smallest score not yet in one, so none is
    wider than that however densely scores lie, order is kept, and merging twice changes nothing. The smallest, since a
    record that reaches a threshold then does so by the score it came with, too. Where all scores are below 1e-6
    (densities, say) the largest of them takes the place of 1; scores over many orders of magnitude should come as
    logarithms.

    Args:
        scores: (n,) or (a, n) real numbers; a row with a value that is not finite stays as it is.

    Returns:
        float64 of the same shape.

    Example:
        >>> merge_rounding([0.1 + 0.2, 0.3, 0.3 + 1e-8]).tolist()
        [0.3, 0.3, 0.30000001]
    """
    values = np.array(scores, dtype=np.float64)
    for row in np.atleast_2d(values):
        if row.size and np.isfinite(row).all():
            row[:] = _merged(row)
    return values


def _merged(row: np.ndarray) -> np.ndarray:
    ordered, inverse = np.unique(row, return_inverse=True)
    largest = float(np.abs(ordered[[0, -1]]).max())
    width = _TOLERANCE * np.maximum(largest if largest < 1e-6 else 1.0, np.abs(ordered))
    close = np.diff(ordered) <= width[:-1]
    if not close.any():
        return row
    runs = np.flatnonzero(np.append(True, ~close))  # starts of runs of close neighbours
    ends = np.append(runs[1:], ordered.size)
    merged = np.repeat(ordered[runs], ends - runs)
    for start, end in zip(runs, ends, strict=True):
        if ordered[end - 1] - ordered[start] > width[start]:  # a chain: cut it
            while start < end:
                stop = start + int(np.searchsorted(ordered[start:end], ordered[start] + width[start], side="right"))
                merged[start:stop] = ordered[start]
                start = stop
    return merged[inverse]


def by_class(values: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of members and of non-members, (..., n1) and (..., n0), each ascending whatever the order of records.

    Example:
        >>> [part.tolist() for part in by_class(np.array([3.0, 1.0, 2.0]), np.array([True, False, True]))]
        [[2.0, 3.0], [1.0]]
    """
    return np.sort(values[..., labels], axis=-1), np.sort(values[..., ~labels], axis=-1)


def canonical_order(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """An order of the records that is the same however they come: non-members first, then by the scores.

    The attack with the largest AUC is looked at first, then the next; so the order of the attacks does not matter
    either, unless two have equal AUCs. Records that remain tied have the same label and scores everywhere.

    Args:
        values: (a, n) finite scores.
        labels: (n,) bool.

    Returns:
        (n,) int64 indices.

    Example:
        >>> canonical_order(np.array([[3.0, 1.0, 2.0, 0.0]]), np.array([True, False, True, False])).tolist()
        [3, 1, 2, 0]
    """
    sums = 2.0 * stats.rankdata(values, axis=1) @ labels  # whole numbers: exact in any order
    return np.lexsort([*values[np.argsort(sums, kind="stable")], labels])


def shuffled_order(values: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
    """``canonical_order``, shuffled by the seed and the ranks: for resamples and halves that are drawn by place.

    Of sorted records one seed would draw the same ranks in every audit of this size, lucky or unlucky ones. Monotone
    maps of the scores change nothing.

    Args:
        values: (a, n) finite scores.
        labels: (n,) bool.
        seed: of the shuffling.

    Returns:
        (n,) int64 indices.

    Example:
        >>> scores, labels, back = np.array([3.0, 1.0, 2.0, 0.0]), np.array([1, 0, 1, 0]) > 0, [3, 2, 1, 0]
        >>> again = scores[back][shuffled_order(scores[None, back], labels[back], 0)]
        >>> again.tolist() == scores[shuffled_order(scores[None], labels, 0)].tolist()
        True
    """
    order = canonical_order(values, labels)
    ranks = stats.rankdata(values[:, order], axis=1)
    marks = sorted(zlib.crc32(row.tobytes()) for row in ranks)  # in whatever order the attacks come
    return order[host_rng(seed, "record order", *marks).permutation(order.size)]
