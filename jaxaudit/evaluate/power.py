"""What an audit could have seen: the smallest true AUC that its test finds almost surely."""

from __future__ import annotations

import numpy as np
from scipy import optimize, stats

from jaxaudit.runtime.checks import check_int, check_real

__all__ = ["auc_variance", "detectable_auc"]


def auc_variance(auc: float, members: int, non_members: int) -> float:
    """Variance of a Mann-Whitney AUC under normal scores of equal variance (binormal model), by its exact formula.

    V = [A (1-A) + (n1-1) (Q1 - A²) + (n0-1) (Q0 - A²)] / (n1 n0). Here Q1 = P(two members both outscore one
    non-member) and Q0 = P(a member outscores two non-members), under the model both equal to
    P(Z1 < d/√2, Z2 < d/√2) at correlation 1/2, d = √2 Φ⁻¹(A) (derived: the two differences share one score).

    Args:
        auc: true AUC, in (0, 1).
        members: n1 >= 1.
        non_members: n0 >= 1.

    References:
        Hanley & McNeil, Radiology 143 (1982) 29, for the decomposition.

    Example:
        >>> abs(auc_variance(0.5, 10, 20) - 31 / (12 * 10 * 20)) < 1e-9  # the Mann-Whitney null variance
        True
    """
    check_real("auc", auc, 0, 1, open_low=True, open_high=True)
    check_int("members", members, 1)
    check_int("non_members", non_members, 1)
    z = stats.norm.ppf(auc)
    both = float(stats.multivariate_normal.cdf([z, z], mean=[0, 0], cov=[[1, 0.5], [0.5, 1]]))
    pairs = auc * (1 - auc) + (members + non_members - 2) * (both - auc**2)
    return max(pairs, 0.0) / (members * non_members)


def detectable_auc(critical: float, members: int, non_members: int, power: float = 0.95) -> float:
    """The true AUC at which an observed AUC reaches ``critical`` with probability ``power``.

    On the logit scale the observed AUC is about normal with sd √V / (A (1-A)); V from ``auc_variance``.

    Args:
        critical: AUC from which on the test rejects, in (0, 1); NaN where it never does.
        members: scored members.
        non_members: scored non-members.
        power: in [0.5, 1).

    Returns:
        The AUC; NaN where ``critical`` is NaN or no AUC would do.

    Example:
        >>> round(detectable_auc(0.547, 500, 500), 2)
        0.58
    """
    check_real("power", power, 0.5, 1, open_high=True)
    if not 0 < critical < 1:
        return float("nan")
    z = stats.norm.ppf(power)

    def excess(auc: float) -> float:
        spread = np.sqrt(auc_variance(auc, members, non_members)) / (auc * (1 - auc))
        return float(np.log(auc / (1 - auc)) - np.log(critical / (1 - critical)) - z * spread)

    # Towards 1 the spread on the logit scale grows without bound: the first crossing counts, not the last.
    grid = critical + (1 - critical) * np.linspace(0, 1, 200, endpoint=False)
    enough = np.flatnonzero([excess(float(auc)) >= 0 for auc in grid])
    if not enough.size:
        return float("nan")
    first = int(enough[0])
    return float(optimize.brentq(excess, grid[first - 1], grid[first])) if first else float(grid[0])
