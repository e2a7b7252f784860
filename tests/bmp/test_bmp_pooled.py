import jax
import numpy as np
import pytest
from bmp_oracle import QUANTILES, posterior_quantiles
from scipy.integrate import dblquad
from scipy.stats import binom

from jaxaudit.bmp import exact_posterior, pooled_posterior, region
from jaxaudit.bmp.pooled import pooled_at_scales, pooled_data, shared_log_likelihood
from jaxaudit.runtime.checks import InputError


def table(post):
    return np.array([[post.quantile(name, q) for q in QUANTILES] for name in "rl"])


def simulate(nodes, l, r, trials, seed):
    rng = np.random.default_rng(seed)
    corners, (u, v) = region.vertices(l, r), rng.random((2, nodes, 1))
    alpha, beta = (corners[0] + u * (corners[1] - corners[0]) + v * (corners[3] - corners[0])).T
    n_in = rng.binomial(trials - 4, 0.3, nodes) + 2
    n_out = trials - n_in
    return rng.binomial(n_out, alpha), n_out, rng.binomial(n_in, beta), n_in


@pytest.mark.parametrize("case", [(1, 90, 8, 10), (50, 100, 50, 100), (0, 1, 0, 100)])
def test_one_node_is_the_exact_posterior(case):
    exact = exact_posterior(*case)
    single = [[exact.quantile(name, q)[0] for q in QUANTILES] for name in "rl"]
    assert np.allclose(table(pooled_posterior(*case)), single, atol=0.01)


def test_twenty_nodes_against_the_quadrature_oracle():
    truth = posterior_quantiles((10, 100, 10, 100), (10.0,), power=20)[10.0]
    assert np.allclose(table(pooled_posterior(np.full(20, 10), 100, 10, 100)), truth, atol=0.03)


def test_likelihood_is_the_sum_of_naive_integrals():
    cases, (l, r) = [(2, 9, 1, 7), (0, 5, 3, 4)], (0.8, 1.7)
    corners, total = region.vertices(l, r), 0.0
    for fp, n_out, fn, n_in in cases:

        def density(v, u, fp=fp, n_out=n_out, fn=fn, n_in=n_in):
            alpha, beta = corners[0] + u * (corners[1] - corners[0]) + v * (corners[3] - corners[0])
            return binom.pmf(fp, n_out, alpha) * binom.pmf(fn, n_in, beta)

        mode = binom.pmf(fp, n_out, fp / n_out) * binom.pmf(fn, n_in, fn / n_in)
        total += np.log(dblquad(density, 0, 1, 0, 1)[0] / mode)
    rows = np.array([*cases, (0, 0, 1, 2)])  # the last has no data on a side and says nothing
    with jax.enable_x64(True):
        data, nodes = pooled_data(rows, np.float64)
        assert nodes == 2
        assert float(shared_log_likelihood(np.float64(l), np.float64(r), data)) == pytest.approx(total, abs=1e-7)
        slope = jax.grad(shared_log_likelihood, argnums=(0, 1))(l, r, data)
        for axis in (0, 1):
            up, down = np.array([l, r]), np.array([l, r])
            up[axis] += 1e-5
            down[axis] -= 1e-5
            difference = (shared_log_likelihood(*up, data) - shared_log_likelihood(*down, data)) / 2e-5
            assert float(slope[axis]) == pytest.approx(float(difference), rel=1e-5)


def test_equal_tuples_count_as_often_as_they_occur():
    one, many = pooled_posterior([3, 8], 20, [4, 4], 20), pooled_posterior([3] * 9 + [8], 20, 4, 20)
    apart = pooled_posterior([3, 3, 3, 8, 3, 3, 3, 3, 3, 3], 20, 4, 20)
    assert np.array_equal(table(many), table(apart))
    assert not np.allclose(table(one), table(many), atol=0.02)
    assert many.nodes == 10


def test_many_nodes_find_the_truth():
    post = pooled_posterior(*simulate(300, 1.0, 2.0, 40, seed=0))
    (r_low, _, r_high), (l_low, _, l_high) = table(post)
    assert r_low - 0.1 < 2.0 < r_high + 0.1
    assert r_high - r_low < 0.8
    assert l_low - 0.1 < 1.0 < l_high + 0.1
    assert l_high - l_low < 0.8


def test_scales_are_single_posteriors():
    counts = ([3, 8, 2], 20, [4, 4, 9], 20)
    for post, scale2 in zip(pooled_at_scales(*counts, (1.0, 10.0)), (1.0, 10.0), strict=True):
        own = pooled_posterior(*counts, prior_scale2=scale2)
        assert (post.prior_scale2, post.nodes) == (scale2, 3)
        assert np.allclose(table(post), table(own), atol=0.005, rtol=0.002)


@pytest.mark.slow
def test_cora_size():
    post = pooled_posterior(*simulate(2708, 1.0, 2.0, 64, seed=1))
    (r_low, _, r_high), (l_low, _, l_high) = table(post)
    assert r_low - 0.05 < 2.0 < r_high + 0.05
    assert r_high - r_low < 0.4
    assert l_low - 0.05 < 1.0 < l_high + 0.05
    assert l_high - l_low < 0.4


def test_bad_arguments():
    with pytest.raises(InputError, match="at least one node"):
        pooled_posterior([0, 0], [5, 0], 0, [0, 5])
    with pytest.raises(InputError):
        pooled_posterior(1, 5, 1, 5).quantile("x", 0.5)


@pytest.mark.parametrize("scale2", [1.0, 100.0])
def test_walls_and_plateaus_against_a_brute_grid(scale2):
    """Attacks of one strength, not uniform in any region: the posterior has a wall below and a plateau above."""
    rng = np.random.default_rng(3)
    fp, fn = rng.binomial(12, 0.1, 200), rng.binomial(12, 0.3, 200)
    post = pooled_posterior(fp, 12, fn, 12, prior_scale2=scale2)
    # Cells between geometric borders, the density at their middle: 200 x 200 points by the two-dimensional rule.
    borders = np.geomspace(1e-3, 60, 201)
    x = np.sqrt(borders[1:] * borders[:-1])
    l, r = (axis.ravel() for axis in np.meshgrid(x, x, indexing="ij"))
    with jax.enable_x64(True):
        data, _ = pooled_data(np.stack([fp, np.full(200, 12), fn, np.full(200, 12)], axis=1), np.float64)
        value = np.asarray(jax.jit(lambda p: jax.lax.map(lambda q: shared_log_likelihood(q[0], q[1], data), p))((l, r)))
    log_p = (value - (l**2 + r**2) / (2 * scale2)).reshape(200, 200)
    mass = np.exp(log_p - log_p.max()) * np.outer(np.diff(borders), np.diff(borders))
    for name, axis in (("l", 1), ("r", 0)):
        cdf = np.append(0, np.cumsum(mass.sum(axis=axis)))
        for q in QUANTILES:
            truth = np.interp(q, cdf / cdf[-1], borders)
            assert post.quantile(name, q) == pytest.approx(truth, rel=0.01, abs=0.01)
