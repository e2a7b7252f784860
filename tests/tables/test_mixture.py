"""The overfitting mixture: moments, near copies, smooth part, arguments."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.generators import MixtureConfig, overfitting_mixture


def people(rows: int = 200, columns: int = 3, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)) @ np.triu(np.ones((columns, columns))) * [1, 10, 100][:columns] + 5


def nearest(rows: np.ndarray, members: np.ndarray) -> np.ndarray:
    scale = members.std(axis=0)
    return np.sqrt((((rows[:, None] - members) / scale) ** 2).sum(-1)).min(axis=1)


def test_copies_without_noise_are_members() -> None:
    members = people()
    drawn = overfitting_mixture(members, 300, np.random.default_rng(1), MixtureConfig(copies=1, noise=0))
    assert (nearest(drawn, members) == 0).all()
    assert len(np.unique(drawn, axis=0)) > 100  # of all members, not of one


@pytest.mark.parametrize("copies", [0.0, 0.25, 0.8])
def test_share_of_copies(copies: float) -> None:
    members, rows = people(), 4000
    drawn = overfitting_mixture(members, rows, np.random.default_rng(2), MixtureConfig(copies=copies, noise=0))
    exact = (nearest(drawn, members) < 1e-12).sum()
    assert stats.binomtest(int(exact), rows, copies).pvalue > 1e-3 if copies else exact == 0


def test_noise_is_in_standard_deviations() -> None:
    members = people(50, 2)
    config = MixtureConfig(copies=1, noise=0.01)
    drawn = overfitting_mixture(members, 4000, np.random.default_rng(3), config)
    inside = ((drawn > members.min(axis=0)) & (drawn < members.max(axis=0))).all(axis=1)
    scale = members.std(axis=0, ddof=1)
    source = (((drawn[:, None] - members) / scale) ** 2).sum(-1).argmin(axis=1)
    error = ((drawn - members[source]) / scale)[inside]
    np.testing.assert_allclose(error.std(axis=0), 0.01, rtol=0.06)
    np.testing.assert_allclose(error.mean(axis=0), 0, atol=0.001)


@pytest.mark.parametrize("bandwidth", [0.5, 1.5])
def test_smooth_part_keeps_mean_and_covariance(bandwidth: float) -> None:
    members = np.random.default_rng(4).uniform(-1, 1, (400, 2)) @ [[1, 3], [0, 1]]
    members = np.concatenate([members, [[-1e3, -1e3], [1e3, 1e3]]])  # a wide range: nothing is cut
    config = MixtureConfig(copies=0, bandwidth=bandwidth)
    drawn = overfitting_mixture(members, 60_000, np.random.default_rng(5), config)
    sd = members.std(axis=0, ddof=1)
    np.testing.assert_allclose((drawn.mean(axis=0) - members.mean(axis=0)) / sd, 0, atol=0.025)
    np.testing.assert_allclose(np.cov(drawn.T) / np.cov(members.T), 1, atol=0.08)


def test_smooth_part_is_the_shrunken_kernel_density() -> None:
    members = people(6, 1, seed=6)
    h = 1.5 * (6 * 3 / 4) ** (-1 / 5)
    drawn = overfitting_mixture(members, 60_000, np.random.default_rng(7), MixtureConfig(copies=0))[:, 0]
    centres = members.mean() + (members[:, 0] - members.mean()) / np.sqrt(1 + h**2)
    sd = h * members.std(ddof=1) / np.sqrt(1 + h**2)
    inside = drawn[(drawn > members.min()) & (drawn < members.max())]
    low, high = (stats.norm.cdf(edge, centres, sd).mean() for edge in (members.min(), members.max()))

    def cdf(x: np.ndarray) -> np.ndarray:
        return (stats.norm.cdf(x[:, None], centres, sd).mean(axis=1) - low) / (high - low)

    assert stats.kstest(inside, cdf).pvalue > 1e-3


def test_range_constant_columns_and_seed() -> None:
    members = np.column_stack([people(30, 2), np.full(30, 3.0)])
    first, again, other = (overfitting_mixture(members, 99, np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert (first >= members.min(axis=0)).all()
    assert (first <= members.max(axis=0)).all()
    assert (first[:, 2] == 3).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(3), 5), r"members must have shape \(n >= 2, d >= 1\), got \(3,\)"),
        ((np.zeros((1, 3)), 5), "members must have shape"),
        ((np.full((3, 2), np.nan), 5), "members must have only finite values"),
        ((np.zeros((3, 2)), 0), "rows must be .*, got 0"),
    ],
)
def test_bad_arguments(arguments: tuple[np.ndarray, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        overfitting_mixture(*arguments, np.random.default_rng(0))


@pytest.mark.parametrize("setting", [{"copies": 1.5}, {"copies": -0.1}, {"noise": -1}, {"bandwidth": 0}])
def test_bad_settings(setting: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"mixture.{next(iter(setting))} must be .*, got"):
        MixtureConfig(**setting)
