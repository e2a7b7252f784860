"""Do the posteriors mean what they say? Simulation-based calibration, and coverage on channels with a known answer.

Calibration (Talts et al., arXiv:1804.06788): with (l, r) from the prior, (alpha, beta) uniform in the region and counts
from these, the posterior level of the true value is uniform. It checks an engine against its own model.
Coverage: on the binary channel W ~ Bernoulli(p0 or p1) with the attack "member iff W = 1" the true (l, r) is known, and
the attack is the best there is, which is not what the papers' model assumes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.stats import beta, chisquare

from jaxaudit.bmp import region
from jaxaudit.bmp.counts import validate
from jaxaudit.runtime.checks import check_int, check_real
from jaxaudit.runtime.keys import host_rng

__all__ = ["Calibration", "Simulated", "calibrate", "channel_counts", "confidence_bound", "covered", "simulate"]


class Posterior(Protocol):
    """What every engine returns: quantiles per node."""

    def quantile(self, name: str, q: float) -> np.ndarray:
        """Quantile of ``name`` at level ``q``, (n,)."""


class Simulated(NamedTuple):
    """Draws from the whole model, each (n,).

    Attributes:
        truth: "l", "r" and, with attack strength, "s".
        counts: (fp, n_out, fn, n_in), as the engines take them.
    """

    truth: dict[str, np.ndarray]
    counts: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Calibration:
    """Rank histogram of one quantity.

    Attributes:
        histogram: (bins,) number of true values between neighbouring posterior quantiles.
        p: chi-square p-value of uniformity.
        left_out: simulations without a posterior (an engine's chains failed); more than a few would bias the rest.
    """

    histogram: np.ndarray
    p: float
    left_out: int


def simulate(
    size: int, n_out: Any, n_in: Any, prior_scale2: float = 10.0, *, strength: bool = False, seed: int = 0
) -> Simulated:
    """Parameters from the prior, rates uniform in their region, counts from the rates.

    Args:
        size: number of simulations, >= 1.
        n_out: non-member trials, scalar or (size,).
        n_in: member trials.
        prior_scale2: squared scale of the half-normal priors.
        strength: whether s ~ U(0, 1) cuts R(sl, sr) out of the region.
        seed: >= 0.

    Returns:
        Simulated.

    Raises:
        InputError: a size or scale that breaks a rule.

    Example:
        >>> sorted(simulate(3, 10, 10).truth), simulate(3, 10, 10).counts[0].shape
        (['l', 'r'], (3,))
    """
    check_int("size", size, 1)
    scale = np.sqrt(check_real("prior_scale2", prior_scale2, 0.01, 10_000))
    rng = host_rng(check_int("seed", seed, 0), "simulate")
    l, r, s = *np.abs(rng.normal(0, scale, (2, size))), rng.random(size)
    rates, left = np.empty((size, 2)), np.arange(size)
    while left.size:
        corners, (u, v) = region.vertices(l[left], r[left]), rng.random((2, left.size, 1))
        # vertices: (0,1), (a*, b*), (1,0), (1-a*, 1-b*); u, v uniform fill the parallelogram evenly
        start = corners[:, 0]
        rates[left] = np.clip(start + u * (corners[:, 1] - start) + v * (corners[:, 3] - start), 0, 1)
        if not strength:
            break
        left = left[region.contains(rates[left, 0], rates[left, 1], (s * l)[left], (s * r)[left])]
    fp, fn = rng.binomial(n_out, rates[:, 0], size), rng.binomial(n_in, rates[:, 1], size)
    truth = {"l": l, "r": r} | ({"s": s} if strength else {})
    counts = (fp, np.broadcast_to(n_out, size), fn, np.broadcast_to(n_in, size))
    return Simulated(truth, counts)


def calibrate(posterior: Posterior, truth: dict[str, np.ndarray], bins: int = 20) -> dict[str, Calibration]:
    """Rank histograms of true values among posterior quantiles, with their chi-square p-values.

    Args:
        posterior: an engine's result on ``simulate(...).counts``.
        truth: ``simulate(...).truth``.
        bins: in [2, 100].

    Returns:
        name -> Calibration.

    Raises:
        InputError: a number of bins out of range.

    Example:
        >>> from jaxaudit.bmp import exact_posterior
        >>> data = simulate(400, 20, 20)
        >>> bool(calibrate(exact_posterior(*data.counts), data.truth, bins=10)["r"].p > 0.001)
        True
    """
    check_int("bins", bins, 2, 100)
    found = {}
    for name, values in truth.items():
        edges = np.stack([posterior.quantile(name, k / bins) for k in range(1, bins)])
        known = np.isfinite(edges).all(axis=0)
        ranks = (values[known] > edges[:, known]).sum(axis=0)
        histogram = np.bincount(ranks, minlength=bins)
        p = float(chisquare(histogram).pvalue) if known.any() else np.nan
        found[name] = Calibration(histogram, p, int((~known).sum()))
    return found


def channel_counts(
    p0: float, p1: float, n_out: int, n_in: int, size: int, seed: int = 0
) -> tuple[tuple[np.ndarray, int, np.ndarray, int], tuple[float, float]]:
    """Counts of the attack "member iff W = 1" on W ~ Bernoulli(p0) for non-members, Bernoulli(p1) for members.

    Args:
        p0: P(W = 1 | non-member), in (0, 1).
        p1: P(W = 1 | member), in (0, 1).
        n_out: non-member trials.
        n_in: member trials.
        size: replications.
        seed: >= 0.

    Returns:
        ((fp, n_out, fn, n_in), (true l, true r)).

    Raises:
        InputError: a probability outside (0, 1).

    Example:
        >>> [round(x, 2) for x in channel_counts(0.2, 0.6, 100, 100, 1)[1]]
        [0.69, 1.1]
    """
    for name, p in (("p0", p0), ("p1", p1)):
        check_real(name, p, 0, 1, open_low=True, open_high=True)
    rng = host_rng(check_int("seed", seed, 0), "channel_counts")
    counts = rng.binomial(n_out, p0, size), n_out, rng.binomial(n_in, 1 - p1, size), n_in
    l, r = region.tightest(p0, 1 - p1)
    return counts, (float(l), float(r))


def covered(lower: np.ndarray, upper: np.ndarray, truth: float) -> dict[str, float]:
    """Shares of replications whose interval holds the truth, and whose lower limit lies above it.

    Example:
        >>> covered(np.array([0.0, 2.0]), np.array([1.5, 3.0]), 1.0)
        {'covered': 0.5, 'overshoot': 0.5}
    """
    inside, above = (lower <= truth) & (truth <= upper), lower > truth
    return {"covered": float(inside.mean()), "overshoot": float(above.mean())}


def confidence_bound(
    fp: Any, n_out: Any, fn: Any, n_in: Any, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Lower confidence bounds of l and r from Clopper-Pearson limits of the two error rates; 0 where nothing is shown.

    r >= log max{(1-beta)/alpha, beta/(1-alpha)}; each ratio takes one limit of alpha and one of beta, four in all,
    each at (1 - confidence)/4 (Bonferroni, derived), likewise l. Holds its level for any rates, hence it is
    smaller than ``functional_limits``.

    Args:
        fp: false positives, whole numbers in [0, n_out], scalar or (n,).
        n_out: non-member trials.
        fn: false negatives, in [0, n_in].
        n_in: member trials.
        confidence: of each bound by itself, in [0.5, 0.9999].

    Returns:
        (l, r) float64 (n,); NaN without data on a side.

    Raises:
        InputError: counts or a confidence that break a rule.

    Example:
        >>> [x.round(2).tolist() for x in confidence_bound([10, 50], 100, [10, 50], 100)]
        [[1.46, 0.0], [1.46, 0.0]]
    """
    fp, n_out, fn, n_in = validate(fp, n_out, fn, n_in).T
    tail = (1 - check_real("confidence", confidence, 0.5, 0.9999)) / 4

    def limits(x: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        low = np.where(x > 0, beta.ppf(tail, np.maximum(x, 1), n - x + 1), 0.0)
        return low, np.where(x < n, beta.ppf(1 - tail, x + 1, np.maximum(n - x, 1)), 1.0)

    (a_low, a_high), (b_low, b_high) = limits(fp, n_out), limits(fn, n_in)
    with np.errstate(divide="ignore"):
        r = np.maximum(np.log((1 - b_high) / a_high), np.log(b_low / (1 - a_low)))
        l = np.maximum(np.log(a_low / (1 - b_low)), np.log((1 - a_high) / b_high))
    usable = (n_out > 0) & (n_in > 0)
    return np.where(usable, np.maximum(l, 0), np.nan), np.where(usable, np.maximum(r, 0), np.nan)
