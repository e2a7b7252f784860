"""How far the pooled posterior moves when models are resampled: all nodes share them, so their counts are dependent.

The product over nodes takes them as independent. Models are what is independent, so columns of the decision matrix
are left out or resampled; decisions and masks stay as they are, for a refit on duplicated models would be biased.
Where draws are complementary pairs, pairs are what is independent: the two models of one stay together.
Counts become weighted sums, and every replicate's posterior comes from one table of the tuples that occur.

``jackknife`` leaves out one block of models after the other (Quenouille 1949; Tukey 1958): the counts stay binomial.
``bootstrap`` draws models with repetition (Efron 1979). Its counts hold the noise of the data and that of the draw,
and the likelihood reads noise as differences between nodes, so the replicates' medians are shifted, at few models by
more than they spread (Cora, 64 models: r 3.6, replicates 7.3). Only the spread is used, never the replicates' centre.

Combination: the posterior knows that the nodes are a sample from the region, resampled models do not; they know what
the models have in common. The variances of the log are added: the posterior, on the log scale around its median, is
stretched by sqrt(1 + (spread / posterior sd)^2). The independent noise of the models is in both: conservative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from jaxaudit.bmp.table import SharedPosteriors, shared_posteriors
from jaxaudit.runtime.checks import check_choice, check_int, check_real, require
from jaxaudit.runtime.keys import host_rng

__all__ = [
    "SCHEMES",
    "BootstrapPosterior",
    "bootstrap_posterior",
    "decision_matrices",
    "model_weights",
    "weighted_counts",
]

SCHEMES = ("jackknife", "bootstrap")
_TAIL = 0.158655  # standard normal distribution function at -1


@dataclass(frozen=True)
class BootstrapPosterior:
    """Posterior of the shared (l, r) with the uncertainty that the shared models add; the arrays by name "r" and "l".

    Attributes:
        prior_scale2: squared scale of the half-normal priors.
        scheme: "jackknife" or "bootstrap".
        nodes: number of nodes with data on both sides, all models counted once.
        median: posterior median, all models counted once.
        naive: its 90 % interval, taking the nodes as independent.
        replicate_median: (replicates,) posterior medians.
        replicate_low: (replicates,) 5 % quantiles.
        replicate_high: (replicates,) 95 % quantiles.
        spread: standard error of the log median that the replicates show.
        inflation: factor >= 1 by which the posterior is stretched.
        interval: the stretched 90 % interval.
        dropped: largest number of nodes that a replicate left without data on a side.
    """

    prior_scale2: float
    scheme: str
    nodes: int
    median: dict[str, float]
    naive: dict[str, tuple[float, float]]
    replicate_median: dict[str, np.ndarray]
    replicate_low: dict[str, np.ndarray]
    replicate_high: dict[str, np.ndarray]
    spread: dict[str, float]
    inflation: dict[str, float]
    interval: dict[str, tuple[float, float]]
    dropped: int


def model_weights(models: int, replicates: int, scheme: str, seed: int) -> np.ndarray:
    """How often each model (or pair) occurs in each replicate, (replicates, models) int64.

    A bootstrap replicate k depends on (seed, k) only. The jackknife has one replicate per block of models, blocks drawn
    at random and of sizes that differ by at most one.

    Example:
        >>> model_weights(6, 3, "jackknife", 0).sum(axis=1).tolist()
        [4, 4, 4]
    """
    check_choice("scheme", scheme, SCHEMES)
    if scheme == "jackknife":
        order = host_rng(seed, "model_jackknife").permutation(models)
        return (order[None] % replicates != np.arange(replicates)[:, None]).astype(np.int64)
    draws = (host_rng(seed, "model_bootstrap", k).integers(models, size=models) for k in range(replicates))
    return np.stack([np.bincount(draw, minlength=models) for draw in draws])


def decision_matrices(said_member: Any, counted: Any, member: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The three (n, K) matrices as bool, checked to have one shape.

    Raises:
        InputError: not matrices, or of different shapes.
    """
    said, counted, member = (np.asarray(x, bool) for x in (said_member, counted, member))
    require(said.ndim == 2, "said_member", "be a (nodes, models) matrix", f"shape {said.shape}")
    for name, other in (("counted", counted), ("member", member)):
        require(other.shape == said.shape, name, f"have the shape {said.shape} of said_member", other.shape)
    return said, counted, member


def weighted_counts(said_member: Any, counted: Any, member: Any, weights: np.ndarray) -> np.ndarray:
    """Error counts of every node with model k counted ``weights[:, k]`` times.

    Args:
        said_member: (n, K) bool decisions.
        counted: (n, K) bool, the decisions that count.
        member: (n, K) bool memberships.
        weights: (b, K) whole numbers >= 0.

    Returns:
        (b, n, 4) int64 rows (fp, n_out, fn, n_in).

    Example:
        >>> weighted_counts([[True, False]], [[True, True]], [[False, True]], np.array([[1, 2]])).tolist()
        [[[1, 1, 2, 2]]]
    """
    said, counted, member = decision_matrices(said_member, counted, member)
    require(weights.shape[1] == said.shape[1], "weights", f"have {said.shape[1]} columns", weights.shape[1])
    parts = said & counted & ~member, counted & ~member, ~said & counted & member, counted & member
    w = weights.T.astype(np.float32)  # exact: counts are far below 2^24
    return np.stack([(part.astype(np.float32) @ w).T for part in parts], axis=-1).round().astype(np.int64)


def _regroup(counts: np.ndarray) -> tuple[np.ndarray, Any, np.ndarray]:
    """Distinct tuples of all replicates, (b, u) sparse multiplicities, and usable nodes per replicate."""
    replicates, nodes, _ = counts.shape
    rows = counts.reshape(-1, 4)
    ok = (rows[:, 1] > 0) & (rows[:, 3] > 0)
    base = rows.max(axis=0) + 1
    require(float(np.prod(base.astype(float))) < 2**62, "counts", "be small enough to enumerate", base.tolist())
    code = ((rows[ok, 0] * base[1] + rows[ok, 1]) * base[2] + rows[ok, 2]) * base[3] + rows[ok, 3]
    unique, index = np.unique(code, return_inverse=True)
    tuples = np.stack(np.unravel_index(unique, base), axis=1).astype(np.int64)
    owner = np.repeat(np.arange(replicates), nodes)[ok]
    weights = sparse.csr_matrix((np.ones(owner.size), (owner, index.ravel())), shape=(replicates, unique.size))
    return tuples, weights, np.bincount(owner, minlength=replicates)


def bootstrap_posterior(
    said_member: Any,
    counted: Any,
    member: Any,
    prior_scale2: float = 10.0,
    *,
    replicates: int = 32,
    scheme: str = "jackknife",
    paired: bool = False,
    seed: int = 0,
) -> BootstrapPosterior:
    """Pooled posterior of (l, r) with an interval that allows for the models that all nodes share.

    For a group pass the rows of its nodes. Models in which no decision counts are left out, so rules that
    count half of the models resample that half.

    Args:
        said_member: (n, K) bool decisions.
        counted: (n, K) bool, the decisions that count.
        member: (n, K) bool memberships.
        prior_scale2: squared scale of the half-normal priors, in [0.01, 10_000].
        replicates: number of blocks, or of bootstrap samples, >= 2; no more blocks than models (pairs) are made.
        scheme: one of ``SCHEMES``.
        paired: models 2j and 2j + 1 are complements: pairs are left out or drawn, K is even.
        seed: >= 0.

    Returns:
        BootstrapPosterior.

    Raises:
        InputError: shapes or settings that break a rule, fewer than four counted models (pairs), or a (re)sample in
            which no node has data on both sides.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> member = rng.random((40, 16)) < 0.5
        >>> said = rng.random((40, 16)) < np.where(member, 0.6, 0.2)
        >>> post = bootstrap_posterior(said, np.ones_like(said), member, replicates=5)
        >>> post.nodes, post.inflation["r"] >= 1, post.interval["r"][0] <= post.naive["r"][0]
        (40, True, True)
    """
    scale2 = check_real("prior_scale2", prior_scale2, 0.01, 10_000)
    check_int("replicates", replicates, 2)
    check_int("seed", seed, 0)
    said, counted, member = decision_matrices(said_member, counted, member)
    use = counted.any(axis=0)
    require(not paired or use.size % 2 == 0, "member", "have an even number of models in pairs", use.size)
    units, unit = np.unique(np.flatnonzero(use) // (2 if paired else 1), return_inverse=True)
    require(units.size >= 4, "counted", f"count at least four {'pairs' if paired else 'models'}", units.size)
    said, counted, member = (x[:, use] for x in (said, counted, member))
    blocks = min(replicates, units.size) if scheme == "jackknife" else replicates
    weights = model_weights(units.size, blocks, scheme, seed)[:, unit]
    whole = np.ones((1, said.shape[1]), np.int64)
    tuples, times, nodes = _regroup(weighted_counts(said, counted, member, np.concatenate([whole, weights])))
    require(int(nodes.min()) > 0, "counts", "leave a node with data on both sides in every resample", "none")
    # The replicates' supports lie around that of all models.
    all_models = np.asarray(times[0].todense()).ravel()
    known = all_models > 0
    start = shared_posteriors(tuples[known], all_models[None, known], scale2).box
    posterior = shared_posteriors(tuples, times, scale2, start)
    parts = {name: _combine(posterior, name, scheme) for name in ("r", "l")}
    names = (
        "median",
        "naive",
        "replicate_median",
        "replicate_low",
        "replicate_high",
        "spread",
        "inflation",
        "interval",
    )
    columns: dict[str, Any] = {key: {name: parts[name][i] for name in parts} for i, key in enumerate(names)}
    return BootstrapPosterior(scale2, scheme, int(nodes[0]), **columns, dropped=int(nodes[0] - nodes.min()))


def _combine(posterior: SharedPosteriors, name: str, scheme: str) -> tuple[Any, ...]:
    """Row 0 is the posterior with all models; the others are the replicates."""
    low, lower, middle, upper, high = (posterior.quantile(name, q) for q in (0.05, _TAIL, 0.5, 1 - _TAIL, 0.95))
    moved = np.log(middle[1:])
    spread = float(np.sqrt(moved.size - 1) * moved.std() if scheme == "jackknife" else moved.std(ddof=1))
    inflation = float(np.hypot(1.0, 2 * spread / np.log(upper[0] / lower[0])))
    stretched = tuple(float(middle[0] * (end[0] / middle[0]) ** inflation) for end in (low, high))
    naive = float(low[0]), float(high[0])
    return float(middle[0]), naive, middle[1:], low[1:], high[1:], spread, inflation, stretched
