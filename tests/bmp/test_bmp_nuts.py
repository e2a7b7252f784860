import jax
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import binom, norm

from jaxaudit.bmp import exact_posterior, pooled_nuts, pooled_posterior, region
from jaxaudit.bmp.chains import Demands, by_group, failed_diagnostics
from jaxaudit.bmp.node_chain import parameters_given_rates, prior_tables, rate_target
from jaxaudit.bmp.nuts import _group_data, node_nuts
from jaxaudit.bmp.pooled import pooled_data, shared_log_likelihood
from jaxaudit.runtime.checks import InputError

COUNTS = (np.array([4, 7, 2, 4, 6, 3]), 30, np.array([10, 9, 14, 10, 12, 20]), 30)


@pytest.fixture(scope="module")
def chains():
    return pooled_nuts(*COUNTS, chains=2, warmup=300, draws=600, seed=1)


def agree(nuts, exact):
    """Gated by the chains' own ESS: P(x < exact quantile) is the level, within four standard errors."""
    for name in ("r", "l"):
        for q in (0.05, 0.25, 0.5, 0.75, 0.95):
            share = (getattr(nuts, name) < exact.quantile(name, q)).mean()
            size = min(nuts.ess_bulk[name], nuts.ess_tail[name])
            assert abs(share - q) < 4 * np.sqrt(q * (1 - q) / size), (name, q, share, size)


def test_agrees_with_the_exact_posterior(chains):
    assert min(chains.ess_bulk.values()) > 150
    agree(chains, pooled_posterior(*COUNTS))


def test_shapes_and_diagnostics(chains):
    assert chains.r.shape == chains.l.shape == (2, 600)
    assert chains.nodes == 6
    assert chains.quantile("r", 0.5) == pytest.approx(np.median(chains.r))
    assert set(chains.rhat) == set(chains.ess_bulk) == set(chains.ess_tail) == {"r", "l"}
    assert chains.warnings == failed_diagnostics("NUTS", chains.rhat, chains.ess_bulk, chains.divergences)


def test_seed_decides_the_draws(chains):
    again = pooled_nuts(*COUNTS, chains=2, warmup=300, draws=600, seed=1)
    other = pooled_nuts(*COUNTS, chains=2, warmup=300, draws=600, seed=2)
    assert np.array_equal(again.r, chains.r)
    assert not np.array_equal(other.r, chains.r)


def test_warnings_name_what_fails():
    good = {"r": 1.0, "l": 1.009}, {"r": 400.0, "l": 1e4}, 0
    assert failed_diagnostics("NUTS", *good) == ()
    assert "R-hat of r" in failed_diagnostics("NUTS", {"r": 1.02, "l": 1.0}, good[1], 0)[0]
    assert "ESS of l" in failed_diagnostics("NUTS", good[0], {"r": 500.0, "l": 399.0}, 0)[0]
    assert "3 divergent" in failed_diagnostics("NUTS", good[0], good[1], 3)[0]
    assert len(failed_diagnostics("NUTS", {"r": np.nan}, {"r": np.nan}, 0)) == 2


def test_bad_arguments():
    for bad in ({"chains": 1}, {"draws": 0}, {"warmup": 3}, {"seed": -1}, {"prior_scale2": 0.0}):
        with pytest.raises(InputError):
            pooled_nuts(*COUNTS, **bad)


NODES = (
    np.array([10, 1, 50, 3, 0, 10]), np.array([100, 90, 100, 32, 0, 100]),
    np.array([10, 8, 50, 20, 1, 10]), np.array([100, 10, 100, 32, 2, 100]),
)  # fmt: skip
# The settings of the docstring's example, one compilation for both; the quantiles at LEVELS stand for the draws.
SHORT = {"chains": 2, "warmup": 100, "draws": 500, "demands": Demands(rhat=1.1, ess=20, reruns=0)}


@pytest.fixture(scope="module")
def nodes():
    return node_nuts(*NODES, **SHORT)


def node_agrees(post, exact, node):
    """As ``agree``: the level of an estimated quantile under the exact posterior, within four standard errors."""
    row = post.problem[node]
    grid = np.linspace(0.01, 0.99, 99)
    for name in ("r", "l"):
        size = min(post.ess_bulk[name][row], post.ess_tail[name][row])
        truth = [exact.quantile(name, q)[node] for q in grid]
        for q in (0.1, 0.25, 0.5, 0.75, 0.9):
            level = np.interp(post.quantile(name, q)[node], truth, grid)
            assert abs(level - q) < 4 * np.sqrt(q * (1 - q) / size) + 0.005, (node, name, q, level)


def test_nodes_agree_with_the_exact_posterior(nodes):
    exact = exact_posterior(*NODES)
    assert nodes.ok.all()
    for node in (0, 1, 2, 3):
        node_agrees(nodes, exact, node)


def test_nodes_share_equal_tuples_and_report(nodes):
    assert nodes.problem.tolist() == [2, 0, 3, 1, -1, 2]
    median = nodes.quantile("l", 0.5)
    assert median[0] == median[5]
    assert np.isnan(median).tolist() == [False] * 4 + [True, False]
    assert nodes.runs.shape == nodes.divergences.shape == nodes.acceptance.shape == (4,)
    assert np.all((nodes.acceptance > 0.6) & (nodes.acceptance < 1))
    assert nodes.draws == {}


def test_a_node_does_not_depend_on_the_others(nodes):
    alone = node_nuts(*(x[3:4] for x in NODES), **SHORT)
    assert alone.quantile("r", 0.3)[0] == nodes.quantile("r", 0.3)[3]


def prior_tail(x, scale2, odds):
    def density(y):
        return norm.pdf(y, 0, np.sqrt(scale2)) / (np.expm1(y) if odds else 1)

    return quad(density, x, x + 0.5, limit=200)[0] + quad(density, x + 0.5, x + 60, limit=200)[0]


def test_prior_tables_are_the_tail_masses():
    for scale2 in (0.1, 10.0):
        values, start, spacing = prior_tables(scale2)
        for row in (900, 1600, 2000):
            x = np.logaddexp(0, start + spacing * row)
            truth = [np.log(prior_tail(x, scale2, odds)) for odds in (False, True)]
            assert values[row] == pytest.approx(truth, abs=2e-3)
    # A hundred prior scales out they are still finite, and decreasing.
    far = prior_tables(0.01).values
    assert np.isfinite(far).all()
    assert (np.diff(far, axis=0) <= 0).all()


POINTS = np.array([[0.3, -0.4], [-1.0, -1.2], [1.5, 0.7], [2.5, 3.0]], np.float32)
TARGET = (np.array([3, 20, 7, 15], np.float32), prior_tables(5.0))


def rates_of(z, counts):
    """Error rates, and (l*, r*), of standardised logits."""
    fp, n_out, fn, n_in = counts.astype(float)
    up, down = np.array([fp, fn]) + 1, np.array([n_out - fp, n_in - fn]) + 1
    a, b = 1 / (1 + np.exp(-np.log(up / down) - np.sqrt(1 / up + 1 / down) * z))
    return a, b, *region.tightest(a, b)


def prior_over_area(low_l, low_r, scale2=5):
    """Masses of prior / area on l >= l*, r >= r* by midpoints, finer near the corner: l (m,), r (m,), masses (m, m)."""
    t = (np.arange(1500) + 0.5) * 0.002
    l, r, cell = low_l + np.expm1(t) * 0.7, low_r + np.expm1(t) * 0.7, np.exp(t)
    prior = np.exp(-(l[:, None] ** 2 + r**2) / (2 * scale2))
    return l, r, prior / region.area(l[:, None], r) * cell[:, None] * cell


def test_rate_target_is_the_model():
    """Differences of the log density: binomials, logit Jacobian, and the 2-D integral of prior/area over (l, r)."""

    def naive(z):
        a, b, l, r = rates_of(z, TARGET[0])
        likelihood = binom.logpmf(3, 20, a) + binom.logpmf(7, 15, b)
        return likelihood + np.log(prior_over_area(l, r)[2].sum() * a * (1 - a) * b * (1 - b))

    found = [float(rate_target(z, *TARGET)[0]) for z in POINTS]
    assert np.diff(found) == pytest.approx(np.diff([naive(z) for z in POINTS]), abs=2e-3)
    assert rates_of(POINTS[3], TARGET[0])[0] + rates_of(POINTS[3], TARGET[0])[1] > 1  # the reversed side is in


def test_force_is_the_slope_away_from_the_ridge_and_soft_on_it():
    def density(z):
        return float(rate_target(z, *TARGET)[0])

    far = np.array([-2.0, -2.5], np.float32)
    slope = jax.grad(lambda z: rate_target(z, *TARGET)[0])
    step = np.float32(0.05) * np.eye(2, dtype=np.float32)
    numeric = [(density(far + e) - density(far - e)) / 0.1 for e in step]
    assert np.asarray(slope(far)) == pytest.approx(numeric, abs=0.03)
    ridge = np.array([brentq(lambda x: sum(rates_of(np.array([x, 0.5]), TARGET[0])[:2]) - 1, -2, 5), 0.5])
    assert np.abs(slope(ridge.astype(np.float32))).max() < 10  # of which the Betas' own is 3; 1e6 if not softened


def test_parameters_are_drawn_from_prior_over_area():
    """Given rates: means and tails of the draws against 2-D sums over l >= l*, r >= r*."""
    z = POINTS[0]
    *_, low_l, low_r = rates_of(z, TARGET[0])
    s, weights = rate_target(z, *TARGET)[1]
    keys = jax.random.split(jax.random.key(3), 20000)
    draws = jax.jit(jax.vmap(parameters_given_rates, (0, None, None, None)))(keys, s, weights, TARGET[1])
    l, r, mass = prior_over_area(low_l, low_r)
    mass /= mass.sum()
    for name, x, own in (("l", l, mass.sum(axis=1)), ("r", r, mass.sum(axis=0))):
        for q in (0.1, 0.5, 0.9):
            value = np.interp(q, np.cumsum(own) - own / 2, x)
            assert (np.asarray(draws[name]) < value).mean() == pytest.approx(q, abs=0.012), (name, q)
    both = np.asarray((draws["l"] < np.median(draws["l"])) & (draws["r"] < np.median(draws["r"]))).mean()
    low = mass[np.ix_(np.cumsum(mass.sum(axis=1)) < 0.5, np.cumsum(mass.sum(axis=0)) < 0.5)].sum()
    assert both == pytest.approx(low, abs=0.012)


def test_group_data_is_each_groups_own():
    rows = np.stack(np.broadcast_arrays(*NODES), axis=1)
    _, problem = by_group(np.array([7, 7, 2, 7, 2, 7]), np.array([True] * 4 + [False, True]))
    assert problem.tolist() == [1, 1, 0, 1, 0, 1]
    data = _group_data(rows, problem, 2)
    for g, members in ((0, [2]), (1, [0, 1, 3, 5])):
        own = type(data)(*(x[g] for x in data))
        whole = pooled_data(rows[members], np.float32)[0]
        values = [float(shared_log_likelihood(np.float32(0.7), np.float32(1.3), x)) for x in (own, whole)]
        assert values[0] == pytest.approx(values[1], rel=1e-5)


@pytest.mark.parametrize("bad", [{"rhat": 1.0}, {"ess": 0.0}, {"reruns": 3}, {"reruns": -1}])
def test_bad_demands(bad):
    with pytest.raises(InputError):
        Demands(**bad)


def test_bad_arguments_of_nodes():
    settings = ({"chains": 1}, {"draws": 0}, {"warmup": 3}, {"seed": -1}, {"prior_scale2": 0.0})
    for bad in (*settings, {"groups": [0]}, {"groups": [0.0] * 6}, {"groups": [-1] * 6}):
        with pytest.raises(InputError):
            node_nuts(*NODES, **(SHORT | bad))
    with pytest.raises(InputError, match="at least one node"):
        node_nuts(0, 0, 0, 5)


@pytest.mark.slow
def test_groups_are_the_pooled_posterior():
    labels = np.array([4, 4, 9, 9, 9, -1])
    post = node_nuts(*NODES, groups=labels, draws=2000, keep_draws=True)
    assert post.problem.tolist() == [0, 0, 1, 1, 1, -1]
    assert post.ok.all()
    for row, label in enumerate((4, 9)):
        exact = pooled_posterior(*(x[labels == label] for x in NODES))
        for name in ("r", "l"):
            size = min(post.ess_bulk[name][row], post.ess_tail[name][row])
            for q in (0.05, 0.5, 0.95):
                share = (post.draws[name][row] < exact.quantile(name, q)).mean()
                assert abs(share - q) < 4 * np.sqrt(q * (1 - q) / size), (label, name, q, share)


@pytest.mark.slow
def test_node_defaults_agree_on_hard_counts():
    """Corners, one trial, no errors: all pass within their reruns and agree with the exact posterior."""
    counts = np.array(
        [(0, 1, 0, 1), (0, 32, 32, 32), (0, 100, 0, 100), (40, 64, 38, 64), (1, 1000, 1, 1), (5, 5, 5, 5)]
    ).T
    post, exact = node_nuts(*counts), exact_posterior(*counts)
    assert post.ok.all(), post.warnings
    for node in range(6):
        node_agrees(post, exact, node)


@pytest.mark.slow
def test_defaults_agree_and_do_not_warn():
    nuts = pooled_nuts(np.full(20, 10), 100, 10, 100)
    assert max(nuts.rhat.values()) < 1.01
    assert min(nuts.ess_bulk.values()) > 400
    agree(nuts, pooled_posterior(np.full(20, 10), 100, 10, 100))
