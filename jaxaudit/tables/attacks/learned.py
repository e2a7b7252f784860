"""Attacks that learn to tell the release from the reference: a random forest, and LOGAN's discriminator.

Both see the two classes in equal shares, whatever the sizes of the tables, and the rows in lexicographic
order, so that the row order of a table cannot reach the random number generators.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxaudit.runtime.checks import check_int, check_real, require
from jaxaudit.runtime.chunks import bucket, chunked_map, pad_rows, rows_per_chunk
from jaxaudit.tables.density import as_rows, distinct_rows, pad_columns, precision_scope

__all__ = ["ClassifierConfig", "LoganConfig", "classifier", "logan"]

_LIMIT = 10.0
"""Standardised values are cut here: beyond it a network extrapolates without evidence."""

_TOGETHER = 2**28
"""Most numbers in the largest arrays of the discriminators that are trained together."""

_STEPS = 2**31 - 1
"""Steps are counted in int32."""


@dataclass(frozen=True)
class ClassifierConfig:
    """Settings of the random forest.

    Attributes:
        forests: forests, each on its own balanced subset of the rows; in [1, 1000].
        trees: trees of each forest, in [1, 10_000].
        leaf: fewest rows in a leaf, in [1, 1e6].
        rows: most rows of each table in one subset, in [1, 1e6]; bounds time and memory of large tables.
    """

    forests: int = 10
    trees: int = 20
    leaf: int = 1
    rows: int = 10_000

    def __post_init__(self) -> None:
        most = {"forests": 1000, "trees": 10_000, "leaf": 1_000_000, "rows": 1_000_000}
        for name, high in most.items():
            check_int(f"classifier.{name}", getattr(self, name), 1, high)


@dataclass(frozen=True)
class LoganConfig:
    """Settings of LOGAN; there is no early stopping, so no validation rows are spent and no noise is chased.

    Attributes:
        hidden: width of the two hidden layers, in [1, 4096].
        epochs: passes over the larger table, in [1, 1e6].
        learning_rate: of Adam, in (0, 1].
        batch: rows of each table in a step, in [1, 65_536]; drawn with replacement.
        ensemble: discriminators from different seeds, whose scores are averaged; in [1, 1000]. They are trained side
            by side: ``ensemble * hidden * max(hidden, 2 batch)`` is at most 2^28 (1 GiB in float32).
    """

    hidden: int = 64
    epochs: int = 100
    learning_rate: float = 3e-3
    batch: int = 64
    ensemble: int = 4

    def __post_init__(self) -> None:
        most = {"hidden": 4096, "epochs": 1_000_000, "batch": 65_536, "ensemble": 1000}
        for name, high in most.items():
            check_int(f"logan.{name}", getattr(self, name), 1, high)
        together = _TOGETHER // (self.hidden * max(self.hidden, 2 * self.batch))
        rule = f"be at most {together} with hidden={self.hidden} and batch={self.batch}"
        require(self.ensemble <= together, "logan.ensemble", rule, self.ensemble)
        check_real("logan.learning_rate", self.learning_rate, 0, 1, open_low=True)


def classifier(
    targets: np.ndarray, synthetic: np.ndarray, reference: np.ndarray, config: ClassifierConfig | None = None, *,
    key: jax.Array | None = None,
) -> np.ndarray:  # fmt: skip
    """Probability that a record is synthetic, by random forests on reference (0) and release (1).

    Class weights do not balance trees that are grown to the end: their leaves are pure, and the larger table owns more
    of the space. So every forest gets as many rows of the one table as of the other. A target that is a row of
    the reference was learned as class 0 and scores low, as a row of the release scores high; one that is both is
    near 1/2.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows.
        reference: (r, d) independent rows of the same population.
        config: settings; None for the defaults.
        key: of the subsets and the forests; None: key 0.

    Returns:
        (n,) float64 in [0, 1], the mean over forests of the trees' mean; higher is more member-like.

    Raises:
        InputError: tables of different width, values that are not finite.

    Example:
        >>> s, r = np.array([[0.0], [1.0], [2.0]]), np.array([[7.0], [8.0], [9.0]])
        >>> low, high = classifier(np.array([[9.0], [0.0]]), s, r, ClassifierConfig(forests=2))
        >>> bool(low < 0.5 < high)
        True
    """
    from sklearn.ensemble import RandomForestClassifier

    config = config or ClassifierConfig()
    x, s, r = _standardised(targets, synthetic, reference)
    size = min(len(s), len(r), config.rows)
    rng = _host_rng(key)
    scores = np.zeros(len(x))
    for _ in range(config.forests):
        rows = np.concatenate([_subset(r, size, rng), _subset(s, size, rng)])
        forest = RandomForestClassifier(
            config.trees, min_samples_leaf=config.leaf, random_state=int(rng.integers(2**31)), n_jobs=-1
        )
        forest.fit(rows, np.repeat([0, 1], size))
        # one thread: several would add the trees up in the order in which they finish
        scores += forest.set_params(n_jobs=1).predict_proba(x)[:, 1]
    return scores / config.forests


def logan(
    targets: np.ndarray, synthetic: np.ndarray, reference: np.ndarray, config: LoganConfig | None = None, *,
    key: jax.Array | None = None,
) -> np.ndarray:  # fmt: skip
    """``logit_S(x) - logit_R(x)`` of discriminators of release against reference, averaged over an ensemble.

    Source: Hayes, Melis, Danezis and De Cristofaro, "LOGAN: Membership Inference Attacks Against Generative Models",
    PoPETs 2019(1). A step takes equally many random rows of both tables. Training is in float32, scoring in float64.
    A target that is a row of the reference was learned as such: its score is finite and tends to be lower.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows.
        reference: (r, d) independent rows of the same population.
        config: settings; None for the defaults.
        key: of the initial weights and the batches; None: key 0.

    Returns:
        (n,) float64 log-odds; higher is more member-like.

    Raises:
        InputError: tables of different width, values that are not finite.

    Example:
        >>> s, r = np.array([[0.0], [1.0], [2.0]]), np.array([[7.0], [8.0], [9.0]])
        >>> low, high = logan(np.array([[9.0], [0.0]]), s, r, LoganConfig(hidden=8))
        >>> bool(low < 0 < high)
        True
    """
    config = config or LoganConfig()
    x, s, r = _standardised(targets, synthetic, reference)
    key = jax.random.key(0) if key is None else key
    steps = config.epochs * -(-max(len(s), len(r)) // config.batch)
    require(steps <= _STEPS, "logan.epochs", f"make at most {_STEPS} steps", f"{config.epochs}, {steps} steps")
    with precision_scope("float32") as dtype:
        tables = tuple(pad_rows(pad_columns(table).astype(dtype), bucket(len(table))) for table in (r, s))
        sizes = np.array([len(r), len(s)], np.int32)
        params = jax.device_get(_train(key, tables, sizes, np.int32(steps), config=config))
    with precision_scope("float64") as dtype:
        params = jax.tree.map(dtype, params)
        points = pad_rows(pad_columns(x), bucket(len(x)))
        chunk = rows_per_chunk(8 * config.ensemble * (2 * config.hidden + points.shape[1]))
        return np.asarray(_log_odds(params, points, hidden=config.hidden, chunk=chunk))[: len(x)]


def _standardised(targets: Any, synthetic: Any, reference: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The three tables in units of the reference's columns (of the release's where the reference is constant)."""
    x = as_rows("targets", targets)
    s = np.repeat(*distinct_rows(as_rows("synthetic", synthetic, x.shape[1])), axis=0)
    r = np.repeat(*distinct_rows(as_rows("reference", reference, x.shape[1])), axis=0)
    centre, largest = r.mean(axis=0), np.maximum(np.abs(r).max(axis=0), np.abs(s).max(axis=0))
    scale = np.ones(x.shape[1])
    for table in (s, r):
        deviation = table.std(axis=0)
        scale = np.where(deviation > 1e-12 * largest, deviation, scale)
    x, s, r = (np.clip((table - centre) / scale, -_LIMIT, _LIMIT) for table in (x, s, r))
    return x, s, r


def _host_rng(key: jax.Array | None) -> np.random.Generator:
    key = jax.random.key(0) if key is None else key
    return np.random.default_rng(int(jax.random.bits(key, dtype=jnp.uint32)))


def _subset(table: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """``size`` rows without replacement, in the table's order."""
    return table[np.sort(rng.permutation(len(table))[:size])]


class _Discriminator(nn.Module):
    """Two hidden layers and a logit for each class: reference, release."""

    hidden: int

    @nn.compact
    def __call__(self, rows: jax.Array) -> jax.Array:
        for _ in range(2):
            rows = nn.relu(nn.Dense(self.hidden)(rows))
        return nn.Dense(2)(rows)


def _batch(key: jax.Array, tables: tuple[jax.Array, jax.Array], sizes: jax.Array, batch: int) -> jax.Array:
    """(2 batch, d): rows of the reference, then as many of the release, with replacement."""
    drawn = [jax.random.randint(part, (batch,), 0, sizes[i]) for i, part in enumerate(jax.random.split(key))]
    return jnp.concatenate([table[rows] for table, rows in zip(tables, drawn, strict=True)])


@partial(jax.jit, static_argnames="config")
def _train(
    key: jax.Array, tables: tuple[jax.Array, jax.Array], sizes: jax.Array, steps: jax.Array, *, config: LoganConfig
) -> Any:
    """Parameters of the ensemble, leading axis ``config.ensemble``."""
    model, optimiser = _Discriminator(config.hidden), optax.adam(config.learning_rate)
    labels = jnp.repeat(jnp.arange(2), config.batch)

    def loss(params: Any, rows: jax.Array) -> jax.Array:
        logits = model.apply(params, rows)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def member(key: jax.Array) -> Any:
        start, draw = jax.random.split(key)
        params = model.init(start, tables[0][:1])

        def step(number: jax.Array, state: tuple[Any, Any]) -> tuple[Any, Any]:
            params, memory = state
            rows = _batch(jax.random.fold_in(draw, number), tables, sizes, config.batch)
            updates, memory = optimiser.update(jax.grad(loss)(params, rows), memory)
            return optax.apply_updates(params, updates), memory

        return jax.lax.fori_loop(0, steps, step, (params, optimiser.init(params)))[0]

    return jax.vmap(member)(jax.random.split(key, config.ensemble))


@partial(jax.jit, static_argnames=("hidden", "chunk"))
def _log_odds(params: Any, rows: jax.Array, *, hidden: int, chunk: int) -> jax.Array:
    model = _Discriminator(hidden)

    def one(row: jax.Array) -> jax.Array:
        logits = jax.vmap(lambda member: model.apply(member, row))(params)
        return jnp.mean(logits[:, 1] - logits[:, 0])

    return chunked_map(one, rows, chunk=chunk)
