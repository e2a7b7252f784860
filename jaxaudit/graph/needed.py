"""How many models a node needs, from its prior: to be audited at all, and for limits of a wanted width.

Draws are independent, so the number of K models trained with a node is Binomial(K, gamma), or K/2 in paired draws.
What a rule asks of these numbers is in ``jaxaudit.graph.attacks.count_errors``; how wide the functional limits of r
come out for n_out and n_in counted models is computed once on a grid, for an assumed attack.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import stats

from jaxaudit.bmp.functional import functional_limits
from jaxaudit.graph.attacks import MIN_FIT

__all__ = ["MOST_MODELS", "chance_auditable", "counted_share", "expected_width", "models_auditable", "models_width"]

MOST_MODELS = 1 << 24
"""Largest number of models looked at; a node that needs more gets infinity."""

_GRID = np.unique(np.geomspace(1, 65_536, 26).round().astype(np.int64))
_POINTS = 4  # equally likely values of each error count in a cell of the grid


def counted_share(rule: str) -> float:
    """Share of the models whose decisions a rule counts: the fitted rules learn from the others."""
    return 1.0 if rule == "fixed_fpr" else 0.5


def _inside(count: np.ndarray, gamma: Any, low: Any, high: Any) -> np.ndarray:
    """P(low <= N <= count - high) for N ~ Binomial(count, gamma)."""
    top, bottom = stats.binom.cdf(count - high, count, gamma), stats.binom.cdf(low - 1, count, gamma)
    return np.maximum(top - bottom, 0)


def chance_auditable(rule: str, count: Any, gamma: np.ndarray, paired: bool = False) -> np.ndarray:
    """P(a node can be audited) with ``count`` models.

    ``fixed_fpr`` needs one counted model with the node and three without it; the other rules need two with and two
    without among the even-numbered models, and one with and one without among the odd-numbered ones.

    Args:
        rule: of ``AttackConfig``.
        count: number of models, int, scalar or (n,).
        gamma: (n,) probabilities of being drawn.
        paired: models 2j and 2j + 1 are complements, ``count`` is even and gamma ½; "even-numbered" is then said of
            pairs.

    Example:
        >>> chance_auditable("fixed_fpr", 4, np.array([0.5])).tolist()  # one of four
        [0.25]
    """
    count, gamma = np.broadcast_arrays(np.asarray(count, np.int64), np.asarray(gamma, np.float64))
    if paired:  # every node is in half of the models, and in half of those of each half
        pairs = count // 2
        enough = pairs > MIN_FIT if rule == "fixed_fpr" else ((pairs + 1) // 2 >= MIN_FIT) & (pairs // 2 >= 1)
        return enough.astype(np.float64)
    if rule == "fixed_fpr":
        return _inside(count, gamma, 1, MIN_FIT + 1)
    return _inside(count - count // 2, gamma, MIN_FIT, MIN_FIT) * _inside(count // 2, gamma, 1, 1)


@lru_cache(maxsize=16)
def _widths(fpr: float, tpr: float, level: float) -> np.ndarray:
    """(g, g) mean width of the limits of r over _GRID x _GRID trials (n_out, n_in), made non-increasing in both."""
    levels = (np.arange(_POINTS) + 0.5) / _POINTS
    fp, fn = (stats.binom.ppf(levels, _GRID[:, None], rate).astype(np.int64) for rate in (fpr, 1 - tpr))
    cells = np.broadcast_arrays(fp[:, None, :, None], _GRID[:, None, None, None], fn[:, None, :], _GRID[:, None, None])
    x, n_out, y, n_in = (part.ravel() for part in cells)
    limits = functional_limits(x, n_out, y, n_in, (1 + level) / 2)
    mean = (limits.r_upper - limits.r_lower).reshape(cells[0].shape).mean(axis=(2, 3))
    for axis in (0, 1):  # few trials give ragged widths; the widest that any larger number still has
        mean = np.flip(np.maximum.accumulate(np.flip(mean, axis), axis), axis)
    return mean


def expected_width(
    n_out: np.ndarray, n_in: np.ndarray, fpr: float = 0.1, tpr: float = 0.3, level: float = 0.9
) -> np.ndarray:
    """Mean width of the functional interval of r, for an attack with these error rates; infinite below one trial.

    The table behind it averages over 4 x 4 equally likely pairs of error counts, and is interpolated in the logarithms
    of trials and width (for many trials the width falls as their inverse square root).

    Args:
        n_out: counted models without the node, real numbers >= 0; beyond 65,536 they count as that.
        n_in: counted models with it, likewise.
        fpr: the attack's assumed false-positive rate, in (0, 1).
        tpr: its true-positive rate.
        level: two-sided level of the interval.

    Example:
        >>> expected_width(100, 100).round(1).item(), expected_width(10_000, 10_000).round(1).item()
        (1.2, 0.1)
    """
    table = np.log(_widths(fpr, tpr, level))
    knots = np.log(_GRID)
    n_out, n_in = np.broadcast_arrays(np.asarray(n_out, np.float64), np.asarray(n_in, np.float64))
    at = [np.clip(np.log(np.maximum(n, 1)), 0, knots[-1]) for n in (n_out, n_in)]
    left = [np.clip(np.searchsorted(knots, x, side="right") - 1, 0, knots.size - 2) for x in at]
    share = [(x - knots[i]) / (knots[i + 1] - knots[i]) for x, i in zip(at, left, strict=True)]
    (i, j), (a, b) = left, share
    low = (1 - b) * table[i, j] + b * table[i, j + 1]
    high = (1 - b) * table[i + 1, j] + b * table[i + 1, j + 1]
    return np.where(np.minimum(n_out, n_in) < 1, np.inf, np.exp((1 - a) * low + a * high))


def _smallest(enough: Callable[[np.ndarray, np.ndarray], np.ndarray], gamma: np.ndarray) -> np.ndarray:
    """(n,) float64 smallest K with ``enough(K, gamma)``, which is monotone in K; infinite beyond ``MOST_MODELS``."""
    values, index = np.unique(gamma, return_inverse=True)
    low, high = np.zeros(values.size, np.int64), np.full(values.size, MOST_MODELS)
    never = ~enough(high, values)
    while (high - low > 1).any():
        middle = (low + high) // 2
        good = enough(middle, values)
        low, high = np.where(good, low, middle), np.where(good, middle, high)
    return np.where(never, np.inf, high.astype(np.float64))[index]


def models_auditable(rule: str, gamma: np.ndarray, chance: float = 0.95, paired: bool = False) -> np.ndarray:
    """(n,) float64 smallest number of models with which a node can be audited with probability ``chance``.

    Example:
        >>> models_auditable("fixed_fpr", np.array([0.5, 0.01, 0.0])).tolist()
        [11.0, 299.0, inf]
    """
    return _smallest(lambda count, values: chance_auditable(rule, count, values, paired) >= chance, gamma)


def models_width(
    rule: str, gamma: np.ndarray, width: float, fpr: float = 0.1, tpr: float = 0.3, level: float = 0.9
) -> np.ndarray:
    """(n,) float64 smallest number of models at whose expected counts the interval of r is ``width`` wide.

    Realised counts and errors scatter around the expected ones: about half of such nodes get a wider interval.

    Args:
        rule: of ``AttackConfig``.
        gamma: (n,) probabilities of being drawn.
        width: wanted r_upper - r_lower.
        fpr: see ``expected_width``, as for the next two.
        tpr: assumed.
        level: two-sided.
    """
    share = counted_share(rule)

    def enough(count: np.ndarray, values: np.ndarray) -> np.ndarray:
        trials = share * count
        return expected_width(trials * (1 - values), trials * values, fpr, tpr, level) <= width

    return _smallest(enough, gamma)
