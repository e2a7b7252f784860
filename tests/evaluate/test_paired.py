"""Paired comparison of attacks: against the resamples, against DeLong's variance and symmetry; coverage."""

from __future__ import annotations

import numpy as np
import pytest

from jaxaudit.evaluate import auc, compare_aucs
from jaxaudit.evaluate.bca import bootstrap_wins
from jaxaudit.evaluate.canonical import shuffled_order
from jaxaudit.runtime.checks import InputError


def scored(n: int, shifts: list[float], rng: np.random.Generator, common: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    member = np.arange(n) < n // 2
    shared = common * rng.normal(size=n)
    return np.stack([shared + rng.normal(size=n) + shift * member for shift in shifts]), member


def test_the_interval_is_that_of_the_differences_over_resamples() -> None:
    scores, member = scored(50, [0.2, 1.0], np.random.default_rng(0))
    scores[1] = np.round(scores[1])
    found = compare_aucs(scores, member, level=0.8, resamples=150, seed=4)
    order = shuffled_order(scores, member, 4)
    scores, member = scores[:, order], member[order]
    drawn = bootstrap_wins(scores[:, member], scores[:, ~member], 150, 4) / (2 * 25 * 25)
    expected = np.quantile(drawn[1] - drawn[0], [0.1, 0.9])
    np.testing.assert_allclose([found.low[1, 0], found.high[1, 0]], expected, atol=1e-12)
    won = np.mean((drawn[1] > drawn[0]) + 0.5 * (drawn[1] == drawn[0]))
    np.testing.assert_allclose(found.first, [1 - won, won])


def test_the_observed_aucs_and_the_order_of_attacks() -> None:
    scores, member = scored(120, [0.2, 1.0, 0.2], np.random.default_rng(1))
    found = compare_aucs(scores, member, resamples=400, seed=3)
    np.testing.assert_allclose(found.auc, [auc(row, member) for row in scores])
    np.testing.assert_allclose(found.difference, -found.difference.T)
    np.testing.assert_allclose(found.low, -found.high.T, atol=1e-12)
    assert np.argmax(found.first) == 1
    assert found.first.sum() == pytest.approx(1)
    swapped = compare_aucs(scores[[1, 0, 2]], member, resamples=400, seed=3)
    np.testing.assert_array_equal(swapped.low, found.low[[1, 0, 2]][:, [1, 0, 2]])
    twice = compare_aucs(
        np.stack([scores[0], np.exp(scores[0])]), member, resamples=100
    )  # a monotone map: no difference
    assert (twice.low[0, 1], twice.high[0, 1], twice.first.tolist()) == (0, 0, [0.5, 0.5])


def test_the_interval_of_a_difference_covers_and_pairing_narrows_it() -> None:
    rng = np.random.default_rng(2)
    covered, widths = 0, {}
    for _ in range(150):
        scores, member = scored(120, [0.8, 0.8], rng)
        found = compare_aucs(scores, member, level=0.9, resamples=200, seed=int(rng.integers(1 << 30)))
        covered += found.low[0, 1] <= 0 <= found.high[0, 1]
    assert 0.84 <= covered / 150 <= 0.96  # binomial sd .024
    for common in (0.0, 3.0):
        scores, member = scored(200, [0.8, 0.8], np.random.default_rng(5), common)
        found = compare_aucs(scores, member)
        widths[common] = found.high[0, 1] - found.low[0, 1]
    assert widths[3.0] < 0.7 * widths[0.0]


def test_bad_arguments_are_refused() -> None:
    member = np.arange(6) < 3
    for arguments in ({"level": 1.0}, {"resamples": 10}):
        with pytest.raises(InputError):
            compare_aucs(np.zeros((2, 6)), member, **arguments)
    with pytest.raises(InputError, match="scores"):
        compare_aucs(np.zeros((0, 6)), member)
