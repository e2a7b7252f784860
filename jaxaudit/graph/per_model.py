"""Work that is done model by model in groups, each model's outcome stored by itself."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxaudit.runtime.chunks import pad_rows
from jaxaudit.runtime.progress import Progress
from jaxaudit.runtime.store import Store, digest

__all__ = ["Entry", "PerModel"]

Entry = dict[str, np.ndarray]
"""What is kept of one model, by name."""


@dataclass(frozen=True)
class PerModel:
    """Loads what is there and computes the rest, so that a killed run loses at most one group.

    Attributes:
        mesh: devices; a group is a multiple of their number times ``chunk``, its spare places repeat a model.
        chunk: models at a time on each device.
        store: where entries are kept.
        stage: opens a progress stage from a name and a number of models; None times without showing.
    """

    mesh: Mesh
    chunk: int
    store: Store
    stage: Callable[[str, int], Any] | None

    def __call__(
        self,
        name: str,
        identity: str,
        rooms: Sequence[Hashable],
        most: int,
        compute: Callable[[np.ndarray], list[Entry]],
    ) -> tuple[list[Entry], int]:
        """The entries in order, and how many were computed.

        Args:
            name: of the entries in the store, and of the stage.
            identity: all that the entries depend on besides the number of the model.
            rooms: one per model; models of different rooms never share a group.
            most: models in a group, unless fewer devices would be busy.
            compute: entries of a group of model numbers.
        """
        keys = [digest(identity, k) for k in range(len(rooms))]
        entries = [self.store.load(name, key) for key in keys]
        missing: dict[Hashable, list[int]] = {}
        for k, room in enumerate(rooms):
            if entries[k] is None:
                missing.setdefault(room, []).append(k)
        total = sum(map(len, missing.values()))
        if total:
            with (self.stage or Progress().stage)(name, total) as bar:
                for models in missing.values():
                    size = _group_size(len(models), most, self.mesh.size * self.chunk)
                    for first in range(0, len(models), size):
                        group = np.array(models[first : first + size])
                        for k, entry in zip(group, compute(pad_rows(group, size)), strict=False):  # the rest is padding
                            entries[k] = entry
                            self.store.save(name, keys[k], entry)
                        bar.advance(group.size)
        return [entry for entry in entries if entry is not None], total


def _group_size(count: int, most: int, unit: int) -> int:
    """Models per call: all, or else of the multiples of ``unit`` up to ``most`` the largest with the least padding."""
    units, largest = -(-count // unit), max(1, most // unit)
    sizes = [units] if units <= largest else range(largest, largest // 2, -1)
    return unit * min(sizes, key=lambda size: -(-units // size) * size)
