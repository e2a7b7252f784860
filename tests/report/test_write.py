from __future__ import annotations

import json
import math
import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from jaxaudit.report import draft, write, write_run
from jaxaudit.report.figures import Picture
from jaxaudit.report.write import plain
from jaxaudit.runtime.checks import InputError

GRAPH = ("limits", "prior_and_model", "error_plane", "attack_comparison", "groups", "who_leaks")
RELEASE = ("attacks", "roc", "scores")


@pytest.fixture
def quick(monkeypatch):
    """Blank pictures in place of drawn ones: these tests look at files."""

    def draw(result):
        names = GRAPH if result.audit == "graph" else RELEASE
        return [Picture(name, "caption", "alt", b"png of " + name.encode()) for name in names]

    monkeypatch.setattr(write, "draw", draw)


def strict(text: str):
    def refuse(word):
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("kind", ["graph", "release"])
def test_a_whole_run(kind, graph, release, tmp_path):
    result = {"graph": graph, "release": release}[kind]
    paths = write_run(result, tmp_path / "new" / "run")
    table = "nodes.csv" if kind == "graph" else "records.csv"
    figures = [f"figures/{n}.png" for n in (GRAPH if kind == "graph" else RELEASE)]
    assert files(tmp_path / "new" / "run") == sorted([*figures, table, "report.html", "results.json"])
    assert set(paths) == {"results", "table", "report", "figures"}
    assert all(path.exists() and path.is_absolute() for path in paths.values())
    for name in figures:
        assert (tmp_path / "new" / "run" / name).read_bytes().startswith(b"\x89PNG")

    found = strict(paths["results"].read_text())
    assert list(found) == sorted(found)
    assert set(found) == {
        "schema_version", "audit", "config", "data", "environment", "timings", "summary", "warnings",
    }  # fmt: skip
    assert found["schema_version"] == 1
    assert found["audit"] == kind
    assert found["environment"]["versions"]["jax"]
    assert found["warnings"] == list(result.warnings)
    assert found["summary"] == plain(result.summary)


def test_the_table_reads_back_bit_for_bit(graph, quick, tmp_path, environment):
    table = graph.table.copy()
    table["tiny"] = np.nextafter(np.linspace(0, 1, len(table)), 2)
    table["single"] = np.linspace(0, 1, len(table), dtype=np.float32)
    table.loc[0, "tiny"], table.loc[1, "tiny"] = np.inf, -np.inf
    path = write_run(replace(graph, table=table), tmp_path, environment)["table"]
    back = pd.read_csv(path)
    assert list(back) == list(table)
    for name in table:
        expected = table[name].to_numpy()
        np.testing.assert_array_equal(back[name].to_numpy().astype(expected.dtype), expected, err_msg=name)
    first = pd.read_csv(path, dtype=str, keep_default_na=False)
    assert (first.loc[table["r_lower"].isna(), "r_lower"] == "").all()
    assert set(first["auditable"]) <= {"True", "False"}


@pytest.mark.parametrize("more", ["cr\rx", "plain"])
def test_strings_are_quoted(more, release, quick, tmp_path, environment):
    hard = ["a,b", 'say "x"', "two\nlines", " space ", "多", "=1+1", more]
    table = release.table.head(len(hard)).assign(record=hard).rename(columns={"dcr": 'col,"x"\n'})
    path = write_run(replace(release, table=table), tmp_path, environment)["table"]
    back = pd.read_csv(path)
    assert back["record"].tolist() == hard
    assert list(back) == list(table)
    assert path.read_text().startswith("record,") == (more == "plain")


def test_numbers_in_json(graph, quick, tmp_path, environment):
    odd = {
        "nan": math.nan, "inf": np.float64("inf"), "minus": -math.inf, "third": 1 / 3, "single": np.float32(0.1),
        "flag": np.bool_(True), "n": np.int32(3), "array": np.array([[1.0, np.nan]]), "pair": (1, 2), 5: None,
        "path": tmp_path, "set": {"b", "a"}, "text": "é \ud800 </script>",
    }  # fmt: skip
    result = replace(graph, summary=odd)
    found = strict(write_run(result, tmp_path, environment)["results"].read_text())["summary"]
    assert found["nan"] is None
    assert (found["inf"], found["minus"]) == ("Infinity", "-Infinity")
    assert found["third"] == 1 / 3
    assert found["single"] == float(np.float32(0.1))
    assert found["flag"] is True
    assert found["n"] == 3
    assert found["array"] == [[1.0, None]]
    assert found["pair"] == [1, 2]
    assert found["5"] is None
    assert found["path"] == str(tmp_path)
    assert found["set"] == ["a", "b"]
    assert found["text"] == odd["text"]
    shuffled = replace(graph, summary=dict(reversed(odd.items())))
    assert (
        write_run(shuffled, tmp_path / "b", environment)["results"].read_text()
        == (tmp_path / "results.json").read_text()
    )


def test_lone_surrogates_do_not_stop_the_report(release, quick, tmp_path, environment):
    table = release.table.assign(record=pd.Series(["d\ud800"] * len(release.table), dtype=object))
    result = replace(release, warnings=("bad \ud800 name",), table=table)
    paths = write_run(result, tmp_path, environment)
    paths["report"].read_text(encoding="utf-8")
    paths["table"].read_text(encoding="utf-8")


def test_a_second_run_replaces_the_first(graph, quick, tmp_path, environment):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "mine.txt").write_text("kept")
    write_run(graph, tmp_path, environment)
    (tmp_path / "figures" / "stale.png").write_bytes(b"old")
    write_run(replace(graph, warnings=("second",)), tmp_path, environment)
    assert strict((tmp_path / "results.json").read_text())["warnings"] == ["second"]
    assert not (tmp_path / "figures" / "stale.png").exists()
    assert (tmp_path / "mine.txt").read_text() == "kept"
    assert not list(tmp_path.glob(".jaxaudit-*"))


@pytest.mark.parametrize("broken", ["render", "draw", "plain"])
def test_a_failure_leaves_nothing_behind(broken, graph, quick, tmp_path, environment, monkeypatch):
    def fail(*_):
        raise RuntimeError("broken")

    write_run(graph, tmp_path / "old", environment)
    before = {name: (tmp_path / "old" / name).read_bytes() for name in files(tmp_path / "old")}
    monkeypatch.setattr(write, broken, fail)
    for folder in (tmp_path / "old", tmp_path / "new" / "deep"):
        with pytest.raises(RuntimeError, match="broken"):
            write_run(replace(graph, warnings=("second",)), folder, environment)
    assert os.listdir(tmp_path) == ["old"]
    assert {name: (tmp_path / "old" / name).read_bytes() for name in files(tmp_path / "old")} == before


@pytest.mark.parametrize("at", range(1, 9))
def test_a_failing_move_is_undone(at, graph, quick, tmp_path, environment, monkeypatch):
    write_run(graph, tmp_path, environment)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    real, calls = os.replace, []

    def replace_once_broken(source, target):
        calls.append(target)
        if len(calls) == at:
            raise OSError("disk full")
        real(source, target)

    monkeypatch.setattr(draft.os, "replace", replace_once_broken)
    with pytest.raises(OSError, match="disk full"):
        write_run(replace(graph, warnings=("second",)), tmp_path, environment)
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before


def test_bad_folder(graph, quick, tmp_path, environment):
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="folder must be writable") as error:
            write_run(graph, folder, environment)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="audit must be one of"):
        write_run(replace(graph, audit="x"), tmp_path, environment)
