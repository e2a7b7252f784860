from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from jaxaudit.evaluate import auc, auc_interval, clopper_pearson, roc_curve, tpr_at_fpr
from jaxaudit.runtime.checks import InputError


def draw(seed: int, n1: int = 30, n0: int = 40, shift: float = 0.7, ties: bool = False):
    rng = np.random.default_rng(seed)
    scores = np.concatenate([rng.normal(shift, 1.2, n1), rng.normal(size=n0)])
    member = np.arange(n1 + n0) < n1
    order = rng.permutation(n1 + n0)
    return (np.round(scores * 2) if ties else scores)[order], member[order]


def naive_auc(scores, member):
    wins = 0.0
    for x in scores[member]:
        for y in scores[~member]:
            wins += 1.0 if x > y else 0.5 if x == y else 0.0
    return wins / (member.sum() * (~member).sum())


def naive_delong_variance(scores, member):
    psi = np.array([[(x > y) + 0.5 * (x == y) for y in scores[~member]] for x in scores[member]])
    n1, n0 = psi.shape
    area = psi.sum() / (n1 * n0)
    s10 = sum((sum(psi[i]) / n0 - area) ** 2 for i in range(n1)) / (n1 - 1)
    s01 = sum((sum(psi[:, j]) / n1 - area) ** 2 for j in range(n0)) / (n0 - 1)
    return area, s10 / n1 + s01 / n0


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_auc_against_sklearn_and_pairs(seed, ties):
    scores, member = draw(seed, n1=10 + 7 * seed, ties=ties)
    assert auc(scores, member) == pytest.approx(metrics.roc_auc_score(member, scores), abs=1e-12)
    assert auc(scores, member) == pytest.approx(naive_auc(scores, member), abs=1e-12)


def test_auc_accepts_plain_lists_and_float_labels():
    assert auc([1, 2, 3], [0.0, 1.0, 1.0]) == 1.0
    assert auc(np.float32([1, 1, 1]), np.array([0, 1, 1])) == 0.5


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 12))
def test_auc_properties(seed, n1, n0):
    scores, member = draw(seed, n1, n0, ties=True)
    area = auc(scores, member)
    assert auc(-scores, member) == pytest.approx(1 - area, abs=1e-12)
    assert auc(scores, ~member) == pytest.approx(1 - area, abs=1e-12)
    assert auc(np.arctan(scores / 3), member) == area
    curve = roc_curve(scores, member)
    assert np.trapezoid(curve.tpr, curve.fpr) == pytest.approx(area, abs=1e-12)
    for method in ("delong", "bca"):
        low, high = auc_interval(scores, member, method=method, resamples=100)
        assert 0 <= low <= area <= high <= 1
        assert low < high


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_delong_against_structural_components(ties, level):
    scores, member = draw(5, n1=25, n0=33, ties=ties)
    area, variance = naive_delong_variance(scores, member)
    z = stats.norm.ppf(1 - (1 - level) / 2)
    half = z * np.sqrt(variance) / (area * (1 - area))
    expected = [1 / (1 + np.exp(-(np.log(area / (1 - area)) + sign * half))) for sign in (-1, 1)]
    np.testing.assert_allclose(auc_interval(scores, member, level=level), expected, rtol=1e-10)


@pytest.mark.parametrize("ties", [False, True])
def test_bca_against_scipy(ties):
    scores, member = draw(3, ties=ties)
    scores = np.minimum(scores, 0) if ties else scores  # many ties at the top
    truth = stats.bootstrap(
        (scores[member], scores[~member]),
        lambda x, y: np.mean((x[:, None] > y) + 0.5 * (x[:, None] == y)),
        vectorized=False, n_resamples=6000, method="BCa", rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    ours = auc_interval(scores, member, method="bca", resamples=20_000)
    np.testing.assert_allclose(ours, [truth.low, truth.high], atol=0.006)


def test_bca_is_repeatable_and_seeded():
    scores, member = draw(3)
    first = auc_interval(scores, member, method="bca", seed=1, resamples=300)
    assert first == auc_interval(scores, member, method="bca", seed=1, resamples=300)
    assert first != auc_interval(scores, member, method="bca", seed=2, resamples=300)


@pytest.mark.parametrize("method", ["delong", "bca"])
def test_perfect_separation_is_not_certainty(method):
    member = np.arange(60) < 20
    low, high = auc_interval(member * 1.0, member, method=method)
    assert high == 1.0
    # Newcombe's equation with A = 1, divided by (1 - t) and solved on a fine grid.
    t = np.linspace(0.5, 1, 200_001)[:-1]
    z2, extra = stats.norm.ppf(0.975) ** 2, 60 / 2 - 1
    fits = (1 - t) <= z2 * t * (1 + extra * ((1 - t) / (2 - t) + t / (1 + t))) / (20 * 40)
    assert low == pytest.approx(t[fits].min(), abs=1e-5)
    mirrored = auc_interval(-1.0 * member, member, method=method)
    assert mirrored[0] == 0.0
    assert mirrored[1] == pytest.approx(1 - low, abs=1e-9)


def test_constant_scores_and_single_records_have_wide_intervals():
    low, high = auc_interval(np.zeros(40), np.arange(40) < 20)
    assert low < 0.35
    assert high > 0.65
    low, high = auc_interval([1.0, 2.0, 3.0], [0, 0, 1])
    assert low < 0.4
    assert high == 1.0


@pytest.mark.parametrize(
    ("n1", "n0", "area"), [(30, 30, 0.5), (50, 50, 0.8), (20, 20, 0.97), (20, 200, 0.97), (60, 60, 0.995)]
)
def test_delong_covers(n1, n0, area):
    """Normal scores with a known AUC: nominal 95 %, at least 92 % required, also close to 1."""
    rng = np.random.default_rng(7)
    member, runs, hits = np.arange(n1 + n0) < n1, 400, 0
    for _ in range(runs):
        scores = rng.normal(size=n1 + n0) + member * np.sqrt(2) * stats.norm.ppf(area)
        low, high = auc_interval(scores, member)
        hits += low <= area <= high
    assert hits / runs >= 0.92


@pytest.mark.slow
@pytest.mark.parametrize("method", ["delong", "bca"])
@pytest.mark.parametrize(("n1", "n0", "area"), [(20, 20, 0.7), (100, 100, 0.995), (20, 200, 0.97), (200, 200, 0.55)])
def test_intervals_cover_skewed_scores(n1, n0, area, method):
    """Exponential scores, members of larger scale: AUC = s / (1 + s)."""
    rng = np.random.default_rng(8)
    member, runs, hits = np.arange(n1 + n0) < n1, 1000, 0
    for _ in range(runs):
        scores = rng.exponential(np.where(member, area / (1 - area), 1.0))
        low, high = auc_interval(scores, member, method=method, resamples=500)
        hits += low <= area <= high
    assert hits / runs >= 0.9


@pytest.mark.parametrize("ties", [False, True])
def test_roc_curve_against_sklearn(ties):
    scores, member = draw(2, ties=ties)
    fpr, tpr, thresholds = metrics.roc_curve(member, scores, drop_intermediate=False)
    curve = roc_curve(scores, member)
    np.testing.assert_allclose(curve.fpr, fpr)
    np.testing.assert_allclose(curve.tpr, tpr)
    np.testing.assert_array_equal(curve.thresholds, thresholds)
    for t, fp, tp in zip(curve.thresholds, curve.false_positives, curve.true_positives, strict=True):
        called = scores >= t
        assert (called & ~member).sum() == fp
        assert (called & member).sum() == tp


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_tpr_at_fpr_against_every_threshold(seed, ties):
    scores, member = draw(seed, n1=50, n0=100, ties=ties)
    levels = (0, 0.001, 0.01, 0.07, 0.1, 0.29, 1)
    found = tpr_at_fpr(scores, member, levels)
    for level in levels:
        best = (0, 0, np.inf)
        for t in sorted(set(scores), reverse=True):
            fp, tp = ((scores >= t) & ~member).sum(), ((scores >= t) & member).sum()
            if 100 * fp <= round(100 * 100 * level + 1e-9, 6):
                best = (fp, tp, t)
        row = found[f"{level:g}"]
        assert (row["false_positives"], row["true_positives"], row["threshold"]) == best
        assert row["fpr"] == best[0] / 100 <= level + 1e-12
        assert row["tpr"] == best[1] / 50
        assert (row["n_members"], row["n_non_members"]) == (50, 100)
        assert row["supported"] is (level == 0 or level >= 0.01)
        exact = stats.binomtest(int(best[1]), 50).proportion_ci(0.95, method="exact")
        np.testing.assert_allclose(row["tpr_ci"], exact)
    assert list(tpr_at_fpr(scores, member)) == ["0", "0.001", "0.01", "0.1"]


def test_a_tie_with_a_non_member_is_not_interpolated():
    row = tpr_at_fpr([3, 3, 3, 1, 0], [1, 1, 0, 1, 0], levels=(0, 0.5))
    assert (row["0"]["tpr"], row["0"]["threshold"], row["0"]["true_positives"]) == (0.0, np.inf, 0)
    assert (row["0.5"]["tpr"], row["0.5"]["fpr"], row["0.5"]["threshold"]) == (1.0, 0.5, 1.0)


def test_clopper_pearson_against_scipy():
    for k, n in ((0, 1), (1, 1), (0, 50), (50, 50), (7, 50)):
        low, high = clopper_pearson(k, n, 0.9)
        np.testing.assert_allclose((low, high), stats.binomtest(k, n).proportion_ci(0.9, method="exact"), atol=1e-12)
    with pytest.raises(InputError, match="successes must"):
        clopper_pearson(3, 2)


@pytest.mark.parametrize(
    ("scores", "member", "message"),
    [
        ([1.0, np.nan, 2.0], [0, 1, 1], "scores must have only finite values, got 1"),
        ([1.0, np.inf, 2.0], [0, 1, 1], "scores must have only finite values"),
        ([1.0, 2.0], [1, 1], "member must have both classes"),
        ([1.0, 2.0], [0, 0], "member must have both classes"),
        ([], [], "both classes|real numbers"),
        ([1.0, 2.0, 3.0], [0, 1, 2], "member must have only the labels 0 and 1, got 2"),
        ([1.0, 2.0], [0, np.nan], "member must have only the labels 0 and 1, got nan"),
        ([1.0, 2.0], ["no", "yes"], "member must have only the labels 0 and 1, got no"),
        ([1.0, 2.0, 3.0], [0, 1], "member must have 3 labels"),
        ([[1.0, 2.0]], [0, 1], "scores must have 1 axis"),
        (["a", "b"], [0, 1], "scores must be real numbers"),
        ([1j, 2.0], [0, 1], "scores must be real numbers"),
    ],
)
def test_bad_input_is_one_line(scores, member, message):
    for function in (auc, auc_interval, roc_curve, tpr_at_fpr):
        with pytest.raises(InputError, match=message) as error:
            function(scores, member)
        assert "\n" not in str(error.value)


def test_bad_settings():
    for arguments in ({"level": 1.0}, {"level": 0}, {"method": "wald"}, {"method": "bca", "resamples": 10}):
        with pytest.raises(InputError):
            auc_interval([1, 2], [0, 1], **arguments)
    with pytest.raises(InputError, match="levels must be"):
        tpr_at_fpr([1, 2], [0, 1], levels=(1.5,))
