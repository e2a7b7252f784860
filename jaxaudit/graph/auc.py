"""AUCs of an ensemble attack, within nodes and pooled, with intervals from resampled models.

All nodes share the K models, so the models are what is resampled: a replicate is a vector of
multiplicities, nothing is refitted, and one matrix product gives all replicates of a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from jaxaudit.graph.attacks import cross_fitted_ratio, halves
from jaxaudit.runtime.chunks import chunked_map, rows_per_chunk
from jaxaudit.runtime.keys import host_rng

__all__ = [
    "AttackAUC", "attack_auc", "constant_score_auc", "cross_fitted_interval", "half_weights", "interval",
    "model_weights", "node_mean", "pooled_auc", "pooled_replicates", "recentred", "within_node_auc",
]  # fmt: skip

_REPLICATES = 400


@dataclass(frozen=True, eq=False)
class AttackAUC:
    """AUCs; each ``_ci`` is a 95 % interval over resampled models (``interval``).

    Attributes:
        likelihood_ratio: mean over nodes of the within-node AUC of the cross-fitted log Λ̂.
        standardised: the same of the statistic itself (see ``attack_auc``).
        pooled: over all (node, model) pairs of a half, of the cross-fitted log Λ̂; mean of the two halves.
        pooled_with_prior: the same of log Λ̂ + log prior odds.
        prior_only: over all pairs, of the prior alone.
        node_likelihood_ratio, node_standardised: (n,) per node, NaN where undefined.
    """

    likelihood_ratio: float
    likelihood_ratio_ci: tuple[float, float]
    standardised: float
    standardised_ci: tuple[float, float]
    pooled: float
    pooled_ci: tuple[float, float]
    pooled_with_prior: float
    pooled_with_prior_ci: tuple[float, float]
    prior_only: float
    node_likelihood_ratio: np.ndarray
    node_standardised: np.ndarray


def model_weights(groups: np.ndarray, replicates: int, rng: np.random.Generator) -> np.ndarray:
    """(replicates, K) multiplicities of models resampled with replacement inside each group.

    Example:
        >>> model_weights(np.array([0, 0, 1]), 2, np.random.default_rng(0)).sum(axis=1).tolist()
        [3.0, 3.0]
    """
    weights = np.zeros((replicates, groups.size))
    for group in np.unique(groups):
        columns = np.flatnonzero(groups == group)
        weights[:, columns] = rng.multinomial(columns.size, np.full(columns.size, 1 / columns.size), size=replicates)
    return weights


def half_weights(sizes: Sequence[int], replicates: int, seed: int) -> list[np.ndarray]:
    """Per half, (1 + replicates, size) multiplicities of its resampled models, led by ones.

    The draws of a half depend on (seed, its place) only, and a replicate not on how many there are: every table of one
    audit resamples the same ensembles.

    Example:
        >>> [weights.sum(axis=1).tolist() for weights in half_weights([3, 2], 1, 0)]
        [[3.0, 3.0], [2.0, 2.0]]
    """
    return [
        np.concatenate(
            [np.ones((1, size)), model_weights(np.zeros(size), replicates, host_rng(seed, "bootstrap-half", place))]
        )
        for place, size in enumerate(sizes)
    ]


@jax.jit
def _within(scores: jax.Array, member: jax.Array, weights: jax.Array) -> jax.Array:
    models, replicates = scores.shape[1], weights.shape[0]

    def node(row: Any) -> jax.Array:
        score, inside = row
        valid = jnp.isfinite(score)
        above = (score[:, None] > score) + 0.5 * (score[:, None] == score)
        wins = above * (inside & valid)[:, None] * (~inside & valid)  # (member, non-member) pairs of models
        won = jnp.sum((weights @ wins) * weights, axis=1).astype(score.dtype)  # whole and half numbers, exact
        pairs = (weights @ (inside & valid)) * (weights @ (~inside & valid))
        return jnp.where(pairs > 0, won / jnp.where(pairs > 0, pairs, 1), jnp.nan)

    chunk = rows_per_chunk(8 * models * (3 * models + 2 * replicates), 32 << 20)
    return chunked_map(node, (scores, member), chunk=chunk)


def within_node_auc(scores: np.ndarray, member: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted within-node AUCs: P(member model scores above non-member model), ties one half.

    Args:
        scores: (n, K); not finite: left out.
        member: (n, K) bool.
        weights: (R, K) whole-numbered multiplicities.

    Returns:
        (n, R) float64; NaN where a node has no pair left.

    Example:
        >>> within_node_auc(np.array([[1.0, 2.0, 2.0]]), np.array([[False, True, False]]), np.ones((1, 3))).tolist()
        [[0.75]]
    """
    with jax.enable_x64(True):
        arrays = jnp.asarray(scores, jnp.float64), jnp.asarray(member, bool), jnp.asarray(weights, jnp.float32)
        return np.asarray(_within(*arrays), np.float64)


def pooled_auc(scores: np.ndarray, member: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted AUCs over all (node, model) pairs at once, ties one half.

    Args:
        scores: (n, K); not finite: left out.
        member: (n, K) bool.
        weights: (R, K) multiplicities of the models.

    Returns:
        (R,) float64, NaN without a pair.
    """
    keep = np.isfinite(scores)
    model = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)[keep]
    flat, inside = scores[keep], member[keep]
    order = np.argsort(flat, kind="stable")
    flat, inside, model = flat[order], inside[order], model[order]
    starts = np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1]])) if flat.size else np.zeros(0, int)
    out = np.full(weights.shape[0], np.nan)
    for r, weight in enumerate(weights):
        w = weight[model]
        w_in, w_out = np.where(inside, w, 0), np.where(inside, 0, w)
        if starts.size < flat.size:  # ties: one entry per distinct score
            w_in, w_out = np.add.reduceat(w_in, starts), np.add.reduceat(w_out, starts)
        pairs = w_in.sum() * w_out.sum()
        if pairs > 0:
            out[r] = w_in @ (np.cumsum(w_out) - w_out / 2) / pairs
    return out


_BINS = 8192  # of equally many scores; ties inside a bin move an AUC by some 1e-6


def pooled_replicates(scores: np.ndarray, member: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """``pooled_auc``, fast for many replicates: exact in the first row, the others by histograms relative to it.

    Scores are binned into equally many per bin; a replicate is then two products of (bins, K) counts with its weights
    instead of a pass over n·K sorted scores. What binning costs is the same for the first row, and is taken off.

    Args:
        scores: (n, K); not finite: left out.
        member: (n, K) bool.
        weights: (R, K) multiplicities of the models.

    Returns:
        (R,) float64, NaN without a pair.
    """
    exact = pooled_auc(scores, member, weights[:1])
    keep = np.isfinite(scores)
    if not keep.any() or weights.shape[0] == 1:
        return np.repeat(exact, weights.shape[0])
    values, models = scores[keep], scores.shape[1]
    edges = np.unique(np.sort(values)[:: -(-values.size // _BINS)])
    cell = (np.searchsorted(edges, values, side="right") - 1) * models
    cell += np.broadcast_to(np.arange(models), scores.shape)[keep]
    counts = [np.bincount(cell[side], minlength=edges.size * models) for side in (member[keep], ~member[keep])]
    w_in, w_out = (count.reshape(edges.size, models) @ weights.T for count in counts)
    pairs = w_in.sum(axis=0) * w_out.sum(axis=0)
    won = (w_in * (np.cumsum(w_out, axis=0) - w_out / 2)).sum(axis=0)
    binned = np.where(pairs > 0, won / np.where(pairs > 0, pairs, 1), np.nan)
    return binned + (exact - binned[0])


def constant_score_auc(score: np.ndarray, n_in: np.ndarray, n_out: np.ndarray) -> float:
    """AUC over all (node, model) pairs of a score that depends on the node alone, such as the prior.

    Example:
        >>> constant_score_auc(np.array([0.5, 0.5]), np.array([1, 2]), np.array([2, 1]))
        0.5
    """
    order = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(score[order]) != 0]))
    w_in, w_out = (np.add.reduceat(np.asarray(w, np.float64)[order], starts) for w in (n_in, n_out))
    pairs = w_in.sum() * w_out.sum()
    return float(w_in @ (np.cumsum(w_out) - w_out / 2) / pairs) if pairs > 0 else float("nan")


def interval(replicates: np.ndarray, models: int) -> tuple[float, float]:
    """95 % percentile interval of bootstrap replicates, expanded for the number of resampled models.

    With few models the plain percentile interval is too narrow: the bootstrap variance lacks the factor m / (m - 1),
    and normal quantiles stand in for Student's. The levels are those that make the interval of a mean of m
    normal values exact (Hesterberg, "What teachers should know about the bootstrap", 2015, section 5.3).

    Args:
        replicates: (R,), NaN where undefined.
        models: number of models resampled together, m.

    Example:
        >>> low, high = interval(np.linspace(0, 1, 1001), models=1000)
        >>> round(low, 2), round(high, 2)
        (0.02, 0.98)
    """
    finite = replicates[np.isfinite(replicates)]
    if finite.size == 0 or models < 2:
        return float("nan"), float("nan")
    tail = stats.norm.sf(np.sqrt(models / (models - 1)) * stats.t.isf(0.025, models - 1))
    low, high = np.quantile(finite, [tail, 1 - tail], method="weibull")  # unbiased levels with few replicates
    return float(low), float(high)


def cross_fitted_interval(point: float, directions: np.ndarray, models: int) -> tuple[float, float]:
    """Interval of the mean of two cross-fitted directions, from (2, 1 + R) values each led by its point estimate.

    The directions share their models as fit and as test, and correlate (about .64 under the null), which resampling
    the two test halves cannot see. Adding sorted replicates treats them as perfectly correlated: at worst too wide.
    """
    replicates = np.sort(directions[:, 1:], axis=1).mean(axis=0)
    return interval(replicates + (point - directions[:, 0].mean()), models)


def recentred(values: np.ndarray) -> np.ndarray:
    """Replicates (..., 1 + R) moved so that their mean is the point estimate that leads them.

    Resampled pairs of complements need it: a node is always in one model of a pair and out of the other, so a pair
    drawn w times compares its two models w² times, and a replicate leans by 1/pairs towards the AUC within pairs.

    Example:
        >>> recentred(np.array([2.0, 4.0, 6.0])).tolist()
        [2.0, 1.0, 3.0]
    """
    out = np.array(values, np.float64)
    if out.shape[-1] > 1:
        point, replicates = out[..., :1], out[..., 1:]
        defined = np.isfinite(replicates)
        mean = np.where(defined, replicates, 0).sum(axis=-1, keepdims=True) / np.maximum(
            defined.sum(axis=-1, keepdims=True), 1
        )
        out[..., 1:] = replicates + (point - mean)
    return out


def node_mean(values: np.ndarray) -> np.ndarray:
    """Mean over nodes (axis 0) of the defined values; NaN where none is."""
    defined = np.isfinite(values)
    count = defined.sum(axis=0)
    return np.where(count > 0, np.where(defined, values, 0).sum(axis=0) / np.maximum(count, 1), np.nan)


def attack_auc(
    statistic: np.ndarray,
    member: np.ndarray,
    prior: np.ndarray,
    seed: int = 0,
    replicates: int = _REPLICATES,
    paired: bool = False,
) -> AttackAUC:
    """All AUCs of the attack, none of them biased under the null.

    Within a node, log Λ̂ is fitted on one half of the models and ranked inside the other, both ways, then averaged:
    given the fit, memberships are exchangeable, so the mean is exactly .5 without a signal. The standardised
    statistic leaves, for each (member, non-member) pair, the pair's own non-member out of the out-fit of both: the map
    (T − m)/s is then one increasing map for the pair (derived), its AUC the Mann-Whitney AUC of T, and as unbiased.
    (With separate leave-one-out fits the two maps differ, and the null gives .502.)

    Args:
        statistic: (n, K) float.
        member: (n, K) bool.
        prior: (n,) strictly between 0 and 1 (clip an estimate to its interval first).
        seed: of the resampling.
        replicates: resampled ensembles.
        paired: models 2j and 2j + 1 are complements: halves and resampling are then of pairs.
    """
    count, size = member.shape[1], 2 if paired else 1
    odd = halves(count, paired)
    units = [int(half.sum()) // size for half in (odd, ~odd)]
    split = [np.repeat(drawn, size, axis=1) for drawn in half_weights(units, replicates, seed)]
    free = np.repeat(model_weights(np.zeros(sum(units)), replicates, host_rng(seed, "bootstrap")), size, axis=1)
    free = np.concatenate([np.ones((1, count)), free])
    ratio = cross_fitted_ratio(statistic, member, paired=paired)
    halved = list(zip((odd, ~odd), split, strict=True))
    both = np.stack([within_node_auc(ratio[:, half], member[:, half], drawn) for half, drawn in halved])
    node_ratio = node_mean(both[..., 0])
    node_standardised = within_node_auc(statistic, member, free)
    within, standardised = float(node_mean(node_ratio)), node_mean(node_standardised)
    directions = np.stack([node_mean(one) for one in both])
    posterior = ratio + (np.log(prior) - np.log1p(-prior))[:, None]
    # Inside each half, then averaged: the halves' scores come from two fits, and their directions correlate.
    pooled, with_prior = (
        np.stack([pooled_replicates(score[:, half], member[:, half], drawn) for half, drawn in halved])
        for score in (ratio, posterior)
    )
    if paired:
        standardised, directions, pooled, with_prior = map(recentred, (standardised, directions, pooled, with_prior))
    over_all, over_all_prior = (float(node_mean(each[:, 0])) for each in (pooled, with_prior))
    models = min(units)
    return AttackAUC(
        within, cross_fitted_interval(within, directions, models),
        float(standardised[0]), interval(standardised[1:], count // size),
        over_all, cross_fitted_interval(over_all, pooled, models),
        over_all_prior, cross_fitted_interval(over_all_prior, with_prior, models),
        constant_score_auc(prior, member.sum(axis=1), (~member).sum(axis=1)), node_ratio, node_standardised[:, 0],
    )  # fmt: skip
