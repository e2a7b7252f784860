import numpy as np
import pytest
from scipy.stats import norm

from jaxaudit.bmp import from_canonical
from jaxaudit.bmp.exposure import _contributions, decompose, leakage_spread, rank_nodes
from jaxaudit.runtime.checks import InputError


def simulate(nodes, models, shared, seed, tau=0.0):
    """Decisions with alpha between .05 and .25, TPR - FPR .3 +- tau, correlated within a model: by all or by class."""
    rng = np.random.default_rng(seed)
    member, alpha = rng.random((nodes, models)) < 0.5, rng.uniform(0.05, 0.25, (nodes, 1))
    power = alpha + 0.3 + tau * np.sqrt(3) * rng.uniform(-1, 1, (nodes, 1))
    rho, classes = (0.0, 1) if shared == "none" else (0.3, 1 if shared == "all" else 7)
    effect = rng.standard_normal((classes, models))[rng.integers(classes, size=nodes)]
    z = np.sqrt(rho) * effect + np.sqrt(1 - rho) * rng.standard_normal((nodes, models))
    return z < norm.ppf(np.where(member, power, alpha)), np.ones((nodes, models), bool), member


def test_spread_is_the_mean_over_pairs_of_models():
    said, counted, member = simulate(12, 8, "all", 0, 0.1)
    member[:, :2], member[:, 6:] = True, False
    found = leakage_spread(said, counted, member, flips=99)
    x = _contributions(said, counted, member)[1]
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
    rate_in = (said & member).sum(1) / member.sum(1)
    rate_out = (said & ~member).sum(1) / (~member).sum(1)
    assert found.mean == pytest.approx((rate_in - rate_out).mean())
    assert found.observed_sd == pytest.approx((rate_in - rate_out).std())
    assert np.allclose(x.mean(axis=1), rate_in - rate_out - found.mean)
    # Without the centring over nodes the diagonal removes the unbiased variance of the two rates, exactly.
    unbiased = rate_in * (1 - rate_in) / (member.sum(1) - 1) + rate_out * (1 - rate_out) / ((~member).sum(1) - 1)
    d = rate_in - rate_out - found.mean
    assert np.allclose((x.sum(1) ** 2 - (x**2).sum(1)) / 56, d**2 - unbiased)


def test_spread_of_what_differs_and_of_what_does_not():
    none = leakage_spread(*simulate(300, 32, "class", 1), flips=499)
    some = leakage_spread(*simulate(300, 32, "class", 1, tau=0.1), flips=499)
    assert none.p_value > 0.05
    assert none.sd_low == 0
    assert some.p_value < 0.01
    assert some.sd_low < 0.1 < some.sd_high
    assert 0.2 < some.real_share < 0.8


def test_spread_ignores_order_of_nodes_and_what_is_not_counted():
    said, counted, member = simulate(60, 16, "none", 2, 0.1)
    one = leakage_spread(said, counted, member, flips=99)
    order = np.random.default_rng(0).permutation(60)
    again = leakage_spread(said[order], counted[order], member[order], flips=99)
    assert again.variance == pytest.approx(one.variance)
    assert again.p_value == one.p_value
    extra = np.zeros((60, 4), bool)
    wider = [np.concatenate([x, extra], axis=1) for x in (said, counted, member)]
    assert leakage_spread(*wider, flips=99) == one
    out = counted.copy()
    out[0] = False
    assert leakage_spread(said, out, member, flips=99) == leakage_spread(said[1:], counted[1:], member[1:], flips=99)


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["none", "all", "class"])
def test_spread_rejects_five_percent_and_is_unbiased(shared):
    null = [leakage_spread(*simulate(200, 64, shared, seed), flips=499, seed=seed) for seed in range(400)]
    rate = np.mean([x.p_value <= 0.05 for x in null])
    variances = np.array([x.variance for x in null])
    real = [leakage_spread(*simulate(200, 64, shared, seed, 0.1), flips=99) for seed in range(200)]
    cover = np.mean([x.sd_low <= 0.1 <= x.sd_high for x in real])
    print(f"{shared}: rejected {rate:.3f}, mean variance {variances.mean():.1e}, cover {cover:.3f}")
    assert abs(rate - 0.05) < 3 * np.sqrt(0.05 * 0.95 / 400)
    assert abs(variances.mean()) < 3 * variances.std() / np.sqrt(400)
    assert abs(np.mean([x.variance for x in real]) - 0.01) < 0.0006
    assert cover > 0.85


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
    said, counted, member = simulate(6, 8, "none", 0)
    for bad in ((said, counted[:, 1:], member), (said[0], counted[0], member[0]), (said, counted & False, member)):
        with pytest.raises(InputError):
            leakage_spread(*bad)
    with pytest.raises(InputError):
        leakage_spread(said, counted, member, flips=10)
    for bad in ({"top": 0.0}, {"draws": 3}, {"seed": -1}):
        with pytest.raises(InputError):
            rank_nodes(1, 5, 1, 5, **bad)
    with pytest.raises(InputError, match="at least one node"):
        rank_nodes(0, 0, 1, 5)
