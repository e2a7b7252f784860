import numpy as np
import pytest
from bmp_oracle import probability_in_region
from scipy.interpolate import RectBivariateSpline

from jaxaudit.bmp import exact_posterior, pooled_posterior, region
from jaxaudit.bmp.chains import Demands, Report, Settings, collect
from jaxaudit.bmp.mhaar import log_ring_area, mhaar
from jaxaudit.bmp.posterior import LEVELS
from jaxaudit.runtime.checks import InputError

# Few trials: of 200 uniform particles enough hit the likelihood.
COUNTS = (np.array([2, 5, 0, 2]), np.array([12, 10, 8, 12]), np.array([3, 5, 0, 3]), np.array([12, 9, 0, 12]))
SHORT = {"chains": 2, "warmup": 200, "draws": 300, "particles": 100}
ONCE = Demands(rhat=1.1, ess=1, reruns=0)
CHECK = {"chains": 4, "warmup": 300, "draws": 1200, "particles": 100, "demands": ONCE, "keep_draws": True}


@pytest.fixture(scope="module")
def post():
    return mhaar(*COUNTS, **CHECK)


@pytest.fixture(scope="module")
def strong():
    return mhaar(*COUNTS, **CHECK, strength=True)


def strength_quantiles(counts, scale2=10.0, levels=(0.05, 0.5, 0.95)):
    """Of r, l and s: P[(a, b) in R(l, r)] - P[(a, b) in R(sl, sr)] over the difference of the areas, on a 3-D grid."""
    x = np.linspace(-6, np.log(6 * np.sqrt(scale2)), 64)
    low = np.linspace(-14, x[-1], 110)  # the spline must also reach s l
    l, r = (np.exp(z.ravel()) for z in np.meshgrid(low, low, indexing="ij"))
    parts = zip(np.array_split(l, 20), np.array_split(r, 20), strict=True)
    inside = np.concatenate([probability_in_region(a, b, *counts, order=10) for a, b in parts])
    spline = RectBivariateSpline(low, low, inside.reshape(low.size, -1))
    s = (np.arange(80) + 0.5) / 80
    log_l, log_r, strength = np.meshgrid(x, x, s, indexing="ij")
    whole = spline(x, x)[:, :, None]
    part = spline.ev(log_l + np.log(strength), log_r + np.log(strength))
    l, r = np.exp(log_l), np.exp(log_r)
    ring = region.area(l, r) - region.area(strength * l, strength * r)
    density = np.maximum(whole - part, 0) / ring * np.exp(log_l + log_r - (l**2 + r**2) / (2 * scale2))
    found = {}
    for name, grid, axes in (("l", x, (1, 2)), ("r", x, (0, 2)), ("s", s, (0, 1))):
        marginal = density.sum(axis=axes)
        cdf = np.cumsum(marginal) - marginal / 2
        value = np.interp(levels, cdf / marginal.sum(), grid)
        found[name] = value if name == "s" else np.exp(value)
    return found


def agree(post, name, row, truth, levels=(0.05, 0.5, 0.95)):
    """P(x < true quantile) is the level, within four standard errors by the chains' own effective sample size."""
    draws, size = post.draws[name][row], min(post.ess_bulk[name][row], post.ess_tail[name][row])
    assert size > 150
    for q, value in zip(levels, truth, strict=True):
        assert abs((draws < value).mean() - q) < 4 * np.sqrt(q * (1 - q) / size), (name, row, q)


def test_without_strength_it_is_the_exact_posterior(post):
    exact = exact_posterior(*COUNTS)
    for node in (0, 1):
        for name in ("r", "l"):
            truth = [exact.quantile(name, q)[node] for q in (0.05, 0.5, 0.95)]
            agree(post, name, post.problem[node], truth)
    assert post.names == ("r", "l")


def test_with_strength_it_is_the_quadrature(strong):
    truth = strength_quantiles((2, 12, 3, 12))
    for name in ("r", "l", "s"):
        agree(strong, name, strong.problem[0], truth[name])


def test_equal_tuples_once_and_no_data_is_nan(post):
    assert post.problem.tolist() == [0, 1, -1, 0]
    assert np.isnan(post.quantile("r", 0.5)[2])
    assert post.quantile("r", 0.5)[0] == post.quantile("r", 0.5)[3]
    assert np.allclose(post.quantile("l", 0.5)[:2], np.median(post.draws["l"], axis=(1, 2)), rtol=1e-3)
    assert post.auditable.tolist() == [True, True, False, True]


def test_a_node_does_not_depend_on_the_others(post):
    alone = mhaar(*(x[1:2] for x in COUNTS), **CHECK)
    assert np.array_equal(alone.draws["r"][0], post.draws["r"][1])


def test_failing_problems_run_again_and_become_nan():
    """A stub engine: problem 0 passes at once, 1 on its second run, 2 never, 3 keeps one divergence in 10^4."""
    asked = []

    def run(data, settings):
        asked.append((settings.attempt, data.tolist()))
        size = {0: 500.0, 1: 300.0 * settings.factor, 2: 10.0, 3: 500.0}
        ess = {"r": np.array([size[x] for x in data.tolist()])}
        table = {"r": np.tile(data[:, None] + 0.0, (1, LEVELS.size))}
        return Report(table, {"r": np.ones(len(data))}, ess, ess, np.where(data == 3, 1, 0), np.ones(len(data)), {})

    settings, problem = Settings(4, 100, 2500), np.array([2, 1, -1, 0, 3])
    found = collect(run, np.arange(4), problem, settings, engine="x", names=("r",), block=2, demands=Demands())
    assert sorted(asked) == sorted(
        [(0, [0, 1]), (0, [2, 3]), (1, [1, 2]), (1, [3, 3]), (2, [2, 3])]  # the last of a short block is repeated
    )
    assert found.runs.tolist() == [1, 2, 3, 3]
    assert found.ok.tolist() == [True, True, False, True]
    assert np.array_equal(found.quantile("r", 0.3), [np.nan, 1, np.nan, 0, 3], equal_nan=True)
    assert "x: 1 of 4 problems (1 nodes) still fail after 3 runs" in found.warnings[0]
    assert "1 of 4 problems keep divergent" in found.warnings[1]


def test_acceptance_is_near_its_target(post):
    assert np.all((post.acceptance > 0.2) & (post.acceptance < 0.4))


def test_ring_area():
    l, r, s = (x.ravel() for x in np.meshgrid([0.01, 1.0, 30.0], [0.02, 2.0], [0.001, 0.5, 0.99], indexing="ij"))
    truth = region.area(l, r) - region.area(s * l, s * r)
    ring = np.exp(np.asarray(log_ring_area(*(x.astype(np.float32) for x in (l, r, s))), np.float64))
    assert np.allclose(ring, truth, rtol=2e-4, atol=1e-9)
    # Near s = 1 the ring is (1 - s) times the slope of the area along (l, r); the difference would be rounding.
    with np.errstate(all="ignore"):
        slope = (region.area(1.0, 2.0) - region.area(0.999, 1.998)) / 0.001
    thin = np.float32(1 - 2**-20)
    assert float(np.exp(log_ring_area(1.0, 2.0, thin))) == pytest.approx(slope * 2**-20, rel=2e-3)


def test_bad_arguments():
    settings = ({"chains": 1}, {"draws": 0}, {"warmup": 3}, {"seed": -1}, {"prior_scale2": 0.0}, {"particles": 1})
    groups = ({"groups": [0]}, {"groups": [0.0] * 4}, {"groups": [-1] * 4})
    for bad in (*settings, *groups, {"step": 0.0}):
        with pytest.raises(InputError):
            mhaar(*COUNTS, **(SHORT | bad))
    with pytest.raises(InputError, match="at least one node"):
        mhaar(0, 0, 0, 5)


@pytest.mark.slow
def test_shared_is_the_pooled_posterior():
    counts = (np.array([2, 5, 1, 4]), 12, np.array([3, 2, 4, 6]), 12)
    shared = mhaar(*counts, groups=np.zeros(4, int), **(CHECK | {"particles": 400, "draws": 4000}))
    exact = pooled_posterior(*counts)
    for name in ("r", "l"):
        agree(shared, name, 0, [exact.quantile(name, q) for q in (0.05, 0.5, 0.95)])


@pytest.mark.slow
def test_published_check_values():
    settings = {"seed": 3, "keep_draws": True}
    exact = [2.12, 3.58, 7.05]
    plain, strong = mhaar(10, 100, 10, 100, **settings), mhaar(10, 100, 10, 100, strength=True, **settings)
    assert plain.ok[0]
    assert strong.ok[0]
    levels = (0.05, 0.5, 0.95)
    assert np.allclose([plain.quantile("r", q)[0] for q in levels], exact, atol=0.25)
    agree(plain, "r", 0, exact)
    assert np.allclose([strong.quantile("r", q)[0] for q in levels], [2.0, 3.2, 6.9], atol=0.25)
    agree(strong, "r", 0, strength_quantiles((10, 100, 10, 100))["r"])
