"""The region of errors (alpha, beta) that a bound e^-l <= likelihood ratio <= e^r leaves possible.

With A = e^l and B = e^r, every test obeys beta + B alpha >= 1 (R1), alpha + A beta >= 1 (R2),
beta + alpha/A <= 1 (R3), alpha + beta/B <= 1 (R4): a parallelogram with vertices (0,1), (a*, b*), (1,0),
(1-a*, 1-b*), a* = (A-1)/(AB-1), b* = (B-1)/(AB-1) (derived: the bound integrated over the acceptance and
the rejection set of a test; the vertices are where two sides meet). The one-sided versions keep
R1, R4 ("R": only r matters) or R2, R3 ("L"). Definition: Yildirim & Khosla, arXiv:2606.04069.

NumPy in, float64 NumPy out with checks; JAX arrays in (also traced ones), JAX arrays out without checks.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.runtime.checks import check_choice, require

__all__ = ["area", "contains", "log_vertex", "tightest", "vertices"]

_SIDES = ("both", "R", "L")


def _namespace(*values: Any) -> Any:
    return jnp if any(isinstance(value, jax.Array) for value in values) else np


def _parameters(xp: Any, l: Any, r: Any) -> tuple[Any, Any]:
    if xp is jnp:
        return jnp.asarray(l), jnp.asarray(r)
    l, r = np.asarray(l, np.float64), np.asarray(r, np.float64)
    for name, value in (("l", l), ("r", r)):
        require(bool(np.all(~(value < 0))), name, "be >= 0", value)
    return l, r


def _rates(xp: Any, alpha: Any, beta: Any) -> tuple[Any, Any]:
    if xp is jnp:
        return jnp.asarray(alpha), jnp.asarray(beta)
    alpha, beta = np.asarray(alpha, np.float64), np.asarray(beta, np.float64)
    for name, value in (("alpha", alpha), ("beta", beta)):
        require(bool(np.all(~((value < 0) | (value > 1)))), name, "be in [0, 1]", value)
    return alpha, beta


def _log_gap(xp: Any, x: Any) -> Any:
    """log(1 - e^-x), -inf at 0."""
    return xp.log(-xp.expm1(-x))


def log_vertex(l: Any, r: Any) -> tuple[Any, Any, Any, Any]:
    """Logs of a*, 1-a*, b*, 1-b*, without overflow; l, r > 0, not both infinite in one call's difference.

    With G(x) = log(1 - e^-x): log a* = G(l) - r - G(l+r), log(1-a*) = G(r) - G(l+r), b* with l and r swapped
    (derived: divide numerator and denominator of a* by AB).

    Example:
        >>> [float(np.exp(x).round(3)) for x in log_vertex(1.0, 2.0)]
        [0.09, 0.91, 0.335, 0.665]
    """
    xp = _namespace(l, r)
    gap_l, gap_r, gap = _log_gap(xp, l), _log_gap(xp, r), _log_gap(xp, l + r)
    return gap_l - r - gap, gap_r - gap, gap_r - l - gap, gap_l - gap


def contains(alpha: Any, beta: Any, l: Any, r: Any, side: str = "both") -> Any:
    """Whether the error pair lies in the region; arguments broadcast.

    A slack of four rounding units of 1 keeps the vertices themselves inside.

    Args:
        alpha: type I error, in [0, 1].
        beta: type II error, in [0, 1].
        l: >= 0, may be infinite.
        r: >= 0, may be infinite.
        side: "both", "R" (only r binds) or "L" (only l binds).

    Returns:
        bool array.

    Raises:
        InputError: an error outside [0, 1], a negative parameter, another side.

    Example:
        >>> contains([0.5, 0.01], [0.5, 0.01], 1.0, 1.0).tolist()
        [True, False]
    """
    check_choice("side", side, _SIDES)
    xp = _namespace(alpha, beta, l, r)
    (alpha, beta), (l, r) = _rates(xp, alpha, beta), _parameters(xp, l, r)
    shrink_r, shrink_l = xp.exp(-r), xp.exp(-l)
    slack = 4 * xp.finfo(xp.result_type(alpha, beta, l, r, 1.0)).eps
    inside_r = (shrink_r * (1 - beta) <= alpha + slack) & (shrink_r * beta <= 1 - alpha + slack)
    inside_l = (shrink_l * (1 - alpha) <= beta + slack) & (shrink_l * alpha <= 1 - beta + slack)
    if side == "both":
        return inside_r & inside_l
    return inside_r & (l >= 0) if side == "R" else inside_l & (r >= 0)


def vertices(l: Any, r: Any) -> Any:
    """The corners (0,1), (a*, b*), (1,0), (1-a*, 1-b*); where l = r = 0 the middle of the diagonal stands for both.

    Returns:
        (..., 4, 2) array of (alpha, beta).

    Raises:
        InputError: a negative parameter.

    Example:
        >>> vertices(800.0, 800.0).tolist()
        [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    """
    xp = _namespace(l, r)
    l, r = xp.broadcast_arrays(*_parameters(xp, l, r))
    whole = -xp.expm1(-(l + r))
    safe = xp.where(whole > 0, whole, 1.0)
    a = xp.where(whole > 0, xp.exp(-r) * -xp.expm1(-l) / safe, 0.5)
    b = xp.where(whole > 0, xp.exp(-l) * -xp.expm1(-r) / safe, 0.5)
    zero, one = xp.zeros_like(a), xp.ones_like(a)
    corners = [xp.stack(pair, axis=-1) for pair in ((zero, one), (a, b), (one, zero), (1 - a, 1 - b))]
    return xp.stack(corners, axis=-2)


def area(l: Any, r: Any, side: str = "both") -> Any:
    """Area of the region: (1-e^-l)(1-e^-r)/(1-e^-(l+r)), 1-e^-r for "R", 1-e^-l for "L"; 0 where l or r is 0.

    Raises:
        InputError: a negative parameter, another side.

    Example:
        >>> float(area(1.0, 1.0).round(4)), float(np.tanh(0.5).round(4))
        (0.4621, 0.4621)
    """
    check_choice("side", side, _SIDES)
    xp = _namespace(l, r)
    l, r = xp.broadcast_arrays(*_parameters(xp, l, r))
    of_l, of_r, whole = -xp.expm1(-l), -xp.expm1(-r), -xp.expm1(-(l + r))
    if side != "both":
        return of_r if side == "R" else of_l
    return xp.where(whole > 0, of_l * of_r / xp.where(whole > 0, whole, 1.0), 0.0)


def tightest(alpha: Any, beta: Any) -> tuple[Any, Any]:
    """The smallest (l, r) whose region admits the error pair.

    r = log max{(1-beta)/alpha, beta/(1-alpha)}, l = log max{alpha/(1-beta), (1-alpha)/beta} (derived: R1, R4 and
    R2, R3 solved for B and A); both are 0 on alpha + beta = 1, including (0, 1) and (1, 0).
    A pair with alpha + beta > 1 counts as leakage too: the test can be reversed.

    Returns:
        (l, r), arrays of the broadcast shape; infinite where the pair needs it.

    Raises:
        InputError: an error outside [0, 1].

    Example:
        >>> [float(x) for x in tightest(0.0, 1.0)], [float(x) for x in tightest(0.0, 0.0)]
        ([0.0, 0.0], [inf, inf])
    """
    xp = _namespace(alpha, beta)
    alpha, beta = xp.broadcast_arrays(*_rates(xp, alpha, beta))

    def ratio(top: Any, bottom: Any) -> Any:
        """log(top / bottom); 0/0 imposes nothing. log1p keeps the digits near 1."""
        usable = (top > 0) & (bottom > 0)
        inside = xp.log1p((xp.where(usable, top, 1.0) - xp.where(usable, bottom, 1.0)) / xp.where(usable, bottom, 1.0))
        return xp.where(usable, inside, xp.where(top > 0, xp.inf, -xp.inf))

    r = xp.maximum(xp.maximum(ratio(1 - beta, alpha), ratio(beta, 1 - alpha)), 0.0)
    l = xp.maximum(xp.maximum(ratio(alpha, 1 - beta), ratio(1 - alpha, beta)), 0.0)
    unknown = xp.isnan(alpha) | xp.isnan(beta)
    return xp.where(unknown, xp.nan, l), xp.where(unknown, xp.nan, r)
