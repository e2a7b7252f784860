from __future__ import annotations

import math
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from jaxaudit.report import headline_numbers
from jaxaudit.report.figures import Picture, draw
from jaxaudit.report.html import command_line, render
from jaxaudit.report.release_page import release_page

EVIL = "<script>alert('x')</script>&\"'"
NAMES = ("limits", "prior_and_model", "error_plane", "who_leaks", "attacks", "roc", "scores")
BLANK = [Picture(name, "caption", "alt", b"png") for name in NAMES]


class Reader(HTMLParser):
    """Collects tags, attributes and text, and checks that tags are closed in order."""

    VOID = ("meta", "img", "link", "br", "wbr")

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.links, self.text, self.open, self.rows = [], [], "", [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "action", "background")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.text += data
        if self.open and self.open[-1] in ("td", "th") and self.rows:
            self.rows[-1][-1] += data.replace("\u00a0", " ")


def words(page: str) -> str:
    return " ".join(Reader(page).text.replace("\u00a0", " ").split())


@pytest.fixture(scope="module")
def graph_html(graph, environment):
    return render(graph, draw(graph), environment)


@pytest.fixture(scope="module")
def release_html(release, environment):
    return render(release, draw(release), environment)


def test_pages_are_self_contained(graph_html, release_html):
    for page, figures in ((graph_html, 6), (release_html, 3)):
        reader = Reader(page)
        assert page.startswith("<!doctype html>")
        assert len(reader.links) == figures
        assert all(link.startswith("data:image/png;base64,") for link in reader.links)
        without = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", page)
        assert not re.search(r"https?:|//[a-z]|@import|url\(|<script|<link|<iframe", without)


def test_graph_page_says_what_it_must(graph, graph_html):
    text, summary = words(graph_html), graph.summary
    first, eps, paper = (
        text.index(s) for s in ("Posterior odds / prior odds", "(eps_L, eps_R)", "The paper's posterior")
    )
    assert first < eps < paper
    assert "The trained model reveals which nodes it was trained on." in text
    assert f"×{math.exp(summary['limits']['r_lower']['q90']):.2f} or more" in text
    for phrase in (
        "the published formula", "uniformly inside the region", "overshoot", "driven by the prior on (l, r)",
        "share the same trained models", "by chance alone", "speak of this attack alone", "sampling prior alone",
        "not auditable", "10,000 draws of the sampler", *graph.warnings, "train.learning_rate", "jaxaudit audit=graph",
        "sampler=snowball", "versions.jax",
    ):  # fmt: skip
        assert phrase in text, phrase
    area = summary["attack_auc"]["within_node"]
    low, high = area["likelihood_ratio_ci"]
    assert f"{area['likelihood_ratio']:.3f} [{low:.3f}, {high:.3f}]" in text
    assert f"{summary['prior_only_auc']:.3f}" in text


def test_exposed_nodes_are_the_largest_limits_where_there_are_no_ranks(graph, environment):
    table = graph.table.drop(columns=["rank", "rank_q05", "rank_q95", "top_probability", "log_odds"])
    rows = Reader(render(replace(graph, table=table), BLANK, environment)).rows
    start = next(i for i, row in enumerate(rows) if row[:2] == ["node", "label"])
    listed = [int(row[0]) for row in rows[start + 1 : start + 16]]
    top = graph.table.dropna(subset=["r_lower"]).nlargest(15, "r_lower")["node"].tolist()
    assert listed == top
    assert rows[start + 1][rows[start].index("r")] == f"{graph.table['r_lower'].max():.2f}"


def test_timings_apart_and_summed(graph, graph_html):
    rows = Reader(graph_html).rows
    running = sum(s["run_s"] for s in graph.timings.values())
    assert ["shadow models", "3.12", "28.40", f"{100 * 28.4 / running:.0f} %", "64"] in rows
    compiled = sum(spent["compile_s"] for spent in graph.timings.values())
    assert ["total", f"{compiled:.2f}", f"{running:.2f}", "", ""] in rows


def test_release_page_says_what_it_must(release, release_html):
    text, rows = words(release_html), Reader(release_html).rows
    attacks = release.summary["attacks"]
    assert "evidence of memorisation, if both are from one population" in text
    for phrase in (
        "random draws from one population",
        "shuffled 999 times",
        "not a bound on the generator",
        "no cell values",
        *release.warnings,
    ):
        assert phrase in text, phrase
    for name, attack in attacks.items():
        low, high = attack["auc_ci"]
        cells = [name, f"{attack['auc']:.3f}", f"[{low:.3f}, {high:.3f}]"]
        assert any(row[:3] == cells for row in rows), cells
    assert any("not supported" in cell for row in rows for cell in row)

    start = next(i for i, row in enumerate(rows) if row[:2] == ["record", "score"])
    listed = [int(row[0]) for row in rows[start + 1 : start + 16]]
    member, scores = release.evidence["member"], release.evidence["scores"][0]
    inside = release.table[release.table["member"] == 1]
    assert listed == inside.nlargest(15, "gen_lra")["record"].tolist()
    assert [int(row[2]) for row in rows[start + 1 : start + 16]] == [
        int((scores[~member] >= s).sum()) for s in np.sort(scores[member])[::-1][:15]
    ]


def test_a_non_member_with_the_same_score_counts(make, environment):
    result = make["release"](members=4, others=4, attacks=("dcr",))
    scores = np.array([[3.0, 2, 1, 0, 3, 2, 0, 0]])
    rows = Reader(render(replace(result, evidence={**result.evidence, "scores": scores}), BLANK, environment)).rows
    start = next(i for i, row in enumerate(rows) if row[:2] == ["record", "score"])
    assert rows[start + 1 : start + 5] == [["0", "3", "1"], ["1", "2", "2"], ["2", "1", "2"], ["3", "0", "4"]]


@pytest.mark.parametrize(
    ("n_in", "n_out", "words_"),
    [(3, 61, "3 or fewer counted models with "), (61, 9, "9 or fewer counted models without "), (10, 54, "")],
)
def test_few_models_are_said(graph, environment, n_in, n_out, words_):
    nodes = {**graph.summary["nodes"], "median_n_in": n_in, "median_n_out": n_out}
    text = words(render(replace(graph, summary={**graph.summary, "nodes": nodes}), BLANK, environment))
    assert words_ in text
    assert ("or fewer counted models" in text) == bool(words_)


def test_quiet_verdicts(make, environment):
    page = words(render(make["graph"](leak=0.0), BLANK, environment))
    assert "found no evidence that the model reveals" in page
    assert "not a proof of privacy" in page
    assert "or more, at one node in ten" not in page
    page = words(render(make["release"](leak=0.0), BLANK, environment))
    sentence = r"No evidence of memorisation by the attacks run; a true AUC above 0\.[56]\d would have been seen"
    assert re.search(sentence, page)
    assert re.search(r"An observed AUC of about 0\.5\d would have been significant", page)


def test_too_few_records_are_not_a_quiet_verdict(make, environment):
    few = make["release"](members=2, others=2)
    assert all(math.isnan(attack["critical_auc"]) for attack in few.summary["attacks"].values())
    page = render(few, BLANK, environment)
    assert "too few records: no AUC could be significant at 5 %" in words(page)
    assert "No evidence of memorisation" not in words(page)
    assert release_page(few, dict.fromkeys(NAMES, BLANK[0]), ()).tone == "unknown"
    flat = {**few.evidence, "scores": np.zeros((3, 4))}
    assert "gives all records the same score" in words(render(replace(few, evidence=flat), BLANK, environment))


def test_a_test_and_an_interval_that_disagree_are_explained(release, environment):
    def page(interval):
        attack = {**release.summary["attacks"]["gen_lra"], "p_value": 0.03, "auc_ci": interval}
        return words(
            render(replace(release, summary={**release.summary, "attacks": {"a": attack}}), BLANK, environment)
        )

    assert "That an interval covers 0.5 is no contradiction" in page([0.49, 0.7])
    assert "That an interval covers 0.5" not in page([0.51, 0.7])
    assert "1 of 1 attack tells members from non-members" in page([0.51, 0.7])


def test_the_level_is_said_everywhere(release, environment):
    permutation = {**release.summary["permutation"], "level": 0.9}
    result = replace(release, summary={**release.summary, "permutation": permutation})
    text = words(render(result, draw(result), environment))
    assert "95 %" not in text
    assert text.count("90 %") >= 4


@pytest.mark.parametrize("case", [{"members": 1, "others": 3}, {"members": 3, "others": 1, "attacks": ("dcr",)}])
def test_one_is_singular(case, make, environment):
    result = make["release"](**case)
    result.summary["records"].update(reference=1)
    result = replace(result, warnings=())
    text = words(render(result, draw(result), environment))
    text += " ".join(value + label for label, value in headline_numbers(result))
    assert not re.search(r"(?<![\d.,])1 (attacks|members|non-members|reference records)", text)
    assert "with 1 reference record " in text
    assert "above all 1" not in text


def test_every_string_is_escaped(graph, release, environment):
    table = graph.table.astype({"label": object})
    table["label"] = EVIL
    evil_graph = replace(
        graph, table=table, warnings=(EVIL,), data={"name": EVIL, EVIL: [EVIL]}, timings={EVIL: {"run_s": 1.0}},
        config={"graph": {"name": EVIL}, EVIL: EVIL}, summary={**graph.summary, "pooled": {"engine": EVIL},
        "global_attack": {"rule": EVIL}, "prior_lower_bound": {"definition": EVIL}},
    )  # fmt: skip
    attacks = {EVIL: release.summary["attacks"]["gen_lra"]}
    table = release.table.rename(columns={"gen_lra": EVIL}).astype({"record": object})
    table["record"] = EVIL
    evil_release = replace(
        release, table=table, warnings=(EVIL,), data={"columns": [EVIL]}, config={"release": {EVIL: EVIL}},
        summary={**release.summary, "attacks": attacks},
        evidence={"member": release.evidence["member"], "scores": release.evidence["scores"][:1]},
    )  # fmt: skip
    pictures = [Picture(name, EVIL, EVIL, b"png") for name in NAMES]
    for result in (evil_graph, evil_release):
        page = render(result, pictures, {EVIL: EVIL})
        assert "<script" not in page
        assert page.count("&lt;script&gt;") >= 8
        assert "script" not in Reader(page).tags
        assert EVIL in Reader(page).text


@pytest.mark.parametrize("kind", ["graph", "release"])
def test_missing_numbers_are_dashes(kind, graph, release, environment):
    result = {"graph": graph, "release": release}[kind]
    empty = replace(result, summary={}, table=result.table.iloc[:0], evidence={}, config={}, data={}, timings={})
    page = render(empty, BLANK, {})
    assert "Nothing can be said" in page
    assert "nan" not in words(page).lower().split()
    assert all("–" in text for _, text in headline_numbers(empty))


def test_no_auditable_node(graph, environment):
    nan = {"median": math.nan, "q90": math.nan, "max": math.nan}
    summary = {
        **graph.summary, "nodes": {"total": 600, "auditable": 0}, "limits": {"r_lower": nan, "l_lower": nan},
        "attack_auc": {"pooled": math.nan, "within_node": {"likelihood_ratio": math.nan, "likelihood_ratio_ci": None}},
    }  # fmt: skip
    table = graph.table.assign(r_lower=np.nan, l_lower=np.nan)
    page = words(render(replace(graph, summary=summary, table=table), BLANK, environment))
    assert "Nothing can be said: too few nodes could be audited." in page
    assert "No node could be audited, so none can be listed." in page


def test_headline_numbers(graph, release):
    (_, limits), (_, area), (_, share) = headline_numbers(graph)
    lower = graph.summary["limits"]
    expected = [f"{lower[n][part]:.2f}" for part in ("median", "max") for n in ("r_lower", "l_lower")]
    assert re.findall(r"\d+\.\d+", limits) == expected
    assert area.startswith(f"{graph.summary['attack_auc']['within_node']['likelihood_ratio']:.3f} [")
    assert share == f"{100 * lower['share_r_above_0.1']:.0f} % of {graph.summary['nodes']['auditable']:,}"

    (best, area), (_, p), (_, found) = headline_numbers(release)
    attack = release.summary["attacks"]["gen_lra"]
    assert "gen_lra" in best
    assert area == "{:.3f} [{:.3f}, {:.3f}]".format(attack["auc"], *attack["auc_ci"])
    assert p == "0.0010"
    assert found.startswith(f"{attack['tpr_at_fpr']['0']['true_positives']} of 200")


def test_command_line_round_trips_through_the_shell(graph, release):
    split = shlex.split(command_line(graph))
    assert split[:3] == ["jaxaudit", "audit=graph", "seed=0"]
    for word in ("graph=digits_knn", "graph.neighbours=10", "sampler.ratio=0.1", "cache.dir=null", "train.epochs=200"):
        assert word in split
    assert not [word for word in split if ".name=" in word]
    split = shlex.split(command_line(release))
    for word in (
        "release.non_members='non members.csv'",
        "release.synthetic=synthetic.csv.gz",
        "attacks=[gen_lra,dcr,domias]",
    ):
        assert word in split
    assert command_line(replace(graph, config={"command": "jaxaudit seed=7"})) == "jaxaudit seed=7"
    hard = replace(graph, config={"x": "it's (1=2), ok"})
    assert shlex.split(command_line(hard))[-1] == r"x='it\'s (1=2), ok'"
