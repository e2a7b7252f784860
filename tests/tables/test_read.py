"""Reading tables: every format, and what is refused with one line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest

from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.read import read_table

NAME = "release.members"


def frame(rows: int = 6, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"x": rng.normal(size=rows), "k": rng.integers(0, 9, rows), "s": rng.choice(["a", "b"], rows)})


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
    "decimal.csv": (b"x;y;z\n1,5;2,5;3\n4;5,5;6\n", "must be separated by ',', got the header x;y;z"),
    "nul.csv": (b"x,y\na,1\nb\x00c,2\n", "must be a readable .csv table"),
    "short.csv": (b"x,y\n1,2\n3\n", "must be a readable .csv table"),
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
    with pytest.raises(InputError, match=f"release.members must be an existing file, got {path!r}"):
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


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".tsv"])
def test_short_rows_are_refused_by_line_and_quotes_are_respected(tmp_path: Path, suffix: str) -> None:
    def write(text: str) -> Path:
        path = tmp_path / f"t{suffix}"
        data = text.replace(",", "\t" if suffix == ".tsv" else ",").encode("utf-8-sig")
        path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
        return path

    good = 'x,y,z\n"a\nb","c, ""d""",1\n\n  \r\n,,\n"",2,"3"'
    assert read_table(write(good), NAME).shape == (3, 3)
    for row, fields in (("5,6", "2 fields"), ("5", "1 field"), ('"5,6,7"', "1 field" if suffix != ".tsv" else "")):
        if fields:
            with pytest.raises(InputError, match=rf"\({fields} in line 8, 3 in the header\)"):
                read_table(write(f"{good}\n{row}\n8,9,10\n"), NAME)
    assert len(read_table(write("x\n1\n\n2\n"), NAME)) == 2


def test_cells_hold_one_value(tmp_path: Path) -> None:
    nested = {"list": [[1], [2]], "struct": [{"a": 1}, {"a": 2}], "late": [1, (2, 3)]}
    for name, cells in nested.items():
        table = pd.DataFrame({"ok": [1, 2], name: pd.Series(cells, dtype=object)})
        with pytest.raises(InputError, match=f"have one number or text in every cell, got a cell of type .* '{name}'"):
            read_table(table, NAME)
        if name != "late":
            table.to_parquet(tmp_path / "t.parquet")
            with pytest.raises(InputError, match=f"in every cell, got a cell of type .* in column '{name}', row 0"):
                read_table(tmp_path / "t.parquet", NAME)
    for numbers in (
        np.array([[1.0], [1j]]),
        pd.DataFrame({"x0": [1j, 2]}),
        pd.DataFrame({"x0": [2, 1j]}, dtype=object),
    ):
        with pytest.raises(InputError, match="'x0'"):
            read_table(numbers, NAME)


def test_parquet_with_repeated_names(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array([1, 2])] * 2, names=["a", "a"])
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputError, match="must have distinct column names, got 'a' more than once"):
        read_table(tmp_path / "t.parquet", NAME)


def test_arrays_and_frames_are_not_changed() -> None:
    array = np.arange(6.0).reshape(3, 2)
    array.flags.writeable = False
    assert list(read_table(array, NAME).columns) == ["x0", "x1"]
    table = frame().set_index(pd.Index(list("fedcba")))
    before = table.copy()
    read_table(table, NAME)
    pd.testing.assert_frame_equal(table, before)


def test_other_encodings_are_named_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("größe\n1\n2\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"must be a readable \.csv table, got .*t\.csv.*; save it as UTF-8\)"):
        read_table(path, NAME)
