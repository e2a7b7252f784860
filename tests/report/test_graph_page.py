"""The blocks of the graph page that an audit may have: the numbers are those of the summary, and any may be missing."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from jaxaudit.report import figures_levels
from jaxaudit.report.attack_words import ATTACKS, FITS
from jaxaudit.report.canvas import Picture, style
from jaxaudit.report.figures import draw
from jaxaudit.report.html import render
from jaxaudit.report.template import render_page
from jaxaudit.report.words import Page, Section, Table

BLANK = [Picture(name, "caption", "alt", b"png") for name in ("limits", "error_plane", "who_leaks", "prior_and_model")]
BLOCKS = ("attacks", "rules", "groups", "heterogeneity", "readings", "bmdp", "population")
RANKS = ["rank", "rank_q05", "rank_q95", "top_probability", "log_odds"]


class Cells(HTMLParser):
    """Text of the page, and of every row of its tables."""

    def __init__(self, page: str):
        super().__init__()
        self.rows, self.inside, text = [], "", []
        self.everything = text
        self.feed(page)
        self.words = " ".join("".join(text).replace("\u00a0", " ").split())

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        self.inside = tag if tag in ("td", "th", "style") else self.inside

    def handle_endtag(self, tag):
        self.inside = "" if tag == self.inside else self.inside

    def handle_data(self, data):
        if self.inside != "style":
            self.everything.append(data)
        if self.inside in ("td", "th"):
            self.rows[-1][-1] += data.replace("\u00a0", " ")

    def row(self, first: str) -> list[str]:
        return next(row for row in self.rows if row and row[0] == first)


def summary(result, **changes):
    return replace(result, summary={**result.summary, **changes})


@pytest.fixture(scope="module")
def shown(graph, environment):
    def of(result=graph, pictures=BLANK):
        return Cells(render(result, pictures, environment))

    return of


@pytest.fixture(scope="module")
def page(shown):
    return shown()


def test_attacks_side_by_side(graph, page):
    order = ("within_node_auc", "pooled_auc", "target_auc", "tpr_at_0.01", "tpr_at_0.001")
    for attack in graph.summary["attacks"]:
        cells = [f"{attack[n]:.3f}\n[{attack[n] - 0.02:.3f}, {attack[n] + 0.03:.3f}]" for n in order]
        assert page.row(attack["attack"]) == [attack["attack"], *cells]
    assert "The 64 models are split into two halves" in page.words
    assert ["loss", "nothing", ATTACKS["loss"][1]] in page.rows
    assert sum(row[0] == "my_own" for row in page.rows if row) == 1  # no words for it, so no row among the legend
    others = graph.summary["nodes"]["total"] - graph.summary["shadows"]["sizes"]["mean"]
    assert f"0.1 % of about {others:.0f} other nodes is less than one" in page.words


def test_target_models_are_said(graph, shown):
    config = {**graph.config, "shadow": {"count": 64, "targets": 7}}
    assert "7 target models that no attack was fitted to" in shown(replace(graph, config=config)).words


def test_every_attack_has_words():
    from jaxaudit.graph.attacks import NODE_ATTACKS

    assert set(ATTACKS) == set(NODE_ATTACKS)
    uses = {"in and out": "both", "out": "out", "nothing": "none"}
    assert {name: fits for name, (fits, _) in ATTACKS.items()} == {n: uses[a.uses] for n, a in NODE_ATTACKS.items()}
    assert {fits for fits, _ in ATTACKS.values()} == set(FITS)


def test_rules_and_what_accuracy_hides(graph, page, shown):
    for rule in graph.summary["rules"]:
        cells = [
            "{:.3f}\n[{:.3f}, {:.3f}]".format(rule[n], *rule[f"{n}_ci"])
            for n in ("accuracy", "balanced_accuracy", "tpr", "fpr")
        ]
        assert page.row(f"{rule['rule']}, {rule['prior']}")[1:] == cells
    alone = graph.summary["rules"][2]
    assert f"right in {100 * alone['accuracy']:.1f} % of the decisions" in page.words
    assert "on the same 4,321 decisions" in page.words
    assert "Every node has the same prior" not in page.words
    sampling = {**graph.summary["sampling"], "prior_min": 0.5, "prior_max": 0.5}
    assert "Every node has the same prior here (0.500)" in shown(summary(graph, sampling=sampling)).words


def test_heterogeneity_both_ways(graph, page, shown):
    assert (
        "Nodes differ by more than noise (p 0.0005): the AUC of the statistic varies over nodes with sd 0.187 "
        "(0.171–0.202); 79 % of the observed variance is real." in page.words
    )
    found = {**graph.summary["heterogeneity"], "p_value": 0.31, "sd": 0.0, "sd_ci90": [0.0, 0.05], "real_share": 0.0}
    words = shown(summary(graph, heterogeneity=found)).words
    assert "Nodes were not seen to differ by more than noise (p 0.31)" in words
    assert "with sd 0.211 as observed, and with sd 0.000 (0.000–0.050) once sampling error is taken out" in words
    assert "differ by more than noise (p 0.0" not in words


def test_groups(graph, page):
    for groups in graph.summary["groups"].values():
        for k, name in enumerate(groups["names"]):
            quantiles = [f"{groups[x][q][k]:.2f}" for x in "rl" for q in ("q05", "q50", "q95")]
            assert page.row(name) == [name, str(groups["nodes"][k]), *quantiles]
    assert "optimistic: intervals that are just apart are no evidence" in page.words


def test_long_groupings_are_cut_and_said(graph, shown):
    one = {q: [1.0] * 50 for q in ("q05", "q50", "q95")}
    groups = {"column": {"names": [f"n{k}" for k in range(50)], "nodes": list(range(50)), "r": one, "l": one}}
    cells = shown(summary(graph, groups=groups))
    assert "The first 30 of 50; results.json has all" in cells.words
    assert sum(bool(row) and re.fullmatch(r"n\d+", row[0]) is not None for row in cells.rows) == 30
    with style():
        (picture,) = figures_levels.draw_groups(summary(graph, groups=groups))
    assert "2 more are not" in picture.caption


def test_shared_models_replace_the_caution(graph, page, shown):
    assert (
        "Nodes share the 64 models. Leaving out blocks of models widens the pooled 90 % interval of r from 1.71–1.88 "
        "to 1.64–1.97 (×1.92 on the log scale) and leaves that of l at 0.61–0.72." in page.words
    )
    assert page.row("r, one value, widened for the models that nodes share")[1:] == ["1.64", "1.79", "1.97"]
    assert "takes them as independent, is optimistic" not in page.words
    assert "depend on the number of models (64 here)" in page.words
    pooled = {**graph.summary["pooled"], "shared_models": {}}
    words = shown(summary(graph, pooled=pooled)).words
    assert "takes them as independent, is optimistic" in words
    assert "Leaving out blocks" not in words
    pooled = copy.deepcopy(graph.summary["pooled"])
    pooled["shared_models"]["r"]["interval"] = [1.71, 1.88]
    pooled["shared_models"]["scheme"] = "bootstrap"
    words = shown(summary(graph, pooled=pooled)).words
    assert "Resampling the models leaves the pooled 90 % interval of r at 1.71–1.88 and leaves that of l at" in words


def test_diagnostics_of_chains(graph, shown):
    pooled = {**graph.summary["pooled"], "engine": "mhaar", "rhat": 1.023, "ess": 312.4, "acceptance": 0.284,
              "strength": True}  # fmt: skip
    words = shown(summary(graph, pooled=pooled)).words
    assert "engine mhaar: R-hat 1.023, effective draws 312, acceptance rate 0.28." in words
    assert "attack's strength is a parameter too" in words
    assert "of the exact posterior" in words  # what the shared models widen


def test_readings(graph, page):
    for name, found in graph.summary["readings"].items():
        cells = [f"{found[e][part]:.2f}".replace("-", "−") for e in ("eps_L", "eps_R") for part in ("median", "q90")]
        assert page.row(name + (" (used above)" if name == "posterior_odds" else ""))[1:] == cells
    assert "identically: it is a definition, not a finding" in page.words
    assert "The others determine a node's own." in page.words


def test_population(graph, page, shown):
    assert page.row("mu_r: mean over nodes of log r")[1:] == ["0.51", "0.61", "0.71"]
    assert page.row("exp(mu_l): l of the median node")[1:] == [f"{math.exp(x):.2f}" for x in (0.13, 0.23, 0.33)]
    assert page.row("tau_l: sd over nodes of log l")[1:] == ["0.37", "0.47", "0.57"]
    assert "R-hat 1.004, effective draws 812, divergences 0" in page.words
    low, high = np.nanquantile(graph.table["r_shrunken_q50"], (0.05, 0.95))
    assert f"in {low:.2f}–{high:.2f} shrunken" in page.words
    assert "The grid of r and l ends" not in page.words
    far = copy.deepcopy(graph.summary["population"])
    far["mu_l"]["q95"] = 3.0
    assert "The grid of r and l ends at 14" in shown(summary(graph, population=far)).words


def test_exposed_nodes_by_expected_rank(graph, page):
    table = graph.table
    start = next(i for i, row in enumerate(page.rows) if row[:2] == ["node", "label"])
    head, rows = page.rows[start], page.rows[start + 1 : start + 16]
    top = table.dropna(subset=["rank"]).sort_values("rank", kind="stable").head(15)
    assert [int(row[0]) for row in rows] == top["node"].tolist()
    for cells, row in zip(rows, top.to_dict("records"), strict=True):
        found = dict(zip(head, cells, strict=True))
        assert found["expected rank"] == f"{row['rank']:.1f}"
        assert found["90 %"] == f"{row['rank_q05']:.0f}–{row['rank_q95']:.0f}"
        assert found["P(top 5 %)"] == f"{100 * row['top_probability']:.0f} %"
        assert found["log prior odds"] == f"{row['log_odds']:.2f}".replace("-", "−")
        assert (found["r"], found["l"]) == (f"{row['r_lower']:.2f}", f"{row['l_lower']:.2f}")
        assert found["false neg."] == f"{row['fn']} / {row['n_in']}"
    ranked = table["rank"].count()
    sure = (table["top_probability"] >= 0.9).sum()
    assert f"The top 5 % are {round(0.05 * ranked)} nodes; {sure} can be named" in page.words
    assert "read them as candidates" in page.words


def test_nobody_can_be_named(graph, shown):
    table = graph.table.assign(top_probability=np.where(graph.table["rank"].notna(), 0.89, np.nan))
    assert "none can be named with a probability of 90 % or more" in shown(replace(graph, table=table)).words


def test_epochs_where_training_may_stop_early(graph, page, shown):
    assert "early stopping" not in page.words
    shadows = {**graph.summary["shadows"], "epochs": {"mean": 81.25, "min": 40}}
    never = {**graph.config, "train": {"epochs": 200, "patience": 0}}
    assert "early stopping" not in shown(replace(summary(graph, shadows=shadows), config=never)).words
    config = {**graph.config, "train": {"epochs": 200, "patience": 20}}
    cells = shown(replace(summary(graph, shadows=shadows), config=config))
    assert cells.row("epochs until early stopping")[1] == "81.2 on average, 40 at least, of 200"


@pytest.mark.parametrize("absent", [*[(name,) for name in BLOCKS], BLOCKS])
def test_any_block_may_be_missing_or_empty(absent, graph, shown):
    kept = {name: value for name, value in graph.summary.items() if name not in absent}
    for left in (kept, kept | {name: type(graph.summary[name])() for name in absent}, kept | dict.fromkeys(absent)):
        result = replace(graph, summary=left)
        words = shown(result).words
        assert "nan" not in words.lower().split()
        assert "How to read these numbers" in words
    assert ("Which groups of nodes leak" in words) == ("groups" not in absent)
    assert ("Attacks side by side" in words) == ("attacks" not in absent)


def test_unknown_numbers_inside_the_blocks_are_dashes(graph, shown):
    def hollow(tree):
        if isinstance(tree, dict):
            return {name: hollow(value) for name, value in tree.items()}
        if isinstance(tree, list):
            return [hollow(value) for value in tree]
        return math.nan if isinstance(tree, float | int) and not isinstance(tree, bool) else tree

    result = summary(graph, **{name: hollow(graph.summary[name]) for name in (*BLOCKS, "pooled")})
    table = graph.table.assign(**dict.fromkeys(RANKS, np.nan))
    words = shown(replace(result, table=table), draw(replace(result, table=table))).words
    assert "nan" not in words.lower().split()
    assert "nan]" not in words


def test_names_in_the_blocks_are_escaped(graph, environment):
    evil = "<script>alert('x')</script>"
    one = {q: [1.0] for q in ("q05", "q50", "q95")}
    result = summary(
        graph, attacks=[{"attack": evil, "within_node_auc": 0.5}], rules=[{"rule": evil, "prior": evil}],
        groups={evil: {"names": [evil], "nodes": [3], "r": one, "l": one}},
        readings={evil: {"eps_L": {"median": 1.0}}}, bmdp={"meaning": evil},
    )  # fmt: skip
    page = render(result, BLANK, environment)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 6
    with style():
        assert figures_levels.draw_attack_comparison(result)
        assert figures_levels.draw_groups(result)
    assert evil in Cells(page).words


@pytest.fixture
def drawn(monkeypatch):
    """Draws one figure and gives its axes."""
    kept = []
    monkeypatch.setattr(figures_levels, "finish", lambda figure, *_: kept.append(figure))

    def of(function, result):
        with style():
            function(result)
        return kept[-1].axes

    return of


def test_figure_of_attacks_shows_values_and_intervals(graph, drawn):
    axes = drawn(figures_levels.draw_attack_comparison, graph)
    order = ["likelihood_ratio", "my_own", "loss"]  # by AUC within a node
    assert [t.get_text() for t in axes[0].get_yticklabels()] == order
    attacks = {row["attack"]: row for row in graph.summary["attacks"]}
    for ax, name in zip(axes, ("within_node_auc", "tpr_at_0.01"), strict=True):
        dots = [line for line in ax.lines if line.get_marker() == "o" and len(line.get_xdata()) == 1]
        assert [d.get_xdata()[0] for d in dots] == [attacks[a][name] for a in order]
        bars = [line.get_xdata() for line in ax.lines if line.get_linewidth() == 2]
        np.testing.assert_allclose(bars, [attacks[a][f"{name}_ci"] for a in order])


def test_figure_of_groups_shows_quantiles(graph, drawn):
    axes = drawn(figures_levels.draw_groups, graph)
    for ax, x in zip(axes, "rl", strict=True):
        groups = graph.summary["groups"].values()
        dots = [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "o"]
        assert dots == [value for group in groups for value in group[x]["q50"]]
        bars = [line.get_xdata() for line in ax.lines if line.get_linewidth() == 2]
        np.testing.assert_allclose(bars, [b for g in groups for b in zip(g[x]["q05"], g[x]["q95"], strict=True)])
    low, high = graph.summary["pooled"]["shared_models"]["r"]["interval"]
    band = axes[0].patches[0]
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((low, high))


def test_long_names_may_break_after_underscores_and_stay_whole():
    table = Table("", ("name", "x"), (("a_b<c_d", "1"),))
    html = render_page(Page("t", "", "quiet", "", "", (), (), (Section("s", (table,)),)), "the <end>")
    assert "a_<wbr>b&lt;c_<wbr>d" in html
    assert "a_b<c_d" in Cells(html).words
    assert "the &lt;end&gt;" in html
