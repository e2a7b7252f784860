"""Many attacks on the same records: joint permutation p-values that pay for having looked at all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from jaxaudit.evaluate.canonical import canonical_order, merge_rounding
from jaxaudit.evaluate.roc import validate
from jaxaudit.runtime.checks import check_int, require
from jaxaudit.runtime.chunks import rows_per_chunk
from jaxaudit.runtime.keys import host_rng

__all__ = ["PermutationTest", "max_permutation"]


@dataclass(frozen=True)
class PermutationTest:
    """A joint label-permutation test of several attacks.

    Attributes:
        adjusted: (a,) p adjusted for the number of attacks (max-statistic), one-sided, in [1/(B+1), 1].
        unadjusted: (a,) p of each attack as if it were the only one.
        auc: (a,) observed AUCs.
        statistic: (a,) (AUC - 1/2) / its standard deviation under permutation; 0 for a constant score.
        critical_auc: (a,) an AUC from which on an attack's adjusted p is .05 or less: what this many records and
            attacks can show at all. NaN where not even the largest AUC that the ties allow would do.
        permutations: B, the number of permutations drawn.
    """

    adjusted: np.ndarray
    unadjusted: np.ndarray
    auc: np.ndarray
    statistic: np.ndarray
    critical_auc: np.ndarray
    permutations: int


def max_permutation(scores: Any, member: Any, permutations: int = 9999, seed: int = 0) -> PermutationTest:
    """Permute the labels jointly for all attacks and compare with the largest statistic of each permutation.

    Under the null the labels are exchangeable given the scores, so each attack's AUC is a rank sum with a known mean
    and standard deviation: AUCs are standardised by them (attacks with many ties become comparable) and the maximum
    over attacks is the reference for every one of them. p = (1 + #{permuted >= observed}) / (B + 1), valid at any B.
    Dependence between attacks is kept, since one permutation is applied to all. Rank sums are integers: ties are exact.
    Scores that differ by rounding only are ties, and the order of the records does not matter
    (``jaxaudit.evaluate.canonical``).

    Args:
        scores: (a, n) finite real numbers, one row per attack (and setting), higher = more member-like.
        member: (n,) of 0/1 or booleans.
        permutations: B >= 1.
        seed: of the permutations.

    Returns:
        A ``PermutationTest``. One-sided: only an AUC above 1/2 counts as evidence.

    Raises:
        InputError: no attack, fewer than 1 permutation, or see ``jaxaudit.evaluate.roc.validate``.

    References:
        Westfall & Young, Resampling-Based Multiple Testing (1993), single-step max-T.

    Example:
        >>> member = np.arange(40) < 20
        >>> test = max_permutation(np.stack([member + 0.0, np.tile([0.0, 1.0], 20)]), member, permutations=999)
        >>> test.adjusted.tolist()[0], bool(test.adjusted[1] > 0.3)
        (0.001, True)
    """
    values, labels = validate(scores, member, ndim=2)
    check_int("permutations", permutations, 1)
    require(values.shape[0] >= 1, "scores", "have at least one attack", values.shape)
    values = merge_rounding(values)
    order = canonical_order(values, labels)  # what is drawn then does not depend on the order of the records
    values, labels = values[:, order], labels[order]
    n, n1 = labels.size, int(labels.sum())
    # Twice the centred midranks: integers, exact in float64 up to n = 1e7.
    ranks = 2.0 * stats.rankdata(values, axis=1) - (n + 1.0)
    spread = np.sqrt(n1 * (n - n1) / (n * (n - 1.0)) * np.sum(ranks**2, axis=1))
    scale = np.where(spread > 0, spread, 1.0)
    observed = (ranks @ labels) / scale

    rng = host_rng(seed, "label permutation")
    alone, joint, largest = np.zeros(values.shape[0]), np.zeros(values.shape[0]), np.empty(permutations)
    chunk = rows_per_chunk(9.0 * n)
    for start in range(0, permutations, chunk):
        count = min(chunk, permutations - start)
        drawn = rng.permuted(np.broadcast_to(labels.view(np.uint8), (count, n)), axis=1)
        permuted = (drawn.astype(np.float64) @ ranks.T) / scale
        top = permuted.max(axis=1)
        largest[start : start + count] = top
        alone += np.sum(permuted >= observed, axis=0)
        joint += np.sum(top[:, None] >= observed, axis=0)

    to_auc = scale / (2.0 * n1 * (n - n1))  # a doubled, centred rank sum is 2 n1 n0 (AUC - 1/2)
    best = np.sort(ranks, axis=1)[:, n - n1 :].sum(axis=1) / scale  # members on top
    return PermutationTest(
        adjusted=(joint + 1) / (permutations + 1),
        unadjusted=(alone + 1) / (permutations + 1),
        auc=0.5 + observed * to_auc,
        statistic=observed,
        critical_auc=0.5 + _critical(largest, best) * to_auc,
        permutations=permutations,
    )


def _critical(largest: np.ndarray, best: np.ndarray, alpha: float = 0.05) -> np.ndarray:
    """Per attack the smallest statistic known to have an adjusted p <= alpha, NaN where its ``best`` has not.

    Where the (1 - alpha) quantile of the largest statistics is an atom, its own p can exceed alpha: then the next one.
    """
    ordered = np.sort(largest)

    def p(statistic: np.ndarray) -> np.ndarray:
        return (1 + ordered.size - np.searchsorted(ordered, statistic, side="left")) / (ordered.size + 1)

    enough = ordered[p(ordered) <= alpha]
    first = enough[0] if enough.size else np.inf
    return np.where(p(best) <= alpha, np.minimum(first, best), np.nan)
