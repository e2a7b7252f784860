import numpy as np
import pytest
from scipy.stats import beta

from jaxaudit.bmp import exact_posterior, functional_limits, region
from jaxaudit.bmp.calibration import calibrate, channel_counts, confidence_bound, covered, simulate
from jaxaudit.bmp.chains import Demands
from jaxaudit.bmp.mhaar import mhaar
from jaxaudit.bmp.nuts import node_nuts
from jaxaudit.runtime.checks import InputError


class Shifted:
    """A posterior that is wrong on purpose."""

    def __init__(self, post, factor):
        self.post, self.factor = post, factor

    def quantile(self, name, q):
        return self.factor * self.post.quantile(name, q)


def test_simulated_rates_fill_the_region():
    data = simulate(4000, 10**6, 10**6, seed=1)
    alpha, beta_ = data.counts[0] / 10**6, data.counts[2] / 10**6
    l, r = region.tightest(alpha, beta_)
    assert np.mean((l <= data.truth["l"] + 0.01) & (r <= data.truth["r"] + 0.01)) > 0.98
    assert np.mean(data.truth["l"] ** 2) == pytest.approx(10, rel=0.1)
    # By symmetry of the region half of the pairs lie on either side of alpha + beta = 1.
    assert np.mean(alpha + beta_ < 1) == pytest.approx(0.5, abs=0.04)


def test_simulated_strength_stays_out_of_the_weaker_region():
    data = simulate(500, 10**6, 10**6, strength=True, seed=2)
    l, r = region.tightest(data.counts[0] / 10**6, data.counts[2] / 10**6)
    s, inside = data.truth["s"], 0.01
    assert np.mean((l < s * data.truth["l"] - inside) & (r < s * data.truth["r"] - inside)) == 0
    assert 0.4 < s.mean() < 0.6


def test_exact_posterior_is_calibrated():
    data = simulate(5000, 40, 24)
    post = exact_posterior(*data.counts)
    for name, found in calibrate(post, data.truth).items():
        print(f"exact {name}: chi-square p {found.p:.3f}")
        assert found.p > 0.001
        assert found.histogram.sum() == 5000
        assert found.left_out == 0
    assert calibrate(Shifted(post, 1.15), data.truth)["r"].p < 1e-6


def test_failed_problems_are_left_out_and_counted():
    class Half:
        def quantile(self, name, q):
            return np.where(np.arange(10) < 4, np.nan, q)

    found = calibrate(Half(), {"r": np.linspace(0, 1, 10)}, bins=2)["r"]
    assert (found.left_out, found.histogram.tolist()) == (4, [1, 5])


@pytest.mark.parametrize("prior", [0.05, 0.5, 0.95])
def test_functional_limits_cover_on_channels(prior):
    models = round(100 / min(prior, 1 - prior))
    n_in = round(prior * models)
    for p0, p1 in ((0.2, 0.6), (0.1, 0.5), (0.3, 0.75)):
        counts, truth = channel_counts(p0, p1, models - n_in, n_in, 500)
        limits = functional_limits(*counts)
        for name, value in zip("lr", truth, strict=True):
            assert value >= 0.5
            share = covered(getattr(limits, f"{name}_lower"), getattr(limits, f"{name}_upper"), value)
            assert 0.85 <= share["covered"] <= 0.95


def test_confidence_bound_is_zero_without_leak_and_valid_with():
    for p in (0.05, 0.5, 0.8):
        counts, _ = channel_counts(p, p, 100, 300, 500)
        for bound in confidence_bound(*counts):
            assert (bound == 0).mean() >= 0.95
    counts, truth = channel_counts(0.2, 0.6, 200, 100, 2000)
    for bound, value in zip(confidence_bound(*counts), truth, strict=True):
        assert (bound > value).mean() <= 0.05
        assert np.median(bound) > 0.1


def test_confidence_bound_by_hand():
    tail = 0.05 / 4
    a_low, a_high = beta.ppf(tail, 3, 18), beta.ppf(1 - tail, 4, 17)
    b_low, b_high = beta.ppf(tail, 4, 12), beta.ppf(1 - tail, 5, 11)
    l, r = confidence_bound(3, 20, 4, 15)
    assert r[0] == pytest.approx(max(np.log((1 - b_high) / a_high), np.log(b_low / (1 - a_low)), 0))
    assert l[0] == pytest.approx(max(np.log(a_low / (1 - b_low)), np.log((1 - a_high) / b_high), 0))
    # The reversed test shows the same.
    assert confidence_bound(17, 20, 11, 15) == (pytest.approx(l), pytest.approx(r))
    assert np.isnan(confidence_bound(0, 5, 0, 0)[0][0])


def test_bad_arguments():
    with pytest.raises(InputError):
        simulate(0, 5, 5)
    with pytest.raises(InputError):
        channel_counts(0.0, 0.5, 5, 5, 1)
    with pytest.raises(InputError):
        calibrate(exact_posterior(1, 5, 1, 5), {"r": np.ones(1)}, bins=1)
    with pytest.raises(InputError):
        confidence_bound(1, 5, 1, 5, confidence=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "strength"), [("nuts", False), ("mhaar", False), ("mhaar", True)])
def test_chains_are_calibrated(engine, strength):
    data = simulate(300, 20, 12, strength=strength, seed=5)
    if engine == "nuts":
        post = node_nuts(*data.counts)
    else:
        # Ten bins need no more than a hundred effective samples of a posterior.
        enough = Demands(rhat=1.05, ess=100)
        post = mhaar(*data.counts, strength=strength, draws=1500, particles=200, demands=enough)
    for name, found in calibrate(post, data.truth, bins=10).items():
        print(f"{engine}, strength {strength}, {name}: chi-square p {found.p:.3f}, {found.left_out} left out")
        assert found.p > 0.001
        assert found.left_out <= 6
