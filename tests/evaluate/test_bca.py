"""BCa intervals of many AUCs at once."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from jaxaudit.evaluate import bca
from jaxaudit.evaluate.bca import auc_bca, bootstrap_wins
from jaxaudit.evaluate.roc import auc, auc_interval, placements
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.keys import host_rng


@pytest.fixture(scope="module")
def attacks() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    member = rng.permutation(np.arange(90) < 40)
    scores = rng.normal(size=(3, 90)) + 0.8 * member
    scores[1] = np.round(scores[1])
    scores[2] = rng.exponential(1 + 2 * member)
    return scores, member


def pair_auc(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean((x[:, None] > y) + 0.5 * (x[:, None] == y)))


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_interval_is_scipys_on_the_same_resamples(attacks, level: float) -> None:
    scores, member = attacks
    for row in scores:
        truth = stats.bootstrap(
            (row[member], row[~member]), pair_auc, vectorized=False, n_resamples=400, method="BCa",
            confidence_level=level, rng=np.random.default_rng(1),
        )  # fmt: skip
        below, above = placements(row[member], row[~member])
        ours = bca._interval(below.mean(), below, above, truth.bootstrap_distribution, level)
        np.testing.assert_allclose(ours, truth.confidence_interval, rtol=1e-9)


def test_wins_against_pairs_of_the_records_drawn(attacks) -> None:
    scores, member = attacks
    inside, outside = scores[:, member], scores[:, ~member]
    wins = bootstrap_wins(inside, outside, 100, seed=5)
    for block in (0, 64):
        rng = host_rng(5, "auc bootstrap", block)
        drawn1, drawn0 = rng.integers(40, size=(40, 64)), rng.integers(50, size=(50, 64))
        for b in (0, 35):
            for a in range(3):
                x, y = inside[a, drawn1[:, b]], outside[a, drawn0[:, b]]
                assert wins[a, block + b] == pytest.approx(2 * 40 * 50 * pair_auc(x, y), rel=1e-12)


def test_resamples_have_the_bootstraps_moments(attacks) -> None:
    """Mean A and, to first order, the variance of the two means of placements."""
    scores, member = attacks
    drawn = bootstrap_wins(scores[:, member], scores[:, ~member], 8000, seed=0) / (2 * 40 * 50)
    for row, areas in zip(scores, drawn, strict=True):
        below, above = placements(row[member], row[~member])
        variance = below.var() / 40 + above.var() / 50
        assert areas.mean() == pytest.approx(auc(row, member), abs=4 * np.sqrt(variance / 8000))
        assert areas.var() == pytest.approx(variance, rel=0.12)


def test_an_attacks_interval_is_its_own(attacks) -> None:
    scores, member = attacks
    together = auc_bca(scores, member, seed=3, resamples=300)
    for row, interval in zip(scores, together, strict=True):
        assert np.array_equal(auc_bca(row[None], member, seed=3, resamples=300)[0], interval)
        assert auc_interval(row, member, method="bca", seed=3, resamples=300) == tuple(interval)
    assert np.array_equal(auc_bca(np.arctan(scores), member, seed=3, resamples=300), together)
    assert not np.array_equal(auc_bca(scores, member, seed=4, resamples=300), together)
    order = np.random.default_rng(1).permutation(90)
    assert np.array_equal(auc_bca(scores[:, order], member[order], seed=3, resamples=300), together)
    for row in scores:  # mirrored scores, the same resamples
        below, above = placements(row[member], row[~member])
        drawn = bootstrap_wins(row[None, member], row[None, ~member], 300, 3)[0] / (2 * 40 * 50)
        low, high = bca._interval(below.mean(), below, above, drawn, 0.95)
        mirrored = bca._interval(1 - below.mean(), 1 - below, 1 - above, 1 - drawn, 0.95)
        np.testing.assert_allclose([1 - mirrored[1], 1 - mirrored[0]], [low, high], atol=1e-9)


def test_degenerate_scores_fall_back_to_the_score_interval() -> None:
    member = np.arange(40) < 20
    low, high = auc_bca(np.stack([member * 1.0, np.zeros(40)]), member, resamples=100)
    assert low[1] == 1.0
    assert 0.5 < low[0] < 0.95
    assert high[0] < 0.35 < 0.65 < high[1]
    assert auc_bca([[1.0, 2.0, 3.0]], [0, 0, 1])[0, 1] == 1.0  # a single member


def test_bad_input(attacks) -> None:
    scores, member = attacks
    for arguments in ({"level": 1.0}, {"resamples": 99}):
        with pytest.raises(InputError):
            auc_bca(scores, member, **arguments)
    with pytest.raises(InputError, match="at least one attack"):
        auc_bca(scores[:0], member)


@pytest.mark.slow
@pytest.mark.parametrize(("n1", "n0", "shift"), [(30, 60, 0.0), (30, 60, 1.0), (150, 150, 0.3), (40, 40, 2.0)])
def test_bca_covers(n1: int, n0: int, shift: float) -> None:
    """Normal scores: nominal 95 %; the attacks of one call are the replications, drawn afresh."""
    rng = np.random.default_rng(6)
    member, truth = np.arange(n1 + n0) < n1, stats.norm.cdf(shift / np.sqrt(2))
    intervals = auc_bca(rng.normal(size=(4000, n1 + n0)) + shift * member, member, resamples=1000)
    covered = np.mean((intervals[:, 0] <= truth) & (truth <= intervals[:, 1]))
    assert 0.93 <= covered <= 0.985  # 4 standard errors from .947 and .975, the extremes of long runs
