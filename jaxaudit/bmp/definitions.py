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

__all__ = ["DEFINITIONS", "from_canonical", "prior_lower_bound", "to_canonical"]

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
