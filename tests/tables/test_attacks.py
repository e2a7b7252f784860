"""DCR, DOMIAS and the registry."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import gaussian_kde

from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.attacks import (
    ATTACKS,
    Attack,
    AttackSettings,
    BNAFConfig,
    DomiasConfig,
    GenLRAConfig,
    dcr,
    domias,
    gen_lra,
    score_attacks,
)


@pytest.fixture(scope="module")
def release() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, r = rng.normal(size=(30, 4)), rng.normal(size=(40, 4))
    s = np.concatenate([x[:15] + 0.05 * rng.normal(size=(15, 4)), 0.7 * rng.normal(size=(10, 4)) + 0.3])
    return x, s, r


def test_dcr(release) -> None:
    x, s, _ = release
    assert np.allclose(dcr(x, s), -cdist(x, s).min(axis=1), rtol=1e-12)
    big = np.array([[1e9, 1.0], [1e9, 1.001]])
    assert np.allclose(dcr(big, big[:1]), [0.0, -0.001])  # large columns hide no small difference
    assert not np.signbit(dcr(big, big)).any()


@pytest.mark.parametrize("rule", ["scott", "silverman"])
def test_domias_matches_scipy(release, rule: str) -> None:
    x, s, r = release
    units = np.array([1e-3, 1.0, 50.0, 1e4])
    x, s, r = x * units, s * units, r * units
    expected = gaussian_kde(s.T, rule).logpdf(x.T) - gaussian_kde(r.T, rule).logpdf(x.T)
    assert np.allclose(domias(x, s, r, DomiasConfig(rule)), expected, rtol=1e-9, atol=1e-9)
    fast = domias(x, s, r, DomiasConfig(rule, precision="float32"))
    assert np.allclose(fast, expected, rtol=1e-3, atol=1e-3)


def test_domias_multiplier(release) -> None:
    x, s, r = release
    wide = (gaussian_kde(t.T, 2 * gaussian_kde(t.T).factor).logpdf(x.T) for t in (s, r))
    assert np.allclose(domias(x, s, r, DomiasConfig(multiplier=2.0)), np.subtract(*wide), rtol=1e-9)


def test_domias_compares_in_one_space(release) -> None:
    """Columns that either table cannot describe leave the ratio as it is without them."""
    x, s, r = release
    plain = domias(x, s, r)
    extra = [np.column_stack([t, np.full(len(t), 0.1), t[:, 0] - t[:, 1]]) for t in (x, s, r)]
    assert np.allclose(domias(*extra), plain, rtol=1e-8)
    rng = np.random.default_rng(1)
    collapsed = [np.column_stack([x, rng.normal(size=len(x))]), np.column_stack([s, np.zeros(len(s))]),
                 np.column_stack([r, rng.normal(size=len(r))])]  # fmt: skip
    assert np.isfinite(domias(*collapsed)).all()
    # independent of the rest by construction: what is left are the four common columns
    independent = r - r.mean(0)
    last = rng.normal(size=len(r))
    last -= last.mean()
    last -= independent @ np.linalg.lstsq(independent, last, rcond=None)[0]
    collapsed[2] = np.column_stack([r, last])
    assert np.allclose(domias(*collapsed), plain, rtol=1e-8)
    few = domias(x, s[:3], r)  # fewer released rows than columns: two common directions
    assert np.isfinite(few).all()


@pytest.mark.parametrize("name", list(ATTACKS))
def test_every_attack_is_pure(name: str, release) -> None:
    x, s, r = release
    rng = np.random.default_rng(2)
    small = AttackSettings(bnaf=BNAFConfig(hidden=4, steps=150, batch=32, ensemble=2, finetune_steps=5, k=3))

    def score(*tables: np.ndarray) -> np.ndarray:
        return score_attacks([name], *tables, settings=small)[name]

    scores = score(x, s, r)
    assert scores.dtype == np.float64
    assert np.array_equal(score(x, s, r), scores)
    assert np.array_equal(score(x, rng.permutation(s), rng.permutation(r)), scores)
    subset = score(x[[4, 20, 9]], s, r)
    assert np.allclose(subset, scores[[4, 20, 9]], rtol=1e-12, atol=1e-13)
    members = np.arange(30) < 15
    if not name.endswith("_bnaf"):  # a flow of 30 rows knows little; what flows find is in test_bnaf
        assert (scores[members][:, None] > scores[~members]).mean() > 0.7  # higher for the copied half
    assert ATTACKS[name].description


def test_registry_settings_and_own_attacks(release) -> None:
    x, s, r = release

    def mine(targets, synthetic, reference, key):
        synthetic[:] = 0.0  # its own copy
        return targets[:, 0]

    settings = AttackSettings(gen_lra=GenLRAConfig(k=3, bandwidth="refit"))
    scores = score_attacks([mine, "gen_lra", "dcr"], x, s, r, settings=settings)
    assert list(scores) == ["mine", "gen_lra", "dcr"]
    assert np.array_equal(scores["mine"], x[:, 0])
    assert np.allclose(scores["gen_lra"], gen_lra(x, s, r, 3, "refit"), rtol=1e-12)
    assert np.array_equal(scores["dcr"], dcr(x, s))


def test_keys_depend_on_seed_and_name(release) -> None:
    import jax

    x, s, r = release
    draw = Attack("draw", lambda x, s, r, key: np.asarray(jax.random.normal(key, (len(x),))), "noise")
    first = score_attacks([draw], x, s, r, seed=1)["draw"]
    assert np.array_equal(score_attacks(["dcr", draw], x, s, r, seed=1)["draw"], first)
    assert not np.array_equal(score_attacks([draw], x, s, r, seed=2)["draw"], first)


def shape(x, s, r, key):
    return x


def nans(x, s, r, key):
    return np.full(len(x), np.nan)


def words(x, s, r, key):
    return ["a"] * len(x)


@pytest.mark.parametrize(
    ("attacks", "message"),
    [
        (["gan_lra"], "attacks must be among gen_lra, dcr, domias, .*, got gan_lra"),
        ([], "attacks must name at least one"),
        (["dcr", "dcr"], "attacks must be named once each"),
        ([3], "attacks must be among"),
        ([shape], r"attack shape must return 30 finite scores, one per target, got shape \(30, 4\)"),
        ([nans], "attack nans must return 30 finite scores, one per target, got 30 that are not finite"),
        ([words], "attack words must return 30 finite scores"),
    ],
)
def test_bad_attacks(attacks, message: str, release) -> None:
    with pytest.raises(InputError, match=message):
        score_attacks(attacks, *release)


def test_bad_tables(release) -> None:
    x, s, r = release
    with pytest.raises(InputError, match="reference must have 4 columns"):
        score_attacks(["dcr"], x, s, r[:, :2])
    with pytest.raises(InputError, match="synthetic must vary"):
        domias(x, np.ones((5, 4)), r)
    with pytest.raises(InputError, match="synthetic must have at least 2 rows"):
        domias(x, s[:1], r)
