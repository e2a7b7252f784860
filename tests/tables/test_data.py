"""Reading, kinds of columns, reconciliation and counts of the tables of a release."""

from __future__ import annotations

import datetime
import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.columns import column_kind, convert, round_numbers
from jaxaudit.tables.data import load_release, read_table, reconcile

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the shared data folder is absent")
NAME = "release.members"


def frame(rows: int = 6, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"x": rng.normal(size=rows), "k": rng.integers(0, 9, rows), "s": rng.choice(["a", "b"], rows)})


# ---------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".CSV"])
def test_every_format_gives_the_same_table(tmp_path: Path, suffix: str) -> None:
    table, path = frame(), tmp_path / f"t{suffix}"
    if suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if "tsv" in suffix else ",")
    read = read_table(path, NAME)
    assert list(read.columns) == ["x", "k", "s"]
    np.testing.assert_allclose(read["x"], table["x"], rtol=1e-15)  # every digit survives
    assert read["s"].tolist() == table["s"].tolist()


def test_empty_cells_are_missing_and_words_are_levels(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("s,x\nNone,1\nNA,\n,3\nnull,4\n")
    read = read_table(str(path), NAME)
    assert read["s"].isna().tolist() == [False, False, True, False]
    assert read["s"].tolist()[:2] == ["None", "NA"]
    assert read["x"].isna().tolist() == [False, True, False, False]


def test_byte_order_mark_and_blanks_around_names(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfx, y\n1,2\n")
    assert list(read_table(path, NAME).columns) == ["x", "y"]


BAD_FILES = {
    "empty.csv": (b"", "must be a table with a header, got the empty file"),
    "blank.csv": (b"\n\n", "must be a table with a header, got the empty file"),
    "header.csv": (b"x,y\n", "must have at least one row, got a header only"),
    "twice.csv": (b"x,y,x\n1,2,3\n", "must have distinct column names, got 'x' more than once"),
    "image.csv": (b"\x89PNG\r\n\x1a\n\x00\xff\xfe\x00", "must be a readable .csv table"),
    "long.csv": (b"x,y\n1,2,3\n4,5,6\n", "must be a readable .csv table"),
    "ragged.csv": (b"x,y\n1,2\n4,5,6\n", "must be a readable .csv table"),
    "plain.csv.gz": (b"x,y\n1,2\n", "must be a readable .csv.gz table"),
    "cut.csv.gz": (gzip.compress(b"x,y\n" + b"1,2\n" * 99)[:30], "must be a readable .csv.gz table"),
    "text.parquet": (b"x,y\n1,2\n", "must be a readable .parquet table"),
    "table.xlsx": (b"PK", "must be a .csv, .csv.gz, .tsv, .tsv.gz, .parquet, .pq file"),
    "semicolon.csv": (b"x;y\n1;2\n", "must be separated by ','"),
}


@pytest.mark.parametrize("file", BAD_FILES)
def test_bad_files_are_one_line(tmp_path: Path, file: str) -> None:
    content, message = BAD_FILES[file]
    (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_table(tmp_path / file, NAME)
    assert str(caught.value).startswith(f"{NAME} {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["", "/nowhere/t.csv", "."])
def test_missing_files(path: str) -> None:
    with pytest.raises(InputError, match=r"release.members must be an existing file, got"):
        read_table(path, NAME)


def test_bad_objects() -> None:
    with pytest.raises(InputError, match="must be a file, a DataFrame or a 2-D array, got list"):
        read_table([[1]], NAME)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"must have two dimensions, got shape \(3,\)"):
        read_table(np.zeros(3), NAME)
    with pytest.raises(InputError, match="at least one row"):
        read_table(frame().iloc[:0], NAME)
    with pytest.raises(InputError, match="at least one column"):
        read_table(pd.DataFrame(index=[0, 1]), NAME)
    with pytest.raises(InputError, match="'1' more than once"):
        read_table(pd.DataFrame([[1, 2]], columns=[1, "1"]), NAME)


def test_arrays_and_frames_are_not_changed() -> None:
    array = np.arange(6.0).reshape(3, 2)
    array.flags.writeable = False
    assert list(read_table(array, NAME).columns) == ["x0", "x1"]
    table = frame().set_index(pd.Index(list("fedcba")))
    before = table.copy()
    read_table(table, NAME)
    pd.testing.assert_frame_equal(table, before)


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
        "1 cell of column 'x' in members count as missing: '?' is no number, unlike in reference and synthetic.",
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
        elif name.startswith("duplicates_"):
            rows = keys[name.removeprefix("duplicates_")]
            expected = len(rows) - len(set(rows))
        else:
            inner, outer = name.split("_in_")
            expected = sum(row in keys[outer] for row in keys[inner])
        assert count == expected, name
    assert len(release.warnings) == sum(count > 0 for count in release.counts.values())
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
