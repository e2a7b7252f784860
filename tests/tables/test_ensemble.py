"""The calibrated ensemble: ranks among held-out reference rows, and nothing of the other scored records."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import optimize, stats
from scipy.spatial.distance import cdist
from sklearn.linear_model import LogisticRegression

from jaxaudit.evaluate import auc
from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.attacks.ensemble import EnsembleConfig, _fit, calibrated, canonical_parts, ensemble

KEY = jax.random.key(3)


def near(x, s, r, key):
    return -cdist(x, s).min(axis=1)


def difference(x, s, r, key):
    return cdist(x, r).min(axis=1) - cdist(x, s).min(axis=1)


def coarse(x, s, r, key):
    return np.round(near(x, s, r, key), 1)


COMPONENTS = {"near": near, "difference": difference, "coarse": coarse}
FITTED = EnsembleConfig(weights="fitted")


@pytest.fixture(scope="module")
def tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    members, others, r = (rng.normal(size=(n, 3)) for n in (30, 30, 41))
    s = np.concatenate([members[:15] + 0.05 * rng.normal(size=(15, 3)), rng.normal(size=(20, 3))])
    return np.concatenate([members, others]), s, r


def test_against_a_loop_over_targets_and_held_out_rows(tables) -> None:
    x, s, r = tables
    part = canonical_parts(r, 2, KEY)
    expected = np.zeros(len(x))
    for i in range(len(x)):
        for held in (0, 1):
            out, rest = r[part == held], r[part != held]
            for score in COMPONENTS.values():
                mine, theirs = score(x[i : i + 1], s, rest, None)[0], score(out, s, rest, None)
                below = sum(1.0 if t < mine else 0.5 if t == mine else 0.0 for t in theirs)
                expected[i] += stats.norm.ppf((below + 0.5) / (len(out) + 1)) / 6
    np.testing.assert_allclose(ensemble(x, s, r, COMPONENTS, KEY), expected, atol=1e-12)


@pytest.mark.parametrize("config", [EnsembleConfig(parts=3), FITTED])
def test_orders_and_other_records_do_not_matter(tables, config) -> None:
    x, s, r = tables
    rng = np.random.default_rng(1)
    scores = ensemble(x, s, r, COMPONENTS, KEY, config)
    shuffled = ensemble(x, rng.permutation(s), rng.permutation(r), dict(reversed(COMPONENTS.items())), KEY, config)
    np.testing.assert_allclose(shuffled, scores, atol=1e-12)
    chosen = [40, 3, 17]
    np.testing.assert_allclose(ensemble(x[chosen], s, r, COMPONENTS, KEY, config), scores[chosen], atol=1e-12)
    assert np.array_equal(ensemble(x, s, r, COMPONENTS, KEY, config), scores)
    assert not np.array_equal(ensemble(x, s, r, COMPONENTS, jax.random.key(4), config), scores)


@pytest.mark.parametrize("config", [EnsembleConfig(), FITTED])
def test_only_the_order_of_a_components_scores_counts(tables, config) -> None:
    x, s, r = tables
    bent = {
        "near": lambda *a: np.exp(near(*a)),
        "difference": lambda *a: 7 * difference(*a) ** 3 - 100,
        "coarse": lambda *a: np.arctan(coarse(*a)) + 1e-14 * np.arange(len(a[0])),  # rounding decides no tie
    }
    np.testing.assert_allclose(
        ensemble(x, s, r, bent, KEY, config), ensemble(x, s, r, COMPONENTS, KEY, config), atol=1e-12
    )


def test_calibrated_components_of_non_members_are_standard_normal() -> None:
    rng = np.random.default_rng(2)
    x, out, s, r = (rng.normal(size=(n, 2)) for n in (400, 200, 100, 200))
    found, among = calibrated({"b": near, "a": difference}, x, out, s, r, KEY)
    for column in found.T:
        assert stats.kstest(column, "norm").pvalue > 0.001
    grid = stats.norm.ppf((np.arange(200) + 1.0) / 201)  # a held-out row ties with itself
    np.testing.assert_allclose(np.sort(among[:, 1]), grid, atol=1e-12)
    assert np.array_equal(found[:, 1], calibrated({"b": near}, x, out, s, r, KEY)[0][:, 0])  # sorted by name


def test_null_and_copies() -> None:
    """Without members in the release the mean AUC is 1/2; with near copies of them the ensemble sees them."""
    rng = np.random.default_rng(3)
    member = np.arange(80) < 40
    null = [
        auc(
            ensemble(rng.normal(size=(80, 2)), rng.normal(size=(50, 2)), rng.normal(size=(40, 2)), COMPONENTS, KEY),
            member,
        )
        for _ in range(60)
    ]
    assert np.mean(null) == pytest.approx(0.5, abs=4 * np.std(null) / np.sqrt(60))
    x = rng.normal(size=(80, 2))
    for config in (EnsembleConfig(), FITTED):
        assert auc(ensemble(x, x[:40] + 0.01, rng.normal(size=(40, 2)), COMPONENTS, KEY, config), member) > 0.85


def test_weights_are_those_of_a_logistic_regression() -> None:
    rng = np.random.default_rng(4)
    others, stand_ins = rng.normal(size=(300, 3)), rng.normal(size=(100, 3)) + [1.0, 0.6, 0.3]
    peer = LogisticRegression(class_weight="balanced", C=np.inf, tol=1e-10, max_iter=1000)
    peer.fit(np.concatenate([stand_ins, others]), np.repeat([1, 0], [100, 300]))
    assert np.all(peer.coef_ > 0)
    found = _fit(stand_ins, others, 1e-9)
    np.testing.assert_allclose(found, peer.coef_[0] / peer.coef_.sum(), atol=1e-4)
    pulled = _fit(stand_ins, others, 1e6)
    np.testing.assert_allclose(pulled, 1 / 3, atol=1e-3)
    between = _fit(stand_ins, others, 100.0)
    assert found[0] > between[0] > pulled[0]
    reverse = _fit(
        np.column_stack([stand_ins[:, 0], -stand_ins[:, 1]]), np.column_stack([others[:, 0], -others[:, 1]]), 1e-9
    )
    np.testing.assert_allclose(reverse, [1, 0], atol=1e-9)  # never against the direction known beforehand
    assert _fit(-stand_ins, others, 1e-9).tolist() == [1 / 3] * 3


def test_pull_towards_equal_weights_against_another_minimiser() -> None:
    rng = np.random.default_rng(7)
    others, stand_ins = rng.normal(size=(80, 2)), rng.normal(size=(40, 2)) + [1.0, 0.3]

    def objective(values: np.ndarray) -> float:
        weights, intercept = values[:2], values[2]
        hits = np.log1p(np.exp(-(stand_ins @ weights + intercept))).mean()
        misses = np.log1p(np.exp(others @ weights + intercept)).mean()
        return 60 * (hits + misses) + 0.5 * 40.0 * np.sum((weights - weights.mean()) ** 2)

    best = optimize.minimize(objective, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
    np.testing.assert_allclose(_fit(stand_ins, others, 40.0), best[:2] / best[:2].sum(), atol=1e-5)


def test_many_equal_scores_share_a_rank() -> None:
    """Shares of the release within a radius are mostly 0."""
    x, out, one = np.array([[0.0], [0.0], [2.0]]), np.array([[0.0]] * 6 + [[1.0]] * 3), np.ones((1, 1))
    found, _ = calibrated({"share": lambda x, s, r, key: x[:, 0]}, x, out, one, one, KEY)
    np.testing.assert_allclose(stats.norm.cdf(found[:, 0]), [0.35, 0.35, 0.95], atol=1e-12)


def test_fitted_weights_leave_out_what_cannot_tell() -> None:
    rng = np.random.default_rng(5)
    x, s, r = rng.normal(size=(50, 2)), rng.normal(size=(200, 2)) + 1.5, rng.normal(size=(200, 2))
    parts = {"towards": lambda x, s, r, key: x.sum(axis=1), "noise": lambda x, s, r, key: np.sin(1e4 * x[:, 0])}
    fitted = ensemble(x, s, r, parts, KEY, EnsembleConfig(weights="fitted", ridge=0.1))
    equal = ensemble(x, s, r, parts, KEY)
    only = ensemble(x, s, r, {"towards": parts["towards"]}, KEY)
    assert np.corrcoef(fitted, only)[0, 1] > 0.97 > np.corrcoef(equal, only)[0, 1]


def test_parts_are_equal_and_follow_the_content() -> None:
    rng = np.random.default_rng(6)
    rows = np.round(rng.normal(size=(101, 2)), 1)
    part = canonical_parts(rows, 4, KEY)
    assert np.bincount(part).tolist() == [26, 25, 25, 25]
    order = rng.permutation(101)
    moved = canonical_parts(rows[order], 4, KEY)
    for p in range(4):
        mine, theirs = rows[part == p], rows[order][moved == p]
        assert np.array_equal(mine[np.lexsort(mine.T)], theirs[np.lexsort(theirs.T)])
    assert np.array_equal(canonical_parts(0.0 - 0.0 * rows, 2, KEY), canonical_parts(0.0 * np.abs(rows), 2, KEY))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "best"}, "ensemble.weights must be one of"),
        ({"parts": 1}, "ensemble.parts must be"),
        ({"stand_ins": 0.7}, "ensemble.stand_ins must be"),
        ({"ridge": 0.0}, "ensemble.ridge must be"),
        ({"components": ()}, "ensemble.components must name"),
        ({"components": ("dcr", "dcr")}, "ensemble.components must hold each value once, got .*dcr.*dcr"),
        ({"components": ("dcr", "ensemble")}, "ensemble.components must be other"),
    ],
)
def test_bad_settings(options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        EnsembleConfig(**options)


def test_bad_tables_and_components(tables) -> None:
    x, s, r = tables
    with pytest.raises(InputError, match="components must have at least one"):
        ensemble(x, s, r, {}, KEY)
    with pytest.raises(InputError, match="reference must have at least 4 rows for 2 parts, got 3 rows"):
        ensemble(x, s, r[:3], COMPONENTS, KEY)
    with pytest.raises(InputError, match="attack nan must return"):
        ensemble(x, s, r, {"nan": lambda x, s, r, key: np.full(len(x), np.nan)}, KEY)
    with pytest.raises(InputError, match="components must be single attacks, no grid of settings, got grid"):
        ensemble(x, s, r, {"grid": lambda x, s, r, key: {"a": x[:, 0]}}, KEY)
    with pytest.raises(InputError, match="reference must have 3 columns"):
        ensemble(x, s, r[:, :2], COMPONENTS, KEY)
