"""Which nodes are most exposed, with intervals of ranks; how much nodes really differ; what the prior alone gives.

Ranks: draws of every node's functional posterior of r (``jaxaudit.bmp.functional``) are ranked against each other.

Spread: v_i = 1 - alpha_i - beta_i (true minus false positive rate). The variance of its estimates is more than that of
v: they are noisy, and they share the models. With x_ik the contribution of model k to v_i minus the mean over nodes,
so that mean_k x_ik estimates v_i - v, and x centred over the nodes within every model (what all nodes share cancels),
    T = sum_i [(sum_k x_ik)^2 - sum_k x_ik^2] / (n K (K-1))
averages the products of different models, which are independent: unbiased for the variance of the true v, whatever the
dependence within a model (derived; a U-statistic, with the variance of a rate p estimated by p(1-p)/(n-1)). It needs
only the K x K matrix of products. Its standard error is the jackknife's over models. Under no spread it is degenerate,
and the test flips the sign of whole models (wild bootstrap, Dehling & Mikosch 1994): nodes may depend on each other
within a model in any way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxaudit.bmp.counts import validate
from jaxaudit.bmp.definitions import from_canonical, prior_lower_bound
from jaxaudit.bmp.region import tightest
from jaxaudit.bmp.resampling import decision_matrices, weighted_counts
from jaxaudit.runtime.checks import check_int, check_real, require
from jaxaudit.runtime.keys import host_rng

__all__ = ["Decomposition", "Ranking", "Spread", "decompose", "leakage_spread", "rank_nodes"]

_BINS = 256
_Z90 = 1.6448536269514722


@dataclass(frozen=True, eq=False)
class Ranking:
    """Ranks of exposure, 1 is the most exposed; arrays (n,), NaN for nodes without data on a side.

    Attributes:
        top_share: the share of nodes that counts as the top.
        expected: posterior mean of the rank.
        low: 5 % quantile of the rank (exact up to rank 50 or so, within 4 % beyond).
        high: 95 % quantile.
        top_probability: probability of being in the top.
        order: (m,) int64, the nodes with data, most exposed first (by expected rank; equal ones in the order of input).
    """

    top_share: float
    expected: np.ndarray
    low: np.ndarray
    high: np.ndarray
    top_probability: np.ndarray
    order: np.ndarray


@dataclass(frozen=True)
class Spread:
    """How much nodes differ in v = true minus false positive rate.

    Attributes:
        nodes: nodes that enter.
        models: counted models.
        mean: mean of the estimates of v.
        observed_sd: standard deviation over nodes of the estimates of v.
        variance: estimate of the variance over nodes of the true v; negative by chance where there is little.
        standard_error: its standard error.
        sd: square root of the variance, 0 where that is negative.
        sd_low: the same for the lower 90 % limit of the variance.
        sd_high: for the upper one.
        real_share: variance over observed variance, in [0, 1].
        p_value: of the hypothesis that all nodes have the same v.
    """

    nodes: int
    models: int
    mean: float
    observed_sd: float
    variance: float
    standard_error: float
    sd: float
    sd_low: float
    sd_high: float
    real_share: float
    p_value: float


@dataclass(frozen=True, eq=False)
class Decomposition:
    """What the prior gives away and what the model adds, per node: eps_R = log_odds + r, eps_L = l - log_odds.

    Attributes:
        log_odds: (n,) prior-driven part, log of the prior odds of membership; infinite at 0 and 1.
        r: (n,) model-driven part of eps_R.
        l: (n,) model-driven part of eps_L.
        eps_R: (n,) their sum (reading ``posterior_odds``).
        eps_L: (n,).
    """

    log_odds: np.ndarray
    r: np.ndarray
    l: np.ndarray
    eps_R: np.ndarray  # noqa: N815 (the paper's name)
    eps_L: np.ndarray  # noqa: N815


def decompose(prior: Any, l: Any, r: Any) -> Decomposition:
    """Split eps_R and eps_L under ``posterior_odds`` into the prior's and the model's parts.

    Args:
        prior: (n,) P(member), in [0, 1].
        l: (n,) >= 0, NaN passes through.
        r: (n,) >= 0, NaN passes through.

    Raises:
        InputError: a prior outside [0, 1] or a negative l or r.

    Example:
        >>> parts = decompose([0.5, 0.1], [1.0, 1.0], [2.0, 2.0])
        >>> parts.eps_R.round(2).tolist(), parts.eps_L.round(2).tolist()
        ([2.0, -0.2], [1.0, 3.2])
    """
    l, r = np.asarray(l, float), np.asarray(r, float)
    eps_L, eps_R = from_canonical(l, r, prior)
    return Decomposition(prior_lower_bound(prior)[1], r, l, eps_R, eps_L)


def rank_nodes(
    fp: Any, n_out: Any, fn: Any, n_in: Any, *, top: float = 0.05, draws: int = 400, seed: int = 0
) -> Ranking:
    """Rank the nodes by r under the functional posterior of each (Jeffreys Betas pushed through r*).

    The nodes' posteriors are drawn independently; a draw depends on (seed, its number) only. Memory: a histogram of 256
    geometric bins of ranks per node (exact where there are no more nodes than that).

    Args:
        fp: false positives, whole numbers in [0, n_out], scalar or (n,).
        n_out: non-member trials.
        fn: false negatives, in [0, n_in].
        n_in: member trials.
        top: share of the nodes that is called the top, in (0, 1].
        draws: posterior draws, in [20, 65_535].
        seed: >= 0.

    Returns:
        Ranking.

    Raises:
        InputError: counts or settings that break a rule, no node with data on both sides.

    Example:
        >>> rank_nodes([0, 30, 60], 100, [0, 30, 30], 100).order.tolist()
        [0, 1, 2]
    """
    rows = validate(fp, n_out, fn, n_in)
    check_real("top", top, 0, 1, open_low=True)
    check_int("draws", draws, 20, 65_535)
    check_int("seed", seed, 0)
    usable = np.flatnonzero((rows[:, 1] > 0) & (rows[:, 3] > 0))
    n = usable.size
    require(n > 0, "counts", "have at least one node with data on both sides", "none")
    fp, n_out, fn, n_in = rows[usable].T
    # Geometric bins: rank 3 or 4 matters, rank 1003 or 1004 does not.
    lowest = np.unique(np.geomspace(1, n, _BINS).round().astype(np.int64)) if n > _BINS else np.arange(1, n + 1)
    where = np.searchsorted(lowest, np.arange(1, n + 1), side="right") - 1
    seen = np.zeros((n, lowest.size), np.uint16)
    total, in_top = np.zeros(n), np.zeros(n)
    rank, everyone = np.empty(n, np.int64), np.arange(n)
    for draw in range(draws):
        rng = host_rng(seed, "rank_nodes", draw)
        r = tightest(rng.beta(fp + 0.5, n_out - fp + 0.5), rng.beta(fn + 0.5, n_in - fn + 0.5))[1]
        rank[np.argsort(-r)] = everyone + 1
        seen[everyone, where[rank - 1]] += 1
        total += rank
        in_top += rank <= max(1, round(top * n))
    below = np.cumsum(seen, axis=1, dtype=np.uint32)
    highest = np.append(lowest[1:] - 1, n)
    low = lowest[(below > 0.05 * draws).argmax(axis=1)]
    high = highest[(below >= 0.95 * draws).argmax(axis=1)]
    columns = np.full((4, len(rows)), np.nan)
    columns[:, usable] = total / draws, low, high, in_top / draws
    expected, low, high, top_probability = columns
    return Ranking(top, expected, low, high, top_probability, usable[np.argsort(total, kind="stable")])


def _contributions(said: np.ndarray, counted: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Estimates v (n,), and x (n, K) whose mean over models is v - mean(v) and whose products are unbiased."""
    counts = weighted_counts(said, counted, member, np.ones((1, said.shape[1]), np.int64))[0]
    fp, n_out, fn, n_in = counts.T[..., None].astype(float)
    models = said.shape[1]
    rate_in, rate_out = 1 - fn / n_in, fp / n_out
    v = (rate_in - rate_out)[:, 0]
    # sqrt(n / (n-1)) and sqrt((K-1) / K): then sum_k x^2 / (K (K-1)) holds p (1-p) / (n-1), which is unbiased.
    scale_in, scale_out = (np.sqrt(n / (n - 1) * (models - 1) / models) * models / n for n in (n_in, n_out))
    noise = np.where(member, (said - rate_in) * scale_in, -(said - rate_out) * scale_out) * counted
    return v, noise + (v - v.mean())[:, None]


def leakage_spread(said_member: Any, counted: Any, member: Any, *, flips: int = 2000, seed: int = 0) -> Spread:
    """Variance over nodes of the true v = TPR - FPR, with its sampling error, and a test against no variance.

    Nodes with fewer than two counted models on a side are left out; models in which nothing counts too. A hypothesis of
    no spread means equal v; equal false positive rates are not assumed.

    Args:
        said_member: (n, K) bool decisions.
        counted: (n, K) bool, the decisions that count.
        member: (n, K) bool memberships.
        flips: sign flips of the test, >= 99.
        seed: >= 0.

    Returns:
        Spread.

    Raises:
        InputError: shapes or settings that break a rule, fewer than two nodes or four models that can be used.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> member, ability = rng.random((300, 32)) < 0.5, rng.uniform(0.2, 0.9, (300, 1))
        >>> said = rng.random((300, 32)) < np.where(member, ability, 0.1)
        >>> spread = leakage_spread(said, np.ones_like(said), member)
        >>> round(spread.sd, 1), spread.p_value < 0.01
        (0.2, True)
    """
    check_int("flips", flips, 99)
    check_int("seed", seed, 0)
    said, counted, member = decision_matrices(said_member, counted, member)
    nodes = ((counted & member).sum(axis=1) > 1) & ((counted & ~member).sum(axis=1) > 1)
    models = counted[nodes].any(axis=0)
    require(int(nodes.sum()) > 1, "counted", "leave two nodes with two models on each side", int(nodes.sum()))
    require(int(models.sum()) > 3, "counted", "count at least four models", int(models.sum()))
    said, counted, member = (x[nodes][:, models] for x in (said, counted, member))
    v, x = _contributions(said, counted, member)
    x -= x.mean(axis=0)
    products = x.T @ x / len(v)
    variance, error = _product_mean(products)
    signs = host_rng(seed, "leakage_spread").choice([-1.0, 1.0], size=(flips, len(products)))
    null = _products_of_different(products, signs)
    observed = float(v.var())
    low, high = (np.sqrt(max(variance + z * error, 0.0)) for z in (-_Z90, _Z90))
    share = min(max(variance / observed, 0.0), 1.0) if observed > 0 else 0.0
    p_value = (1 + int((null >= variance).sum())) / (flips + 1)
    return Spread(
        len(v), len(products), float(v.mean()), float(np.sqrt(observed)), variance, error,
        float(np.sqrt(max(variance, 0.0))), float(low), float(high), share, p_value,
    )  # fmt: skip


def _products_of_different(products: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Mean over pairs of different models of the signed products, one per row of ``signs``."""
    k = len(products)
    return (((signs @ products) * signs).sum(axis=1) - np.trace(products)) / (k * (k - 1))


def _product_mean(products: np.ndarray) -> tuple[float, float]:
    """The U-statistic and its jackknife standard error over models (Arvesen 1969)."""
    k = len(products)
    rows = products.sum(axis=1) - np.diag(products)
    total = rows.sum()
    without = (total - 2 * rows) / ((k - 1) * (k - 2))
    return float(total / (k * (k - 1))), float(np.sqrt((k - 1) / k * ((without - without.mean()) ** 2).sum()))
