"""Block neural autoregressive flows: densities of tables by small monotone networks.

Source: De Cao, Titov and Aziz, "Block Neural Autoregressive Flow", UAI 2019, arXiv:1904.04676. A flow maps whitened
rows to standard normal ones by networks whose weight matrices are block lower triangular with positive diagonal blocks:
coordinate i of the output depends on the coordinates up to i and increases in i, so the log determinant is a sum of log
slopes, which are carried through the layers as logarithms.

Deviations: every flow is gated, ``z = g F(x) + (1 - g) x``, the last one too (without it tanh maps the line to an
interval and the density integrates to less than one); training rows carry Gaussian noise (Rothfuss et al.,
arXiv:1907.08982), for the likelihood of a table with repeated values has no upper bound; the best step is that with
the best loss on held-out rows; the density is the mean over an ensemble.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxaudit.runtime.checks import check_choice, check_int, check_real, require
from jaxaudit.runtime.chunks import bucket, pad_rows, rows_per_chunk
from jaxaudit.tables.blocks import table_size
from jaxaudit.tables.density import as_rows, distinct_rows, pad_columns, precision_scope

__all__ = [
    "BNAF",
    "BNAFConfig",
    "Learner",
    "Shape",
    "bnaf_log_density",
    "fit_bnaf",
    "learn",
    "log_p",
    "start",
    "transform",
]

_EVERY = 25
"""Steps between two looks at the held-out rows."""


class Shape(NamedTuple):
    """What a compiled program depends on: layers and units of the networks, flows, rows of a batch."""

    layers: int
    hidden: int
    flows: int
    batch: int


@dataclass(frozen=True)
class BNAFConfig:
    """Settings of the flows and of the attacks that use them.

    Attributes:
        layers: hidden layers of a flow's network.
        hidden: units per dimension in a hidden layer.
        flows: flows in a row, the order of the coordinates reversed in between.
        steps: most training steps.
        learning_rate: of Adam.
        batch: rows of a step, drawn with replacement.
        validation: share of the rows held out to choose the step; a different one for each member of the ensemble.
        patience: training ends after as many steps without a better held-out loss.
        noise: sd of the noise on training and held-out rows, in whitened units, >= 0. With 0 the density of a table
            with repeated values grows without bound.
        ensemble: flows from different seeds, whose densities are averaged.
        precision: of the training, "float32" or "float64". Densities, and the influence of a record, which is a small
            difference of two, are in float64.
        influence: how a record enters the reference in ``gen_lra_bnaf``: "finetune", a few more steps, or "refit", all
            training anew.
        finetune_steps: steps of "finetune".
        finetune_rate: their learning rate.
        finetune_batch: rows of their batches; the same with and without the record, so that few will do.
        k: nearest released rows that enter a record's ``gen_lra_bnaf``.
        neighbours: "encoded" or "whitened", as in Gen-LRA.
    """

    layers: int = 1
    hidden: int = 8
    flows: int = 2
    steps: int = 2000
    learning_rate: float = 5e-3
    batch: int = 128
    validation: float = 0.15
    patience: int = 300
    noise: float = 0.1
    ensemble: int = 4
    precision: str = "float32"
    influence: str = "finetune"
    finetune_steps: int = 10
    finetune_rate: float = 1e-3
    finetune_batch: int = 32
    k: int = 10
    neighbours: str = "encoded"

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "flows", "steps", "batch", "patience", "ensemble", "finetune_steps",
                     "finetune_batch", "k"):  # fmt: skip
            check_int(f"bnaf.{name}", getattr(self, name), 1)
        for name in ("learning_rate", "finetune_rate"):
            check_real(f"bnaf.{name}", getattr(self, name), 0, 1, open_low=True)
        check_real("bnaf.validation", self.validation, 0, 0.9, open_low=True)
        check_real("bnaf.noise", self.noise, 0, 10)
        check_choice("bnaf.precision", self.precision, ("float32", "float64"))
        check_choice("bnaf.influence", self.influence, ("finetune", "refit"))
        check_choice("bnaf.neighbours", self.neighbours, ("encoded", "whitened"))

    @property
    def shape(self) -> Shape:
        """What is static in a compiled program."""
        return Shape(self.layers, self.hidden, self.flows, self.batch)


class Learner(NamedTuple):
    """Parameters in one vector (p,) and the state of Adam; an ensemble has a leading axis."""

    parameters: Any
    memory: Any


@dataclass(frozen=True)
class BNAF:
    """A fitted density.

    Attributes:
        learner: parameters and optimiser at each member's best step, leading axis the ensemble.
        dimension: e, columns of the rows.
        log_volume: what undoes the whitening's Jacobian.
        best_step: (ensemble,) the step with the best held-out loss.
        loss: (ensemble,) that loss: minus the mean log density of the held-out rows, noise included, whitened.
        shape: of the networks.
    """

    learner: Learner
    dimension: int
    log_volume: float
    best_step: np.ndarray
    loss: np.ndarray
    shape: Shape


def fit_bnaf(
    rows: np.ndarray, key: jax.Array, config: BNAFConfig | None = None, *, log_volume: float = 0.0
) -> BNAF:  # fmt: skip
    """Fit an ensemble of flows to whitened rows.

    The row order changes nothing; the same key gives the same flows.

    Args:
        rows: (n, e) numbers, mean about 0 and covariance about the identity, n >= 2.
        key: of initial weights, held-out rows, batches and noise.
        config: settings; None for the defaults.
        log_volume: subtracted from log densities: ``Basis.log_volume`` of the whitening.

    Raises:
        InputError: fewer than two rows, values that are not finite.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(100, 1))
        >>> flow = fit_bnaf(rows, jax.random.key(0), BNAFConfig(steps=100, ensemble=1))
        >>> grid = np.linspace(-9, 9, 2001)
        >>> round(float(np.trapezoid(np.exp(bnaf_log_density(flow, grid[:, None])), grid)), 3)
        1.0
    """
    config = config or BNAFConfig()
    rows = as_rows("rows", rows)
    require(len(rows) >= 2, "rows", "have at least 2 rows", len(rows))
    rows = np.repeat(*distinct_rows(rows), axis=0)
    n, e = rows.shape
    size = table_size(n)
    with precision_scope(config.precision) as dtype:
        table = pad_rows(pad_columns(rows).astype(dtype), size)
        numbers = {
            "rounds": np.int32(-(-config.steps // _EVERY)), "patience": np.int32(-(-config.patience // _EVERY)),
            "held_out": np.int32(min(n - 1, max(1, round(config.validation * n)))), "noise": dtype(config.noise),
            "rate": dtype(config.learning_rate),
        }  # fmt: skip
        rng = _host_rng(key, 1)
        orders = np.stack([np.append(rng.permutation(n), np.arange(n, size)) for _ in range(config.ensemble)])
        held_out = min(size, math.ceil(config.validation * size) + 1)
        blur = config.noise * rng.normal(size=(config.ensemble, held_out, table.shape[1]))
        learner, step, loss = _fit(
            jax.random.split(key, config.ensemble), start(key, table.shape[1], config, dtype),
            table[orders], table[orders[:, :held_out]] + blur.astype(dtype), np.int32(n), np.int32(e), numbers,
            shape=config.shape,
        )  # fmt: skip
        learner, step, loss = jax.device_get((learner, step, loss))
    return BNAF(learner, e, float(log_volume), step, loss.astype(np.float64), config.shape)


def bnaf_log_density(flow: BNAF, points: np.ndarray) -> np.ndarray:
    """Log density at whitened ``points`` (p, e), shape (p,), float64: the log of the ensemble's mean density.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(100, 2))
        >>> flow = fit_bnaf(rows, jax.random.key(0), BNAFConfig(steps=50, ensemble=1))
        >>> inside, outside = bnaf_log_density(flow, np.array([[0.0, 0.0], [5.0, 5.0]]))
        >>> bool(inside > outside)
        True
    """
    points = as_rows("points", points, flow.dimension)
    with precision_scope("float64") as dtype:
        table = pad_rows(pad_columns(points), bucket(len(points)))
        parameters = flow.learner.parameters.astype(dtype)
        chunk = min(len(table), 1 << rows_per_chunk(64 * flow.shape.hidden * table.shape[1], 4 << 20).bit_length() - 1)
        table = pad_rows(table, -(-len(table) // chunk) * chunk)
        found = _log_mean(parameters, table, np.int32(flow.dimension), shape=flow.shape, chunk=chunk)
        return np.asarray(found)[: len(points)] - flow.log_volume


# ---------------------------------------------------------------- networks


def _template(columns: int, shape: Shape) -> dict[str, tuple[int, ...]]:
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


def start(key: jax.Array, columns: int, config: BNAFConfig, dtype: Any) -> Learner:
    """Initial parameters of the ensemble; drawn on the host, which compiles nothing.

    Thresholds of hidden units are spread over the range of a whitened column; weights between columns start small,
    so that the first density is nearly one of independent columns.
    """
    rng = _host_rng(key, 0)
    scales = {"own": 0.3, "other": 0.1, "shift": 1.0}
    members = []
    for _ in range(config.ensemble):
        parts = []
        for name, size in _template(columns, config.shape).items():
            scale = 0.0 if name == f"shift{config.layers}" else scales.get(name.rstrip("0123456789"), 0.0)
            parts.append(scale * rng.normal(size=math.prod(size)))
        members.append(np.concatenate(parts))
    parameters = np.stack(members).astype(dtype)
    memory = optax.ScaleByAdamState(np.zeros(config.ensemble, np.int32), parameters * 0, parameters * 0)
    return Learner(parameters, memory)


def _host_rng(key: jax.Array, stream: int) -> np.random.Generator:
    return np.random.default_rng([stream, int(jax.random.bits(key, dtype=jnp.uint32))])


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
    for name, size in _template(columns, shape).items():
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
def _log_mean(
    parameters: jax.Array, points: jax.Array, dimension: jax.Array, *, shape: Shape, chunk: int
) -> jax.Array:  # fmt: skip
    """(p,): log of the mean over members (ensemble, ...) of the densities at points (p, d), p a multiple of chunk."""

    def some(part: jax.Array) -> jax.Array:
        each = jax.vmap(lambda member: log_p(member, part, dimension, shape))(parameters)
        return jax.nn.logsumexp(each, axis=0) - math.log(len(parameters))

    return jax.lax.map(some, points.reshape(-1, chunk, points.shape[1])).ravel()


# ---------------------------------------------------------------- training


def learn(
    learner: Learner, steps: tuple[Any, Any], key: jax.Array, rows: jax.Array, among: tuple[Any, Any],
    extra: jax.Array, weight: Any, dimension: jax.Array, noise: jax.Array, rate: jax.Array, shape: Shape,
) -> Learner:  # fmt: skip
    """Steps ``steps[0] <= t < steps[1]`` of Adam on ``(1 - weight) mean(batch) + weight extra``; traceable.

    The batch of step t is drawn from ``rows[among[0]:among[1]]`` by the key and t alone, and so is the noise. A record
    that joins n others has weight 1 / (n + 1): the mean over all batches in which it may occur, without the luck of
    being drawn. With weight 0 the same steps are taken on the same batches without it.
    """
    adam = optax.scale_by_adam()

    def loss(parameters: jax.Array, batch: jax.Array) -> jax.Array:
        values = log_p(parameters, batch, dimension, shape)
        return -(1 - weight) * jnp.mean(values[:-1]) - weight * values[-1]

    def step(t: jax.Array, learner: Learner) -> Learner:
        drawn = jax.random.fold_in(key, t)
        place = jax.random.uniform(drawn, (shape.batch,), rows.dtype) * (among[1] - among[0])
        chosen = jnp.minimum(among[0] + place.astype(jnp.int32), among[1] - 1)
        batch = jnp.concatenate([rows[chosen], extra[None]])
        batch = batch + noise * jax.random.normal(jax.random.fold_in(drawn, 1), batch.shape, rows.dtype)
        update, memory = adam.update(jax.grad(loss)(learner.parameters, batch), learner.memory)
        return Learner(learner.parameters - rate * update, memory)

    return jax.lax.fori_loop(*steps, step, learner)


@partial(jax.jit, static_argnames="shape")
def _fit(
    keys: jax.Array, first: Learner, tables: jax.Array, held_out: jax.Array, n: jax.Array, dimension: jax.Array,
    numbers: Any, *, shape: Shape,
) -> tuple[Learner, jax.Array, jax.Array]:  # fmt: skip
    """Each member at its best step, that step, and its held-out loss; all but the numbers have a member axis.

    A member's table (size, d) holds its rows in its own order, the first ``numbers["held_out"]`` of n held out;
    ``held_out`` are these with their noise, and some more that do not count.
    """
    dtype = tables.dtype

    def member(key: jax.Array, learner: Learner, rows: jax.Array, held: jax.Array) -> tuple[Learner, Any, Any]:
        share = jnp.where(jnp.arange(len(held)) < numbers["held_out"], 1.0 / numbers["held_out"], 0.0).astype(dtype)

        def more(state: Any) -> Any:
            number, learner, best, best_loss, best_number = state
            steps, among = (number * _EVERY, (number + 1) * _EVERY), (numbers["held_out"], n)
            learner = learn(
                learner, steps, key, rows, among, rows[0], jnp.zeros((), dtype), dimension, numbers["noise"],
                numbers["rate"], shape,
            )  # fmt: skip
            loss = -jnp.sum(share * log_p(learner.parameters, held, dimension, shape))
            better = loss < best_loss
            best = jax.tree.map(lambda new, old: jnp.where(better, new, old), learner, best)
            best_number = jnp.where(better, number + 1, best_number)
            return number + 1, learner, best, jnp.where(better, loss, best_loss), best_number

        def go_on(state: Any) -> jax.Array:
            return (state[0] < numbers["rounds"]) & (state[0] - state[4] < numbers["patience"])

        state = (jnp.int32(0), learner, learner, jnp.asarray(jnp.inf, dtype), jnp.int32(0))
        _, _, best, best_loss, best_number = jax.lax.while_loop(go_on, more, state)
        return best, best_number * _EVERY, best_loss

    return jax.vmap(member)(keys, first, tables, held_out)
