"""Who is exposed: the scored records from the most typical to the most unusual, and an attack within each stratum.

Membership of unusual records is often easier to tell, which an average over all records hides. Here a record is unusual
when the independent reference has few rows near it, a measure that neither the release nor the labels have a say in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from jaxaudit.evaluate.roc import auc, auc_interval, clopper_pearson, tpr_at_fpr, validate
from jaxaudit.runtime.checks import check_int, check_real, require
from jaxaudit.tables.attacks.neighbours import nearest_pairs
from jaxaudit.tables.density import as_rows, distinct_rows

__all__ = ["Strata", "outlier_strata", "reference_distance", "strata_summary"]


@dataclass(frozen=True)
class Strata:
    """Records by how unusual they are.

    Attributes:
        distance: (n,) float64, of every record to its k-th nearest reference row, encoded.
        stratum: (n,) int64 in [0, count), 0 for the most typical records.
        count: number of strata; some may be empty where distances tie.
        k: of the distance.
    """

    distance: np.ndarray
    stratum: np.ndarray
    count: int
    k: int


def reference_distance(targets: Any, reference: Any, k: int = 5) -> np.ndarray:
    """Euclidean distance of every record to its k-th nearest reference row, copies counted.

    Args:
        targets: (n, d) encoded records.
        reference: (m, d) encoded reference rows, m >= k.
        k: in [1, m].

    Returns:
        (n,) float64, >= 0; larger is more unusual. A record's value depends on the reference only.

    Example:
        >>> reference_distance([[0.0], [9.0]], [[1.0], [1.0], [3.0]], k=3).tolist()
        [3.0, 8.0]
    """
    rows = as_rows("targets", targets)
    distinct, counts = distinct_rows(as_rows("reference", reference, rows.shape[1]))
    pairs = nearest_pairs(rows, distinct, counts, k)
    squared = np.zeros(len(rows))
    np.maximum.at(squared, pairs.target, pairs.squared)
    return np.sqrt(squared)


def outlier_strata(targets: Any, reference: Any, k: int = 5, count: int = 4) -> Strata:
    """Cut the records into strata of equal size by their distance to the reference (quartiles by default).

    Record i with midrank q_i of n goes to stratum floor(count (q_i - 1/2) / n): records at the same distance stay
    together, so that the order of records has no influence, and strata may then differ in size or be empty.

    Args:
        targets: (n, d) encoded records that are scored.
        reference: (m, d) encoded reference rows.
        k: neighbours of the distance, >= 1; all m rows where the reference has fewer than k.
        count: number of strata, in [1, 100].

    Returns:
        The strata.

    Raises:
        InputError: tables of different width, values that are not finite, k or count out of range.

    Example:
        >>> outlier_strata([[0.0], [5.0], [2.0], [9.0]], [[0.0]]).stratum.tolist()
        [0, 2, 1, 3]
    """
    check_int("strata.k", k, 1)
    check_int("strata.count", count, 1, 100)
    rows = as_rows("reference", reference)
    k = min(k, len(rows))
    distance = reference_distance(targets, rows, k)
    # Distances that differ by rounding are the same, as among the neighbours of an attack.
    ranks = rankdata(_without_rounding(distance))
    stratum = np.floor(count * (ranks - 0.5) / len(ranks)).astype(np.int64)
    return Strata(distance, stratum, count, k)


def _without_rounding(values: np.ndarray) -> np.ndarray:
    """Sorted neighbours closer than 1e-9 of their size get one value, whatever the order of ``values``."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    steps = np.diff(ordered, prepend=ordered[:1]) > 1e-9 * ordered
    groups = np.empty(len(values), np.int64)
    groups[order] = np.cumsum(steps)
    return groups


def strata_summary(
    scores: Any, member: Any, strata: Strata, fpr: float = 0.1, level: float = 0.95
) -> list[dict[str, Any]]:
    """What one attack reaches among the records of every stratum.

    The threshold is that of the false-positive rate ``fpr`` over all non-members (``tpr_at_fpr``), the same in every
    stratum: an attacker does not choose one per stratum, and false positives show where the attack errs.

    Args:
        scores: (n,) finite real numbers, higher = more member-like.
        member: (n,) of 0/1 or booleans.
        strata: of the same records.
        fpr: in [0, 1].
        level: coverage of all intervals, in (0, 1).

    Returns:
        One dict per stratum, the most typical first: ``members``, ``non_members``, ``distance`` = [least, greatest],
        ``auc`` with ``auc_ci`` (DeLong), ``threshold``, ``true_positives``, ``false_positives``, ``tpr`` with
        ``tpr_ci`` and ``fpr`` with ``fpr_ci`` (exact binomial). None where a stratum lacks the records for a number.

    Raises:
        InputError: see ``evaluate.roc.validate``; strata of other records; fpr or level out of range.

    Example:
        >>> strata = outlier_strata([[0.0], [1.0], [8.0], [9.0]], [[0.0]], count=2)
        >>> [row["auc"] for row in strata_summary([1, 0, 0, 1], [0, 1, 0, 1], strata)]
        [0.0, 1.0]
    """
    values, labels = validate(scores, member)
    require(len(strata.stratum) == labels.size, "strata", f"be of {labels.size} records", len(strata.stratum))
    check_real("strata.fpr", fpr, 0, 1)
    threshold = next(iter(tpr_at_fpr(values, labels, levels=(fpr,)).values()))["threshold"]
    rows = []
    for index in range(strata.count):
        inside = strata.stratum == index
        members, others = values[inside & labels], values[inside & ~labels]
        judged = bool(members.size and others.size)
        tp, fp = int((members >= threshold).sum()), int((others >= threshold).sum())
        own = strata.distance[inside]
        rows.append({
            "stratum": index, "members": members.size, "non_members": others.size,
            "distance": [float(own.min()), float(own.max())] if own.size else None,
            "auc": auc(values[inside], labels[inside]) if judged else None,
            "auc_ci": list(auc_interval(values[inside], labels[inside], level=level)) if judged else None,
            "threshold": threshold, "true_positives": tp, "false_positives": fp,
            **_rate("tpr", tp, members.size, level), **_rate("fpr", fp, others.size, level),
        })  # fmt: skip
    return rows


def _rate(name: str, hits: int, trials: int, level: float) -> dict[str, Any]:
    if not trials:
        return {name: None, f"{name}_ci": None}
    low, high = clopper_pearson(hits, trials, level)
    return {name: hits / trials, f"{name}_ci": [float(low), float(high)]}
