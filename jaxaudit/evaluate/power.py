"""What an audit could have seen: the smallest true AUC that its test finds almost surely."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import optimize, special, stats

from jaxaudit.runtime.checks import check_int, check_real
from jaxaudit.runtime.keys import host_rng

__all__ = ["auc_variance", "detectable_auc"]

_MANY = 50
"""Records in both classes from which on the normal approximation holds."""

_PAIRED = 100
"""Up to so many records in the larger class all pairs are simulated."""

_EFFORT = 6_000_000
"""Simulated pairs."""


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
    """The true AUC at which an observed AUC reaches ``critical`` with probability ``power``, under binormal scores.

    With 50 records or more in both classes: on the logit scale the observed AUC is about normal with sd
    √V / (A (1-A)), V from ``auc_variance``. With fewer that is far off near 1, and simulated scores say it, always the
    same ones: the power at the AUC returned is right to about .01.

    Args:
        critical: AUC from which on the test rejects, in (0, 1]; NaN where it never does.
        members: scored members.
        non_members: scored non-members.
        power: in [0.5, 1).

    Returns:
        The AUC, below 1; NaN where ``critical`` is NaN, or so near to 1 with many records that none is known.

    Example:
        >>> round(detectable_auc(0.547, 500, 500), 2), round(detectable_auc(0.88, 5, 5), 2)
        (0.58, 0.97)
    """
    check_int("members", members, 1)
    check_int("non_members", non_members, 1)
    check_real("power", power, 0.5, 1, open_high=True)
    if not 0 < critical <= 1:
        return float("nan")
    few, many = sorted((members, non_members))  # exchanged classes are mirrored scores
    if few < _MANY:
        return _simulated(critical, few, many, power)
    return _by_logit(critical, few, many, power) if critical < 1 else float("nan")


def _by_logit(critical: float, members: int, non_members: int, power: float) -> float:
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


@lru_cache(maxsize=256)  # attacks without ties share one critical AUC
def _simulated(critical: float, few: int, many: int, power: float) -> float:
    wanted = math.ceil(critical * few * many * (1 - 1e-12))  # pairs to be ordered rightly
    rng = host_rng(0, "detectable auc", few, many)
    find = _shift_by_pairs if many <= _PAIRED else _shift_by_members
    return float(stats.norm.cdf(find(wanted, few, many, power, rng) / np.sqrt(2)))


def _shift_by_pairs(wanted: int, few: int, many: int, power: float, rng: np.random.Generator) -> float:
    """The shift of the members that wins enough pairs with that power.

    A shift d orders a pair rightly once d > y - x, so the wanted-th smallest of these is the least that would do in a
    replication; the quantile over replications is taken.
    """
    replications = int(np.clip(_EFFORT // (few * many), 1000, 20_000))
    members, others = rng.normal(size=(replications, few, 1)), rng.normal(size=(replications, 1, many))
    needed = np.partition((others - members).reshape(replications, -1), wanted - 1, axis=1)[:, wanted - 1]
    return float(np.quantile(needed, power))


def _shift_by_members(wanted: int, few: int, many: int, power: float, rng: np.random.Generator) -> float:
    """The same for a large other class, which need not be drawn.

    Given the members at x, another record y is below those with x_i + d > y, one by one with chance p_i = Φ(x_i + d):
    wins are a sum of ``many`` independent terms of mean Σ p_i and variance Σ_ij [min(p_i, p_j) - p_i p_j], taken to be
    normal.
    """
    members = np.sort(rng.normal(size=(max(_EFFORT // (20 * few), 1000), few)), axis=1)
    weight = 2.0 * np.arange(few)[::-1] + 1.0  # how often the i-th smallest is the minimum of a pair

    def excess(shift: float) -> float:
        chance = special.ndtr(members + shift)
        mean = chance.sum(axis=1)
        spread = np.sqrt(np.maximum(many * (chance @ weight - mean**2), 1e-12))
        return float(special.ndtr((many * mean - wanted + 0.5) / spread).mean()) - power

    return float(optimize.brentq(excess, -40.0, 40.0, xtol=1e-6))
