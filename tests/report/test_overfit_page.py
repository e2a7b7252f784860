"""The report of an overfitting sweep: its files, numbers, figures, escapes, and what happens where it cannot write."""

from __future__ import annotations

import dataclasses
import io
import json
import re

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from jaxaudit.report.figures_overfit import draw_overfit
from jaxaudit.report.overfit_page import overfit_page, write_overfit
from jaxaudit.report.words import Table
from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.overfit import OverfitConfig, OverfitResult, sweep_overfit

FIGURES = ("auc_by_rho", "gap_lines", "map", "predicted_gap", "slopes")


@pytest.fixture(scope="module")
def result() -> OverfitResult:
    config = OverfitConfig(
        eps=(0.0, 0.5, 1.0), rho=(0.05, 0.8), d=(2,), n=(60,), train=60, release=60, scored=60, k=(1,),
        multiplier=(1.0, 2.0), attacks=("dcr", "gen_lra", "domias"), replications=4, draws=300, limit=(128,),
    )  # fmt: skip
    return sweep_overfit(config, seed=2)


@pytest.fixture(scope="module")
def pictures(result):
    return draw_overfit(result)


@pytest.fixture(scope="module")
def folder(result, tmp_path_factory):
    target = tmp_path_factory.mktemp("overfit")
    (target / "mine.txt").write_text("kept")
    (target / "report.html").write_text("old")
    write_overfit(result, target, {"versions": {"jax": "0"}})
    return target


def test_all_files_and_nothing_else(folder) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {"figures", "overfit.csv", "report.html", "results.json", "mine.txt"}
    assert {path.stem for path in (folder / "figures").iterdir()} == set(FIGURES)
    for path in (folder / "figures").iterdir():
        assert path.stat().st_size < 80_000
        assert Image.open(io.BytesIO(path.read_bytes())).width > 700


def test_results_are_strict_json_with_every_number(result, folder) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    content = json.loads((folder / "results.json").read_text(), parse_constant=refuse)
    assert (content["schema_version"], content["audit"]) == (1, "overfit")
    assert content["config"]["overfit"]["eps"] == [0.0, 0.5, 1.0]
    assert content["config"]["seed"] == 2
    assert content["environment"] == {"versions": {"jax": "0"}}
    assert content["summary"]["agreement"] == result.summary["agreement"]
    assert content["summary"]["map"] == result.summary["map"]
    assert content["warnings"] == list(result.warnings)
    assert "4 replications" in content["warnings"][0]
    table = pd.read_csv(folder / "overfit.csv")
    pd.testing.assert_frame_equal(
        table.astype({"k": "Int64"}), result.table.astype({"attack": table.attack.dtype}), check_exact=True
    )


def test_page_stands_alone_and_says_what_was_found(result, folder) -> None:
    page = (folder / "report.html").read_text()
    assert not re.search(r"https?://", re.sub(r'src="data:[^"]*"', "", page))
    assert "<script" not in page
    assert page.count("<img ") == len(FIGURES)
    agreement = result.summary["agreement"]
    assert f"{agreement['within']} of {agreement['cells']}" in page.replace("\u00a0", " ")
    assert "jaxaudit audit=overfit &#39;overfit.eps=[0.0,0.5,1.0]&#39;" in page
    for cell in result.summary["map"]:
        assert f"{cell['attacks']['dcr']['auc']:.3f}" in page
    assert "Expected: gen_lra at its best k is not behind domias" in page


def test_tables_hold_the_summary(result, pictures) -> None:
    page = overfit_page(result, pictures, {})
    tables = {block.columns: block for section in page.sections for block in section.blocks if isinstance(block, Table)}
    slopes = next(table for columns, table in tables.items() if "trend" in columns)
    assert len(slopes.rows) == len(result.summary["linearity"]) == 2 * 2 * 2
    whole = next(entry for entry in result.summary["linearity"] if entry["k"] == 60)
    row = next(row for row in slopes.rows if row[3] == "m")
    assert row[5] == f"{whole['predicted']:.3f} ± {whole['predicted_se']:.3f}"
    assert row[6].startswith(f"{whole['slope']:.3f}".replace("-", "−"))
    assert tables["n = m", "relative error"].rows[0][0] == "128"


def test_verdict_follows_the_test(result, pictures) -> None:
    verdicts = {}
    for p in (0.04, 0.06):
        summary = result.summary | {"agreement": result.summary["agreement"] | {"p_adjusted": p}}
        verdicts[p] = overfit_page(dataclasses.replace(result, summary=summary), pictures, {}).verdict
    assert "differ" in verdicts[0.04]
    assert "those that theory predicts" in verdicts[0.06]


def test_figures_are_the_same_bytes_each_time(pictures, folder) -> None:
    for picture in pictures:
        assert (folder / "figures" / f"{picture.name}.png").read_bytes() == picture.png
        assert picture.alt
        assert len(picture.caption) > 60


def test_text_is_escaped(result, pictures, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("jaxaudit.report.overfit_page.draw_overfit", lambda _: pictures)
    odd = dataclasses.replace(
        result, warnings=("<b>&</b>",), config=result.config | {"command": "jaxaudit '<i>$x$</i>'"}
    )
    page = write_overfit(odd, tmp_path, {"a<b": "c"})["report"].read_text()
    assert "<b>&</b>" not in page
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in page
    assert "<i>$x$" not in page
    assert "a<b" not in page


def test_one_cell_no_limit_no_competitor(tmp_path) -> None:
    """The smallest sweep: a single eps (nothing to fit), one rho, Gen-LRA alone; and no closed form."""
    config = OverfitConfig(
        eps=(0.5,), rho=(0.05,), d=(2,), n=(60,), train=60, release=60, scored=60, k=(60,), multiplier=(1.0, 2.0),
        attacks=("gen_lra",), replications=4, draws=300, limit=(),
    )  # fmt: skip
    result = sweep_overfit(config)
    result = dataclasses.replace(result, table=result.table.assign(plug_in=np.nan))
    page = write_overfit(result, tmp_path / "new" / "folder", {})["report"].read_text()
    assert "not tested with a single eps above 0" in page
    assert "Does the score tend to its limit?" not in page
    assert "is not behind" not in page
    nothing = sweep_overfit(dataclasses.replace(config, eps=(0.0,), attacks=("gen_lra", "dcr")))
    assert nothing.summary["linearity"] == []
    assert len(draw_overfit(nothing)) == len(FIGURES)


def test_failure_leaves_the_folder_as_it_was(result, tmp_path, monkeypatch) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(InputError, match=r"^folder must be writable, got .*file"):
        write_overfit(result, file, {})
    monkeypatch.setattr("jaxaudit.report.overfit_page.draw_overfit", lambda _: 1 / 0)
    for target in (tmp_path / "absent" / "deep", tmp_path):
        with pytest.raises(ZeroDivisionError):
            write_overfit(result, target, {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
