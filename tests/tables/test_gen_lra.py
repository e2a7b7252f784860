"""Gen-LRA against SciPy refits, naive loops and its invariances."""

from __future__ import annotations

from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import gaussian_kde, multivariate_normal
from sklearn.metrics import roc_auc_score

from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.attacks import gen_lra_changes as changes
from jaxaudit.tables.attacks import neighbours, screening
from jaxaudit.tables.attacks.gen_lra import GenLRAConfig, gen_lra, gen_lra_scores
from jaxaudit.tables.density import distinct_rows

MODES = ("fixed", "refit", "synth_mia")
HOUSING = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "releases" / "synthmia_housing"


def tables(n_targets: int, m: int, n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correlated columns in different units, some released rows close to targets, one far target."""
    rng = np.random.default_rng(seed)
    mix = np.eye(d) + 0.3 * rng.normal(size=(d, d))
    units = np.exp(rng.normal(size=d))
    x, s, r = (rng.normal(size=(rows, d)) @ mix * units + 5.0 for rows in (n_targets, m, n))
    near = min(m, n_targets) // 2
    s[:near] = x[:near] + 0.05 * units * rng.normal(size=(near, d))
    x[-1] += 6.0 * units
    return x, s, r


def scipy_scores(x: np.ndarray, s: np.ndarray, r: np.ndarray, k: int, mode: str, rule: str = "silverman") -> np.ndarray:
    """One record at a time, real refits, as the published library does it."""
    before = gaussian_kde(r.T, bw_method=rule)
    scores = []
    for target in x:
        near = s[np.argsort(((s - target) ** 2).sum(1), kind="stable")[:k]]
        both = np.concatenate([r, target[None]])
        if mode == "fixed":
            kernels = np.stack([multivariate_normal(c, before.covariance).logpdf(near) for c in both]).reshape(-1, k)
            scores.append((logsumexp(kernels, axis=0) - np.log(len(both))).sum()
                          - (logsumexp(kernels[:-1], axis=0) - np.log(len(r))).sum())  # fmt: skip
        else:
            after = gaussian_kde(both.T, bw_method=rule)
            if mode == "refit":
                scores.append((after.logpdf(near.T) - before.logpdf(near.T)).sum())
            else:
                scores.append((np.log(after(near.T) + 1e-20) - np.log(before(near.T) + 1e-20)).sum())
    return np.array(scores)


SHAPES = [
    (1, 1, 2, 1, 1), (3, 5, 4, 1, 2), (4, 9, 12, 1, 9), (7, 20, 30, 2, 3), (5, 32, 32, 3, 32), (9, 31, 25, 4, 7),
    (12, 30, 29, 5, 10), (2, 8, 11, 6, 4), (20, 32, 31, 7, 11), (32, 16, 28, 8, 16), (6, 40, 48, 9, 5),
    (5, 33, 45, 10, 6), (8, 47, 40, 11, 20), (3, 48, 47, 12, 48), (11, 35, 41, 13, 1), (4, 44, 46, 14, 13),
    (6, 38, 33, 15, 8),
    (10, 45, 48, 16, 12), (33, 120, 128, 3, 17), (40, 100, 110, 8, 25), (48, 128, 97, 12, 30), (5, 2, 3, 1, 2),
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_matches_scipy_on_random_shapes(mode: str) -> None:
    worst = 0.0
    for seed, (n_targets, m, n, d, k) in enumerate(SHAPES):
        x, s, r = tables(n_targets, m, n, d, seed)
        expected = scipy_scores(x, s, r, k, mode)
        error = np.abs(gen_lra(x, s, r, k, mode) - expected) / (1 + np.abs(expected))
        assert error.max() <= 1e-9, (n_targets, m, n, d, k)
        worst = max(worst, error.max())
    assert worst > 0  # the oracle is another computation


@pytest.mark.parametrize("mode", MODES)
def test_scott_rule_and_float32(mode: str) -> None:
    x, s, r = tables(20, 32, 31, 7, 5)
    expected = scipy_scores(x, s, r, 11, mode, "scott")
    scale = 1 + np.abs(expected)
    assert (np.abs(gen_lra(x, s, r, 11, mode, rule="scott") - expected) / scale).max() < 1e-9
    fast = gen_lra(x, s, r, 11, mode, rule="scott", precision="float32")
    assert 0 < (np.abs(fast - expected) / scale).max() < 2e-4


def test_float32_keeps_small_scores() -> None:
    """The change of a log sum by one row of many is tiny; the difference of two float32 sums would lose it."""
    rng = np.random.default_rng(0)
    x, s, r = rng.normal(size=(20, 4)), rng.normal(size=(30, 4)), rng.normal(size=(3000, 4))
    for mode in ("fixed", "refit"):
        exact = gen_lra(x, s, r, 1, mode)
        error = np.abs(gen_lra(x, s, r, 1, mode, precision="float32") - exact)
        assert error.max() < 2e-3 * np.abs(exact).max(), mode
        assert np.abs(exact).max() < 0.1


def test_float32_far_out() -> None:
    """A far target stretches the covariance: exponents change by much more than one, on the other route."""
    x, s, r = tables(20, 32, 31, 7, 11)
    x, s = r.mean(0) + 40 * (x - r.mean(0)), r.mean(0) + 6 * (s - r.mean(0))
    exact = gen_lra(x, s, r, 5, "refit")
    assert np.allclose(exact, scipy_scores(x, s, r, 5, "refit"), rtol=1e-9)
    assert np.allclose(gen_lra(x, s, r, 5, "refit", precision="float32"), exact, rtol=1e-4)


def test_multiplier_scales_both_bandwidths() -> None:
    x, s, r = tables(6, 20, 30, 2, 3)
    factor = gaussian_kde(r.T, "silverman").factor, gaussian_kde(np.concatenate([r, x[:1]]).T, "silverman").factor
    near = s[np.argsort(((s - x[0]) ** 2).sum(1))[:4]].T
    before = gaussian_kde(r.T, 1.7 * factor[0]).logpdf(near)
    after = gaussian_kde(np.concatenate([r, x[:1]]).T, 1.7 * factor[1]).logpdf(near)
    assert gen_lra(x, s, r, 4, "refit", multiplier=1.7)[0] == pytest.approx((after - before).sum(), abs=1e-10)


@pytest.mark.parametrize("mode", ["fixed", "refit"])
def test_records_do_not_depend_on_each_other(mode: str) -> None:
    x, s, r = tables(48, 128, 97, 12, 7)
    scores = gen_lra(x, s, r, 9, mode)
    for part in (slice(0, 1), slice(5, 22), slice(40, 48), [7, 3, 31]):
        assert np.allclose(gen_lra(x[part], s, r, 9, mode), scores[part], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("mode", ["fixed", "refit"])
def test_blocks_and_tiles_do_not_change_a_score(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same scores from many small tiles as from one; otherwise only large tables would walk that path."""
    x, s, r = tables(48, 128, 97, 12, 7)
    whole = gen_lra(x, s, r, 9, mode)

    def small(rows: int, row_bytes: float, budget: int, most: int = 256) -> tuple[range, int]:
        return range(0, rows, 8), 8

    for name in ("attacks.neighbours", "attacks.gen_lra_changes", "density"):
        monkeypatch.setattr(f"jaxaudit.tables.{name}.row_blocks", small)
    monkeypatch.setattr(changes, "_PIECE", 40)  # three pieces of the reference
    monkeypatch.setattr(changes, "_CALL", 37)  # pairs of a block of points in several calls
    assert np.allclose(gen_lra(x, s, r, 9, mode), whole, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("mode", MODES)
def test_row_order_and_copies(mode: str) -> None:
    x, s, r = tables(20, 32, 31, 7, 11)
    s = np.concatenate([s, s[:5], s[:3]])
    scores = gen_lra(x, s, r, 11, mode)
    rng = np.random.default_rng(0)
    assert np.array_equal(gen_lra(x, rng.permutation(s), rng.permutation(r), 11, mode), scores)
    # a target at a duplicated row: its copies fill its first places
    at = scipy_scores(s[:1], s, r, 2, mode)
    assert gen_lra(s[:1], s, r, 2, mode) == pytest.approx(at, abs=1e-9)


def test_ties_enter_with_fractional_weight() -> None:
    x, s, r = np.zeros((1, 1)), np.array([[0.5], [-1.0], [1.0], [1.0], [3.0]]), np.array([[-1.0], [0.2], [2.0], [5.0]])
    alone = {value: scipy_scores(x, np.array([[value]]), r, 1, "refit")[0] for value in (0.5, -1.0, 1.0)}
    expected = alone[0.5] + 2 / 3 * (alone[-1.0] + 2 * alone[1.0])  # k = 3: two places for three rows at distance 1
    assert gen_lra(x, s, r, 3, "refit")[0] == pytest.approx(expected, abs=1e-12)
    assert gen_lra(x, s, r, 4, "refit")[0] == pytest.approx(alone[0.5] + alone[-1.0] + 2 * alone[1.0], abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 32), st.booleans())
def test_neighbour_weights_match_a_naive_loop(seed: int, k: int, grid: bool) -> None:
    """On a coarse grid nearly every distance is tied; weights against a loop over all copies."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 3, size=(9, 2)) / 3 if grid else rng.normal(size=(9, 2))
    s = rng.integers(0, 3, size=(32, 2)) / 3 if grid else rng.normal(size=(32, 2))
    rows, counts = distinct_rows(s)
    pairs = neighbours.nearest_pairs(x, rows, counts, 32)
    weights = neighbours.tie_weights(pairs, counts, k)
    direct = neighbours.nearest_pairs(x, rows, counts, k)
    for i, target in enumerate(x):
        squared = ((rows - target) ** 2).sum(1)
        kth = np.sort(np.repeat(squared, counts))[k - 1]
        close, tied = squared < kth * (1 - 1e-9), np.abs(squared - kth) <= 1e-9 * kth
        share = (k - counts[close].sum()) / counts[tied].sum()
        got = np.zeros(len(rows))
        got[pairs.row[pairs.target == i]] = weights[pairs.target == i]
        assert np.allclose(got, counts * (close + share * tied))
        assert set(direct.row[direct.target == i]) == set(np.flatnonzero(close | tied))


@pytest.mark.parametrize("mode", ["fixed", "refit"])
def test_affine_invariance_in_whitened_space(mode: str) -> None:
    x, s, r = tables(20, 32, 31, 7, 11)
    rng = np.random.default_rng(1)
    matrix, shift = rng.normal(size=(7, 7)), 10 * rng.normal(size=7)
    scores = gen_lra(x, s, r, 5, mode, "whitened")
    mapped = gen_lra(*(t @ matrix + shift for t in (x, s, r)), 5, mode, "whitened")
    assert np.allclose(mapped, scores, rtol=1e-8, atol=1e-10)
    assert not np.allclose(gen_lra(*(t @ matrix + shift for t in (x, s, r)), 5, mode), scores)  # encoded: not


@pytest.mark.parametrize("mode", ["fixed", "refit"])
def test_singular_references_use_the_spanned_directions(mode: str) -> None:
    x, s, r = tables(20, 32, 31, 3, 2)

    def widen(t: np.ndarray) -> np.ndarray:  # a constant column, a copy, a linear combination
        return np.column_stack([t, np.full(len(t), 0.1), t[:, 0], t @ [1.0, 2.0, -1.0]])

    result = gen_lra_scores(*(widen(t) for t in (x, s, r)), GenLRAConfig(5, mode, "whitened"))
    assert result.effective_dimension == 3
    assert "spans 3 of 6 dimensions (1 constant column)" in result.warnings[0]
    assert not result.out_of_span.any()
    assert np.allclose(result.scores, gen_lra(x, s, r, 5, mode, "whitened"), rtol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_more_columns_than_reference_rows(mode: str) -> None:
    rng = np.random.default_rng(0)
    x, s, r = rng.normal(size=(6, 40)), rng.normal(size=(12, 40)), rng.normal(size=(9, 40))
    s[0] = x[0]
    result = gen_lra_scores(x, s, r, GenLRAConfig(3, mode))
    assert result.effective_dimension == 8
    assert np.isfinite(result.scores).all()
    assert (result.out_of_span > 1).all()
    assert len(result.warnings) == 3


@pytest.mark.parametrize("mode", MODES)
def test_edges(mode: str) -> None:
    _, s, r = tables(6, 20, 30, 2, 3)
    at_reference = gen_lra(r[:4], s, r, 3, mode)  # targets that are reference rows
    assert np.allclose(at_reference, scipy_scores(r[:4], s, r, 3, mode), atol=1e-9)
    at_mean = r.mean(0)[None]  # |u| = 0: no direction along which the covariance grows
    assert np.allclose(gen_lra(at_mean, s, r, 3, mode), scipy_scores(at_mean, s, r, 3, mode), atol=1e-9)
    far = gen_lra(np.full((1, 2), 1e9), s, r, 3, mode)  # a broken record, ten orders of magnitude out
    assert np.isfinite(far).all()
    onehot = np.eye(3)[[0, 1, 2, 0, 1, 0]]
    assert np.isfinite(gen_lra(onehot[:2], onehot, onehot, 4, mode)).all()


def test_far_target_agrees_with_high_precision() -> None:
    """One dimension, target 1e4 deviations out, refit: against 50-digit arithmetic."""
    rows, s, x = [Decimal(v) for v in ("-1", "0.25", "0.5", "2")], Decimal("0.75"), Decimal(10_000)

    def log_kde(rows: list[Decimal]) -> Decimal:  # without the constant that cancels
        n, mean = len(rows), sum(rows) / len(rows)
        variance = sum((v - mean) ** 2 for v in rows) / (n - 1)
        h2 = variance * (Decimal(3 * n) / 4) ** (Decimal(-2) / 5)
        return (sum((-((s - v) ** 2) / (2 * h2)).exp() for v in rows) / n).ln() - h2.ln() / 2

    with localcontext() as context:
        context.prec = 50
        expected = float(log_kde([*rows, x]) - log_kde(rows))
    got = gen_lra([[float(x)]], [[float(s)]], np.array(rows, dtype=float)[:, None], 1, "refit")[0]
    assert got == pytest.approx(expected, abs=1e-11)


def test_k_grid_is_each_k() -> None:
    x, s, r = tables(9, 31, 25, 4, 7)
    grid = gen_lra_scores(x, s, r, GenLRAConfig(bandwidth="refit"), k_grid=(1, 7, 31)).scores
    assert np.allclose(grid, [gen_lra(x, s, r, k, "refit") for k in (1, 7, 31)], rtol=1e-12)


def test_second_table_of_the_same_bucket_compiles_nothing() -> None:
    x, s, r = tables(20, 32, 31, 7, 5)
    gen_lra(x, s, r, 5, "refit")
    kernels = (changes.sum_changes, changes.project, screening._upper_limits)
    compiled = [kernel._cache_size() for kernel in kernels]
    x, s, r = tables(18, 30, 29, 6, 6)
    gen_lra(x, s, r, 5, "refit")
    assert [kernel._cache_size() for kernel in kernels] == compiled


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "gen_lra.k must be 1 or more, got 0"),
        ({"k": 21}, r"gen_lra.k must be in \[1, 20\], got 21"),
        ({"k": 2.5}, "k must be an integer, got 2.5"),
        ({"k": True}, "k must be an integer, got True"),
        ({"bandwidth": "none"}, "bandwidth must be one of"),
        ({"neighbours": "near"}, "neighbours must be one of"),
        ({"rule": "best"}, "rule must be one of"),
        ({"multiplier": 0.0}, r"gen_lra.multiplier must be in \[0.001, 1000\], got 0.0"),
        (
            {"multiplier": (1.0, 1.0000001)},
            r"gen_lra.multiplier must hold values that differ in six digits, got \[1.0, 1",
        ),
        ({"k": [[1], [2]]}, r"gen_lra.k must hold names or numbers only, got"),
        ({"multiplier": 1e300}, "gen_lra.multiplier must be in"),
        ({"targets": np.ones((2, 2)) * 1j}, "targets must have real numbers, got complex ones"),
        ({"precision": "half"}, "precision must be one of"),
        ({"synthetic": np.ones((3, 3))}, "synthetic must have 2 columns, got 3"),
        ({"reference": np.ones((3, 2))}, "reference must vary"),
        ({"reference": np.ones((1, 2))}, "reference must have at least 2 rows"),
        ({"targets": np.array([[np.inf, 0.0]])}, "targets must have only finite values"),
        ({"targets": np.array([[1e151, 0.0]])}, r"targets must have numbers of at most 1e\+150 in size, got 1e\+151"),
        ({"synthetic": np.full((20, 2), -1e120)}, r"synthetic must lie within 1e\+100 standard deviations of the ref"),
        ({"targets": np.full((1, 2), 1e25), "precision": "float32"}, r"targets must lie within 1e\+15 standard dev"),
    ],
)
def test_bad_arguments(change: dict, message: str) -> None:
    x, s, r = tables(6, 20, 30, 2, 3)
    with pytest.raises(InputError, match=message):
        gen_lra(**({"targets": x, "synthetic": s, "reference": r} | change))


@pytest.mark.skipif(not HOUSING.is_dir(), reason="the shared data folder is absent")
@pytest.mark.parametrize(
    ("mode", "published", "tpr"),
    [("synth_mia", (0.627, 0.648, 0.681, 0.631, 0.604), 0.220), ("fixed", (0.563, 0.619, 0.689, 0.730, 0.720), None)],
)
def test_published_numbers_on_housing(mode: str, published: tuple[float, ...], tpr: float | None) -> None:
    members, others, synthetic, reference = (
        pd.read_csv(HOUSING / f"{name}.csv").to_numpy(np.float64) for name in ("mem", "non_mem", "synth", "ref")
    )
    member = np.repeat([1, 0], [len(members), len(others)])
    targets = np.concatenate([members, others])
    grid = gen_lra_scores(targets, synthetic, reference, GenLRAConfig(bandwidth=mode), k_grid=(1, 5, 20, 100, 200))
    assert [roc_auc_score(member, scores) for scores in grid.scores] == pytest.approx(published, abs=0.001)
    if tpr is not None:
        at_five = grid.scores[1]
        assert (at_five[member == 1] > at_five[member == 0].max()).mean() == pytest.approx(tpr, abs=0.001)
