"""Grids, families, numeric bandwidths and per-neighbour evidence of Gen-LRA; the bounds that its shortcuts rest on."""

from __future__ import annotations

import time
from math import factorial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gaussian_kde

from jaxaudit.runtime.checks import InputError
from jaxaudit.tables import blocks
from jaxaudit.tables.attacks import gen_lra_changes as changes
from jaxaudit.tables.attacks import gen_lra_kernels as kernels
from jaxaudit.tables.attacks import neighbours, screening
from jaxaudit.tables.attacks.gen_lra import GenLRAConfig, gen_lra, gen_lra_evidence, gen_lra_family, gen_lra_scores
from jaxaudit.tables.basis import _triangular
from jaxaudit.tables.blocks import block_map, row_blocks, table_size
from jaxaudit.tables.density import bandwidth_factor, distinct_rows


@pytest.fixture(scope="module")
def tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Targets, released rows (some near targets, some twice) and reference; three columns."""
    rng = np.random.default_rng(3)
    x, s, r = rng.normal(size=(9, 3)), rng.normal(size=(28, 3)), rng.normal(size=(25, 3))
    s[:4] = x[:4] + 0.05
    return x, np.concatenate([s, s[:3], s[:1]]), r


@pytest.mark.parametrize("mode", ["fixed", "refit", "synth_mia"])
def test_grid_is_each_setting(mode: str, tables: tuple[np.ndarray, ...]) -> None:
    ks, multipliers = [1, 5, 10, 32], [0.5, 1, 2.0]
    grid = gen_lra(*tables, ks, mode, multiplier=multipliers)
    assert grid.shape == (4, 3, 9)
    for i, k in enumerate(ks):
        for j, multiplier in enumerate(multipliers):
            alone = gen_lra(*tables, k, mode, multiplier=multiplier)
            assert np.allclose(grid[i, j], alone, rtol=1e-12, atol=1e-13)
    assert np.array_equal(gen_lra(*tables, ks, mode), grid[:, 1])
    assert np.array_equal(gen_lra(*tables, 32, mode, multiplier=multipliers), grid[3])
    assert gen_lra(*tables, (5,), mode).shape == (1, 9)


def test_ties_are_fractional_at_every_k_of_a_grid() -> None:
    x, r = np.zeros((1, 1)), np.array([[-1.0], [0.2], [2.0], [5.0]])
    s = np.array([[0.5], [-1.0], [1.0], [1.0], [3.0]])
    one, tied, far = (gen_lra(x, np.array([[v]]), r, 1)[0] for v in (0.5, 1.0, 3.0))
    other = gen_lra(x, np.array([[-1.0]]), r, 1)[0]
    group = other + 2 * tied  # three rows at distance 1
    expected = [one, one + group / 3, one + 2 * group / 3, one + group, one + group + far]
    assert gen_lra(x, s, r, [1, 2, 3, 4, 5])[:, 0] == pytest.approx(expected, abs=1e-14)


def test_numeric_bandwidth_is_scipys(tables: tuple[np.ndarray, ...]) -> None:
    x, s, r = tables
    near = s[np.argsort(((s - x[5]) ** 2).sum(1))[:4]].T
    both = np.concatenate([r, x[5:6]])
    change = gaussian_kde(both.T, 0.7).logpdf(near) - gaussian_kde(r.T, 0.7).logpdf(near)
    assert gen_lra(x, s, r, 4, "refit", rule=0.7)[5] == pytest.approx(change.sum(), abs=1e-11)
    by_rule = bandwidth_factor(25, 3, "scott")
    assert np.allclose(gen_lra(x, s, r, 4, rule=by_rule), gen_lra(x, s, r, 4, rule="scott"), rtol=1e-13)
    assert np.allclose(gen_lra(x, s, r, 4, rule=0.35, multiplier=2), gen_lra(x, s, r, 4, rule=0.7), rtol=1e-13)


def test_family_names_what_varies(tables: tuple[np.ndarray, ...]) -> None:
    family = gen_lra_family(*tables, GenLRAConfig(k=(1, 5), multiplier=(0.5, 1)))
    assert np.array_equal(family["gen_lra[k=5,h=0.5]"], gen_lra(*tables, [1, 5], multiplier=[0.5, 1])[1, 0])
    assert list(gen_lra_family(*tables, GenLRAConfig(k=(1, 5)))) == ["gen_lra[k=1]", "gen_lra[k=5]"]
    assert list(gen_lra_family(*tables, GenLRAConfig(k=3, multiplier=(0.5, 2)))) == ["gen_lra[h=0.5]", "gen_lra[h=2]"]
    assert np.array_equal(gen_lra_family(*tables)["gen_lra"], gen_lra(*tables))


def test_config_takes_lists_and_stays_hashable() -> None:
    config = GenLRAConfig(k=[1, 5], multiplier=[1.0])  # type: ignore[arg-type]
    assert (config.k, config.ks, config.multipliers) == ((1, 5), (1, 5), (1.0,))
    assert hash(config) == hash(GenLRAConfig(k=(1, 5), multiplier=(1.0,)))
    assert GenLRAConfig().ks == (10,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": ()}, "gen_lra.k must hold at least one value"),
        ({"k": (1, 1)}, r"gen_lra.k must hold each value once, got \[1, 1\]"),
        ({"k": (1, 0)}, "gen_lra.k must be 1 or more, got 0"),
        ({"multiplier": (1.0, 0.0)}, r"gen_lra.multiplier must be in \[0.001, 1000\], got 0.0"),
        ({"rule": 0.0}, "gen_lra.rule must be in"),
        ({"rule": True}, "gen_lra.rule must be a finite number, got True"),
    ],
)
def test_bad_grids(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        GenLRAConfig(**change)


def test_too_large_k_in_a_grid(tables: tuple[np.ndarray, ...]) -> None:
    with pytest.raises(InputError, match=r"gen_lra.k must be in \[1, 32\], got 33"):
        gen_lra(*tables, [1, 33])


@pytest.mark.parametrize("mode", ["fixed", "refit", "synth_mia"])
@pytest.mark.parametrize("space", ["encoded", "whitened"])
def test_evidence_adds_up_and_names_released_rows(mode: str, space: str, tables: tuple[np.ndarray, ...]) -> None:
    x, s, r = tables
    config = GenLRAConfig(6, mode, space)
    evidence = gen_lra_evidence(x, s, r, config)
    scores = gen_lra_scores(x, s, r, config).scores
    assert np.array_equal(evidence.scores, scores)
    assert np.allclose(np.bincount(evidence.target, weights=evidence.contribution), scores, rtol=1e-12, atol=1e-13)
    assert np.allclose(np.bincount(evidence.target, weights=evidence.weight), 6)
    for i in range(len(x)):
        mine = evidence.target == i
        assert (np.diff(evidence.contribution[mine]) <= 0).all()
        assert len(set(evidence.row[mine])) == mine.sum()
        # a row's contribution is the score of the record in a release of that row alone, times its weight
        for row, weight, part in zip(
            evidence.row[mine], evidence.weight[mine], evidence.contribution[mine], strict=True
        ):
            alone = gen_lra(x[i : i + 1], s[row : row + 1], r, 1, mode, space)[0]
            assert part == pytest.approx(weight * alone, abs=1e-12)
        if space == "encoded":
            squared = ((s[evidence.row[mine]] - x[i]) ** 2).sum(1)
            assert np.allclose(evidence.squared[mine], squared, rtol=1e-14)


def test_evidence_of_copies_and_ties() -> None:
    x, r = np.zeros((1, 1)), np.array([[-1.0], [0.2], [2.0], [5.0]])
    s = np.array([[1.0], [0.5], [-1.0], [3.0], [1.0]])
    evidence = gen_lra_evidence(x, s, r, GenLRAConfig(k=3))
    weight = dict(zip(evidence.row.tolist(), evidence.weight.tolist(), strict=True))
    assert weight == pytest.approx({1: 1.0, 0: 2 / 3, 2: 2 / 3, 4: 2 / 3})
    assert evidence.target.tolist() == [0, 0, 0, 0]


def test_evidence_follows_the_row_order_of_the_release(tables: tuple[np.ndarray, ...]) -> None:
    x, s, r = tables
    order = np.random.default_rng(0).permutation(len(s))
    first, second = gen_lra_evidence(x, s, r), gen_lra_evidence(x, s[order], r)
    assert np.array_equal(first.scores, second.scores)
    before = {(t, row): c for t, row, c in zip(first.target, first.row, first.contribution, strict=True)}
    after = {(t, order[row]): c for t, row, c in zip(second.target, second.row, second.contribution, strict=True)}
    assert before == after


def test_evidence_is_of_one_setting(tables: tuple[np.ndarray, ...]) -> None:
    with pytest.raises(InputError, match="k must be one value for evidence"):
        gen_lra_evidence(*tables, GenLRAConfig(k=(1, 2)))


@pytest.mark.parametrize("mode", ["fixed", "refit"])
def test_scores_do_not_depend_on_the_number_of_cores(
    mode: str, tables: tuple[np.ndarray, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("attacks.neighbours", "attacks.gen_lra_changes", "density"):
        monkeypatch.setattr(f"jaxaudit.tables.{name}.row_blocks", lambda rows, *_, **__: (range(0, rows, 8), 8))
    scores = []
    for count in (1, 4):
        monkeypatch.setattr(blocks, "cores", lambda count=count: count)
        scores.append(gen_lra(*tables, [3, 20], mode))
    assert np.array_equal(*scores)


@pytest.mark.parametrize("mode", ["fixed", "refit"])
def test_the_route_of_accelerators_gives_the_same_scores(
    mode: str, tables: tuple[np.ndarray, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = gen_lra(*tables, [3, 20], mode)
    monkeypatch.setattr(blocks, "on_cpu", lambda: False)
    assert np.allclose(gen_lra(*tables, [3, 20], mode), here, rtol=1e-12, atol=1e-13)
    monkeypatch.setattr(changes, "_STEP", 7)  # several steps, the last of a kind with other pairs behind it
    assert np.allclose(gen_lra(*tables, [3, 20], mode), here, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("limit", "degree"), [(kernels.SHORT_LIMIT, 7), (kernels.SERIES_LIMIT, 10)])
def test_series_keeps_its_bound(limit: float, degree: int) -> None:
    """Remainder of an interpolation at Chebyshev points, and ``expm1`` everywhere in the range."""
    bound = 2 * (limit / 4) ** (degree + 1) * np.exp(limit) / ((degree + 2) * factorial(degree + 1))
    assert bound < {kernels.SHORT_LIMIT: 9e-14, kernels.SERIES_LIMIT: 4e-13}[limit]
    x = np.linspace(0.0, limit, 10_001)
    with jax.enable_x64(True):
        got = np.asarray(kernels.expm1_series(x, limit))
    assert (np.abs(got - np.expm1(x))[1:] / np.expm1(x)[1:]).max() < bound + 1e-15
    assert got[0] == 0.0


@pytest.mark.parametrize(("spread", "limit"), [(1.0, kernels.SERIES_LIMIT), (12.0, 500.0), (1e3, np.inf)])
def test_every_route_gives_the_same_score(spread: float, limit: float) -> None:
    """Far-out rows make y^2 large: series, exponentials and log space, each against SciPy's refits."""
    rng = np.random.default_rng(1)
    x, s, r = rng.normal(size=(8, 2)) * spread, rng.normal(size=(20, 2)), rng.normal(size=(12, 2))
    s[::2] *= spread
    before, expected = gaussian_kde(r.T, "silverman"), []
    for target in x:
        near = s[np.argsort(((s - target) ** 2).sum(1))[:7]].T
        after = gaussian_kde(np.concatenate([r, target[None]]).T, "silverman")
        expected.append((after.logpdf(near) - before.logpdf(near)).sum())
    assert np.allclose(gen_lra(x, s, r, 7, "refit"), expected, rtol=1e-9, atol=1e-9)
    assert np.allclose(gen_lra(x, s, r, 7, "refit", precision="float32"), expected, rtol=1e-3, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["plain", "far", "raw", "grid", "near"]), st.booleans())
def test_screening_limits_hold(seed: int, kind: str, host: bool) -> None:
    """The float32 upper limits are upper limits, and the rows found are those of float64 differences."""
    rng = np.random.default_rng(seed)
    x, s = rng.normal(size=(16, 5)), rng.normal(size=(32, 5))
    if kind == "far":
        x[0] += 1e8
        s[0] -= 1e6
    elif kind == "raw":
        x, s = (t * np.logspace(-4, 5, 5) + 1e6 for t in (x, s))
    elif kind == "grid":
        x, s = np.round(x), np.round(s)
    elif kind == "near":
        s[:16] = x + 1e-9 * rng.normal(size=(16, 5))
    rows, counts = distinct_rows(s)
    screen = screening.screening_tables(x, rows)
    with jax.enable_x64(False):
        table = np.asarray(screening._upper_limits(screen.points, screen.columns))
    assert (table[:, len(rows) :] >= 1e29).all()
    upper = table[:, : len(rows)].astype(float)
    squared = ((x[:, None] - rows) ** 2).sum(-1)
    scale = max(np.abs(x - rows.mean(0)).max(), np.abs(rows - rows.mean(0)).max()) * np.sqrt(5)
    assert screen.scale == scale
    assert (upper >= squared / scale**2).all()
    lower = upper - screen.slack[: len(rows)] - screen.share[:, None].astype(float)
    assert (lower <= squared / scale**2 * (1 + 1e-6)).all()
    assert (np.abs((upper + lower) / 2 - squared / scale**2) <= 0.2 * (upper - lower) + 1e-29).all()  # both by as much
    k = int(rng.integers(1, counts.sum() + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "on_cpu", lambda: host)
        pairs = neighbours.nearest_pairs(x, rows, counts, k)
        nearest = neighbours.nearest_distance(x, s)
        radius = float(rng.choice([0.0, *np.sqrt(squared.ravel()), 1.01 * np.sqrt(squared.max())]))
        within = neighbours.count_within(x, rows, counts, radius)
    for i in range(len(x)):
        kth = np.sort(np.repeat(squared[i], counts))[k - 1]
        assert set(pairs.row[pairs.target == i]) == set(np.flatnonzero(squared[i] <= kth * (1 + 1e-10)))
    assert np.allclose(nearest, np.sqrt(squared.min(1)), rtol=1e-14, atol=0)
    assert np.array_equal(within, ((squared <= radius**2 * (1 + 1e-10)) * counts).sum(1))


@pytest.mark.parametrize(("columns", "places"), [(640, 1), (640, 7), (640, 200), (104, 3), (32, 32)])
def test_reach_is_no_less_than_the_kth_and_little_more(columns: int, places: int) -> None:
    table = np.random.default_rng(0).random((9, columns)).astype(np.float32)
    ranked, reach = np.sort(table, axis=1), screening._reach(table, places)
    assert (reach >= ranked[:, places - 1]).all()
    assert (reach <= ranked[:, min(columns, int(1.3 * places) + 4) - 1]).all()
    table[:, 1::2] = 1e30  # padding, and groups that hold nothing else
    assert (screening._reach(table, min(places, columns // 4)) < 1).all()


def test_bisection_finds_the_kth() -> None:
    table = np.random.default_rng(0).choice([0.0, 1e-30, 0.5, 0.5, 2.0, 3e38, np.inf], size=(9, 40)).astype(np.float32)
    for k in (1, 7, 40):
        with jax.enable_x64(False):
            got = np.asarray(screening._kth_smallest(table, np.int32(k)))
        assert np.array_equal(got, np.sort(table, axis=1)[:, k - 1])


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_shares_cover_every_block_once(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "cores", lambda: cores)
    edges = np.array([0, 500, 500, 510, 2000, 2001])  # a block of points may have hardly a pair, or most of them
    for first, last in ((0, 5), (1, 4), (3, 4)):
        shares = changes._shares(edges, first, last, 8)
        assert [block for low, high in shares for block in range(low, high)] == list(range(first, last))
        assert len(shares) <= 2 * cores
    assert len(changes._shares(100 * np.arange(41), 0, 40, 8)) == 2 * cores


def test_sizes_and_blocks() -> None:
    sizes = [table_size(n) for n in range(1, 3000)]
    assert all(n <= size <= max(32, n * 9 / 8 + 1) for n, size in enumerate(sizes, 1))
    assert len(set(sizes)) < 60
    assert all(table_size(size) == size for size in set(sizes))
    starts, size = row_blocks(1000, 1e6, 10 << 20)
    assert (size, list(starts)[-1]) == (8, 992)
    assert block_map(lambda i: i * i, range(50)) == [i * i for i in range(50)]


@pytest.mark.parametrize("cores", [1, 3])
def test_blocks_stop_at_an_error(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "cores", lambda: cores)
    done = []

    def some(index: int) -> int:
        if index == 5:
            raise ValueError("block 5")
        time.sleep(1e-4)
        done.append(index)
        return index

    with pytest.raises(ValueError, match="block 5"):
        block_map(some, range(2000))
    assert len(done) < 1900  # the others are not worked through first


@pytest.mark.parametrize(("n", "d"), [(1500, 7), (700, 64), (129, 3), (60, 5), (300, 70), (90, 100)])
def test_blocked_triangular_factor_is_the_factor(n: int, d: int) -> None:
    rows = np.random.default_rng(0).normal(size=(n, d)) * np.logspace(-6, 3, d)
    whole, blocked = np.linalg.qr(rows, mode="r"), _triangular(rows)
    assert blocked.shape == whole.shape
    error = np.abs(np.abs(blocked) - np.abs(whole)) / np.linalg.norm(rows, axis=0)
    assert error.max() < 1e-13
    assert np.array_equal(blocked, whole) == (n <= 128 or d > 64)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_lexicographic_order(seed: int, columns: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 4, size=(30, columns)) / 3
    distinct, counts, origin = distinct_rows(rows, origin=True)
    expected, expected_counts = np.unique(rows, axis=0, return_counts=True)
    assert np.array_equal(distinct, expected)
    assert np.array_equal(counts, expected_counts)
    assert np.array_equal(rows[origin], np.repeat(distinct, counts, axis=0))
