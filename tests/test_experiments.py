"""The experiments compose into the sweeps they promise, every job in them into settings that the library takes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

FOLDER = Path(__file__).resolve().parents[1] / "configs" / "experiment"
QUESTIONS = {"bmp_samplers": 40, "bmp_edges": 60, "bmp_noise": 80}
GRAPHS = ("cora", "citeseer", "pubmed", "chameleon_filtered", "squirrel_filtered")


def composed(experiment: str, *overrides: str, hydra: bool = True) -> DictConfig:
    with initialize_config_module("jaxaudit.configs", version_base="1.3"):
        return compose("config", [f"experiment={experiment}", *overrides], return_hydra_config=hydra)


def sweep(cfg: DictConfig) -> dict[str, list[str]]:
    """Option -> swept values, as the sweeper reads them."""
    params: Any = OmegaConf.to_container(cfg.hydra.sweeper.params, resolve=True)
    given: list[Override] = OverridesParser.create().parse_overrides([f"{k}={v}" for k, v in params.items()])
    return {
        o.key_or_group: list(o.sweep_string_iterator()) if o.is_sweep_override() else [str(o.value())] for o in given
    }


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_with_a_size_is_a_multirun_over_the_five_graphs(question: str) -> None:
    for size, models in (("bmp_cpu", 32), ("bmp_full", 256)):
        cfg = composed(f"[{question},{size}]", "graphs_dir=/g")
        assert cfg.hydra.mode is RunMode.MULTIRUN
        assert cfg.hydra.sweep.dir == f"outputs/{question}"
        assert cfg.shadow.count == models
        assert (cfg.train.epochs, cfg.train.hidden) == (200, 64)
        swept = sweep(cfg)
        assert swept["graph.path"] == [f"/g/{name}.npz" for name in GRAPHS]
        assert swept["sampler"] == ["uniform", "snowball"]
        assert swept["sampler.ratio"] == ["0.1", "0.5"]
        if size == "bmp_full":
            assert swept["model"] == ["gcn", "sage", "gat"]
        else:
            assert math.prod(map(len, swept.values())) == QUESTIONS[question]


def test_each_question_sweeps_what_it_asks_about() -> None:
    assert sweep(composed("bmp_edges"))["edges.inference"] == ["split", "full", "none"]
    assert sweep(composed("bmp_noise"))["noise.weights"] == ["0", "0.01", "0.05", "0.1"]
    assert "edges.inference" not in sweep(composed("bmp_samplers"))


def test_the_other_tools_protocol_is_as_published() -> None:
    cfg = composed("mia_audit_gnn", "graphs_dir=/g")
    assert cfg.graph.path == "/g/cora.npz"
    published = {"epochs": 200, "hidden": 64, "dropout": 0.5, "learning_rate": 1e-3, "weight_decay": 1e-5}
    assert published.items() <= dict(cfg.train).items()
    assert (cfg.sampler.name, cfg.sampler.ratio, cfg.sampler.paired) == ("uniform", 0.5, True)
    assert (cfg.shadow.count, cfg.shadow.targets) == (64, 10)
    assert (cfg.edges.inference, cfg.attack.observes, cfg.model.name) == ("none", "logits", "gcn")
    assert cfg.hydra.mode is not RunMode.MULTIRUN


def test_every_file_says_how_it_is_run() -> None:
    for file in FOLDER.glob("*.yaml"):
        head = file.read_text().splitlines()
        assert head[0] == "# @package _global_", file.name
        assert head[1].startswith("# "), file.name
        assert "experiment=" in file.read_text(), file.name


@pytest.mark.parametrize(
    "experiment", ["[bmp_samplers,bmp_cpu]", "[bmp_edges,bmp_full]", "[bmp_noise,bmp_cpu]", "mia_audit_gnn"]
)
def test_the_settings_are_ones_the_library_takes(experiment: str, shared_data: Path) -> None:
    from jaxaudit.config import GraphJob, read_job

    cfg = composed(experiment, f"graphs_dir={shared_data / 'graphs'}", hydra=False)
    job = read_job(cfg)
    assert isinstance(job, GraphJob)
    assert Path(job.graph["path"]).is_file()
