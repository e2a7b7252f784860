"""The terms of Gen-LRA: per pair (target, neighbour) the log density ratio, for one bandwidth.

``fixed`` keeps covariance and bandwidth of the reference: one more kernel. ``refit`` re-estimates them with the target
added, without a refit: with n reference rows of mean zero and identity covariance, adding u changes the covariance to
``a (I + (b/a) u u^T)``, ``a = (n-1)/n``, ``b = 1/(n+1)``; Sherman-Morrison and the determinant lemma give distances and
volume. The exponent ``-E_i = -|v - r_i|^2 / 2 h^2`` of reference row i at the neighbour v changes by

    ``Delta_i = -g E_i + y_i^2``,  ``y_i = sqrt(stretch) (v - r_i) . u / |u|``.

``g`` is the same for all targets (derived). What that does to the log sum: ``gen_lra_changes``.
"""

from __future__ import annotations

import numpy as np

from jaxaudit.tables.attacks.gen_lra_changes import DirectedPairs, log_sum_changes
from jaxaudit.tables.attacks.neighbours import NeighbourPairs, squared_differences, used_rows
from jaxaudit.tables.blocks import block_map
from jaxaudit.tables.density import KernelDensity, log_kernel_sums

__all__ = ["fixed_terms", "refit_terms"]

_PAIRS = 1 << 14
"""Pairs that one thread takes at a time."""


def fixed_terms(
    pairs: NeighbourPairs, u: np.ndarray, v: np.ndarray, density: KernelDensity, n: int, precision: str
) -> np.ndarray:
    """Per pair (p,): ``log(n / (n + 1)) + softplus(-|v - u|^2 / 2 h^2 - LSE_R(v))``; one LSE per distinct neighbour.

    Args:
        pairs: targets and their neighbours.
        u: (t, e) whitened targets.
        v: (m, e) whitened distinct synthetic rows.
        density: of the reference, n rows.
        n: rows of the reference, copies counted.
        precision: of the log sums over the reference.
    """
    used, row = used_rows(pairs.row, len(v))
    sums = log_kernel_sums(density, v[used], precision)

    def some(low: int) -> np.ndarray:
        part = slice(low, low + _PAIRS)
        own = squared_differences(u, pairs.target[part], v, pairs.row[part]) * (0.5 / density.bandwidth**2)
        own += sums[row[part]]  # minus the exponent of the one more kernel, less the log sum
        return np.log1p(np.exp(-np.abs(own))) - np.minimum(own, 0.0)  # softplus(-own)

    return np.concatenate(block_map(some, range(0, len(row), _PAIRS))) - np.log1p(1.0 / n)


def refit_terms(
    pairs: NeighbourPairs, u: np.ndarray, v: np.ndarray, density: KernelDensity, n: int, h_next: float, precision: str
) -> tuple[np.ndarray, np.ndarray]:
    """Per pair (p,): the log density ratio after exact re-estimation, and the log density of the row before it.

    ``h_next`` is the bandwidth with n + 1 rows; arguments otherwise as ``fixed_terms``.
    """
    per_target, scalars = _refit_constants(u, density, n, h_next)
    along, own = _pair_constants(pairs, u, v, per_target, scalars)
    change, log_sums = log_sum_changes(
        DirectedPairs(pairs.target, pairs.row, along), v, per_target["direction"], density, scalars["growth"],
        pairs.k, precision,
    )  # fmt: skip
    return per_target["constant"][pairs.target] + np.logaddexp(change, -own - log_sums), log_sums - density.log_norm


def _refit_constants(
    u: np.ndarray, density: KernelDensity, n: int, h_next: float
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """What depends on the target alone, in float64: unit vector, norm, shrinkage along it, log volume.

    Along u the covariance grows by ``1 / shrink``, ``shrink = a / (a + b q)``; writing it so, and with unit
    vectors, loses nothing however far out the target is.
    """
    e, h, a, b = u.shape[1], density.bandwidth, (n - 1) / n, 1.0 / (n + 1)
    norm = np.linalg.norm(u, axis=1)
    q = norm**2
    ratio = np.log(h_next / h)
    unit = u / np.where(norm > 0, norm, 1.0)[:, None]
    stretch = (b * q / (a + b * q)) / (2 * a * h_next**2)
    per_target = {
        "unit": unit,
        "norm": norm,
        "shrink": a / (a + b * q),
        "root": np.sqrt(stretch),
        "direction": np.sqrt(stretch)[:, None] * unit,
        "constant": -np.log1p(1.0 / n) - e * ratio - 0.5 * (e * np.log(a) + np.log1p(b * q / a)),
    }
    scalars = {
        "inverse_next": 0.5 / (a * h_next**2),
        "growth": float(np.expm1(-2 * ratio - np.log(a))),
    }
    return per_target, scalars


def _pair_constants(
    pairs: NeighbourPairs, u: np.ndarray, v: np.ndarray, per_target: dict[str, np.ndarray], scalars: dict[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Per pair (p,): ``sqrt(stretch) v . u / |u|``, and the exponent of the target's own kernel, negated.

    From the components of every neighbour along and across its target's direction, a few pairs at a time.
    """
    along, own = np.empty(len(pairs.row)), np.empty(len(pairs.row))
    step = max(1, (1 << 18) // (8 * u.shape[1]))
    for low in range(0, len(along), step):
        part = slice(low, low + step)
        t = pairs.target[part]
        near, unit = v[pairs.row[part]], per_target["unit"][t]
        reach = np.einsum("pe,pe->p", near, unit)
        unit *= reach[:, None]
        near -= unit
        across = np.einsum("pe,pe->p", near, near)
        own[part] = across + per_target["shrink"][t] * (reach - per_target["norm"][t]) ** 2
        along[part] = per_target["root"][t] * reach
    return along, own * scalars["inverse_next"]
