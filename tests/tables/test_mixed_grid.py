"""Grids of the attacks with a mixed kernel: against single settings, their names, bad input, and in an audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

from jaxaudit.config import build
from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.attacks import AttackSettings, EnsembleConfig, mixed_attacks, registered, score_attacks
from jaxaudit.tables.attacks.mixed_attacks import (
    MixedConfig,
    density_mixed,
    density_mixed_family,
    domias_mixed,
    domias_mixed_family,
    gen_lra_mixed,
    gen_lra_mixed_family,
)
from jaxaudit.tables.audit import EvaluationConfig, audit_release
from jaxaudit.tables.layout import LEVEL_SCALE, Layout

Tables = tuple[np.ndarray, np.ndarray, np.ndarray]
LAYOUT = Layout((0,), ((1, 2, 3), (4, 5, 6)))
GRID = MixedConfig(k=(4, 17, 1), multiplier=(0.5, 2.0), lam=(0.05, "cv", "rule"))
PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "gen_lra_mixed": (gen_lra_mixed, gen_lra_mixed_family),
    "domias_mixed": (domias_mixed, domias_mixed_family),
    "density_mixed": (
        lambda x, s, r, *rest: density_mixed(x, s, *rest),
        lambda x, s, r, *rest: density_mixed_family(x, s, *rest),
    ),
}
each_attack = pytest.mark.parametrize("name", PAIRS)


@pytest.fixture(scope="module")
def tables() -> Tables:
    """One number, rounded so that rows are copies and distances ties, and two categories of three levels."""
    rng = np.random.default_rng(4)

    def rows(count: int) -> np.ndarray:
        levels = rng.choice(3, size=(count, 2), p=[0.6, 0.3, 0.1])
        return np.hstack([rng.normal(size=(count, 1)).round(1), *LEVEL_SCALE * np.eye(3)[levels].swapaxes(0, 1)])

    x, s, r = rows(9), rows(22), rows(27)
    s[:5] = x[:5]
    return x, np.concatenate([s, s[:4], s[:1]]), np.concatenate([r, r[:3]])


def label(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"


@pytest.mark.parametrize("neighbours", ["encoded", "kernel"])
def test_gen_lra_grid_is_each_setting(neighbours: str, tables: Tables) -> None:
    config = replace(GRID, neighbours=neighbours)
    grid = gen_lra_mixed(*tables, config, LAYOUT)
    family = gen_lra_mixed_family(*tables, config, LAYOUT)
    assert grid.shape == (3, 2, 3, 9)
    alone = {}
    for (i, k), (j, h), (l, lam) in product(*(enumerate(v) for v in (GRID.k, GRID.multiplier, GRID.lam))):
        name = f"gen_lra_mixed[k={k},h={label(h)},lam={label(lam)}]"
        alone[name] = gen_lra_mixed(*tables, replace(config, k=k, multiplier=h, lam=lam), LAYOUT)
        np.testing.assert_allclose(grid[i, j, l], alone[name], rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(family[name], grid[i, j, l])
    assert list(family) == list(alone)
    different = np.unique(np.round(np.stack(list(alone.values())), 9), axis=0)
    assert len(different) == len(alone)  # no setting stands in for another unseen


@pytest.mark.parametrize("name", ["domias_mixed", "density_mixed"])
def test_grid_of_kernels_is_each_setting(name: str, tables: Tables) -> None:
    attack, as_family = PAIRS[name]
    grid, family = (function(*tables, GRID, LAYOUT) for function in (attack, as_family))
    assert grid.shape == (2, 3, 9)
    names = []
    for (j, h), (l, lam) in product(enumerate((0.5, 2.0)), enumerate((0.05, "cv", "rule"))):
        alone = attack(*tables, MixedConfig(multiplier=h, lam=lam), LAYOUT)
        np.testing.assert_allclose(grid[j, l], alone, rtol=1e-12, atol=1e-12)
        names.append(f"{name}[h={label(h)},lam={label(lam)}]")
        np.testing.assert_array_equal(family[names[-1]], grid[j, l])
    assert list(family) == names
    assert len(np.unique(np.round(grid.reshape(6, 9), 9), axis=0)) == 6


@each_attack
def test_axes_and_names_are_of_what_varies(name: str, tables: Tables) -> None:
    attack, as_family = PAIRS[name]
    k_axis = (2,) if name == "gen_lra_mixed" else ()
    ks = ["k=2", "k=3"] if k_axis else [""]
    for config, shape, settings in (
        (MixedConfig(), (), [""]),
        (MixedConfig(k=(2, 3)), k_axis, ks),
        (MixedConfig(multiplier=(0.5, 1)), (2,), ["h=0.5", "h=1"]),
        (MixedConfig(lam=("rule", 0.25)), (2,), ["lam=rule", "lam=0.25"]),
        (MixedConfig(multiplier=(1.0,), lam=(1e-6,)), (1, 1), ["h=1,lam=1e-06"]),
        (MixedConfig(k=(2, 3), lam=(0.2,)), (*k_axis, 1), [",".join(filter(None, [k, "lam=0.2"])) for k in ks]),
    ):
        scores, family = attack(*tables, config, LAYOUT), as_family(*tables, config, LAYOUT)
        assert scores.shape == (*shape, 9)
        assert list(family) == [f"{name}[{setting}]" if setting else name for setting in settings]
        np.testing.assert_array_equal(np.stack(list(family.values())), scores.reshape(-1, 9))
    np.testing.assert_array_equal(as_family(*tables)[name], attack(*tables))


@pytest.mark.parametrize(("neighbours", "searches"), [("encoded", 1), ("kernel", 4)])
def test_neighbours_are_found_for_the_largest_k_alone(
    neighbours: str, searches: int, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, search = [], mixed_attacks.nearest_pairs

    def counted(*given: Any) -> Any:
        found.append(given[-1])
        return search(*given)

    monkeypatch.setattr(mixed_attacks, "nearest_pairs", counted)
    gen_lra_mixed(*tables, MixedConfig(5, neighbours, multiplier=(0.5, 2.0), lam=(0.1, 0.2)), LAYOUT)
    gen_lra_mixed(*tables, MixedConfig((3, 11, 1), neighbours, multiplier=(0.5, 2.0), lam=(0.1, 0.2)), LAYOUT)
    assert found == [5] * searches + [11] * searches


@each_attack
def test_order_of_rows_and_other_targets_have_no_influence(name: str, tables: Tables) -> None:
    x, s, r = tables
    rng = np.random.default_rng(0)
    for neighbours in ("encoded", "kernel"):
        config = replace(GRID, neighbours=neighbours)
        expected = PAIRS[name][0](x, s, r, config, LAYOUT)
        moved = PAIRS[name][0](x, rng.permutation(s), rng.permutation(r), config, LAYOUT)
        np.testing.assert_array_equal(moved, expected)
        part = np.array([7, 2, 4])
        some = PAIRS[name][0](x[part], s, r, config, LAYOUT)
        np.testing.assert_allclose(some, expected[..., part], rtol=1e-12, atol=1e-12)


def test_settings_take_lists_and_stay_hashable() -> None:
    given = {"k": [1, 5], "multiplier": [0.5, 1], "lam": [0.1, "cv", 1]}
    config = MixedConfig(**given)
    assert (config.k, config.multiplier, config.lam) == ((1, 5), (0.5, 1), (0.1, "cv", 1))
    assert config == MixedConfig(k=np.array([1, 5]), multiplier=np.array([0.5, 1.0]), lam=(0.1, "cv", 1))
    assert hash(config) == hash(MixedConfig(k=(1, 5), multiplier=(0.5, 1), lam=(0.1, "cv", 1)))
    assert build(AttackSettings, {"mixed": given}).mixed == config  # as the command line reads them
    assert (MixedConfig().ks, MixedConfig().kernels) == ((10,), ((1.0, 0.1),))
    assert config.kernels[:2] == ((0.5, 0.1), (0.5, "cv"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": ()}, "mixed.k must hold at least one value, got none"),
        ({"k": (1, 1)}, r"mixed.k must hold each value once, got \[1, 1\]"),
        ({"k": (1, 0)}, "mixed.k must be 1 or more, got 0"),
        ({"k": (1, 2.5)}, "mixed.k must be an integer, got 2.5"),
        ({"k": (5, True)}, "mixed.k must be an integer, got True"),
        ({"k": [[1], [2, 3]]}, r"mixed.k must hold names or numbers only, got \[\[1\], \[2, 3\]\]"),
        ({"k": "5"}, "mixed.k must be an integer, got 5"),
        ({"multiplier": []}, "mixed.multiplier must hold at least one value, got none"),
        ({"multiplier": (0.5, 1, 1.0)}, r"mixed.multiplier must hold each value once, got \[0.5, 1, 1.0\]"),
        ({"multiplier": (1.0, 0.0)}, r"mixed.multiplier must be in \[0.001, 1000\], got 0.0"),
        ({"multiplier": (1.0, "cv")}, "mixed.multiplier must be a finite number, got cv"),
        ({"multiplier": (1.0, 1.0000001)}, r"mixed.multiplier must hold values that differ in six digits, got \[1"),
        ({"lam": ()}, "mixed.lam must hold at least one value, got none"),
        ({"lam": ("cv", 0.1, "cv")}, r"mixed.lam must hold each value once, got \['cv', 0.1, 'cv'\]"),
        ({"lam": (0.1, 1.5)}, r"mixed.lam must be in \[1e-06, 1\], got 1.5"),
        ({"lam": ("rule", "ml")}, "mixed.lam must be one of cv, rule, got ml"),
        ({"lam": (0.1, None)}, r"mixed.lam must hold names or numbers only, got \[0.1, None\]"),
        ({"lam": np.array(0.1)}, "mixed.lam must be a finite number"),
    ],
)  # fmt: skip
def test_bad_grids(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        MixedConfig(**change)


def test_too_large_k_in_a_grid(tables: Tables) -> None:
    for k in ((1, 28), (28, 1)):
        with pytest.raises(InputError, match=r"^mixed.k must be in \[1, 27\], got 28$"):
            gen_lra_mixed_family(*tables, MixedConfig(k=k), LAYOUT)


def test_registered_attacks_are_families_where_their_settings_are(tables: Tables) -> None:
    key = jax.random.key(0)
    alone = registered(AttackSettings(mixed=MixedConfig(k=4)), LAYOUT)
    several = registered(AttackSettings(mixed=MixedConfig(k=(2, 4))), LAYOUT)
    for name, (attack, _) in PAIRS.items():
        expected = attack(*tables, MixedConfig(k=4), LAYOUT)
        for found in (alone, several):
            scores = found[name].score(*tables, key)
            if name == "gen_lra_mixed" and found is several:
                assert list(scores) == ["gen_lra_mixed[k=2]", "gen_lra_mixed[k=4]"]
                scores = scores["gen_lra_mixed[k=4]"]
            np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-12)
    x, s, r = (table[:, 1:4] for table in tables)  # the last level is one that only the reference has
    found = registered()["density_mixed"].score(x[x[:, 2] == 0], s[s[:, 2] == 0], r, key)
    expected = density_mixed(x[x[:, 2] == 0], s[s[:, 2] == 0], None, Layout((), ((0, 1, 2),)))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    scores = score_attacks(list(PAIRS), *tables, settings=AttackSettings(mixed=GRID), layout=LAYOUT)
    assert len(scores) == 18 + 6 + 6
    combined = EnsembleConfig(components=("dcr", "gen_lra_mixed"))
    with pytest.raises(InputError, match="must be single attacks, no grid of settings, got gen_lra_mixed"):
        score_attacks("ensemble", *tables, settings=AttackSettings(mixed=GRID, ensemble=combined), layout=LAYOUT)


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "age": rng.normal(size=rows), "job": rng.choice(list("abc"), rows), "town": rng.choice(list("vwxyz"), rows),
    })  # fmt: skip


def test_a_grid_is_scored_by_an_audit_and_tested_jointly() -> None:
    members, others, reference = people(24, 0), people(20, 1), people(30, 2)
    release = pd.concat([members[:14], people(14, 3)])
    grid = MixedConfig(k=(1, 5), multiplier=(0.5, 1.0), lam=(0.1, "rule"))
    attacks = ["gen_lra_mixed", "dcr", "domias_mixed", "density_mixed"]
    judge = EvaluationConfig(permutations=999)
    result = audit_release(
        members, others, release, reference, attacks, settings=AttackSettings(mixed=grid), evaluation=judge
    )
    kernels = [f"h={h},lam={lam}" for h in ("0.5", "1") for lam in ("0.1", "rule")]
    names = [f"gen_lra_mixed[k={k},{kernel}]" for k in (1, 5) for kernel in kernels]
    names += ["dcr", *(f"{attack}_mixed[{kernel}]" for attack in ("domias", "density") for kernel in kernels)]
    assert list(result.summary["attacks"]) == names
    assert result.summary["permutation"]["attacks"] == len(names) == 17
    assert result.summary["permutation"]["best"] in names
    one = MixedConfig(k=5, multiplier=0.5, lam="rule")
    single = audit_release(members, others, release, reference, attacks[0], settings=AttackSettings(mixed=one),
                           evaluation=judge)  # fmt: skip
    column = "gen_lra_mixed[k=5,h=0.5,lam=rule]"
    np.testing.assert_allclose(result.table[column], single.table["gen_lra_mixed"], rtol=1e-9, atol=1e-9)
    judged, alone = result.summary["attacks"][column], single.summary["attacks"]["gen_lra_mixed"]
    assert judged["auc"] == alone["auc"]
    assert judged["p_value"] > alone["p_value"]  # it pays for the others
    _same_joint_p(result, names)


def _same_joint_p(result: Any, names: list[str]) -> None:
    """The adjusted p-values are those of the largest standardised AUC of all names, by permutations of our own."""
    member = result.table["member"].to_numpy()
    ranks = np.stack([result.table[name].rank().to_numpy() for name in names])
    ranks -= ranks.mean(axis=1, keepdims=True)
    ranks /= np.maximum(ranks.std(axis=1, keepdims=True), 1e-300)
    rng = np.random.default_rng(0)
    largest = np.array([(ranks @ rng.permutation(member)).max() for _ in range(4000)])
    for name, own in zip(names, ranks @ member, strict=True):
        expected = (largest >= own - 1e-9).mean()
        error = np.sqrt(max(expected * (1 - expected), 1e-3) * (1 / 999 + 1 / 4000))
        found = result.summary["attacks"][name]
        assert abs(found["p_value"] - expected) < 4.5 * error, name
        assert found["p_value"] >= found["p_value_unadjusted"], name
