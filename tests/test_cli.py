"""The command line as a user meets it: real processes, real files, exit status and messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hydra.core.global_hydra import GlobalHydra

from jaxaudit.cli import _hydra_arguments, main

SMALL_GRAPH = ("graph=csbm", "graph.nodes=120", "graph.classes=2", "sampler.ratio=0.4", "shadow.prior_draws=200",
               "sampler.seeds_per_class=3", "train.epochs=8", "train.hidden=8", "shadow.count=8")  # fmt: skip


def run(*arguments: str, cwd: Path, devices: int = 1) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "JAX_COMPILATION_CACHE_DIR": str(root / ".jax_cache")}
    environment.pop("HYDRA_FULL_ERROR", None)
    options = () if arguments[:1] == ("doctor",) else (f"devices={devices}",)
    return subprocess.run(
        [sys.executable, "-m", "jaxaudit", *arguments, *options],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    for name in ("mem", "non", "ref"):
        frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b <b>", "c"])
        frame.to_csv(folder / f"{name}.csv", index=False)
        if name == "mem":
            (frame + rng.normal(scale=0.1, size=frame.shape)).to_parquet(folder / "syn.parquet")
    pd.DataFrame({"x": [1.0, 2.0], "y": [1.0, 2.0]}).to_csv(folder / "other.csv", index=False)
    (folder / "header.csv").write_text("a,b <b>,c\n")
    (folder / "empty.csv").write_text("")
    return folder


def files(folder: Path, **changes: str) -> list[str]:
    named = {"members": "mem.csv", "non_members": "non.csv", "synthetic": "syn.parquet", "reference": "ref.csv"}
    return ["audit=release", "evaluation.permutations=99"] + [
        f"release.{role}={folder / name}" for role, name in {**named, **changes}.items() if name
    ]


def test_release_audit_writes_every_file_of_the_contract(tables: Path, tmp_path: Path) -> None:
    done = run(*files(tables), "hydra.run.dir=out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert {"results.json", "records.csv", "report.html", "figures"} <= {path.name for path in out.iterdir()}
    results = json.loads((out / "results.json").read_text())
    assert {"schema_version", "audit", "config", "data", "environment", "timings", "summary", "warnings"} <= set(
        results
    )
    assert results["summary"]["attacks"]["dcr"]["auc"] > 0.9
    assert set(results["summary"]["attacks"]["gen_lra"]["tpr_at_fpr"]) == {"0", "0.001", "0.01", "0.1"}
    records = pd.read_csv(out / "records.csv")
    assert list(records.columns) == [
        "record",
        "member",
        "row",
        "gen_lra",
        "dcr",
        "domias",
        "reference_distance",
        "release_distance",
        "stratum",
    ]
    assert len(records) == 120
    lines = done.stdout.strip().splitlines()
    assert "report.html" in lines[-4]
    assert len(lines[-3:]) == 3
    page = (out / "report.html").read_text()
    assert "<b>" not in page.replace("&lt;b&gt;", "") or "b &lt;b&gt;" in page


def test_a_crossed_gate_is_written_and_ends_with_status_3_after_all_jobs_of_a_sweep(
    tables: Path, tmp_path: Path
) -> None:
    done = run(*files(tables), "attacks=[dcr]", "gate.p_value=0.02", "hydra.run.dir=out", cwd=tmp_path)
    assert (done.returncode, "gate crossed: dcr" in done.stderr) == (3, True)
    gate = json.loads((tmp_path / "out" / "results.json").read_text())["summary"]["gate"]
    assert (gate["p_value"], gate["auc_lower"], len(gate["crossed"])) == (0.02, None, 1)
    swept = run("-m", *files(tables), "attacks=[dcr]", "gate.auc_lower=0.6,0.999", "hydra.sweep.dir=jobs", cwd=tmp_path)
    assert swept.returncode == 3, swept.stderr
    written = [json.loads(path.read_text())["summary"]["gate"] for path in sorted(tmp_path.glob("jobs/*/results.json"))]
    assert [bool(gate["crossed"]) for gate in written] == [True, False]


def test_plan_says_before_training_what_an_audit_reaches(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\ndef draw(graph, rng):\n    return np.flatnonzero(rng.random(graph.num_nodes) < 0.5)\n"
    )
    done = run("plan", "graph=csbm", "graph.nodes=100", "sampler=custom", "sampler.path=mine.py:draw",
               "shadow.prior_draws=200", "plan.width=2", "hydra.run.dir=out", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    table = pd.read_csv(tmp_path / "out" / "plan.csv")
    assert len(table) == plan["summary"]["nodes"]["total"] == 100
    needed = np.sort(table.models_auditable)
    assert plan["summary"]["models_auditable"]["all"] == needed[-1]
    assert f"{needed[-1]:.0f}" in done.stdout
    assert not list(tmp_path.rglob("nodes.csv"))


def test_graph_audit_writes_nodes_and_reuses_its_ensemble(tmp_path: Path) -> None:
    first = run(*SMALL_GRAPH, "hydra.run.dir=one", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    one = json.loads((tmp_path / "one" / "results.json").read_text())
    nodes = pd.read_csv(tmp_path / "one" / "nodes.csv")
    wanted = (
        "node,label,degree,prior,n_in,n_out,fp,fn,auditable,r_q05,r_q50,r_q95,l_q05,eps_R_q50,eps_L_q95,r_lower,l_lower"
    )
    assert set(wanted.split(",")) <= set(nodes.columns)
    assert (len(nodes), one["summary"]["shadows"]["trained"]) == (120, 8)
    second = run(*SMALL_GRAPH, "hydra.run.dir=two", "edges.inference=full", "attack.rule=likelihood",
                 "bmp.definition=bayes_factor", cwd=tmp_path)  # fmt: skip
    assert second.returncode == 0, second.stderr
    two = json.loads((tmp_path / "two" / "results.json").read_text())
    assert two["summary"]["shadows"]["trained"] == 0
    again = run(*SMALL_GRAPH, "hydra.run.dir=three", "cache.dir=null", cwd=tmp_path, devices=2)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "three" / "nodes.csv").read_bytes() == (tmp_path / "one" / "nodes.csv").read_bytes()


REFUSED = {
    "unknown command": (["audit"], "unknown command"),
    "option of the other audit": (["audit=release", "train.epochs=3"], "train.epochs"),
    "appended option of the other audit": (["audit=release", "+train.epochs=3"], "train"),
    "group of the other audit": (["audit=release", "sampler=uniform"], "sampler"),
    "unknown option": (["train.epoch=3"], "train.epoch"),
    "chunk above the count": (["shadow.chunk=65"], "shadow.chunk must be in [0, 64], got 65"),
    "graph path of a number": (["graph=npz", "graph.path=null"], "graph.path must be"),
    "unknown audit": (["audit=nothing"], "audit"),
    "unknown sampler": (["sampler=nothing"], "sampler"),
    "type": (["train.epochs=many"], "train.epochs must be an integer, got many"),
    "missing value": (["graph=npz"], "graph.path must be given"),
    "missing graph": (["graph=npz", "graph.path=nowhere.npz"], "graph.path"),
    "ratio": (["sampler.ratio=1.0"], "sampler.ratio must be"),
    "few shadows": (["shadow.count=3"], "shadow.count must be"),
    "rule": (["attack.rule=guess"], "attack.rule must be one of"),
    "lexer": (["graph=npz", "graph.path=a(b"], "cannot read an option"),
    "seed": (["seed=-1"], "seed must be"),
    "empty run folder": (["hydra.run.dir="], "hydra.run.dir must name a folder"),
    "run folder below a file": ([f"hydra.run.dir={__file__}/below"], "Not a directory"),
    "interpolation": (["seed=${nowhere}"], "nowhere"),
    "no audit": (["audit=null"], "Config group override must be"),
    "definition": (["bmp.definition=other"], "bmp.definition must be one of"),
    "noise": (["noise.weights=-1"], "noise.weights must be"),
    "gradient noise without a clip": (
        ["train.gradient_noise=1"],
        "train.gradient_noise must be 0 where train.clip is 0",
    ),
    "dropout": (["train.dropout=1"], "train.dropout must be"),
    "what is seen": (["attack.observes=everything"], "attack.observes must be one of"),
    "attack to compare": (["attack.compare=[loss,guess]"], "attack.compare must be one of"),
    "one attack instead of a list": (["attack.compare=loss"], "attack.compare must be a list"),
    "one target": (["shadow.targets=1"], "shadow.targets must be 0 or at least 2, got 1"),
    "pairs of an odd number": (
        ["sampler=uniform", "sampler.ratio=0.5", "sampler.paired=true", "shadow.count=9"],
        "shadow.count must be even with sampler.paired=true, got 9",
    ),
    "pairs of a part": (["sampler=uniform", "sampler.paired=true"], "sampler.ratio must be 0.5"),
    "own sampler without a path": (["sampler=custom"], "sampler.path must be given"),
    "own sampler that is absent": (["sampler=custom", "sampler.path=nowhere.py:draw"], "sampler.path must"),
    "column without a table": (["bmp.column=nowhere.csv:team"], "bmp.column must name a table that exists"),
    "engine": (["posterior=guess"], "posterior must be one of"),
    "plan of another audit": (["plan", "graph=csbm", "audit=graph"], "plan takes no audit=..., got audit=graph"),
    "flag of plan": (["plan", "--foo"], "unrecognized arguments: --foo"),
    "unknown flag": (["seed=1", "--foo"], "unrecognized arguments: --foo"),
    "kind of configuration": (["--cfg", "nothing"], "invalid choice: 'nothing'"),
    "plan": (["audit=plan", "plan.width=0"], "plan.width must be"),
    "plan of an option of training": (["audit=plan", "train.epochs=3"], "train.epochs"),
    "experiment": (["experiment=nothing"], "experiment"),
    "gate": (["audit=release", "gate.p_value=2"], "gate.p_value must be"),
}


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., None]:
    """Calls ``main`` in this process with bad arguments and checks the promise: one line, status 2, no file."""

    def call(arguments: list[str], message: str) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        monkeypatch.setattr(
            sys, "argv", ["jaxaudit", *arguments, "cache.dir=null"] if "=" in arguments[0] else ["jaxaudit", *arguments]
        )
        GlobalHydra.instance().clear()
        with pytest.raises(SystemExit) as stopped:
            main()
        error = capsys.readouterr().err
        assert stopped.value.code == 2, error
        assert error.startswith("error: "), error
        assert len(error.strip().splitlines()) == 1, error
        assert message in error
        assert not list(tmp_path.rglob("*.*"))

    return call


@pytest.mark.parametrize("way", ["braces", "dots", "file"])
def test_roles_of_columns_on_the_command_line(way: str, tables: Path, tmp_path: Path, monkeypatch) -> None:
    name = "größe [m], 'x'"  # no name that Hydra can read
    for table in ("mem", "non", "ref", "syn"):
        frame = pd.read_parquet(tables / "syn.parquet") if table == "syn" else pd.read_csv(tables / f"{table}.csv")
        frame.rename(columns={"c": name} if way == "file" else {}).to_csv(tmp_path / f"{table}.csv", index=False)
    (tmp_path / "roles.json").write_text(json.dumps({"a": "drop", name: "categorical"}), encoding="utf-8")
    option = {
        "braces": "release.roles={a: drop, c: categorical}",
        "dots": "release.roles.a=drop",
        "file": f"release.roles={tmp_path / 'roles.json'}",
    }[way]
    monkeypatch.chdir(tmp_path)
    options = [option, "attacks=[dcr]", "cache.dir=null", "hydra.run.dir=out"]
    monkeypatch.setattr(sys, "argv", ["jaxaudit", *files(tmp_path, synthetic="syn.csv"), *options])
    GlobalHydra.instance().clear()
    main()
    roles = json.loads((tmp_path / "out" / "results.json").read_text())["data"]["roles"]
    assert roles["a"] == {"role": "drop", "given": True}
    assert roles.get(name if way == "file" else "c")["given"] == (way != "dots")


@pytest.mark.parametrize("case", list(REFUSED))
def test_bad_options_are_one_line_and_status_2(case: str, refused: Callable[..., None]) -> None:
    refused(*REFUSED[case])


@pytest.mark.parametrize("case", ["lexer", "ratio", "group of the other audit"])
def test_the_process_itself_exits_with_status_2(case: str, tmp_path: Path) -> None:
    arguments, message = REFUSED[case]
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in done.stderr
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"members": "missing.csv"}, [], "release.members"),
        ({"synthetic": "other.csv"}, [], "column"),
        ({"synthetic": "header.csv"}, [], "release.synthetic"),
        ({"reference": "empty.csv"}, [], "release.reference"),
        ({"synthetic": ""}, [], "release.synthetic must be given"),
        ({}, ["gen_lra.k=61"], "k must be in [1, 60], got 61"),
        ({}, ["gen_lra.k=0"], "k must be"),
        ({}, ["attacks=[dcr,guess]"], "attacks"),
        ({}, ["release.encoding=odd"], "encoding must be one of"),
        ({}, ["release.drop=[x]"], "release.drop must name columns of the tables, got 'x'"),
        ({}, ["attacks=[dcr]", "gen_lra.multiplier=0"], "gen_lra.multiplier must be in [0.001, 1000], got 0"),
        ({}, ["release.roles={a: best}"], "release.roles['a'] must be one of numeric"),
        ({}, ["release.roles.x=drop"], "release.roles must name columns of the tables that are not dropped, got 'x'"),
        ({}, ["release.roles=none.json"], "release.roles must be a mapping or a JSON file, cannot read none.json"),
        ({}, ["release.roles=[a]"], "cannot use release.roles=[a]: the option takes another kind of value"),
        ({}, ["release.members=''"], "release.members must be an existing file, got ''"),
    ],
)
def test_bad_tables_are_one_line_and_status_2(changes, options, message, tables: Path, refused) -> None:
    refused([*files(tables, **changes), *options], message)


def test_a_refused_run_removes_the_folders_it_made_and_no_others(refused: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    refused(["sampler.ratio=2", "hydra.run.dir=mine"], "sampler.ratio")
    refused(["sampler.ratio=2", "hydra.run.dir=mine/a/b/c"], "sampler.ratio")
    refused(["sampler.ratio=2", "hydra.run.dir=other/a"], "sampler.ratio")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["mine"]


@pytest.mark.parametrize(
    ("given", "sorted_out"),
    [
        (["plan", "-m", "graph=csbm", "plan.width=1,2"], ["graph=csbm", "plan.width=1,2", "audit=plan", "-m"]),
        (["-m", "plan", "seed=1"], ["seed=1", "audit=plan", "-m"]),
        (["plan"], ["audit=plan"]),
        (["seed=1", "-m", "graph=csbm"], ["seed=1", "graph=csbm", "-m"]),
        (["--cfg", "job", "plan", "~gate", "--resolve"], ["~gate", "audit=plan", "--cfg", "job", "--resolve"]),
        (["seed=1", "plan"], ["seed=1", "plan"]),  # refused by Hydra
        (["-cd", "a=b", "+x=1", "-i"], ["+x=1", "-cd", "a=b", "-i"]),
        (
            ["-m", "release.roles={a: id}", "release.roles.b=drop,id", "release.drop=[c]"],
            ["++release.roles={a: id}", "++release.roles.b=drop,id", "release.drop=[c]", "-m"],
        ),
        (["+release.roles={a: id}"], ["+release.roles={a: id}"]),
        ([], []),
    ],
)
def test_overrides_stand_on_one_side_of_the_flags(given: list[str], sorted_out: list[str]) -> None:
    assert _hydra_arguments(given) == sorted_out


@pytest.mark.parametrize("given", [["plan", "-m", "graph=csbm"], ["-m", "plan", "graph=csbm"]])
def test_plans_are_swept(given: list[str], monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    options = ["graph.nodes=60", "sampler=uniform", "plan.width=1,2", "hydra.sweep.dir=jobs", "cache.dir=null"]
    monkeypatch.setattr(sys, "argv", ["jaxaudit", *given, *options])
    GlobalHydra.instance().clear()
    main()
    plans = [json.loads((tmp_path / "jobs" / job / "plan.json").read_text())["config"]["plan"] for job in "01"]
    assert [plan["width"] for plan in plans] == [1, 2]
    assert capsys.readouterr().out.count("plan: uniform") == 2


@pytest.mark.parametrize("sweep", [False, True])
def test_a_failure_of_any_kind_leaves_no_empty_folder(sweep: bool, monkeypatch, tmp_path: Path) -> None:
    def fail(cfg, folder):
        raise ZeroDivisionError(str(folder))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr("jaxaudit.cli._run", fail)
    options = ["-m", "seed=0,1", "hydra.sweep.dir=jobs"] if sweep else ["seed=0", "hydra.run.dir=job"]
    monkeypatch.setattr(sys, "argv", ["jaxaudit", *options])
    GlobalHydra.instance().clear()
    with pytest.raises(ZeroDivisionError):
        main()
    assert not [path for path in tmp_path.rglob("*") if path.is_dir() and not list(path.iterdir())]


def test_multirun_goes_on_after_a_bad_job_and_says_so(tables: Path, tmp_path: Path) -> None:
    done = run("-m", *files(tables), "gen_lra.k=61,5", "attacks=[gen_lra]", "hydra.sweep.dir=sweep", cwd=tmp_path)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "sweep" / "0").exists()
    assert (tmp_path / "sweep" / "1" / "results.json").exists()


def test_doctor_names_the_device_and_versions(tmp_path: Path) -> None:
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 0
    assert "backend: cpu" in done.stdout
    assert "compile and run: ok" in done.stdout


def test_overfit_sweep_writes_its_files_and_says_what_it_found(tmp_path: Path) -> None:
    small = ["eps=[0.2,0.8]", "rho=[0.2]", "d=[2]", "n=[60]", "train=60", "release=60", "scored=30", "k=[1]",
             "multiplier=[1.0]", "attacks=[gen_lra,dcr]", "replications=4", "draws=4", "limit=[]"]  # fmt: skip
    done = run("audit=overfit", *(f"overfit.{option}" for option in small), "hydra.run.dir=out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "overfit: 2 cells of 4 data sets" in done.stdout
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["config"]["command"].startswith("jaxaudit audit=overfit")
    assert {"overfit.csv", "report.html", "figures"} <= {path.name for path in (tmp_path / "out").iterdir()}
    failed = run("audit=overfit", "overfit.eps=[2]", "hydra.run.dir=bad", cwd=tmp_path)
    assert (failed.returncode, failed.stderr) == (2, "error: overfit.eps must be in [0, 1], got 2.0\n")
    assert not (tmp_path / "bad").exists()


def test_a_sweep_of_bad_jobs_leaves_no_folder(tmp_path: Path) -> None:
    done = run("-m", "audit=release", "attacks=[dcr]", "dpi.k=0,-1", "hydra.sweep.dir=out", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: dpi.k must be 1 or more, got 0"
    assert not (tmp_path / "out").exists()
