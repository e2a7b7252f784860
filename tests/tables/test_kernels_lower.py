"""Every kernel that an attack runs also lowers for GPUs and TPUs, with the arguments that it gets here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import jax
import numpy as np
import pytest

from jaxaudit.tables.attacks import LoganConfig, dcr, dcr_diff, density, domias, dpi, local_neighbourhood, logan, mc
from jaxaudit.tables.attacks.gen_lra import gen_lra

MODULES = [
    import_module(f"jaxaudit.tables.{name}")
    for name in ("density", "attacks.screening", "attacks.gen_lra_changes", "attacks.counting", "attacks.learned")
]
PLATFORMS = ("cuda", "tpu")


def kernels() -> list[tuple[Any, str, Any]]:
    """Jitted functions by the module and the name under which they are called."""
    return [
        (module, name, value)
        for module in MODULES
        for name, value in vars(module).items()
        if hasattr(value, "trace") and hasattr(value, "_cache_size")
    ]


def far(function: Callable[..., np.ndarray], x: np.ndarray, s: np.ndarray, r: np.ndarray) -> np.ndarray:
    return function(x, np.concatenate([s, r[:1] + 1e3]), r)  # a released row far out takes the route in log space


ATTACKS: dict[str, tuple[Callable[..., Any], set[str]]] = {
    "dcr": (lambda x, s, r: dcr(x, s), {"_upper_limits"}),
    "dcr_diff": (dcr_diff, {"_upper_limits"}),
    "dpi": (dpi, {"_upper_limits"}),
    "density": (lambda x, s, r: density(x, s), {"_log_kernel_sums"}),
    "domias": (domias, {"_log_kernel_sums"}),
    "mc": (mc, {"_upper_limits", "_count_inside"}),
    "local_neighbourhood": (local_neighbourhood, {"_upper_limits", "_count_inside"}),
    "logan": (partial(logan, config=LoganConfig(hidden=4, epochs=1, ensemble=1)), set()),
    "gen_lra fixed": (partial(gen_lra, k=3), {"_upper_limits", "_log_kernel_sums"}),
    "gen_lra fixed float32": (partial(gen_lra, k=3, precision="float32"), {"_upper_limits", "_log_kernel_sums"}),
    "gen_lra refit": (
        partial(far, partial(gen_lra, k=21, bandwidth="refit")), {"project", "sum_changes", "changes_far_out"}
    ),
    "gen_lra refit float32": (
        partial(far, partial(gen_lra, k=21, bandwidth="refit", precision="float32")),
        {"project", "sum_changes", "changes_far_out"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def compilations() -> Iterator[list[str]]:
    """Names of the events of every compilation from here on."""
    found: list[str] = []

    def listen(name: str, *_: Any, **__: Any) -> None:
        if name.endswith("backend_compile_duration"):
            found.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("name", [name for name in ATTACKS if "float32" not in name])
def test_a_second_table_of_the_bucket_compiles_nothing(name: str, compilations: list[str]) -> None:
    attack, _ = ATTACKS[name]
    rng = np.random.default_rng(0)
    for kernel in (kernel for _, _, kernel in kernels()):
        kernel.clear_cache()
    before = len(compilations)
    attack(*rng.normal(size=(3, 30, 6)))
    first = len(compilations)
    assert first > before  # compilations are seen
    attack(rng.normal(size=(17, 3)), rng.normal(size=(28, 3)), rng.normal(size=(29, 3)) + 1.0)
    assert len(compilations) == first


@pytest.mark.parametrize("name", ATTACKS)
def test_kernels_lower_for_accelerators(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[str]] = {}

    def lowering(kernel: str, function: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if kernel not in seen:  # in the 32- or 64-bit mode of the caller
                trace = function.trace(*args, **kwargs)
                texts = [trace.lower(lowering_platforms=(platform,)).as_text() for platform in PLATFORMS]
                assert all("func.func public @main" in text for text in texts)
                seen[kernel] = {width for width in ("f32", "f64") if any(f"x{width}>" in text for text in texts)}
            return function(*args, **kwargs)

        return call

    for module, kernel, function in kernels():
        monkeypatch.setattr(module, kernel, lowering(kernel, function))
    monkeypatch.setattr("jaxaudit.tables.blocks.on_cpu", lambda: False)
    attack, expected = ATTACKS[name]
    assert np.isfinite(attack(*np.random.default_rng(0).normal(size=(3, 20, 2)))).all()
    assert seen
    assert expected <= set(seen)
    if "_upper_limits" in expected:
        assert "_kth_smallest" in seen
    width = "f32" if name.endswith("float32") or name == "logan" else "f64"
    assert all(width in seen[kernel] for kernel in expected - {"_upper_limits", "_count_inside"})
