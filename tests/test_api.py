"""The public surface: names, docstrings, and what importing does not do."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import jaxaudit

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(jaxaudit.__path__, "jaxaudit.")
    if not module.name.startswith("jaxaudit.configs") and module.name != "jaxaudit.__main__"
)


def test_every_public_name_of_the_package_resolves() -> None:
    for name in jaxaudit.__all__:
        assert getattr(jaxaudit, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = jaxaudit.nothing_like_it


@pytest.mark.parametrize("name", MODULES)
def test_modules_and_their_public_names_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, name
    for public in getattr(module, "__all__", ()):
        item = getattr(module, public)
        if inspect.isclass(item) or inspect.isfunction(item):
            assert inspect.getdoc(item), f"{name}.{public}"


def test_version_is_the_one_of_the_project_file() -> None:
    text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text()
    assert f'version = "{jaxaudit.__version__}"' in text


def test_importing_starts_no_backend_and_loads_no_heavy_module() -> None:
    code = (
        "import sys, jaxaudit, jaxaudit.cli; assert 'jax' not in sys.modules, 'jax';"
        "import jaxaudit.config, jaxaudit.report; from jax._src import xla_bridge as b;"
        "assert not b._backends, b._backends"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
