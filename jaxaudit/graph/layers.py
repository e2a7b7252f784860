"""Layers of the graph models and their two-layer assemblies, as Flax modules.

All are initialised as their PyTorch Geometric namesakes and send values along edges through ``neighbour_sum`` only.
``weights`` are what a model's ``prepare`` makes of the visible edges. Flax draws initial weights by the names of
modules and parameters, so that renaming one changes the models of every seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxaudit.graph.propagate import neighbour_softmax, neighbour_sum
from jaxaudit.graph.structure import SparseFeatures, Structure, multiply

__all__ = [
    "GCN",
    "AttentionConvolution",
    "Dropout",
    "Features",
    "GinConvolution",
    "Linear",
    "SageConvolution",
    "TwoLayers",
    "drop",
]

Features = jax.Array | SparseFeatures
Dropout = tuple[jax.Array, float]


def drop(hidden: jax.Array, dropout: Dropout | None) -> jax.Array:
    """Zero a random share of the activations and scale the others by 1/(1 − rate), which keeps the mean.

    Placed where node-level audits of two-layer models have it: on the hidden activations, between the ReLU and the
    second layer (``BaseGNN.forward`` of the public MIA-audit-GNN, arXiv:2505.24089); neither on the input features nor
    on attention weights, unlike the GAT of Veličković et al.

    Args:
        hidden: (n, h) float.
        dropout: (key, rate in [0, 1)), or None, which returns ``hidden`` itself.

    Returns:
        (n, h) float; row i depends on the key and on i, so that appended rows change nothing.

    Example:
        >>> drop(jnp.ones((1, 4)), (jax.random.key(1), 0.5)).tolist()
        [[2.0, 0.0, 2.0, 2.0]]
    """
    if dropout is None:
        return hidden
    key, rate = dropout
    return jnp.where(jax.random.bernoulli(key, 1 - rate, hidden.shape), hidden / (1 - rate), 0)


def _fan_in(inputs: int) -> Callable[..., jax.Array]:
    """U(±1/√inputs): kernel and bias of torch.nn.Linear."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -1, 1) / jnp.sqrt(jnp.asarray(inputs, dtype))

    return init


class _GraphConvolution(nn.Module):
    """Â·X·W + b with Glorot-uniform W and zero b; multiplies first, so that hidden columns travel."""

    inputs: int
    outputs: int

    @nn.compact
    def __call__(self, features: Features, structure: Structure, weights: jax.Array) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.glorot_uniform(), (self.inputs, self.outputs))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.outputs,))
        return neighbour_sum(structure.pattern, weights, multiply(features, kernel)) + bias


class SageConvolution(nn.Module):
    """X·W_self + mean over neighbours(X)·W_neighbour + b; one product with both kernels side by side."""

    inputs: int
    outputs: int

    @nn.compact
    def __call__(self, features: Features, structure: Structure, weights: jax.Array) -> jax.Array:
        shape, init = (self.inputs, self.outputs), _fan_in(self.inputs)
        own, neighbour = self.param("kernel_self", init, shape), self.param("kernel_neighbour", init, shape)
        bias = self.param("bias", init, (self.outputs,))
        mine, sent = jnp.split(multiply(features, jnp.concatenate([own, neighbour], axis=1)), 2, axis=1)
        return mine + neighbour_sum(structure.pattern, weights, sent) + bias


class GinConvolution(nn.Module):
    """MLP((1 + 0)·x + sum over neighbours), MLP = linear, ReLU, linear; the first product is done before the sum."""

    inputs: int
    hidden: int
    outputs: int

    @nn.compact
    def __call__(self, features: Features, structure: Structure, weights: jax.Array) -> jax.Array:
        kernel = self.param("kernel", _fan_in(self.inputs), (self.inputs, self.hidden))
        bias = self.param("bias", _fan_in(self.inputs), (self.hidden,))
        second = self.param("kernel_out", _fan_in(self.hidden), (self.hidden, self.outputs))
        second_bias = self.param("bias_out", _fan_in(self.hidden), (self.outputs,))
        hidden = nn.relu(neighbour_sum(structure.pattern, weights, multiply(features, kernel)) + bias)
        return multiply(hidden, second) + second_bias


class AttentionConvolution(nn.Module):
    """Σ_j softmax_j(LeakyReLU(a_from·W x_j + a_to·W x_i)) W x_j per head, heads side by side, + b.

    j runs over the visible neighbours and i itself; slope .2; Glorot-uniform W and a, zero b.
    """

    inputs: int
    outputs: int  # of one head
    heads: int

    @nn.compact
    def __call__(self, features: Features, structure: Structure, weights: jax.Array) -> jax.Array:
        glorot = nn.initializers.glorot_uniform()
        kernel = self.param("kernel", glorot, (self.inputs, self.heads * self.outputs))
        sends = self.param("attention_from", glorot, (self.heads, self.outputs))
        receives = self.param("attention_to", glorot, (self.heads, self.outputs))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.heads * self.outputs,))
        # Heads come first: with nodes first, the backward pass takes twice as long on CPUs.
        values = multiply(features, kernel).reshape(-1, self.heads, self.outputs).transpose(1, 0, 2)  # (H, n, F)
        exact = jax.lax.Precision.HIGHEST
        sent, received = (jnp.einsum("hnf,hf->nh", values, a, precision=exact) for a in (sends, receives))
        scores = nn.leaky_relu(sent[structure.pattern.columns] + received[structure.pattern.rows], 0.2)
        attention = neighbour_softmax(structure.pattern, weights, scores)
        out = jax.vmap(neighbour_sum, in_axes=(None, 1, 0))(structure.pattern, attention, values)
        return out.transpose(1, 0, 2).reshape(-1, self.heads * self.outputs) + bias


class Linear(nn.Module):
    """X·W + b, initialised like a graph convolution."""

    inputs: int
    outputs: int

    @nn.compact
    def __call__(self, features: Features, structure: Structure, weights: jax.Array) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.glorot_uniform(), (self.inputs, self.outputs))
        return multiply(features, kernel) + self.param("bias", nn.initializers.zeros_init(), (self.outputs,))


class GCN(nn.Module):
    """Two graph convolutions with a ReLU between."""

    features: int
    hidden: int
    classes: int

    @nn.compact
    def __call__(
        self, features: Features, structure: Structure, weights: jax.Array, dropout: Dropout | None = None
    ) -> jax.Array:
        hidden = nn.relu(_GraphConvolution(self.features, self.hidden)(features, structure, weights))
        return _GraphConvolution(self.hidden, self.classes)(drop(hidden, dropout), structure, weights)


class TwoLayers(nn.Module):
    """Two layers with a ReLU between."""

    first: nn.Module
    second: nn.Module

    def __call__(
        self, features: Features, structure: Structure, weights: jax.Array, dropout: Dropout | None = None
    ) -> jax.Array:
        hidden = nn.relu(self.first(features, structure, weights))
        return self.second(drop(hidden, dropout), structure, weights)
