"""Comparing runs: numbers as in the raw files, pairs by a naive loop, foreign files, bad input, the page."""

from __future__ import annotations

import csv
import itertools
import json
import math
import shutil

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from jaxaudit.report.compare import compare, main_compare, write_comparison
from jaxaudit.report.effects import Measured, compare_levels, difference, mean_difference, rank_correlation, ranking
from jaxaudit.report.sweeps import read_sweeps, varying_options
from jaxaudit.report.write import plain
from jaxaudit.runtime.checks import InputError

SAMPLERS, EDGES, NOISE = ("uniform", "snowball"), ("split", "full", "none"), (0.0, 0.01, 0.1)


def write(result, folder):
    """results.json and the table as a run leaves them, without figures."""
    folder.mkdir(parents=True)
    content = {"schema_version": 1, "audit": result.audit, "config": result.config, "data": result.data,
               "environment": {}, "timings": {}, "summary": result.summary,
               "warnings": result.warnings}  # fmt: skip
    (folder / "results.json").write_text(json.dumps(plain(content), allow_nan=False))
    result.table.to_csv(folder / ("nodes.csv" if result.audit == "graph" else "records.csv"), index=False)


def graph_run(make, folder, sampler="uniform", edges="split", noise=0.0, seed=0, **options):
    result = make["graph"](nodes=60, models=12, sampler=sampler, seed=seed, leak=1.5 - noise)
    config = result.config
    config["sampler"] = {"name": sampler, "ratio": 0.1} | ({"fanout": 3} if sampler == "snowball" else {})
    config["edges"]["inference"], config["noise"], config["seed"] = edges, {"weights": noise}, 0
    config["command"], config["cache"] = f"jaxaudit {folder}", {"dir": str(folder)}
    config["graph"] = {"name": "npz", "path": str(folder / "cora.npz")}
    result.data["name"] = "cora"
    for name, value in options.items():
        group, _, key = name.partition("__")
        config[group][key] = value
    write(result, folder)
    return result


@pytest.fixture(scope="module")
def sweep(make, tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep")
    for number, (sampler, edges, noise) in enumerate(itertools.product(SAMPLERS, EDGES, NOISE)):
        graph_run(make, root / str(number), sampler, edges, noise, seed=number)
    return root


@pytest.fixture(scope="module")
def compared(sweep, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    write_comparison(compare([sweep]), out)
    return out


def raw(folder):
    return json.loads((folder / "results.json").read_text())


def test_every_number_of_the_table_is_the_one_in_the_raw_files(sweep, compared) -> None:
    rows = list(csv.DictReader((compared / "summary.csv").open()))
    assert [row["run"] for row in rows] == [str(number) for number in range(18)]
    paths = {
        "auc": "attack_auc.within_node.likelihood_ratio", "auc_standardised": "attack_auc.within_node.standardised",
        "prior_auc": "prior_only_auc", "pooled_auc": "attack_auc.pooled", "r_median": "limits.r_lower.median",
        "r_q90": "limits.r_lower.q90", "l_median": "limits.l_lower.median", "l_q90": "limits.l_lower.q90",
        "eps_R_median": "limits.eps_R_lower.median", "eps_L_median": "limits.eps_L_lower.median",
        "prior_eps_R_median": "prior_lower_bound.eps_R_median", "share_r_above_0.1": "limits.share_r_above_0$1",
        "paper_pooled_r_q05": "pooled.r.q05", "paper_pooled_l_q95": "pooled.l.q95",
        "train_accuracy": "shadows.train_accuracy.mean", "test_accuracy": "shadows.test_accuracy.mean",
        "global_accuracy": "global_attack.accuracy", "balanced_accuracy": "global_attack.balanced_accuracy",
        "models": "shadows.count", "nodes": "nodes.total",
    }  # fmt: skip
    for row in rows:
        content = raw(sweep / row["run"])
        summary, config = content["summary"], content["config"]
        for column, path in paths.items():
            value = summary
            for part in path.split("."):
                value = value[part.replace("$", ".")]
            assert float(row[column]) == value, column
        ends = summary["attack_auc"]["within_node"]["likelihood_ratio_ci"]
        assert [float(row["auc_low"]), float(row["auc_high"])] == ends
        ends = summary["attack_auc"]["pooled_ci"]
        assert [float(row["pooled_auc_low"]), float(row["pooled_auc_high"])] == ends
        gap = summary["shadows"]["train_accuracy"]["mean"] - summary["shadows"]["test_accuracy"]["mean"]
        assert float(row["gap"]) == pytest.approx(gap)
        nodes = pd.read_csv(sweep / row["run"] / "nodes.csv")
        assert float(row["auditable"]) == pytest.approx(nodes.auditable.mean())
        assert float(row["sample_filled"]) == summary["shadows"]["sizes"]["mean"] / 60
        assert row["sampler.name"] == config["sampler"]["name"]
        assert float(row["noise.weights"]) == config["noise"]["weights"]
        assert row["warnings"] == str(len(content["warnings"]))
        assert row["pooled_auc_with_prior"] == row["global_accuracy_low"] == ""  # these runs do not have them


def test_options_are_those_that_differ_and_no_others(sweep) -> None:
    found = read_sweeps([sweep])
    assert varying_options(found.runs) == ["sampler.name", "edges.inference", "noise.weights"]  # not path, not fanout
    assert found.runs[0].options["graph"] == "cora"


@pytest.mark.parametrize(("option", "base", "level"), [
    ("sampler.name", "uniform", "snowball"), ("edges.inference", "split", "none"), ("noise.weights", 0.0, 0.1),
])  # fmt: skip
def test_effects_are_those_of_a_naive_loop_over_the_raw_files(sweep, compared, option, base, level) -> None:
    group, key = option.split(".")
    contents = [raw(sweep / str(number)) for number in range(18)]

    def settings(content):
        config = content["config"]
        every = {"sampler.name": config["sampler"]["name"], "edges.inference": config["edges"]["inference"],
                 "noise.weights": config["noise"]["weights"]}  # fmt: skip
        return {name: value for name, value in every.items() if name != option}

    found, below, above, shared = [], [], [], []
    for first, other in itertools.product(contents, contents):
        if (
            first["config"][group][key] == base
            and other["config"][group][key] == level
            and settings(first) == settings(other)
        ):
            a, b = (c["summary"]["attack_auc"]["within_node"] for c in (first, other))
            x, y = a["likelihood_ratio"], b["likelihood_ratio"]
            (xl, xh), (yl, yh) = a["likelihood_ratio_ci"], b["likelihood_ratio_ci"]
            found.append(y - x)
            shared.append(first["config"]["sampler"]["name"] if option != "sampler.name" else "")
            below.append((y - yl) ** 2 + (xh - x) ** 2)
            above.append((yh - y) ** 2 + (x - xl) ** 2)
    written = json.loads((compared / "summary.json").read_text())["effects"]
    effect = next(e for e in written if (e["option"], e["level"]) == (option, level))
    assert effect["baseline"] == base
    assert sorted(pair["auc"]["difference"] for pair in effect["pairs"]) == pytest.approx(sorted(found))
    low = [pair["auc"]["difference"] - pair["auc"]["low"] for pair in effect["pairs"]]
    assert sorted(low) == pytest.approx(sorted(np.sqrt(below)))
    mean = effect["mean"]["auc"]
    assert mean["difference"] == pytest.approx(np.mean(found))
    for end, widths, sign in (("low", below, -1), ("high", above, 1)):
        sums = pd.Series(np.sqrt(widths)).groupby(shared).sum()  # edges and noise train no other models
        assert mean[end] == pytest.approx(np.mean(found) + sign * np.sqrt((sums**2).sum()) / len(found))
    assert all(set(pair["at"]) == set(settings(contents[0])) for pair in effect["pairs"])


def test_the_interval_of_a_difference_covers_and_turns_with_its_sign() -> None:
    rng, z, hits = np.random.default_rng(0), stats.norm.isf(0.025), 0
    for x, y in zip(rng.normal(0.6, 0.02, 2000), rng.normal(0.7, 0.05, 2000), strict=True):
        first, second = Measured(x, x - z * 0.02, x + z * 0.02), Measured(y, y - z * 0.05, y + z * 0.05)
        there, back = difference(first, second), difference(second, first)
        assert (there.value, there.low, there.high) == pytest.approx((-back.value, -back.high, -back.low))
        hits += there.low <= 0.1 <= there.high
    assert 0.935 <= hits / 2000 <= 0.965
    skewed = difference(Measured(0.5, 0.4, 0.52), Measured(0.9, 0.8, 0.91))
    assert (skewed.low, skewed.high) == pytest.approx((0.4 - math.hypot(0.1, 0.02), 0.4 + math.hypot(0.01, 0.1)))
    unknown = mean_difference([Measured(0.2), Measured(math.nan), Measured(0.4, 0.3, 0.5)])
    assert unknown.value == pytest.approx(0.3)
    assert math.isnan(unknown.low)


def test_ranking_is_that_of_the_node_table(sweep) -> None:
    for run in read_sweeps([sweep]).runs:
        nodes = pd.read_csv(run.folder / "nodes.csv")
        nodes = nodes[nodes.auditable]
        odds = np.log(nodes.prior / (1 - nodes.prior))
        found = ranking(run)
        total = nodes.r_lower + odds
        assert found["nodes"] == len(nodes)
        assert found["r_odds"] == pytest.approx(stats.spearmanr(nodes.r_lower, total).statistic)
        assert found["r_eps"] == pytest.approx(stats.spearmanr(nodes.r_lower, nodes.eps_R_lower).statistic)
        assert found["prior_spread"] == pytest.approx(odds.std(ddof=0), abs=1e-12)
        tenth = len(nodes) // 10
        both = set(nodes.r_lower.sort_values(ascending=False, kind="stable").index[:tenth])
        both &= set(total.sort_values(ascending=False, kind="stable").index[:tenth])
        assert found["top_kept"] == pytest.approx(len(both) / tenth)
        if run.options["sampler.name"] == "uniform":
            assert found["r_odds"] == found["top_kept"] == 1
            assert math.isnan(found["prior_odds"])
        else:
            assert found["r_odds"] < 1
            assert found["prior_odds"] == pytest.approx(stats.spearmanr(odds, total).statistic)


def test_estimated_priors_of_0_and_1_stand_for_the_end_of_their_interval(make, tmp_path) -> None:
    result = make["graph"](nodes=40, models=12)
    for exact in (False, True):
        folder = tmp_path / str(exact)
        result.summary["sampling"]["prior_exact"], result.config["seed"] = exact, int(exact)
        write(result, folder)
        table = result.table.assign(prior=np.linspace(0, 1, 40), prior_lower=0.9, prior_upper=0.001, auditable=True,
                                    r_lower=np.arange(40.0)[::-1] / 9, eps_R_lower=0.0)  # fmt: skip
        table.to_csv(folder / "nodes.csv", index=False)
    exact, estimated = (ranking(run) for run in sorted(read_sweeps([tmp_path]).runs, key=lambda r: r.name == "False"))
    prior = np.linspace(0, 1, 40)
    prior[0], prior[-1] = 0.001, 0.9
    total = np.arange(40.0)[::-1] / 9 + np.log(prior / (1 - prior))
    assert estimated["r_odds"] == pytest.approx(stats.spearmanr(np.arange(40)[::-1], total).statistic)
    total[0], total[-1] = -np.inf, np.inf
    assert exact["r_odds"] == pytest.approx(stats.spearmanr(np.arange(40)[::-1], stats.rankdata(total)).statistic)
    assert math.isnan(exact["r_eps"])


def test_rank_correlation_ignores_monotone_maps_and_turns_with_order() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=50), rng.normal(size=50)
    x[3] = np.nan
    whole = rank_correlation(x, y)
    assert whole == pytest.approx(stats.spearmanr(x, y, nan_policy="omit").statistic)
    assert rank_correlation(np.exp(x), 3 * y - 1) == pytest.approx(whole)
    assert rank_correlation(x, -y) == pytest.approx(-whole)


def test_options_of_one_choice_do_not_keep_runs_apart(make, tmp_path) -> None:
    graph_run(make, tmp_path / "0", "uniform")
    graph_run(make, tmp_path / "1", "snowball", sampler__fanout=1)
    graph_run(make, tmp_path / "2", "snowball", sampler__fanout=3)
    runs = read_sweeps([tmp_path]).runs
    assert varying_options(runs) == ["sampler.name", "sampler.fanout"]
    (effect,) = compare_levels(runs, "sampler.name")
    assert [(pair.baseline.name, pair.other.name) for pair in effect.pairs] == [("0", "1"), ("0", "2")]
    by_fanout = compare_levels(runs, "sampler.fanout")
    assert [(p.baseline.name, p.other.name) for e in by_fanout for p in e.pairs] == [("1", "2")]


def test_an_option_that_some_runs_do_not_name_is_a_level_of_its_own(make, tmp_path) -> None:
    graph_run(make, tmp_path / "0")
    result = make["graph"](nodes=60, models=12, sampler="uniform")
    write(result, tmp_path / "1")
    assert "noise.weights" in varying_options(read_sweeps([tmp_path]).runs)


def test_different_data_under_one_name_are_told_apart(make, tmp_path) -> None:
    for number, digest in enumerate(("aaaaaaaa", "bbbbbbbb")):
        graph_run(make, tmp_path / str(number))
        content = raw(tmp_path / str(number))
        content["data"]["digest"] = digest
        (tmp_path / str(number) / "results.json").write_text(json.dumps(content))
    assert [run.options["graph"] for run in read_sweeps([tmp_path]).runs] == ["cora (aaaaaa)", "cora (bbbbbb)"]


WHOLE = '"config": {}, "data": {}, "summary": {}, "warnings": []}'
FOREIGN = {
    "a list": "[1, 2]", "another program": '{"name": "x"}', "not JSON": "{", "binary": b"\xff\xfe\x00",
    "deep": "[" * 100_000, "empty": "", "unknown audit": '{"schema_version": 1, "audit": "x", ' + WHOLE,
    "newer": '{"schema_version": 2, "audit": "graph", ' + WHOLE,
    "true": '{"schema_version": true, "audit": "graph", ' + WHOLE,
    "not a number": '{"schema_version": 1, "audit": "graph", "x": NaN, ' + WHOLE,
    "no summary": '{"schema_version": 1, "audit": "graph", "config": {}, "data": {}, "warnings": []}',
}  # fmt: skip


def test_foreign_files_are_skipped_with_a_sentence_each(make, tmp_path) -> None:
    graph_run(make, tmp_path / "good")
    for name, text in FOREIGN.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / ".draft.part").mkdir()
    (tmp_path / ".draft.part" / "results.json").write_text("{")
    found = read_sweeps([tmp_path])
    assert [run.name for run in found.runs] == ["good"]
    assert sorted(line.split("/results.json")[0].removeprefix("skipped ") for line in found.skipped) == sorted(FOREIGN)
    assert any("schema version 2" in line for line in found.skipped)


def test_failed_and_missing_jobs_and_repeated_audits_are_counted(make, tmp_path) -> None:
    for number in (0, 1, 3, 10):
        graph_run(make, tmp_path / "sweep" / str(number), seed=number, noise=number / 10)
    (tmp_path / "sweep" / "2").mkdir()
    found = read_sweeps([tmp_path])
    assert (found.jobs, found.missing) == (None, ())  # without Hydra's record nothing says that 2 was a job
    record = """
hydra:
  sweeper: {params: {graph.path: '${graphs_dir}/a.npz,${graphs_dir}/b.npz', sampler.ratio: '0.1,0.5'}}
  overrides: {task: ['sampler.ratio=0.3', 'seed=range(6)', 'experiment=[x,y]', 'graphs_dir=/g']}
"""
    (tmp_path / "sweep" / "multirun.yaml").write_text(record)
    found = read_sweeps([tmp_path])
    assert found.jobs == 12
    assert found.missing == tuple(f"sweep/{number}" for number in (2, 4, 5, 6, 7, 8, 9, 11))
    (tmp_path / "sweep" / "multirun.yaml").write_text("hydra: [1]\n")
    assert read_sweeps([tmp_path]).missing == tuple(f"sweep/{number}" for number in (2, 4, 5, 6, 7, 8, 9))
    shutil.copytree(tmp_path / "sweep" / "1", tmp_path / "again")
    found = read_sweeps([tmp_path, tmp_path / "again"])
    assert len(found.runs) == 4
    assert any(line.startswith("left out") for line in found.skipped)


def test_runs_without_numbers_are_shown_as_such(make, tmp_path) -> None:
    graph_run(make, tmp_path / "0")
    graph_run(make, tmp_path / "1", "snowball")
    content = raw(tmp_path / "1")
    (tmp_path / "1" / "results.json").write_text(json.dumps(content | {"summary": {}}))
    (tmp_path / "1" / "nodes.csv").unlink()
    content = raw(tmp_path / "0")
    content["summary"]["limits"]["r_lower"]["q90"] = "Infinity"
    (tmp_path / "0" / "results.json").write_text(json.dumps(content))
    out = compare([tmp_path])
    assert np.isnan(out.table["auc"][1])
    assert out.table["r_q90"][0] == np.inf
    write_comparison(out, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert written["runs"][0]["r_q90"] == "Infinity"
    assert written["runs"][1]["auc"] is None
    assert "no two runs with an AUC agree" in (tmp_path / "out" / "report.html").read_text()


def test_numbers_that_no_float_holds_are_missing_and_a_graph_without_a_name_is_one(make, tmp_path) -> None:
    for number in (0, 1):
        graph_run(make, tmp_path / str(number), noise=number / 10)
    content = raw(tmp_path / "1")
    content["summary"]["prior_only_auc"] = content["summary"]["nodes"]["total"] = 10**400
    content["summary"]["limits"]["r_lower"]["q90"] = -(10**400)
    content["config"]["sampler"]["ratio"] = content["config"]["seed"] = 10**400
    (tmp_path / "1" / "results.json").write_text(json.dumps(content))
    for number in (0, 1):
        content = raw(tmp_path / str(number))
        content["data"]["name"] = None
        (tmp_path / str(number) / "results.json").write_text(json.dumps(content))
    assert {run.options["graph"] for run in read_sweeps([tmp_path]).runs} == {"graph"}
    out = compare([tmp_path])
    assert out.table[["prior_auc", "nodes", "r_q90"]].iloc[1].isna().all()
    assert out.table[["prior_auc", "nodes", "r_q90"]].iloc[0].notna().all()
    write_comparison(out, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["runs"][1]["prior_auc"] is None


def test_releases_have_their_own_columns(make, tmp_path) -> None:
    for number, attacks in enumerate((("gen_lra", "dcr"), ("dcr", "mc"))):
        result = make["release"](members=40, others=40, attacks=attacks, seed=number)
        result.config["release"]["members"] = f"/data/releases/{number}/members.csv"
        write(result, tmp_path / "r" / str(number))
    graph_run(make, tmp_path / "g")
    out = compare([tmp_path])
    table = out.table.set_index("run")
    for number in ("0", "1"):
        for name, found in raw(tmp_path / "r" / number)["summary"]["attacks"].items():
            row = table.loc[f"r/{number}"]
            assert row[f"auc_{name}"] == found["auc"]
            assert [row[f"auc_{name}_low"], row[f"auc_{name}_high"]] == found["auc_ci"]
            assert row[f"p_{name}"] == found["p_value"]
    assert np.isnan(table.loc["r/0", "auc_mc"])
    assert table.loc["r/1", "release.members"] == "1/members.csv"
    assert {picture.name for picture in out.pictures} == {"prior_alone", "ranking", "attacks"} - {"ranking"}


def test_the_page_is_self_contained_and_escapes_what_it_shows(make, tmp_path) -> None:
    for number, edges in enumerate(("split", "<script>alert(1)</script>")):
        graph_run(make, tmp_path / "s" / str(number), edges=edges)
    (tmp_path / "s" / "<b>").mkdir()
    (tmp_path / "s" / "<b>" / "results.json").write_text("{")
    write_comparison(compare([tmp_path]), tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page
    assert "<b>" not in page
    assert "http" not in page.replace("data:image", "")
    assert "summary.json beside this page" in page


def test_figures_stay_small_with_many_runs(make, tmp_path) -> None:
    result = make["graph"](nodes=60, models=12)
    for number, (edges, noise, ratio) in enumerate(
        itertools.product(EDGES, (0.0, 0.01, 0.05, 0.1), (0.1, 0.2, 0.3, 0.4))
    ):
        result.config["edges"], result.config["noise"] = {"inference": edges}, {"weights": noise}
        result.config["sampler"]["ratio"] = ratio
        write(result, tmp_path / str(number))
    out = compare([tmp_path])
    names = {"effect_edges_inference", "effect_noise_weights", "effect_sampler_ratio", "ranking", "prior_alone"}
    assert {picture.name for picture in out.pictures} == names
    assert all(picture.png[:4] == b"\x89PNG" and len(picture.png) < 100_000 for picture in out.pictures)
    assert any("The first 40 of 48 runs" in picture.caption for picture in out.pictures)


def test_the_command_writes_beside_the_runs_and_replaces_only_its_own_files(sweep, tmp_path, capsys) -> None:
    root = tmp_path / "sweep"
    for number in (0, 9):
        shutil.copytree(sweep / str(number), root / str(number))
    for _ in range(2):
        main_compare([str(root)])
        (root / "comparison" / "mine.txt").write_text("kept")
    out = root / "comparison"
    assert {path.name for path in out.iterdir()} == {
        "summary.csv",
        "summary.json",
        "report.html",
        "figures",
        "mine.txt",
    }
    assert "report: " in capsys.readouterr().out
    main_compare([str(root), f"output={tmp_path / 'else'}"])
    assert (tmp_path / "else" / "summary.csv").read_bytes() == (out / "summary.csv").read_bytes()
    assert (tmp_path / "else" / "report.html").read_bytes() == (out / "report.html").read_bytes()


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "at least one folder"), (["nowhere"], "folder must be an existing folder of runs, got nowhere"),
    (["empty"], "must hold a results.json of an audit, got none in empty"), (["empty", "--wrong"], "--wrong"),
    (["foreign"], "schema version 2"), (["empty", "output="], "output must"),
    (["runs", "output=file"], "output must be writable"),
])  # fmt: skip
def test_bad_input_is_one_line_and_writes_nothing(make, arguments, message, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "results.json").write_text(FOREIGN["newer"])
    (tmp_path / "file").write_text("")
    graph_run(make, tmp_path / "runs" / "0")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as stopped:
        main_compare(arguments)
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert message in error
    assert sorted(tmp_path.rglob("*")) == before


def test_a_failure_while_writing_leaves_no_folder(sweep, tmp_path, monkeypatch) -> None:
    out = compare([sweep / "0"])
    monkeypatch.setattr("jaxaudit.report.compare.render_page", lambda page, footer: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_comparison(out, tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())


def test_one_run_and_no_folder(sweep) -> None:
    out = compare([sweep / "0"])
    assert out.content["options"] == []
    assert out.content["effects"] == []
    with pytest.raises(InputError, match="at least one folder"):
        compare([])
