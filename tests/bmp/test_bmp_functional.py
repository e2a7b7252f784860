import numpy as np
import pytest

from jaxaudit.bmp import exact_posterior, functional_limits, region
from jaxaudit.runtime.checks import InputError

CASES = [
    (10, 100, 10, 100), (0, 1, 0, 1), (1, 90, 8, 10), (50, 100, 50, 100), (0, 1, 500, 1000), (20, 1000, 980, 1000),
    (3, 32, 20, 32), (0, 1000, 0, 1000), (1000, 1000, 0, 1000), (1, 1000, 1, 1), (0, 32, 32, 32), (5, 5, 5, 5),
    (3, 10**7, 10**7 - 5, 10**7),
]  # fmt: skip


def table(limits):
    names = ("lower", "median", "upper")
    return np.stack([[getattr(limits, f"{x}_{name}") for name in names] for x in "rl"]).transpose(2, 0, 1)


def monte_carlo(case, draws, seed=0):
    """Quantiles, and the error that sampling leaves in them (distance between neighbouring order statistics)."""
    fp, n_out, fn, n_in = case
    rng = np.random.default_rng(seed)
    gamma = rng.standard_gamma(np.array([fp, n_out - fp, fn, n_in - fn])[:, None] + 0.5, (4, draws))
    a, b = gamma[0] / (gamma[0] + gamma[1]), gamma[2] / (gamma[2] + gamma[3])
    not_a, not_b = gamma[1] / (gamma[0] + gamma[1]), gamma[3] / (gamma[2] + gamma[3])
    levels = np.array([0.05, 0.5, 0.95])
    wiggle = 3 * np.sqrt(levels * (1 - levels) / draws)
    r = np.log(np.maximum(not_b / a, b / not_a))
    l = np.log(np.maximum(a / not_b, not_a / b))
    quantiles = np.stack([[np.quantile(x, levels + w) for w in (-wiggle, 0, wiggle)] for x in (r, l)])
    return quantiles[:, 1], quantiles[:, 2] - quantiles[:, 0]


def check(cases, draws, tolerance):
    found = table(functional_limits(*np.transpose(cases)))
    for case, values in zip(cases, found, strict=True):
        truth, noise = monte_carlo(case, draws)
        assert np.all(np.abs(values - truth) < tolerance + noise), (case, values - truth)


def test_against_monte_carlo():
    check(CASES, 100_000, 0.01)


@pytest.mark.slow
def test_against_monte_carlo_long():
    check(CASES, 4_000_000, 0.01)


def test_published_check_value():
    assert np.allclose(table(functional_limits(10, 100, 10, 100))[0, 0], [1.73, 2.18, 2.72], atol=0.006)


def test_one_rate_known_is_a_beta_quantile():
    """Fn = 0 of 1e7: b = 0, so r* = -log a and l* is huge; the limit is a Beta quantile in closed form."""
    from scipy.stats import beta

    limits = functional_limits(7, 50, 0, 10**7)
    assert limits.r_lower[0] == pytest.approx(-np.log(beta.ppf(0.95, 7.5, 43.5)), abs=0.01)
    assert limits.r_upper[0] == pytest.approx(-np.log(beta.ppf(0.05, 7.5, 43.5)), abs=0.01)


def test_level_is_one_sided():
    narrow, wide = functional_limits(3, 30, 4, 30, level=0.9), functional_limits(3, 30, 4, 30, level=0.99)
    assert wide.r_lower < narrow.r_lower < narrow.r_median < narrow.r_upper < wide.r_upper
    middle = functional_limits(3, 30, 4, 30, level=0.5)
    assert middle.r_lower == middle.r_median == middle.r_upper


def test_no_data_is_nan():
    limits = functional_limits([0, 1, 0], [100, 5, 0], [0, 1, 0], [0, 5, 3])
    assert np.isnan(table(limits)[[0, 2]]).all()
    assert np.isfinite(table(limits)[1]).all()
    assert functional_limits([], [], [], []).r_lower.shape == (0,)


def test_a_node_does_not_depend_on_the_others():
    fp = np.arange(90)
    whole = table(functional_limits(fp, 90, fp[::-1], 100))
    assert np.array_equal(table(functional_limits(fp[5:6], 90, fp[::-1][5:6], 100)), whole[5:6])


def test_bad_level():
    for level in (0.2, 1.0, "x"):
        with pytest.raises(InputError):
            functional_limits(1, 2, 1, 2, level=level)


def channel(n, repeats, seed):
    """Counts of the binary channel W ~ Bernoulli(.2 or .6), the attack "member iff W = 1", and the true r."""
    rng = np.random.default_rng(seed)
    fp, fn = rng.binomial(n, 0.2, repeats), rng.binomial(n, 0.4, repeats)
    return (fp, n, fn, n), float(region.tightest(0.2, 0.4)[1])


@pytest.mark.parametrize("n", [20, 100])
def test_coverage_on_a_channel(n):
    counts, true_r = channel(n, 4000, seed=n)
    assert true_r == pytest.approx(np.log(3))
    limits = functional_limits(*counts)
    assert (limits.r_lower > true_r).mean() < 0.075
    assert 0.86 < ((limits.r_lower <= true_r) & (true_r <= limits.r_upper)).mean() < 0.96


@pytest.mark.slow
def test_coverage_on_a_channel_long():
    """Nominal 90 %: the functional posterior keeps it; the paper's, whose assumption fails here, loses it with n."""
    for n, paper in ((20, 0.80), (100, 0.45), (500, 0.12)):
        counts, true_r = channel(n, 40_000, seed=n)
        limits, post = functional_limits(*counts), exact_posterior(*counts)
        assert (limits.r_lower > true_r).mean() == pytest.approx(0.05, abs=0.015)
        assert ((limits.r_lower <= true_r) & (true_r <= limits.r_upper)).mean() == pytest.approx(0.9, abs=0.02)
        covered = (post.quantile("r", 0.05) <= true_r) & (true_r <= post.quantile("r", 0.95))
        assert covered.mean() == pytest.approx(paper, abs=0.03)


@pytest.mark.slow
def test_null_channel_shows_little():
    """No leak: the lower limit of r stays below .1 in .90/.98/1.00 of nodes at n = 20/100/500."""
    for n, share in ((20, 0.90), (100, 0.98), (500, 1.0)):
        rng = np.random.default_rng(n)
        limits = functional_limits(rng.binomial(n, 0.5, 20_000), n, rng.binomial(n, 0.5, 20_000), n)
        assert (limits.r_lower < 0.1).mean() > share - 0.03
