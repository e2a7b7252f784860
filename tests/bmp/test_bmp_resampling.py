import numpy as np
import pytest
from bmp_oracle import QUANTILES
from scipy.stats import norm

from jaxaudit.bmp import pooled_posterior, region
from jaxaudit.bmp.resampling import _combine, bootstrap_posterior, model_weights, weighted_counts
from jaxaudit.runtime.checks import InputError


def simulate(nodes, models, l, r, rho, seed):
    """Decisions of nodes uniform in R(l, r); a share rho of each decision's normal variable is the model's own."""
    rng = np.random.default_rng(seed)
    corners, (u, v) = region.vertices(l, r), rng.random((2, nodes, 1))
    alpha, beta = (corners[0] + u * (corners[1] - corners[0]) + v * (corners[3] - corners[0])).T[..., None]
    member = rng.random((nodes, models)) < 0.5
    z = np.sqrt(rho) * rng.standard_normal((1, models)) + np.sqrt(1 - rho) * rng.standard_normal((nodes, models))
    return z < norm.ppf(np.where(member, 1 - beta, alpha)), rng.random((nodes, models)) < 0.9, member


@pytest.fixture(scope="module")
def decisions():
    said, counted, member = simulate(30, 12, 1.0, 2.0, 0.2, 0)
    counted[:, 3] = False  # a model that counts nowhere
    return said, counted, member


@pytest.fixture(scope="module", params=["jackknife", "bootstrap"])
def post(request, decisions):
    return bootstrap_posterior(*decisions, replicates=4, scheme=request.param, seed=3)


def test_counts_against_a_naive_loop(decisions):
    said, counted, member = decisions
    weights = np.random.default_rng(0).integers(0, 3, (5, 12))
    naive = np.zeros((5, 30, 4), int)
    for b in range(5):
        for i in range(30):
            for k in range(12):
                if counted[i, k]:
                    naive[b, i, 3 if member[i, k] else 1] += weights[b, k]
                    if said[i, k] != member[i, k]:
                        naive[b, i, 2 if member[i, k] else 0] += weights[b, k]
    assert np.array_equal(weighted_counts(said, counted, member, weights), naive)


def test_weights():
    few, many = (model_weights(20, count, "bootstrap", 1) for count in (3, 9))
    assert np.array_equal(few, many[:3])  # a replicate does not depend on how many there are
    assert (many.sum(axis=1) == 20).all()
    assert not np.array_equal(many[0], many[1])
    blocks = model_weights(20, 6, "jackknife", 1)
    assert np.array_equal(np.sort((1 - blocks).sum(axis=1)), [3, 3, 3, 3, 4, 4])
    assert ((1 - blocks).sum(axis=0) == 1).all()  # every model is left out once


def test_replicates_are_posteriors_of_repeated_or_missing_columns(decisions, post):
    use = np.arange(12) != 3
    said, counted, member = (x[:, use] for x in decisions)
    weights = np.concatenate([np.ones((1, 11), int), model_weights(11, 4, post.scheme, 3)])
    medians = [post.median, *({x: post.replicate_median[x][k] for x in "rl"} for k in range(4))]
    for k in (0, 2):
        columns = np.repeat(np.arange(11), weights[k])
        s, c, m = (x[:, columns] for x in (said, counted, member))
        own = pooled_posterior((s & c & ~m).sum(1), (c & ~m).sum(1), (~s & c & m).sum(1), (c & m).sum(1))
        assert [medians[k][x] for x in "rl"] == pytest.approx([own.quantile(x, 0.5) for x in "rl"], rel=0.01)
        if k == 0:
            assert post.naive["r"] == pytest.approx([own.quantile("r", q) for q in QUANTILES[::2]], rel=0.01)


@pytest.mark.parametrize("scheme", ["jackknife", "bootstrap"])
def test_pairs_stay_together(decisions, scheme):
    """Where a pair has one model that counts nowhere, the other stands for it."""
    said, counted, member = decisions
    post = bootstrap_posterior(said, counted, member, replicates=3, scheme=scheme, paired=True, seed=3)
    weights = model_weights(6, 3, scheme, 3)
    for k in (0, 2):
        columns = np.repeat(np.arange(12), np.repeat(weights[k], 2))
        s, c, m = (x[:, columns] for x in (said, counted, member))
        own = pooled_posterior((s & c & ~m).sum(1), (c & ~m).sum(1), (~s & c & m).sum(1), (c & m).sum(1))
        assert [post.replicate_median[x][k] for x in "rl"] == pytest.approx(
            [own.quantile(x, 0.5) for x in "rl"], rel=0.01
        )
    with pytest.raises(InputError, match="even number"):
        bootstrap_posterior(said[:, 1:], counted[:, 1:], member[:, 1:], paired=True)
    with pytest.raises(InputError, match="four pairs"):
        bootstrap_posterior(said[:, :6], counted[:, :6], member[:, :6], paired=True)


def test_interval_stretches_the_posterior(post):
    for x in "rl":
        assert post.inflation[x] >= 1
        low, high = post.naive[x]
        assert post.interval[x][0] < low * (1 + 1e-9) < post.median[x] < high * (1 - 1e-9) < post.interval[x][1]
        stretched = np.log(np.array(post.interval[x]) / post.median[x])
        assert np.allclose(stretched, post.inflation[x] * np.log(np.array(post.naive[x]) / post.median[x]))
    assert post.nodes == 30
    assert post.replicate_median["r"].shape == (4,)


def test_combination_against_the_formulas():
    class Normal:  # log r ~ Normal(mean, sd), the first row with all models
        mean = np.array([0.5, 0.4, 0.7, 0.1])

        def quantile(self, name, q):
            return np.exp(self.mean + 0.1 * norm.ppf(q))

    moved = Normal.mean[1:]
    for scheme, spread in (
        ("jackknife", np.sqrt(2 / 3 * ((moved - moved.mean()) ** 2).sum())),
        ("bootstrap", moved.std(ddof=1)),
    ):
        _, _, _, _, _, found, inflation, interval = _combine(Normal(), "r", scheme)
        assert found == pytest.approx(spread)
        assert inflation == pytest.approx(np.sqrt(1 + (spread / 0.1) ** 2), rel=1e-4)
        assert np.log(interval) == pytest.approx(0.5 + np.sqrt(0.01 + spread**2) * norm.ppf([0.05, 0.95]), rel=1e-4)


def test_order_of_nodes_does_not_matter_and_the_seed_does(decisions, post):
    order = np.random.default_rng(0).permutation(30)
    again = bootstrap_posterior(*(x[order] for x in decisions), replicates=4, scheme=post.scheme, seed=3)
    assert np.allclose(again.replicate_median["r"], post.replicate_median["r"], rtol=1e-9)
    other = bootstrap_posterior(*decisions, replicates=4, scheme=post.scheme, seed=4)
    assert not np.allclose(other.replicate_median["r"], post.replicate_median["r"])


def test_bad_arguments(decisions):
    said, counted, member = decisions
    for bad in ({"replicates": 1}, {"scheme": "none"}, {"seed": -1}, {"prior_scale2": 0.0}):
        with pytest.raises(InputError):
            bootstrap_posterior(said, counted, member, **bad)
    with pytest.raises(InputError, match="four models"):
        bootstrap_posterior(said[:, :3], counted[:, :3], member[:, :3])
    with pytest.raises(InputError, match="shape"):
        bootstrap_posterior(said, counted, member[:, 1:])
    with pytest.raises(InputError, match="both sides"):
        bootstrap_posterior(said, counted, member & False)


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_coverage_with_and_without_a_shared_effect_of_the_model(rho):
    hit, runs = [], 60
    for seed in range(runs):
        post = bootstrap_posterior(*simulate(400, 32, 1.0, 2.0, rho, seed), replicates=16, seed=seed)
        truths = (("r", 2.0), ("l", 1.0))
        hit.append([[low <= x <= high for low, high in (post.naive[name], post.interval[name])] for name, x in truths])
    naive, stretched = np.mean(hit, axis=0).T
    print(f"rho {rho}: 90 % intervals of (r, l) cover {naive} as independent, {stretched} stretched")
    assert (stretched > 0.9 - 3 * np.sqrt(0.09 / runs)).all()
    assert (stretched >= naive).all()
    if rho:
        assert naive[0] < 0.9 - 3 * np.sqrt(0.09 / runs)


def simulate_pairs(nodes, pairs, rho, alike, seed):
    """As ``simulate`` on complementary draws; a share ``alike`` of what a model has of its own is its pair's."""
    rng = np.random.default_rng(seed)
    alpha, beta = np.random.default_rng(1).uniform(0.1, 0.4, (2, nodes, 1))  # the same nodes in every audit
    half = rng.random((nodes, pairs)) < 0.5
    member = np.stack([half, ~half], axis=2).reshape(nodes, 2 * pairs)
    own = np.sqrt(1 - alike) * rng.normal(size=2 * pairs) + np.sqrt(alike) * np.repeat(rng.normal(size=pairs), 2)
    z = np.sqrt(rho) * own + np.sqrt(1 - rho) * rng.standard_normal(member.shape)
    return z < norm.ppf(np.where(member, 1 - beta, alpha)), np.ones_like(member), member


@pytest.mark.slow
def test_spread_over_pairs_is_that_of_repeated_audits():
    """The two models of a pair have something in common, which single models would take for twice the data."""
    logs, spread, runs = [], {True: [], False: []}, 60
    for seed in range(runs):
        drawn = simulate_pairs(100, 12, 0.3, 1.0, seed)
        for paired in (True, False):
            post = bootstrap_posterior(*drawn, replicates=12, paired=paired, seed=seed)
            spread[paired].append([post.spread[x] for x in "rl"])
        logs.append([np.log(post.median[x]) for x in "rl"])
    true = np.std(logs, axis=0, ddof=1)
    ratio = {key: np.sqrt(np.mean(np.square(value), axis=0)) / true for key, value in spread.items()}
    print(f"estimated over true spread of (r, l): pairs {ratio[True]}, single models {ratio[False]}")
    assert (np.abs(ratio[True] - 1) < 3 / np.sqrt(2 * runs)).all()
    assert (ratio[False] < 0.85 * ratio[True]).all()
