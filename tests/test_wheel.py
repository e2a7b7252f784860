"""What a user installs: the wheel and the sdist, used outside the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which only the wheel's own files give ``jaxaudit``."""
    target = tmp_path_factory.mktemp("site")
    wheel = next(built.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", str(target), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    return {**os.environ, "PYTHONPATH": str(target), "PATH": f"{target / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def test_configs_and_template_are_in_wheel_and_sdist(built: Path) -> None:
    values = {str(path.relative_to(ROOT / "configs")) for path in (ROOT / "configs").rglob("*.yaml")}
    assert values
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    assert {f"jaxaudit/configs/{value}" for value in values} <= names
    assert {"jaxaudit/py.typed", "jaxaudit/report/report.html.jinja"} <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "configs/"))]
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        packed = {name.split("/", 1)[-1] for name in sdist.getnames()}
    assert {f"jaxaudit/configs/{value}" for value in values} <= packed
    assert {"LICENSE", "README.md", "pyproject.toml"} <= packed


def test_installed_command_composes_and_audits(installed: dict[str, str], tmp_path: Path) -> None:
    where = "import jaxaudit, pathlib; print(pathlib.Path(jaxaudit.__file__).parents[1])"
    found = subprocess.run([sys.executable, "-c", where], env=installed, cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout.strip() == installed["PYTHONPATH"]
    shown = subprocess.run(["jaxaudit", "--cfg", "job"], env=installed, cwd=tmp_path, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "audit: graph" in shown.stdout
    options = ["graph=csbm", "graph.nodes=80", "train.epochs=4", "train.hidden=4", "shadow.count=4",
               "shadow.prior_draws=100", "sampler.seeds_per_class=2", "hydra.run.dir=out"]  # fmt: skip
    done = subprocess.run(["jaxaudit", *options], env=installed, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["audit"] == "graph"
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
