"""The audit as a whole: its table, its settings, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from jaxaudit.evaluate import auc_interval, compare_aucs, detectable_auc, tpr_at_fpr
from jaxaudit.evaluate.gate import GateConfig
from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.attacks import Attack, AttackSettings, DomiasConfig, GenLRAConfig
from jaxaudit.tables.audit import EvaluationConfig, audit_example, audit_release
from jaxaudit.tables.basis import fit_basis, span_report
from jaxaudit.tables.encode import fit_encoder

QUICK = EvaluationConfig(permutations=99)


def people(rows: int, seed: int) -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(seed).normal(size=(rows, 3)), columns=["a", "b", "c"])


MEMBERS, OTHERS, REFERENCE = people(30, 0), people(25, 1), people(40, 2)
RELEASE = MEMBERS + 0.3


def audit(attacks=("dcr",), reference=REFERENCE, **options):
    return audit_release(MEMBERS, OTHERS, RELEASE, reference, attacks, **{"evaluation": QUICK, **options})


def first_column(targets, synthetic, reference, key):
    return targets[:, 0]


def broken(targets, synthetic, reference, key):
    raise KeyError("x")


def imaginary(targets, synthetic, reference, key):
    return targets[:, 0] + 1j


def test_every_record_can_be_traced() -> None:
    table = audit(first_column, reference=None).table
    assert list(table.columns) == [
        "record", "member", "row", "first_column", "reference_distance", "release_distance", "stratum",
    ]  # fmt: skip
    assert table["record"].tolist() == list(range(30 + 13))
    inside, outside = (table[table["member"] == label] for label in (1, 0))
    assert inside["row"].tolist() == list(range(30))
    given = OTHERS["a"].to_numpy()[outside["row"]]  # the encoding of "a" is an increasing line through these
    assert np.corrcoef(given, outside["first_column"])[0, 1] == pytest.approx(1)
    whole = audit(first_column).table
    assert whole["row"].tolist() == [*range(30), *range(25)]
    copied = people(30, 1)
    same = audit_release(copied, OTHERS, copied, REFERENCE, attacks=["dcr"], evaluation=QUICK).table
    assert (same["release_distance"][:30] == 0).all()
    assert np.allclose(same["release_distance"], -same["dcr"], atol=1e-12)
    assert (same["reference_distance"][:30] > 0).all()


def test_row_numbers_are_no_evidence() -> None:
    tables, start = [], 0
    for part in (MEMBERS, OTHERS, people(30, 5), REFERENCE):
        tables.append(part.assign(no=np.arange(start, start + len(part))))
        start += len(part)
    result = audit_release(*tables, attacks=["dcr"], evaluation=QUICK)
    plain = audit_release(*(table[["a", "b", "c"]] for table in tables), attacks=["dcr"], evaluation=QUICK)
    assert result.summary["attacks"] == plain.summary["attacks"]
    assert "'no'" in " ".join(result.warnings)
    raw = audit_release(*tables, attacks=["dcr"], evaluation=QUICK, encoding="raw")
    assert raw.data["encoded"] == ["a", "b", "c"]


def test_dropped_columns() -> None:
    result = audit(drop=["b"])
    assert result.data["encoded"] == ["a", "c"]
    assert result.config["release"] == {"encoding": "standard", "drop": ["b"], "roles": {}}
    assert len(audit_example("dcr", drop="mean radius", evaluation=QUICK).data["encoded"]) == 29
    with pytest.raises(InputError, match=r"release.drop must name columns of the tables, got 'z'"):
        audit(drop=["z"])


def test_the_level_drives_every_interval() -> None:
    result = audit(evaluation=EvaluationConfig(level=0.5, permutations=99))
    scores, member = result.evidence["scores"][0], result.evidence["member"]
    found = result.summary["attacks"]["dcr"]
    assert found["auc_ci"] == list(auc_interval(scores, member, level=0.5))
    assert found["tpr_at_fpr"] == tpr_at_fpr(scores, member, level=0.5)
    assert found["tpr_at_fpr"] != tpr_at_fpr(scores, member)


def test_a_reference_without_variation_matters_to_densities_only() -> None:
    same = pd.concat([REFERENCE[:1]] * 5)
    assert audit(reference=same).summary["attacks"]["dcr"]["auc"] > 0.5
    assert audit(["dcr", first_column], reference=same)
    for name in ("gen_lra", "domias"):
        with pytest.raises(InputError, match="reference must vary"):
            audit([name], reference=same, settings=AttackSettings(gen_lra=GenLRAConfig(k=2)))


def test_copies_in_the_reference_count_in_its_span() -> None:
    def flat(table: pd.DataFrame, off: float = 0.0) -> pd.DataFrame:  # c is a sum, but for members
        return table.assign(c=table["a"] + table["b"] + off)

    reference = flat(pd.concat([REFERENCE, *[REFERENCE[:1]] * 60]))
    release = flat(RELEASE)
    result = audit_release(flat(MEMBERS, 1.0), flat(OTHERS), release, reference, "domias", evaluation=QUICK)
    encoder = fit_encoder(reference, release)
    basis = fit_basis(encoder.transform(reference))
    expected = span_report(encoder.transform(flat(MEMBERS, 1.0)), encoder.transform(release), basis).out_of_span.max()
    (spanned,) = [warning for warning in result.warnings if "30 of 55 target rows leave the span" in warning]
    assert float(spanned.split("by up to ")[1].split()[0]) == pytest.approx(expected, rel=1e-2)


def test_constant_columns_are_named_once() -> None:
    tables = [table.assign(z=7) for table in (MEMBERS, OTHERS, RELEASE, REFERENCE)]
    result = audit_release(*tables, attacks="dcr", evaluation=QUICK)
    assert len([warning for warning in result.warnings if "'z'" in warning]) == 1
    assert result.data["counts"]["constant_columns"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": None}, "release.members must be a file, a DataFrame or a 2-D array, got NoneType"),
        ({"synthetic": 3}, "release.synthetic must be a file, a DataFrame or a 2-D array, got int"),
        ({"members": np.ones((4, 2)) * 1j}, "release.members must have real numbers, got complex numbers"),
        ({"attacks": None}, "attacks must be a list of names or functions, got NoneType"),
        ({"attacks": 3}, "attacks must be a list of names or functions, got int"),
        ({"attacks": "guess"}, "attacks must be among"),
        ({"attacks": imaginary}, "attack imaginary must return 55 finite scores, one per target, got complex"),
        ({"seed": None}, "seed must be an integer, got None"),
        ({"seed": -1}, "seed must be in"),
        ({"settings": None}, "settings must be AttackSettings, got NoneType"),
        ({"settings": GenLRAConfig()}, "settings must be AttackSettings, got GenLRAConfig"),
        ({"evaluation": 0.9}, "evaluation must be an EvaluationConfig, got float"),
        ({"encoding": None}, "release.encoding must be one of"),
    ],
)
def test_wrong_types(change: dict, message: str) -> None:
    tables = {"members": MEMBERS, "non_members": OTHERS, "synthetic": RELEASE, "reference": REFERENCE}
    with pytest.raises(InputError, match=message):
        audit_release(**{**tables, "attacks": ["dcr"], "evaluation": QUICK, **change})


@pytest.mark.parametrize("name", ["member", "record", "row"])
def test_reserved_names_of_attacks(name: str) -> None:
    known = "record, member, row, reference_distance, release_distance, stratum"
    with pytest.raises(InputError, match=f"attacks must have other names than {known}, got {name}"):
        audit([Attack(name, first_column, "")])


def test_an_attack_that_fails_is_named() -> None:
    with pytest.raises(KeyError) as caught:
        audit(["dcr", broken])
    assert caught.value.__notes__ == ["raised by the attack broken"]


@pytest.mark.parametrize("config", [GenLRAConfig(), DomiasConfig()])
def test_settings_are_checked_when_made(config) -> None:
    name = "gen_lra" if isinstance(config, GenLRAConfig) else "domias"
    for change in ({"multiplier": 9e-4}, {"multiplier": 1001.0}, {"rule": "best"}, {"precision": "half"}):
        with pytest.raises(InputError, match=rf"{name}.{next(iter(change))} must be"):
            replace(config, **change)
    for multiplier in (1e-3, 1e3):
        replace(config, multiplier=multiplier)


def test_members_and_non_members_swapped_give_the_complementary_auc() -> None:
    """With a fixed reference nothing is fitted on the labels, so AUC and its complement add to one."""
    rng = np.random.default_rng(5)
    tables = {name: pd.DataFrame(rng.normal(size=(50, 3)), columns=["a", "b", "c"]) for name in ("m", "n", "r")}
    synthetic = tables["m"] + rng.normal(scale=0.3, size=(50, 3))
    attacks, judge = ["gen_lra", "dcr", "domias", "dpi"], EvaluationConfig(permutations=99)
    there = audit_release(tables["m"], tables["n"], synthetic, tables["r"], attacks, evaluation=judge)
    back = audit_release(tables["n"], tables["m"], synthetic, tables["r"], attacks, evaluation=judge)
    for name in attacks:
        one, other = (result.summary["attacks"][name]["auc"] for result in (there, back))
        assert one > 0.55
        assert one + other == pytest.approx(1, abs=1e-12)


def test_attacks_are_compared_on_the_same_records() -> None:
    result = audit(("dcr", first_column, "density"))
    rows = list(result.summary["attacks"].values())
    best = max(range(3), key=lambda i: rows[i]["auc"])
    paired = compare_aucs(result.evidence["scores"], result.evidence["member"])
    for i, row in enumerate(rows):
        assert row["behind_best"] == pytest.approx(rows[best]["auc"] - row["auc"])
        assert row["behind_best_ci"] == [paired.low[best, i], paired.high[best, i]]
        assert row["first_share"] == paired.first[i]
        assert row["detectable_auc"] == detectable_auc(row["critical_auc"], 30, 25)
    assert list(result.summary["attacks"])[best] == result.summary["permutation"]["best"]


def test_a_grid_of_settings_is_a_family_of_attacks_judged_together() -> None:
    grid = GenLRAConfig(k=(1, 5), multiplier=(0.5, 1.0))
    result = audit(("gen_lra", "dcr"), settings=AttackSettings(gen_lra=grid))
    names = [f"gen_lra[k={k},h={h:g}]" for k in (1, 5) for h in (0.5, 1)]
    assert list(result.summary["attacks"]) == [*names, "dcr"]
    assert result.summary["permutation"]["attacks"] == 5
    single = audit(("gen_lra",), settings=AttackSettings(gen_lra=GenLRAConfig(k=5, multiplier=0.5)))
    np.testing.assert_allclose(result.table["gen_lra[k=5,h=0.5]"], single.table["gen_lra"], rtol=1e-9, atol=1e-9)


def test_a_gate_that_many_settings_cross_fills_no_page() -> None:
    grid = AttackSettings(gen_lra=GenLRAConfig(k=(1, 2, 3, 4, 5, 6, 7)))
    result = audit_release(MEMBERS, OTHERS, MEMBERS, REFERENCE, ("gen_lra",), settings=grid, evaluation=QUICK,
                           gate=GateConfig(auc_lower=0.5))  # fmt: skip
    crossed = result.summary["gate"]["crossed"]
    alarms = [line for line in result.warnings if line.startswith("gate crossed")]
    assert len(crossed) == 7
    assert alarms == [f"gate crossed: {line}" for line in crossed[:5]] + [
        "gate crossed: 2 more times, see gate.crossed in results.json"
    ]
