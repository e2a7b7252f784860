"""Statistics, counting rules and AUCs against loops, SciPy, scikit-learn and the null."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp
from sklearn.metrics import roc_auc_score

from jaxaudit.graph.attacks import RULES, AttackConfig, count_errors, cross_fitted_ratio, halves, node_statistic
from jaxaudit.graph.auc import attack_auc, constant_score_auc, interval, model_weights, pooled_auc, within_node_auc
from jaxaudit.runtime.checks import InputError


def simulate(nodes, models=64, share=0.5, shift=0.0, seed=0):
    rng = np.random.default_rng(seed)
    member = rng.random((nodes, models)) < share
    scale, centre = rng.uniform(0.5, 3, (nodes, 1)), rng.normal(0, 5, (nodes, 1))
    t = centre + scale * (rng.normal(size=(nodes, models)) + shift * member + 0.5 * rng.normal(size=models))
    return t.astype(np.float32), member


def test_statistics_equal_loops():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(0, 3, (4, 5, 3)).astype(np.float32), np.array([0, 2, 1, 1, 0])
    for k in range(4):
        for i in range(5):
            z, y = logits[k, i].astype(float), labels[i]
            others = np.delete(z, y)
            expected = {"logit": z[y] - logsumexp(others), "loss": z[y] - logsumexp(z), "margin": z[y] - others.max()}
            for name, value in expected.items():
                assert abs(node_statistic(logits, labels, name)[i, k] - value) < 1e-4
    p = np.exp(node_statistic(logits, labels, "loss"))
    np.testing.assert_allclose(node_statistic(logits, labels), np.log(p) - np.log1p(-p), atol=2e-3)


@pytest.mark.devices
@pytest.mark.parametrize("share", [0.5, 0.12])
def test_fixed_fpr_equals_a_loop(share):
    t, member = simulate(40, 24, share, 1.0, seed=1)
    level = 0.2
    z = stats.norm.ppf(1 - level)
    counts = count_errors(t, member, AttackConfig(level=level))
    for i in range(40):
        fp = fn = 0
        for k in range(24):
            rest = [float(t[i, j]) for j in range(24) if j != k and not member[i, j]]
            say = t[i, k] > np.mean(rest) + z * np.std(rest, ddof=1)
            fp += say and not member[i, k]
            fn += not say and member[i, k]
        assert counts.auditable[i] == (member[i].any() and (~member[i]).sum() >= 3)
        if counts.auditable[i]:
            assert (counts.fp[i], counts.fn[i]) == (fp, fn)
        assert (counts.n_in[i], counts.n_out[i]) == (member[i].sum(), (~member[i]).sum())


def test_fixed_fpr_pools_the_deviation_of_a_side_that_is_short():
    t, member = simulate(30, 12, 0.5, 0.0, seed=2)
    member[0] = np.arange(12) >= 3  # three non-members, so two are left behind each of their thresholds
    counts = count_errors(t, member, AttackConfig(level=0.2))
    t64, z = t.astype(float), stats.norm.ppf(0.8)
    for k in (0, 1, 2):
        squares = freedom = 0.0
        for i in range(30):
            rest = [t64[i, j] for j in range(12) if j != k and not member[i, j]]
            if len(rest) >= 2:
                squares += np.var(rest) * len(rest)
                freedom += len(rest) - 1
        rest = [t64[0, j] for j in range(3) if j != k]
        assert counts.said_member[0, k] == (t64[0, k] > np.mean(rest) + z * np.sqrt(squares / freedom))
    assert counts.auditable[0]


def loop_ratio(t, member, i, k):
    fit = [j for j in range(t.shape[1]) if halves(t.shape[1])[j] != halves(t.shape[1])[k]]
    sides = [np.array([float(t[i, j]) for j in fit if member[i, j] == side]) for side in (True, False)]
    if min(len(side) for side in sides) < 2:
        return np.nan
    if min(len(side) for side in sides) >= 3:
        sds = [side.std(ddof=1) for side in sides]
    else:
        total = sum(((side - side.mean()) ** 2).sum() for side in sides)
        sds = [np.sqrt(total / (len(fit) - 2))] * 2
    return np.subtract(
        *(stats.norm.logpdf(float(t[i, k]), side.mean(), sd) for side, sd in zip(sides, sds, strict=True))
    )


@pytest.mark.devices
@pytest.mark.parametrize("share", [0.5, 0.2])
def test_cross_fitted_ratio_and_its_rules_equal_a_loop(share):
    t, member = simulate(25, 20, share, 1.0, seed=3)
    expected = np.array([[loop_ratio(t, member, i, k) for k in range(20)] for i in range(25)])
    np.testing.assert_allclose(cross_fitted_ratio(t, member), expected, rtol=1e-6, atol=1e-6)
    prior = np.random.default_rng(0).uniform(0.1, 0.9, 25)
    for rule, threshold in (("likelihood", np.zeros(25)), ("bayes", -np.log(prior / (1 - prior)))):
        counts = count_errors(t, member, AttackConfig(rule=rule), prior)
        for i in range(25):
            judged = [k for k in range(20) if halves(20)[k]]
            fp = sum(expected[i, k] > threshold[i] for k in judged if not member[i, k])
            fn = sum(expected[i, k] <= threshold[i] for k in judged if member[i, k])
            n_in = sum(member[i, k] for k in judged)
            assert (counts.n_in[i], counts.n_out[i]) == (n_in, 10 - n_in)
            assert counts.auditable[i] == (np.isfinite(expected[i, judged]).all() and 0 < n_in < 10)
            if counts.auditable[i]:
                assert (counts.fp[i], counts.fn[i]) == (fp, fn)


def test_unusable_nodes_and_models_stay_in_place():
    t, member = simulate(6, 12, 0.5, 0.0, seed=4)
    member[0], member[1] = True, False
    t[2, 3], t[3] = np.nan, np.inf
    for rule in RULES:
        counts = count_errors(t, member, AttackConfig(rule=rule), np.full(6, 0.5))
        assert counts.auditable.tolist()[:2] == [False, False]
        assert not counts.auditable[3]
        assert np.isnan(counts.fp[[0, 1, 3]]).all()
        assert not counts.counted[2, 3]
        assert np.isfinite(counts.fp[counts.auditable]).all()
    t, member = simulate(2, 32)
    extreme = count_errors(t, member, AttackConfig(rule="bayes"), np.array([1.0, 0.0]))
    assert extreme.fp[0] == extreme.n_out[0] > 0  # a certain member is always called one
    assert extreme.fn[1] == extreme.n_in[1] > 0
    t, member = simulate(6, 12, 0.5, 0.0, seed=4)
    member[0], member[1], t[3] = True, False, np.inf
    auc = attack_auc(t, member, np.full(6, 0.5), replicates=20)
    assert np.isnan(auc.node_likelihood_ratio[[0, 1, 3]]).all()
    assert np.isfinite(auc.standardised)


def test_statistic_is_judged_free_of_place_and_scale():
    t, member = simulate(30, 32, 0.4, 1.0, seed=5)
    for rule in RULES:
        plain = count_errors(t, member, AttackConfig(rule=rule), np.full(30, 0.4))
        moved = count_errors(1e3 + 7.0 * t.astype(float), member, AttackConfig(rule=rule), np.full(30, 0.4))
        np.testing.assert_array_equal(plain.fp, moved.fp)
        np.testing.assert_array_equal(plain.fn, moved.fn)


# Under the null, Var(α̂ + β̂) over nodes against the binomial one (theory 1.4: 1.02-1.07 and .95-1.03).
@pytest.mark.parametrize(
    ("rule", "low", "high"), [("fixed_fpr", 1.0, 1.1), ("likelihood", 0.93, 1.05), ("bayes", 0.93, 1.05)]
)
def test_error_counts_are_binomial_under_the_null(rule, low, high):
    rng = np.random.default_rng(6)
    nodes = 60_000
    member = rng.random((nodes, 64)) < 0.5
    t = rng.normal(size=(nodes, 64))
    counts = count_errors(t, member, AttackConfig(rule=rule), np.full(nodes, 0.5))
    alpha, beta = counts.fp / counts.n_out, counts.fn / counts.n_in
    a, b = np.nanmean(alpha), np.nanmean(beta)
    # A constant rate for fixed_fpr; a node's own fitted rate, α + β = 1, for the likelihood rules.
    rate = a * (1 - a) if rule == "fixed_fpr" else None
    if rate is not None:
        binomial = np.nanmean(rate / counts.n_out + b * (1 - b) / counts.n_in)
    else:
        share = (counts.said_member & counts.counted).sum(axis=1) / (counts.n_in + counts.n_out)
        n = counts.n_in + counts.n_out
        own = share * (1 - share) * n / (n - 1)  # unbiased for the node's p(1 - p)
        binomial = np.nanmean(own / counts.n_out + own / counts.n_in)
    ratio = np.nanvar(alpha + beta) / binomial
    noise = 3 * np.sqrt(2 / nodes)
    assert low - noise < ratio < high + noise
    assert abs(a + b - 1) < 4 * np.sqrt(binomial / nodes) + 0.001


def test_within_node_auc_equals_scikit_learn():
    t, member = simulate(20, 16, 0.5, 1.0, seed=7)
    t[0] = np.round(t[0])  # ties
    t[1, 2] = np.nan
    member[2] = True
    weights = np.random.default_rng(0).integers(0, 3, (4, 16)).astype(float)
    weights[0] = 1
    found = within_node_auc(t, member, weights)
    for i in range(20):
        for r in range(4):
            keep = np.repeat(np.flatnonzero(np.isfinite(t[i])), weights[r, np.isfinite(t[i])].astype(int))
            if len(set(member[i, keep])) < 2:
                assert np.isnan(found[i, r])
            else:
                assert abs(found[i, r] - roc_auc_score(member[i, keep], t[i, keep])) < 1e-6


def test_pooled_auc_equals_scikit_learn():
    t, member = simulate(30, 10, 0.4, 1.0, seed=8)
    t = np.round(t, 0)
    t[4, 4] = np.nan
    weights = np.random.default_rng(0).integers(0, 3, (3, 10)).astype(float)
    keep = np.isfinite(t)
    for value, weight in zip(pooled_auc(t, member, weights), weights, strict=True):
        sample = np.broadcast_to(weight, t.shape)[keep]
        assert abs(value - roc_auc_score(member[keep], t[keep], sample_weight=sample)) < 1e-9
    score = np.random.default_rng(1).integers(0, 4, 30) / 4
    expected = roc_auc_score(member.ravel(), np.repeat(score, 10))
    assert abs(constant_score_auc(score, member.sum(1), (~member).sum(1)) - expected) < 1e-9
    assert constant_score_auc(np.full(30, 0.3), member.sum(1), (~member).sum(1)) == 0.5


def test_standardised_auc_equals_pairwise_leave_one_out():
    """The pair's own non-member leaves the out-fit of both: Mann-Whitney of T comes out."""
    t, member = simulate(8, 14, 0.5, 0.7, seed=9)
    auc = attack_auc(t, member, np.full(8, 0.5), replicates=10)
    for i in range(8):
        won = []
        for k in np.flatnonzero(member[i]):
            for j in np.flatnonzero(~member[i]):
                rest = [float(t[i, m]) for m in range(14) if m != j and not member[i, m]]
                a, b = ((float(t[i, m]) - np.mean(rest)) / np.std(rest, ddof=1) for m in (k, j))
                won.append((a > b) + 0.5 * (a == b))
        assert abs(auc.node_standardised[i] - np.mean(won)) < 1e-9


@pytest.mark.devices
def test_null_is_one_half_and_a_signal_is_found():
    estimates = []
    for seed in range(6):
        t, member = simulate(500, 64, 0.3, 0.0, seed=20 + seed)
        auc = attack_auc(t, member, np.full(500, 0.3), replicates=100)
        estimates.append((auc.likelihood_ratio, auc.standardised))
        for value, (low, high) in (
            (auc.likelihood_ratio, auc.likelihood_ratio_ci), (auc.standardised, auc.standardised_ci),
        ):  # fmt: skip
            assert low < value < high
            assert low - 0.006 < 0.5 < high + 0.006
    assert np.abs(np.mean(estimates, axis=0) - 0.5).max() < 0.006
    t, member = simulate(500, 64, 0.5, 1.0, seed=30)
    auc = attack_auc(t, member, np.full(500, 0.5), replicates=50)
    expected = stats.norm.cdf(1 / np.sqrt(2 * (1 + 0.25)))
    assert abs(auc.standardised - expected) < 0.03
    assert auc.likelihood_ratio > 0.65
    t, member = simulate(500, 64, 0.5, -1.0, seed=31)  # the ratio finds a reversed direction, T does not
    auc = attack_auc(t, member, np.full(500, 0.5), replicates=50)
    assert auc.likelihood_ratio > 0.65
    assert auc.standardised < 0.35


@pytest.mark.slow
def test_cross_fitted_interval_covers_under_the_null():
    covered = []
    for seed in range(60):
        t, member = simulate(300, 64, 0.3, 0.0, seed=100 + seed)
        low, high = attack_auc(t, member, np.full(300, 0.3), seed, replicates=200).likelihood_ratio_ci
        covered.append(low < 0.5 < high)
    assert np.mean(covered) > 0.85  # 95 % nominal; 60 repeats


def test_model_weights_stay_in_their_half():
    weights = model_weights(halves(10), 50, np.random.default_rng(0))
    assert (weights[:, halves(10)].sum(axis=1) == 5).all()
    assert (weights.sum(axis=1) == 10).all()


def test_bad_arguments():
    t, member = simulate(3, 8)
    for call, words in (
        (lambda: AttackConfig(rule="best"), "attack.rule"),
        (lambda: AttackConfig(level=0.0), "attack.level"),
        (lambda: AttackConfig(statistic="x"), "attack.statistic"),
        (lambda: count_errors(t, member[:2]), "statistic must have"),
        (lambda: count_errors(t, member, AttackConfig(rule="bayes")), "prior"),
        (lambda: node_statistic(np.zeros((1, 2, 2)), np.zeros(2, int), "x"), "attack.statistic"),
    ):
        with pytest.raises(InputError, match=words):
            call()


@pytest.mark.parametrize(("models", "floor"), [(8, 0.935), (32, 0.94)])
def test_interval_of_a_mean_covers_at_small_samples(models, floor):
    """The plain percentile interval covers .90 with 8 values; the expanded one about .95."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2000, models))
    weights = model_weights(np.zeros(models), 400, rng) / models
    limits = np.array([interval(weights @ row, models) for row in values])
    assert floor < np.mean((limits[:, 0] <= 0) & (limits[:, 1] >= 0)) < 0.97


def test_interval_without_replicates_or_models_is_nan():
    assert np.isnan(interval(np.array([np.nan]), 9)).all()
    assert np.isnan(interval(np.ones(9), 1)).all()
