"""The README's promises: its Python runs, its commands compose, its links and pictures exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_module

from jaxaudit.config import JOBS, read_job

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    edges = np.unique(np.sort(rng.integers(0, 60, (150, 2))), axis=0).T
    tables = {name: pd.DataFrame(rng.normal(size=(30, 2)), columns=["a", "b"]) for name in ("m", "n", "s", "r")}
    names = {
        "features": np.eye(2)[labels] + rng.normal(size=(60, 2)), "labels": labels,
        "edges": edges[:, edges[0] != edges[1]],
        "members": tables["m"], "non_members": tables["n"], "synthetic": tables["s"], "reference": tables["r"],
        "targets": tables["m"].to_numpy(), "fp": [1, 2], "n_out": [9, 9], "fn": [3, 0], "n_in": [8, 8],
    }  # fmt: skip
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    exec(block.replace("    ...", "    return -np.abs(targets).sum(axis=1)"), names | {"np": np})
    assert (tmp_path / "out" / "report.html").exists()


def commands() -> list[list[str]]:
    blocks = re.findall(r"```\n(.*?)```", TEXT, flags=re.DOTALL) + re.findall(r"`(jaxaudit [^`]*=[^`]*)`", TEXT)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("jaxaudit")]
    return [[word for word in words if "=" in word] for words in found]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_composes(words: list[str]) -> None:
    first = [re.sub(r",.*", "", word) if "[" not in word else word for word in words]  # the first job of a sweep
    with initialize_config_module("jaxaudit.configs", version_base="1.3"):
        cfg = compose("config", [word for word in first if not word.startswith("hydra.")])
    assert read_job(cfg).audit in JOBS


def test_every_documented_option_exists() -> None:
    rows = re.findall(r"^\| (`[^|]*`[^|]*) \|", TEXT, flags=re.MULTILINE)
    with initialize_config_module("jaxaudit.configs", version_base="1.3"):
        known = {"graph": compose("config"), "release": compose("config", ["audit=release"])}
    missing = []
    for row in rows:
        group = ""
        for name in re.findall(r"`([a-z_.]+)`", row):
            full = f"{group}{name}" if name.startswith(".") else name
            group = full.rsplit(".", 1)[0] if "." in full else full
            node = known["graph"] if full.split(".")[0] in known["graph"] else known["release"]
            for part in full.split("."):
                node = node.get(part, "absent") if hasattr(node, "get") else "absent"
            missing += [full] if isinstance(node, str) and node == "absent" else []
    assert len(rows) > 12
    assert missing == []


def test_links_and_pictures_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert target.startswith("https://") or (ROOT / target).exists(), target
