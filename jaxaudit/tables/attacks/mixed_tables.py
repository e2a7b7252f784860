"""Encoded tables as numbers, whitened, and codes of categories: what the attacks with a mixed kernel work on."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxaudit.runtime.checks import InputError, require
from jaxaudit.tables.basis import fit_basis
from jaxaudit.tables.density import as_rows
from jaxaudit.tables.layout import Layout, infer_layout
from jaxaudit.tables.mixed import Categories

__all__ = ["categories", "common_numbers", "mixed_tables", "whitened_by_last"]


def mixed_tables(
    targets: Any, synthetic: Any, reference: Any, layout: Layout | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Layout]:
    """Checked tables (the release also for an absent reference) and their layout."""
    x = as_rows("targets", targets)
    s = as_rows("synthetic", synthetic, x.shape[1])
    r = s if reference is None else as_rows("reference", reference, x.shape[1])
    for name, table in (("synthetic", s), ("reference", r)):
        require(len(table) >= 2, name, "have at least 2 rows", len(table))
    layout = layout or infer_layout(s, r)
    require(layout.columns == x.shape[1], "layout", f"have {x.shape[1]} columns", layout.columns)
    return x, s, r, layout


def categories(layout: Layout, *tables: np.ndarray) -> tuple[list[np.ndarray], Categories]:
    """Codes (n, b) of the tables' categorical cells, and their columns' levels."""
    codes = [layout.codes(table) for table in tables]
    unknown = np.any([(part < 0).any(axis=0) for part in codes], axis=0).reshape(-1)
    return codes, Categories(np.array(layout.levels, dtype=np.int64), unknown)


def whitened_by_last(
    layout: Layout, tables: tuple[np.ndarray, ...], counts: np.ndarray, name: str
) -> tuple[list[np.ndarray], float]:
    """The tables' numbers in the coordinates of the last one, and its log volume; no column if it does not vary."""
    parts = [layout.numbers(table) for table in tables]
    if not layout.numeric:
        return parts, 0.0
    try:
        basis = fit_basis(parts[-1], counts, name=name)
    except InputError:  # numbers that do not vary have no density; the categories have one
        if not layout.blocks:
            raise
        return [part[:, :0] for part in parts], 0.0
    return [basis.whiten(part) for part in parts], basis.log_volume


def common_numbers(
    layout: Layout, tables: tuple[np.ndarray, ...], s_counts: np.ndarray, r_counts: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray], float]:
    """Numbers of targets, release and reference in the directions in which the latter two vary.

    Whitened by the release, whitened by the reference, and the log volume of the second in units of the first.
    """
    outer, _ = whitened_by_last(layout, tables, r_counts, "reference")
    if not outer[0].shape[1]:
        return outer, outer, 0.0
    try:
        # in the reference's whitened units: a direction in which the release has no variance to speak of is not common
        common = fit_basis(outer[1], s_counts, name="synthetic", standardise=False)
    except InputError:
        if not layout.blocks:
            raise
        empty = [part[:, :0] for part in outer]
        return empty, empty, 0.0
    in_s = [common.whiten(part) for part in outer]
    inner = fit_basis(in_s[2], r_counts)
    return in_s, [inner.whiten(part) for part in in_s], inner.log_volume
