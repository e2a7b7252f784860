"""ROC curves on a common grid, and their bands."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from jaxaudit.evaluate.bands import fpr_counts, roc_bands
from jaxaudit.evaluate.roc import tpr_at_fpr
from jaxaudit.runtime.checks import InputError


@pytest.fixture(scope="module")
def attacks() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    member = rng.permutation(np.arange(70) < 30)
    scores = rng.normal(size=(3, 70)) + member
    scores[1] = np.round(scores[1])  # ties
    scores[2] = 0.0
    return scores, member


def above(scores: np.ndarray, member: np.ndarray, allowed: int) -> int:
    """Members above the lowest threshold that lets in at most ``allowed`` non-members, by trying all."""
    if allowed < 0:
        return 0
    counts = [0]
    for t in scores:
        if (scores[~member] >= t).sum() <= allowed:
            counts.append(int((scores[member] >= t).sum()))
    return max(counts) if allowed < (~member).sum() else int(member.sum())


def naive_limits(steps: list[int], n1: int, count: int, level: float) -> tuple[float, float]:
    """From the members above at -1, 0, 1, ... non-members let in."""
    n0 = len(steps) - 2
    weight = stats.binom.pmf(np.arange(n0 + 1), n0, count / n0)
    surely, possibly = np.array(steps[:-1]), np.array(steps[1:])

    def lower(p: float) -> float:
        return weight @ np.where(surely > 0, stats.beta.cdf(p, np.maximum(surely, 1), n1 - surely + 1), 1.0)

    def upper(p: float) -> float:
        return weight @ np.where(possibly < n1, stats.beta.sf(p, possibly + 1, np.maximum(n1 - possibly, 1)), 1.0)

    tail = (1 - level) / 2
    low = 0.0 if lower(0.0) >= tail else optimize.brentq(lambda p: lower(p) - tail, 0, 1)
    high = 1.0 if upper(1.0) >= tail else optimize.brentq(lambda p: upper(p) - tail, 0, 1)
    return low, high


def test_steps_and_limits_against_every_threshold(attacks) -> None:
    scores, member = attacks
    bands = roc_bands(scores, member, 0.9)
    assert np.array_equal(bands.fpr, np.arange(41) / 40)
    for a, row in enumerate(scores):
        steps = [above(row, member, allowed) for allowed in range(-1, 41)]
        for g in (0, 1, 2, 7, 20, 38, 40):
            assert bands.tpr[a, g] == steps[g + 1] / 30
            low, high = naive_limits(steps, 30, g, 0.9)
            assert bands.low[a, g] == pytest.approx(min(low, bands.tpr[a, g]), abs=3e-4)
            assert bands.high[a, g] == pytest.approx(max(high, bands.tpr[a, g]), abs=3e-4)


def test_curve_goes_through_the_points_of_the_table(attacks) -> None:
    scores, member = attacks
    bands = roc_bands(scores, member)
    for row, tpr in zip(scores, bands.tpr, strict=True):
        for level, point in tpr_at_fpr(row, member, (0, 0.05, 0.1, 0.5)).items():
            assert tpr[round(float(level) * 40)] == point["tpr"]


def test_bands_contain_the_curve_are_ordered_and_nested(attacks) -> None:
    scores, member = attacks
    wide, narrow = roc_bands(scores, member, 0.99), roc_bands(scores, member, 0.5)
    for bands in (wide, narrow):
        assert np.all((bands.low >= 0) & (bands.low <= bands.tpr) & (bands.tpr <= bands.high) & (bands.high <= 1))
        for part in (bands.tpr, bands.low, bands.high):
            assert np.all(np.diff(part, axis=1) >= -1e-9)
    assert np.all(wide.low <= narrow.low + 1e-9)
    assert np.all(wide.high >= narrow.high - 1e-9)
    assert np.all(wide.low[:, 0] == 0)  # nothing is known above all non-members of the population


def test_only_ranks_and_no_order_of_records(attacks) -> None:
    scores, member = attacks
    bands, order = roc_bands(scores, member), np.random.default_rng(1).permutation(70)
    for other in (roc_bands(np.exp(scores), member), roc_bands(scores[:, order], member[order])):
        for mine, theirs in zip(bands, other, strict=True):
            assert np.array_equal(mine, theirs)
    alone = roc_bands(scores[1:2], member)
    np.testing.assert_allclose(alone.low[0], bands.low[1], atol=1e-12)


def test_grid_is_of_realised_rates_and_thinned() -> None:
    assert fpr_counts(3).tolist() == [0, 1, 2, 3]
    for n0 in (399, 400, 5000, 200_000):
        counts = fpr_counts(n0)
        assert counts.size <= 400
        assert counts[[0, 1, 2, -1]].tolist() == [0, 1, 2, n0]
        assert np.all(np.diff(counts) > 0)
    rng = np.random.default_rng(0)
    member = np.arange(2500) < 2000  # more members than bins of numbers of members
    scores = rng.normal(size=(1, 2500)) + member
    bands = roc_bands(scores, member)
    for rate in (0.05, 0.3):
        place = int(np.searchsorted(bands.fpr, rate))
        low, high = naive_limits_fast(scores[0], member, round(bands.fpr[place] * 500))
        assert low - 0.0012 < bands.low[0, place] <= low + 3e-4  # bins widen a little
        assert high - 3e-4 <= bands.high[0, place] < high + 0.0012


def naive_limits_fast(scores: np.ndarray, member: np.ndarray, count: int) -> tuple[float, float]:
    """As ``naive_limits`` for untied scores."""
    n1, n0 = int(member.sum()), int((~member).sum())
    others = np.sort(scores[~member])[::-1]
    k = np.array([0, *[(scores[member] > t).sum() for t in others], n1])
    weight = stats.binom.pmf(np.arange(n0 + 1), n0, count / n0)
    low = optimize.brentq(lambda p: weight @ stats.beta.cdf(p, np.maximum(k[:-1], 1), n1 - k[:-1] + 1) - 0.025, 0, 1)
    high = optimize.brentq(lambda p: weight @ stats.beta.sf(p, k[1:] + 1, np.maximum(n1 - k[1:], 1)) - 0.025, 0, 1)
    return low, high


@pytest.mark.parametrize(
    ("scores", "member", "message"),
    [
        ([1.0, 2.0], [0, 1], "scores must have 2 axes"),
        (np.zeros((0, 2)), [0, 1], "scores must have at least one attack"),
        ([[1.0, np.nan]], [0, 1], "finite"),
    ],
)
def test_bad_input(scores, member, message: str) -> None:
    with pytest.raises(InputError, match=message):
        roc_bands(scores, member)
    with pytest.raises(InputError, match="level must"):
        roc_bands([[1.0, 2.0]], [0, 1], level=1.0)


def binormal(rng, n, shift):
    return rng.normal(shift, size=n), lambda f: stats.norm.sf(stats.norm.isf(f) - shift)


def copies(rng, n, share):
    return rng.normal(size=n) + 20 * (rng.random(n) < share), lambda f: share + (1 - share) * f


def narrow(rng, n, _):
    return stats.norm.ppf(rng.uniform(0.8, 0.9, n)), lambda f: np.clip((f - 0.1) / 0.1, 0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("n1", "n0"), [(50, 50), (300, 150), (100, 400)])
@pytest.mark.parametrize(("members", "value"), [(binormal, 0), (binormal, 2), (copies, 0.1), (narrow, 0)])
def test_bands_cover_the_populations_curve_at_every_rate(members, value, n1: int, n0: int) -> None:
    """Non-members are normal; each of the grid's rates is covered nominally in 95 %, also where the curve is steep."""
    rng, runs = np.random.default_rng(4), 600
    drawn = [members(rng, n1, value) for _ in range(runs)]
    scores = np.stack([np.concatenate([row, rng.normal(size=n0)]) for row, _ in drawn])
    bands = roc_bands(scores, np.arange(n1 + n0) < n1)
    truth = drawn[0][1](bands.fpr)
    covered = np.mean((bands.low <= truth + 1e-9) & (bands.high >= truth - 1e-9), axis=0)
    assert covered[1:].min() > 0.92  # the least of some hundred rates: 0.95 - 3.4 standard errors
    assert covered[1:].mean() >= 0.955
