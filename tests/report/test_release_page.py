"""The page of a release audit: what it shows is what results.json holds, whatever the tables are called."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from jaxaudit.evaluate import detectable_auc, max_permutation
from jaxaudit.report import figures_copies, figures_release, write_run
from jaxaudit.report.canvas import Picture, style
from jaxaudit.report.figures import draw
from jaxaudit.report.figures_copies import _log_ticks, draw_copies
from jaxaudit.report.html import render
from jaxaudit.report.release_page import release_page
from jaxaudit.report.release_verdict import verdict
from jaxaudit.report.words import Items, Table, Text
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.result import AuditResult
from jaxaudit.tables.copies import copies
from jaxaudit.tables.data import load_release
from jaxaudit.tables.evidence import closest_pairs, expose

EVIL = ("<script>alert('x')</script>", "=cmd()", "多\n<b>", "007")
NAMES = ("attacks", "roc", "scores", "copies")
BLANK = {name: Picture(name, "caption", "alt", b"png") for name in NAMES}
MEMBERS, OTHERS = 30, 25


def tables(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    ids = np.resize(np.array(EVIL, dtype=object), rows)
    return pd.DataFrame({EVIL[0]: ids, EVIL[1]: rng.normal(size=rows), "b": rng.normal(size=rows)})


def with_tables(result: AuditResult, **further: pd.DataFrame) -> AuditResult:
    return replace(result, tables=further)


def changed(result: AuditResult, **summary) -> AuditResult:
    return replace(result, summary={**result.summary, **summary})


@pytest.fixture(scope="module")
def full(make) -> AuditResult:
    """A result with every block that a release audit may have; some members are copied into the release."""
    base = make["release"](members=MEMBERS, others=OTHERS, attacks=("gen_lra", "dcr"))
    members = tables(MEMBERS, 1)
    released = pd.concat([tables(20, 4), members.iloc[:8]], ignore_index=True)
    released.loc[24:, "b"] += 1e-4
    release = load_release(members, tables(OTHERS, 2), released, tables(70, 3), roles={EVIL[0]: "id"})
    matrices = [frame.to_numpy() for frame in (release.members, release.non_members)]
    encoded = {"targets": np.concatenate(matrices), "synthetic": release.synthetic.to_numpy(),
               "reference": release.reference.to_numpy()}  # fmt: skip
    found = copies(member=base.evidence["member"], **encoded)
    scores = dict(zip(base.summary["attacks"], base.evidence["scores"], strict=True))
    seen = expose(release, encoded, scores, "gen_lra", found.distance, np.arange(MEMBERS + OTHERS) % 4)
    attacks = {
        name: attack | {"auc_bca": [attack["auc"] - 0.071, attack["auc"] + 0.083],
                        "epsilon": {"epsilon": 0.37 + 0.5 * place, "epsilon_if_gaussian": 1.26, "delta": 1e-5,
                                    "level": 0.95, "records": 2 * OTHERS}}
        for place, (name, attack) in enumerate(base.summary["attacks"].items())
    }  # fmt: skip
    further = {
        "attacks": attacks, "copies": found.summary, "exposed": seen.summary,
        "epsilon": {"assumptions": f"A fair coin {EVIL[0]}."},
        "sensitivity": [
            {"attack": name, "kind": kind, "level": level, "auc": 0.6 + level / 7, "auc_low": 0.5, "auc_high": 0.9}
            for name in attacks for kind, level in (("size", 0.5), (EVIL[0], 1.0))
        ],
    }  # fmt: skip
    data = {
        "columns": list(release.members.columns), "encoded": [EVIL[1], "b"], "members": MEMBERS,
        "counts": dict(release.counts), "roles": {name: role.as_dict() for name, role in release.roles.items()}
        | {"size": {"role": "ordinal", "given": True, "order": ["small", EVIL[0]]}},
    }  # fmt: skip
    evidence = base.evidence | {"nearest": found.distance, "nearest_reference": found.reference}
    result = replace(base, summary=base.summary | further, data=data, evidence=evidence, warnings=EVIL)
    result.summary["_pairs"] = closest_pairs(release, encoded, found.distance, 3)  # for the test of rows
    return with_tables(result, evidence=seen.table)


@pytest.fixture(scope="module")
def run(full, tmp_path_factory, environment):
    folder = tmp_path_factory.mktemp("run")
    write_run(full, folder, environment)
    return folder, json.loads((folder / "results.json").read_text())["summary"]


@pytest.fixture(scope="module")
def page(full):
    return release_page(full, BLANK, ())


def section(page, title: str) -> list:
    return list(next(s for s in page.sections if s.title == title).blocks)


def grids(page, title: str) -> list[Table]:
    return [block for block in section(page, title) if isinstance(block, Table)]


def said(page, title: str) -> str:
    return " ".join(
        block.text if isinstance(block, Text) else " ".join(block.items)
        for block in section(page, title)
        if isinstance(block, Text | Items)
    )


def floats(tree) -> list[float]:
    if isinstance(tree, dict):
        return [x for value in tree.values() for x in floats(value)]
    if isinstance(tree, list):
        return [x for value in tree for x in floats(value)]
    return [float(tree)] if isinstance(tree, int | float) and not isinstance(tree, bool) else []


NEW = ("Copies and near copies", "Most exposed records", "Differential privacy: what the attacks rule out",
       "Does it hang on the reference?")  # fmt: skip


@pytest.mark.parametrize("title", NEW)
def test_every_number_is_in_the_results(title, page, run) -> None:
    _, summary = run
    known = np.array(floats({name: summary[name] for name in ("attacks", "copies", "exposed", "sensitivity")}))
    known = np.concatenate([known, 100 * known, known + 1])  # percentages; quarters count from 1
    cells = [cell for table in grids(page, title) for row in table.rows for cell in row[1:]]
    tokens = [token for cell in cells for token in re.findall(r"−?\d[\d,]*(?:\.\d+)?(?:e[−+]?\d+)?", cell)]
    assert len(tokens) > 8
    for token in tokens:
        value = float(token.replace("−", "-").replace(",", ""))
        places = len(token.partition(".")[2]) if "e" not in token else 0
        off = np.abs(known - value).min()
        assert off <= max(0.5001 * 10.0**-places if places else 0, 0.0051 * abs(value), 1e-12), (title, token)


def test_copies_cell_by_cell(page, run) -> None:
    _, summary = run
    counts, distances = grids(page, "Copies and near copies")
    for row, (name, group) in zip(counts.rows, summary["copies"]["groups"].items(), strict=True):
        assert row[0].replace("-", "_").startswith(name.split()[0][:7])
        assert row[1] == str(group["rows"])
        assert row[2].startswith(f"{group['exact']} ({100 * group['exact_share']:.1f} %)\n[")
        low, high = group["exact_share_ci"]
        assert row[2].endswith(f"[{100 * low:.1f}, {100 * high:.1f}] %")
        assert row[3].startswith(f"{group['near']} ({100 * group['near_share']:.1f} %)")
    assert counts.rows[0][2].startswith("4 (13.3 %)")
    assert distances.rows[0][1] == "0"
    yardstick = summary["copies"]["yardstick"]
    assert f"closer than {yardstick:.3g};" in said(page, "Copies and near copies")
    gap = summary["copies"]["compared"]["exact"]
    low, high = (f"{100 * end:.1f}".replace("-", "−") for end in gap["ci"])
    assert f"exact copies 13.3 percentage points [{low}, {high}], p = " in said(page, "Copies and near copies")


def test_exposed_records_cell_by_cell(page, run) -> None:
    _, summary = run
    table, places, released = grids(page, "Most exposed records")
    records = summary["exposed"]["records"]
    assert len(table.rows) == len(records) == 10
    assert places.columns == ("member", "gen_lra", "dcr")
    for cells, beside, row in zip(table.rows, places.rows, records, strict=True):
        ((column, name),) = row["ids"].items()
        assert cells[0] == f"{column} {name} (row\u00a0{row['row']})"
        assert cells[1] == str(row["stratum"] + 1)
        assert cells[3:] == (str(row["nearest_row"]), str(row["non_members_as_high"]))
        for cell, attack in zip(beside[1:], ("gen_lra", "dcr"), strict=True):
            assert cell == f"{row['scores'][attack]:.4g} ({row['ranks'][attack]})".replace("-", "−")
    told = [[one for one in row["released"] if one["contribution"] > 0] for row in records]
    lines = iter(released.rows)
    for row, telling in zip(records, told, strict=True):
        for place, one in enumerate(telling or [None]):
            cells = next(lines)
            assert cells[0].endswith(f"row\u00a0{row['row']})") == (place == 0)
            if one is None:
                assert cells[1:] == ("none", "", "", "")
            else:
                assert cells[1] == str(one["released_row"])
                assert cells[3] == f"{one['contribution']:.3f}"
    assert next(lines, None) is None


def test_many_attacks_are_shown_four_at_a_time(full) -> None:
    exposed = full.summary["exposed"]
    names = [f"a{place:02d}" for place in range(14)]
    records = [
        row | {"scores": dict.fromkeys(names, 1.5), "ranks": dict.fromkeys(names, 2)} for row in exposed["records"]
    ]
    attacks = {name: {"auc": 0.9 - 0.01 * place} for place, name in enumerate(names)}
    result = changed(full, exposed=exposed | {"attack": "a03", "records": records}, attacks=attacks)
    tables = grids(release_page(result, BLANK, ()), "Most exposed records")
    heads = [table.columns[1:] for table in tables if table.caption.startswith("Scores of the 12 attacks")]
    assert heads == [("a03", "a00", "a01", "a02"), ("a04", "a05", "a06", "a07"), ("a08", "a09", "a10", "a11")]


def test_two_intervals_epsilon_and_sensitivity(page, run) -> None:
    _, summary = run
    both = grids(page, "The attacks")[1]
    low, high = summary["attacks"]["dcr"]["auc_bca"]
    assert both.rows[1][3] == f"[{low:.3f}, {high:.3f}]"
    (bounds,) = grids(page, NEW[2])
    assert bounds.rows[1] == ("dcr", "0.87", "1.26", "1e−05", "95 %", "50")
    assert "A fair coin" in said(page, NEW[2])
    (table,) = grids(page, NEW[3])
    assert table.rows[0] == ("size", "0.5", "0.671\n[0.500, 0.900]", "0.671\n[0.500, 0.900]")
    empty = AuditResult("release", {}, {}, {"epsilon": {"sentence": "Install it."}}, (), {}, pd.DataFrame())
    assert said(release_page(empty, BLANK, ()), NEW[2]) == "Install it."


def test_older_results_lack_the_new_sections(release) -> None:
    titles = [s.title for s in release_page(release, BLANK, ()).sections]
    assert "Most exposed records" in titles
    assert not {NEW[0], NEW[2], NEW[3]} & set(titles)
    assert len(grids(release_page(release, BLANK, ()), "The attacks")) == 1


def test_rows_are_shown_only_when_asked(full, page) -> None:
    assert "report.rows=true shows the closest pairs" in said(page, NEW[0])
    asked = release_page(changed(full, pairs=full.summary["_pairs"]), BLANK, ())
    assert "PERSONAL DATA" in said(asked, NEW[0])
    _, _, *pairs = grids(asked, NEW[0])
    assert len(pairs) == 3
    assert pairs[0].caption.endswith("; released row 20: distance 0, 2 of 2 cells equal")
    assert {row[3] for row in pairs[0].rows} == {""}
    mine = full.summary["_pairs"][0]["cells"]["b"][0]
    assert pairs[0].rows[1][:3] == ("b", mine, mine)
    assert not any(mine in row for table in grids(page, NEW[0]) for row in table.rows)


@pytest.mark.parametrize("rows", [False, True])
def test_names_from_the_data_are_text(rows, full, environment) -> None:
    result = changed(full, pairs=full.summary["_pairs"]) if rows else full
    html = render(result, list(BLANK.values()), environment)
    assert "<script" not in html
    assert "<b>" not in html
    assert html.count("&lt;script&gt;") > 10
    assert "=cmd()" in html
    assert "多" in html


def test_evidence_is_a_file_of_its_own(full, run) -> None:
    folder, _ = run
    table = pd.read_csv(folder / "evidence.csv")
    expected = full.tables["evidence"].reset_index(drop=True)  # type: ignore[attr-defined]
    pd.testing.assert_frame_equal(table, expected, check_dtype=False)
    assert (folder / "figures" / "copies.png").read_bytes().startswith(b"\x89PNG")


def test_an_older_run_leaves_no_evidence_behind(full, tmp_path, environment, monkeypatch) -> None:
    monkeypatch.setattr("jaxaudit.report.write.draw", lambda result: list(BLANK.values()))
    (tmp_path / "evidence.csv").write_text("of an older run")
    write_run(replace(full, tables={}), tmp_path, environment)
    assert not (tmp_path / "evidence.csv").exists()
    text = pd.DataFrame({"id": [*EVIL, 'a"b,c', "cr\rx"]})
    write_run(with_tables(full, evidence=text), tmp_path, environment)
    back = pd.read_csv(tmp_path / "evidence.csv", dtype=str, lineterminator="\n")
    assert back["id"].tolist() == text["id"].tolist()
    with pytest.raises(InputError, match="tables must be named"):
        write_run(with_tables(full, other=text), tmp_path, environment)
    assert (tmp_path / "evidence.csv").exists()


def test_columns_are_listed_by_role(page) -> None:
    sizes, roles, counts = grids(page, "What was audited")
    assert ("number of non-members", str(OTHERS)) in sizes.rows
    assert ("number of encoded columns", "2") in sizes.rows
    cells = dict(roles.rows)
    assert cells["id, as told"] == EVIL[0]
    assert cells["numeric, found"] == "=cmd(), b"
    assert cells["ordinal, as told"] == f"size (small < {EVIL[0]})"
    assert dict(counts.rows)["Members that the synthetic table reproduces exactly"] == "4"


def test_how_to_reproduce(full, environment) -> None:
    html = render(full, list(BLANK.values()), environment)
    tail = html[html.index("How to reproduce") :]
    assert "jaxaudit audit=release" in tail
    assert "Seed: 0." in tail
    assert "python 3.11.2, jax 0.10.2, numpy 2.4.6." in tail


# -- the verdict ------------------------------------------------------------------------------------------------------


def judged(release, **attack) -> AuditResult:
    given = {
        "auc": 0.53,
        "auc_ci": [0.49, 0.57],
        "p_value": 0.3,
        "critical_auc": 0.55,
        "detectable_auc": 0.581,
        **attack,
    }
    return changed(release, attacks={"a": given})


def test_a_quiet_verdict_says_its_power(release) -> None:
    tone, headline, text = verdict(judged(release))
    assert tone == "quiet"
    assert headline == (
        "No evidence of memorisation by the attacks run; a true AUC above 0.59 would have been seen with probability "
        "0.95."
    )
    assert "An observed AUC of about 0.55 would have been significant." in text
    assert "above 0.58 would" in verdict(judged(release, detectable_auc=0.58))[1]
    tone, headline, _ = verdict(judged(release, detectable_auc=math.nan))
    assert (tone, headline) == (
        "quiet",
        "No evidence of memorisation by the attacks run; how large a true AUC all of them would have seen is not "
        "known.",
    )
    several = judged(release)
    several.summary["attacks"]["b"] = {**several.summary["attacks"]["a"], "detectable_auc": 0.7}
    assert "above 0.70 would" in verdict(several)[1]
    no_power = judged(release)
    del no_power.summary["attacks"]["a"]["critical_auc"], no_power.summary["attacks"]["a"]["detectable_auc"]
    assert verdict(no_power)[1] == "No evidence of memorisation by the attacks run."


@pytest.mark.parametrize(
    ("area", "words"),
    [(0.9851, "a true AUC above 0.99 would"), (0.9901, "a true AUC above 0.991 would"),
     (0.9989, "a true AUC above 0.999 would"), (0.99901, "no true AUC below 0.999 would")],
)  # fmt: skip
def test_the_power_is_said_without_overstating_it(area, words, release) -> None:
    headline = verdict(judged(release, detectable_auc=area))[1]
    assert f"; {words} have been seen" in headline
    assert headline.endswith("with probability 0.95.")


def test_few_records_have_a_power_that_can_be_said(make) -> None:
    few = make["release"](5, 5, attacks=("dcr",), leak=0.0)
    few.summary["attacks"]["dcr"] |= {
        "p_value": 0.4,
        "critical_auc": 0.88,
        "detectable_auc": detectable_auc(0.88, 5, 5),
    }
    assert "a true AUC above 0.98 would have been seen with probability 0.95" in verdict(few)[1]


def scored(release, **scores) -> AuditResult:
    """Attacks that are not significant, with these scores; ``critical_auc`` as judged."""
    test = max_permutation(np.stack(list(scores.values())), release.evidence["member"], 499)
    attacks = {
        name: {"auc": 0.51, "auc_ci": [0.4, 0.6], "p_value": 0.4, "critical_auc": float(limit), "detectable_auc": limit}
        for name, limit in zip(scores, test.critical_auc, strict=True)
    }
    given = replace(release, evidence=release.evidence | {"scores": np.stack(list(scores.values()))})
    return changed(given, attacks=attacks)


def test_ties_and_few_records_are_told_apart(release, make) -> None:
    member = release.evidence["member"]
    rare = np.zeros(member.size)
    rare[[0, 250]] = 1.0  # two distinct scores among 200 + 200 records
    tone, headline, text = verdict(scored(release, a=rare))
    assert (tone, headline) == (
        "unknown",
        "Nothing can be said: too few distinct scores: with so many ties no AUC could be significant.",
    )
    assert "smallest adjusted p is 0.4" in text
    noise = rare + 1e-16 * np.arange(member.size)  # as they are judged
    assert verdict(scored(release, a=noise))[1] == headline
    assert "gives all records the same score" in verdict(scored(release, a=noise - rare + 3))[1]
    few = make["release"](2, 2, attacks=("dcr",))
    for values in (np.arange(4.0), np.array([0.0, 0.0, 0.0, 1.0])):  # with distinct scores p would be 1/6
        assert "too few records" in verdict(scored(few, a=values))[1]


def test_attacks_that_could_not_be_significant_are_named(release) -> None:
    rng = np.random.default_rng(0)
    rare = np.arange(400) == 7
    tone, headline, text = verdict(scored(release, good=rng.normal(size=400), rare=rare + 0.0))
    assert tone == "quiet"
    assert "a true AUC above" in headline
    assert "rare gives too few distinct scores to be significant at all." in text
    assert "good" not in text.split("significant.")[1]
    both = verdict(scored(release, good=rng.normal(size=400), rare=rare + 0.0, one=np.zeros(400)))[2]
    assert "rare, one give too few distinct scores to be significant at all." in both
    assert "too few distinct" not in verdict(scored(release, good=rng.normal(size=400)))[2]


@pytest.mark.parametrize(("p", "tone"), [(0.01, "leak"), (0.05, "leak"), (0.051, "quiet")])
def test_the_verdict_follows_the_adjusted_p(p, tone, release) -> None:
    found, headline, _ = verdict(judged(release, p_value=p))
    assert found == tone
    assert ("strong evidence" in headline) == (p <= 0.01)


def test_copies_have_a_say(full, release) -> None:
    assert full.summary["copies"]["p_value"] <= 0.05
    quiet = changed(judged(release), copies=full.summary["copies"])
    tone, headline, text = verdict(quiet)
    assert tone == "leak"
    assert headline.startswith("The release repeats members more often than luck explains")
    assert "No evidence of memorisation by the attacks run" in headline
    groups = full.summary["copies"]["groups"]
    assert f"exact copies of 4 and 0, and comes very near to {groups['members']['near']} and" in text
    no_near = changed(quiet, copies=full.summary["copies"] | {"yardstick": 0.0})
    assert "holds exact copies of 4 and 0 (" in verdict(no_near)[2]
    at_limit = {**full.summary["copies"], "p_value": 0.05}
    assert verdict(changed(judged(release), copies=at_limit))[0] == "leak"
    few = {**full.summary["copies"], "p_value": 0.051}
    tone, headline, text = verdict(changed(judged(release), copies=few))
    assert (tone, headline) == verdict(judged(release))[:2]
    assert "exact copies of 4 and 0" in text


# -- figures ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def canvas(monkeypatch):
    kept = {}
    for module in (figures_release, figures_copies):
        finish = module.finish

        def keep(figure, name, *words, _finish=finish):
            kept[name] = figure
            return _finish(figure, name, *words)

        monkeypatch.setattr(module, "finish", keep)
    return kept


def test_the_figure_of_distances(full, canvas) -> None:
    assert [picture.name for picture in draw(full)] == list(NAMES)
    ax = canvas["copies"].axes[0]
    lines = {str(line.get_label()): line for line in ax.lines}
    for label, values in (
        (f"members ({MEMBERS})", full.evidence["nearest"][:MEMBERS]),
        (f"non-members ({OTHERS})", full.evidence["nearest"][MEMBERS:]),
        ("reference rows (70)", full.evidence["nearest_reference"]),
    ):
        x, y = lines[label].get_xdata(), lines[label].get_ydata()
        for at in np.quantile(values[values > 0], [0.1, 0.5, 0.9]):
            assert y[np.searchsorted(x, at, side="right") - 1] == pytest.approx(np.mean(values <= at))
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert dots[0].get_ydata()[0] == pytest.approx(4 / MEMBERS)
    assert any(line.get_xdata()[0] == full.summary["copies"]["yardstick"] for line in ax.lines)
    assert ax.get_xticklabels()[0].get_text() == "0"


def test_roc_of_all_attacks_in_one_picture(make, canvas) -> None:
    result = make["release"](members=40, others=30, attacks=tuple("abcdefgh"))
    draw(result)
    ax = canvas["roc"].axes[0]
    labels = [text.get_text() for text in canvas["roc"].legends[0].get_texts()]
    ranked = sorted("abcdefgh", key=lambda name: -result.summary["attacks"][name]["auc"])
    assert labels == [*(f"{n} ({result.summary['attacks'][n]['auc']:.3f})" for n in ranked[:5]), "3 others"]
    assert len(ax.collections) == 1  # one band
    at_zero = [line.get_ydata()[0] for line in ax.lines if line.get_marker() == "o"]
    for name, height in zip(ranked, at_zero, strict=True):
        share = result.summary["attacks"][name]["tpr_at_fpr"]["0"]["tpr"]
        assert height == pytest.approx(max(share, 0.4 / 40))
    assert len(canvas["scores"].axes) == 9


def test_distances_that_are_hard_to_draw(full) -> None:
    for nearest in (np.zeros(MEMBERS + OTHERS), np.full(MEMBERS + OTHERS, 1.0), np.arange(MEMBERS + OTHERS) * 1e-300):
        for reference in (np.zeros(70), np.full(70, 1.0)):
            evidence = full.evidence | {"nearest": nearest, "nearest_reference": reference}
            with style():
                (picture,) = figures_copies.draw_copies(replace(full, evidence=evidence))
            assert picture.png.startswith(b"\x89PNG")


@pytest.mark.parametrize(("least", "most"), [
    (4.7, 7.2), (1.0, 1.0), (0.5, 1 - 2e-16), (1.0, 1.02), (3.0, 3.1), (0.2, 4.0), (1e-12, 5e3), (9.99, 10.01),
])  # fmt: skip
def test_distances_of_any_range_are_drawn_with_ticks(least: float, most: float, full) -> None:
    """All within one decade, or over many: never without two numbers on the axis."""
    ticks = _log_ticks(least, most * (1 + 1e-6))
    assert 2 <= len(ticks) <= 9
    assert all(0.99 * least <= tick <= 1.01 * most for tick in ticks)
    distance = np.linspace(least, most, len(full.evidence["nearest"]))
    evidence = {**full.evidence, "nearest": distance, "nearest_reference": distance[:5]}
    assert draw_copies(replace(full, evidence=evidence))[0].png.startswith(b"\x89PNG")
