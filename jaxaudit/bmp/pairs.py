"""Quadrature points for two independent Beta error rates, and the privacy parameters they reveal.

``r*`` and ``l*`` of an error pair (a, b) are the smallest parameters of a region that admits it
(``jaxaudit.bmp.region.tightest``). Both posteriors here are expectations over pairs, so both use
one fixed lattice: the same counts always give the same numbers, whatever else is in the call.

Points. A square lattice of p^2 + q^2 points on the unit square, turned by atan(q/p), goes through the
logistic quantile function into the logit plane, centred and scaled for each side. With q/p near
1/golden ratio no short dual vector lies along an axis or along a + b = 1, where r* = l* = 0 and the
integrands have a logarithmic singularity. A logistic with the Laplace scale sqrt(1/A + 1/B) of
Beta(A, B) in logit(a), at least 1/A and 1/B, has tails no lighter than the Beta's: bounded weights.

Coordinates. s = log(e^r - 1), nearly log r for small r and r for large r. With d = 1 - a - b:
s_r = log|d| - log a, s_l = log|d| - log b for d > 0 and -log(1-a), -log(1-b) instead for d < 0
(derived: e^{r*} - 1 = (1-b)/a - 1 = (1-a-b)/a for a + b < 1; the reversed test otherwise).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "Lattice",
    "Pairs",
    "Proposal",
    "beta_points",
    "beta_proposal",
    "deposit",
    "error_pairs",
    "lattice",
    "log_excess",
    "split_position",
]


class Lattice(NamedTuple):
    """Standardised points: logistic coordinates and log inverse densities, each (points,) float32."""

    za: Any
    zb: Any
    log_weight: Any


class Proposal(NamedTuple):
    """Centre and scale of the logistic proposal in logit(rate), scalars."""

    centre: jax.Array
    scale: jax.Array


class Pairs(NamedTuple):
    """Weighted error pairs of one count tuple, each (points,).

    Attributes:
        log_weight: log of Beta density over proposal density, up to a constant.
        xa: logit of the type I error.
        xb: logit of the type II error.
        s_r: log(exp(r*) - 1).
        s_l: log(exp(l*) - 1).
    """

    log_weight: jax.Array
    xa: jax.Array
    xb: jax.Array
    s_r: jax.Array
    s_l: jax.Array


def lattice(p: int, q: int) -> Lattice:
    """The turned square lattice of p^2 + q^2 points (p, q coprime), in logistic coordinates.

    Example:
        >>> lattice(2, 1).za.shape
        (5,)
    """
    points = p * p + q * q
    order = np.arange(points)
    u = (order + 0.5) / points
    generator = -p * pow(q, -1, points) % points  # (p, q) is then a dual vector
    v = np.mod(order * generator / points + 0.37, 1.0)
    log_weight = -np.log(u * (1 - u)) - np.log(v * (1 - v))
    return Lattice(*(x.astype(np.float32) for x in (np.log(u / (1 - u)), np.log(v / (1 - v)), log_weight)))


def beta_proposal(shape_a: jax.Array, shape_b: jax.Array) -> Proposal:
    """The default proposal for Beta(shape_a, shape_b): its mode in the logit and a scale that bounds the weights."""
    laplace = jnp.sqrt(1 / shape_a + 1 / shape_b)
    scale = jnp.maximum(laplace, jnp.maximum(1 / shape_a, 1 / shape_b))
    return Proposal(jnp.log(shape_a) - jnp.log(shape_b), scale)


def beta_points(
    z: jax.Array, shape_a: jax.Array, shape_b: jax.Array, proposal: Proposal
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """logit, log a, log(1-a) and log density (in the logit, relative to its mode) at the points."""
    mean = shape_a / (shape_a + shape_b)
    mode = jnp.log(shape_a) - jnp.log(shape_b)
    x = proposal.centre + proposal.scale * z
    step = x - mode
    # Log ratios to the mode: differences of large log densities would lose float32's digits.
    up = -jnp.log1p((1 - mean) * jnp.expm1(-step))
    down = -jnp.log1p(mean * jnp.expm1(step))
    return x, jnp.log(mean) + up, jnp.log1p(-mean) + down, shape_a * up + shape_b * down


def _log_abs(gap: jax.Array) -> jax.Array:
    return jnp.log(jnp.abs(gap) + 1e-30)


def log_excess(a: Any, b: Any, log_abs: Callable[[jax.Array], jax.Array] = _log_abs) -> tuple[jax.Array, jax.Array]:
    """(s_r, s_l) of error pairs; ``a`` and ``b`` are each (logit, log rate, log(1 - rate))."""
    (_, log_a, log_not_a), (xb, log_b, log_not_b) = a, b
    # 1 - a - b from the smaller pair of complements: no cancellation in the corners (0,1) and (1,0).
    gap = jnp.where(xb > 0, jnp.exp(log_not_b) - jnp.exp(log_a), jnp.exp(log_not_a) - jnp.exp(log_b))
    log_gap = log_abs(gap)
    return log_gap - jnp.where(gap > 0, log_a, log_not_a), log_gap - jnp.where(gap > 0, log_b, log_not_b)


def error_pairs(
    counts: jax.Array, offset: float, points: Lattice, proposals: tuple[Proposal, Proposal] | None = None
) -> Pairs:
    """Weighted pairs for a ~ Beta(fp + offset, n_out - fp + offset), b ~ Beta(fn + offset, n_in - fn + offset).

    Args:
        counts: (4,) float32: fp, n_out, fn, n_in.
        offset: 1 for a uniform prior on each rate, 0.5 for Jeffreys'.
        points: the lattice.
        proposals: for a and b; None takes ``beta_proposal``.

    Returns:
        Pairs, arrays of shape (points,).
    """
    fp, n_out, fn, n_in = counts
    shapes_a, shapes_b = (fp + offset, n_out - fp + offset), (fn + offset, n_in - fn + offset)
    if proposals is None:
        proposals = beta_proposal(*shapes_a), beta_proposal(*shapes_b)
    xa, log_a, log_not_a, density_a = beta_points(points.za, *shapes_a, proposals[0])
    xb, log_b, log_not_b, density_b = beta_points(points.zb, *shapes_b, proposals[1])
    s_r, s_l = log_excess((xa, log_a, log_not_a), (xb, log_b, log_not_b))
    return Pairs(density_a + density_b + points.log_weight, xa, xb, s_r, s_l)


def deposit(position: jax.Array, masses: jax.Array, size: int) -> jax.Array:
    """Share each mass between the two grid nodes next to its position (adjoint of linear interpolation).

    Args:
        position: (points,) in units of the grid spacing, clipped to the grid.
        masses: (points, k).
        size: number of grid nodes.

    Returns:
        (size, k); column sums equal those of ``masses``.
    """
    low, share = split_position(position, size)
    grid = jnp.zeros((size, masses.shape[1]), masses.dtype)
    return grid.at[low].add(masses * (1 - share)[:, None]).at[low + 1].add(masses * share[:, None])


def split_position(position: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Node below and fraction of the way to the next, for positions clipped to a grid of ``size`` nodes."""
    inside = jnp.clip(position, 0, size - 1)
    low = jnp.minimum(jnp.floor(inside), size - 2)
    return low.astype(jnp.int32), inside - low
