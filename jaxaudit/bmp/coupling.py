"""The coupling distance of a sampler: how far apart samples with and without a node have to be.

Differential privacy is about samples a step apart; a membership can move the whole sample (a snowball that starts
elsewhere is another one). Delta_i is the smallest D such that S | i in S and S | i not in S can be drawn together with
at most D steps between them, always; eps-DP then bounds a node's l and r by eps · Delta_i (``theorems.dp_bounds``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxaudit.bmp.joint import memberships
from jaxaudit.runtime.checks import check_choice, check_int, require

__all__ = ["coupling_distance", "steps_between"]

_MAX_NODES = 7
_MISS = 1e-9


def steps_between(first: Any, second: Any, adjacency: str = "add_remove") -> np.ndarray:
    """Steps of an adjacency from each of the first samples to each of the second.

    Args:
        first: (a, n) bool memberships.
        second: (b, n) bool.
        adjacency: ``add_remove`` (one node more or less) or ``replace_one`` (one for another; unequal sizes are inf
            steps apart).

    Returns:
        (a, b) float64.

    Raises:
        InputError: another adjacency.

    Example:
        >>> steps_between([[True, False]], [[False, True], [True, True]]).tolist()
        [[2.0, 1.0]]
    """
    check_choice("adjacency", adjacency, ("add_remove", "replace_one"))
    first, second = np.asarray(first, bool), np.asarray(second, bool)
    differ = (first[:, None] != second[None]).sum(-1).astype(np.float64)
    if adjacency == "add_remove":
        return differ
    return np.where(first.sum(1)[:, None] == second.sum(1)[None], differ / 2, np.inf)


def _least_share_beyond(inside: np.ndarray, outside: np.ndarray, far: np.ndarray) -> float:
    """The least probability of a ``far`` pair over all couplings of two distributions: a transport linear program."""
    from scipy.optimize import linprog
    from scipy.sparse import eye, kron, vstack

    rows, columns = far.shape
    marginals = vstack([kron(eye(rows), np.ones((1, columns))), kron(np.ones((1, rows)), eye(columns))], format="csr")
    wanted = np.concatenate([inside, outside])
    found = linprog(far.astype(float).ravel(), A_eq=marginals, b_eq=wanted, bounds=(0, None), method="highs")
    if found.status != 0:
        raise RuntimeError(f"the transport program did not end: {found.message}")
    return float(found.fun)


def coupling_distance(sampler: Any, adjacency: str = "add_remove") -> np.ndarray:
    """Delta_i of every node of a small sampler, by bisection over transport programs.

    Far pairs of a total probability below 1e-9 count as none: the programs are solved in floats (to 1e-7 at worst).

    Args:
        sampler: (2^n,) probabilities of the membership vectors in the order of ``joint.memberships``, n in [1, 7].
        adjacency: ``add_remove`` or ``replace_one``.

    Returns:
        (n,) float64 steps; inf where no coupling has finite steps, NaN at a prior of 0 or 1.

    Raises:
        InputError: no distribution over 2^n vectors, more nodes, another adjacency.

    Example:
        >>> from jaxaudit.bmp.joint import uniform_sampler
        >>> coupling_distance(uniform_sampler(4, 2)).tolist()
        [2.0, 2.0, 2.0, 2.0]

    References:
        The smallest worst-case distance of a coupling (Wasserstein distance of order infinity): derived use.
    """
    sampler = np.asarray(sampler, np.float64)
    n = check_int("number of nodes", max(sampler.size, 1).bit_length() - 1, 1, _MAX_NODES)
    require(sampler.shape == (2**n,), "sampler", "be one row of 2^n probabilities", sampler.shape)
    good = bool(np.all(sampler >= 0)) and abs(sampler.sum() - 1) <= _MISS
    require(good, "sampler", "hold probabilities that sum to 1", "something else")
    vectors, distances = memberships(n), np.full(n, np.nan)
    for node in range(n):
        with_node, without = (np.flatnonzero((vectors[:, node] == side) & (sampler > 0)) for side in (True, False))
        if with_node.size == 0 or without.size == 0:
            continue
        inside, outside = (sampler[which] / sampler[which].sum() for which in (with_node, without))
        steps = steps_between(vectors[with_node], vectors[without], adjacency)
        candidates = np.unique(steps)
        low, high = 0, len(candidates) - 1
        while low < high:
            middle = (low + high) // 2
            enough = _least_share_beyond(inside, outside, steps > candidates[middle]) <= _MISS
            low, high = (low, middle) if enough else (middle + 1, high)
        distances[node] = candidates[low]
    return distances
