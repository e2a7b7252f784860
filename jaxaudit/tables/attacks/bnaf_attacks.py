"""Attacks whose densities are block neural autoregressive flows (``jaxaudit.tables.bnaf``) instead of kernels.

``density_bnaf`` and ``domias_bnaf`` are as their namesakes. ``gen_lra_bnaf`` asks how much training on one more record
raises the density of the release around it. For kernels that has a closed form; a flow must be trained further, with
the record and without it. Both take the same steps on the same batches, so that the difference is the record's doing,
and their number is fixed: stopping when a held-out loss rises would chase noise.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.runtime.checks import check_int
from jaxaudit.runtime.chunks import bucket, pad_rows
from jaxaudit.tables import blocks
from jaxaudit.tables.attacks.domias import common_space
from jaxaudit.tables.attacks.neighbours import NeighbourPairs, nearest_pairs, tie_weights
from jaxaudit.tables.basis import fit_basis
from jaxaudit.tables.blocks import block_map, row_blocks, table_size
from jaxaudit.tables.bnaf import (
    BNAF,
    BNAFConfig,
    Learner,
    Shape,
    bnaf_log_density,
    check_size,
    fit_bnaf,
    learn,
    log_p,
    start,
)
from jaxaudit.tables.density import as_rows, distinct_rows, pad_columns, precision_scope

__all__ = ["density_bnaf", "domias_bnaf", "gen_lra_bnaf"]

_TILE = 16
"""Neighbours of a target that are scored at a time."""


def density_bnaf(
    targets: np.ndarray, synthetic: np.ndarray, reference: Any = None, config: BNAFConfig | None = None, *,
    key: jax.Array | None = None,
) -> np.ndarray:  # fmt: skip
    """``log p_S(x)`` by flows, in the directions that the release spans; the reference does not enter.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows, m >= 2.
        reference: ignored.
        config: settings; None for the defaults.
        key: of the training; None: key 0.

    Returns:
        (n,) float64; higher is more member-like.

    Raises:
        InputError: fewer than two released rows, none that differ, tables of different width.

    Example:
        >>> s = np.random.default_rng(0).normal(size=(30, 2))
        >>> few = BNAFConfig(hidden=4, steps=50, batch=32, ensemble=2)
        >>> near, far = density_bnaf(np.array([[0.0, 0.0], [4.0, 4.0]]), s, config=few)
        >>> bool(near > far)
        True
    """
    x = as_rows("targets", targets)
    rows, counts = distinct_rows(as_rows("synthetic", synthetic, x.shape[1]))
    basis = fit_basis(rows, counts, name="synthetic")
    table = np.repeat(basis.whiten(rows), counts, axis=0)
    flow = fit_bnaf(table, _key(key, 0), config, log_volume=basis.log_volume)
    return bnaf_log_density(flow, basis.whiten(x))


def domias_bnaf(
    targets: np.ndarray, synthetic: np.ndarray, reference: np.ndarray, config: BNAFConfig | None = None, *,
    key: jax.Array | None = None,
) -> np.ndarray:  # fmt: skip
    """``log p_S(x) - log p_R(x)`` by flows, in the directions in which both tables vary, see ``domias``.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows, m >= 2.
        reference: (r, d) independent rows of the same population, r >= 2.
        config: settings; None for the defaults.
        key: of the training; None: key 0.

    Returns:
        (n,) float64; higher is more member-like.

    Raises:
        InputError: fewer than two rows, tables of different width, no direction in which both tables vary.

    Example:
        >>> s, r = np.random.default_rng(0).normal(size=(2, 30, 1)) + np.array([[[0.0]], [[2.0]]])
        >>> few = BNAFConfig(hidden=4, steps=50, batch=32, ensemble=2)
        >>> low, high = domias_bnaf(np.array([[2.0], [0.0]]), s, r, few)
        >>> bool(low < high)
        True
    """
    space = common_space(targets, synthetic, reference)
    released = fit_bnaf(np.repeat(*space.release, axis=0), _key(key, 0), config)
    population = fit_bnaf(np.repeat(*space.reference, axis=0), _key(key, 1), config, log_volume=space.log_volume)
    return bnaf_log_density(released, space.release_points) - bnaf_log_density(population, space.reference_points)


def gen_lra_bnaf(
    targets: np.ndarray, synthetic: np.ndarray, reference: np.ndarray, config: BNAFConfig | None = None, *,
    key: jax.Array | None = None,
) -> np.ndarray:  # fmt: skip
    """Gen-LRA by flows: ``sum over the k nearest released rows s of log p_{R + x}(s) - log p_R(s)``.

    Source: Ward, Wang and Cheng, arXiv:2508.21146. From the flow of the reference p_R, "finetune" takes a few more
    steps on R + x, "refit" trains from the initial weights for as many steps as p_R took; p_R takes the same steps on R
    alone. In a step x has the weight 1 / (n + 1), the mean over the batches in which it might be drawn (derived).

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows, m >= k.
        reference: (r, d) independent rows of the same population, r >= 2.
        config: settings; None for the defaults.
        key: of the training; None: key 0.

    Returns:
        (n,) float64; higher is more member-like.

    Raises:
        InputError: k above m, fewer than two reference rows, tables of different width, networks too large.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x, s, r = np.array([[2.0], [-2.0]]), 2.0 + 0.1 * rng.normal(size=(9, 1)), rng.normal(size=(30, 1))
        >>> few = BNAFConfig(hidden=4, steps=50, batch=32, ensemble=2, k=3, neighbours="whitened")
        >>> near, far = gen_lra_bnaf(x, s, r, few)
        >>> bool(near > far)
        True
    """
    config = config or BNAFConfig()
    x = as_rows("targets", targets)
    s_rows, s_counts = distinct_rows(as_rows("synthetic", synthetic, x.shape[1]))
    r_rows, r_counts = distinct_rows(as_rows("reference", reference, x.shape[1]))
    check_int("bnaf.k", config.k, 1, int(s_counts.sum()))
    basis = fit_basis(r_rows, r_counts)
    u, v = basis.whiten(x), basis.whiten(s_rows)
    check_size(u.shape[1], config, influence=True)
    near = (u, v) if config.neighbours == "whitened" else (x, s_rows)
    pairs = nearest_pairs(*near, s_counts, config.k)
    table = np.repeat(*distinct_rows(np.repeat(basis.whiten(r_rows), r_counts, axis=0)), axis=0)
    flow = fit_bnaf(table, _key(key, 0), config)
    terms = _influence(flow, pairs, u, v, table, config, _key(key, 0), _key(key, 1))
    return np.bincount(pairs.target, weights=tie_weights(pairs, s_counts, config.k) * terms, minlength=len(x))


def _key(key: jax.Array | None, stream: int) -> jax.Array:
    return jax.random.fold_in(jax.random.key(0) if key is None else key, stream)


def _influence(
    flow: BNAF, pairs: NeighbourPairs, u: np.ndarray, v: np.ndarray, table: np.ndarray, config: BNAFConfig,
    first_key: jax.Array, draw_key: jax.Array,
) -> np.ndarray:  # fmt: skip
    """Per pair (p,): log density of the row after training on ``table`` and the target, less that without it."""
    n = len(table)
    with precision_scope("float64") as dtype:
        rows, points = pad_rows(pad_columns(table), table_size(n)), pad_rows(pad_columns(v), table_size(len(v)))
        extras = pad_columns(u)
        if config.influence == "refit":
            learner, steps, rate = start(first_key, rows.shape[1], config, dtype), flow.best_step, config.learning_rate
            shape = config.shape
        else:
            learner, rate = jax.tree.map(_double, flow.learner), config.finetune_rate
            steps = np.full(config.ensemble, config.finetune_steps)
            shape = config.shape._replace(batch=config.finetune_batch)
        keys = jax.random.split(draw_key, config.ensemble)
        sizes = np.int32(n), np.int32(flow.dimension), steps.astype(np.int32)
        rates = dtype(1.0 / (n + 1)), dtype(config.noise), dtype(rate)
    counts = np.bincount(pairs.target, minlength=len(u))
    first = np.cumsum(counts) - counts
    order = np.argsort(counts, kind="stable")  # targets with as many neighbours together: little padding
    budget, most = (64 << 20, 32) if blocks.on_cpu() else (2 << 30, 1024)
    starts, size = row_blocks(len(u), 48 * learner.parameters.shape[1], budget, most)
    terms = np.empty(len(pairs.row))

    def some(low: int) -> None:
        chosen = order[low : low + size]
        width = bucket(int(counts[chosen].max()), _TILE)
        place = first[chosen, None] + np.minimum(np.arange(width), counts[chosen, None] - 1)
        index = pad_rows(pairs.row[place].astype(np.int32), size)
        with precision_scope("float64"):
            found = _changes(
                learner, keys, rows, pad_rows(extras[chosen], size), points, index, sizes, rates, shape=shape
            )
            terms[place] = np.asarray(found)[: len(chosen)]

    block_map(some, starts)
    return terms


def _double(leaf: np.ndarray) -> np.ndarray:
    return leaf.astype(np.float64) if np.issubdtype(leaf.dtype, np.floating) else leaf


@partial(jax.jit, static_argnames="shape")
def _changes(
    learner: Learner, keys: jax.Array, rows: jax.Array, extras: jax.Array, points: jax.Array, index: jax.Array,
    sizes: tuple[jax.Array, jax.Array, jax.Array], rates: tuple[jax.Array, jax.Array, jax.Array], *, shape: Shape,
) -> jax.Array:  # fmt: skip
    """(targets, width): log mean density at ``points[index]`` with each of the ``extras``, less that without any.

    Members one after the other; the targets of the block, and one of weight zero, side by side.
    """
    n, dimension, steps = sizes
    weight, noise, rate = rates
    weights = jnp.append(jnp.full(len(extras), weight), 0.0)
    extras = jnp.concatenate([extras, extras[:1]])

    def densities(parameters: jax.Array, places: jax.Array) -> jax.Array:
        return jax.lax.map(
            lambda part: log_p(parameters, points[part], dimension, shape), places.reshape(-1, _TILE)
        ).ravel()

    def member(part: tuple[Learner, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        learner, key, last = part

        def train(extra: jax.Array, weight: jax.Array) -> jax.Array:
            none = jnp.int32(0)
            return learn(
                learner, (none, last), key, rows, (none, n), extra, weight, dimension, noise, rate, shape
            ).parameters

        trained = jax.vmap(train)(extras, weights)
        without = densities(trained[-1], index).reshape(index.shape)
        return jax.vmap(densities)(trained[:-1], index), without

    after, before = jax.lax.map(member, (learner, keys, steps))
    return jax.nn.logsumexp(after, axis=0) - jax.nn.logsumexp(before, axis=0)
