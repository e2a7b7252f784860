"""Finite channels: the exact privacy of one membership, for learners small enough to write down.

A channel is a prior and two rows p(w | member), p(w | non-member) over W outputs. Channels are the oracles of the
theorems and the positive controls of an audit (definitions: Yildirim & Khosla, arXiv:2606.04069). Leading axes are
batches everywhere: a thousand channels are one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from jaxaudit.bmp.definitions import from_canonical
from jaxaudit.runtime.checks import require

__all__ = [
    "TOLERANCE",
    "Channel",
    "bounds",
    "compose",
    "distributions",
    "epsilons",
    "errors",
    "log_ratio",
    "make_channel",
    "post_process",
    "predictive_bounds",
    "predictive_values",
    "rounds",
    "swap",
]

TOLERANCE = 1e-9
"""How far probabilities may be from summing to 1."""


def distributions(name: str, values: Any) -> np.ndarray:
    """``values`` as float64 if its last axis holds probabilities that sum to 1, or InputError.

    Example:
        >>> distributions("row", [0.5, 0.5]).sum()
        np.float64(1.0)
    """
    values = np.asarray(values, np.float64)
    require(values.ndim >= 1 and values.shape[-1] >= 1, name, "have a last axis of outputs", values.shape)
    require(bool(np.all(values >= 0)), name, "be >= 0", "a negative or missing probability")
    off = np.abs(values.sum(-1) - 1).max(initial=0.0)
    require(bool(off <= TOLERANCE), name, "sum to 1 along its last axis", f"a sum off by {off:.3g}")
    return values


@dataclass(frozen=True)
class Channel:
    """What the output tells about one membership; build it with ``make_channel``.

    Attributes:
        prior: (...) float64, P(member).
        p_in: (..., W) float64, p(w | member); NaN where the prior is 0 (``node_channels``).
        p_out: (..., W) float64, p(w | non-member); NaN where the prior is 1.
    """

    prior: np.ndarray
    p_in: np.ndarray
    p_out: np.ndarray


def make_channel(prior: Any, p_in: Any, p_out: Any) -> Channel:
    """A checked channel; the batch axes broadcast.

    Args:
        prior: (...) P(member), in [0, 1].
        p_in: (..., W) p(w | member), >= 0, summing to 1 within 1e-9.
        p_out: (..., W) p(w | non-member), likewise.

    Raises:
        InputError: a prior outside [0, 1], rows that are no distributions, unequal W.

    Example:
        >>> make_channel(0.3, [0.6, 0.4], [0.2, 0.8]).p_in.shape
        (2,)
    """
    prior = np.asarray(prior, np.float64)
    require(bool(np.all((prior >= 0) & (prior <= 1))), "prior", "be in [0, 1]", prior)
    p_in, p_out = distributions("p_in", p_in), distributions("p_out", p_out)
    require(p_in.shape[-1] == p_out.shape[-1], "p_in and p_out", "have equal last axes", (p_in.shape, p_out.shape))
    batch = np.broadcast_shapes(prior.shape, p_in.shape[:-1], p_out.shape[:-1])
    rows = (np.broadcast_to(row, (*batch, row.shape[-1])) for row in (p_in, p_out))
    return Channel(np.broadcast_to(prior, batch), *rows)


def log_ratio(channel: Channel) -> np.ndarray:
    """(..., W) log of p(w | member) / p(w | non-member); ±inf where one is 0, NaN where both are (w never happens).

    Example:
        >>> log_ratio(make_channel(0.5, [0.5, 0.5, 0], [0.25, 0.75, 0])).round(2).tolist()
        [0.69, -0.41, nan]
    """
    with np.errstate(all="ignore"):
        return np.log(channel.p_in) - np.log(channel.p_out)


def bounds(channel: Channel) -> tuple[np.ndarray, np.ndarray]:
    """The exact (l, r): the smallest with e^-l <= p(w | member)/p(w | non-member) <= e^r for every possible w.

    Returns:
        (l, r), each (...) float64 in [0, inf]; NaN where a row is (the prior is 0 or 1 in ``node_channels``).

    Example:
        >>> [float(x.round(3)) for x in bounds(make_channel(0.5, [0.6, 0.4], [0.2, 0.8]))]
        [0.693, 1.099]
    """
    ratio = log_ratio(channel)
    never = (channel.p_in == 0) & (channel.p_out == 0)
    # Rows that sum to 1 cannot differ in one direction only: the floor at 0 removes rounding, nothing else.
    l = np.maximum(np.where(never, -np.inf, -ratio).max(-1), 0.0)
    r = np.maximum(np.where(never, -np.inf, ratio).max(-1), 0.0)
    return l, r


def epsilons(channel: Channel, definition: str = "posterior_odds") -> tuple[np.ndarray, np.ndarray]:
    """The exact (eps_L, eps_R) under a reading; see ``from_canonical`` for priors of 0 and 1.

    Raises:
        InputError: another definition.

    Example:
        >>> [float(x.round(3)) for x in epsilons(make_channel(0.1, [0.6, 0.4], [0.2, 0.8]))]
        [2.89, -1.099]
    """
    return from_canonical(*bounds(channel), channel.prior, definition)


def _masses(channel: Channel, log_threshold: Any) -> tuple[np.ndarray, ...]:
    """P(said member | in), P(said member | out), P(denied | in), P(denied | out) at a threshold, each (...)."""
    said = log_ratio(channel) > np.asarray(log_threshold, np.float64)[..., None]
    return tuple(np.where(which, row, 0.0).sum(-1) for which in (said, ~said) for row in (channel.p_in, channel.p_out))


def errors(channel: Channel, log_threshold: Any = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Errors of the best attack at a threshold: say member where the log likelihood ratio exceeds it.

    By Neyman and Pearson no test has a smaller beta at the same alpha. At ``-log(prior odds)`` it is the Bayes rule.

    Args:
        channel: (...) channels.
        log_threshold: (...) any real, or ±inf; broadcasts with the batch.

    Returns:
        (alpha, beta), each (...) float64: P(say member | non-member), P(say non-member | member).

    Example:
        >>> [float(x) for x in errors(make_channel(0.5, [0.6, 0.4], [0.2, 0.8]))]
        [0.2, 0.4]
    """
    said_in, said_out, denied_in, denied_out = _masses(channel, log_threshold)
    # A side without mass means an error of exactly 1, which a sum of rounded numbers misses.
    return np.where(denied_out == 0, 1.0, said_out), np.where(said_in == 0, 1.0, denied_in)


def predictive_values(channel: Channel, log_threshold: Any = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """(PPV, NPV) of the best attack at a threshold, each (...) in [0, 1]; NaN where it never says so.

    Example:
        >>> [float(x.round(3)) for x in predictive_values(make_channel(0.5, [0.6, 0.4], [0.2, 0.8]))]
        [0.75, 0.667]
    """
    said_in, said_out, denied_in, denied_out = _masses(channel, log_threshold)
    g = channel.prior
    with np.errstate(invalid="ignore"):
        ppv = g * said_in / (g * said_in + (1 - g) * said_out)
        npv = (1 - g) * denied_out / ((1 - g) * denied_out + g * denied_in)
    return ppv, npv


def predictive_bounds(eps_L: Any, eps_R: Any) -> tuple[np.ndarray, np.ndarray]:
    """The most that any attack's (PPV, NPV) can be under ``posterior_odds``: (sigmoid eps_R, sigmoid eps_L).

    Attained by the attack that says member (non-member) only at the outputs of the largest (smallest) ratio.

    Example:
        >>> [float(x.round(3)) for x in predictive_bounds(0.69315, 1.09861)]
        [0.75, 0.667]
    """
    ppv, npv = expit(np.asarray(eps_R, np.float64)), expit(np.asarray(eps_L, np.float64))
    return ppv, npv


def swap(channel: Channel) -> Channel:
    """Members and non-members exchanged: (l, r) becomes (r, l), and the log odds change their sign."""
    return Channel(1 - channel.prior, channel.p_out, channel.p_in)


def post_process(channel: Channel, kernel: Any) -> Channel:
    """The output passed through a random map that knows nothing of the membership.

    Args:
        channel: (...) channels over W outputs.
        kernel: (..., W, V) p(v | w), rows summing to 1.

    Raises:
        InputError: a kernel that is no stochastic map on W outputs.

    Example:
        >>> post_process(make_channel(0.5, [0.6, 0.4], [0.2, 0.8]), [[0.5, 0.5], [0, 1]]).p_in.tolist()
        [0.3, 0.7]
    """
    kernel = distributions("kernel", kernel)
    outputs = channel.p_in.shape[-1]
    require(kernel.ndim >= 2 and kernel.shape[-2] == outputs, "kernel", f"have {outputs} rows", kernel.shape)
    p_in, p_out = (np.einsum("...w,...wv->...v", row, kernel) for row in (channel.p_in, channel.p_out))
    return Channel(np.broadcast_to(channel.prior, p_in.shape[:-1]), p_in, p_out)


def _pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    both = first[..., :, None] * second[..., None, :]
    return both.reshape(*both.shape[:-2], -1)


def compose(first: Channel, second: Channel) -> Channel:
    """Both outputs (W1 · W2 of them) about the *same* membership, independent given it.

    Raises:
        InputError: different priors.

    Example:
        >>> one = make_channel(0.5, [0.6, 0.4], [0.2, 0.8])
        >>> [float(x.round(3)) for x in bounds(compose(one, one))]
        [1.386, 2.197]
    """
    same = bool(np.all(np.abs(first.prior - second.prior) <= TOLERANCE))
    require(same, "second.prior", "equal first.prior (one membership)", "another prior")
    p_in, p_out = _pairs(first.p_in, second.p_in), _pairs(first.p_out, second.p_out)
    return Channel(np.broadcast_to(first.prior, p_in.shape[:-1]), p_in, p_out)


def rounds(first: Channel, second: Channel) -> Channel:
    """Both outputs about membership in *at least one* of two independent rounds.

    The three ways to be a member are summed with their prior probabilities. The row of a side that never happens (both
    priors 0, or one of them 1) is NaN.

    Example:
        >>> one = make_channel(0.5, [0.6, 0.4], [0.2, 0.8])
        >>> float(rounds(one, one).prior), rounds(one, one).p_out.round(2).tolist()
        (0.75, [0.04, 0.16, 0.16, 0.64])
    """
    a, b = first.prior[..., None], second.prior[..., None]
    outside = (1 - a) * (1 - b)
    inside = a * b * _pairs(first.p_in, second.p_in) + a * (1 - b) * _pairs(first.p_in, second.p_out)
    inside = inside + (1 - a) * b * _pairs(first.p_out, second.p_in)
    prior = a + b - a * b
    with np.errstate(invalid="ignore"):
        p_in = np.where(prior > 0, inside / prior, np.nan)
    p_out = np.where(outside > 0, _pairs(first.p_out, second.p_out), np.nan)
    return Channel(prior[..., 0], p_in, p_out)
