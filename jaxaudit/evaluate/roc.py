"""ROC numbers of a membership attack: AUC with honest intervals, and true-positive rates at small false-positive rates.

Higher score = more member-like. Labels are 1 (or True) for members and 0 for non-members. Everything here is
NumPy on the host in float64: the inputs are small and nothing needs a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, stats

from jaxaudit.evaluate.canonical import by_class
from jaxaudit.runtime.checks import check_choice, check_finite, check_int, check_real, require

__all__ = [
    "RocCurve",
    "auc",
    "auc_interval",
    "clopper_pearson",
    "placements",
    "roc_curve",
    "tpr_at_fpr",
    "validate",
    "widened",
]

_FEW = 5.0
"""Below this many records' worth of overlap between the classes the empirical variance is not to be trusted."""


class RocCurve(NamedTuple):
    """The realised operating points, from "nobody is called a member" to "everybody is".

    Attributes:
        thresholds: (k,) float64, descending; the first is +inf. A record is called a member if score >= threshold.
        false_positives: (k,) int64 non-members called members.
        true_positives: (k,) int64 members called members.
        fpr: (k,) float64, false_positives / non-members.
        tpr: (k,) float64, true_positives / members.
    """

    thresholds: np.ndarray
    false_positives: np.ndarray
    true_positives: np.ndarray
    fpr: np.ndarray
    tpr: np.ndarray


def validate(scores: Any, member: Any, ndim: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Check scores and labels and return them as float64 and bool arrays.

    Args:
        scores: (n,), or (a, n) with ``ndim=2``, finite real numbers.
        member: (n,) of 0/1 or booleans, both classes present.
        ndim: the number of axes ``scores`` must have.

    Raises:
        InputError: wrong shape, length, type or labels, a class without records, or a score that is not finite.

    Example:
        >>> validate([0.5, 2], [0, 1])[1].tolist()
        [False, True]
    """
    labels = np.asarray(member)
    values = np.asarray(scores)
    require(values.dtype.kind in "biuf", "scores", "be real numbers", f"dtype {values.dtype}")
    require(values.ndim == ndim, "scores", f"have {ndim} axis" if ndim == 1 else f"have {ndim} axes", values.shape)
    require(labels.ndim == 1, "member", "have 1 axis", labels.shape)
    require(values.shape[-1] == labels.size, "member", f"have {values.shape[-1]} labels, one per score", labels.size)
    zero_one = labels.dtype.kind in "biuf" and bool(np.isin(labels, (0, 1)).all())
    require(zero_one, "member", "have only the labels 0 and 1", _strange(labels))
    labels = labels.astype(bool)
    require(bool(labels.any() and not labels.all()), "member", "have both classes", f"{labels.sum()} of {labels.size}")
    values = values.astype(np.float64)
    check_finite("scores", values)
    return values, labels


def _strange(labels: np.ndarray) -> str:
    wrong = labels if labels.dtype.kind not in "biuf" else labels[~np.isin(labels, (0, 1))]
    return f"{wrong.ravel()[0]!s:.40}" if wrong.size else "none"


def auc(scores: Any, member: Any) -> float:
    """The probability that a random member outscores a random non-member, ties counting one half.

    Args:
        scores: (n,) finite real numbers, higher = more member-like.
        member: (n,) of 0/1 or booleans.

    Returns:
        The area under the ROC curve, in [0, 1]: the Mann-Whitney statistic from midranks.

    Raises:
        InputError: see ``validate``.

    Example:
        >>> auc([0.1, 0.4, 0.4, 0.9], [0, 0, 1, 1])
        0.875
    """
    values, labels = validate(scores, member)
    return float(placements(*by_class(values, labels))[0].mean())


def placements(members: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Structural components: per member the share of non-members below it, per non-member of members above it.

    Ties count one half; both means are the AUC.

    Example:
        >>> below, above = placements(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
        >>> below.tolist(), above.tolist()
        ([0.75, 1.0], [1.0, 0.75])
    """
    n1, n0 = members.size, others.size
    ranks = stats.rankdata(np.concatenate([members, others]))
    below = (ranks[:n1] - stats.rankdata(members)) / n0
    above = 1.0 - (ranks[n1:] - stats.rankdata(others)) / n1
    return below, above


def auc_interval(
    scores: Any, member: Any, level: float = 0.95, method: str = "delong", seed: int = 0, resamples: int = 2000
) -> tuple[float, float]:
    """A two-sided confidence interval of the AUC.

    ``delong``: DeLong's variance on the logit scale, logit(A) +- z sqrt(V) / (A (1 - A)). The plain interval
    A +- z sqrt(V) collapses near 0 and 1: over 20 + 20 normal scores with A = .97 it covers .78, the logit one .98.
    ``bca``: bias-corrected and accelerated bootstrap, see ``jaxaudit.evaluate.bca`` (there for many attacks at once).

    Where min(n1, n0) min(A, 1 - A) < 5 (perfect separation included), or the variance is 0, both rest on hardly any
    misordered pair and can be far too short. There the interval is widened to contain Newcombe's score interval, which
    takes its variance from A and not from the sample.

    Args:
        scores: (n,) finite real numbers.
        member: (n,) of 0/1 or booleans.
        level: coverage, in (0, 1).
        method: "delong" or "bca".
        seed: of the resampling.
        resamples: bootstrap resamples, >= 100.

    Returns:
        (low, high), 0 <= low <= A <= high <= 1.

    Raises:
        InputError: an argument out of its range, or see ``validate``.

    References:
        DeLong, DeLong & Clarke-Pearson, Biometrics 44 (1988) 837; Efron, JASA 82 (1987) 171 (BCa);
        Newcombe, Statistics in Medicine 25 (2006) 559 (method 5).

    Example:
        >>> low, high = auc_interval([1, 2, 3, 4, 5, 6], [0, 0, 1, 0, 1, 1])
        >>> 0 < low < auc([1, 2, 3, 4, 5, 6], [0, 0, 1, 0, 1, 1]) < high < 1
        True
    """
    values, labels = validate(scores, member)
    level = check_real("level", level, 0, 1, open_low=True, open_high=True)
    check_choice("method", method, ("delong", "bca"))
    check_int("resamples", resamples, 100)
    if method == "bca":
        from jaxaudit.evaluate.bca import auc_bca

        low, high = auc_bca(values[None], labels, level, seed, resamples)[0]
        return float(low), float(high)
    below, above = placements(*by_class(values, labels))
    area = float(below.mean())
    return widened(_delong(area, below, above, level), area, below.size, above.size, level)


def widened(interval: tuple[float, float] | None, area: float, n1: int, n0: int, level: float) -> tuple[float, float]:
    """The interval, or with few misordered pairs its hull with Newcombe's; the latter where there is none.

    Example:
        >>> widened((0.7, 0.8), 0.75, 500, 500, 0.95), widened(None, 0.5, 10, 10, 0.95)[0] < 0.3
        ((0.7, 0.8), True)
    """
    overlap = min(n1, n0) * min(area, 1.0 - area)
    if interval is None or overlap < _FEW:
        low, high = _newcombe(area, n1, n0, level)
        interval = (low, high) if interval is None else (min(low, interval[0]), max(high, interval[1]))
    return interval


def _delong(area: float, below: np.ndarray, above: np.ndarray, level: float) -> tuple[float, float] | None:
    if min(below.size, above.size) < 2 or not 0.0 < area < 1.0:
        return None
    variance = below.var(ddof=1) / below.size + above.var(ddof=1) / above.size
    if variance <= 0.0:
        return None
    half = stats.norm.ppf(0.5 + level / 2) * np.sqrt(variance) / (area * (1.0 - area))
    centre = np.log(area) - np.log1p(-area)
    low, high = 1.0 / (1.0 + np.exp(-(centre - half))), 1.0 / (1.0 + np.exp(-(centre + half)))
    return float(low), float(high)


def _newcombe(area: float, n1: int, n0: int, level: float) -> tuple[float, float]:
    """All t with (A - t)^2 <= z^2 V(t), V the Hanley-McNeil variance at t, both sizes averaged in its numerator."""
    z2, extra = stats.norm.ppf(0.5 + level / 2) ** 2, (n1 + n0) / 2 - 1

    def excess(t: float) -> float:
        variance = t * (1 - t) * (1 + extra * ((1 - t) / (2 - t) + t / (1 + t))) / (n1 * n0)
        return (area - t) ** 2 - z2 * variance

    tiny = 1e-12  # t = 0 and t = 1 are roots themselves where A sits there; the other root is wanted
    low = 0.0 if area <= tiny else optimize.brentq(excess, 0.0, min(area, 1.0 - tiny), xtol=1e-12)
    high = 1.0 if area >= 1.0 - tiny else optimize.brentq(excess, max(area, tiny), 1.0, xtol=1e-12)
    return float(low), float(high)


def roc_curve(scores: Any, member: Any) -> RocCurve:
    """Every operating point that a threshold can realise: one per distinct score, tied records move together.

    Args:
        scores: (n,) finite real numbers.
        member: (n,) of 0/1 or booleans.

    Returns:
        A ``RocCurve`` of k = 1 + number of distinct scores points.

    Raises:
        InputError: see ``validate``.

    Example:
        >>> roc_curve([0.1, 0.4, 0.4, 0.9], [0, 0, 1, 1]).tpr.tolist()
        [0.0, 0.5, 1.0, 1.0]
    """
    values, labels = validate(scores, member)
    order = np.argsort(-values, kind="stable")
    ordered, hits = values[order], labels[order]
    last = np.append(np.flatnonzero(np.diff(ordered)), ordered.size - 1)
    true_positives = np.append(0, np.cumsum(hits)[last])
    false_positives = np.append(0, last + 1) - true_positives
    return RocCurve(
        np.append(np.inf, ordered[last]),
        false_positives,
        true_positives,
        false_positives / (~labels).sum(),
        true_positives / labels.sum(),
    )


def clopper_pearson(successes: Any, trials: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """The exact two-sided binomial interval (Clopper & Pearson 1934), elementwise.

    Args:
        successes: integers in [0, trials].
        trials: integers >= 1.
        level: coverage, in (0, 1).

    Returns:
        (low, high) float64 arrays of the broadcast shape.

    Example:
        >>> low, high = clopper_pearson(0, 10)
        >>> float(low), round(float(high), 4)
        (0.0, 0.3085)
    """
    level = check_real("level", level, 0, 1, open_low=True, open_high=True)
    k, n = np.broadcast_arrays(np.asarray(successes, float), np.asarray(trials, float))
    require(bool(np.all((k >= 0) & (k <= n) & (n >= 1))), "successes", "be in [0, trials], trials >= 1", "other counts")
    tail = (1.0 - level) / 2
    low = np.where(k > 0, stats.beta.ppf(tail, np.maximum(k, 1), n - k + 1), 0.0)
    high = np.where(k < n, stats.beta.ppf(1 - tail, k + 1, np.maximum(n - k, 1)), 1.0)
    return low, high


def tpr_at_fpr(
    scores: Any, member: Any, levels: Sequence[float] = (0, 0.001, 0.01, 0.1), level: float = 0.95
) -> dict[str, dict[str, Any]]:
    """True-positive rates at stated false-positive rates, at thresholds that exist.

    At each level the lowest threshold whose realised FPR does not exceed the level is taken; nothing is interpolated,
    and tied scores are let in together or not at all. Level 0 asks for more than every non-member's score: its strength
    rests on ``n_non_members``. A level f > 0 is ``supported`` only with at least 1/f non-members.

    Args:
        scores: (n,) finite real numbers.
        member: (n,) of 0/1 or booleans.
        levels: false-positive rates in [0, 1].
        level: coverage of ``tpr_ci``, in (0, 1).

    Returns:
        A dict keyed by the level as text ("0", "0.001", ...) of plain values: ``tpr``, ``fpr`` (realised),
        ``true_positives``, ``false_positives``, ``n_members``, ``n_non_members``, ``threshold`` (inf where nobody can
        be called a member), ``supported``, and ``tpr_ci`` = [low, high], the exact binomial interval at that threshold.

    Raises:
        InputError: a level outside [0, 1], or see ``validate``.

    Example:
        >>> row = tpr_at_fpr([1, 2, 3, 4], [0, 1, 0, 1], levels=(0,))["0"]
        >>> row["tpr"], row["false_positives"], row["threshold"]
        (0.5, 0, 4.0)
    """
    curve = roc_curve(scores, member)
    n1, n0 = int(curve.true_positives[-1]), int(curve.false_positives[-1])
    rows = {}
    for wanted in levels:
        wanted = check_real("levels", wanted, 0, 1)
        allowed = wanted * n0 * (1 + 1e-12)  # 0.07 * 100 is a little more than 7, 0.29 * 100 a little less than 29
        point = int(np.searchsorted(curve.false_positives, allowed, side="right")) - 1
        low, high = clopper_pearson(curve.true_positives[point], n1, level)
        rows[f"{wanted:g}"] = {
            "tpr": float(curve.tpr[point]),
            "fpr": float(curve.fpr[point]),
            "true_positives": int(curve.true_positives[point]),
            "false_positives": int(curve.false_positives[point]),
            "n_members": n1,
            "n_non_members": n0,
            "threshold": float(curve.thresholds[point]),
            "supported": wanted == 0 or n0 * wanted * (1 + 1e-12) >= 1,
            "tpr_ci": [float(low), float(high)],
        }
    return rows
