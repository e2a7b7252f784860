"""Which nodes are most exposed, with intervals of ranks; how much nodes really differ; what the prior alone gives.

Ranks: draws of every node's functional posterior of r (``jaxaudit.bmp.functional``) are ranked against each other.

Spread: how much v_i, the AUC within node i (P(T with the node exceeds T without it)), differs over nodes. The variance
of its estimates is more than that of v: they are noisy, and they share the models. With x_ik the contribution of model
k to v_i minus the mean over nodes (its placement, as in DeLong's variance), so that mean_k x_ik estimates v_i - v, and
x centred over the nodes within every model (what all nodes share cancels),
    T = sum_i [(sum_k x_ik)^2 - sum_k x_ik^2] / (n K (K-1))
is the observed variance minus DeLong's estimate of the sampling variance: nearly unbiased for the variance of the true
v, whatever the dependence within a model (derived). It needs only the K x K matrix of products. Its standard error is
the jackknife's over models. Under no spread it is degenerate, and the test flips the sign of whole models (wild
bootstrap, Dehling & Mikosch 1994): nodes may depend on each other within a model in any way. No decision enters: a
decision's threshold is fitted to a node's own models, its luck is the same in all of them, and so the rates of equal
nodes differ by more than binomial noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxaudit.bmp.counts import validate
from jaxaudit.bmp.definitions import from_canonical, prior_lower_bound
from jaxaudit.bmp.region import tightest
from jaxaudit.runtime.checks import check_int, check_real, require
from jaxaudit.runtime.chunks import rows_per_chunk
from jaxaudit.runtime.keys import host_rng

__all__ = ["Decomposition", "Ranking", "Spread", "auc_spread", "decompose", "rank_nodes"]

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
    """How much nodes differ in v, the AUC within a node.

    Attributes:
        nodes: nodes that enter.
        models: models, or pairs of them.
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
    fp: Any, n_out: Any, fn: Any, n_in: Any, *, top: float = 0.05, draws: int = 1000, seed: int = 0
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


def _contributions(statistic: np.ndarray, member: np.ndarray, use: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Estimates v (n,), and x (n, K) whose mean over models is v - mean(v) and whose squares hold DeLong's variance."""
    n, models = statistic.shape
    placed = np.zeros((n, models))
    chunk = rows_per_chunk(24 * models**2)
    for start in range(0, n, chunk):
        part = slice(start, start + chunk)
        t, inside, outside = statistic[part], (member & use)[part], (~member & use)[part]
        above = (t[:, :, None] > t[:, None, :]) + 0.5 * (t[:, :, None] == t[:, None, :])
        won = np.einsum("nkj,nj->nk", above, outside.astype(float)) / outside.sum(axis=1, keepdims=True)
        beaten = np.einsum("nkj,nk->nj", above, inside.astype(float)) / inside.sum(axis=1, keepdims=True)
        placed[part] = np.where(member[part], won, beaten)
    n_in, n_out = ((part & use).sum(axis=1, keepdims=True).astype(float) for part in (member, ~member))
    v = (placed * (member & use)).sum(axis=1) / n_in[:, 0]
    # sqrt(n / (n-1)) and sqrt((K-1) / K): then sum_k x^2 / (K (K-1)) holds s^2 / n of either side, which is unbiased.
    scale = [np.sqrt(m / (m - 1) * (models - 1) / models) * models / m for m in (n_in, n_out)]
    noise = (placed - v[:, None]) * np.where(member, *scale) * use
    return v, noise + (v - v.mean())[:, None]


def auc_spread(statistic: Any, member: Any, *, paired: bool = False, flips: int = 2000, seed: int = 0) -> Spread:
    """Variance over nodes of the true within-node AUC, with its sampling error, and a test against no variance.

    Nodes with fewer than two models on a side are left out.

    Args:
        statistic: (n, K); not finite: that model is left out for that node.
        member: (n, K) bool memberships.
        paired: models 2j and 2j + 1 are complements: pairs are then what is independent.
        flips: sign flips of the test, >= 99.
        seed: >= 0.

    Returns:
        Spread.

    Raises:
        InputError: shapes or settings that break a rule, fewer than two nodes or four models that can be used.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> member, shift = rng.random((300, 32)) < 0.5, rng.uniform(0, 4, (300, 1))
        >>> spread = auc_spread(rng.normal(size=(300, 32)) + shift * member, member)
        >>> 0.1 < spread.sd < 0.2, spread.p_value < 0.01
        (True, True)
    """
    check_int("flips", flips, 99)
    check_int("seed", seed, 0)
    t, member = np.asarray(statistic, np.float64), np.asarray(member, bool)
    require(t.ndim == 2 and t.shape == member.shape, "statistic", f"have the shape {member.shape} of member", t.shape)
    use = np.isfinite(t)
    nodes = ((use & member).sum(axis=1) > 1) & ((use & ~member).sum(axis=1) > 1)
    require(int(nodes.sum()) > 1, "statistic", "leave two nodes with two models on each side", int(nodes.sum()))
    size = 2 if paired else 1
    seen = np.repeat(
        use[nodes][:, : t.shape[1] // size * size].reshape(int(nodes.sum()), -1, size).any(axis=(0, 2)), size
    )
    units = int(seen.sum()) // size
    require(units > 3, "statistic", "have at least four models (pairs, when paired)", units)
    t, member, use = (part[:, : seen.size][:, seen] for part in (t, member, use))
    v, x = _contributions(np.where(use, t, 0)[nodes], member[nodes], use[nodes])
    if paired:
        x = x.reshape(len(x), units, 2).mean(axis=2)
    x -= x.mean(axis=0)
    products = x.T @ x / len(v)
    variance, error = _product_mean(products)
    signs = host_rng(seed, "auc_spread").choice([-1.0, 1.0], size=(flips, len(products)))
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
