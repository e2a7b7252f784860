"""Kinds of columns, reconciliation, identifiers and counts of the tables of a release."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.columns import column_kind, convert, round_numbers
from jaxaudit.tables.data import load_release, reconcile

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the shared data folder is absent")


def frame(rows: int = 6, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"x": rng.normal(size=rows), "k": rng.integers(0, 9, rows), "s": rng.choice(["a", "b"], rows)})


# ------------------------------------------------------------------------------------------- kinds and cells

SERIES = pd.Series
KINDS = {
    "int and float text": ([SERIES([1, 2]), SERIES(["1.0", " 2e0 "])], "number"),
    "nullable": ([SERIES([1, None], dtype="Int64"), SERIES([0.5, None], dtype="Float64")], "number"),
    "bool, words, bits": ([SERIES([True, False]), SERIES(["True", "false"]), SERIES([0, 1])], "number"),
    "bool with missing": ([SERIES([True, None, False], dtype="boolean"), SERIES([True, None])], "number"),
    "emptiness": ([SERIES([np.nan, np.nan]), SERIES(["", None])], "number"),
    "words": ([SERIES([1, 2]), SERIES(["1", "?"])], "text"),
    "declared": ([SERIES([1, 2]).astype("category"), SERIES([1, 2])], "text"),
    "underscore is no number": ([SERIES(["1_0", "2_0"])], "text"),
    "dates": ([pd.Series(pd.to_datetime(["2024-01-31"])), SERIES(["2024-02-29 10:00"])], "date"),
    "nanoseconds": ([SERIES(np.array(["2024-01-31", "NaT"], dtype="datetime64[ns]"))], "date"),
    "python dates": ([SERIES([datetime.date(2024, 1, 1), None])], "date"),
    "zones": ([SERIES(["2024-02-29T10:00:00Z", "2024-02-29T10:00:00+02:00"])], "date"),
    "no such day": ([SERIES(["2024-02-30"])], "text"),
    "dates and numbers": ([SERIES(["2024-02-29"]), SERIES([1.0])], "text"),
    "one date is missing": ([SERIES(["2024-02-29", ""]), SERIES([None, None])], "date"),
    "durations": ([pd.Series(pd.to_timedelta([1, 2], unit="h"))], "number"),
    "arrow strings": ([SERIES(["1", "2"], dtype="str"), SERIES(["3"], dtype="string")], "number"),
}


@pytest.mark.parametrize("case", KINDS)
def test_kinds(case: str) -> None:
    parts, kind = KINDS[case]
    assert column_kind(parts) == kind
    assert column_kind(parts[::-1]) == kind
    forms = {"number": "float64", "date": "datetime64[us]", "text": "category"}
    for part in parts:
        converted, unreadable = convert(part, kind)
        assert (converted.dtype == forms[kind], len(converted), unreadable) == (True, len(part), ())
        again, _ = convert(converted, kind)
        pd.testing.assert_series_equal(again, converted)  # conversion settles
        assert column_kind([converted]) == kind or converted.isna().all()


def test_cells_become_comparable() -> None:
    spellings = [
        SERIES([1, 0, 1]),
        SERIES(["1.0", "0", "1"]),
        SERIES([True, False, True]),
        SERIES(["True", "false", 1]),
    ]
    for cells in spellings:
        assert convert(cells, "number")[0].tolist() == [1.0, 0.0, 1.0]
    codes = [
        SERIES([1, 12]),
        SERIES(["1", "12.0"]),
        SERIES([1.0, 12.0]),
        SERIES([1, 12], dtype="Int8").astype("category"),
    ]
    for cells in codes:
        assert convert(cells, "text")[0].tolist() == ["1", "12"]
    assert convert(SERIES(["007", " a ", "", None, "-0.0"]), "text")[0].tolist()[:2] == ["007", "a"]
    assert convert(SERIES(["007", " a ", "", None, "-0.0"]), "text")[0].isna().tolist() == [False] * 2 + [True] * 2 + [
        False
    ]
    moments = convert(SERIES(["2024-01-01T02:00+02:00", "2024-01-01"]), "date")[0]
    assert moments.nunique() == 1
    assert convert(pd.Series(pd.to_timedelta([36], unit="h")), "number")[0].tolist() == [1.5]
    assert convert(SERIES(["1", "x", "", "nan"]), "number")[1] == ("x", "nan")
    assert convert(SERIES(["2024-01-01", "soon"]), "date")[1] == ("soon",)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-200, 1e200), min_size=1, max_size=8), st.sampled_from([1.0, -1.0]))
def test_rounding_to_significant_digits(sizes: list[float], sign: float) -> None:
    values = sign * np.array(sizes)
    rounded = round_numbers(values)
    unit = 10.0 ** (np.floor(np.log10(np.array(sizes))) - np.where(np.abs(values) < 1e6, 5, 8))
    assert (np.abs(rounded - values) <= 0.5 * unit * (1 + 1e-6)).all()
    steps = rounded / unit
    np.testing.assert_allclose(steps, np.round(steps), rtol=1e-12)
    np.testing.assert_allclose(round_numbers(rounded), rounded, rtol=1e-15)


def test_rounding_finds_equal_prints() -> None:
    x = np.random.default_rng(0).lognormal(0, 5, 2000)
    printed = np.array([float(f"{v:.6g}") for v in x])
    assert (round_numbers(x) == round_numbers(printed))[x < 1e6].all()
    assert len(np.unique(round_numbers(np.array([999999.0, 1e6, 1234567.8, 1234567.9])))) == 4
    np.testing.assert_array_equal(round_numbers(np.array([np.nan, 1e300, 0.0])), [np.nan, 1e300, 0.0])


# --------------------------------------------------------------------------------------------- reconciliation


def test_columns_are_matched_by_name() -> None:
    a, b = frame(), frame(seed=1)
    tables, notes = reconcile({"members": a, "synthetic": b[["s", "x", "k"]], "reference": a.assign(only=1)})
    assert all(list(table.columns) == ["x", "k", "s"] for table in tables.values())
    np.testing.assert_array_equal(tables["synthetic"]["x"], b["x"])
    assert notes == ("Columns of reference that another table lacks are left out: 'only'.",)
    tables, notes = reconcile({"members": a, "synthetic": b[["s"]]})
    assert list(tables["members"].columns) == ["s"]
    assert notes == ("Columns of members that another table lacks are left out: 'x', 'k'.",)
    with pytest.raises(
        InputError, match=r"release.synthetic must share a column with release.members, got the columns 'z'"
    ):
        reconcile({"members": a, "synthetic": pd.DataFrame({"z": [1]})})


def test_a_saved_row_index_is_left_out(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.csv" for name in "abcd"]
    for seed, path in enumerate(paths):
        frame(seed=seed).to_csv(path)
    release = load_release(*paths)
    assert list(release.members.columns) == ["x", "k", "s"]
    assert release.warnings[0].startswith("Columns without a name (a saved row index?) are left out of 'members', ")


def test_members_never_decide_a_kind() -> None:
    numbers, words = pd.DataFrame({"x": [1, 2, 3]}), pd.DataFrame({"x": ["1", "2", "?"]})
    tables, notes = reconcile({"members": words, "synthetic": numbers, "reference": numbers})
    assert tables["members"]["x"].isna().tolist() == [False, False, True]
    assert notes == (
        "In column 'x' of members 1 cell counts as missing: '?' is no number, unlike in reference and synthetic.",
    )
    tables, notes = reconcile({"members": numbers, "synthetic": words, "reference": numbers})
    assert tables["members"]["x"].tolist() == ["1", "2", "3"]
    assert notes == ()


def test_infinite_numbers_are_refused() -> None:
    good, bad = frame(), frame().assign(x=[0, 1, np.inf, 3, 4, 5])
    with pytest.raises(
        InputError, match=r"release.members must have only finite numbers, got inf in column 'x', row 2"
    ):
        load_release(bad, good, good, good)
    with pytest.raises(InputError, match=r"release.reference must have only finite"):
        load_release(good, good, good, good.assign(x=["-inf", "1", "2", "3", "4", "5"]))


def test_numbers_turned_to_text_by_a_word() -> None:
    good = pd.DataFrame({"x": np.arange(30) / 7})
    bad = pd.DataFrame({"x": [*map(str, np.arange(29) / 7), "NaN"]})
    assert "Column 'x' is read as text because of 'NaN'" in "".join(reconcile({"synthetic": bad, "reference": good})[1])


def test_all_kinds_of_pandas_columns() -> None:
    table = pd.DataFrame({
        "boolean": pd.array([True, None, False], dtype="boolean"), "int": pd.array([1, None, 3], dtype="Int64"),
        "string": pd.array(["a", None, "b"], dtype="string"), "str": pd.Series(["u", None, "v"], dtype="str"),
        "category": pd.Categorical([1, 2, None]), "date": pd.to_datetime(["2024-01-01", None, "2024-01-03"]),
        "zone": pd.to_datetime(["2024-01-01", None, "2024-01-03"]).tz_localize("Asia/Tokyo"),
        "object": np.array(["x", 1, None], dtype=object), "float32": np.float32([0.1, np.nan, 0.3]),
    })  # fmt: skip
    release = load_release(table, table, table, table)
    assert release.members.dtypes.astype(str).tolist() == [
        "float64", "float64", "category", "category", "category", "datetime64[us]", "datetime64[us]", "category",
        "float64",
    ]  # fmt: skip
    assert release.members.isna().equals(table.isna())
    assert release.counts["members_in_synthetic"] == 3


# ---------------------------------------------------------------------------------------------------- release


def test_counts_against_a_naive_loop() -> None:
    rng = np.random.default_rng(0)

    def draw(rows: int) -> pd.DataFrame:
        return pd.DataFrame({"a": rng.integers(0, 3, rows), "b": rng.choice(["u", "v", None], rows), "c": 7})

    tables = {
        name: draw(rows)
        for name, rows in zip(("members", "non_members", "synthetic", "reference"), (5, 9, 7, 6), strict=True)
    }
    release = load_release(**tables)
    keys = {name: [tuple(map(str, row)) for row in table.to_numpy()] for name, table in tables.items()}
    for name, count in release.counts.items():
        if name == "constant_columns":
            expected = 1
        elif name == "repeated_columns":
            expected = 0
        elif name.startswith("duplicates_"):
            rows = keys[name.removeprefix("duplicates_")]
            expected = len(rows) - len(set(rows))
        else:
            inner, outer = name.split("_in_")
            expected = sum(row in keys[outer] for row in keys[inner])
        assert count == expected, name
    counted = sum(count > 0 for name, count in release.counts.items() if not name.endswith("columns"))
    assert len(release.warnings) == counted  # the encoder names the constant columns, once
    assert all(warning.endswith(".") and "\n" not in warning for warning in release.warnings)


def test_copies_are_found_at_printed_precision() -> None:
    rng = np.random.default_rng(1)
    members = pd.DataFrame({"x": rng.normal(size=20), "k": rng.integers(0, 5, 20)})
    printed = pd.DataFrame({"x": [f"{x:.6g}" for x in members["x"]], "k": members["k"].astype(float)})
    other = [members + shift for shift in (1, 2)]
    counts = load_release(members, other[0], printed, other[1]).counts
    assert (counts["members_in_synthetic"], counts["synthetic_in_members"], counts["non_members_in_synthetic"]) == (
        20,
        20,
        0,
    )


def test_split_without_a_reference() -> None:
    people = pd.DataFrame({"x": np.arange(11.0)})
    members, synthetic = people + 100, people + 200
    first, again, other = (load_release(members, people, synthetic, seed=seed) for seed in (0, 0, 1))
    assert (len(first.non_members), len(first.reference)) == (6, 5)
    assert sorted([*first.non_members["x"], *first.reference["x"]]) == people["x"].tolist()
    assert first.warnings == ("No reference was given: 5 of the 11 non-members serve as reference and are not scored.",)
    assert first.reference["x"].is_monotonic_increasing  # rows keep their order
    pd.testing.assert_frame_equal(first.reference, again.reference)
    assert not first.reference.equals(other.reference)
    with pytest.raises(InputError, match=r"release.non_members must have at least 2 rows where no reference is given"):
        load_release(members, people[:1], synthetic)


def test_rows_are_those_of_the_tables_as_given() -> None:
    people = pd.DataFrame({"x": np.sqrt(np.arange(30.0))})
    release = load_release(people + 100, people, people + 200, seed=3)
    np.testing.assert_array_equal(release.rows["members"], np.arange(30))
    np.testing.assert_allclose(people["x"].to_numpy()[release.rows["non_members"]], release.non_members["x"])


def numbered(rows: int, seed: int, start: int, name: str = "no") -> pd.DataFrame:
    table = frame(rows, seed).assign(**{name: np.arange(start, start + rows)})
    return table.sample(frac=1, random_state=seed)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("released", [lambda no: no + 10_000, lambda no: no % 7, lambda no: no / 9])
def test_row_numbers_are_left_out_and_hide_no_copies(split: bool, released) -> None:
    members, others, reference = (numbered(40, seed, 40 * seed) for seed in range(3))
    copies = members.assign(no=released(members["no"]))
    release = load_release(members, others, copies, None if split else reference)
    assert list(release.members.columns) == ["x", "k", "s"]
    assert (release.counts["members_in_synthetic"], release.counts["non_members_in_synthetic"]) == (40, 0)
    assert "Columns of whole numbers that never repeat and number the rows (identifiers) are left out: 'no'." in (
        release.warnings
    )


def test_names_of_rows_hide_no_copies() -> None:
    members, others, reference = (
        frame(40, seed).assign(who=[f"{seed}-{row}" for row in range(40)], source="real") for seed in range(3)
    )
    release = load_release(members, others, members.assign(who=others["who"]), reference)
    assert release.counts["members_in_synthetic"] == 40
    assert "'who'" in " ".join(release.warnings)
    published = {"source": "release"}  # constant in reference and synthetic: no attack sees it, no count either
    release = load_release(members, others, members.assign(**published), reference.assign(**published))
    assert release.counts["members_in_synthetic"] == 40


NAMES = (
    "id",
    "ID",
    "person_id",
    "Patient ID",
    "PassengerId",
    "a.id",
    "index",
    "uuid",
    "rowid",
    "row_number",
    "unnamed_0",
)


@pytest.mark.parametrize("name", NAMES)
def test_sparse_identifiers_go_by_their_name(name: str) -> None:
    rng = np.random.default_rng(0)
    sparse = pd.DataFrame({name: rng.choice(10**6, 30, replace=False), "x": rng.normal(size=30)})
    other = sparse.assign(**{name: rng.choice(5, 30)})
    for reference, synthetic in ((sparse, other), (other, sparse)):
        assert list(load_release(sparse, sparse, synthetic, reference).members.columns) == ["x"]
    assert name in load_release(sparse, sparse, other, other).members.columns  # repeats: a code
    assert name in load_release(*[sparse[:20]] * 4).members.columns  # too few rows to tell
    halves = sparse.assign(**{name: sparse[name] + 0.5})
    assert name in load_release(*[halves] * 4).members.columns
    renamed = sparse.rename(columns={name: "paid"})
    assert "paid" in load_release(*[renamed] * 4).members.columns


def test_nothing_but_identifiers() -> None:
    table = pd.DataFrame({"id": np.arange(30)})
    with pytest.raises(InputError, match=r"release.reference must have a column that can be encoded"):
        load_release(table, table, table, table)


def test_columns_are_dropped_on_demand() -> None:
    table = frame(30)
    for drop in (["k"], "k", ("k", "k"), iter(["k"])):
        release = load_release(table, table, table, table[["x", "s"]], drop=drop)
        assert list(release.members.columns) == ["x", "s"]
        assert "another table lacks" not in " ".join(release.warnings)
    bad = table.assign(k=np.inf)  # left out before anything is checked
    assert load_release(bad, bad, bad, bad, drop=["k"]).dropped == ("k",)
    for drop, message in (
        (["x", "y"], "release.drop must name columns of the tables, got 'y'"),
        (["x", "k", "s"], "release.drop must leave release.members a column"),
        (None, "release.drop must be a list of column names, got NoneType"),
    ):
        with pytest.raises(InputError, match=message):
            load_release(table, table, table, table, drop=drop)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["members", "non_members"])
@pytest.mark.parametrize("cells", [{"x": np.nan}, {"x": "?"}, {"d": None}])
def test_a_class_without_values_is_refused(name: str, cells: dict) -> None:
    whole = frame(40).assign(d=pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(40), unit="D"))
    gaps = whole.astype(object)
    gaps.loc[:20, list(cells)] = next(iter(cells.values()))
    tables = {"members": whole, "non_members": whole, "synthetic": whole, "reference": whole, name: gaps}
    kind = "dates" if "d" in cells else "numbers"
    with pytest.raises(
        InputError, match=rf"release.{name} must have readable {kind} in .*, got 21 of 40 cells missing"
    ):
        load_release(**tables)
    gaps.loc[20, list(cells)] = whole.loc[20, list(cells)]  # half: a warning of the encoder
    load_release(**tables)
    some = whole.astype(object)
    some.loc[:1, list(cells)] = None
    gaps.loc[20, list(cells)] = None
    load_release(**{**tables, "reference": some})  # 5 % missing in the reference: missing cells are normal


@needs_data
def test_published_releases_match_their_description() -> None:
    census, hepatitis = DATA / "releases" / "mostlyai_census2k", DATA / "releases" / "syntheval_hepatitis"
    counts = load_release(*(census / f"{f}.csv.gz" for f in ("train", "holdout", "syn_flip30"))).counts
    assert (counts["synthetic_in_members"], counts["synthetic_in_non_members"]) == (99, 0)
    assert (counts["members_in_non_members"], counts["duplicates_members"]) == (0, 0)
    synthetic = hepatitis / "c_hepatitis_daib_baseline.csv"
    release = load_release(hepatitis / "train.csv", hepatitis / "test.csv", synthetic)
    assert release.members.shape == (923, 29)
    assert (release.members.dtypes == "category").sum() == 8
    assert release.counts["members_in_synthetic"] == 0


@needs_data
@pytest.mark.parametrize(
    ("table", "missing", "duplicates"), [("dresses_sales", 835, 0), ("kc2", 0, 147), ("breast_w", 16, 236)]
)
def test_real_tables_match_their_description(table: str, missing: int, duplicates: int) -> None:
    path = DATA / "tables" / f"{table}.csv.gz"
    release = load_release(path, path, path, path)
    assert int(release.members.isna().sum().sum()) == missing
    assert release.counts["duplicates_members"] == duplicates
