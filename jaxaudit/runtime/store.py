"""Stage results on disk, keyed by a hash of everything that determines them. No pickle.

A stage is a folder entry ``<stage>-<key>.npz``, written to a temporary name and moved into
place, so a killed run leaves either a whole file or none and a later run resumes from it. An entry carries
its own name inside: a file that is broken, or that something else put there, counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxaudit.runtime.checks import InputError

__all__ = ["FORMAT", "Store", "atomic_write", "digest"]

FORMAT = 1
"""Raised whenever a stage's meaning or layout changes: old entries are then never read."""


def digest(*parts: Any) -> str:
    """A hexadecimal SHA-256 of nested dicts, sequences, dataclasses, scalars and arrays.

    Example:
        >>> digest({"a": 1, "b": 2.0}) == digest({"b": 2.0, "a": 1})
        True
    """
    sha = hashlib.sha256(f"jaxaudit-{FORMAT}".encode())

    def feed(value: Any) -> None:
        if is_dataclass(value) and not isinstance(value, type):
            value = asdict(value)
        if isinstance(value, dict):
            sha.update(b"{")
            for name in sorted(value):
                sha.update(repr(name).encode())
                feed(value[name])
        elif isinstance(value, list | tuple):
            sha.update(b"[")
            for item in value:
                feed(item)
        elif isinstance(value, np.ndarray):
            sha.update(f"{value.dtype.str}{value.shape}".encode())
            sha.update(np.ascontiguousarray(value).tobytes())
        else:
            sha.update(json.dumps(value).encode())
        sha.update(b";")

    for part in parts:
        feed(part)
    return sha.hexdigest()[:24]


def atomic_write(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary sibling of ``path``, then move it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


_NAME = "stored_as"


class Store:
    """A folder of stage results; ``Store(None)`` remembers nothing.

    Example:
        >>> store = Store(None)
        >>> store.cached("square", digest(3), lambda: {"value": np.array(9)})["value"].item()
        9
    """

    def __init__(self, folder: str | os.PathLike[str] | None):
        self.folder = None if folder is None else Path(folder).expanduser()
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"cache.dir must be a folder, got the file {self.folder}")

    def load(self, stage: str, key: str) -> dict[str, np.ndarray] | None:
        """The stored arrays of a stage, or None where absent or unreadable."""
        if self.folder is None:
            return None
        try:
            with np.load(self.folder / f"{stage}-{key}.npz", allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except (FileNotFoundError, zipfile.BadZipFile, ValueError, EOFError, OSError, AttributeError, TypeError):
            return None
        own = arrays.pop(_NAME, None)
        return arrays if own is not None and str(own) == f"{stage}-{key}" else None

    def save(self, stage: str, key: str, arrays: dict[str, np.ndarray]) -> None:
        """Write the arrays of a stage; nothing where the store has no folder."""
        if self.folder is None:
            return
        for name, array in arrays.items():
            if np.asarray(array).dtype.hasobject:
                raise ValueError(f"stage {stage}: the array {name} holds Python objects")

        def write(path: Path) -> None:
            with open(path, "wb") as file:
                np.savez(file, **{_NAME: np.array(f"{stage}-{key}")}, **arrays)  # type: ignore[arg-type]  # numpy's stub sees allow_pickle in **arrays

        try:
            atomic_write(self.folder / f"{stage}-{key}.npz", write)
        except OSError as error:
            rule = f"cache.dir must be a folder that can be written ({error.strerror}), got {self.folder}"
            raise InputError(rule) from error

    def cached(self, stage: str, key: str, compute: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Load the stage, or compute and save it."""
        arrays = self.load(stage, key)
        if arrays is None:
            arrays = compute()
            self.save(stage, key, arrays)
        return arrays
