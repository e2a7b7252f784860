import jax
import numpy as np
import pytest
from bmp_oracle import QUANTILES, posterior_quantiles
from scipy.stats import chisquare

from jaxaudit.bmp import exact_posterior, region
from jaxaudit.bmp import posterior as module
from jaxaudit.bmp.counts import validate
from jaxaudit.bmp.pairs import deposit, lattice
from jaxaudit.runtime.checks import InputError

EASY = [(1, 90, 8, 10), (0, 1, 0, 1), (500, 1000, 0, 1), (20, 1000, 980, 1000)]
HARD = [
    (10, 100, 10, 100), (50, 100, 50, 100), (1, 1, 0, 1), (1, 1, 1, 1), (0, 1, 0, 1000), (0, 1000, 0, 1),
    (0, 1000, 0, 1000), (1000, 1000, 1000, 1000), (1000, 1000, 0, 1000), (500, 1000, 500, 1000), (0, 1, 500, 1000),
    (1000, 1000, 1, 1), (1, 1000, 1, 1), (0, 32, 32, 32), (3, 32, 20, 32), (32, 32, 0, 32), (300, 1000, 500, 1000),
    (900, 1000, 3, 5), (0, 30, 29, 30), (5, 1000, 990, 1000), (7, 13, 0, 51), (13, 13, 51, 51), (40, 64, 1, 4),
]  # fmt: skip
SCALES2 = (1.0, 10.0, 100.0)


def table(post):
    return np.stack([[post.quantile(name, q) for q in QUANTILES] for name in "rl"]).transpose(2, 0, 1)


def check(cases, fine):
    truth = [posterior_quantiles(case, SCALES2, fine) for case in cases]
    for scale2 in SCALES2:
        found = table(exact_posterior(*np.transpose(cases), prior_scale2=scale2))
        error = np.abs(found - [t[scale2] for t in truth])
        assert error.max() < 0.02, (scale2, cases[int(error.max(axis=(1, 2)).argmax())], error.max())


def test_against_quadrature():
    check(EASY, fine=False)


@pytest.mark.slow
def test_against_quadrature_on_the_full_grid():
    check(EASY + HARD, fine=True)


def test_published_check_values():
    found = table(exact_posterior([10, 1, 50], [100, 90, 100], [10, 8, 50], [100, 10, 100]))
    assert np.allclose(found[:, 0], [[2.12, 3.58, 7.05], [1.45, 3.70, 7.17], [0.07, 1.43, 5.77]], atol=0.02)
    assert np.allclose(found[1, 1], [0.17, 1.53, 5.80], atol=0.02)


def test_prior_tables_against_monte_carlo():
    """Z = int prior / area over the quadrant: (P+Q)(r) P(l) + P(r) Q(l), by naive sampling of the prior."""
    s, upper, odds = module._prior_tables(10.0)
    l, r = np.abs(np.random.default_rng(0).normal(0, np.sqrt(10), (2, 1_000_000)))
    for s_r, s_l in ((-1.0, 0.5), (2.0, 1.0)):
        P_r, P_l = np.interp([s_r, s_l], s, upper)
        Q_r, Q_l = np.interp([s_r, s_l], s, odds)
        keep = (r > np.logaddexp(0, s_r)) & (l > np.logaddexp(0, s_l))
        naive = (keep / region.area(l, r)).mean()
        assert (P_r + Q_r) * P_l + P_r * Q_l == pytest.approx(naive, rel=0.01)


def test_exchanging_the_errors_exchanges_l_and_r():
    a, b = exact_posterior(3, 40, 20, 30), exact_posterior(20, 30, 3, 40)
    for q in QUANTILES:
        assert np.allclose(a.quantile("r", q), b.quantile("l", q), atol=0.01)


def test_a_reversed_test_leaks_as_much():
    a, b = exact_posterior(3, 40, 20, 30), exact_posterior(37, 40, 10, 30)
    for q in QUANTILES:
        assert np.allclose(a.quantile("r", q), b.quantile("r", q), atol=0.01)


def test_quantiles_increase_with_the_level_and_interpolate():
    post = exact_posterior([2, 0], 30, [5, 0], 30)
    levels = np.linspace(0.001, 0.999, 200)
    assert np.all(np.diff([post.quantile("r", q) for q in levels], axis=0) >= 0)
    assert np.allclose(post.quantile("l", 0.05), post.quantile("l", 0.05 + 1e-9), atol=1e-6)


def test_a_node_does_not_depend_on_the_others():
    rng = np.random.default_rng(3)
    n_out, n_in = rng.integers(1, 60, (2, 150))
    fp, fn = rng.integers(0, n_out + 1), rng.integers(0, n_in + 1)
    whole = table(exact_posterior(fp, n_out, fn, n_in))
    order = rng.permutation(150)
    shuffled = table(exact_posterior(fp[order], n_out[order], fn[order], n_in[order]))
    alone = table(exact_posterior(fp[7], n_out[7], fn[7], n_in[7]))
    assert np.array_equal(whole[order], shuffled)
    assert np.array_equal(whole[7], alone[0])


def test_no_data_is_nan_and_duplicates_are_computed_once(monkeypatch):
    blocks = []
    original = module.map_blocks
    monkeypatch.setattr(
        module, "map_blocks", lambda f, rows, shared: blocks.append(len(rows)) or original(f, rows, shared)
    )
    post = exact_posterior([0, 0, 3, 3], [100, 0, 9, 9], [0, 0, 1, 1], [0, 50, 9, 9])
    assert blocks == [1]
    assert post.auditable.tolist() == [False, False, True, True]
    values = post.quantile("r", 0.5)
    assert np.isnan(values[:2]).all()
    assert values[2] == values[3] > 0
    assert np.isnan(exact_posterior(0, 0, 0, 0).quantile("l", 0.5)).all()
    assert exact_posterior([], [], [], []).quantile("l", 0.5).shape == (0,)


def test_the_same_bucket_is_not_compiled_again():
    exact_posterior(1, 9, 1, 9)
    before = module._all_nodes._cache_size()
    exact_posterior([2, 3], [40, 41], [4, 4], [9, 8], prior_scale2=1)
    assert module._all_nodes._cache_size() == before


def test_large_counts_stay_finite():
    post = exact_posterior(
        [0, 5 * 10**6, 500_000], [10**7, 10**7, 10**6], [0, 5 * 10**6, 400_000], [10**7, 10**7, 10**6]
    )
    assert np.isfinite(table(post)).all()
    # 1e6 trials: (r*, l*) is known to .005, so the survival of r is (P+Q)(r) P(l*) + P(r) Q(l*) above r*.
    assert post.quantile("r", 0.001)[2] == pytest.approx(np.log(0.6 / 0.5), abs=0.01)


@pytest.mark.parametrize(
    "bad",
    [
        {"fp": 2, "n_out": 1, "fn": 0, "n_in": 1},
        {"fp": 0, "n_out": 1, "fn": 2, "n_in": 1},
        {"fp": -1, "n_out": 1, "fn": 0, "n_in": 1},
        {"fp": 0.5, "n_out": 1, "fn": 0, "n_in": 1},
        {"fp": np.nan, "n_out": 1, "fn": 0, "n_in": 1},
        {"fp": "x", "n_out": 1, "fn": 0, "n_in": 1},
        {"fp": [0, 1], "n_out": [1, 1, 1], "fn": 0, "n_in": 1},
        {"fp": 0, "n_out": 10**8, "fn": 0, "n_in": 1},
        {"fp": 0, "n_out": 1, "fn": 0, "n_in": 1, "prior_scale2": 0},
        {"fp": 0, "n_out": 1, "fn": 0, "n_in": 1, "prior_scale2": np.inf},
    ],
)
def test_bad_arguments(bad):
    with pytest.raises(InputError):
        exact_posterior(**bad)


def test_bad_quantiles():
    post = exact_posterior(1, 9, 1, 9)
    for name, q in (("eps", 0.5), ("r", 0.0), ("r", 1.0)):
        with pytest.raises(InputError):
            post.quantile(name, q)


def test_validate_broadcasts():
    assert validate(1, [2, 3], 0, 4).tolist() == [[1, 2, 0, 4], [1, 3, 0, 4]]


def test_deposit_against_a_loop():
    rng = np.random.default_rng(0)
    position, masses = rng.uniform(-2, 12, 50).astype(np.float32), rng.random((50, 2)).astype(np.float32)
    grid = np.zeros((10, 2))
    for x, mass in zip(np.clip(position, 0, 9), masses, strict=True):
        for node in range(10):
            grid[node] += max(0, 1 - abs(x - node)) * mass
    assert np.allclose(jax.jit(deposit, static_argnums=2)(position, masses, 10), grid, atol=1e-5)


def test_lattice_is_even():
    z = lattice(21, 13)
    u, v = 1 / (1 + np.exp(-z.za)), 1 / (1 + np.exp(-z.zb))
    for x in (u, v, np.mod(u + v, 1)):
        assert np.allclose(np.histogram(x, 10, (0, 1))[0], 61, atol=2)
    assert np.allclose(np.exp(-z.log_weight), u * (1 - u) * v * (1 - v), rtol=1e-4)


def ranks(draws, n_out, n_in, seed):
    """Simulation-based calibration: the posterior bin of the true (l, r), drawn from the model."""
    rng = np.random.default_rng(seed)
    l, r = np.abs(rng.normal(0, np.sqrt(10), (2, draws)))
    corners = region.vertices(l, r)
    u, v = rng.random((2, draws, 1))
    alpha, beta = np.clip(
        corners[:, 0] + u * (corners[:, 1] - corners[:, 0]) + v * (corners[:, 3] - corners[:, 0]), 0, 1
    ).T
    post = exact_posterior(rng.binomial(n_out, alpha), n_out, rng.binomial(n_in, beta), n_in)
    levels = np.arange(1, 10) / 10
    return [
        np.bincount(sum((x > post.quantile(name, q)).astype(int) for q in levels), minlength=10)
        for name, x in (("l", l), ("r", r))
    ]


def test_simulation_based_calibration():
    for counts in ranks(3000, 12, 6, seed=0):
        assert chisquare(counts).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("n_out", "n_in"), [(20, 20), (100, 30), (5, 200)])
def test_simulation_based_calibration_long(n_out, n_in):
    for counts in ranks(40_000, n_out, n_in, seed=1):
        assert chisquare(counts).pvalue > 1e-3
