"""Sampling mechanisms as batched functions of per-draw keys; ``KERNELS`` is the registry that ``sampler=`` names."""

from __future__ import annotations

from collections.abc import Callable

import jax

from jaxaudit.graph.samplers.config import SamplerConfig, as_sampler
from jaxaudit.graph.samplers.fixed import bernoulli, degree, uniform
from jaxaudit.graph.samplers.snowball import snowball
from jaxaudit.graph.samplers.tables import Shape, Tables, make_tables
from jaxaudit.graph.samplers.walks import random_walk

__all__ = ["KERNELS", "SamplerConfig", "Shape", "Tables", "as_sampler", "make_tables"]

KERNELS: dict[str, Callable[[jax.Array, Tables, Shape], dict[str, jax.Array]]] = {
    "bernoulli": bernoulli,
    "degree": degree,
    "random_walk": random_walk,
    "snowball": snowball,
    "uniform": uniform,
}
"""Name -> (keys (B,), tables, shape) to memberships (B, n), traversed edges, sizes, exhausted, reseeds. ``custom`` is
not among them: it runs on the host."""
