"""What the local-overfitting model says about the fixed Gen-LRA score: score gaps and their limits, before any attack.

The model of Ward, Wang & Cheng (arXiv:2508.21146): m rows are released, each drawn from the population P with
probability 1 - eps and otherwise next to a training row, ``N(x_train, rho^2 I)``, the row being one of N at random.

At k = m the score of x is the sum of ``g(s; x)`` over all released rows, ``g(s; x) = log p_{R+x}(s) - log p_R(s)``. A
released row lies in P, next to x or next to another training row; only for members is there a row "next to x". So

    gap = E score(member) - E score(non-member) = eps (m / N) (E g_own - E g_other),

exactly linear in eps (derived: the terms for P, and all but one of the N training rows, are the same on both sides).
``g_own``: s ~ N(x, rho^2 I). ``g_other``: s ~ N(x', rho^2 I) for another x'. Both means run over x, x' ~ P and over the
reference. ``expected_terms`` takes them over independent references of the same size. ``plug_in_terms`` puts the
smoothed density K_H * p_R in the place of the estimated one: ``log(1 + c / y)`` is convex in y, so by Jensen's
inequality it is too small for both terms, the less so the more rows a kernel covers.

All in standard deviations of P: mean zero, covariance I. A bandwidth h is the standard deviation of a kernel.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp, roots_genlaguerre, roots_hermitenorm

from jaxaudit.runtime.checks import check_int, check_real, require
from jaxaudit.runtime.chunks import rows_per_chunk
from jaxaudit.runtime.keys import item_keys
from jaxaudit.tables.blocks import table_size
from jaxaudit.tables.density import log_sum_kernels, precision_scope
from jaxaudit.tables.overfit_model import draw_population

__all__ = ["Terms", "expected_terms", "first_order_slope", "limit_ratio", "plug_in_terms"]

_NODES = 96
"""Nodes of each Gauss rule."""


class Terms(NamedTuple):
    """Means of the score's term per bandwidth, (H,) float64 each.

    Attributes:
        own: mean of g for a row released next to the record.
        other: mean of g for a row released next to another record.
        gap: own - other.
        gap_se: standard error of the gap; 0 where nothing was drawn.
    """

    own: np.ndarray
    other: np.ndarray
    gap: np.ndarray
    gap_se: np.ndarray


def expected_terms(
    key: jax.Array, rho: float, bandwidths: Any, *, d: int, n: int, draws: int = 200, population: str = "normal"
) -> Terms:
    """``E g_own`` and ``E g_other`` by Monte-Carlo over independent references, whitening included.

    Every draw takes a new reference, new records and one released row next to each; ``g_other`` uses the same
    released rows with the records moved on by one, which is another record's row. Nothing of an audited
    release enters.

    Args:
        key: source of the draws.
        rho: standard deviation of a near copy, in [0, 1e6].
        bandwidths: (H,) > 0.
        d: columns, >= 1.
        n: rows of a reference, >= d + 2.
        draws: references, >= 2; the standard error is taken over them.
        population: one of ``POPULATIONS``.

    Raises:
        InputError: an argument outside its range.

    Example:
        >>> terms = expected_terms(jax.random.key(0), 0.1, [0.5], d=2, n=60, draws=20)
        >>> bool(terms.own[0] > terms.other[0]), bool(terms.gap_se[0] < 0.1 * terms.gap[0])
        (True, True)
    """
    d, n, h = _checked(rho, bandwidths, d, n)
    check_int("n", n, d + 2)
    check_int("draws", draws, 2)
    rows = max(2, min(256, rows_per_chunk(8 * n)))
    with precision_scope("float64"):
        keys = item_keys(key, 0, draws)
        found = np.asarray(_terms(keys, np.float64(rho), h, d=d, n=n, rows=rows, population=population))
    own, other = found[:, 0], found[:, 1]
    gap = own - other
    return Terms(own.mean(0), other.mean(0), gap.mean(0), gap.std(0, ddof=1) / np.sqrt(draws))


@partial(jax.jit, static_argnames=("d", "n", "rows", "population"))
def _terms(
    keys: jax.Array, rho: jax.Array, bandwidths: jax.Array, *, d: int, n: int, rows: int, population: str
) -> jax.Array:
    """(draws, 2, H): means of g over one reference each."""

    def one(key: jax.Array) -> jax.Array:
        of_reference, of_records, of_rows = jax.random.split(key, 3)
        reference = draw_population(of_reference, n, d, population)
        records = draw_population(of_records, rows, d, population)
        released = records + rho * jax.random.normal(of_rows, (rows, d))
        mean = reference.mean(axis=0)
        factor = jnp.linalg.cholesky(jnp.atleast_2d(jnp.cov(reference.T)))
        whiten = jax.scipy.linalg.solve_triangular(factor, jnp.eye(d), lower=True).T  # of rows: far cheaper this way
        r, x, s = ((part - mean) @ whiten for part in (reference, records, released))
        padding = table_size(n) - n  # up to a size that can be cut into blocks; padding has count zero
        r = jnp.pad(r, ((0, padding), (0, 0)))
        log_counts = jnp.pad(jnp.zeros(n), (0, padding), constant_values=-jnp.inf)
        own = jnp.stack([jnp.sum((s - x) ** 2, axis=1), jnp.sum((s - jnp.roll(x, 1, axis=0)) ** 2, axis=1)])

        def mean_term(h: jax.Array) -> jax.Array:
            sums = log_sum_kernels(s, r, log_counts, 0.5 / h**2)
            return jnp.mean(jax.nn.softplus(-0.5 * own / h**2 - sums), axis=1) - jnp.log1p(1 / n)

        return jax.lax.map(mean_term, bandwidths).T

    return jax.lax.map(one, keys)


def plug_in_terms(rho: float, bandwidths: Any, *, d: int, n: int) -> Terms:
    """``E g_own`` and ``E g_other`` with K_H * p_R, here N(0, (1 + h^2) I), in place of the estimated density.

    By Gauss rules, for P = N(0, I). With delta = s - x the term depends on |s| and |delta| alone, and s is normal with
    variance 1 + rho^2; given s, delta is normal with mean b s and variance t, both rho^2 / (1 + rho^2) for the record's
    own row and b = t = 1 for another's (derived: regression of delta on s). So three rules are enough: |s|^2 and the
    part of delta across s are chi-squared, the part along s is normal.

    Args:
        rho: standard deviation of a near copy, in [0, 1e6].
        bandwidths: (H,) > 0.
        d: columns, >= 1.
        n: rows of the reference, >= 1.

    Raises:
        InputError: an argument outside its range.

    Example:
        >>> near, far = (plug_in_terms(rho, [0.5], d=5, n=500).gap[0] for rho in (0.1, 1.0))
        >>> round(float(near), 3), round(float(far), 3)
        (0.736, 0.061)
    """
    d, n, h = _checked(rho, bandwidths, d, n)
    share = rho**2 / (1 + rho**2)
    own, other = (
        np.array([_plug_in(1 + rho**2, b, b, d, n, float(value)) for value in h]) for b in (share, 1.0)
    )  # fmt: skip
    return Terms(own, other, own - other, np.zeros_like(own))


def _plug_in(spread: float, drift: float, variance: float, d: int, n: int, h: float) -> float:
    """Mean of g over s ~ N(0, spread I) and delta | s ~ N(drift s, variance I)."""
    radius, radius_weight = _chi_squared_rule(d)
    along, along_weight = roots_hermitenorm(_NODES)
    across, across_weight = _chi_squared_rule(d - 1)
    s = spread * radius
    delta = (drift * np.sqrt(s)[:, None] + np.sqrt(variance) * along)[:, :, None] ** 2 + variance * across
    log_ratio = 0.5 * d * np.log1p(1 / h**2) - delta / (2 * h**2) + (s / (2 * (1 + h**2)))[:, None, None]
    terms = np.logaddexp(0.0, log_ratio - np.log(n)) - np.log1p(1 / n)
    return float(np.einsum("sac,s,a,c->", terms, radius_weight, along_weight / along_weight.sum(), across_weight))


def _chi_squared_rule(degrees: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a mean over chi-squared; 0 with certainty for no degree of freedom."""
    if degrees == 0:
        return np.zeros(1), np.ones(1)
    nodes, weights = roots_genlaguerre(_NODES, degrees / 2 - 1)
    return 2 * nodes, weights / weights.sum()


def first_order_slope(bandwidth: float, *, d: int, n: int, train: int, release: int) -> float:
    """The gap per eps for n so large that a record's kernel is small beside K_H * p_R everywhere, P = N(0, I).

    ``(m / N) ((1 + 1 / h^2)^d - 1) / n``, an upper limit of the plug-in value (log(1 + z) <= z), and the same for every
    rho (derived: the mean of K_h(s - x) / q(s) is ``(1 + 1 / h^2)^d`` for the own row, a Gaussian integral whose
    determinant cancels rho, and 1 for another's, since the mean of K_h(s - x) over x is q(s)). That rho drops out is
    due to rows far out, where q is small; at the n of real tables the logarithm cuts them off, and rho counts.

    Example:
        >>> first_order_slope(1.0, d=1, n=100, train=50, release=100)
        0.02
    """
    check_real("bandwidth", bandwidth, 0, open_low=True)
    return release / train * float(np.expm1(d * np.log1p(1 / bandwidth**2))) / n


def limit_ratio(records: Any, train: Any, *, eps: float, rho: float, bandwidth: float) -> np.ndarray:
    """``(K_H * (p_S / q))(x)`` with q = K_H * p_R: what ``1 + (n / m) score(x)`` tends to at k = m, P = N(0, I).

    As n, m grow at a fixed bandwidth h, ``p_R`` tends to q = N(0, (1 + h^2) I), every term to ``(K_h(s - x) / q(s) - 1)
    / n`` and the mean over the release to that under p_S; so the score tends to ``(m / n) (ratio - 1)``. As h -> 0
    afterwards, q becomes p_R: the form (m / n)(K_H * p_S / p_R)(x) of the literature, which leaves out the
    constant ``m log(n / (n + 1))`` that all records share. Closed form: ``K_h(x - s) N(s; c, v I)`` is ``N(x - c; 0,
    (h^2 + v) I)`` times a normal of s with mean u = (v x + h^2 c) / (v + h^2) and variance t = h^2 v / (h^2 + v), under
    which ``E 1 / q = (2 pi (1 + h^2)^2 / w)^(d/2) exp(|u|^2 / 2 w)``, w = 1 + h^2 - t (derived).

    Args:
        records: (r, d) where.
        train: (N, d) training rows.
        eps: share of near copies, in [0, 1].
        rho: their standard deviation, in [0, 1e6].
        bandwidth: h > 0.

    Returns:
        (r,) float64, > 0; 1 where the record leaves no trace.

    Raises:
        InputError: an argument outside its range, tables of different width.

    Example:
        >>> member = np.array([[0.5, -1.0]])
        >>> limit_ratio([[0.5, -1.0], [2.0, 2.0]], member, eps=0.2, rho=0.1, bandwidth=0.5).round(2)
        array([2.45, 0.44])
    """
    x, rows = np.asarray(records, dtype=np.float64), np.asarray(train, dtype=np.float64)
    require(x.ndim == rows.ndim == 2 and x.shape[1] == rows.shape[1], "train", "be as wide as records", rows.shape)
    check_real("eps", eps, 0, 1)
    check_real("rho", rho, 0, 1e6)
    h2, d = check_real("bandwidth", bandwidth, 0, open_low=True) ** 2, x.shape[1]

    def log_mean(centres: np.ndarray, v: float) -> np.ndarray:
        w = 1 + h2 - h2 * v / (h2 + v)
        u = (v * x[:, None] + h2 * centres) / (v + h2)
        away = ((x[:, None] - centres) ** 2).sum(axis=-1) / (2 * (h2 + v))
        log_each = d * np.log1p(h2) - 0.5 * d * np.log((h2 + v) * w) - away + (u**2).sum(axis=-1) / (2 * w)
        return logsumexp(log_each, axis=1) - np.log(len(centres))

    return (1 - eps) * np.exp(log_mean(np.zeros((1, d)), 1.0)) + eps * np.exp(log_mean(rows, rho**2))


def _checked(rho: Any, bandwidths: Any, d: Any, n: Any) -> tuple[int, int, np.ndarray]:
    check_real("rho", rho, 0, 1e6)
    h = np.asarray(bandwidths, dtype=np.float64)
    ok = h.ndim == 1 and h.size > 0 and bool((np.isfinite(h) & (h > 0)).all())
    require(ok, "bandwidths", "be a list of numbers > 0", bandwidths)
    return check_int("d", d, 1), check_int("n", n, 1), h
