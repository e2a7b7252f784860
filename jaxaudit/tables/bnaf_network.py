"""The networks of block neural autoregressive flows: rows to standard normal ones, with log slopes; traceable.

Parameters of one member of an ensemble are one vector (p,), whose parts ``template`` names. Source and deviations:
``jaxaudit.tables.bnaf``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Shape", "log_mean", "log_p", "template", "transform"]


class Shape(NamedTuple):
    """What a compiled program depends on: layers and units of the networks, flows, rows of a batch."""

    layers: int
    hidden: int
    flows: int
    batch: int


def template(columns: int, shape: Shape) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the parameters; the flows' are stacked."""
    units = [1, *[shape.hidden] * shape.layers, 1]
    found: dict[str, tuple[int, ...]] = {"gate": (shape.flows,)}
    for layer, (inside, outside) in enumerate(pairwise(units)):
        found |= {
            f"own{layer}": (shape.flows, columns, outside, inside),
            f"other{layer}": (shape.flows, columns, outside, columns, inside),
            f"size{layer}": (shape.flows, columns, outside),
            f"shift{layer}": (shape.flows, columns, outside),
        }
    return found


def log_p(parameters: jax.Array, rows: jax.Array, dimension: jax.Array, shape: Shape) -> jax.Array:
    """Log density (b,) of one member at rows (b, d), of which the first ``dimension`` columns count; traceable."""
    z, slopes = transform(parameters, rows, dimension, shape)
    terms = slopes - 0.5 * z**2 - 0.5 * math.log(2 * math.pi)
    return jnp.sum(jnp.where(jnp.arange(rows.shape[1]) < dimension, terms, 0.0), axis=1)


def transform(
    parameters: jax.Array, rows: jax.Array, dimension: jax.Array, shape: Shape
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Rows (b, d) mapped to standard normal ones (b, d), and the log slopes (b, d) whose sum is the log determinant.

    The order of the first ``dimension`` coordinates is reversed after each flow; the others pad and stay behind them.
    """
    columns = rows.shape[1]
    place = jnp.arange(columns)
    order = jnp.where(place < dimension, dimension - 1 - place, place)

    def flow(state: tuple[jax.Array, jax.Array], part: Mapping[str, jax.Array]) -> tuple[Any, None]:
        z, total = state
        units, slopes = z[..., None], jnp.zeros_like(z)[..., None]
        for layer in range(shape.layers + 1):
            if layer:
                slopes = slopes + 2.0 * (math.log(2.0) - units - jax.nn.softplus(-2.0 * units))  # log(1 - tanh^2)
                units = jnp.tanh(units)
            units, slopes = _block_layer(units, slopes, *(part[f"{name}{layer}"] for name in _PARTS))
        share, rest = jax.nn.log_sigmoid(part["gate"]), jax.nn.log_sigmoid(-part["gate"])
        z = jnp.exp(share) * units[..., 0] + jnp.exp(rest) * z
        total = total + jnp.logaddexp(share + slopes[..., 0], rest)
        return (z[:, order], total[:, order]), None

    parts, used = {}, 0
    for name, size in template(columns, shape).items():
        parts[name] = parameters[used : used + math.prod(size)].reshape(size)
        used += math.prod(size)
    return jax.lax.scan(flow, (rows, jnp.zeros_like(rows)), parts)[0]


_PARTS = ("own", "other", "size", "shift")


def _block_layer(
    units: jax.Array, slopes: jax.Array, own: jax.Array, other: jax.Array, size: jax.Array, shift: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Units (b, d, inside) and log slopes through one weight-normalised block triangular layer: (b, d, outside).

    Rows of the weight matrix are ``exp(size) v / |v|``, v = (other columns before, exp(own) of this one).
    """
    columns, outside = own.shape[:2]
    before = jnp.tril(jnp.ones((columns, columns), units.dtype), -1)
    positive, other = jnp.exp(own), other * before[:, None, :, None]
    gain = size - 0.5 * jnp.log(jnp.sum(positive**2, axis=2) + jnp.sum(other**2, axis=(2, 3)))
    across = units.reshape(len(units), -1) @ other.reshape(columns * outside, -1).T
    within = jnp.einsum("bdi,doi->bdo", units, positive)
    top = jax.lax.stop_gradient(jnp.max(slopes, axis=2, keepdims=True))
    slopes = top + jnp.log(jnp.einsum("bdi,doi->bdo", jnp.exp(slopes - top), positive)) + gain
    return jnp.exp(gain) * (across.reshape(within.shape) + within) + shift, slopes


@partial(jax.jit, static_argnames=("shape", "chunk"))
def log_mean(
    parameters: jax.Array, points: jax.Array, dimension: jax.Array, *, shape: Shape, chunk: int
) -> jax.Array:  # fmt: skip
    """(p,): log of the mean over members (ensemble, ...) of the densities at points (p, d), p a multiple of chunk."""

    def some(part: jax.Array) -> jax.Array:
        each = jax.vmap(lambda member: log_p(member, part, dimension, shape))(parameters)
        return jax.nn.logsumexp(each, axis=0) - math.log(len(parameters))

    return jax.lax.map(some, points.reshape(-1, chunk, points.shape[1])).ravel()
