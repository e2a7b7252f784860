"""The exact posterior of one (l, r) shared by many nodes: the product of their marginal likelihoods.

Counts are never summed: every node has its own (alpha, beta), uniform in the shared region R(l, r).
With (a, b) = (0,1) + u [(a*, b*) - (0,1)] + v [(1-a*, 1-b*) - (0,1)], u and v uniform on (0, 1), the
marginal likelihood of a node is int int Bin(fp | a) Bin(fn | b) du dv (the Jacobian is the area, which
cancels: derived). ``shared_log_likelihood`` is that integral, differentiable, for the chains: for given (l, r) the
points of a Gauss-Legendre rule in (u, v) are shared by all nodes, so all distinct count tuples cost one matrix product
and one exponential per point. The posterior itself comes from the tables of ``jaxaudit.bmp.table``.

All nodes share the audit's models, so the counts depend on each other across nodes and this
interval is optimistic; see the report's bootstrap over models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import xlogy

from jaxaudit.bmp.counts import distinct, validate
from jaxaudit.bmp.region import log_vertex
from jaxaudit.bmp.table import SharedPosteriors, shared_posteriors
from jaxaudit.runtime.checks import check_real, require
from jaxaudit.runtime.chunks import bucket, rows_per_chunk

__all__ = [
    "PooledData",
    "PooledPosterior",
    "pooled_at_scales",
    "pooled_data",
    "pooled_posterior",
    "shared_log_likelihood",
]


@dataclass(frozen=True)
class PooledPosterior:
    """Marginal posteriors of the shared r and l.

    Attributes:
        prior_scale2: squared scale of the half-normal priors.
        nodes: number of nodes with data on both sides.
    """

    prior_scale2: float
    nodes: int
    _shared: SharedPosteriors = field(repr=False)
    _row: int = field(repr=False)

    def quantile(self, name: str, q: float) -> float:
        """Posterior quantile of ``name`` ("r" or "l") at level ``q`` in [0.001, 0.999].

        Raises:
            InputError: another name, or a level out of range.
        """
        return float(self._shared.quantile(name, q)[self._row])


class PooledData(NamedTuple):
    """Everything the shared likelihood needs, arrays in the caller's float type.

    Attributes:
        powers: (c, k, 4) exponents of a, 1-a, b, 1-b of the distinct count tuples, c chunks of k.
        constants: (c, k) largest log likelihood of each tuple, subtracted to keep sums small.
        times: (c, k) number of nodes with that tuple (0: padding).
        u: (m,) Gauss-Legendre nodes on (0, 1), symmetric about 1/2.
        log_w: (m,) log weights.
    """

    powers: np.ndarray
    constants: np.ndarray
    times: np.ndarray
    u: np.ndarray
    log_w: np.ndarray


def pooled_data(rows: np.ndarray, dtype: Any) -> tuple[PooledData, int]:
    """Distinct tuples in chunks of bounded memory, the quadrature rule, and the number of usable nodes.

    The rule's spacing is about one binomial standard deviation: far below 1e-6 in the log likelihood.
    """
    unique, index = distinct(rows)
    require(len(unique) > 0, "counts", "have at least one node with data on both sides", "none")
    times = np.bincount(index[index >= 0], minlength=len(unique)).astype(float)
    x, w = np.polynomial.legendre.leggauss(max(24, int(np.ceil(3 * np.sqrt(unique[:, [1, 3]].max())))))
    fp, n_out, fn, n_in = unique.T
    powers = np.stack([fp, n_out - fp, fn, n_in - fn], axis=1).astype(float)
    constants = xlogy(powers, powers).sum(axis=1) - xlogy(n_out, n_out) - xlogy(n_in, n_in)
    chunk = min(rows_per_chunk(8 * x.size**2), bucket(len(unique), 1))
    missing = -len(unique) % chunk
    powers, constants, times = (np.pad(z, [(0, missing)] + [(0, 0)] * (z.ndim - 1)) for z in (powers, constants, times))
    chunked = powers.reshape(-1, chunk, 4), constants.reshape(-1, chunk), times.reshape(-1, chunk)
    arrays = (z.astype(dtype) for z in (*chunked, (x + 1) / 2, np.log(w / 2)))
    return PooledData(*arrays), int((index >= 0).sum())


def shared_log_likelihood(l: jax.Array, r: jax.Array, data: PooledData) -> jax.Array:
    """Sum over nodes of the log marginal likelihood at one (l, r), up to a constant; differentiable, l, r > 0."""
    a, not_a, b, not_b = (jnp.exp(x) for x in log_vertex(l, r))
    low, high = data.u, data.u[::-1]  # u and 1 - u without rounding
    (u, v), (rest_u, rest_v) = jnp.meshgrid(low, low, indexing="ij"), jnp.meshgrid(high, high, indexing="ij")
    rates = u * a + v * not_a, rest_u * a + rest_v * not_a, rest_u * not_b + rest_v * b, u * not_b + v * b
    logs = jnp.log(jnp.stack(rates).reshape(4, -1))
    log_weight = (data.log_w[:, None] + data.log_w[None, :]).ravel()

    return _sum_over_tuples(logs, log_weight, (data.powers, data.constants, data.times))


@jax.custom_vjp
def _sum_over_tuples(logs: jax.Array, log_weight: jax.Array, parts: Any) -> jax.Array:
    """Sum of times * logsumexp(powers @ logs + log_weight - constants), chunk by chunk."""
    return jax.lax.map(lambda part: _chunk(logs, log_weight, part), parts).sum()


def _chunk(logs: jax.Array, log_weight: jax.Array, part: Any) -> jax.Array:
    powers, constants, times = part
    inside = jnp.matmul(powers, logs, precision="highest") + (log_weight - constants[:, None])
    return (jax.nn.logsumexp(inside, axis=1) * times).sum()


def _sum_forward(logs: jax.Array, log_weight: jax.Array, parts: Any) -> tuple[jax.Array, jax.Array]:
    """Value and gradient in one pass: no (tuples, points) array is kept or computed twice."""

    def add(total: Any, part: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, jax.value_and_grad(_chunk)(logs, log_weight, part)), None

    zero = jnp.zeros((), logs.dtype), jnp.zeros_like(logs)
    return jax.lax.scan(add, zero, parts)[0]


def _sum_backward(slope: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, None, None]:
    return cotangent * slope, None, None


_sum_over_tuples.defvjp(_sum_forward, _sum_backward)


def pooled_posterior(fp: Any, n_out: Any, fn: Any, n_in: Any, prior_scale2: float = 10.0) -> PooledPosterior:
    """Posterior of one (l, r) shared by all nodes, by quadrature; one node gives ``exact_posterior``.

    Nodes without data on a side are left out. Equal count tuples are computed once and weighted.

    Args:
        fp: false positives, whole numbers in [0, n_out], scalar or (n,).
        n_out: non-member trials.
        fn: false negatives, in [0, n_in].
        n_in: member trials.
        prior_scale2: squared scale of the half-normal priors, in [0.01, 10_000].

    Returns:
        PooledPosterior.

    Raises:
        InputError: counts that break a rule, or no node with data on both sides.

    Example:
        >>> post = pooled_posterior([10] * 20, 100, [10] * 20, 100)
        >>> [round(post.quantile("r", q), 1) for q in (0.05, 0.5, 0.95)]
        [2.7, 3.6, 6.8]
    """
    check_real("prior_scale2", prior_scale2, 0.01, 10_000)
    return pooled_at_scales(fp, n_out, fn, n_in, (prior_scale2,))[0]


def pooled_at_scales(fp: Any, n_out: Any, fn: Any, n_in: Any, scales: Sequence[float]) -> list[PooledPosterior]:
    """``pooled_posterior`` at several squared prior scales, from one table of likelihoods.

    Args:
        fp: counts as above, with the three that follow.
        n_out: see above.
        fn: see above.
        n_in: see above.
        scales: at least one, each in [0.01, 10_000].

    Returns:
        One posterior per scale, in order.

    Raises:
        InputError: as above.

    Example:
        >>> tight, wide = pooled_at_scales([10] * 20, 100, [10] * 20, 100, (1.0, 100.0))
        >>> round(tight.quantile("r", 0.95), 1), round(wide.quantile("r", 0.95), 1)
        (3.4, 19.9)
    """
    unique, index = distinct(validate(fp, n_out, fn, n_in))
    times = np.bincount(index[index >= 0], minlength=len(unique)).astype(float)
    shared = shared_posteriors(unique, np.tile(times, (len(scales), 1)), scales)
    return [PooledPosterior(float(scale2), int(times.sum()), shared, b) for b, scale2 in enumerate(scales)]
