"""One (l, r) for each group of nodes: the product of the group's marginal likelihoods (never summed counts)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxaudit.bmp.counts import distinct, validate
from jaxaudit.bmp.posterior import ExactPosterior, exact_posterior
from jaxaudit.bmp.table import SharedPosteriors, shared_posteriors
from jaxaudit.runtime.checks import check_choice, check_int, check_real, require

__all__ = ["GROUPINGS", "GroupPosterior", "Groups", "group_posterior", "group_posteriors", "make_groups"]

GROUPINGS = ("degree", "class", "prior", "column")
"""What nodes can be grouped by: bins of the degree or of the prior, the class, or a column of the user's."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Which group each node is in.

    Attributes:
        index: (n,) int64 in [0, len(names)); -1 for a node without a value.
        names: one readable name per group.
    """

    index: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True)
class GroupPosterior:
    """Marginal posteriors of every group's shared r and l.

    Attributes:
        prior_scale2: squared scale of the half-normal priors.
        nodes: (groups,) number of nodes with data on both sides.
    """

    prior_scale2: float
    nodes: np.ndarray
    _rows: slice = field(repr=False)  # of this grouping among all that share the tables
    _total: int = field(repr=False)
    _single: tuple[np.ndarray, ExactPosterior | None] = field(repr=False)
    _many: tuple[np.ndarray, SharedPosteriors | None] = field(repr=False)

    def quantile(self, name: str, q: float) -> np.ndarray:
        """Posterior quantiles (groups,) of ``name`` ("r" or "l") at level ``q`` in [0.001, 0.999]; NaN without nodes.

        Raises:
            InputError: another name, or a level out of range.
        """
        check_choice("name", name, ("r", "l"))
        check_real("q", q, 0.001, 0.999)
        out = np.full(self._total, np.nan)
        for where, posterior in (self._single, self._many):
            if posterior is not None:
                out[where] = posterior.quantile(name, q)
        return out[self._rows]


def _quantile_bins(name: str, values: np.ndarray, bins: int) -> Groups:
    """Bins of about equal size; equal values stay together, so ties can leave fewer bins than asked for."""
    usable = np.isfinite(values)
    index = np.full(values.shape, -1, np.int64)
    if not usable.any():
        return Groups(index, ())
    inner = np.quantile(values[usable], np.arange(1, bins) / bins, method="lower")
    raw = np.searchsorted(np.unique(inner), values[usable], side="left")
    present, index[usable] = np.unique(raw, return_inverse=True)
    names = []
    for g in range(len(present)):
        low, high = values[index == g].min(), values[index == g].max()
        names.append(f"{name} {low:.4g}" if low == high else f"{name} {low:.4g} to {high:.4g}")
    return Groups(index, tuple(names))


def make_groups(by: str, values: Any, bins: int = 5) -> Groups:
    """Group the nodes by a value of each.

    Args:
        by: "degree" or "prior" (quantile bins; equal values are never split), "class" or "column" (one group per
            distinct value, sorted).
        values: (n,) the degree, prior, class or label of every node. NaN and None are in no group.
        bins: number of quantile bins, >= 1.

    Returns:
        Groups.

    Raises:
        InputError: another ``by``, values that are not 1-D or, for bins, not numbers.

    Example:
        >>> groups = make_groups("degree", [1, 1, 1, 2, 5, 9], bins=2)
        >>> groups.index.tolist(), groups.names
        ([0, 0, 0, 1, 1, 1], ('degree 1', 'degree 2 to 9'))
        >>> make_groups("column", ["b", "a", "b"]).names
        ('a', 'b')
    """
    check_choice("by", by, GROUPINGS)
    check_int("bins", bins, 1)
    array = np.asarray(values)
    require(array.ndim == 1, "values", "be a 1-D array", f"shape {array.shape}")
    if by in ("degree", "prior"):
        require(array.dtype.kind in "biuf", "values", f"be numbers for by={by}", str(array.dtype))
        return _quantile_bins(by, array.astype(float), bins)
    # None and NaN are the only values that are no label.
    usable = np.array([value is not None and value == value for value in array.tolist()], bool)
    labels = array[usable]
    if labels.dtype.kind == "O":
        labels = labels.astype(str)
    index = np.full(array.shape, -1, np.int64)
    unique, index[usable] = np.unique(labels, return_inverse=True)
    prefix = "class " if by == "class" else ""
    return Groups(index, tuple(f"{prefix}{value}" for value in unique.tolist()))


def group_posterior(fp: Any, n_out: Any, fn: Any, n_in: Any, groups: Any, prior_scale2: float = 10.0) -> GroupPosterior:
    """Posterior of one (l, r) per group: ``pooled_posterior`` of its nodes, ``exact_posterior`` of a single one.

    Nodes of a group share the models, and groups share them too: intervals are optimistic, see
    ``jaxaudit.bmp.resampling``.

    Args:
        fp: false positives, whole numbers in [0, n_out], scalar or (n,).
        n_out: non-member trials; nodes without data on a side are left out.
        fn: false negatives, in [0, n_in].
        n_in: member trials.
        groups: (n,) integers, -1 for no group; the groups are 0 .. max.
        prior_scale2: squared scale of the half-normal priors, in [0.01, 10_000].

    Returns:
        GroupPosterior over the groups; NaN quantiles where a group has no node with data.

    Raises:
        InputError: counts that break a rule, groups that are not integers >= -1 of the right length.

    Example:
        >>> post = group_posterior([10, 10, 1], 100, [10, 10, 8], [100, 100, 10], [0, 0, 1])
        >>> post.nodes.tolist(), post.quantile("r", 0.5).round(1).tolist()
        ([2, 1], [3.7, 3.8])
    """
    groups = np.asarray(groups)
    require(groups.ndim == 1 and groups.size > 0, "groups", "be a 1-D array with at least one node", groups.shape)
    return group_posteriors(fp, n_out, fn, n_in, [groups], prior_scale2)[0]


def group_posteriors(
    fp: Any, n_out: Any, fn: Any, n_in: Any, groupings: Sequence[Any], prior_scale2: float = 10.0
) -> list[GroupPosterior]:
    """``group_posterior`` of several groupings of the same nodes, from one table of likelihoods.

    Args:
        fp: counts as above, with the three that follow.
        n_out: see above.
        fn: see above.
        n_in: see above.
        groupings: each (n,) integers, -1 for no group.
        prior_scale2: squared scale of the half-normal priors, in [0.01, 10_000].

    Returns:
        One GroupPosterior per grouping.

    Raises:
        InputError: as above.

    Example:
        >>> half, whole = group_posteriors([10, 10, 1], 100, [10, 10, 8], [100, 100, 10], [[0, 0, 1], [0, 0, 0]])
        >>> half.nodes.tolist(), whole.nodes.tolist()
        ([2, 1], [3])
    """
    scale2 = check_real("prior_scale2", prior_scale2, 0.01, 10_000)
    rows = validate(fp, n_out, fn, n_in)
    labels = [np.asarray(groups) for groups in groupings]
    if len(rows) == 1 and labels:
        rows = np.repeat(rows, labels[0].size, axis=0)
    for groups in labels:
        require(groups.dtype.kind in "iu", "groups", "be integers", str(groups.dtype))
        require(groups.shape == (len(rows),), "groups", f"have the {len(rows)} nodes of the counts, 1-D", groups.shape)
        require(int(groups.min()) >= -1, "groups", "be >= -1", int(groups.min()))
    tuples, index = distinct(rows)
    sets = [_weights(groups, index, len(tuples)) for groups in labels]
    weights = np.concatenate([np.zeros((0, len(tuples))), *sets])
    nodes = weights.sum(axis=1).astype(np.int64)
    one, many = np.flatnonzero(nodes == 1), np.flatnonzero(nodes > 1)
    fp, n_out, fn, n_in = tuples[weights[one].argmax(axis=1)].T
    single = exact_posterior(fp, n_out, fn, n_in, scale2) if one.size else None
    shared = None
    if many.size:
        used = weights[many].any(axis=0)
        shared = shared_posteriors(tuples[used], weights[many][:, used], scale2)
    ends = np.cumsum([0, *(len(part) for part in sets)])
    return [
        GroupPosterior(scale2, nodes[rows], rows, len(nodes), (one, single), (many, shared))
        for rows in itertools.starmap(slice, itertools.pairwise(ends.tolist()))
    ]


def _weights(groups: np.ndarray, index: np.ndarray, tuples: int) -> np.ndarray:
    """(groups, tuples) multiplicities."""
    keep = (index >= 0) & (groups >= 0)
    weights = np.zeros((int(groups.max()) + 1, tuples))
    np.add.at(weights, (groups[keep], index[keep]), 1.0)
    return weights
