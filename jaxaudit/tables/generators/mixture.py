"""A generator that overfits on purpose, by an amount that is known.

The local-overfitting model of Ward, Wang & Cheng (arXiv:2508.21146): the released distribution is

    (1 - copies) * P + copies * (member + noise),

P being a smooth fit of the members. It makes examples and controls with a leak of chosen size. It offers no
privacy whatever, which is its purpose.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxaudit.runtime.checks import check_finite, check_int, check_real, require

__all__ = ["MixtureConfig", "overfitting_mixture"]


@dataclass(frozen=True)
class MixtureConfig:
    """How much is copied, and how closely.

    Attributes:
        copies: probability that a row is a near copy of a member, in [0, 1].
        noise: sd of the noise on a near copy, in standard deviations of each column, >= 0.
        bandwidth: multiplies Silverman's bandwidth of the smooth part, > 0. At 1 that part leaks by itself to
            a density attack (AUC .73 on the embedded example, without a single copy), at 2.5 hardly (.57).
    """

    copies: float = 0.4
    noise: float = 0.1
    bandwidth: float = 1.5

    def __post_init__(self) -> None:
        check_real("mixture.copies", self.copies, 0, 1)
        check_real("mixture.noise", self.noise, 0)
        check_real("mixture.bandwidth", self.bandwidth, 0, open_low=True)


def overfitting_mixture(
    members: np.ndarray, rows: int, rng: np.random.Generator, config: MixtureConfig = MixtureConfig()
) -> np.ndarray:
    """Draw synthetic rows from the mixture of a smooth fit and near copies of the members.

    The smooth part is a Gaussian kernel density with covariance h^2 C, C that of the members, drawn in the form
    that keeps the variance: m + (x_i - m + h C^(1/2) z) / sqrt(1 + h^2) (Silverman, Density Estimation, 1986,
    section 6.4.1). Since Cov(x_i) = C, the sum has covariance (1 + h^2) C, and the root restores C. Every column
    is cut to the range of the members, so that positive columns stay positive.

    Args:
        members: (n, d) float array, finite, n >= 2.
        rows: how many to draw, >= 1.
        rng: source of randomness.
        config: how much is copied, and how closely.

    Returns:
        float64 array (rows, d).

    Raises:
        InputError: members are no finite (n >= 2, d >= 1) array, or rows < 1.

    Example:
        >>> people = np.random.default_rng(0).normal(size=(50, 3))
        >>> overfitting_mixture(people, 20, np.random.default_rng(1)).shape
        (20, 3)
    """
    members = np.asarray(members, dtype=np.float64)
    require(members.ndim == 2 and len(members) > 1 and members.shape[1] > 0, "members", "have shape (n >= 2, d >= 1)",
            members.shape)  # fmt: skip
    check_finite("members", members)
    check_int("rows", rows, 1)
    n, d = members.shape
    mean, centred = members.mean(axis=0), members - members.mean(axis=0)
    source = rng.integers(n, size=rows)
    copied = rng.random(rows) < config.copies

    h = config.bandwidth * (n * (d + 2) / 4) ** (-1 / (d + 4))
    _, spread, axes = np.linalg.svd(centred / np.sqrt(n - 1), full_matrices=False)  # C = axes' spread^2 axes, any rank
    kernel = (rng.normal(size=(rows, len(spread))) * spread) @ axes
    smooth = mean + (centred[source] + h * kernel) / np.sqrt(1 + h**2)
    near = members[source] + config.noise * members.std(axis=0, ddof=1) * rng.normal(size=(rows, d))
    drawn = np.where(copied[:, None], near, smooth)
    return np.clip(drawn, members.min(axis=0), members.max(axis=0))
