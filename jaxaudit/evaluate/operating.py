"""Limits of leakage (l, r) that an attack shows at one operating point, its threshold fixed before it is judged.

A threshold chosen and judged on the same records flatters the attack. The records are therefore cut into two halves
(seeded; members and non-members apart, at random): the threshold comes from the calibration half, the error counts from
the other one. Given the threshold, the counts are binomial in the error rates alpha = P(non-member called a member) and
beta = P(member called a non-member) of this attack at this threshold, and ``bmp.functional_limits`` turns them into
one-sided limits of the smallest (l, r) that admits (alpha, beta): e^-l <= likelihood ratio of the decision <= e^r.

What the limits bound: the leakage of this release through this attack at this threshold, over records from the
population that the scored ones are drawn from. A lower limit is above the truth about once in twenty times (level .95)
wherever there is leakage. Without any it is always above it: an inverted decision counts as leakage too, so that the
limits of a decision at chance are small positive numbers. Whether there is anything at all is for ``p_value`` to say,
Fisher's exact test that members are called members more often than non-members are.
What they do not bound: other attacks, other thresholds, or single records (leakage is averaged over them: some can be
far more exposed); and not the generator. All records share one release, hence one draw of the generator's randomness,
so that over releases of the same generator (other seeds) alpha and beta differ, and no binomial over the records of one
release bounds that. With several releases as the trials the same limits do speak of the generator. They are no
differential-privacy guarantee: lower limits are evidence of leakage, and upper limits are of this attack only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from jaxaudit.evaluate.canonical import shuffled_order
from jaxaudit.evaluate.roc import roc_curve, validate
from jaxaudit.runtime.checks import check_real, require
from jaxaudit.runtime.keys import host_rng

__all__ = ["ErrorCounts", "calibration_half", "choose_threshold", "error_counts", "operating_point"]

_LIMITS = ("r_lower", "r_median", "r_upper", "l_lower", "l_median", "l_upper")


class ErrorCounts(NamedTuple):
    """Errors at a fixed threshold, and trials: non-members called members, members called non-members."""

    fp: int
    n_out: int
    fn: int
    n_in: int


def calibration_half(member: Any, seed: int = 0) -> np.ndarray:
    """A random half of the members and of the non-members, (n,) bool; the smaller half of an odd number.

    It depends on the labels and the seed only.

    Example:
        >>> half = calibration_half(np.repeat([True, False], [4, 7]))
        >>> int(half[:4].sum()), int(half[4:].sum())
        (2, 3)
    """
    labels = np.asarray(member).astype(bool)
    half = np.zeros(labels.size, dtype=bool)
    for value, stream in ((True, "members"), (False, "non-members")):
        rows = np.flatnonzero(labels == value)
        half[host_rng(seed, f"operating point {stream}").permutation(rows)[: rows.size // 2]] = True
    return half


def choose_threshold(scores: Any, member: Any, at: float | str = 0.1) -> float:
    """The threshold of an operating point; a record is called a member if its score reaches it.

    Args:
        scores: (n,) finite real numbers.
        member: (n,) of 0/1 or booleans.
        at: a false-positive rate in [0, 1]: the lowest threshold whose realised rate does not exceed it; or
            ``"youden"``: the highest threshold that maximises true-positive minus false-positive rate.

    Returns:
        The threshold; +inf where nobody can be called a member.

    Raises:
        InputError: another ``at``, or see ``evaluate.roc.validate``.

    Example:
        >>> scores, member = [1, 2, 3, 4], [0, 1, 0, 1]
        >>> choose_threshold(scores, member, 0), choose_threshold(scores, member, 0.5), choose_threshold(
        ...     scores, member, "youden")
        (4.0, 2.0, 4.0)
    """
    curve = roc_curve(scores, member)
    if isinstance(at, str):
        require(at == "youden", "operating.at", "be a false-positive rate or youden", at)
        n1, n0 = int(curve.true_positives[-1]), int(curve.false_positives[-1])
        # Whole numbers: rates that are equal must not differ by rounding.
        return float(curve.thresholds[np.argmax(curve.true_positives * n0 - curve.false_positives * n1)])
    allowed = check_real("operating.at", at, 0, 1) * curve.false_positives[-1] * (1 + 1e-12)
    return float(curve.thresholds[np.searchsorted(curve.false_positives, allowed, side="right") - 1])


def error_counts(scores: Any, member: Any, threshold: float) -> ErrorCounts:
    """Errors of "member if score >= threshold".

    Example:
        >>> error_counts([1, 2, 3, 4], [0, 1, 0, 1], 3.0)
        ErrorCounts(fp=1, n_out=2, fn=1, n_in=2)
    """
    values, labels = validate(scores, member)
    said = values >= threshold
    n_in = int(labels.sum())
    return ErrorCounts(int((said & ~labels).sum()), labels.size - n_in, int((~said & labels).sum()), n_in)


def _p_value(counts: ErrorCounts) -> float:
    said_in, said_out = counts.n_in - counts.fn, counts.fp
    table = [[said_in, counts.fn], [said_out, counts.n_out - counts.fp]]
    return float(stats.fisher_exact(table, alternative="greater").pvalue)


def operating_point(
    scores: Any, member: Any, at: float | str = 0.1, level: float = 0.95, seed: int = 0
) -> dict[str, Any] | None:
    """Limits of (l, r) at a threshold fixed on one half of the records and judged on the other, see the module.

    Args:
        scores: (n,) finite real numbers, higher = more member-like.
        member: (n,) of 0/1 or booleans.
        at: how the threshold is chosen, see ``choose_threshold``.
        level: of each one-sided limit, in [0.5, 0.999].
        seed: of the split, which the order of the records does not change.

    Returns:
        Plain values: ``at``, ``level``, ``threshold``, ``calibration_members``, ``calibration_non_members``; ``fp``,
        ``n_out``, ``fn``, ``n_in``, the rates ``fpr``, ``fnr`` and ``p_value`` of the other half; ``r_lower``,
        ``r_median``, ``r_upper``, ``l_lower``, ``l_median``, ``l_upper``. None where a class has fewer than 2 records.

    Raises:
        InputError: an argument out of its range, or see ``evaluate.roc.validate``.

    Example:
        >>> point = operating_point(np.r_[np.arange(200.0), np.arange(100.0, 300.0)], np.repeat([0, 1], 200), seed=1)
        >>> point["n_in"], point["n_out"], point["r_lower"] > 1
        (100, 100, True)
    """
    from jaxaudit.bmp.functional import functional_limits

    values, labels = validate(scores, member)
    level = check_real("operating.level", level, 0.5, 0.999)
    if min(labels.sum(), (~labels).sum()) < 2:
        return None
    order = shuffled_order(values[None], labels, seed)  # the split is the same in any order of the records
    values, labels = values[order], labels[order]
    half = calibration_half(labels, seed)
    threshold = choose_threshold(values[half], labels[half], at)
    counts = error_counts(values[~half], labels[~half], threshold)
    limits = functional_limits(*counts, level=level)
    return {
        "at": at,
        "level": level,
        "threshold": threshold,
        "calibration_members": int((half & labels).sum()),
        "calibration_non_members": int((half & ~labels).sum()),
        **counts._asdict(),
        "tp": counts.n_in - counts.fn,
        "fpr": counts.fp / counts.n_out,
        "fnr": counts.fn / counts.n_in,
        "p_value": _p_value(counts),
        **{name: float(getattr(limits, name)[0]) for name in _LIMITS},
    }
