"""Roles given to columns: what each does to the tables and to the encoding, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.columns import column_kind, convert, mixed_logical, ordered_levels
from jaxaudit.tables.data import Release, load_release
from jaxaudit.tables.encode import LEVEL_SCALE, fit_encoder
from jaxaudit.tables.roles import ROLES, Role, check_roles, settle

GRADES = ("low", "mid", "high")


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "age": rng.integers(18, 90, rows), "zip": rng.choice([1010, 1020, 8001], rows), "no": np.arange(rows) + 7,
        "grade": rng.choice(GRADES, rows), "when": rng.choice(["2024-01-31", "2024-02-29"], rows),
        "x": rng.normal(size=rows),
    })  # fmt: skip


TABLES = dict(zip(("members", "non_members", "synthetic", "reference"), (people(30, s) for s in range(4)), strict=True))


def load(roles: Any = None, **changed: Any) -> Release:
    return load_release(**{**TABLES, **changed}, roles=roles)


def encoded(release: Release, roles: Any = None) -> pd.DataFrame:
    encoder = fit_encoder(release.reference, release.synthetic, roles=release.roles if roles is None else roles)
    return pd.DataFrame(encoder.transform(release.members), columns=encoder.feature_names)


def test_inferred_roles_are_listed_and_change_nothing() -> None:
    release = load()
    assert {name: (role.name, role.given) for name, role in release.roles.items()} == {
        "age": ("numeric", False), "zip": ("numeric", False), "grade": ("categorical", False),
        "when": ("datetime", False), "x": ("numeric", False), "no": ("id", False),
    }  # fmt: skip
    pd.testing.assert_frame_equal(encoded(release), encoded(release, {}))
    assert release.roles["age"].as_dict() == {"role": "numeric", "given": False}


def test_every_role_at_once() -> None:
    roles = {"age": "numeric", "zip": "categorical", "grade": list(GRADES), "when": "datetime", "no": "id", "x": "drop"}
    release = load(roles)
    assert release.members.columns.tolist() == ["age", "zip", "grade", "when"]
    assert {name: role.name for name, role in release.roles.items()} == {**roles, "grade": "ordinal"}
    assert all(role.given for role in release.roles.values())
    assert release.roles["grade"].as_dict() == {"role": "ordinal", "given": True, "order": list(GRADES)}
    assert release.dropped == ("x",)
    assert "Columns declared as identifiers are left out: 'no'." in release.warnings
    pd.testing.assert_frame_equal(release.ids["members"], TABLES["members"][["no"]])
    values = encoded(release)
    assert values.columns.tolist() == ["age", "zip=1010", "zip=1020", "zip=8001", "grade", "when"]
    for code in (1010, 1020, 8001):
        np.testing.assert_array_equal(values[f"zip={code}"], LEVEL_SCALE * (TABLES["members"]["zip"] == code))
    ranks = {name: frame["grade"].map(GRADES.index).to_numpy(float) for name, frame in TABLES.items()}
    expected = (ranks["members"] - ranks["reference"].mean()) / ranks["reference"].std(ddof=1)
    np.testing.assert_allclose(values["grade"], expected, rtol=1e-12)


def test_ids_follow_their_records_through_the_split() -> None:
    release = load({"no": "id"}, reference=None)
    np.testing.assert_array_equal(release.ids["non_members"]["no"], 7 + release.rows["non_members"])
    assert len(release.ids["non_members"]) == len(release.non_members)


def test_a_role_beats_the_search_for_identifiers() -> None:
    assert "no" not in load().members
    assert load({"no": "numeric"}).members["no"].dtype == np.float64
    release = load({"no": "categorical"})
    assert "no=7" in encoded(release)
    names = {name: frame.assign(who=[f"p{i}" for i in range(30)]) for name, frame in TABLES.items()}
    assert "who" not in load_release(**names).members
    assert "who=p3" in encoded(load_release(**names, roles={"who": "categorical"}))


def test_categorical_codes_are_as_declared_by_pandas() -> None:
    declared = {name: frame.astype({"zip": "category"}) for name, frame in TABLES.items()}
    pd.testing.assert_frame_equal(encoded(load({"zip": "categorical"})), encoded(load_release(**declared)))
    # numeric undoes a category, and numbers in quotes or with decimals are the same levels
    pd.testing.assert_frame_equal(encoded(load_release(**declared, roles={"zip": "numeric"})), encoded(load()))
    quoted = TABLES["synthetic"].assign(zip=TABLES["synthetic"]["zip"].astype(float).astype(str))
    pd.testing.assert_frame_equal(
        encoded(load({"zip": "categorical"}, synthetic=quoted)), encoded(load({"zip": "categorical"}))
    )


def test_order_of_values() -> None:
    sizes = {
        name: frame.assign(size=frame["zip"].map({1010: "9", 1020: "10", 8001: "1e3"}))
        for name, frame in TABLES.items()
    }
    release = load_release(**sizes, roles={"size": "ordinal", "grade": "ordinal"})
    assert release.roles["size"].order == ("9", "10", "1000")  # by size, not by letters
    assert release.roles["grade"].order == ("high", "low", "mid")  # words by letters: give a list instead
    reverse = load({"grade": GRADES[::-1]})
    np.testing.assert_allclose(encoded(reverse)["grade"], -encoded(load({"grade": GRADES}))["grade"], atol=1e-12)


def test_ordered_categories_are_ordinal_by_themselves() -> None:
    kind = pd.CategoricalDtype(list(GRADES), ordered=True)
    ordered = {name: frame.astype({"grade": kind}) for name, frame in TABLES.items()}
    release = load_release(**ordered)
    assert release.roles["grade"] == Role("ordinal", given=False, order=GRADES)
    pd.testing.assert_frame_equal(encoded(release), encoded(load({"grade": GRADES})))
    assert load_release(**ordered, roles={"grade": "ordinal"}).roles["grade"] == Role("ordinal", order=GRADES)
    assert release.members["grade"].cat.ordered
    other = pd.CategoricalDtype(list(GRADES[::-1]), ordered=True)
    assert column_kind([ordered["members"]["grade"], TABLES["members"]["grade"].astype(other)]) == "text"
    assert ordered_levels([]) == ()


def test_ordinal_missing_and_unknown_levels() -> None:
    members = TABLES["members"].assign(grade=["top", None, *TABLES["members"]["grade"][2:]])
    synthetic = TABLES["synthetic"].assign(grade=[None, *TABLES["synthetic"]["grade"][1:]])
    release = load({"grade": GRADES}, members=members, synthetic=synthetic)
    assert release.members["grade"].isna().tolist() == [True, True] + [False] * 28
    assert any(
        "In column 'grade' of members 1 cell counts as missing: 'top' is none of the levels" in w
        for w in release.warnings
    )
    assert encoded(release)[["grade", "grade (missing)"]].iloc[:2].to_numpy().tolist() == [[0, 1], [0, 1]]


REFUSED = [
    ({"nobody": "numeric"}, r"release\.roles must name columns of the tables that are not dropped, got 'nobody'"),
    ({"age": "number"}, r"release\.roles\['age'\] must be one of numeric, .*, drop, or a list of levels, got number"),
    ({"age": 3}, r"release\.roles\['age'\] must be one of .*, got 3"),
    (["age"], r"release\.roles must map columns to roles, got list"),
    ({"grade": "numeric"}, r"\['grade'\] must be numeric only for a column of numbers, got '\w+' in release"),
    ({"when": "numeric"}, r"\['when'\] must be numeric only .*, got '2024-0\d-\d+' in release\.reference"),
    ({"grade": "datetime"}, r"\['grade'\] must be datetime only for a column of ISO 8601 dates, got '\w+' in"),
    ({"age": "datetime"}, r"\['age'\] must be datetime only for a column of ISO 8601 dates, got '\d+' in"),
    ({"grade": ["low", "high"]}, r"must be ordinal only for a column whose levels are all in the list, got 'mid' in"),
    ({"grade": ["low"]}, r"\['grade'\] must list two or more distinct levels, from low to high, got \['low'\]"),
    ({"grade": ["low", "low"]}, r"must list two or more distinct levels"),
    (dict.fromkeys(people(1, 0).columns, "drop"), r"release\.roles must leave release\.members a column"),
]  # fmt: skip


@pytest.mark.parametrize(("roles", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refusals(roles: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(roles)


def test_refusals_elsewhere() -> None:
    with pytest.raises(InputError, match=r"not dropped, got 'x'"):
        load_release(**TABLES, drop="x", roles={"x": "numeric"})
    reference, synthetic = TABLES["reference"], TABLES["synthetic"]
    with pytest.raises(InputError, match=r"release\.roles must name columns .*, got 'q'"):
        fit_encoder(reference, synthetic, roles={"q": "numeric", "r": "id"})
    with pytest.raises(InputError, match=r"release\.roles must map columns to roles, got int"):
        fit_encoder(reference, synthetic, roles=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"release\.roles must be a mapping or a JSON file, cannot read age: No such"):
        fit_encoder(reference, synthetic, roles="age")
    with pytest.raises(InputError, match=r"got 'mid' in release\.synthetic"):
        fit_encoder(reference[["grade"]].assign(grade="low"), synthetic[["grade"]], roles={"grade": ["low", "high"]})
    with pytest.raises(InputError, match="must be standard for a table with the text column 'zip', got raw"):
        fit_encoder(reference[["zip"]], synthetic[["zip"]], "raw", {"zip": "categorical"})
    with pytest.raises(InputError, match="be ordinal only for a column with values, got none"):
        settle("a", Role("ordinal"), {"reference": pd.Series([None, None])})
    assert check_roles(None, []) == {}
    assert set(ROLES) == {"numeric", "categorical", "ordinal", "datetime", "id", "drop"}


def test_members_have_no_say() -> None:
    words = TABLES["members"].assign(age=["old", *TABLES["members"]["age"][1:]])
    release = load({"age": "numeric"}, members=words)
    assert np.isnan(release.members["age"][0])
    assert any("'old' is no number" in warning for warning in release.warnings)


@pytest.mark.parametrize("words", [["True", "False"], ["true", "false"], [True, False], ["TRUE", "false"]])
def test_true_and_one_are_one_level(words: list[Any]) -> None:
    logical = [TABLES["reference"].assign(flag=[1, 0] * 15), TABLES["synthetic"].assign(flag=words * 15)]
    assert mixed_logical([table["flag"] for table in logical])
    changed = {"reference": logical[0], "synthetic": logical[1]}
    rest = {name: TABLES[name].assign(flag=[True, False] * 15) for name in ("members", "non_members")}
    values = encoded(load({"flag": "categorical"}, **changed, **rest))
    np.testing.assert_array_equal(values["flag=1"], [LEVEL_SCALE, 0] * 15)
    assert not mixed_logical([pd.Series(["1", "0"]), pd.Series([1, 0])])
    assert not mixed_logical([pd.Series(["True", "no"]), pd.Series([1, 0])])


def test_columns_of_levels_are_read_by_level() -> None:
    rng = np.random.default_rng(0)
    cells = pd.Series(rng.choice([" a", "1.0", "007", None, ""], 200))
    slow = convert(cells, "text")[0]
    assert slow.cat.categories.tolist() == ["007", "1", "a"]
    for dtype in ("category", "string", "str"):
        pd.testing.assert_series_equal(slow, convert(cells.astype(dtype), "text")[0])
    mixed = pd.Series([1, True, 1.0, "1", None], dtype=object)
    assert convert(mixed, "text")[0].tolist()[:4] == ["1", "True", "1", "1"]


def test_missing_ordinal_cells_of_records_only() -> None:
    present, gaps = pd.DataFrame({"g": ["low", "high"] * 5}), pd.DataFrame({"g": ["low", None, "top"]})
    encoder = fit_encoder(present, present, roles={"g": ["low", "high"]})
    assert encoder.imputed(present) == {}
    assert encoder.imputed(gaps) == {"g": 2}  # a level that is not in the list is missing, too
    assert encoder.transform(gaps)[1:].tolist() == [[0.0], [0.0]]
    alone = pd.DataFrame({"g": ["low", None]})  # one level: its absence is all there is to tell
    encoder = fit_encoder(alone, alone, roles={"g": "ordinal"})
    assert encoder.feature_names == ("g (missing)",)
    assert encoder.transform(alone).tolist() == [[0.0], [1.0]]
