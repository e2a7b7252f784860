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
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxaudit.runtime.checks import check_choice, check_int, check_real, require
from jaxaudit.runtime.chunks import bucket, pad_rows, rows_per_chunk
from jaxaudit.tables.blocks import table_size
from jaxaudit.tables.bnaf_network import Shape, log_mean, log_p, template, transform
from jaxaudit.tables.bnaf_training import EVERY, Learner, learn, train_members
from jaxaudit.tables.density import as_rows, distinct_rows, pad_columns, precision_scope

__all__ = [
    "BNAF",
    "BNAFConfig",
    "Learner",
    "Shape",
    "bnaf_log_density",
    "check_size",
    "fit_bnaf",
    "learn",
    "log_p",
    "start",
    "transform",
]

_NUMBERS = 2**29
"""Most numbers in the parameters, or in the activations, of an ensemble."""


@dataclass(frozen=True)
class BNAFConfig:
    """Settings of the flows and of the attacks that use them.

    Attributes:
        layers: hidden layers of a flow's network, in [1, 16].
        hidden: units per dimension in a hidden layer, in [1, 4096]. What the networks take together grows with the
            columns of the table and is checked when they are known, see ``check_size``.
        flows: flows in a row, the order of the coordinates reversed in between; in [1, 100].
        steps: most training steps, in [1, 1e7].
        learning_rate: of Adam.
        batch: rows of a step, drawn with replacement; in [1, 65_536].
        validation: share of the rows held out to choose the step; a different one for each member of the ensemble.
        patience: training ends after as many steps without a better held-out loss, in [1, 1e7].
        noise: sd of the noise on training and held-out rows, in whitened units, >= 0. With 0 the density of a table
            with repeated values grows without bound.
        ensemble: flows from different seeds, whose densities are averaged; in [1, 1000].
        precision: of the training, "float32" or "float64". Densities, and the influence of a record, which is a small
            difference of two, are in float64.
        influence: how a record enters the reference in ``gen_lra_bnaf``: "finetune", a few more steps, or "refit", all
            training anew.
        finetune_steps: steps of "finetune", in [1, 1e6].
        finetune_rate: their learning rate.
        finetune_batch: rows of their batches; the same with and without the record, so that few will do; in
            [1, 65_536].
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
        most = {
            "layers": 16, "hidden": 4096, "flows": 100, "steps": 10_000_000, "batch": 65_536, "patience": 10_000_000,
            "ensemble": 1000, "finetune_steps": 1_000_000, "finetune_batch": 65_536, "k": None,
        }  # fmt: skip
        for name, high in most.items():
            check_int(f"bnaf.{name}", getattr(self, name), 1, high)
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
        InputError: fewer than two rows, values that are not finite, networks too large (``check_size``).

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(30, 1))
        >>> flow = fit_bnaf(rows, jax.random.key(0), BNAFConfig(hidden=4, steps=100, batch=32, ensemble=2))
        >>> grid = np.linspace(-6, 6, 31)
        >>> round(float(np.trapezoid(np.exp(bnaf_log_density(flow, grid[:, None])), grid)), 2)
        1.0
    """
    config = config or BNAFConfig()
    rows = as_rows("rows", rows)
    require(len(rows) >= 2, "rows", "have at least 2 rows", len(rows))
    rows = np.repeat(*distinct_rows(rows), axis=0)
    n, e = rows.shape
    check_size(e, config)
    size = table_size(n)
    with precision_scope(config.precision) as dtype:
        table = pad_rows(pad_columns(rows).astype(dtype), size)
        numbers = {
            "rounds": np.int32(-(-config.steps // EVERY)), "patience": np.int32(-(-config.patience // EVERY)),
            "held_out": np.int32(min(n - 1, max(1, round(config.validation * n)))), "noise": dtype(config.noise),
            "rate": dtype(config.learning_rate),
        }  # fmt: skip
        rng = _host_rng(key, 1)
        orders = np.stack([np.append(rng.permutation(n), np.arange(n, size)) for _ in range(config.ensemble)])
        held_out = min(size, math.ceil(config.validation * size) + 1)
        blur = config.noise * rng.normal(size=(config.ensemble, held_out, table.shape[1]))
        learner, step, loss = train_members(
            jax.random.split(key, config.ensemble), start(key, table.shape[1], config, dtype),
            table[orders], table[orders[:, :held_out]] + blur.astype(dtype), np.int32(n), np.int32(e), numbers,
            shape=config.shape,
        )  # fmt: skip
        learner, step, loss = jax.device_get((learner, step, loss))
    return BNAF(learner, e, float(log_volume), step, loss.astype(np.float64), config.shape)


def check_size(columns: int, config: BNAFConfig, *, influence: bool = False) -> None:
    """Raise where parameters or activations exceed 2^29 numbers: the ensemble is trained together.

    Beyond that (2 GiB in float32, several times over with the optimiser's) the process would die instead of raising.

    Args:
        columns: of the rows.
        config: settings.
        influence: check the training with a record as well: members take turns there, 32 records are side by side.

    Example:
        >>> check_size(1000, BNAFConfig())
    """
    one = sum(map(math.prod, template(columns, config.shape).values()))
    row = columns * config.hidden * config.layers * config.flows
    networks = f"hidden={config.hidden}, layers={config.layers}, flows={config.flows}"
    most = _NUMBERS // max(one, config.batch * row)
    require(most > 0, "bnaf.hidden", f"be smaller for {columns} columns with batch={config.batch}", networks)
    rule = f"be at most {most} for {columns} columns with {networks} and batch={config.batch}"
    require(config.ensemble <= most, "bnaf.ensemble", rule, config.ensemble)
    if influence:
        name = "finetune_batch" if config.influence == "finetune" else "batch"
        most, batch = _NUMBERS // (32 * row), getattr(config, name)
        rule = f"be at most {most} for the influence of records of {columns} columns with {networks}"
        require(batch <= most, f"bnaf.{name}", rule, batch)


def bnaf_log_density(flow: BNAF, points: np.ndarray) -> np.ndarray:
    """Log density at whitened ``points`` (p, e), shape (p,), float64: the log of the ensemble's mean density.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(30, 2))
        >>> flow = fit_bnaf(rows, jax.random.key(0), BNAFConfig(hidden=4, steps=50, batch=32, ensemble=2))
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
        found = log_mean(parameters, table, np.int32(flow.dimension), shape=flow.shape, chunk=chunk)
        return np.asarray(found)[: len(points)] - flow.log_volume


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
        for name, size in template(columns, config.shape).items():
            scale = 0.0 if name == f"shift{config.layers}" else scales.get(name.rstrip("0123456789"), 0.0)
            parts.append(scale * rng.normal(size=math.prod(size)))
        members.append(np.concatenate(parts))
    parameters = np.stack(members).astype(dtype)
    memory = optax.ScaleByAdamState(np.zeros(config.ensemble, np.int32), parameters * 0, parameters * 0)
    return Learner(parameters, memory)


def _host_rng(key: jax.Array, stream: int) -> np.random.Generator:
    return np.random.default_rng([stream, int(jax.random.bits(key, dtype=jnp.uint32))])
