"""Shared set-up: device count and a persistent compilation cache, before JAX starts its backend."""

import os
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"

jax.config.update("jax_num_cpu_devices", int(os.environ.get("JAXAUDIT_TEST_DEVICES", "1")))
jax.config.update("jax_compilation_cache_dir", str(ROOT / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real graphs, tables and releases; tests that need it are skipped without it."""
    if not SHARED.is_dir():
        pytest.skip(f"the data folder {SHARED.name} is not beside the checkout")
    return SHARED
