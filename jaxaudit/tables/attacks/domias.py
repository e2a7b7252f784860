"""DOMIAS: where the release is denser than the population.

Source: van Breugel, Sun, Qian and van der Schaar, "Membership Inference Attacks against Synthetic Data
through Overfitting Detection", AISTATS 2023. Here in logarithms: a ratio with a floor ranks outliers last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxaudit.runtime.checks import check_choice, check_real
from jaxaudit.tables.basis import fit_basis
from jaxaudit.tables.density import as_rows, bandwidth_factor, distinct_rows, fit_density, log_density

__all__ = ["CommonSpace", "DomiasConfig", "common_space", "density", "domias"]


@dataclass(frozen=True)
class DomiasConfig:
    """Settings of DOMIAS.

    Attributes:
        rule: "scott" (SciPy's default) or "silverman", applied to each table with its own size.
        multiplier: scales both bandwidths, in [0.001, 1000].
        precision: "float64" or "float32".
        prior: the density of the population: "reference", a kernel density of the reference, or "gaussian", one normal
            with the reference's mean and covariance: less to learn from few reference rows, and wrong in shape.
    """

    rule: str = "scott"
    multiplier: float = 1.0
    precision: str = "float64"
    prior: str = "reference"

    def __post_init__(self) -> None:
        check_choice("domias.rule", self.rule, ("silverman", "scott"))
        check_real("domias.multiplier", self.multiplier, 1e-3, 1e3)
        check_choice("domias.precision", self.precision, ("float32", "float64"))
        check_choice("domias.prior", self.prior, ("reference", "gaussian"))


@dataclass(frozen=True)
class CommonSpace:
    """Targets, release and reference in coordinates in which their densities can be compared.

    Attributes:
        release_points: (n, e) targets, whitened by the release.
        release: (m, e) distinct released rows in the same coordinates, and how often each occurs (m,).
        reference_points: (n, e) targets, whitened by the reference.
        reference: (r, e) distinct reference rows in those coordinates, and how often each occurs (r,).
        log_volume: log of the volume of the second coordinates' unit in units of the first: what to subtract from
            a log density in the second coordinates to compare it with one in the first.
    """

    release_points: np.ndarray
    release: tuple[np.ndarray, np.ndarray]
    reference_points: np.ndarray
    reference: tuple[np.ndarray, np.ndarray]
    log_volume: float


def common_space(targets: np.ndarray, synthetic: np.ndarray, reference: np.ndarray) -> CommonSpace:
    """The directions that the reference spans and in which the release varies too.

    A ratio of densities needs one space for both; elsewhere they live on different sets and their ratio means nothing.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows, m >= 2.
        reference: (r, d) independent rows of the same population, r >= 2.

    Raises:
        InputError: fewer than two rows, tables of different width, no direction in which both tables vary.

    Example:
        >>> x, s, r = np.random.default_rng(0).normal(size=(3, 50, 2))
        >>> space = common_space(x, 3.0 * s, r)
        >>> space.release[0].std(axis=0, ddof=1).round(6).tolist(), bool(space.log_volume < 0)
        ([1.0, 1.0], True)
    """
    x = as_rows("targets", targets)
    s_rows, s_counts = distinct_rows(as_rows("synthetic", synthetic, x.shape[1]))
    r_rows, r_counts = distinct_rows(as_rows("reference", reference, x.shape[1]))
    outer = fit_basis(r_rows, r_counts)
    # in the reference's whitened units: a direction in which the release has no variance to speak of is not common
    common = fit_basis(outer.whiten(s_rows), s_counts, name="synthetic", standardise=False)
    x, s, r = (common.whiten(outer.whiten(rows)) for rows in (x, s_rows, r_rows))
    inner = fit_basis(r, r_counts)  # diagonal covariance in these coordinates: never truncated
    return CommonSpace(x, (s, s_counts), inner.whiten(x), (inner.whiten(r), r_counts), inner.log_volume)


def domias(
    targets: np.ndarray, synthetic: np.ndarray, reference: np.ndarray, config: DomiasConfig | None = None
) -> np.ndarray:
    """``log p_S(x) - log p_R(x)``, each a Gaussian kernel density with its own covariance and bandwidth.

    Both in the directions of ``common_space``. With the prior "gaussian" p_R is a normal density with the reference's
    mean and covariance (ddof 1).

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows, m >= 2.
        reference: (r, d) independent rows of the same population, r >= 2.
        config: settings; None for the defaults.

    Returns:
        (n,) float64; higher is more member-like.

    Raises:
        InputError: fewer than two rows, tables of different width, no direction in which both tables vary.

    Example:
        >>> from scipy.stats import gaussian_kde
        >>> x, s, r = np.random.default_rng(0).normal(size=(3, 50, 2))
        >>> expected = gaussian_kde(s.T).logpdf(x.T) - gaussian_kde(r.T).logpdf(x.T)
        >>> bool(np.allclose(domias(x, s, r), expected))
        True
    """
    config = config or DomiasConfig()
    space = common_space(targets, synthetic, reference)

    def log_p(points: np.ndarray, centres: np.ndarray, counts: np.ndarray, log_volume: float) -> np.ndarray:
        h = bandwidth_factor(int(counts.sum()), centres.shape[1], config.rule, config.multiplier)
        return log_density(fit_density(centres, counts, h, log_volume), points, config.precision)

    released = log_p(space.release_points, *space.release, 0.0)
    points = space.reference_points
    if config.prior == "gaussian":
        squares = np.einsum("ne,ne->n", points, points)
        return released + 0.5 * (squares + points.shape[1] * np.log(2 * np.pi)) + space.log_volume
    return released - log_p(points, *space.reference, space.log_volume)


def density(targets: np.ndarray, synthetic: np.ndarray, config: DomiasConfig | None = None) -> np.ndarray:
    """``log p_S(x)``: where the release is dense, the first term of DOMIAS alone.

    The density lives in the directions that the release spans; the rest of a target does not enter. The reference
    does not enter either: a target that is a row of it is treated as any other.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows, m >= 2.
        config: settings; None for the defaults.

    Returns:
        (n,) float64; higher is more member-like.

    Raises:
        InputError: fewer than two released rows, none that differ, tables of different width.

    Example:
        >>> from scipy.stats import gaussian_kde
        >>> x, s = np.random.default_rng(0).normal(size=(2, 50, 2))
        >>> bool(np.allclose(density(x, s), gaussian_kde(s.T).logpdf(x.T)))
        True
    """
    config = config or DomiasConfig()
    x = as_rows("targets", targets)
    rows, counts = distinct_rows(as_rows("synthetic", synthetic, x.shape[1]))
    basis = fit_basis(rows, counts, name="synthetic")
    h = bandwidth_factor(int(counts.sum()), basis.dimension, config.rule, config.multiplier)
    kde = fit_density(basis.whiten(rows), counts, h, basis.log_volume)
    return log_density(kde, basis.whiten(x), config.precision)
