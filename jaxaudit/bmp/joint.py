"""Whole learners over a few nodes, written out: every node's exact privacy by enumeration.

A ``Joint`` is a sampler over all 2^n membership vectors and one row p(w | S) per vector. ``node_channels`` sums it to
each node's own channel, ``conditional`` gives BMDP, the definition given all other memberships (Yildirim & Khosla,
arXiv:2606.04069). Leading axes are batches; memory is 2^n · W numbers each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxaudit.bmp.channel import Channel, distributions, epsilons
from jaxaudit.runtime.checks import check_int, require

__all__ = [
    "Conditional",
    "Joint",
    "conditional",
    "independent_sampler",
    "make_joint",
    "memberships",
    "node_channels",
    "uniform_sampler",
]

_MAX_NODES = 12


@dataclass(frozen=True)
class Joint:
    """A learner over n nodes written out in full; build it with ``make_joint``.

    Attributes:
        sampler: (..., 2^n) float64, P(S) for every membership vector, in the order of ``memberships``.
        rows: (..., 2^n, W) float64, p(w | S).
    """

    sampler: np.ndarray
    rows: np.ndarray

    @property
    def num_nodes(self) -> int:
        """Number of nodes n."""
        return self.sampler.shape[-1].bit_length() - 1


def memberships(num_nodes: int) -> np.ndarray:
    """(2^n, n) bool: all membership vectors; bit i of the row number is node i.

    Raises:
        InputError: n not in [1, 12].

    Example:
        >>> memberships(2).astype(int).tolist()
        [[0, 0], [1, 0], [0, 1], [1, 1]]
    """
    n = check_int("num_nodes", num_nodes, 1, _MAX_NODES)
    return (np.arange(2**n)[:, None] >> np.arange(n)) % 2 == 1


def make_joint(sampler: Any, rows: Any) -> Joint:
    """A checked joint channel.

    Args:
        sampler: (..., 2^n) probabilities of the membership vectors, n in [1, 12].
        rows: (..., 2^n, W) p(w | S); also needed where the sampler never draws S.

    Raises:
        InputError: no power of two, other shapes, or no distributions.

    Example:
        >>> make_joint(uniform_sampler(2, 1), [[1, 0], [0.8, 0.2], [0.3, 0.7], [1, 0]]).num_nodes
        2
    """
    sampler, rows = distributions("sampler", sampler), distributions("rows", rows)
    size = sampler.shape[-1]
    power = size >= 2 and size & (size - 1) == 0 and size <= 2**_MAX_NODES
    require(power, "sampler", f"have 2^n entries, n in [1, {_MAX_NODES}]", size)
    require(rows.ndim >= 2 and rows.shape[-2] == size, "rows", f"have {size} rows", rows.shape)
    batch = np.broadcast_shapes(sampler.shape[:-1], rows.shape[:-2])
    return Joint(np.broadcast_to(sampler, (*batch, size)), np.broadcast_to(rows, (*batch, *rows.shape[-2:])))


def independent_sampler(probabilities: Any) -> np.ndarray:
    """(..., 2^n) distribution of independent memberships with the given (..., n) probabilities.

    Example:
        >>> independent_sampler([0.5, 0.25]).tolist()
        [0.375, 0.375, 0.125, 0.125]
    """
    p = np.asarray(probabilities, np.float64)
    require(bool(np.all((p >= 0) & (p <= 1))) and p.ndim >= 1, "probabilities", "be in [0, 1]", probabilities)
    return np.where(memberships(p.shape[-1]), p[..., None, :], 1 - p[..., None, :]).prod(-1)


def uniform_sampler(num_nodes: int, size: int) -> np.ndarray:
    """(2^n,) distribution of a uniformly drawn subset of ``size`` nodes.

    Example:
        >>> uniform_sampler(2, 1).tolist()
        [0.0, 0.5, 0.5, 0.0]
    """
    inside = memberships(num_nodes).sum(1) == check_int("size", size, 0, num_nodes)
    return inside / inside.sum()


def node_channels(joint: Joint) -> Channel:
    """Every node's own channel, by summing over all membership vectors.

    Returns:
        Channel with prior (..., n) and rows (..., n, W): the mixtures of p(w | S) over S with and without the node.
        The row of a side that never happens is NaN.

    Example:
        >>> both = make_joint(uniform_sampler(2, 1), [[1, 0], [0.8, 0.2], [0.3, 0.7], [1, 0]])
        >>> node_channels(both).p_in.tolist()
        [[0.8, 0.2], [0.3, 0.7]]
    """
    member = memberships(joint.num_nodes).astype(np.float64)

    def mixture(side: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mass = joint.sampler @ side
        sums = np.einsum("...s,si,...sw->...iw", joint.sampler, side, joint.rows)
        with np.errstate(invalid="ignore"):
            return mass, np.where(mass[..., None] > 0, sums / mass[..., None], np.nan)

    (inside, p_in), (outside, p_out) = mixture(member), mixture(1 - member)
    # A side that never happens has probability exactly 0, so its prior is exactly 0 or 1.
    prior = np.where(outside == 0, 1.0, inside / (inside + outside))
    return Channel(prior, p_in, p_out)


@dataclass(frozen=True)
class Conditional:
    """BMDP of every node: the definition given all other memberships, at the worst of them.

    Attributes:
        eps_L: (..., n) float64.
        eps_R: (..., n) float64.
        determined: (..., n) float64 in [0, 1], probability that the other memberships determine the node's own.
    """

    eps_L: np.ndarray  # noqa: N815 - the symbol of the definition
    eps_R: np.ndarray  # noqa: N815
    determined: np.ndarray


def conditional(joint: Joint, definition: str = "posterior_odds") -> Conditional:
    """Exact BMDP by enumeration: the largest (eps_L, eps_R) over what the other nodes' memberships can be.

    Given the others, a node's prior is its share of the two membership vectors that are left. Where they determine it
    that prior is 0 or 1: one of the epsilons is infinite under ``posterior_odds``, ``membership_privacy`` gives 0, and
    ``bayes_factor`` leaves the case out (NaN where every case is of that kind).

    Raises:
        InputError: another definition.

    Example:
        >>> both = make_joint(uniform_sampler(2, 1), [[1, 0], [0.8, 0.2], [0.3, 0.7], [1, 0]])
        >>> conditional(both).eps_R.tolist(), conditional(both, "membership_privacy").eps_R.tolist()
        ([inf, inf], [0.0, 0.0])
    """
    n = joint.num_nodes
    numbers = np.arange(2**n)
    left, right, determined = [], [], []
    for node in range(n):
        out = numbers[(numbers >> node) % 2 == 0]
        with_node = out + (1 << node)
        mass_in, mass_out = joint.sampler[..., with_node], joint.sampler[..., out]
        total = mass_in + mass_out
        with np.errstate(invalid="ignore"):
            prior = np.where(total > 0, mass_in / total, 0.5)
        case = Channel(prior, joint.rows[..., with_node, :], joint.rows[..., out, :])
        eps = epsilons(case, definition)
        # fmax skips NaN: cases without a Bayes factor, and those that never happen.
        worst = [np.fmax.reduce(np.where(total > 0, side, np.nan), axis=-1) for side in eps]
        left.append(worst[0])
        right.append(worst[1])
        determined.append(np.where((mass_in == 0) | (mass_out == 0), total, 0.0).sum(-1))
    return Conditional(*(np.stack(parts, -1) for parts in (left, right, determined)))
