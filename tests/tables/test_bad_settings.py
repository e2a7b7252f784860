"""Settings, tables and attacks that break a rule: one clear line, before anything runs; or a warning with counts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest

from jaxaudit.report.write import write_run
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.keys import host_rng, stream_key
from jaxaudit.tables.attacks import (
    Attack,
    AttackSettings,
    BNAFConfig,
    ClassifierConfig,
    EnsembleConfig,
    LoganConfig,
    density_bnaf,
    ensemble,
    gen_lra_bnaf,
    logan,
    registered,
    score_attacks,
)
from jaxaudit.tables.bnaf import check_size
from jaxaudit.tables.encode import FARTHEST, fit_encoder
from jaxaudit.tables.evidence import released_evidence
from jaxaudit.tables.overfit import OverfitConfig, sweep_overfit
from jaxaudit.tables.overfit_theory import limit_ratio, plug_in_terms
from jaxaudit.tables.sensitivity import SensitivityConfig, check_sensitivity, sensitivity

KEY = jax.random.key(0)
X, S, R = np.random.default_rng(0).normal(size=(3, 20, 2))
MEMBER = np.arange(20) < 10


def first(targets, synthetic, reference, key):
    return targets[:, 0]


def refused(call, *parts: str) -> None:
    """``call`` raises one line that has the parts, in the shape NAME must RULE, got VALUE."""
    with pytest.raises(InputError) as caught:
        call()
    text = str(caught.value)
    assert " must " in text
    assert ", got " in text
    assert "\n" not in text
    assert all(part in text for part in parts), text


# ---- sizes ----------------------------------------------------------------------------------------------------------

MOST = [
    (LoganConfig, "logan", {"hidden": 4096, "epochs": 1_000_000, "batch": 65_536, "ensemble": 1000}),
    (ClassifierConfig, "classifier", {"forests": 1000, "trees": 10_000, "leaf": 1_000_000, "rows": 1_000_000}),
    (BNAFConfig, "bnaf", {"layers": 16, "hidden": 4096, "flows": 100, "steps": 10_000_000, "batch": 65_536,
                          "patience": 10_000_000, "ensemble": 1000, "finetune_steps": 1_000_000,
                          "finetune_batch": 65_536}),
    (OverfitConfig, "overfit", {"train": 100_000, "release": 100_000, "replications": 100_000, "draws": 1_000_000}),
]  # fmt: skip
CASES = [(kind, group, name, most) for kind, group, names in MOST for name, most in names.items()]


@pytest.mark.parametrize(("kind", "group", "name", "most"), CASES, ids=[f"{g}.{n}" for _, g, n, _ in CASES])
def test_sizes_have_upper_bounds(kind, group: str, name: str, most: int) -> None:
    small = {"ensemble": 1, "batch": 1, "hidden": 1} if group == "logan" else {}
    assert getattr(kind(**small | {name: most}), name) == most
    for value in (most + 1, 10**16, 0, 1.5):
        refused(lambda value=value: kind(**{name: value}), f"{group}.{name} must")


@pytest.mark.parametrize(
    ("name", "values"),
    [("rho", [1e160]), ("rho", [1.1e6]), ("d", [1001]), ("n", [100_001]), ("n", [6]), ("k", [[]]), ("k", 5),
     ("k", ([],)), ("attacks", "gen_lra"), ("attacks", [None, "gen_lra"]), ("eps", [0.1, 0.1]),
     ("attacks", ["gen_lra", "ensemble"])],
)  # fmt: skip
def test_lists_of_the_sweep_are_checked(name: str, values) -> None:
    refused(lambda: OverfitConfig(**{name: values}), f"overfit.{name} must")


def test_the_sweep_bounds_its_pairs_and_takes_the_largest_rho() -> None:
    refused(lambda: OverfitConfig(train=100_000, scored=1001, release=100_000), "overfit.scored", "at most 1000 ")
    assert OverfitConfig(train=100_000, scored=1000, release=100_000, rho=[1e6]).rho == (1e6,)
    assert np.isfinite(plug_in_terms(1e6, [0.5], d=5, n=500).gap).all()
    refused(lambda: plug_in_terms(1e160, [0.5], d=5, n=500), "rho must be in [0, 1e+06]")
    refused(lambda: limit_ratio(X, S, eps=0.5, rho=1e160, bandwidth=1.0), "rho must be in [0, 1e+06]")
    refused(lambda: OverfitConfig(d=[2, 5], n=[6, 100]), "overfit.n must be 7 or more, got 6")
    refused(lambda: sweep_overfit({}), "overfit must be an OverfitConfig")


def test_discriminators_trained_together_are_bounded() -> None:
    assert LoganConfig(hidden=4096, ensemble=16, batch=2048).ensemble == 16
    refused(lambda: LoganConfig(hidden=4096, ensemble=17), "logan.ensemble must be at most 16 with hidden=4096")
    refused(lambda: LoganConfig(batch=65_536, ensemble=33), "logan.ensemble must be at most 32 with hidden=64")
    many = np.repeat(X, 200, axis=0)
    refused(lambda: logan(X, many, R, LoganConfig(epochs=1_000_000, batch=1)), "logan.epochs", "4000000000 steps")


def test_flows_trained_together_are_bounded() -> None:
    refused(lambda: check_size(100, BNAFConfig(hidden=4096, ensemble=4)), "bnaf.ensemble must be at most 3 for 100")
    check_size(100, BNAFConfig(hidden=4096, ensemble=3))
    refused(
        lambda: check_size(10_000, BNAFConfig(batch=65_536)),
        "bnaf.hidden must be smaller for 10000 columns",
        "hidden=8",
    )
    refused(lambda: check_size(10, BNAFConfig(batch=65_536, ensemble=52)), "bnaf.ensemble must be at most 51 for 10")
    many, refit = BNAFConfig(hidden=64, finetune_batch=65_536), BNAFConfig(hidden=64, batch=65_536, influence="refit")
    check_size(10, many)
    check_size(10, replace(refit, batch=13_107), influence=True)
    refused(lambda: check_size(10, many, influence=True), "bnaf.finetune_batch must be at most 13107 for")
    refused(lambda: gen_lra_bnaf(X, S, R, replace(many, hidden=640)), "bnaf.finetune_batch must be at most 6553 for")
    refused(lambda: check_size(10, refit, influence=True), "bnaf.batch must be at most 13107")
    refused(lambda: density_bnaf(X, S, R, BNAFConfig(hidden=4096, layers=16, flows=100)), "bnaf.hidden must")


# ---- ensemble -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("components", [5, None, (5,), ([],), (), "dcr", ["dcr", "dcr"], ["ensemble"]])
def test_components_are_a_list_of_names(components) -> None:
    refused(lambda: EnsembleConfig(components=components), "ensemble.components must")


def test_a_list_of_components_becomes_a_tuple() -> None:
    assert EnsembleConfig(components=["dcr", "dpi"]) == EnsembleConfig(components=("dcr", "dpi"))


@pytest.mark.parametrize(
    ("name", "value"), [("stand_ins", 1e-300), ("stand_ins", 0.00099), ("stand_ins", 0.51), ("ridge", 1e300)]
)
def test_shares_and_strengths_are_bounded(name: str, value: float) -> None:
    refused(lambda: EnsembleConfig(weights="fitted", **{name: value}), f"ensemble.{name} must be in")


def test_the_smallest_share_of_stand_ins_works() -> None:
    scores = ensemble(X, S, R, {"first": first}, KEY, EnsembleConfig(weights="fitted", stand_ins=1e-3))
    assert np.isfinite(scores).all()
    config = EnsembleConfig(weights="fitted")
    refused(lambda: ensemble(X, S[:1], R, {"first": first}, KEY, config), "synthetic must have at least 2 rows")


@pytest.mark.parametrize("components", [None, 5, {}, {"a": None}, {5: first}, [first]])
def test_an_ensemble_takes_a_mapping_of_functions(components) -> None:
    refused(lambda: ensemble(X, S, R, components, KEY), "components")


@pytest.mark.parametrize("key", [5, None, np.zeros(2, np.uint32), jax.random.split(KEY)])
def test_keys_are_keys(key) -> None:
    refused(lambda: ensemble(X, S, R, {"first": first}, key), "key must be a key")
    refused(lambda: sensitivity(lambda r: {}, MEMBER, R, SensitivityConfig((0.5,)), key), "key must be a key")


def test_settings_of_another_type_are_refused() -> None:
    refused(lambda: ensemble(X, S, R, {"first": first}, KEY, 5), "config must be an EnsembleConfig")
    for settings in (5, "x", {}, EnsembleConfig()):
        refused(lambda settings=settings: score_attacks("dcr", X, S, R, settings=settings), "settings must be Attack")
        refused(lambda settings=settings: registered(settings), "settings must be Attack")
    for layout in (5, "x", ()):
        refused(lambda layout=layout: score_attacks("dcr", X, S, R, layout=layout), "layout must be a Layout")
    refused(lambda: AttackSettings(gen_lra=5), "gen_lra must be a GenLRAConfig")
    refused(lambda: score_attacks("dcr", X, S, R, seed="x"), "seed must be an integer")
    refused(lambda: released_evidence(X, S, R, config=5), "config must be a GenLRAConfig")
    refused(lambda: released_evidence(X, S, R, config={}), "config must be a GenLRAConfig")


# ---- users' attacks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("a", 5, "d"), (5, first, "d"), ("", first, "d"), ("a", first, 5)])
def test_an_attack_has_a_name_a_function_and_a_description(arguments) -> None:
    refused(lambda: Attack(*arguments))


def family(*names):
    return lambda targets, synthetic, reference, key: dict.fromkeys(names, targets[:, 0])


@pytest.mark.parametrize(
    "names", [("record",), ("fine", "stratum"), ("dcr",), ("last",), ("id: who",), (5,), ("",), (None,), ()]
)
def test_a_family_has_names_of_its_own(names) -> None:
    attacks = ["dcr", Attack("own", family(*names), "a family"), Attack("last", first, "another")]
    refused(lambda: score_attacks(attacks, X, S, R), "attack own must")


def test_two_families_share_no_name() -> None:
    two = [Attack("one", family("a", "b"), ""), Attack("two", family("b"), "")]
    refused(lambda: score_attacks(two, X, S, R), "attack two must return scores under names that no other", "got b")
    assert list(score_attacks([Attack("one", family("one", "b"), ""), "dcr"], X, S, R)) == ["one", "b", "dcr"]


@pytest.mark.parametrize("name", ["id: who", "record", "member"])
def test_a_plain_attack_is_no_other_column(name: str) -> None:
    refused(lambda: score_attacks(Attack(name, first, ""), X, S, R), "attacks must have", f"got {name}")


def test_a_name_may_hold_what_utf8_cannot() -> None:
    odd = lambda targets, synthetic, reference, key: targets[:, 0] + jax.random.uniform(key)  # noqa: E731
    odd.__name__ = "odd\udc80"
    assert list(score_attacks(odd, X, S, R)) == ["odd\udc80"]
    assert np.isfinite(ensemble(X, S, R, {odd.__name__: odd}, KEY)).all()
    assert stream_key(0, "\udc80") != stream_key(0, "\udc81")
    assert host_rng(0, "\udc80").random() != host_rng(0, "\udc81").random()


# ---- sensitivity ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [5, None, "0.5", [[0.5]], [0.5, 0.5]])
@pytest.mark.parametrize("name", ["sizes", "shifts"])
def test_sizes_and_shifts_are_lists(name: str, value) -> None:
    refused(lambda: SensitivityConfig(**{name: value}), f"sensitivity.{name} must")


def test_a_list_of_sizes_becomes_a_tuple() -> None:
    assert SensitivityConfig(sizes=[0.5], shifts=np.array([1.0])) == SensitivityConfig((0.5,), (1.0,))


def test_references_too_small_are_named_before_scoring() -> None:
    check_sensitivity(SensitivityConfig((0.25,), (0.5,), keep=0.25), 40)
    check_sensitivity(SensitivityConfig(keep=0.01), 40)  # nothing is shifted
    refused(lambda: check_sensitivity(SensitivityConfig((0.5, 0.24)), 38), "sensitivity.sizes", "10 of the 38", "0.24 ")
    refused(lambda: check_sensitivity(SensitivityConfig((), (0.5,), keep=0.2), 40), "sensitivity.keep", "(8 rows)")
    refused(lambda: check_sensitivity(SensitivityConfig((0.5,)), 40, least=21), "at least 21 of the 40", "(20 rows)")
    refused(lambda: check_sensitivity(None, 40), "sensitivity must be a SensitivityConfig")


def test_what_an_attack_raises_names_the_setting() -> None:
    def score(reference):
        return score_attacks("ensemble", X, S, reference, settings=small)

    small = AttackSettings(ensemble=EnsembleConfig(components=("dcr",)))
    for config, part in ((SensitivityConfig((0.1,)), "sensitivity.sizes=0.1 must leave"),
                         (SensitivityConfig((), (0.5,), keep=0.1), "sensitivity.keep")):  # fmt: skip
        refused(
            lambda config=config: sensitivity(score, MEMBER, R, config, KEY), part, "at least 4 rows", "got 2 rows:"
        )

    def broken(reference):
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck") as caught:
        sensitivity(broken, MEMBER, R, SensitivityConfig((0.5,)), KEY)
    assert "sensitivity.sizes" in caught.value.__notes__[0]


def test_the_score_of_sensitivity_is_a_function_to_a_mapping() -> None:
    config = SensitivityConfig((0.5,))
    refused(lambda: sensitivity(None, MEMBER, R, config, KEY), "score must be a function")
    refused(lambda: sensitivity(lambda rows: X[:, 0], MEMBER, R, config, KEY), "score must return scores by attack")
    refused(lambda: sensitivity(lambda rows: {}, MEMBER, R, None, KEY), "config must be a SensitivityConfig")


# ---- tables ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"age": rng.normal(40, 10, 40), "pay": rng.normal(size=40), "city": ["a", "b"] * 20})


def test_numbers_cut_off_are_counted(people) -> None:
    encoder = fit_encoder(people, people)
    records = people.assign(pay=people["pay"] * 1e300)
    records.loc[0, "age"] = 1e100
    (note,) = encoder.notes(records, "members")
    assert note.startswith("Numbers in members farther than 1e+09 standard deviations")
    assert "'age' (1 of 40, 2.5 %), 'pay' (40 of 40, 100 %)" in note
    assert encoder.notes(people, "members") == ()
    scale = encoder.columns[0].scale
    edge = people.assign(age=encoder.columns[0].centre + scale * FARTHEST * np.where(np.arange(40) < 3, -1.01, 0.99))
    assert encoder.cut(edge) == {"age": 3}
    assert fit_encoder(people[["age"]], people[["age"]], "raw").notes(records, "members") == ()


def test_a_release_in_other_units_is_counted(people) -> None:
    release = people.assign(pay=people["pay"] * 1e300)
    (note,) = fit_encoder(people, release).notes(release, "synthetic")
    assert "'pay' (40 of 40, 100 %)" in note


def test_columns_without_a_value_in_one_table_are_named(people) -> None:
    empty = people.assign(age=np.nan, city=None)
    assert fit_encoder(people, empty).unshared == (
        "Columns without any value in synthetic, whose cells are all missing: 'age', 'city'.",
    )
    (warning,) = fit_encoder(empty, people).unshared
    assert warning.startswith("Columns without any value in reference, ")
    assert fit_encoder(people, people).unshared == ()


def test_levels_of_the_release_alone_are_counted(people) -> None:
    release = people.assign(city=["c", "d", "c", None] + ["a"] * 36)
    assert fit_encoder(people, release).unshared == (
        "Levels that synthetic has and reference has not: 'city' (2 levels, 3 of 40, 7.5 % of the rows).",
    )
    assert fit_encoder(release, people.assign(city="a")).unshared == ()


@pytest.mark.parametrize(("bad", "rows", "text"), [(25, 25, "25 of 25, 100 %"), (249, 250, "249 of 250, 99.6 %"),
                                                   (1, 3, "1 of 3, 33 %"), (1, 1000, "1 of 1000, 0.1 %")])  # fmt: skip
def test_shares_are_plain_numbers(bad: int, rows: int, text: str) -> None:
    table = pd.DataFrame({"city": ["a", "b"]})
    (note,) = fit_encoder(table, table).notes(pd.DataFrame({"city": ["x"] * bad + ["a"] * (rows - bad)}), "members")
    assert f"({text})" in note


# ---- writing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [None, 5, b"out", "a\0b"])
def test_a_run_is_written_into_a_path(folder) -> None:
    refused(lambda: write_run(SimpleNamespace(audit="release"), folder), "folder must be a path")


@pytest.mark.parametrize("result", [5, None, SimpleNamespace(audit="overfit")])
def test_only_an_audit_is_written(result, tmp_path) -> None:
    refused(lambda: write_run(result, tmp_path / "out"), "audit must be one of graph, release")
    assert not (tmp_path / "out").exists()


def test_replacing_a_setting_checks_it_again() -> None:
    refused(lambda: replace(BNAFConfig(), hidden=4097), "bnaf.hidden must be in [1, 4096]")
