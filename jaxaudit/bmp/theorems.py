"""The theorems of Bayesian membership privacy as functions of (eps_L, eps_R).

They are about one node with P(member) = ``prior`` and prior odds o, under the reading ``posterior_odds``, unless a
function says otherwise. "eps-MP" is the symmetric bound e^-eps <= p(w | member)/p(w | non-member) <= e^eps. Statements
after Yildirim & Khosla, arXiv:2606.04069; the formulas are derived, each in its docstring. The hypotheses are part of
each statement: a bound composed from dependent outputs is wrong, not loose (``bmp_bmp``).

Everything is NumPy on the host, float64, arrays broadcast, NaN (a node that was not auditable) passes through, and
nothing overflows at large epsilons. Under another reading, compose in its (l, r): ``to_canonical``, add,
``from_canonical``. Bounds that no learner can have, below the prior lower bound, are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxaudit.bmp.definitions import prior_lower_bound
from jaxaudit.runtime.checks import check_choice, require

__all__ = [
    "bmp_bmp",
    "bmp_to_mp",
    "dp_bounds",
    "independent_rounds",
    "learner_lower_bound",
    "mp_bmp",
    "mp_to_bmp",
    "post_processing",
    "rounds_prior",
]

Pair = tuple[np.ndarray, np.ndarray]

_SLACK = 1e-9


def _epsilon(name: str, value: Any) -> np.ndarray:
    value = np.asarray(value, np.float64)
    require(not bool(np.any(value < 0)), name, "be >= 0", value)
    return value


def _log_odds(prior: Any) -> np.ndarray:
    prior = np.asarray(prior, np.float64)
    require(not bool(np.any((prior < 0) | (prior > 1))), "prior", "be in [0, 1]", prior)
    with np.errstate(divide="ignore"):
        return np.log(prior) - np.log1p(-prior)


def _possible(eps_L: Any, eps_R: Any, prior: Any, suffix: str = "") -> Pair:
    """float64 epsilons that are not below the prior lower bound by more than rounding."""
    found = []
    for name, eps, least in zip(("eps_L", "eps_R"), (eps_L, eps_R), prior_lower_bound(prior), strict=True):
        eps = np.asarray(eps, np.float64)
        with np.errstate(invalid="ignore"):
            below = eps < least - _SLACK * (1 + np.abs(least))
        require(not bool(np.any(below)), name + suffix, "be at least the prior lower bound (-log odds, log odds)", eps)
        found.append(eps)
    return found[0], found[1]


def learner_lower_bound(prior: Any) -> tuple[float, float]:
    """The least (eps_L, eps_R) that a learner as a whole can have: the maxima of the nodes' prior lower bounds.

    No hypothesis. Derived: outputs independent of the memberships leave the prior odds, and some output has a ratio
    >= 1, some other <= 1, whatever the learner; attained by every learner that ignores its data.

    Args:
        prior: (n,) P(member) of the nodes.

    Raises:
        InputError: a prior outside [0, 1].

    Example:
        >>> [round(x, 2) for x in learner_lower_bound([0.1, 0.5])]
        [2.2, 0.0]
    """
    left, right = prior_lower_bound(prior)
    return float(left.max()), float(right.max())


def post_processing(eps_L: Any, eps_R: Any) -> Pair:
    """(eps_L, eps_R) of f(W): those of W, under every reading.

    Hypothesis: f, possibly random, sees the output only and no membership. Derived: p(v | M) sums p(v | w) p(w | M)
    with the same weights p(v | w) on both sides, and a mediant lies between its terms. Attained by every f that
    keeps outputs of different likelihood ratios apart.

    Example:
        >>> [float(x) for x in post_processing(1.0, 2.0)]
        [1.0, 2.0]
    """
    left, right = np.broadcast_arrays(np.asarray(eps_L, np.float64), np.asarray(eps_R, np.float64))
    return left, right


def mp_bmp(eps_L: Any, eps_R: Any, eps: Any) -> Pair:
    """(eps_L, eps_R) of a BMP output together with an eps-MP output: both grow by eps.

    Hypothesis: the two outputs are independent given the node's membership. Derived: ratios multiply. Attained where
    each output's extreme ratios are possible, as in every finite channel with tight bounds.

    Args:
        eps_L: bound of the first output.
        eps_R: likewise.
        eps: symmetric bound of the second output, >= 0.

    Raises:
        InputError: a negative eps.

    Example:
        >>> [float(x) for x in mp_bmp(1.0, 2.0, 0.5)]
        [1.5, 2.5]
    """
    left, right = post_processing(eps_L, eps_R)
    eps = _epsilon("eps", eps)
    return left + eps, right + eps


def bmp_bmp(first: tuple[Any, Any], second: tuple[Any, Any], prior: Any) -> Pair:
    """(eps_L, eps_R) of two BMP outputs about the same membership: the sums, the prior counted once.

    eps_R = eps_R1 + eps_R2 - log o, eps_L = eps_L1 + eps_L2 + log o. Derived: posterior odds are o times both ratios.

    Hypothesis: the outputs are independent given the node's *own* membership. Two trainings on one sample are not:
    they also share the other nodes' memberships, and the pair can reveal what neither output does (a coin says
    which; tests). There is no bound for them from their epsilons alone.

    Args:
        first: (eps_L, eps_R) of the first output.
        second: of the second.
        prior: P(member), in [0, 1].

    Returns:
        (eps_L, eps_R); (-inf, inf) at prior 1, (inf, -inf) at prior 0, where the prior decides. Attained.

    Raises:
        InputError: a prior outside [0, 1], epsilons below the prior lower bound.

    Example:
        >>> [float(x.round(3)) for x in bmp_bmp((1.0, 1.0), (1.0, 2.0), 0.5)]
        [2.0, 3.0]
    """
    given = *_possible(*first, prior, " of first"), *_possible(*second, prior, " of second")
    left1, right1, left2, right2, odds = np.broadcast_arrays(*given, _log_odds(prior))
    with np.errstate(invalid="ignore"):
        certain = np.isinf(odds)
        return np.where(certain, -odds, left1 + left2 + odds), np.where(certain, odds, right1 + right2 - odds)


def _log_product_minus_one(x: np.ndarray, axis: int) -> np.ndarray:
    """log(prod(1 + e^x) - 1) along an axis, for any size of x: log expm1 of s, the sum of softplus(x)."""
    with np.errstate(all="ignore"):
        total = np.logaddexp(0, x).sum(axis)
        # A tiny s may underflow: log s + s/2, where log softplus(x) = x - e^x/2 to double precision.
        tiny = np.logaddexp.reduce(x - np.exp(x) / 2, axis=axis) + total / 2
        return np.where(total < 1e-8, tiny, total + np.log(-np.expm1(-total)))


def independent_rounds(eps_L: Any, eps_R: Any, axis: int = -1) -> Pair:
    """(eps_L, eps_R) about membership in *at least one* of several rounds, from those of each round.

    eps_R = log(prod(1 + e^eps_R_k) - 1), eps_L = -log(prod(1 + e^-eps_L_k) - 1), over the rounds k.

    Hypothesis: the pairs (membership, output) of different rounds are independent. Derived: P(in none | outputs) is
    the product of the 1/(1 + odds_k), so the odds are prod(1 + odds_k) - 1, which grow with each odds_k. Attained.
    The prior of the union is ``rounds_prior``; a round's prior needs not be the same.

    Args:
        eps_L: bounds of the rounds along ``axis``, each for its own round's membership; any real, ±inf or NaN.
        eps_R: likewise.
        axis: the axis of the rounds, which is reduced.

    Raises:
        InputError: no axis, or no round.

    Example:
        >>> [float(x.round(3)) for x in independent_rounds([0.0, 0.0], [0.0, 0.0])]
        [-1.099, 1.099]
        >>> [float(x.round(3)) for x in independent_rounds([800.0, 800.0], [800.0, 800.0])]
        [799.307, 1600.0]
    """
    left, right = np.broadcast_arrays(np.asarray(eps_L, np.float64), np.asarray(eps_R, np.float64))
    require(left.ndim > 0 and left.shape[axis] > 0, "eps_L and eps_R", "have an axis of rounds", left.shape)
    return -_log_product_minus_one(-left, axis), _log_product_minus_one(right, axis)


def rounds_prior(prior: Any, axis: int = -1) -> np.ndarray:
    """P(member in at least one of the independent rounds) along an axis: 1 - prod(1 - prior_k).

    Example:
        >>> float(rounds_prior([0.5, 0.5]))
        0.75
    """
    prior = np.asarray(prior, np.float64)
    require(not bool(np.any((prior < 0) | (prior > 1))), "prior", "be in [0, 1]", prior)
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(np.log1p(-prior).sum(axis)))


def mp_to_bmp(eps: Any, prior: Any) -> Pair:
    """(eps_L, eps_R) = (eps - log o, eps + log o) of an eps-MP output: the whole difference is the prior's log odds.

    No further hypothesis. Derived: posterior odds = o times the ratio. Attained with a tight eps on that side.

    Args:
        eps: symmetric bound, >= 0.
        prior: P(member), in [0, 1].

    Raises:
        InputError: a negative eps, a prior outside [0, 1].

    Example:
        >>> [float(x.round(2)) for x in mp_to_bmp(1.0, 0.1)]
        [3.2, -1.2]
    """
    eps, odds = _epsilon("eps", eps), _log_odds(prior)
    with np.errstate(invalid="ignore"):
        certain = np.isinf(odds)
        return np.where(certain, -odds, eps - odds), np.where(certain, odds, eps + odds)


def bmp_to_mp(eps_L: Any, eps_R: Any, prior: Any, axis: int | None = -1) -> np.ndarray:
    """The eps of eps-MP that a BMP learner has: the largest of eps_R - log o and eps_L + log o over its nodes.

    No further hypothesis. Derived: the converse of ``mp_to_bmp``. Attained: equal to max(l, r) for tight bounds.

    Args:
        eps_L: (..., n) bounds.
        eps_R: (..., n).
        prior: (..., n) P(member); nodes at 0 or 1 have no ratio and give NaN, leave them out.
        axis: the axis of the nodes; None keeps every node's own eps.

    Raises:
        InputError: a prior outside [0, 1], epsilons below the prior lower bound.

    Example:
        >>> float(bmp_to_mp([2.0, 3.2], [1.0, -1.2], [0.5, 0.1]).round(2))
        2.0
    """
    odds = _log_odds(prior)
    left, right = _possible(eps_L, eps_R, prior)
    with np.errstate(invalid="ignore"):
        own = np.where(np.isinf(odds), np.nan, np.maximum(np.maximum(right - odds, left + odds), 0.0))
    return own if axis is None or own.ndim == 0 else own.max(axis)


_STEPS = {
    ("independent", "add_remove"): 1.0,
    ("independent", "replace_one"): np.inf,
    ("uniform", "add_remove"): 2.0,
    ("uniform", "replace_one"): 1.0,
}


def dp_bounds(
    eps: Any, sampling: str = "independent", adjacency: str = "add_remove", distance: Any = None
) -> np.ndarray:
    """The bound on both l and r of a node that eps-DP training gives: eps times a coupling distance.

    Hypothesis: training is eps-DP under ``adjacency`` on *every* subset of the nodes, also those the sampler never
    draws (graph learners: node-level DP), and the sampler is independent of everything but the memberships.
    Derived: if samples with and without the node can be drawn together never more than D steps apart, then
    p(w | S1) <= e^(D eps) p(w | S0) for each such pair, and the expectations keep the order.

    - ``independent`` memberships: D = 1 under add/remove (draw the others once); replace-one never changes the size,
      so it gives no bound (inf).
    - ``uniform`` (fixed size): exchange the node with a random one: D = 1 under replace-one, 2 under add/remove.
    - ``general``: D = ``distance``, from ``coupling.coupling_distance`` for small samplers. A membership that moves the
      whole sample, as a snowball's can, needs up to twice its size (tests): no useful bound.

    The first and the two of uniform are attained (tests).

    Args:
        eps: DP parameter, >= 0.
        sampling: ``independent``, ``uniform`` or ``general``.
        adjacency: ``add_remove`` or ``replace_one``.
        distance: for ``general`` only: D >= 0 in steps of ``adjacency``, may be inf or NaN.

    Returns:
        float64; e^-bound <= p(w | member)/p(w | non-member) <= e^bound. Pass it to ``from_canonical`` as l and r.

    Raises:
        InputError: values out of range, a distance without ``general`` or the reverse.

    Example:
        >>> float(dp_bounds(0.5)), float(dp_bounds(0.5, "uniform")), float(dp_bounds(0.5, "general", distance=6))
        (0.5, 1.0, 3.0)
    """
    eps = _epsilon("eps", eps)
    check_choice("sampling", sampling, ("independent", "uniform", "general"))
    check_choice("adjacency", adjacency, ("add_remove", "replace_one"))
    require((distance is not None) == (sampling == "general"), "distance", "go with sampling='general' only", distance)
    steps = _STEPS[sampling, adjacency] if distance is None else _epsilon("distance", distance)
    # Samples out of reach of each other are not compared by DP at all, not even at eps = 0.
    with np.errstate(invalid="ignore"):
        return np.where(np.isposinf(steps), np.inf, eps * steps)
