from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from jaxaudit.report import figures_graph, figures_levels, figures_release
from jaxaudit.report.canvas import style
from jaxaudit.report.figures import draw
from jaxaudit.runtime.checks import InputError

FOUR = ["limits", "prior_and_model", "error_plane", "who_leaks"]
GRAPH = [*FOUR[:3], "attack_comparison", "groups", FOUR[3]]
RELEASE = ["attacks", "roc", "scores"]


def everything_nan(result):
    table = result.table.copy()
    for name in table.columns.difference(["node", "record", "member", "degree", "label"]):
        table[name] = np.nan
    arrays = {k: np.full(np.shape(v), np.nan) if np.asarray(v).dtype != bool else v for k, v in result.evidence.items()}
    return replace(result, table=table, evidence=arrays)


def grown(figure: Figure) -> list[str]:
    """Every text of a figure."""
    return [t.get_text() for t in figure.findobj(mpl.text.Text) if t.get_text()]


@pytest.fixture
def canvas(monkeypatch):
    """Keeps the figures that are drawn, so that a test can look into them."""
    kept: dict[str, Figure] = {}
    for module in (figures_graph, figures_levels, figures_release):
        finish = module.finish

        def keep(figure, name, *words, _finish=finish):
            kept[name] = figure
            return _finish(figure, name, *words)

        monkeypatch.setattr(module, "finish", keep)
    return kept


def test_graph_figures_show_the_data(graph, canvas):
    pictures = draw(graph)
    assert [p.name for p in pictures] == GRAPH
    for picture in pictures:
        assert picture.png.startswith(b"\x89PNG")
        assert len(picture.png) < 100_000, picture.name
        assert picture.caption
        assert picture.alt
    table = graph.table
    n = int(table["auditable"].sum())

    ax = canvas["limits"].axes[0]
    line = next(x for x in ax.lines if "functional" in str(x.get_label()))
    x, share = line.get_xdata(), line.get_ydata()
    for at in (0.05, 0.3, 1.0):  # the curve is the share of nodes at or above the value
        expected = np.mean(table["r_lower"].dropna() >= at)
        assert share[np.searchsorted(x, at)] == pytest.approx(expected)
    assert any(f"{n} auditable nodes" in t for t in grown(canvas["limits"]))

    plane = canvas["error_plane"].axes[0]
    drawn = np.concatenate([c.get_offsets() for c in plane.collections])
    known = np.isfinite(graph.evidence["fpr"])
    expected = np.unique(np.round(np.stack([graph.evidence["fpr"][known], graph.evidence["fnr"][known]], 1), 2), axis=0)
    np.testing.assert_allclose(np.unique(np.round(drawn, 2), axis=0), expected)
    lower = graph.summary["limits"]
    corner = plane.patches[0].get_xy()[1]  # (alpha*, beta*): both bounds are tight there
    assert np.log((1 - corner[1]) / corner[0]) == pytest.approx(lower["r_lower"]["median"])
    assert np.log((1 - corner[0]) / corner[1]) == pytest.approx(lower["l_lower"]["median"])

    scatter = canvas["prior_and_model"].axes[0].collections[0].get_offsets()
    rows = table.dropna(subset=["r_lower"])
    np.testing.assert_allclose(scatter[:, 0], np.log(rows["prior"] / (1 - rows["prior"])))
    np.testing.assert_allclose(scatter[:, 1], rows["r_lower"])
    sums = [np.sum(line.get_xydata(), axis=1) for line in canvas["prior_and_model"].axes[0].lines]
    np.testing.assert_allclose(1 / (1 + np.exp(-np.array(sums).T)), [[0.1, 0.5, 0.9, 0.99]] * 2)


def test_binned_medians_against_pandas(graph, canvas):
    draw(graph)
    line = canvas["who_leaks"].axes[0].lines[0]
    rows = graph.table.dropna(subset=["r_lower"])
    bins = rows.groupby(pd.qcut(rows["prior"], 10))
    np.testing.assert_allclose(line.get_xdata(), bins["prior"].median())
    np.testing.assert_allclose(line.get_ydata(), bins["r_lower"].median())
    for x in (np.array([1.0, 1, 1, 1, 2, 3]), np.arange(7.0), np.repeat([1.0, 5.0], 30)):
        parts = figures_graph._bins(x, 3)
        assert sorted(np.concatenate(parts)) == list(range(x.size))
        assert all(max(x[a]) < min(x[b]) for a, b in pairwise(parts))


def test_release_figures_show_the_data(release, canvas):
    assert [p.name for p in draw(release)] == RELEASE
    attacks = release.summary["attacks"]
    forest = canvas["attacks"].axes[0]
    order = [t.get_text() for t in forest.get_yticklabels()]
    assert order == sorted(attacks, key=lambda name: -attacks[name]["auc"])
    dots = [line for line in forest.lines if line.get_marker() == "o"]
    assert [d.get_xdata()[0] for d in dots] == [attacks[name]["auc"] for name in order]
    assert any("200 members and 200 non-members" in t for t in grown(canvas["attacks"]))

    member, scores = release.evidence["member"], release.evidence["scores"][0]
    curve = canvas["roc"].axes[0].lines[0]
    x, y = curve.get_xdata(), curve.get_ydata()
    for false in (5, 20, 100):  # best true-positive rate at exactly this many false positives
        threshold = np.sort(scores[~member])[::-1][false]
        assert y[np.isclose(x, false / 200)][0] == pytest.approx(np.mean(scores[member] > threshold))


def test_bars_and_bands_of_a_release(release, make, canvas):
    def bars() -> list[float]:
        lines = [line.get_xdata() for line in canvas["attacks"].axes[0].lines if line.get_linewidth() == 1]
        return [x[0] for x in lines if x[0] == x[1] and x[0] != 0.5]

    draw(release)
    assert len(bars()) == 3
    band = canvas["roc"].axes[0].collections[0].get_paths()[0].vertices
    draw(make["release"](members=2, others=2))
    assert bars() == []
    draw(replace(release, summary={**release.summary, "permutation": {"level": 0.5}}))
    assert canvas["roc"].axes[0].collections[0].get_paths()[0].vertices[0, 1] < 0.9 * band[0, 1]  # its upper end


@pytest.mark.parametrize("kind", ["graph", "release"])
def test_nothing_to_show_is_said_and_not_a_crash(kind, graph, release, make):
    result = {"graph": graph, "release": release}[kind]
    empty = replace(result, summary={}, evidence={}, table=result.table.iloc[:0])
    bare = replace(result, summary={}, evidence={}, table=pd.DataFrame())
    for case in (empty, bare):
        assert [p.name for p in draw(case)] == (FOUR if kind == "graph" else RELEASE)
    assert [p.name for p in draw(everything_nan(result))] == (GRAPH if kind == "graph" else RELEASE)


@pytest.mark.parametrize("attacks", [(), ("dcr",), tuple("abcd")])
def test_any_number_of_attacks(attacks, make):
    assert len(draw(make["release"](members=12, others=9, attacks=attacks))) == 3


def test_degenerate_scores(make):
    result = make["release"](members=12, others=9)
    scores = result.evidence["scores"].copy()
    scores[0], scores[1, 0], scores[2] = 1.0, np.inf, np.arange(21)
    draw(replace(result, evidence={**result.evidence, "scores": scores}))


@pytest.mark.parametrize("case", [{"sampler": "uniform"}, {"nodes": 2}, {"nodes": 30, "models": 4}])
def test_graph_shapes(case, make):
    assert len(draw(make["graph"](**{"nodes": 80, **case}))) == 6


def test_priors_of_zero_and_one(graph):
    table = graph.table.copy()
    table.loc[:9, "prior"], table.loc[10:19, "prior"] = 0.0, 1.0
    draw(replace(graph, table=table))


def test_names_are_not_markup(make):
    draw(make["release"](members=8, others=8, attacks=(r"$\frac{", "<script>", "多\n" * 40)))


def test_matplotlib_is_left_alone(graph):
    before = dict(mpl.rcParams)
    with mpl.rc_context({"font.size": 3, "text.usetex": True}):  # a user's settings neither matter nor get lost
        draw(graph)
        assert mpl.rcParams["font.size"] == 3
    assert dict(mpl.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []
    with style():
        assert mpl.rcParams["text.parse_math"] is False


def test_figures_are_bit_identical(release):
    assert [p.png for p in draw(release)] == [p.png for p in draw(release)]


def test_unknown_audit(graph):
    with pytest.raises(InputError, match="audit must be one of graph, release, got tree"):
        draw(replace(graph, audit="tree"))
