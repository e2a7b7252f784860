import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from jaxaudit.bmp import from_canonical
from jaxaudit.bmp.exposure import _contributions, auc_spread, decompose, rank_nodes
from jaxaudit.runtime.checks import InputError


def simulate(nodes, models, shared, seed, tau=0.0):
    """Statistics with a shift of 1 +- tau, correlated within a model: by all nodes or by class."""
    rng = np.random.default_rng(seed)
    member, shift = rng.random((nodes, models)) < 0.5, shifts(nodes, seed, tau)
    rho, classes = (0.0, 1) if shared == "none" else (0.3, 1 if shared == "all" else 7)
    effect = rng.standard_normal((classes, models))[rng.integers(classes, size=nodes)]
    noise = np.sqrt(rho) * effect + np.sqrt(1 - rho) * rng.standard_normal((nodes, models))
    return noise + shift * member, member


def shifts(nodes, seed, tau):
    return 1 + tau * np.sqrt(3) * np.random.default_rng((seed, 1)).uniform(-1, 1, (nodes, 1))


def true_sd(nodes, seed, tau):
    """Standard deviation over these very nodes of the AUC Phi(shift / sqrt 2), independent models."""
    return norm.cdf(shifts(nodes, seed, tau) / np.sqrt(2)).std()


def test_spread_is_the_mean_over_pairs_of_models():
    t, member = simulate(12, 8, "all", 0, 0.5)
    t = t.round(1)  # ties
    member[:, :2], member[:, 6:] = True, False
    found = auc_spread(t, member, flips=99)
    v, x = _contributions(t, member, np.ones_like(member))
    naive, pairs = 0.0, 0
    for j in range(8):
        for k in range(8):
            if j != k:
                pairs += 1
                naive += np.mean((x[:, j] - x[:, j].mean()) * (x[:, k] - x[:, k].mean()))
    assert found.variance == pytest.approx(naive / pairs)
    centred, without = x - x.mean(axis=0), []
    for left_out in range(8):
        rest = [k for k in range(8) if k != left_out]
        without.append(np.mean([(centred[:, j] * centred[:, k]).mean() for j in rest for k in rest if j != k]))
    assert found.standard_error == pytest.approx(np.sqrt(7 / 8 * ((without - np.mean(without)) ** 2).sum()))
    for i in range(12):
        assert v[i] == pytest.approx(roc_auc_score(member[i], t[i]))
    assert found.mean == pytest.approx(v.mean())
    assert found.observed_sd == pytest.approx(v.std())
    assert np.allclose(x.mean(axis=1), v - found.mean)
    # Without the centring over nodes the diagonal removes DeLong's variance, exactly.
    for i in range(12):
        a, b = t[i, member[i]], t[i, ~member[i]]
        above = (a[:, None] > b) + 0.5 * (a[:, None] == b)
        delong = above.mean(1).var(ddof=1) / a.size + above.mean(0).var(ddof=1) / b.size
        assert ((x[i].sum()) ** 2 - (x[i] ** 2).sum()) / 56 == pytest.approx((v[i] - found.mean) ** 2 - delong)


def test_spread_of_what_differs_and_of_what_does_not():
    none = auc_spread(*simulate(300, 32, "class", 1), flips=499)
    some = auc_spread(*simulate(300, 32, "none", 1, tau=0.5), flips=499)
    assert none.p_value > 0.05
    assert none.sd_low == 0
    assert some.p_value < 0.01
    assert some.sd_low < true_sd(300, 1, 0.5) < some.sd_high
    assert 0.2 < some.real_share < 0.9


def test_spread_ignores_order_of_nodes_monotone_maps_and_models_that_are_not_finite():
    t, member = simulate(60, 16, "none", 2, 0.5)
    one = auc_spread(t, member, flips=99)
    order = np.random.default_rng(0).permutation(60)
    again = auc_spread(np.exp(t[order]), member[order], flips=99)
    assert again.variance == pytest.approx(one.variance)
    assert again.p_value == one.p_value
    wider = np.concatenate([t, np.full((60, 4), np.nan)], axis=1), np.concatenate([member, member[:, :4]], axis=1)
    assert auc_spread(*wider, flips=99) == one
    alone = t.copy()
    alone[0] = np.nan
    assert auc_spread(alone, member, flips=99) == auc_spread(t[1:], member[1:], flips=99)
    pairs = auc_spread(t, member, paired=True, flips=99)
    assert (pairs.models, pairs.mean, pairs.observed_sd) == (8, one.mean, one.observed_sd)


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["none", "all", "class"])
def test_spread_rejects_five_percent_and_is_unbiased(shared):
    null = [auc_spread(*simulate(200, 64, shared, seed), flips=499, seed=seed) for seed in range(300)]
    rate = np.mean([x.p_value <= 0.05 for x in null])
    real = [auc_spread(*simulate(200, 64, "none", seed, 0.5), flips=99) for seed in range(150)]
    truth = np.array([true_sd(200, seed, 0.5) for seed in range(150)])
    cover = np.mean([x.sd_low <= sd <= x.sd_high for x, sd in zip(real, truth, strict=True)])
    print(f"{shared}: rejected {rate:.3f}, mean variance {np.mean([x.variance for x in null]):.1e}, cover {cover:.3f}")
    assert rate < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)
    assert abs(np.mean([x.variance for x in null])) < 2e-4  # DeLong's variance is a little too large
    assert abs(np.mean([x.variance for x in real]) / np.mean(truth**2) - 1) < 0.05
    assert cover > 0.84


def test_equal_nodes_judged_by_fitted_thresholds_are_equal_here():
    """Rates of a fitted threshold differ between equal nodes by the luck of the fit; the AUC does not."""
    rng = np.random.default_rng(0)
    found = []
    for seed in range(12):
        member = rng.random((300, 32)) < 0.5
        found.append(auc_spread(rng.normal(size=(300, 32)) + member, member, flips=199, seed=seed).p_value)
    assert sum(p <= 0.05 for p in found) <= 3


def test_ranks_against_a_naive_loop():
    fp, fn = np.arange(20) % 5 + 2, np.arange(20) % 7 + 15
    found = rank_nodes(fp, 40, fn, 40, top=0.1, draws=3000)
    rng, ranks = np.random.default_rng(5), []
    for _ in range(3000):
        a, b = rng.beta(fp + 0.5, 40.5 - fp), rng.beta(fn + 0.5, 40.5 - fn)
        r = [max(np.log((1 - y) / x), np.log(y / (1 - x)), 0) for x, y in zip(a, b, strict=True)]
        ranks.append([1 + sum(other > own for other in r) for own in r])
    ranks = np.array(ranks)
    assert np.allclose(found.expected, ranks.mean(axis=0), atol=0.5)
    assert np.allclose(found.top_probability, (ranks <= 2).mean(axis=0), atol=0.04)
    # The two simulations may differ by one rank where a quantile lies between two.
    for side, q in ((found.low, 0.05), (found.high, 0.95)):
        assert np.abs(side - np.quantile(ranks, q, axis=0, method="inverted_cdf")).mean() < 0.35


def test_ranks_of_many_nodes_and_of_nodes_without_data():
    rng = np.random.default_rng(0)
    n_out = np.where(np.arange(1000) == 7, 0, 50)
    found = rank_nodes(rng.binomial(n_out, 0.1), n_out, rng.binomial(50, rng.uniform(0.1, 0.9, 1000)), 50, draws=50)
    assert np.isnan([found.expected[7], found.low[7], found.high[7], found.top_probability[7]]).all()
    assert sorted(found.order) == sorted(set(range(1000)) - {7})
    assert np.all(np.diff(found.expected[found.order]) >= 0)
    assert np.nanmean(found.expected) == pytest.approx(500.0)
    assert np.nansum(found.top_probability) == pytest.approx(50.0)
    ok = np.arange(1000) != 7
    assert np.mean((found.low <= found.expected)[ok] & (found.expected <= found.high)[ok]) > 0.95
    assert np.nanmin(found.low) >= 1
    assert np.nanmax(found.high) == 999


def test_decomposition_adds_up():
    prior, l, r = np.array([0.5, 0.02, 1.0, 0.3]), np.array([1.0, 2.0, 1.0, np.nan]), np.array([0.5, 3.0, 1.0, np.nan])
    parts = decompose(prior, l, r)
    eps_L, eps_R = from_canonical(l, r, prior)
    with np.errstate(invalid="ignore"):
        assert np.allclose(parts.log_odds + parts.r, parts.eps_R, equal_nan=True)
        assert np.allclose(parts.l - parts.log_odds, parts.eps_L, equal_nan=True)
    assert np.array_equal(parts.eps_R, eps_R, equal_nan=True)
    assert np.array_equal(parts.eps_L, eps_L, equal_nan=True)


def test_bad_arguments():
    t, member = simulate(6, 8, "none", 0)
    for bad in ((t, member[:, 1:]), (t[0], member[0]), (t, member | True), (t[:, :3], member[:, :3])):
        with pytest.raises(InputError):
            auc_spread(*bad)
    with pytest.raises(InputError):
        auc_spread(t, member, flips=10)
    for bad in ({"top": 0.0}, {"draws": 3}, {"seed": -1}):
        with pytest.raises(InputError):
            rank_nodes(1, 5, 1, 5, **bad)
    with pytest.raises(InputError, match="at least one node"):
        rank_nodes(0, 0, 1, 5)
