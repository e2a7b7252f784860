"""The competitors of Gen-LRA, each against an independent loop, and the properties they share."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import gaussian_kde, multivariate_normal
from sklearn.ensemble import RandomForestClassifier

from jaxaudit import audit_release
from jaxaudit.evaluate.roc import auc
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.keys import stream_key
from jaxaudit.tables.attacks import ATTACKS, SUITE, AttackSettings, BNAFConfig, score_attacks
from jaxaudit.tables.attacks import learned as learning
from jaxaudit.tables.attacks.counting import (
    LocalNeighbourhoodConfig,
    MCConfig,
    local_neighbourhood,
    mc,
    share_within,
)
from jaxaudit.tables.attacks.distance import dcr_diff
from jaxaudit.tables.attacks.domias import DomiasConfig, density, domias
from jaxaudit.tables.attacks.learned import ClassifierConfig, LoganConfig, classifier, logan
from jaxaudit.tables.attacks.weighting import DPIConfig, dpi

GEOMETRIC = {
    "dcr_diff": dcr_diff,
    "dpi": dpi,
    "mc": mc,
    "local_neighbourhood": local_neighbourhood,
}
COMPETITORS = (*GEOMETRIC, "density", "classifier", "logan")


@pytest.fixture(scope="module")
def release() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """30 targets, the first half near-copied; copies inside both tables; m = 55, n = 24."""
    rng = np.random.default_rng(0)
    x, r = rng.normal(size=(30, 4)), rng.normal(size=(22, 4))
    s = np.concatenate([x[:15] + 0.05 * rng.normal(size=(15, 4)), rng.normal(size=(35, 4))])
    return x, np.concatenate([s, s[:5]]), np.concatenate([r, r[:2]])


@pytest.fixture(scope="module")
def categories() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A table of categories only: ties everywhere, rows that occur in all three tables."""
    rng = np.random.default_rng(1)
    return tuple(np.eye(3)[rng.integers(3, size=(n, 2))].reshape(n, 6) for n in (25, 60, 30))


# ---------------------------------------------------------------- against loops


def dcr_diff_loop(x, s, r):
    m, n = len(s), len(r)
    to_s, to_r = np.sort(cdist(x, s)), np.sort(cdist(x, r))
    return to_r[:, -(-n // m) - 1] - to_s[:, -(-m // n) - 1]


def dpi_loop(x, s, r, k=20):
    scores = []
    for point in x:
        d = np.concatenate([np.linalg.norm(s - point, axis=1), np.linalg.norm(r - point, axis=1)])
        order = np.argsort(d, kind="stable")
        edge = d[order[k]]
        if edge == 0:  # more than k copies: each has the same part of the k places
            copies = np.flatnonzero(d == 0)
            w = {int(j): k / len(copies) for j in copies}
        else:
            w = {int(j): 1 - d[j] / edge for j in order[:k]}
        ours = sum(v for j, v in w.items() if j < len(s))
        theirs = sum(v for j, v in w.items() if j >= len(s))
        scores.append(np.log((ours + 0.5) / (theirs + 0.5)) - np.log(len(s) / len(r)))
    return np.array(scores)


def mc_loop(x, s, r):
    radius = np.median([min(np.linalg.norm(a - b) for b in s) for a in r])
    return np.array([np.mean([np.linalg.norm(p - b) <= radius + 1e-12 for b in s]) for p in x])


def local_loop(x, s, r, q=0.05):
    nearest = [min(np.linalg.norm(r[i] - r[j]) for j in range(len(r)) if j != i) for i in range(len(r))]
    radius = np.quantile(nearest, q)
    return np.array([np.mean([np.linalg.norm(p - b) <= radius + 1e-12 for b in s]) for p in x])


LOOPS = {"dcr_diff": dcr_diff_loop, "dpi": dpi_loop, "mc": mc_loop, "local_neighbourhood": local_loop}


@pytest.mark.parametrize("name", list(GEOMETRIC))
@pytest.mark.parametrize("swap", [False, True])
def test_geometric_attacks_match_loops(name: str, swap: bool, release, categories) -> None:
    for x, s, r in (release, categories):
        s, r = (r, s) if swap else (s, r)
        expected = LOOPS[name](x, s, r)
        assert np.allclose(GEOMETRIC[name](x, s, r), expected, rtol=1e-9, atol=1e-9), name
        assert len(np.unique(expected)) > 1 or name == "local_neighbourhood"


def test_dpi_settings(release) -> None:
    x, s, r = release
    assert np.allclose(dpi(x, s, r, DPIConfig(3)), dpi_loop(x, s, r, 3), rtol=1e-9, atol=1e-9)
    most = len(s) + len(r) - 1  # more neighbours than rows: one less than there are
    assert np.allclose(dpi(x, s, r, DPIConfig(500)), dpi_loop(x, s, r, most), rtol=1e-9, atol=1e-9)
    crowd = np.concatenate([np.repeat(x[:1], 30, axis=0), s]), np.concatenate([np.repeat(x[:1], 10, axis=0), r])
    expected = np.log((15 + 0.5) / (5 + 0.5)) - np.log(len(crowd[0]) / len(crowd[1]))
    assert np.isclose(dpi(x, *crowd)[0], expected)
    assert np.allclose(dpi(x, *crowd), dpi_loop(x, *crowd), rtol=1e-9, atol=1e-9)


def test_radii(release) -> None:
    wide = local_loop(*release, 0.8)
    assert len(np.unique(wide)) > 5
    assert np.allclose(local_neighbourhood(*release, LocalNeighbourhoodConfig(quantile=0.8)), wide)
    # the defaults, where no row occurs twice and the ball is not empty
    rng = np.random.default_rng(6)
    plane = rng.normal(size=(32, 2)), rng.normal(size=(400, 2)), rng.normal(size=(40, 2))
    for attack, loop in ((mc, mc_loop), (local_neighbourhood, local_loop)):
        expected = loop(*plane)
        assert len(np.unique(expected)) > 2
        assert np.allclose(attack(*plane), expected)
    # on the sphere is inside, for distances that round either way
    points = np.array([[0.1], [0.3], [0.7]])
    rows = points + 0.2
    assert share_within(points, rows, np.array([1, 1, 2]), 0.2).tolist() == [0.25, 0.5, 0.75]
    # more reference rows than the radius needs: drawn by the key, near the radius from all of them
    rng = np.random.default_rng(2)
    x, s, many = *plane[:2], rng.normal(size=(600, 2))
    for attack, config in ((mc, MCConfig(0.9, 50)), (local_neighbourhood, LocalNeighbourhoodConfig(0.9, 50))):
        full = attack(x, s, many, type(config)(config.quantile))
        some = attack(x, s, many, config, key=jax.random.key(1))
        assert np.array_equal(some, attack(x, s, rng.permutation(many), config, key=jax.random.key(1)))
        assert 0 < np.abs(some - full).max() < 0.1


@pytest.mark.parametrize("rule", ["scott", "silverman"])
def test_density_matches_scipy(rule: str, release) -> None:
    x, s, _ = release
    units = np.array([1e-3, 1.0, 50.0, 1e4])
    expected = gaussian_kde((s * units).T, rule).logpdf((x * units).T)
    assert np.allclose(density(x * units, s * units, DomiasConfig(rule)), expected, rtol=1e-9, atol=1e-9)
    wide = gaussian_kde(s.T, 2 * gaussian_kde(s.T).factor).logpdf(x.T)
    assert np.allclose(density(x, s, DomiasConfig(multiplier=2.0)), wide, rtol=1e-9)
    flat = [np.column_stack([t, np.full(len(t), 0.1)]) for t in (x, s)]
    assert np.allclose(density(*flat), density(x, s), rtol=1e-9)
    assert np.isfinite(density(1e3 * x, s)).all()  # in logs: no underflow


def test_domias_with_a_gaussian_prior_matches_scipy(release) -> None:
    x, s, r = release
    units = np.array([0.1, 1.0, 50.0, 1e2])
    x, s, r = x * units, s * units, r * units
    config = DomiasConfig(prior="gaussian")
    prior = multivariate_normal(r.mean(axis=0), np.cov(r.T)).logpdf(x)
    plain = gaussian_kde(s.T).logpdf(x.T) - prior
    assert np.allclose(domias(x, s, r, config), plain, rtol=1e-9, atol=1e-9)
    # a collinear and a constant column: the density is that of the spanned directions, up to one constant
    flat = [np.column_stack([t[:, 0] / units[0] - t[:, 1], t, np.full(len(t), 3.0)]) for t in (x, s, r)]
    assert np.ptp(domias(*flat, config) - plain) < 1e-7
    rng = np.random.default_rng(2)
    assert np.array_equal(domias(x, rng.permutation(s), rng.permutation(r), config), domias(x, s, r, config))
    assert np.isfinite(domias(1e3 * x, s, r, config)).all()


def test_a_gaussian_prior_sees_the_shape_of_the_population_less(release) -> None:
    """Where the reference has two modes and the release one, only the reference's own density knows the other."""
    rng = np.random.default_rng(0)
    r, s = np.concatenate([rng.normal(-4, 1, (200, 1)), rng.normal(4, 1, (200, 1))]), rng.normal(0, 4, (400, 1))
    gap = domias(np.array([[0.0], [4.0]]), s, r)
    flat = domias(np.array([[0.0], [4.0]]), s, r, DomiasConfig(prior="gaussian"))
    assert gap[0] - gap[1] > 2 > 1 > abs(flat[0] - flat[1])


def sorted_rows(table):
    return table[np.lexsort(table.T[::-1])]


def test_classifier_matches_sklearn(release) -> None:
    """The same forests by hand; standardising changes no split of a tree."""
    x, s, r = release
    key, config = jax.random.key(5), ClassifierConfig(forests=3, trees=7, leaf=2)
    scores = classifier(x, s, r, config, key=key)
    rng = learning._host_rng(key)
    expected = []
    for _ in range(3):
        chosen = [sorted_rows(t)[np.sort(rng.permutation(len(t))[:24])] for t in (r, s)]
        forest = RandomForestClassifier(7, min_samples_leaf=2, random_state=int(rng.integers(2**31)))
        centred = [(t - r.mean(0)) / r.std(0) for t in (*chosen, x)]
        forest.fit(np.concatenate(centred[:2]), [0] * 24 + [1] * 24)
        expected.append(forest.predict_proba(centred[2])[:, list(forest.classes_).index(1)])
    assert np.allclose(scores, np.mean(expected, axis=0), rtol=1e-12)
    few = classifier(x, s, r, ClassifierConfig(rows=10), key=key)
    assert np.isfinite(few).all()
    assert not np.array_equal(few, classifier(x, s, r, key=key))


def logan_loop(x, s, r, config: LoganConfig, key):
    """Forward pass, gradients and Adam by hand in NumPy; initial weights and batches as the attack draws them."""
    x, s, r = (np.pad((t - r.mean(0)) / r.std(0), ((0, 0), (0, 4))) for t in (x, sorted_rows(s), sorted_rows(r)))
    tables, sizes = (r.astype(np.float32), s.astype(np.float32)), np.array([len(r), len(s)], np.int32)
    steps = config.epochs * int(np.ceil(max(len(s), len(r)) / config.batch))
    draw_batch = jax.jit(learning._batch, static_argnums=3)
    one_hot = np.eye(2)[np.repeat([0, 1], config.batch)]
    scores = []
    for member in jax.random.split(key, config.ensemble):
        start, draw = jax.random.split(member)
        tree = jax.jit(learning._Discriminator(config.hidden).init)(start, tables[0][:1])["params"]
        w = [np.array(tree[f"Dense_{i}"][part], np.float64) for i in range(3) for part in ("kernel", "bias")]
        first, second = [np.zeros_like(p) for p in w], [np.zeros_like(p) for p in w]
        for t in range(steps):
            rows = np.asarray(draw_batch(jax.random.fold_in(draw, t), tables, sizes, config.batch), np.float64)
            a1 = np.maximum(rows @ w[0] + w[1], 0)
            a2 = np.maximum(a1 @ w[2] + w[3], 0)
            p = np.exp(a2 @ w[4] + w[5])
            e3 = (p / p.sum(1, keepdims=True) - one_hot) / len(rows)
            e2 = (e3 @ w[4].T) * (a2 > 0)
            e1 = (e2 @ w[2].T) * (a1 > 0)
            gradient = [rows.T @ e1, e1.sum(0), a1.T @ e2, e2.sum(0), a2.T @ e3, e3.sum(0)]
            for i, g in enumerate(gradient):
                first[i] = 0.9 * first[i] + 0.1 * g
                second[i] = 0.999 * second[i] + 0.001 * g**2
                corrected = np.sqrt(second[i] / (1 - 0.999 ** (t + 1))) + 1e-8
                w[i] = w[i] - config.learning_rate * first[i] / (1 - 0.9 ** (t + 1)) / corrected
        logits = np.maximum(np.maximum(x @ w[0] + w[1], 0) @ w[2] + w[3], 0) @ w[4] + w[5]
        scores.append(logits[:, 1] - logits[:, 0])
    return np.mean(scores, axis=0)


def test_logan_matches_numpy(release) -> None:
    x, s, r = release
    key, config = jax.random.key(3), LoganConfig(hidden=8, epochs=5, learning_rate=0.02, batch=16, ensemble=2)
    expected = logan_loop(x, s, r, config, key)
    scores = logan(x, s, r, config, key=key)
    assert np.allclose(scores, expected, rtol=1e-3, atol=1e-4)
    assert np.ptp(scores) > 0.2


def test_logan_sees_both_classes_alike(release) -> None:
    """Batches hold as many rows of one table as of the other, and no padding."""
    _, s, r = release
    tables = tuple(np.concatenate([t, np.full((9, 4), np.nan)]).astype(np.float32) for t in (r, s))
    sizes = np.array([len(r), len(s)], np.int32)
    draws = [np.asarray(learning._batch(jax.random.key(i), tables, sizes, 8)) for i in range(40)]
    for half, table in ((slice(0, 8), r), (slice(8, 16), s)):
        rows = np.concatenate([draw[half] for draw in draws])
        assert np.isfinite(rows).all()
        assert len(np.unique(rows, axis=0)) == len(np.unique(table.astype(np.float32), axis=0))


# ---------------------------------------------------------------- properties


@pytest.mark.parametrize("name", COMPETITORS)
def test_one_record_at_a_time_in_any_order(name: str, release, categories) -> None:
    rng = np.random.default_rng(3)
    for x, s, r in (release, categories):
        scores = score_attacks([name], x, s, r)[name]
        assert np.array_equal(score_attacks([name], x, rng.permutation(s), rng.permutation(r))[name], scores)
        some = rng.permutation(len(x))[:4]
        assert np.allclose(score_attacks([name], x[some], s, r)[name], scores[some], rtol=1e-12, atol=1e-12)
        assert np.array_equal(score_attacks([name], x, s, r)[name], scores)


@pytest.mark.parametrize("name", COMPETITORS)
def test_units_and_origin(name: str, release) -> None:
    """In other units and from another origin the scores are the same, up to a unit of their own."""
    x, s, r = release
    key = jax.random.key(0)
    before = ATTACKS[name].score(x, s, r, key)
    after = ATTACKS[name].score(*(4.0 * t + 32.0 for t in (x, s, r)), key)
    if name == "dcr_diff":
        after = after / 4
    if name == "density":
        after = after + 4 * np.log(4.0)
    tolerance = 1e-3 if name == "logan" else 1e-9  # trained in float32 on inputs that differ by rounding
    assert np.allclose(after, before, rtol=tolerance, atol=tolerance)


def test_keys_matter_where_something_is_drawn(release) -> None:
    for name in ("classifier", "logan"):
        a, b, c = (score_attacks([name], *release, seed=seed)[name] for seed in (1, 1, 2))
        assert np.array_equal(a, b)
        assert not np.array_equal(a, c)
        assert np.corrcoef(a, c)[0, 1] > 0.6


@pytest.mark.parametrize("name", COMPETITORS)
def test_singular_tables(name: str, release) -> None:
    x, s, r = release
    odd = [np.column_stack([t, np.full(len(t), 7.0), t[:, 0] - t[:, 1]]) for t in (x, s, r)]
    assert np.isfinite(score_attacks([name], *odd)[name]).all()
    assert np.isfinite(score_attacks([name], x, s[:3], r[:2])[name]).all()
    only_reference_is_flat = score_attacks([name], odd[0], odd[1], np.column_stack([r, np.ones((len(r), 2))]))[name]
    assert np.isfinite(only_reference_is_flat).all()
    if name != "density":  # which needs rows that differ
        assert np.isfinite(score_attacks([name], x, np.zeros((1, 4)), np.zeros((2, 4)))[name]).all()


def test_single_rows() -> None:
    one = np.ones((1, 2))
    with pytest.raises(InputError, match="reference must have at least 2 rows, got 1"):
        local_neighbourhood(one, one, one)
    with pytest.raises(InputError, match="synthetic must have at least 2 rows"):
        density(one, one)
    assert dpi(one, one, one).tolist() == [0.0]
    assert dcr_diff(one, one, one).tolist() == [0.0]
    assert mc(one, one, one).tolist() == [1.0]


@pytest.mark.parametrize("name", COMPETITORS)
def test_target_in_the_reference(name: str, release) -> None:
    """It scores as a point beside the row does, and where the reference enters, no higher than without the row."""
    x, s, r = release
    key = jax.random.key(0)
    score = ATTACKS[name].score
    on, beside = score(np.stack([r[5], r[5] + 1e-9]), s, r, key)
    assert np.isclose(on, beside, rtol=1e-5, atol=1e-6)
    if name == "dcr_diff":
        assert np.isclose(score(r[5:6], r, r, key)[0], 0.0)
    if name in ("classifier", "logan"):
        inside = score(r, s, r, key)
        assert inside.mean() < score(x[15:], s, r, key).mean()


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (DPIConfig, {"k": 0}, "dpi.k must be 1 or more, got 0"),
        (MCConfig, {"quantile": 1.5}, "mc.quantile must be in"),
        (MCConfig, {"rows": 0}, "mc.rows must be"),
        (LocalNeighbourhoodConfig, {"quantile": -0.1}, "local_neighbourhood.quantile must be in"),
        (LocalNeighbourhoodConfig, {"rows": 2.5}, "local_neighbourhood.rows must be an integer"),
        (ClassifierConfig, {"trees": 0}, "classifier.trees must be"),
        (LoganConfig, {"epochs": 0}, "logan.epochs must be"),
        (LoganConfig, {"learning_rate": 0.0}, "logan.learning_rate must be in"),
        (DomiasConfig, {"prior": "kde"}, "domias.prior must be one of gaussian, reference, got kde"),
    ],
)
def test_bad_settings(config, settings, message: str) -> None:
    with pytest.raises(InputError, match=message):
        config(**settings)


@pytest.mark.parametrize("name", COMPETITORS)
def test_bad_tables(name: str, release) -> None:
    x, s, r = release
    with pytest.raises(InputError, match="synthetic must have 4 columns"):
        ATTACKS[name].score(x, s[:, :2], r, jax.random.key(0))


# ---------------------------------------------------------------- null and power


@pytest.fixture(scope="module")
def null() -> list[dict[str, np.ndarray]]:
    """Scores of all attacks on three releases that know nothing of the records; m = 3 n."""
    found = []
    flows = AttackSettings(bnaf=BNAFConfig(hidden=4, steps=150, batch=32, ensemble=2, finetune_steps=5, k=3))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x, s, r = (rng.normal(size=(n, 3)) for n in (600, 180, 60))
        found.append(score_attacks(list(ATTACKS), x, s, r, settings=flows, seed=seed))
    return found


@pytest.mark.parametrize("name", list(ATTACKS))
def test_null_with_unequal_tables(name: str, null) -> None:
    member = np.arange(600) < 300
    aucs = [auc(scores[name], member) for scores in null]
    error = np.sqrt((600 + 1) / (12 * 300 * 300) / len(aucs))  # of the mean AUC, no ties
    assert abs(np.mean(aucs) - 0.5) < 3.5 * error


def test_unequal_tables_do_not_tilt_scores() -> None:
    """Where both tables have one distribution, no side is favoured by being larger.

    Without the corrections the shares are off by .25 to .5. DPI's halves and the rounded-up ranks leave some .1.
    """
    for m, n in ((180, 60), (60, 180)):
        centres = {"dcr_diff": [], "dpi": [], "classifier": [], "logan": []}
        for seed in range(6):
            rng = np.random.default_rng(seed)
            x, s, r = (rng.normal(size=(size, 2)) for size in (200, m, n))
            for name, values in score_attacks(list(centres), x, s, r).items():
                centres[name].append(np.mean(values - 0.5 if name == "classifier" else values > 0))
        for name, values in centres.items():
            middle = np.mean(values) - (0.0 if name == "classifier" else 0.5)
            assert abs(middle) < (0.05 if name == "classifier" else 0.2), (name, m, n, middle)


@pytest.fixture(scope="module")
def overfitted() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    x, r = rng.normal(size=(400, 4)), rng.normal(size=(200, 4))
    return x, x[:200] + 0.1 * rng.normal(size=(200, 4)), r, np.arange(400) < 200


@pytest.mark.parametrize("name", list(GEOMETRIC))
def test_near_copies_are_found(name: str, overfitted) -> None:
    x, s, r, member = overfitted
    near = np.concatenate([x[:200] + 0.01 * (s - x[:200])])
    assert auc(score_attacks([name], x, near, r)[name], member) > {"dcr_diff": 0.95}.get(name, 0.7)


@pytest.mark.parametrize("name", ["density", "classifier", "logan"])
def test_overfitting_is_found(name: str, overfitted) -> None:
    x, s, r, member = overfitted
    assert auc(score_attacks([name], x, s, r)[name], member) > 0.6
    other = np.random.default_rng(5).normal(size=s.shape)
    assert abs(auc(score_attacks([name], x, other, r)[name], member) - 0.5) < 0.1


def test_stream_keys_reach_the_attacks(release) -> None:
    x, s, r = release
    key = stream_key(7, "attack/classifier")
    assert np.array_equal(score_attacks(["classifier"], x, s, r, seed=7)["classifier"], classifier(x, s, r, key=key))


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "files", "least"), [
    ("synthmia_housing", ("mem.csv", "non_mem.csv", "synth.csv", "ref.csv"), 0.58),
    ("mostlyai_census2k", ("train.csv.gz", "holdout.csv.gz", "syn_flip30.csv.gz"), 0.52),
])  # fmt: skip
def test_leaky_releases_are_found_by_every_attack(folder: str, files, least: float, shared_data) -> None:
    result = audit_release(*(shared_data / "releases" / folder / file for file in files), attacks=SUITE)
    for name, found in result.summary["attacks"].items():
        assert found["auc"] > least, name
        assert found["p_value"] < 0.01, name
