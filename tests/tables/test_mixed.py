"""Mixed kernels against naive loops, statsmodels, the Gaussian attacks, their limits and their invariances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import gaussian_kde, multivariate_normal, rankdata

from jaxaudit.runtime.checks import InputError
from jaxaudit.tables import density as gaussian
from jaxaudit.tables import mixed
from jaxaudit.tables.attacks import density, domias, gen_lra
from jaxaudit.tables.attacks.domias import DomiasConfig
from jaxaudit.tables.attacks.mixed_attacks import MixedConfig, density_mixed, domias_mixed, gen_lra_mixed
from jaxaudit.tables.data import load_release
from jaxaudit.tables.encode import Encoder, fit_encoder
from jaxaudit.tables.layout import LEVEL_SCALE, Layout, infer_layout
from jaxaudit.tables.mixed import SHARES, Categories, MixedRows, fit_mixed, marginal_shares

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "releases"
Tables = tuple[np.ndarray, np.ndarray, np.ndarray]
Attack = Callable[[np.ndarray, np.ndarray, np.ndarray, MixedConfig, Layout | None], np.ndarray]
FIXED = MixedConfig(k=4, lam=0.3)
ATTACKS: dict[str, Attack] = {
    "gen_lra": gen_lra_mixed,
    "gen_lra kernel": lambda x, s, r, c, l: gen_lra_mixed(x, s, r, replace(c, neighbours="kernel"), l),
    "domias": domias_mixed,
    "density": lambda x, s, r, c, l: density_mixed(x, s, c, l),
}
each_attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))


def frame(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({
        "sex": rng.choice(["f", "m"], rows), "income": rng.normal(size=rows), "job": rng.choice(list("abc"), rows),
        "age": rng.normal(size=rows), "town": rng.choice(list("vwxyz"), rows, p=[0.5, 0.2, 0.1, 0.1, 0.1]),
    })  # fmt: skip
    table["age"] += table["income"]
    table.loc[rng.random(rows) < 0.3, "age"] = np.nan
    table.loc[rng.random(rows) < 0.2, "job"] = None
    return table


@pytest.fixture(scope="module")
def encoded() -> tuple[Tables, Layout, Encoder]:
    x, s, r = frame(9, 0), frame(15, 1), frame(20, 2)
    s.iloc[:4] = x.iloc[:4]
    s.loc[5, "town"] = "only released"
    x.loc[7, "town"] = "nowhere else"
    r = pd.concat([r, r.iloc[:3]])
    encoder = fit_encoder(r, s)
    return (encoder.transform(x), encoder.transform(s), encoder.transform(r)), encoder.layout, encoder


def cells(layout: Layout, rows: np.ndarray) -> tuple[np.ndarray, list[list[int | None]]]:
    """Numbers, and the level of each cell by a loop."""
    levels: list[list[int | None]] = []
    for row in rows:
        line: list[int | None] = []
        for block in layout.blocks:
            present = [place for place, j in enumerate(block) if row[j] > 0]
            line.append(len(present) if len(block) == 1 else (present[0] if present else None))
        levels.append(line)
    return rows[:, list(layout.numeric)], levels


def kernel(
    layout: Layout, points: np.ndarray, rows: np.ndarray, base: np.ndarray, share: float, rule: str
) -> np.ndarray:
    """K(point, row), (p, n), from definitions; the numbers' covariance and bandwidth are those of ``base``."""
    (a, la), (b, lb) = cells(layout, points), cells(layout, rows)
    covariance = gaussian_kde(base[:, list(layout.numeric)].T, rule).covariance
    out = np.empty((len(points), len(rows)))
    for i, j in product(range(len(points)), range(len(rows))):
        out[i, j] = multivariate_normal(np.zeros(a.shape[1]), covariance).pdf(a[i] - b[j])
        for c, one, other in zip(layout.levels, la[i], lb[j], strict=True):
            lam = share * (c - 1) / c
            out[i, j] *= 1 - lam if one is not None and one == other else lam / (c - 1)
    return out


def numbers_only(seed: int = 3) -> Tables:
    x, s, r = np.random.default_rng(seed).normal(size=(3, 18, 3)) @ np.array([[1.0, 0.5, 0], [0, 2, 0], [0, 0, 9]])
    s[:4], r[-2] = x[:4] + 0.01, r[0]
    return x, s, r


@pytest.mark.parametrize("rule", ["silverman", "scott"])
def test_against_loops(encoded: tuple[Tables, Layout, Encoder], rule: str) -> None:
    (x, s, r), layout, _ = encoded
    config = replace(FIXED, rule=rule)
    p_s = kernel(layout, x, s, s, 0.3, rule).mean(axis=1)
    p_r = kernel(layout, x, r, r, 0.3, rule).mean(axis=1)
    np.testing.assert_allclose(density_mixed(x, s, config, layout), np.log(p_s), rtol=1e-9)
    np.testing.assert_allclose(domias_mixed(x, s, r, config, layout), np.log(p_s / p_r), rtol=1e-9)
    near = kernel(layout, s, r, r, 0.3, rule)
    own = kernel(layout, s, x, r, 0.3, rule)
    added = np.log((near.sum(axis=1, keepdims=True) + own) / (len(r) + 1)) - np.log(near.mean(axis=1, keepdims=True))
    for neighbours, distance in (("encoded", np.linalg.norm(s[:, None] - x, axis=2)), ("kernel", -np.log(own))):
        order = np.argsort(distance, axis=0)  # numbers leave no ties
        expected = np.take_along_axis(added, order[:4], axis=0).sum(axis=0)
        got = gen_lra_mixed(x, s, r, replace(config, neighbours=neighbours), layout)
        np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_against_statsmodels() -> None:
    nonparametric = pytest.importorskip("statsmodels.nonparametric.api")
    table = frame(40, 5)
    table["job"] = table["job"].fillna("a")
    table = table[["sex", "income", "job"]]
    encoder = fit_encoder(table, table)
    rows = encoder.transform(table)
    h = 1.06 * len(rows) ** -0.2
    codes = np.column_stack([table["sex"].factorize()[0], rows[:, 2], table["job"].factorize()[0]])
    peer = nonparametric.KDEMultivariate(codes, "ucu", bw=[0.3 * 1 / 2, h, 0.3 * 2 / 3])
    ours = density_mixed(rows, rows, replace(FIXED, rule=h), encoder.layout)
    np.testing.assert_allclose(ours, np.log(peer.pdf(codes)), rtol=1e-9)


@pytest.mark.parametrize("layout", [None, Layout((0, 1, 2))])
def test_numbers_only_equal_the_gaussian_attacks(layout: Layout | None) -> None:
    x, s, r = numbers_only()
    for rule, multiplier in (("silverman", 1.0), ("scott", 0.7)):
        config = MixedConfig(k=5, rule=rule, multiplier=multiplier)
        plain = DomiasConfig(rule, multiplier)
        np.testing.assert_array_equal(
            gen_lra_mixed(x, s, r, config, layout), gen_lra(x, s, r, 5, rule=rule, multiplier=multiplier)
        )
        np.testing.assert_array_equal(
            gen_lra_mixed(x, s, r, replace(config, neighbours="kernel"), layout),
            gen_lra(x, s, r, 5, neighbours="whitened", rule=rule, multiplier=multiplier),
        )
        np.testing.assert_array_equal(domias_mixed(x, s, r, config, layout), domias(x, s, r, plain))
        np.testing.assert_array_equal(density_mixed(x, s, config, layout), density(x, s, plain))


def test_sums_to_one_and_to_the_density_of_the_numbers(encoded: tuple[Tables, Layout, Encoder]) -> None:
    (x, _, r), layout, _ = encoded
    corners = np.array(list(product(*(range(c) for c in layout.levels))))
    codes, counts = np.unique(layout.codes(r), axis=0, return_counts=True)
    categories = Categories(np.array(layout.levels), np.zeros(len(layout.levels), bool))
    for lam in (0.2, "rule", "cv", 1.0):
        only = fit_mixed(MixedRows(np.zeros((len(codes), 0)), codes), counts, categories, lam=lam)
        log_p = only.log_density(MixedRows(np.zeros((len(corners), 0)), corners))
        assert abs(np.exp(log_p).sum() - 1) < 1e-12
    numbers = (x[:1, list(layout.numeric)], r[:, list(layout.numeric)])
    both = np.zeros((len(corners), x.shape[1]))
    both[:, list(layout.numeric)] = numbers[0]
    for b, block in enumerate(layout.blocks):
        for i, code in enumerate(corners[:, b]):
            if len(block) == 1:
                both[i, block[0]] = code
            else:
                both[i, block[code]] = LEVEL_SCALE
    total = np.exp(density_mixed(both, r, replace(FIXED, rule="scott"), layout)).sum()
    np.testing.assert_allclose(total, gaussian_kde(numbers[1].T).pdf(numbers[0].T)[0], rtol=1e-10)


def test_limits_of_lam() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, size=(60, 2))
    layout = Layout((), ((0, 1, 2), (3, 4, 5)))
    rows = LEVEL_SCALE * (codes[:, :, None] == np.arange(3)).reshape(60, 6)
    frequency = [(codes == code).all(axis=1).mean() for code in codes]
    np.testing.assert_allclose(np.exp(density_mixed(rows, rows, MixedConfig(lam=1e-6), layout)), frequency, rtol=1e-4)
    np.testing.assert_allclose(density_mixed(rows, rows, MixedConfig(lam=1.0), layout), -2 * np.log(3), rtol=1e-12)
    x, s, r = (np.column_stack([table[:, :2], rows[i::3][: len(table)]]) for i, table in enumerate(numbers_only()))
    both, flat = Layout((0, 1), ((2, 3, 4), (5, 6, 7))), MixedConfig(k=5, lam=1.0, neighbours="kernel")
    np.testing.assert_allclose(
        gen_lra_mixed(x, s, r, flat, both), gen_lra(x[:, :2], s[:, :2], r[:, :2], 5, neighbours="whitened"), rtol=1e-9
    )
    assert not np.allclose(gen_lra_mixed(x, s, r, replace(flat, lam=0.9), both), gen_lra_mixed(x, s, r, flat, both))


@pytest.mark.parametrize("most", [1024, 12])
def test_cross_validation_against_a_loop(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    codes, counts = np.unique(rng.choice(3, size=(30, 3), p=[0.7, 0.2, 0.1]), axis=0, return_counts=True)
    numbers = rng.normal(size=(len(codes), 1))
    h = gaussian.bandwidth_factor(int(counts.sum()), 1)
    held = np.unique(np.linspace(0, len(codes) - 1, min(most, len(codes))).round().astype(int))

    def likelihood(share: float) -> float:
        lam, total = share * 2 / 3, 0.0
        for i in held:
            kernels = np.where(codes == codes[i], 1 - lam, lam / 2).prod(axis=1)
            kernels *= np.exp(-((numbers - numbers[i]) ** 2)[:, 0] / (2 * h**2))
            total += counts[i] * np.log(((counts - (np.arange(len(codes)) == i)) * kernels).sum())
        return total

    monkeypatch.setattr(mixed, "_HELD_OUT", most)
    values = [likelihood(share) for share in SHARES]
    sums: list[float] = []
    monkeypatch.setattr(mixed, "block_map", lambda function, items: [sums.append(v := function(i)) or v for i in items])
    fit = fit_mixed(MixedRows(numbers, codes), counts, Categories(np.full(3, 3), np.zeros(3, bool)), lam="cv")
    np.testing.assert_allclose(sums, values, rtol=1e-9)
    assert fit.shares.tolist() == [SHARES[int(np.argmax(values))]] * 3
    assert 2 < np.argmax(values) < len(SHARES) - 1  # neither end: a wrong sign would be seen


def test_left_out_sums_are_exact_far_from_all_others() -> None:
    """The sum without the own row, not the difference of two sums: exp(-50) of the whole would be lost."""
    centres = np.array([[0.0], [10.0], [10.0 + 1e-3]])
    counts = np.array([1, 2, 1])
    fit = gaussian.KernelDensity(centres, np.log(counts), 1.0, 0.0)
    got = mixed._left_out_sums(fit, counts, np.array([0, 1, 2]), "float64")
    squares = (centres - centres.T) ** 2
    expected = [np.log((np.exp(-squares[i] / 2) * (counts - np.eye(3)[i])).sum()) for i in range(3)]
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_marginal_rule_is_the_minimum() -> None:
    counts = np.array([30, 12, 6])
    p, n = counts / 48, 48

    def error(t: float) -> float:
        return float(t**2 * ((p - 1 / 4) ** 2).sum() + 1 / 4**2 * t**2 + (1 - t) ** 2 * (1 - (p**2).sum()) / n)

    found = marginal_shares(np.array([[0], [1], [2]]), counts, np.array([4]))
    np.testing.assert_allclose(found, minimize_scalar(error, bounds=(0, 1), method="bounded").x, rtol=1e-4)
    constant = marginal_shares(np.array([[0]]), np.array([48]), np.array([4]))
    np.testing.assert_allclose(constant, 1 / 49)


@each_attack
@pytest.mark.parametrize("lam", [0.3, "rule", "cv"])
def test_order_has_no_influence(encoded: tuple[Tables, Layout, Encoder], attack: Attack, lam: float | str) -> None:
    (x, s, r), layout, _ = encoded
    config = replace(FIXED, lam=lam)
    rng = np.random.default_rng(0)
    expected = attack(x, s, r, config, layout)
    np.testing.assert_array_equal(attack(x, rng.permutation(s), rng.permutation(r), config, layout), expected)
    order = rng.permutation(x.shape[1])  # columns, and the levels within a block
    place = np.argsort(order)
    moved = Layout(
        tuple(sorted(place[list(layout.numeric)].tolist())),
        tuple(tuple(place[list(rng.permutation(block))].tolist()) for block in layout.blocks),
    )
    np.testing.assert_allclose(attack(x[:, order], s[:, order], r[:, order], config, moved), expected, rtol=1e-9)
    part = np.array([7, 2, 4])
    np.testing.assert_allclose(attack(x[part], s, r, config, layout), expected[part], rtol=1e-12)
    plain = np.array([2, 4])  # without the row whose level is not known
    np.testing.assert_allclose(attack(x[plain], s, r, config, layout), expected[plain], rtol=1e-12)


@each_attack
def test_numbers_are_affine_invariant_and_levels_have_no_units(
    encoded: tuple[Tables, Layout, Encoder], attack: Attack
) -> None:
    (x, s, r), layout, _ = encoded
    config = replace(FIXED, neighbours="kernel")
    if attack is ATTACKS["gen_lra"]:
        attack = ATTACKS["gen_lra kernel"]

    def moved(rows: np.ndarray) -> np.ndarray:
        rows = rows.copy()
        rows[:, list(layout.numeric)] = rows[:, list(layout.numeric)] @ np.array([[2.0, 1.0], [-1.0, 5.0]]) + 7.0
        rows[:, list(layout.blocks[0])] *= 3.0
        return rows

    change = attack(moved(x), moved(s), moved(r), config, layout) - attack(x, s, r, config, layout)
    volume = -np.log(11.0) if attack is ATTACKS["density"] else 0.0
    np.testing.assert_allclose(change, volume, atol=1e-9)


@each_attack
def test_awkward_tables(attack: Attack) -> None:
    rng = np.random.default_rng(0)

    def block(n: int) -> np.ndarray:
        return LEVEL_SCALE * np.eye(3)[rng.integers(0, 3, n)]

    number, ones = rng.normal(size=(12, 1)), np.ones((12, 1))
    layout = Layout((0,), ((1, 2, 3),))
    one_row = np.concatenate([block(1)] * 12)
    cases: dict[str, tuple[Any, Any, Any, Layout]] = {
        "one category": (block(12), block(12), block(12), Layout((), ((0, 1, 2),))),
        "one number": (number, rng.normal(size=(12, 1)), rng.normal(size=(12, 1)), Layout((0,))),
        "constant number": (*(np.hstack([ones, block(12)]) for _ in range(3)), layout),
        "constant category": (*(np.hstack([number + i, one_row]) for i in range(3)), layout),
        "two rows": (np.hstack([number, block(12)]), np.hstack([number, block(12)])[:4],
                     np.hstack([number, block(12)])[:2], layout),
        "number constant in the release": (np.hstack([number, block(12)]), np.hstack([ones, block(12)]),
                                           np.hstack([number, block(12)]), layout),
        "level in the release only": (block(12), block(12), LEVEL_SCALE * np.eye(3)[np.arange(12) % 2],
                                      Layout((), ((0, 1, 2),))),
        "far out": (np.hstack([1e9 * number, block(12)]), *(np.hstack([number, block(12)]) for _ in range(2)), layout),
    }  # fmt: skip
    for name, (x, s, r, parts) in cases.items():
        for lam in (1e-6, "rule", "cv"):
            scores = attack(x, s, r, replace(FIXED, lam=lam), parts)
            assert scores.shape == (len(x),), name
            assert np.isfinite(scores).all(), name


def test_numbers_that_do_not_vary_leave_the_categories() -> None:
    rng = np.random.default_rng(0)
    x, s, r = (LEVEL_SCALE * np.eye(3)[rng.integers(0, 3, 12)] for _ in range(3))
    layout, alone = Layout((0,), ((1, 2, 3),)), Layout((), ((0, 1, 2),))
    number, ones = rng.normal(size=(12, 1)), np.full((12, 1), 5.0)
    xs, rs = np.hstack([number, x]), np.hstack([number, r])
    flat_s, flat_r = np.hstack([ones, s]), np.hstack([ones, r])
    for got, expected in (
        (density_mixed(xs, flat_s, FIXED, layout), density_mixed(x, s, FIXED, alone)),
        (domias_mixed(xs, flat_s, rs, FIXED, layout), domias_mixed(x, s, r, FIXED, alone)),
        (domias_mixed(xs, flat_s, flat_r, FIXED, layout), domias_mixed(x, s, r, FIXED, alone)),
        (ATTACKS["gen_lra kernel"](xs, flat_s, flat_r, FIXED, layout),
         ATTACKS["gen_lra kernel"](x, s, r, FIXED, alone)),
    ):  # fmt: skip
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_inferred_layout_knows_the_levels_of_both_tables() -> None:
    x, s, r = (LEVEL_SCALE * np.eye(4)[codes] for codes in ([0, 3, 1], [0, 1, 0, 1], [0, 1, 2, 3, 3]))
    layout, config = Layout((), ((0, 1, 2, 3),)), replace(FIXED, k=2)
    for attack in (gen_lra_mixed, domias_mixed):
        np.testing.assert_array_equal(attack(x, s, r, config), attack(x, s, r, config, layout))
        np.testing.assert_allclose(attack(x, r, s, config), attack(x, r, s, config, layout), rtol=1e-12)


def test_unknown_level_is_a_level_that_no_row_has(encoded: tuple[Tables, Layout, Encoder]) -> None:
    (x, _, r), layout, encoder = encoded
    town = list(encoder.feature_names).index("town=only released")
    other = x.copy()
    other[7, town] = LEVEL_SCALE  # the reference has it nowhere either
    np.testing.assert_allclose(
        density_mixed(x, r, FIXED, layout)[7], density_mixed(other, r, FIXED, layout)[7], rtol=1e-12
    )
    assert layout.codes(x)[7].tolist().count(-1) == 1


def test_float32(encoded: tuple[Tables, Layout, Encoder]) -> None:
    (x, s, r), layout, _ = encoded
    for attack in ATTACKS.values():
        exact, fast = (attack(x, s, r, replace(FIXED, precision=p), layout) for p in ("float64", "float32"))
        assert 0 < np.abs(fast - exact).max() < 2e-4


def test_copies_stand_out() -> None:
    rng = np.random.default_rng(0)
    members, others, reference, rest = (
        LEVEL_SCALE * np.eye(4)[rng.integers(0, 4, size=(30, 8))].reshape(30, 32) for _ in range(4)
    )
    release = np.concatenate([members, rest])
    assert infer_layout(release, reference).levels == (4,) * 8
    for name, attack in ATTACKS.items():
        copied, fresh = (attack(rows, release, reference, MixedConfig(k=1), None) for rows in (members, others))
        assert (copied[:, None] > fresh).mean() > 0.95, name


def test_layout_is_found_again(encoded: tuple[Tables, Layout, Encoder]) -> None:
    (_, s, r), layout, encoder = encoded
    assert infer_layout(s, r) == layout
    names = np.array(encoder.feature_names)
    assert [names[list(block)].tolist() for block in layout.blocks] == [
        ["sex=f", "sex=m"], ["job=a", "job=b", "job=c", "job (missing)"], ["age (missing)"],
        ["town=only released", "town=v", "town=w", "town=x", "town=y", "town=z"],
    ]  # fmt: skip
    assert names[list(layout.numeric)].tolist() == ["income", "age"]
    two_at_once = LEVEL_SCALE * np.array([[1, 0, 0], [0, 1, 1], [1, 0, 0]])
    assert infer_layout(two_at_once) == Layout((2,), ((0, 1),))
    assert infer_layout(two_at_once[:, [0, 2, 1]][[1, 0]][:, 1:]) == Layout((0, 1))  # both or none
    assert infer_layout(LEVEL_SCALE * np.array([[1, 1], [0, 1], [1, 0]])) == Layout((0, 1))


@pytest.mark.skipif(not DATA.exists(), reason="the shared data folder is absent")
def test_leak_of_a_census_release_is_seen_better() -> None:
    folder = DATA / "mostlyai_census2k"
    release = load_release(*(folder / f"{name}.csv.gz" for name in ("train", "holdout", "syn_flip30")))
    encoder = fit_encoder(release.reference, release.synthetic)
    s, r, members, others = (
        encoder.transform(table)
        for table in (release.synthetic, release.reference, release.members, release.non_members)
    )

    def auc(attack: Callable[..., np.ndarray], *settings: Any) -> float:
        ranks = rankdata(attack(np.concatenate([members, others]), s, r, *settings))[: len(members)]
        return float((ranks.mean() - (len(members) + 1) / 2) / len(others))

    found = auc(domias_mixed, None, encoder.layout)
    assert found > 0.62  # .641 measured
    assert found > auc(domias) + 0.03  # .591 measured


def test_second_table_of_the_same_bucket_meets_compiled_code(encoded: tuple[Tables, Layout, Encoder]) -> None:
    (x, s, r), layout, _ = encoded
    kernels = (mixed._log_sums_of_others, gaussian._log_kernel_sums)
    for attack in ATTACKS.values():
        attack(x, s, r, MixedConfig(k=4, lam="cv"), layout)
    before = [kernel._cache_size() for kernel in kernels]
    for attack in ATTACKS.values():
        attack(x[:8], s[1:], r[2:], MixedConfig(k=3, lam="cv", multiplier=0.9), layout)
    assert [kernel._cache_size() for kernel in kernels] == before


def test_blocks_do_not_change_cross_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    centres, counts = rng.normal(size=(90, 2)), rng.integers(1, 3, 90)
    fit = gaussian.KernelDensity(centres, np.log(counts), 0.5, 0.0)
    held = np.arange(0, 90, 2)
    whole = mixed._left_out_sums(fit, counts, held, "float64")
    monkeypatch.setattr(mixed, "row_blocks", lambda rows, *_: (range(0, rows, 8), 8))
    np.testing.assert_allclose(mixed._left_out_sums(fit, counts, held, "float64"), whole, rtol=1e-12)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_kernel_lowers_for_accelerators(
    encoded: tuple[Tables, Layout, Encoder], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (x, s, r), layout, _ = encoded
    kernel, seen = mixed._log_sums_of_others, []

    def lowering(*args: Any, **kwargs: Any) -> Any:
        for platform in ("cuda", "tpu"):
            text = kernel.trace(*args, **kwargs).lower(lowering_platforms=(platform,)).as_text()
            assert "func.func public @main" in text
            assert f"x{'f64' if precision == 'float64' else 'f32'}>" in text
            seen.append(platform)
        return kernel(*args, **kwargs)

    monkeypatch.setattr(mixed, "_log_sums_of_others", lowering)
    monkeypatch.setattr(mixed, "SHARES", (0.2,))
    monkeypatch.setattr("jaxaudit.tables.blocks.on_cpu", lambda: False)
    assert np.isfinite(gen_lra_mixed(x, s, r, MixedConfig(k=2, lam="cv", precision=precision), layout)).all()
    assert seen == ["cuda", "tpu"]


def test_bad_arguments(encoded: tuple[Tables, Layout, Encoder]) -> None:
    (x, s, r), layout, _ = encoded
    for field, value, message in (
        ("k", 0, "mixed.k must be 1 or more"), ("neighbours", "whitened", "mixed.neighbours must be one of"),
        ("rule", "x", "mixed.rule must be one of"), ("multiplier", 0.0, "mixed.multiplier must be in"),
        ("lam", 0.0, "mixed.lam must be in"), ("lam", 1.1, "mixed.lam must be in"), ("lam", "ml", "mixed.lam must be"),
        ("precision", "float16", "mixed.precision must be"), ("rule", 0.0, "mixed.rule must be in"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            MixedConfig(**{field: value})
    with pytest.raises(InputError, match=r"mixed.k must be in \[1, 15\], got 16"):
        gen_lra_mixed(x, s, r, MixedConfig(k=16), layout)
    with pytest.raises(InputError, match="layout must have 15 columns, got 2"):
        domias_mixed(x, s, r, FIXED, Layout((0, 1)))
    with pytest.raises(InputError, match="layout must name each encoded column once"):
        Layout((0, 1), ((1, 2),))
    with pytest.raises(InputError, match="hold one level per row, got 2"):
        density_mixed(np.ones((3, 2)), np.ones((3, 2)), FIXED, Layout((), ((0, 1),)))
    with pytest.raises(InputError, match="reference must vary"):
        gen_lra_mixed(np.zeros((3, 1)), np.zeros((3, 1)), np.zeros((3, 1)), MixedConfig(k=1))
    with pytest.raises(InputError, match="synthetic must have at least 2 rows"):
        density_mixed(x, s[:1], FIXED, layout)
