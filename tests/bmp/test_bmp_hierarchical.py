import jax
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import chi2, multivariate_t, norm

from jaxaudit.bmp import exact_posterior, region
from jaxaudit.bmp.chains import failed_diagnostics
from jaxaudit.bmp.counts import distinct, validate
from jaxaudit.bmp.hierarchical import (
    _HIGH,
    _LOW,
    _POINTS,
    HYPERPARAMETERS,
    _hat_means,
    _likelihoods,
    _log_density,
    hierarchical_posterior,
)  # fmt: skip
from jaxaudit.runtime.checks import InputError

GRID = np.linspace(_LOW, _HIGH, _POINTS)
COUNTS = (
    np.array([4, 7, 2, 4, 0, 9, 4, 3]),
    34,
    np.array([10, 9, 28, 10, 0, 12, 20, 8]),
    np.array([30] * 4 + [0] + [30] * 3),
)


def simulate(nodes, trials, mu, tau, seed):
    rng = np.random.default_rng(seed)
    l, r = np.exp(np.array(mu)[:, None] + np.array(tau)[:, None] * rng.standard_normal((2, nodes)))
    corners, (u, v) = region.vertices(l, r), rng.random((2, nodes, 1))
    alpha, beta = (corners[:, 0] + u * (corners[:, 1] - corners[:, 0]) + v * (corners[:, 3] - corners[:, 0])).T
    n_in = rng.binomial(trials - 2, 0.5, nodes) + 1
    return (rng.binomial(trials - n_in, alpha), trials - n_in, rng.binomial(n_in, beta), n_in), l, r


@pytest.fixture(scope="module")
def post():
    return hierarchical_posterior(*COUNTS, chains=2, warmup=200, draws=400, seed=1)


@pytest.fixture(scope="module")
def data():
    tuples, index = distinct(validate(*COUNTS))
    return _likelihoods(tuples, np.bincount(index[index >= 0]))


@pytest.mark.parametrize(("mu", "tau"), [(0.3, 0.5), (-2.0, 2.0), (2.5, 1.0), (0.31, 1e-4)])
def test_hat_means_against_integration(mu, tau):
    with jax.enable_x64(True):
        weights = np.asarray(_hat_means(np.float64(mu), np.float64(tau)))
    assert weights.sum() == pytest.approx(1, abs=1e-6)
    for a in (0, 1, 17, 20, _POINTS - 1):
        values = np.eye(_POINTS)[a]  # np.interp holds the ends' values beyond the grid
        points = np.clip([mu, *GRID[max(a - 1, 0) : a + 2]], mu - 9 * tau, mu + 9 * tau)

        def mass(x, values=values):
            return np.interp(x, GRID, values) * norm.pdf(x, mu, tau)

        naive = quad(mass, mu - 9 * tau, mu + 9 * tau, points=np.unique(points), limit=400)[0]
        assert weights[a] == pytest.approx(naive, abs=2e-6)


def test_log_density_against_naive_sums(data):
    fine = np.linspace(_LOW - 3, _HIGH + 3, 3001)

    def naive(position):
        total = 0.0
        weights = []
        for k in (0, 1):
            density = norm.pdf(fine, position[k], np.exp(position[k + 2]))
            hats = np.array([np.interp(fine, GRID, row) for row in np.eye(_POINTS)])
            weights.append(hats @ density / density.sum())
        for likelihood, times in zip(np.asarray(data.likelihood), data.times, strict=True):
            total += times * np.log(weights[0] @ likelihood @ weights[1])
        tau = np.exp(position[2:])
        return total + norm.logpdf(position[:2], 0.5, 1).sum() + norm.logpdf(tau).sum() + position[2:].sum()

    points = np.array([[0.2, 0.6, -1.0, -0.5], [1.0, 0.0, 0.0, -1.5], [-0.5, 1.2, -0.7, 0.1]])
    with jax.enable_x64(True):
        found = np.array([float(_log_density(p, data)) for p in points])
    assert np.allclose(np.diff(found), np.diff([naive(p) for p in points]), atol=2e-3)


def test_draws_agree_with_importance_sampling(post, data):
    draws = np.stack([post.draws[name].ravel() for name in HYPERPARAMETERS], axis=1)
    draws[:, 2:] = np.log(draws[:, 2:])
    proposal = multivariate_t(draws.mean(axis=0), 1.3 * np.cov(draws.T), df=5, seed=0)
    points = proposal.rvs(6000)
    with jax.enable_x64(True):
        target = np.asarray(jax.jit(jax.vmap(_log_density, (0, None)))(points, data))
    weight = np.exp(target - proposal.logpdf(points) - (target - proposal.logpdf(points)).max())
    weight /= weight.sum()
    assert 1 / (weight**2).sum() > 500
    for k, name in enumerate(HYPERPARAMETERS):
        mean = weight @ points[:, k]
        error = np.sqrt(weight @ (points[:, k] - mean) ** 2 * (1 / post.ess_bulk[name] + (weight**2).sum()))
        assert abs(draws[:, k].mean() - mean) < 4 * error, name


def test_nodes_are_shrunk(post):
    exact, low, high = exact_posterior(*COUNTS), post.quantile("r", 0.05), post.quantile("r", 0.95)
    ok = exact.auditable
    assert np.array_equal(np.isfinite(low), ok)
    assert (high / low)[2] < 0.5 * exact.quantile("r", 0.95)[2] / exact.quantile("r", 0.05)[2]  # it says little itself
    for name in ("r", "l"):
        medians, alone = post.quantile(name, 0.5)[ok], exact.quantile(name, 0.5)[ok]
        assert np.log(medians).std() < np.log(alone).std()
    equal = post.quantile("r", 0.3)
    assert equal[0] == equal[3]  # equal counts


def test_equal_seeds_and_shapes(post):
    again = hierarchical_posterior(*COUNTS, chains=2, warmup=200, draws=400, seed=1)
    other = hierarchical_posterior(*COUNTS, chains=2, warmup=200, draws=400, seed=2)
    assert np.array_equal(again.draws["mu_r"], post.draws["mu_r"])
    assert not np.array_equal(other.draws["mu_r"], post.draws["mu_r"])
    assert post.draws["tau_l"].shape == (2, 400)
    assert post.nodes == 7
    assert (post.draws["tau_l"] > 0).all()
    assert post.warnings == failed_diagnostics("partial pooling", post.rhat, post.ess_bulk, post.divergences)


def test_warnings_name_what_fails():
    assert failed_diagnostics("partial pooling", {"mu_r": 1.0}, {"mu_r": 400.0}, 0) == ()
    assert "R-hat of mu_r" in failed_diagnostics("partial pooling", {"mu_r": np.nan}, {"mu_r": 400.0}, 0)[0]
    assert "ESS of mu_r" in failed_diagnostics("partial pooling", {"mu_r": 1.0}, {"mu_r": 399.0}, 0)[0]
    assert "2 divergent" in failed_diagnostics("partial pooling", {"mu_r": 1.0}, {"mu_r": 400.0}, 2)[0]


def test_bad_arguments():
    for bad in ({"chains": 1}, {"draws": 0}, {"warmup": 3}, {"seed": -1}):
        with pytest.raises(InputError):
            hierarchical_posterior(*COUNTS, **bad)
    with pytest.raises(InputError, match="two nodes"):
        hierarchical_posterior([1, 0], [5, 0], 1, 5)


@pytest.mark.slow
def test_recovers_the_population():
    counts, l, r = simulate(800, 64, (0.3, 0.7), (0.4, 0.3), 1)
    post = hierarchical_posterior(*counts)
    for name, truth in zip(HYPERPARAMETERS, (0.3, 0.7, 0.4, 0.3), strict=True):
        low, high = np.quantile(post.draws[name], [0.01, 0.99])
        assert low < truth < high
    # The nodes share the population's estimate: their coverage is nominal over data sets, not within one.
    for name, truth in (("l", l), ("r", r)):
        covered = (post.quantile(name, 0.05) <= truth) & (truth <= post.quantile(name, 0.95))
        print(f"90 % intervals of the nodes' {name} cover {covered.mean():.3f}")


@pytest.mark.slow
def test_simulation_based_calibration():
    rng, ranks, covered = np.random.default_rng(0), [], []
    for seed in range(100):
        mu, tau = rng.normal(0.5, 1, 2), np.abs(rng.standard_normal(2))
        counts, l, r = simulate(28, 40, mu, tau, seed)
        post = hierarchical_posterior(*counts, seed=seed, chains=2, warmup=200, draws=400)
        nodes = (("l", l), ("r", r))
        covered.append([((post.quantile(n, 0.05) <= x) & (x <= post.quantile(n, 0.95))).mean() for n, x in nodes])
        truth = dict(zip(HYPERPARAMETERS, (*mu, *tau), strict=True))
        ranks.append([(post.draws[name] < truth[name]).mean() for name in HYPERPARAMETERS])
    mean, error = np.mean(covered, axis=0), np.std(covered, axis=0) / 10
    print(f"90 % intervals of the nodes' (l, r) cover {mean}, standard error {error}")
    assert (np.abs(mean - 0.9) < 3 * error).all()
    for name, column in zip(HYPERPARAMETERS, np.array(ranks).T, strict=True):
        histogram = np.histogram(column, bins=5, range=(0, 1))[0]
        p = chi2.sf(((histogram - 20) ** 2 / 20).sum(), 4)
        print(f"SBC {name}: {histogram}, p {p:.3f}")
        assert p > 0.001
