"""Counting released rows in a ball: Monte-Carlo integration and local neighbourhood.

The radius comes from the tables alone. A radius from the scored records would make every score depend on
which other records are scored, and a fixed number would have the unit of no table.

Source: Hilprecht, Haerterich and Bernau, "Monte Carlo and Reconstruction Membership Inference Attacks against
Generative Models", PoPETs 2019(4); Houssiau et al., "TAPAS: a Toolbox for Adversarial Privacy Auditing of Synthetic
Data", arXiv:2211.06550. The local radius is derived: it scales with the table.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from jaxaudit.runtime.checks import check_int, check_real, require
from jaxaudit.tables.attacks.neighbours import count_within, nearest_distance, nearest_other
from jaxaudit.tables.density import as_rows, distinct_rows

__all__ = ["LocalNeighbourhoodConfig", "MCConfig", "local_neighbourhood", "mc", "share_within"]


@dataclass(frozen=True)
class MCConfig:
    """Settings of the Monte-Carlo attack.

    Attributes:
        quantile: of the distances from reference rows to their nearest released row; the median by default.
        rows: reference rows that the radius is taken from; drawn by the key where the reference has more.
    """

    quantile: float = 0.5
    rows: int = 4096

    def __post_init__(self) -> None:
        check_real("mc.quantile", self.quantile, 0, 1)
        check_int("mc.rows", self.rows, 1)


@dataclass(frozen=True)
class LocalNeighbourhoodConfig:
    """Settings of the local-neighbourhood attack.

    Attributes:
        quantile: of the distances from reference rows to the nearest other reference row.
        rows: reference rows that the radius is taken from; drawn by the key where the reference has more.
    """

    quantile: float = 0.05
    rows: int = 4096

    def __post_init__(self) -> None:
        check_real("local_neighbourhood.quantile", self.quantile, 0, 1)
        check_int("local_neighbourhood.rows", self.rows, 1)


def mc(
    targets: np.ndarray, synthetic: np.ndarray, reference: np.ndarray, config: MCConfig | None = None, *,
    key: jax.Array | None = None,
) -> np.ndarray:  # fmt: skip
    """Share of the release within the median distance from a reference row to its nearest released row.

    The radius is 0 where at least half of the reference occurs in the release: then only equal rows count. A target
    that is a row of the reference is treated as any other.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows.
        reference: (r, d) independent rows of the same population.
        config: settings; None for the defaults.
        key: draws the reference rows for the radius where there are more than ``config.rows``; None: key 0.

    Returns:
        (n,) float64 in [0, 1], the sphere included; higher is more member-like.

    Raises:
        InputError: tables of different width, values that are not finite.

    Example:
        >>> s, r = np.array([[0.0], [1.0], [9.0]]), np.array([[2.0], [3.0], [9.5]])
        >>> mc(np.array([[1.0], [5.0]]), s, r).tolist() == [2 / 3, 0.0]
        True
    """
    config = config or MCConfig()
    x = as_rows("targets", targets)
    s_rows, s_counts = distinct_rows(as_rows("synthetic", synthetic, x.shape[1]))
    rows, counts = distinct_rows(as_rows("reference", reference, x.shape[1]))
    chosen, times = np.unique(_choose(counts, config.rows, key), return_counts=True)
    radius = np.quantile(np.repeat(nearest_distance(rows[chosen], s_rows), times), config.quantile)
    return share_within(x, s_rows, s_counts, float(radius))


def local_neighbourhood(
    targets: np.ndarray, synthetic: np.ndarray, reference: np.ndarray,
    config: LocalNeighbourhoodConfig | None = None, *, key: jax.Array | None = None,
) -> np.ndarray:  # fmt: skip
    """Share of the release within the 5 % quantile of the nearest-neighbour distances inside the reference.

    The radius is 0 where 5 % of the reference rows occur twice: then only equal rows count. A target that is a row of
    the reference is treated as any other.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows.
        reference: (r, d) independent rows of the same population, r >= 2.
        config: settings; None for the defaults.
        key: draws the reference rows for the radius where there are more than ``config.rows``; None: key 0.

    Returns:
        (n,) float64 in [0, 1], the sphere included; higher is more member-like.

    Raises:
        InputError: fewer than two reference rows, tables of different width, values that are not finite.

    Example:
        >>> s, r = np.array([[0.0], [1.0], [9.0]]), np.array([[2.0], [3.0], [9.5]])
        >>> local_neighbourhood(np.array([[1.0], [5.0]]), s, r).tolist() == [2 / 3, 0.0]
        True
    """
    config = config or LocalNeighbourhoodConfig()
    x = as_rows("targets", targets)
    s_rows, s_counts = distinct_rows(as_rows("synthetic", synthetic, x.shape[1]))
    rows, counts = distinct_rows(as_rows("reference", reference, x.shape[1]))
    require(counts.sum() >= 2, "reference", "have at least 2 rows", int(counts.sum()))
    chosen, times = np.unique(_choose(counts, config.rows, key), return_counts=True)
    distances = np.where(counts[chosen] > 1, 0.0, nearest_other(rows, chosen))
    radius = np.quantile(np.repeat(distances, times), config.quantile)
    return share_within(x, s_rows, s_counts, float(radius))


def share_within(targets: np.ndarray, rows: np.ndarray, counts: np.ndarray, radius: float) -> np.ndarray:
    """Share of a table within ``radius`` of every target, the sphere included.

    Args:
        targets: (n, d) float64.
        rows: (m, d) distinct rows, float64.
        counts: (m,) how often each occurs.
        radius: >= 0; at 0 only equal rows count.

    Returns:
        (n,) float64 in [0, 1].

    Example:
        >>> share_within(np.zeros((1, 1)), np.array([[-1.0], [1.0], [2.0]]), np.array([1, 2, 1]), 1.0).tolist()
        [0.75]
    """
    return count_within(targets, rows, counts, radius) / float(counts.sum())


def _choose(counts: np.ndarray, limit: int, key: jax.Array | None) -> np.ndarray:
    """Indices of distinct rows, copies repeated: all rows, or ``limit`` of them without replacement."""
    index = np.repeat(np.arange(len(counts)), counts)
    if len(index) <= limit:
        return index
    key = jax.random.key(0) if key is None else key
    return index[np.asarray(jax.random.permutation(key, len(index)))[:limit]]
