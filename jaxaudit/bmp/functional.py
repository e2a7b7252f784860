"""What one attack shows by itself: Jeffreys Betas pushed through (r*, l*), the headline of a report.

The functional posterior speaks of this attack alone: alpha ~ Beta(fp+1/2, n_out-fp+1/2) and
beta ~ Beta(fn+1/2, n_in-fn+1/2), independent, give the smallest (l, r) whose region admits (alpha, beta).
Unlike the paper's posterior it does not assume that the attack sits uniformly inside the region, and its
lower limits are evidence of leakage (theory: arXiv:2606.04069 for the region; the pushforward is derived).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.bmp.counts import CHUNK, distinct, map_blocks, validate
from jaxaudit.bmp.pairs import deposit, error_pairs, lattice
from jaxaudit.runtime.checks import check_real
from jaxaudit.runtime.chunks import chunked_map

__all__ = ["FunctionalLimits", "functional_limits"]

_LATTICE, _GRID, _SPAN = (55, 34), 256, 6.0


@dataclass(frozen=True)
class FunctionalLimits:
    """One-sided limits and medians of r* and l*, each (n,) float64; NaN without data on a side.

    Attributes:
        level: level of each one-sided limit.
        r_lower: r exceeds it with probability ``level``.
        r_median: posterior median of r.
        r_upper: r is below it with probability ``level``.
        l_lower: as ``r_lower``, for l.
        l_median: as ``r_median``, for l.
        l_upper: as ``r_upper``, for l.
    """

    level: float
    r_lower: np.ndarray
    r_median: np.ndarray
    r_upper: np.ndarray
    l_lower: np.ndarray
    l_median: np.ndarray
    l_upper: np.ndarray


def _weighted_quantiles(s: jax.Array, weight: jax.Array, levels: jax.Array) -> jax.Array:
    """Quantiles of x = log(1 + e^s) under normalised weights, from masses on a grid of the node's own scale."""
    mean = (weight * s).sum()
    sd = jnp.sqrt((weight * (s - mean) ** 2).sum())
    start, spacing = mean - _SPAN * sd, 2 * _SPAN * sd / (_GRID - 1)
    mass = deposit((s - start) / spacing, weight[:, None], _GRID)[:, 0]
    # A node's mass stands for the cell around it: the distribution function at the cell's upper edge.
    below = jnp.cumsum(mass)
    right = jnp.clip(jnp.searchsorted(below, levels), 1, _GRID - 1)
    share = (levels - below[right - 1]) / jnp.maximum(below[right] - below[right - 1], 1e-30)
    return jax.nn.softplus(start + spacing * (right - 0.5 + share))


def _one_node(counts: jax.Array, shared: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
    pairs = error_pairs(counts, 0.5, shared["points"])
    weight = jnp.exp(pairs.log_weight - pairs.log_weight.max())
    weight = weight / weight.sum()
    r, l = (_weighted_quantiles(s, weight, shared["levels"]) for s in (pairs.s_r, pairs.s_l))
    return r, l


@jax.jit
def _all_nodes(counts: jax.Array, shared: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
    return chunked_map(partial(_one_node, shared=shared), counts, chunk=CHUNK)


def functional_limits(fp: Any, n_out: Any, fn: Any, n_in: Any, level: float = 0.95) -> FunctionalLimits:
    """One-sided lower and upper limits of r and l that this attack's error counts support.

    Args:
        fp: false positives, whole numbers in [0, n_out], scalar or (n,).
        n_out: non-member trials.
        fn: false negatives, in [0, n_in].
        n_in: member trials.
        level: level of each limit, in [0.5, 0.999].

    Returns:
        FunctionalLimits over the n nodes.

    Raises:
        InputError: counts or a level that break a rule.

    Example:
        >>> limits = functional_limits(10, 100, 10, 100)
        >>> [float(x[0].round(2)) for x in (limits.r_lower, limits.r_median, limits.r_upper)]
        [1.73, 2.18, 2.72]
    """
    rows = validate(fp, n_out, fn, n_in)
    level = check_real("level", level, 0.5, 0.999)
    unique, index = distinct(rows)
    shared = {"points": lattice(*_LATTICE), "levels": np.array([1 - level, 0.5, level], np.float32)}
    values = np.full((len(unique) + 1, 2, 3), np.nan)  # the last row serves index -1
    for block, (r, l) in map_blocks(_all_nodes, unique, shared):
        values[block, 0], values[block, 1] = r, l
    (r_lower, r_median, r_upper), (l_lower, l_median, l_upper) = values[index].transpose(1, 2, 0)
    return FunctionalLimits(level, r_lower, r_median, r_upper, l_lower, l_median, l_upper)
