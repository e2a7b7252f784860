"""The local-overfitting model, to draw from: a population, training rows, and a release with near copies of them.

Ward, Wang & Cheng (arXiv:2508.21146): released rows come from ``(1 - eps) P + eps N(x_train, rho^2 I)``, the training
row x_train being one of N at random. ``generators.mixture`` is its likeness for real tables, where P is not
known and a fit of the members stands in for it; here P is given, so that the formulas of ``overfit_theory`` hold.
All in standard deviations of P: mean zero, covariance I.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.runtime.checks import check_choice
from jaxaudit.tables.density import precision_scope

__all__ = ["POPULATIONS", "Tables", "draw_population", "overfit_tables"]

POPULATIONS = ("normal", "mixture")
"""Populations P that can be drawn, both with mean zero and covariance I."""

_APART = 0.9
"""Distance of the two components of the mixture from the origin."""


def draw_population(key: jax.Array, rows: int, d: int, population: str = "normal") -> jax.Array:
    """``rows`` records of P, (rows, d); traceable.

    "normal" is N(0, I). "mixture" is two normals in equal shares, .9 on either side of the origin along the diagonal
    and as much narrower along it, so that the covariance stays I: two overlapping clusters.

    Example:
        >>> draw = jax.jit(draw_population, static_argnums=(1, 2, 3))
        >>> draw(jax.random.key(0), 4, 2, "mixture").shape
        (4, 2)
    """
    check_choice("population", population, POPULATIONS)
    shape, side = jax.random.split(key)
    z = jax.random.normal(shape, (rows, d))
    if population == "normal":
        return z
    along = z.sum(axis=1) / np.sqrt(d)
    moved = np.sqrt(1 - _APART**2) * along + _APART * jax.random.rademacher(side, (rows,))
    return z + ((moved - along) / np.sqrt(d))[:, None]


class Tables(NamedTuple):
    """One replication, float64.

    Attributes:
        members: (scored, d) training rows.
        non_members: (scored, d) rows of P that nothing was trained on.
        synthetic: (m, d) the release.
        reference: (n, d) rows of P for the attacker.
    """

    members: np.ndarray
    non_members: np.ndarray
    synthetic: np.ndarray
    reference: np.ndarray


def overfit_tables(
    key: jax.Array, eps: float, rho: float, *, d: int = 5, n: int = 500, train: int = 500, release: int = 500,
    scored: int = 250, population: str = "normal",
) -> Tables:  # fmt: skip
    """Draw one replication of the model; the first ``scored`` training rows are the members.

    Args:
        key: source of the draws.
        eps: share of near copies, in [0, 1].
        rho: their standard deviation, >= 0.
        d: columns.
        n: rows of the reference.
        train: training rows N.
        release: released rows m.
        scored: members, and non-members, <= N.
        population: P.

    Example:
        >>> tables = overfit_tables(jax.random.key(0), 1.0, 0.0, d=2, n=60, train=60, release=60, scored=60)
        >>> copied = (tables.synthetic[:, None] == tables.members).all(axis=2).any(axis=1)
        >>> bool(copied.all()), tables.reference.shape
        (True, (60, 2))
    """
    sizes = {"d": d, "n": n, "train": train, "release": release, "scored": scored, "population": population}
    with precision_scope("float64"):
        return Tables(*map(np.asarray, _tables(key, np.float64(eps), np.float64(rho), **sizes)))


@partial(jax.jit, static_argnames=("d", "n", "train", "release", "scored", "population"))
def _tables(
    key: jax.Array, eps: jax.Array, rho: jax.Array, *, d: int, n: int, train: int, release: int, scored: int,
    population: str,
) -> tuple[jax.Array, ...]:  # fmt: skip
    keys = jax.random.split(key, 7)
    people = draw_population(keys[0], train, d, population)
    others = draw_population(keys[1], scored, d, population)
    reference = draw_population(keys[2], n, d, population)
    fresh = draw_population(keys[3], release, d, population)
    source = jax.random.randint(keys[4], (release,), 0, train)
    near = people[source] + rho * jax.random.normal(keys[5], (release, d))
    copied = jax.random.uniform(keys[6], (release,)) < eps
    return people[:scored], others, jnp.where(copied[:, None], near, fresh), reference
