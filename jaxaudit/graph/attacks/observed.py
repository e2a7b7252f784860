"""What the attacker sees of a set of models: outputs post-processed, and the statistics that are left of them.

Post-processing can only lower leakage: every statistic below is a function of the post-processed output alone.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.graph.attacks.statistics import STATISTICS
from jaxaudit.runtime.checks import check_choice, check_int, require

__all__ = ["OBSERVES", "Context", "Observed", "observe", "post_process", "select"]

OBSERVES = ("logits", "probabilities", "topk", "label")
_SURE = 9.0  # odds given to a predicted label; any value above 1 carries the same information


class Observed(NamedTuple):
    """Statistics of n nodes under K models, float32, each higher for a more member-like output; NaN: not observed.

    Attributes:
        statistic: (n, K), one of ``STATISTICS``, of the true class.
        log_prob: (n, K) log-probability of the true class, <= 0.
        confidence: (n, K) log of the largest probability, which asks for no label.
        entropy: (n, K) minus the Shannon entropy of the output.
        modified_entropy: (n, K) minus the entropy that also knows the true class (Song & Mittal 2021).
        outputs: (n, K, C) log-probabilities in descending order.
        contrast: (n, K, S) or None; for ``g_base``, see ``contrast_queries``.
    """

    statistic: jax.Array | np.ndarray
    log_prob: jax.Array | np.ndarray
    confidence: jax.Array | np.ndarray
    entropy: jax.Array | np.ndarray
    modified_entropy: jax.Array | np.ndarray
    outputs: jax.Array | np.ndarray
    contrast: jax.Array | np.ndarray | None = None


class Context(NamedTuple):
    """What every attacker knows besides.

    Attributes:
        prior: (n,) P(member).
        seed: of attacks that draw.
        rmia_gamma: how many times a node's ratio must exceed a reference node's, > 0.
    """

    prior: np.ndarray
    seed: int = 0
    rmia_gamma: float = 1.0


def post_process(logits: jax.Array, setting: str, topk: int) -> jax.Array:
    """Logits (..., C) that carry what is left of the output, no more. Traceable; NaN in, NaN out.

    ``logits``: as they are. ``probabilities``: the log-softmax (an additive constant is lost). ``topk``: classes
    outside the k most probable share their mass evenly (ties at the k-th are kept). ``label``: the predicted class at
    odds of nine to one, the other classes alike.
    """
    finite = jnp.isfinite(logits).all(axis=-1, keepdims=True)
    classes = logits.shape[-1]
    if setting == "probabilities":
        out = jax.nn.log_softmax(logits)
    elif setting == "topk" and topk < classes:
        least = jax.lax.top_k(logits, topk)[0][..., -1:]
        outside = logits < least
        mass = jax.nn.logsumexp(jnp.where(outside, logits, -jnp.inf), axis=-1, keepdims=True)
        out = jnp.where(outside, mass - jnp.log(jnp.maximum(outside.sum(axis=-1, keepdims=True), 1)), logits)
    elif setting == "label":
        out = jax.nn.one_hot(logits.argmax(axis=-1), classes) * jnp.log(_SURE * max(classes - 1, 1))
    else:
        out = logits
    return jnp.where(finite, out, jnp.nan)


@partial(jax.jit, static_argnames=("setting", "topk", "statistic"))
def _observe(logits: jax.Array, labels: jax.Array, setting: str, topk: int, statistic: str) -> Observed:
    def one_model(z: jax.Array) -> Observed:
        z = post_process(z, setting, topk)
        here = labels[:, None] == jnp.arange(z.shape[-1])
        # True class first, then the others by size: sums then do not depend, to the last bit, on which is which.
        ordered = -jnp.sort(jnp.where(here, -jnp.inf, -z), axis=-1)
        true = jnp.broadcast_to(jnp.arange(z.shape[-1]) == 0, z.shape)
        z = jnp.where(true, jnp.sum(jnp.where(here, z, 0), axis=-1, keepdims=True), ordered)
        logit = STATISTICS["logit"](z, true)
        log_p = jax.nn.log_softmax(z)
        p = jnp.exp(log_p)
        log_true = -jax.nn.softplus(-logit)  # exact where log_softmax has rounded to 0
        log_other = jnp.log(jnp.maximum(-jnp.expm1(log_p), jnp.finfo(z.dtype).tiny))  # log(1 - p)
        surprise = -jnp.exp(-jax.nn.softplus(logit)) * log_true - jnp.sum(jnp.where(true, 0, p * log_other), axis=-1)
        return Observed(
            STATISTICS[statistic](z, true), log_true, log_p.max(axis=-1), jnp.sum(p * log_p, axis=-1), -surprise,
            -jnp.sort(-log_p, axis=-1),
        )  # fmt: skip

    by_model = jax.lax.map(one_model, logits)
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), by_model)


def observe(
    logits: np.ndarray, labels: np.ndarray, setting: str = "logits", topk: int = 3, statistic: str = "logit"
) -> Observed:
    """The attacker's view of K models.

    Args:
        logits: (K, n, C) float32; a model that is not finite is NaN throughout.
        labels: (n,) int true classes, which the attacker knows.
        setting: one of ``OBSERVES``.
        topk: classes shown under ``topk``, >= 1.
        statistic: one of ``STATISTICS``.

    Raises:
        InputError: an unknown setting or statistic, a bad topk, or shapes that do not fit.

    Example:
        >>> logits = np.array([[[2.0, 0.0, 1.0]]], np.float32)
        >>> seen = observe(logits, np.array([0]), "topk", topk=1)
        >>> np.exp(seen.outputs[0, 0]).round(3).tolist()  # 1 - .665 = .335 shared by two
        [0.6650000214576721, 0.16699999570846558, 0.16699999570846558]
    """
    check_choice("attack.observes", setting, OBSERVES)
    check_int("attack.topk", topk, 1)
    check_choice("attack.statistic", statistic, STATISTICS)
    shape = np.shape(logits)
    require(len(shape) == 3, "logits", "have the shape (models, nodes, classes)", shape)
    require(np.shape(labels) == (shape[1],), "labels", f"have the shape ({shape[1]},)", np.shape(labels))
    seen = _observe(jnp.asarray(logits, jnp.float32), jnp.asarray(labels), setting, int(topk), statistic)
    return Observed(*map(np.asarray, seen[:-1]))


def select(observed: Observed, models: np.ndarray) -> Observed:
    """The view of some of the models: indices or a mask into the second axis.

    Example:
        >>> seen = observe(np.zeros((4, 2, 3), np.float32), np.zeros(2, int))
        >>> select(seen, np.array([0, 2])).statistic.shape
        (2, 2)
    """
    kept = {name: np.asarray(part)[:, models] for name, part in observed._asdict().items() if part is not None}
    return Observed(**kept)
