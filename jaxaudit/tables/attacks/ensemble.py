"""Several attacks as one score, calibrated on reference rows and never on the records that are scored.

Attacks score in units of their own, so they are combined after each has been put on one scale: how member-like is a
score among those of records known not to be members? A part of the reference is held out and scored like a target,
against the whole release and the rest of the reference; a target's score becomes its midrank among these, as a normal
score. A non-member is exchangeable with the rows held out, so each calibrated component is standard normal for it, up
to the grid of ranks. Parts take turns, and their calibrated scores are averaged.

Weights are equal, or fitted by a logistic regression of released rows that are held out in their turn (stand-ins for
members, since no member is known) against the reference rows held out. What is wrong with stand-ins: a released row
is no training record. The fit learns which attacks tell released rows from people, so that a generator that is off in
some corner, without remembering anyone, raises the weight of the attacks that see the corner. A stand-in of a release
with many near copies is close to its siblings, a member to its copies. So the fit is pulled towards equal weights
and kept from negative ones, is a setting, and is not the default.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from scipy import optimize, special

from jaxaudit.runtime.checks import check_choice, check_int, check_real, require
from jaxaudit.runtime.keys import check_key
from jaxaudit.tables.canonical import content_uniforms
from jaxaudit.tables.density import as_rows
from jaxaudit.tables.settings import as_list

__all__ = ["EnsembleConfig", "calibrated", "canonical_parts", "ensemble"]

Score = Callable[[np.ndarray, np.ndarray, np.ndarray, jax.Array], Any]

_CLOSE = 1e-9
"""Scores this close, relatively, are ties: rounding must not decide about a rank."""


@dataclass(frozen=True)
class EnsembleConfig:
    """Settings of the ensemble.

    Attributes:
        components: names of the attacks that are combined.
        weights: "equal" or "fitted".
        parts: in how many parts the reference is cut, each held out in its turn, in [2, 20].
        stand_ins: share of the release that is held out where weights are fitted, in [0.001, 0.5].
        ridge: strength of the pull towards equal weights, as a number of stand-ins and reference rows, in (0, 1e9].
    """

    components: tuple[str, ...] = ("gen_lra", "dcr", "domias", "dpi")
    weights: str = "equal"
    parts: int = 2
    stand_ins: float = 0.2
    ridge: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "components", as_list("ensemble.components", self.components, empty=True))
        require(len(self.components) > 0, "ensemble.components", "name at least one attack", "none")
        named = all(isinstance(name, str) for name in self.components)
        require(named, "ensemble.components", "be names of attacks", list(self.components))
        require("ensemble" not in self.components, "ensemble.components", "be other attacks", "ensemble")
        check_choice("ensemble.weights", self.weights, ("equal", "fitted"))
        check_int("ensemble.parts", self.parts, 2, 20)
        check_real("ensemble.stand_ins", self.stand_ins, 1e-3, 0.5)
        check_real("ensemble.ridge", self.ridge, 0, 1e9, open_low=True)


def ensemble(
    targets: Any,
    synthetic: Any,
    reference: Any,
    components: Mapping[str, Score],
    key: jax.Array,
    config: EnsembleConfig | None = None,
) -> np.ndarray:
    """The weighted mean of calibrated components, see the module.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows.
        reference: (r, d) independent rows of the same population, at least 2 for each part.
        components: name -> ``score(targets, synthetic, reference, key) -> (n,)``; the order does not matter.
        key: of the parts and of the components.
        config: settings; None for the defaults. Its ``components`` are not looked at here.

    Returns:
        (n,) float64, about standard normal and less spread for non-members; higher is more member-like.

    Raises:
        InputError: no component, too few rows, tables of different width, or what a component raises.

    Example:
        >>> from jaxaudit.tables.attacks.distance import dcr
        >>> rng = np.random.default_rng(0)
        >>> members, others, reference = rng.normal(size=(3, 40, 2))
        >>> nearest = {"dcr": lambda x, s, r, key: dcr(x, s)}
        >>> scores = ensemble(np.concatenate([members, others]), members + 0.01, reference, nearest, jax.random.key(0))
        >>> bool(scores[:40].mean() > 1 > scores[40:].mean())
        True
    """
    config = EnsembleConfig() if config is None else config
    require(isinstance(config, EnsembleConfig), "config", "be an EnsembleConfig", type(config).__name__)
    check_key("key", key)
    _check_components(components)
    x = as_rows("targets", targets)
    s, r = as_rows("synthetic", synthetic, x.shape[1]), as_rows("reference", reference, x.shape[1])
    fitted = config.weights == "fitted"
    require(len(s) >= 2 or not fitted, "synthetic", "have at least 2 rows to fit weights", f"{len(s)} rows")
    least = 2 * config.parts
    require(len(r) >= least, "reference", f"have at least {least} rows for {config.parts} parts", f"{len(r)} rows")
    part = canonical_parts(r, config.parts, key)
    total = np.zeros(len(x))
    for held in range(config.parts):
        out, rest = r[part == held], r[part != held]
        own = jax.random.fold_in(key, held)
        found, _ = calibrated(components, x, out, s, rest, own)
        total += found @ _weights(components, out, s, rest, own, config)
    return total / config.parts


def _check_components(components: Any) -> None:
    require(isinstance(components, Mapping), "components", "map names to attacks", type(components).__name__)
    require(len(components) > 0, "components", "have at least one attack", "none")
    for name, score in components.items():
        require(isinstance(name, str), "components", "have names that are text", name)
        require(callable(score), f"components[{name!r}]", "be a function", type(score).__name__)


def canonical_parts(rows: np.ndarray, parts: int, key: jax.Array) -> np.ndarray:
    """Cut rows at random in parts of equal size (within one); (n,) int64 in [0, parts).

    Rows are dealt out in the order of numbers that follow their content (``tables.canonical``), so that the parts are
    the same tables whatever the order of the rows.

    Example:
        >>> rows = np.arange(12.0).reshape(6, 2)
        >>> part = canonical_parts(rows, 2, jax.random.key(0))
        >>> np.bincount(part).tolist(), bool((canonical_parts(rows[::-1], 2, jax.random.key(0)) == part[::-1]).all())
        ([3, 3], True)
    """
    part = np.empty(len(rows), dtype=np.int64)
    part[np.argsort(content_uniforms(rows, key))] = np.arange(len(rows)) % parts
    return part


def calibrated(
    components: Mapping[str, Score],
    targets: np.ndarray,
    held_out: np.ndarray,
    synthetic: np.ndarray,
    reference: np.ndarray,
    key: jax.Array,
) -> tuple[np.ndarray, np.ndarray]:
    """Normal scores of targets, and of the rows held out, among the rows held out; (n, c) and (h, c).

    With b of h scores below (ties one half) the normal score is that of (b + 1/2) / (h + 1). Columns are in the order
    of the components' names. Only ranks of scores enter: a component may be transformed by any increasing function.

    Example:
        >>> first = {"first": lambda x, s, r, key: x[:, 0]}
        >>> found, _ = calibrated(first, np.array([[5.0], [2.0]]), np.arange(4.0)[:, None], *[np.ones((2, 1))] * 2,
        ...                       jax.random.key(0))
        >>> special.ndtr(found[:, 0]).round(12).tolist()
        [0.9, 0.6]
    """
    both = np.concatenate([targets, held_out])
    columns = []
    for name in sorted(components):
        own = jax.random.fold_in(key, np.uint32(zlib.crc32(name.encode("utf-8", "surrogatepass"))))
        raw = components[name](both.copy(), synthetic.copy(), reference.copy(), own)
        require(not isinstance(raw, Mapping), "ensemble.components", "be single attacks, no grid of settings", name)
        scores = np.asarray(raw, dtype=np.float64)
        good = scores.shape == (len(both),) and bool(np.isfinite(scores).all())
        require(good, f"attack {name}", f"return {len(both)} finite scores, one per row", f"shape {scores.shape}")
        columns.append(_normal_scores(scores, np.sort(scores[len(targets) :])))
    stacked = np.stack(columns, axis=1)
    return stacked[: len(targets)], stacked[len(targets) :]


def _normal_scores(scores: np.ndarray, among: np.ndarray) -> np.ndarray:
    near = _CLOSE * np.maximum(np.abs(scores), np.median(np.abs(among)))
    below = np.searchsorted(among, scores - near, side="left")
    upto = np.searchsorted(among, scores + near, side="right")
    return special.ndtri((0.5 * (below + upto) + 0.5) / (among.size + 1))


def _weights(
    components: Mapping[str, Score],
    out: np.ndarray,
    synthetic: np.ndarray,
    reference: np.ndarray,
    key: jax.Array,
    config: EnsembleConfig,
) -> np.ndarray:
    """(c,) non-negative weights that sum to 1."""
    equal = np.full(len(components), 1.0 / len(components))
    if config.weights == "equal":
        return equal
    parts = round(1 / config.stand_ins)
    held = canonical_parts(synthetic, parts, jax.random.fold_in(key, parts)) == 0
    stand_ins, others = calibrated(components, synthetic[held], out, synthetic[~held], reference, key)
    return _fit(stand_ins, others, config.ridge)


def _fit(stand_ins: np.ndarray, others: np.ndarray, ridge: float) -> np.ndarray:
    """Non-negative logistic weights of stand-ins against others, both classes counting alike, as shares.

    The penalty is ridge / 2 times the squared distance from the best common weight, so that without evidence weights
    are equal.
    """
    # sorted: sums, and hence the weights, do not depend on the order of rows by so much as rounding
    rows = np.concatenate([part[np.lexsort(part.T)] for part in (stand_ins, -others)])
    signs = np.repeat([1.0, -1.0], [len(stand_ins), len(others)])
    counts = np.repeat([0.5 / len(stand_ins), 0.5 / len(others)], [len(stand_ins), len(others)]) * len(rows)

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        weights, intercept = values[:-1], values[-1]
        margin = rows @ weights + signs * intercept
        slope = -counts * special.expit(-margin)
        away = weights - weights.mean()
        value = counts @ np.logaddexp(0.0, -margin) + 0.5 * ridge * (away @ away)
        return value, np.append(rows.T @ slope + ridge * away, signs @ slope)

    start = np.append(np.full(rows.shape[1], 1.0 / rows.shape[1]), 0.0)
    bounds = [(0.0, None)] * rows.shape[1] + [(None, None)]
    found = optimize.minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": 500}).x[:-1]
    return found / found.sum() if found.sum() > 1e-6 else np.full(found.size, 1.0 / found.size)
