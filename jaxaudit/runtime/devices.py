"""Devices: set-up before the backend starts, a one-axis mesh, and the ensemble map over it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from jaxaudit.runtime.checks import check_int
from jaxaudit.runtime.chunks import chunked_map

__all__ = ["configure", "describe", "ensemble_map", "ensemble_mesh", "ensemble_size"]

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "jraph", "blackjax", "numpy", "scipy", "scikit-learn", "pandas")


def configure(cpu_devices: int = 0, compilation_cache: str | os.PathLike[str] | None = None) -> None:
    """Choose the number of CPU devices and the persistent compilation cache.

    Must run before JAX starts its backend; later calls leave a running backend as it is.

    Args:
        cpu_devices: virtual CPU devices; 0 takes one per available core, at most 8.
        compilation_cache: folder for compiled programs, or None for no persistent cache; a folder that the user
            chose by JAX's own setting (``JAX_COMPILATION_CACHE_DIR``) stays.
    """
    check_int("devices", cpu_devices, 0, 1024)
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(RuntimeError):  # the backend runs already (a sweep in one process): its devices stay
        jax.config.update("jax_num_cpu_devices", cpu_devices or min(8, available))
    if compilation_cache is not None and not jax.config.values.get("jax_compilation_cache_dir"):
        jax.config.update("jax_compilation_cache_dir", str(Path(compilation_cache).expanduser()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def ensemble_mesh(devices: int | None = None) -> Mesh:
    """A mesh with one axis, ``model``, over the first ``devices`` devices (None: all of them)."""
    available = jax.devices()
    count = len(available) if devices is None else check_int("devices", devices, 1, len(available))
    return Mesh(np.array(available[:count]), ("model",), axis_types=(AxisType.Auto,))


def ensemble_size(count: int, mesh: Mesh, chunk: int) -> int:
    """``count`` rounded up to a multiple of ``devices * chunk``: the padded ensemble."""
    unit = mesh.size * chunk
    return -(-count // unit) * unit


def ensemble_map(function: Callable[..., Any], mesh: Mesh, *, chunk: int) -> Callable[..., Any]:
    """Spread ``function(item, shared)`` over the mesh, ``chunk`` items vmapped at a time per device.

    An item meets the same compiled program whatever the device count, so at equal chunk the
    results are bit-identical. Small chunks suit CPUs, large ones accelerators.

    Args:
        function: maps one item and the shared arrays to a pytree of arrays.
        mesh: from ``ensemble_mesh``.
        chunk: items per vmapped step on each device, >= 1; the number of items must be a
            multiple of ``mesh.size * chunk`` (see ``ensemble_size``).

    Returns:
        ``mapped(items, shared)`` with a leading item axis on ``items`` and on the outputs; not yet jitted.

    Example:
        >>> double = ensemble_map(lambda x, s: x * s, ensemble_mesh(1), chunk=2)
        >>> jax.jit(double)(np.arange(4.0), 2.0).tolist()
        [0.0, 2.0, 4.0, 6.0]
    """
    check_int("chunk", chunk, 1)
    spread, same = PartitionSpec("model"), PartitionSpec()

    def shard(items: Any, shared: Any) -> Any:
        if chunk == 1:
            return jax.lax.map(lambda item: function(item, shared), items)
        return chunked_map(lambda item: function(item, shared), items, chunk=chunk)

    return jax.shard_map(shard, mesh=mesh, in_specs=(spread, same), out_specs=spread, check_vma=False)


def describe() -> dict[str, Any]:
    """Versions, platform and devices, for the ``environment`` block of the results."""
    versions = {}
    for package in ("jaxaudit", *_PACKAGES):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    devices = jax.devices()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "backend": jax.default_backend(),
        "device": devices[0].device_kind,
        "device_count": len(devices),
        "versions": versions,
    }
