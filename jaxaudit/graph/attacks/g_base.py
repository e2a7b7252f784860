"""G-BASE: the Bayes-optimal node attack that knows the graph (Lassila et al., arXiv:2505.24089).

With weights distributed as p(W | members m) ∝ exp(−L(W; m)), L the summed loss of the members, each looking along the
edges among members, the log posterior odds of node i given the others' memberships are (derived)

    log o_i + D_i(W; m) − log E_shadow[exp D_i(W′; m)],   D_i(W; m) = L(W; m without i) − L(W; m with i),

so i counts by its own loss and by what its presence does to its neighbours'. The others' memberships are unknown; the
posterior probability is averaged over masks m drawn from the prior.

Deviations from the paper, both for cost. D_i asks for queries with and without i; here a random block of nodes is
toggled at once (1 + blocks queries serve all n nodes per mask, instead of 2n), so another toggled node two steps away
adds noise, which target and shadow models share because they are queried on the same masks. And of the nodes whose loss
i moves, its neighbours only are summed, not all within four hops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.graph.attacks.observed import Context, Observed
from jaxaudit.graph.attacks.statistics import STATISTICS
from jaxaudit.graph.models import Features, Model, Structure, entry_mask
from jaxaudit.graph.propagate import neighbour_sum
from jaxaudit.runtime.checks import check_int
from jaxaudit.runtime.keys import host_rng

__all__ = ["Design", "contrast_queries", "draw_design", "g_base"]


class Design(NamedTuple):
    """The queries: S membership masks from the prior, and the block in which each node is toggled.

    Attributes:
        masks: (S, n) bool.
        blocks: (S, n) int32 in [0, number).
        number: (number,) int32, 0 .. number − 1: the blocks there are.
    """

    masks: np.ndarray
    blocks: np.ndarray
    number: np.ndarray


def draw_design(prior: np.ndarray, seed: int, samples: int = 8, blocks: int = 2) -> Design:
    """Masks with independent Bernoulli(prior) entries, and blocks of equal size up to one node.

    Each model is then queried ``samples · (1 + blocks)`` times.

    Args:
        prior: (n,) in [0, 1].
        seed: >= 0.
        samples: masks, >= 1.
        blocks: >= 2, as a lone block would leave no neighbour in place. At equal cost more masks serve better than
            more blocks (Cora, GCN with dropout, 64 shadows, AUC over nodes: 16 masks of 2 blocks .785, 8 of 4 .773,
            4 of 16 .765).

    Example:
        >>> draw_design(np.full(6, 0.5), 0, samples=1, blocks=3).blocks.sum()
        np.int64(6)
    """
    check_int("samples", samples, 1)
    check_int("blocks", blocks, 2)
    rng = host_rng(seed, "g_base")
    n = np.shape(prior)[0]
    masks = rng.random((samples, n)) < prior
    return Design(masks, rng.permuted(np.tile(np.arange(n, dtype=np.int32) % blocks, (samples, 1)), axis=1),
                  np.arange(blocks, dtype=np.int32))  # fmt: skip


def contrast_queries(model: Model) -> Callable[..., jax.Array]:
    """The queries of one model, to be mapped over an ensemble.

    Args:
        model: architecture.

    Returns:
        ``contrast(params, features, structure, labels, edges, design) -> (n, S)`` float32, D_i of each mask: labels
        (n,) int, edges (2, E) int. Pure; nothing of size n² or n·blocks is kept.
    """

    def contrast(
        params: Any, features: Features, structure: Structure, labels: jax.Array, edges: jax.Array, design: Design
    ) -> jax.Array:
        neighbours = (structure.edge < edges.shape[1]).astype(jnp.float32)

        def log_prob(mask: jax.Array) -> jax.Array:
            weights = model.prepare(structure, entry_mask(structure, mask[edges[0]] & mask[edges[1]]))
            logits = model.apply(params, features, structure, weights)
            true = labels[:, None] == jnp.arange(logits.shape[-1])
            return -jax.nn.softplus(-STATISTICS["logit"](logits, true))

        def one_mask(item: tuple[jax.Array, jax.Array]) -> jax.Array:
            mask, block = item
            before = log_prob(mask)

            def toggle(found: jax.Array, b: jax.Array) -> tuple[jax.Array, None]:
                toggled = block == b
                after = log_prob(mask ^ toggled)
                stay = mask & ~toggled
                moved = neighbour_sum(structure.pattern, neighbours, jnp.where(stay, after - before, 0)[:, None])[:, 0]
                value = jnp.where(mask, before - moved, after + moved)  # out − in, or in − out, of the neighbours
                return jnp.where(toggled, value, found), None

            return jax.lax.scan(toggle, jnp.zeros_like(before), jnp.asarray(design.number))[0]

        return jax.lax.map(one_mask, (jnp.asarray(design.masks), jnp.asarray(design.blocks))).T

    return contrast


@jax.jit
def _posterior(shadow: jax.Array, target: jax.Array, log_odds: jax.Array) -> jax.Array:
    valid = jnp.isfinite(shadow).all(axis=2, keepdims=True)
    number = valid.sum(axis=1, keepdims=True)
    evidence = jax.nn.logsumexp(jnp.where(valid, shadow, -jnp.inf), axis=1, keepdims=True)
    score = target - (evidence - jnp.log(jnp.maximum(number, 1))) + log_odds[:, None, None]
    # The log odds of the mean over masks of σ(score), without leaving logs; minus the prior's.
    member, other = (jax.nn.logsumexp(jax.nn.log_sigmoid(s), axis=2) for s in (score, -score))
    return jnp.where(number[..., 0] > 0, member - other - log_odds[:, None], jnp.nan)


def g_base(shadow: Observed, member: np.ndarray, target: Observed, context: Context) -> np.ndarray:
    """G-BASE over all shadow models: (n, T) log Bayes factor, NaN without ``Observed.contrast``.

    The prior enters the average over masks; its log odds are then taken off, so that the score is one of evidence, as
    the other attacks' are, and adding them gives the paper's posterior. A prior of 0 or 1 is moved inside by 10⁻⁹.
    """
    if shadow.contrast is None or target.contrast is None:
        return np.full(np.shape(target.statistic), np.nan)
    gamma = np.clip(np.asarray(context.prior, np.float64), 1e-9, 1 - 1e-9)
    with jax.enable_x64(True):
        arrays = (jnp.asarray(seen.contrast, jnp.float64) for seen in (shadow, target))
        return np.asarray(_posterior(*arrays, jnp.asarray(np.log(gamma) - np.log1p(-gamma))))
