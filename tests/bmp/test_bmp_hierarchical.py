import jax
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, multivariate_t, norm

from jaxaudit.bmp import exact_posterior, region
from jaxaudit.bmp.chains import failed_diagnostics
from jaxaudit.bmp.counts import distinct, validate
from jaxaudit.bmp.hierarchical import (
    HYPERPARAMETERS,
    HierarchicalPosterior,
    _beyond_the_grid,
    hierarchical_posterior,
)
from jaxaudit.bmp.population import (
    GRID,
    hat_means,
    log_density,
    node_distributions,
    population_data,
    population_points,
)
from jaxaudit.bmp.population_calibration import calibrate_populations, simulate_populations
from jaxaudit.runtime.checks import InputError

COUNTS = (
    np.array([4, 7, 2, 4, 0, 9, 4, 3]),
    34,
    np.array([10, 9, 28, 10, 0, 12, 20, 8]),
    np.array([30] * 4 + [0] + [30] * 3),
)
SHORT = {"chains": 2, "warmup": 200, "draws": 400}


def rates(l, r, rng):
    """Error rates uniform in the regions of (l, r)."""
    corners, (u, v) = region.vertices(l, r), rng.random((2, l.size, 1))
    return (corners[:, 0] + u * (corners[:, 1] - corners[:, 0]) + v * (corners[:, 3] - corners[:, 0])).T


def simulate(nodes, trials, mu, tau, seed):
    rng = np.random.default_rng(seed)
    l, r = np.exp(np.array(mu)[:, None] + np.array(tau)[:, None] * rng.standard_normal((2, nodes)))
    alpha, beta = rates(l, r, rng)
    n_in = rng.binomial(trials - 2, 0.5, nodes) + 1
    return (rng.binomial(trials - n_in, alpha), trials - n_in, rng.binomial(n_in, beta), n_in), l, r


@pytest.fixture(scope="module")
def post():
    return hierarchical_posterior(*COUNTS, **SHORT, seed=1)


@pytest.fixture(scope="module")
def data():
    tuples, index = distinct(validate(*COUNTS))
    return population_data(tuples, np.bincount(index[index >= 0]))


@pytest.fixture(scope="module")
def weights():
    return jax.jit(hat_means)


@pytest.mark.parametrize(("mu", "tau"), [(0.3, 0.5), (-2.0, 2.0), (2.5, 1.0), (0.31, 1e-4)])
def test_hat_means_against_integration(mu, tau, weights):
    bounds = (None, mu - 0.4 * tau, mu + 1.7 * tau)
    with jax.enable_x64(True):
        found = [np.asarray(weights(mu, tau, below)) for below in bounds]
    for below, means in zip(bounds, found, strict=True):
        top = mu + 9 * tau if below is None else below
        assert means.sum() == pytest.approx(norm.cdf(top, mu, tau), abs=1e-6)
        for a in (0, 1, 8, 20, GRID.size - 1):
            values = np.eye(GRID.size)[a]  # np.interp holds the ends' values beyond the grid
            points = np.clip([mu, *GRID[max(a - 1, 0) : a + 2]], mu - 9 * tau, top)

            def mass(x, values=values):
                return np.interp(x, GRID, values) * norm.pdf(x, mu, tau)

            naive = quad(mass, mu - 9 * tau, top, points=np.unique(points), limit=400)[0]
            assert means[a] == pytest.approx(naive, abs=2e-6)


def test_log_density_against_naive_sums(data):
    fine = np.linspace(GRID[0] - 3, GRID[-1] + 3, 4001)

    def naive(position):
        total = 0.0
        weights = []
        for k in (0, 1):
            density = norm.pdf(fine, position[k], np.exp(position[k + 2]))
            hats = np.array([np.interp(fine, GRID, row) for row in np.eye(GRID.size)])
            weights.append(hats @ density / density.sum())
        for likelihood, times in zip(np.asarray(data.likelihood), data.times, strict=True):
            total += times * np.log(weights[0] @ likelihood @ weights[1])
        tau = np.exp(position[2:])
        return total + norm.logpdf(position[:2], 0.5, 1).sum() + norm.logpdf(tau).sum() + position[2:].sum()

    points = np.array([[0.2, 0.6, -1.0, -0.5], [1.0, 0.0, 0.0, -1.5], [-0.5, 1.2, -0.7, 0.1]])
    with jax.enable_x64(True):
        found = np.array([float(log_density(p, data)) for p in points])
    assert np.allclose(np.diff(found), np.diff([naive(p) for p in points]), atol=2e-3)


# l and r of the median node 1.3 and 2; half of the nodes beyond the grid's upper end; near its lower; hardly any spread
@pytest.mark.parametrize(
    ("mu", "tau"),
    [((0.3, 0.7), (0.5, 0.8)), ((2.6, 0.5), (1.0, 0.3)), ((-3.5, -3.0), (1.0, 0.7)), ((0.4, 0.9), (0.01, 0.02))],
)
def test_nodes_against_draws_from_the_model(data, mu, tau):
    """Nothing but the model: (l, r), then rates in the region, weighted by the binomials of the counts."""
    rng = np.random.default_rng(0)
    log_l, log_r = np.array(mu)[:, None] + np.array(tau)[:, None] * rng.standard_normal((2, 200_000))
    alpha, beta = np.clip(rates(np.exp(log_l), np.exp(log_r), rng), 0, 1)
    position = np.array([[*mu, *np.log(tau)]])
    points = population_points(position)
    assert np.allclose(points, np.array(mu)[:, None] + np.array(tau)[:, None] * np.linspace(-6, 6, 121))
    with jax.enable_x64(True):
        below = np.asarray(node_distributions(position, points, data))
    tuples = distinct(validate(*COUNTS))[0]
    for row, counts in zip(below, tuples, strict=False):
        fp, n_out, fn, n_in = counts
        weight = binom.pmf(fp, n_out, alpha) * binom.pmf(fn, n_in, beta)
        weight /= weight.sum()
        for x, cdf, at in zip((log_l, log_r), row, points, strict=True):
            naive = [weight[x <= t].sum() for t in at[20:101:10]]
            assert cdf[20:101:10] == pytest.approx(naive, abs=4 * 0.5 * np.sqrt((weight**2).sum()) + 0.004)


def test_population_points_are_quantiles_of_the_mixture():
    positions = np.array([[0.0, 1.0, 0.0, -1.0], [2.0, 1.0, -2.0, 0.5], [0.5, -1.0, -1.0, 0.0]])
    points = population_points(positions)
    for k in (0, 1):
        mixture = norm.cdf((points[k][:, None] - positions[:, k]) / np.exp(positions[:, k + 2])).mean(axis=1)
        assert mixture == pytest.approx(norm.cdf(np.linspace(-6, 6, 121)), rel=1e-6)


def test_draws_agree_with_importance_sampling(post, data):
    draws = np.stack([post.draws[name].ravel() for name in HYPERPARAMETERS], axis=1)
    draws[:, 2:] = np.log(draws[:, 2:])
    proposal = multivariate_t(draws.mean(axis=0), 1.3 * np.cov(draws.T), df=5, seed=0)
    points = proposal.rvs(6000)
    with jax.enable_x64(True):
        target = np.asarray(jax.jit(jax.vmap(log_density, (0, None)))(points, data))
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
    ratios = [np.log(x.quantile("r", 0.5) / x.quantile("l", 0.5))[ok] for x in (post, exact)]
    assert np.corrcoef(ratios)[0, 1] > 0  # l and r are not exchanged
    equal = post.quantile("r", 0.3)
    assert equal[0] == equal[3]  # equal counts


def test_equal_seeds_shapes_and_order_of_nodes(post):
    order = np.array([5, 0, 7, 2, 4, 6, 1, 3])
    again = hierarchical_posterior(*(np.broadcast_to(x, 8)[order] for x in COUNTS), **SHORT, seed=1)
    other = hierarchical_posterior(*COUNTS, **SHORT, seed=2)
    assert np.array_equal(again.draws["mu_r"], post.draws["mu_r"])
    for name in ("l", "r"):
        assert np.array_equal(again.quantile(name, 0.1), post.quantile(name, 0.1)[order], equal_nan=True)
    assert not np.array_equal(other.draws["mu_r"], post.draws["mu_r"])
    assert post.draws["tau_l"].shape == (2, 400)
    assert post.nodes == 7
    assert (post.draws["tau_l"] > 0).all()
    failed = failed_diagnostics("partial pooling", post.rhat, post.ess_bulk, post.divergences)
    assert post.warnings == failed + _beyond_the_grid(post.draws)


def test_warnings_name_what_fails():
    assert failed_diagnostics("partial pooling", {"mu_r": 1.0}, {"mu_r": 400.0}, 0) == ()
    assert "R-hat of mu_r" in failed_diagnostics("partial pooling", {"mu_r": np.nan}, {"mu_r": 400.0}, 0)[0]
    assert "ESS of mu_r" in failed_diagnostics("partial pooling", {"mu_r": 1.0}, {"mu_r": 399.0}, 0)[0]
    assert "2 divergent" in failed_diagnostics("partial pooling", {"mu_r": 1.0}, {"mu_r": 400.0}, 2)[0]


def test_a_median_beyond_the_grid_is_told():
    inside = np.linspace(-5.8, 2.63, 100)
    high, low = inside.copy(), inside.copy()
    high[:6], low[:6] = 2.65, -5.82
    assert _beyond_the_grid({"mu_l": inside, "mu_r": inside}) == ()
    assert "median node's l lies above 14 in 6%" in _beyond_the_grid({"mu_l": high, "mu_r": inside})[0]
    assert "median node's r lies below 0.003 in 6%" in _beyond_the_grid({"mu_l": inside, "mu_r": low})[0]
    found = hierarchical_posterior(np.zeros(8, int), 34, np.zeros(8, int), 30, **SHORT)
    assert sum("above 14" in sentence for sentence in found.warnings) == 2
    assert (found.quantile("r", 0.95) > 14).all()  # the node's distribution goes on where the grid ends


def test_quantiles_from_distribution_functions():
    points = {"l": np.linspace(-5, 6, 221), "r": np.linspace(-9, 5, 281)}
    below = {name: np.array([norm.cdf(x, 0.5, 1), norm.cdf(x, 1.0, 0.3)]) for name, x in points.items()}
    made = HierarchicalPosterior({}, {}, {}, {}, 0, 3, (), np.array([1, -1, 0, 1]), points, below)
    expected = np.exp(norm.ppf(0.2, [1.0, np.nan, 0.5, 1.0], [0.3, 1, 1, 0.3]))
    for name in ("l", "r"):
        assert np.allclose(made.quantile(name, 0.2), expected, rtol=2e-3, equal_nan=True)


def test_simulated_rates_fill_the_regions():
    trials = 1_000_000
    data = simulate_populations(60, 30, trials, trials, seed=2)
    l, r, alpha, beta = data.truth["l"], data.truth["r"], data.fp / trials, data.fn / trials
    inside = region.contains(alpha, beta, l + 0.02, r + 0.02)
    assert inside[(alpha > 0.005) & (beta > 0.005) & (alpha < 0.995) & (beta < 0.995)].mean() > 0.99
    assert abs((alpha + beta - 1).mean()) < 0.05  # the region is symmetric about (1/2, 1/2)
    area = np.where((l > 3) & (r > 3), 1.0, np.nan)
    assert np.nanstd(alpha * area) == pytest.approx(12**-0.5, abs=0.03)  # nearly the whole square
    spread = (np.log(l) - np.log(l).mean(axis=1, keepdims=True)).std(axis=1, ddof=1) / data.truth["tau_l"]
    assert abs(spread.mean() - 1) < 0.06


def test_bad_arguments():
    for bad in ({"chains": 1}, {"draws": 0}, {"warmup": 3}, {"seed": -1}):
        with pytest.raises(InputError):
            hierarchical_posterior(*COUNTS, **bad)
    with pytest.raises(InputError, match="two nodes"):
        hierarchical_posterior([1, 0], [5, 0], 1, 5)
    with pytest.raises(InputError, match="nodes"):
        simulate_populations(3, 1, 5, 5)


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
    found = calibrate_populations(simulate_populations(200, 30, 20, 20), 20, 20)
    for name, ranks in found.ranks.items():
        print(f"SBC {name}: {ranks.histogram}, p {ranks.p:.3f}")
        assert ranks.histogram.sum() == 200
        assert ranks.p > 0.001
    for name, (share, error) in found.covered.items():
        print(f"90 % intervals of the nodes' {name} cover {share:.3f}, standard error {error:.3f}")
        assert abs(share - 0.9) < 3 * error
