"""Readings of (eps_L, eps_R) and their common canonical form e^-l <= likelihood ratio <= e^r.

With o = prior / (1 - prior) the bound is e^-eps_L <= eta * ratio <= e^eps_R (Yildirim & Khosla, arXiv:2606.04069):

- ``posterior_odds``: eta = o. Bounds the posterior odds: any attack has PPV <= sigmoid(eps_R),
  NPV <= sigmoid(eps_L). Depends on the prior; perfect privacy has eps_R = log o, eps_L = -log o.
- ``bayes_factor``: eta = 1. Bounds posterior odds over prior odds; no prior lower bound; undefined at prior 0 or 1.
- ``membership_privacy`` (Li et al. 2013): posterior(1) <= e^eps_R prior(1), posterior(0) >= e^-eps_R prior(0), and
  the same with 0 and 1 exchanged for eps_L. 0 at prior 0 or 1.

Derived: log U(g, e) = min{e + log(1-g) - log(1 - g e^e), e - log g + log(1 - (1-g) e^-e)} bounds the ratio
(first term from the posterior of 1, second from that of 0), with inverse max(r - s, s), s = log(1 - g + g e^r).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxaudit.runtime.checks import check_choice, require

__all__ = [
    "DEFINITIONS",
    "bmp_l",
    "bmp_r",
    "compare_readings",
    "from_canonical",
    "prior_lower_bound",
    "to_canonical",
]

DEFINITIONS = ("posterior_odds", "bayes_factor", "membership_privacy")
"""Names of the readings; the first is the default."""


def _arguments(prior: Any, definition: str, *values: Any) -> list[np.ndarray]:
    check_choice("definition", definition, DEFINITIONS)
    prior = np.asarray(prior, np.float64)
    require(bool(np.all(~((prior < 0) | (prior > 1)))), "prior", "be in [0, 1]", prior)
    return list(np.broadcast_arrays(prior, *(np.asarray(value, np.float64) for value in values)))


def _log_odds(prior: np.ndarray) -> np.ndarray:
    return np.log(prior) - np.log1p(-prior)


def _ratio_bound(g: np.ndarray, eps: np.ndarray) -> np.ndarray:
    """Logarithm of U(g, eps), for 0 < g < 1; the first term is infinite where g e^eps >= 1."""
    share = np.exp(np.log(g) + eps)
    first = np.where(share < 1, eps + np.log1p(-g) - np.log1p(-np.minimum(share, 1.0)), np.inf)
    inside = (1 - g) * np.exp(-eps)
    second = np.where(inside < 1, eps - np.log(g) + np.log1p(-np.minimum(inside, 1.0)), -np.inf)
    # At eps = +inf both terms are infinite; the comparison must not see inf - inf.
    return np.where(eps == np.inf, np.inf, np.minimum(first, second))


def _ratio_epsilon(g: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Inverse of ``_ratio_bound``: max(bound - s, s), s = log(1 - g + g e^bound)."""
    s = np.logaddexp(np.log1p(-g), np.log(g) + bound)
    return np.where(bound == np.inf, np.inf, np.maximum(bound - s, s))


def to_canonical(
    eps_L: Any, eps_R: Any, prior: Any, definition: str = "posterior_odds"
) -> tuple[np.ndarray, np.ndarray]:
    """(l, r) of (eps_L, eps_R) at a node's prior; arguments broadcast.

    A negative l or r says that no learner can have such a small epsilon at this prior.

    Args:
        eps_L: bound on the negative side.
        eps_R: bound on the positive side.
        prior: P(member), in [0, 1].
        definition: one of ``DEFINITIONS``.

    Returns:
        (l, r) float64. NaN at prior 0 or 1, except for ``posterior_odds`` where they are infinite for finite epsilons.

    Raises:
        InputError: a prior outside [0, 1], another definition.

    Example:
        >>> [float(x.round(3)) for x in to_canonical(2.0, -1.0, 0.1)]
        [-0.197, 1.197]
    """
    prior, eps_L, eps_R = _arguments(prior, definition, eps_L, eps_R)
    with np.errstate(all="ignore"):
        if definition == "posterior_odds":
            return eps_L + _log_odds(prior), eps_R - _log_odds(prior)
        inner = (prior > 0) & (prior < 1)
        if definition == "bayes_factor":
            return np.where(inner, eps_L, np.nan), np.where(inner, eps_R, np.nan)
        l, r = _ratio_bound(1 - prior, eps_L), _ratio_bound(prior, eps_R)
        return np.where(inner, l, np.nan), np.where(inner, r, np.nan)


def from_canonical(l: Any, r: Any, prior: Any, definition: str = "posterior_odds") -> tuple[np.ndarray, np.ndarray]:
    """(eps_L, eps_R) of (l, r) at a node's prior; arguments broadcast. Never clipped: eps_R may be negative.

    Args:
        l: canonical bound, >= 0; NaN passes through.
        r: canonical bound, >= 0; NaN passes through.
        prior: P(member), in [0, 1]. A Monte-Carlo estimate of 0 or 1 is not
            a prior of 0 or 1: pass its interval's ends.
        definition: one of ``DEFINITIONS``.

    Returns:
        (eps_L, eps_R) float64. At prior 1: (-inf, inf), at prior 0: (inf, -inf) under ``posterior_odds``; NaN under
        ``bayes_factor``; 0 under ``membership_privacy``, whatever l and r.

    Raises:
        InputError: a prior outside [0, 1], a negative l or r, another definition.

    Example:
        >>> [float(x.round(2)) for x in from_canonical(0.0, 0.0, 0.1)]
        [2.2, -2.2]
    """
    prior, l, r = _arguments(prior, definition, l, r)
    require(not bool(np.any((l < 0) | (r < 0))), "l and r", "be >= 0", "a negative value")
    inner = (prior > 0) & (prior < 1)
    with np.errstate(all="ignore"):
        if definition == "posterior_odds":
            # At prior 0 and 1 the prior decides, even against an infinite l or r.
            odds = _log_odds(prior)
            return np.where(inner, l - odds, -odds), np.where(inner, r + odds, odds)
        if definition == "bayes_factor":
            return np.where(inner, l, np.nan), np.where(inner, r, np.nan)
        eps_L, eps_R = _ratio_epsilon(1 - prior, l), _ratio_epsilon(prior, r)
        return np.where(inner, eps_L, 0.0), np.where(inner, eps_R, 0.0)


def prior_lower_bound(prior: Any, definition: str = "posterior_odds") -> tuple[np.ndarray, np.ndarray]:
    """(eps_L, eps_R) of a perfectly private learner (l = r = 0) at a node's prior: nothing can be below.

    (-log o, log o) under ``posterior_odds``, (0, 0) under the other readings (NaN at prior 0 or 1 under
    ``bayes_factor``). For the learner as a whole take the maxima over the nodes.

    Raises:
        InputError: a prior outside [0, 1], another definition.

    Example:
        >>> [float(x.round(2)) for x in prior_lower_bound(0.1)]
        [2.2, -2.2]
    """
    return from_canonical(0.0, 0.0, prior, definition)


def bmp_r(r: Any, prior: Any, definition: str = "posterior_odds") -> np.ndarray:
    """eps_R of BMP-R, the one-sided definition that bounds only how sure of *membership* anyone can become.

    The sides R1 and R4 of the region of errors remain (``region.contains(..., side="R")``); l is free.

    Args:
        r: canonical bound, >= 0; NaN passes through.
        prior: P(member), in [0, 1].
        definition: one of ``DEFINITIONS``.

    Returns:
        float64 of the broadcast shape. Under ``posterior_odds`` it is r + log(prior odds): what BMP-R adds to
        one-sided membership privacy (r) is the log odds *identically*, by definition and not as a finding.

    Raises:
        InputError: a prior outside [0, 1], a negative r, another definition.

    Example:
        >>> round(float(bmp_r(1.0, 0.1)), 2)
        -1.2
    """
    return from_canonical(0.0, r, prior, definition)[1]


def bmp_l(l: Any, prior: Any, definition: str = "posterior_odds") -> np.ndarray:
    """eps_L of BMP-L, the one-sided definition that bounds only how sure of *non-membership* anyone can become.

    The sides R2 and R3 of the region of errors remain (``side="L"``); r is free. Arguments and errors as ``bmp_r``.

    Example:
        >>> round(float(bmp_l(1.0, 0.1)), 2)
        3.2
    """
    return from_canonical(l, 0.0, prior, definition)[0]


def compare_readings(l: Any, r: Any, prior: Any) -> dict[str, np.ndarray]:
    """The same (l, r) under all readings, side by side, as columns of a table.

    ``log_odds`` is the prior-driven part of ``posterior_odds``; ``l`` and ``r`` are the model-driven part.
    ``symmetric`` = max(l, r) is the epsilon of the symmetric bound e^-eps <= ratio <= e^eps.

    Args:
        l: canonical bound, >= 0, scalar or (n,); NaN passes through.
        r: likewise.
        prior: P(member), in [0, 1], scalar or (n,).

    Returns:
        Column name -> (n,) float64 (scalars become one row): ``prior``, ``log_odds``, ``l``, ``r``, ``symmetric``,
        then ``<reading>_eps_L`` and ``<reading>_eps_R`` for each of ``DEFINITIONS``.

    Raises:
        InputError: a prior outside [0, 1], a negative l or r.

    Example:
        >>> table = compare_readings(0.5, 1.0, [0.1, 0.5])
        >>> [table[name + "_eps_R"].round(2).tolist() for name in DEFINITIONS]
        [[-1.2, 1.0], [1.0, 1.0], [0.84, 0.62]]
    """
    prior, l, r = (np.atleast_1d(part) for part in _arguments(prior, DEFINITIONS[0], l, r))
    with np.errstate(divide="ignore"):
        table = {"prior": prior, "log_odds": _log_odds(prior), "l": l, "r": r, "symmetric": np.maximum(l, r)}
    for name in DEFINITIONS:
        table[f"{name}_eps_L"], table[f"{name}_eps_R"] = from_canonical(l, r, prior, name)
    return table
