"""How much the attacks' AUCs owe to the reference: to its size, and to its being from the same population.

An audit's reference is seldom a perfect sample of the population. Attacks are scored again with fewer reference rows,
and with a reference that is shifted on purpose along its own first principal direction. An attack whose AUC rises under
shift reads the difference between members and reference, shift included, and not memorisation alone: where members
and non-members come from one population, a shifted reference teaches nothing about who is a member. An attack that
does not use the reference does not move.

Rows are drawn by their content (``tables.canonical``): within a replication smaller references are parts of larger
ones, and all attacks see the same references, so that differences are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pandas as pd

from jaxaudit.evaluate.roc import auc, auc_interval
from jaxaudit.runtime.checks import InputError, check_int, check_real, require
from jaxaudit.runtime.keys import check_key
from jaxaudit.tables.canonical import content_uniforms
from jaxaudit.tables.density import as_rows
from jaxaudit.tables.settings import as_list

__all__ = ["SensitivityConfig", "check_sensitivity", "sensitivity", "sensitivity_summary", "shifted_rows"]

_MOVED = 0.02
"""A rise of the AUC under shift that is worth a sentence."""


@dataclass(frozen=True)
class SensitivityConfig:
    """What to try; nothing by default.

    Attributes:
        sizes: shares of the reference's rows, in (0, 1].
        shifts: shifts of the reference's mean along its first principal direction, in its standard deviations, in
            [-3, 3]; a shift of 0 is always run beside them.
        replications: draws of rows for each, >= 1.
        keep: share of the rows that a shifted reference consists of, in (0, 1); half of a normal sample can be shifted
            by up to 0.8 standard deviations.
    """

    sizes: tuple[float, ...] = ()
    shifts: tuple[float, ...] = ()
    replications: int = 5
    keep: float = 0.5

    def __post_init__(self) -> None:
        for name in ("sizes", "shifts"):
            object.__setattr__(self, name, as_list(f"sensitivity.{name}", getattr(self, name), empty=True))
        for size in self.sizes:
            check_real("sensitivity.sizes", size, 0, 1, open_low=True)
        for shift in self.shifts:
            check_real("sensitivity.shifts", shift, -3, 3)
        check_int("sensitivity.replications", self.replications, 1, 1000)
        check_real("sensitivity.keep", self.keep, 0, 1, open_low=True, open_high=True)

    @property
    def given(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.sizes or self.shifts)


def check_sensitivity(config: SensitivityConfig, rows: int, least: int = 10) -> None:
    """Raise unless every reference that will be tried has enough rows: to be called before anything is scored.

    Args:
        config: what will be tried.
        rows: of the whole reference.
        least: rows that the attacks need, an ensemble two for each of its parts.

    Example:
        >>> check_sensitivity(SensitivityConfig(sizes=(0.5,)), 40)
    """
    require(isinstance(config, SensitivityConfig), "sensitivity", "be a SensitivityConfig", type(config).__name__)
    rule = f"leave at least {least} of the {rows} reference rows"
    for share, name in [*((size, "sizes") for size in config.sizes), *([(config.keep, "keep")] * bool(config.shifts))]:
        left = _count(share, rows)
        require(left >= least, f"sensitivity.{name}", rule, f"{share:g} ({left} rows)")


def sensitivity(
    score: Callable[[np.ndarray], Mapping[str, Any]],
    member: Any,
    reference: Any,
    config: SensitivityConfig,
    key: jax.Array,
    level: float = 0.95,
    advance: Callable[[], None] = lambda: None,
) -> pd.DataFrame:
    """AUCs of all attacks for smaller and for shifted references.

    Args:
        score: reference rows -> attack -> (n,) scores of the scored records; the encoding stays that of the whole.
        member: (n,) of 0/1 or booleans.
        reference: (r, d) encoded rows, at least 4.
        config: sizes, shifts and replications.
        key: of the draws of rows.
        level: of the intervals (DeLong) over records, in (0, 1).
        advance: called after every reference that was tried.

    Returns:
        One row per attack and reference tried: ``attack``; ``kind``, "size" or "shift"; ``value``, as asked for;
        ``replication``; ``rows`` of the reference used; ``shift``, the realised one in standard deviations; ``auc``,
        ``low``, ``high``; ``moved``, the AUC minus that with the whole reference (size) or, in the same replication,
        with the unshifted one of equal size (shift).

    Raises:
        InputError: fewer than 4 reference rows, labels that break a rule, a ``score`` that is no function or returns
            no mapping, or what it raises, with the name of the setting that made the reference.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x, member = rng.normal(size=(40, 2)), np.arange(40) < 20
        >>> score = lambda r: {"near": -np.abs(x[:, None] - r).sum(axis=2).min(axis=1), "blind": x[:, 0]}
        >>> frame = sensitivity(score, member, rng.normal(size=(30, 2)), SensitivityConfig((0.5, 1.0)),
        ...                     jax.random.key(0))
        >>> frame.shape, bool((frame.query("attack == 'blind'")["moved"] == 0).all())
        ((12, 10), True)
    """
    require(callable(score), "score", "be a function", type(score).__name__)
    require(isinstance(config, SensitivityConfig), "config", "be a SensitivityConfig", type(config).__name__)
    check_key("key", key)
    r = as_rows("reference", reference)
    require(len(r) >= 4, "reference", "have at least 4 rows", f"{len(r)} rows")
    whole, along = np.ones(len(r), dtype=bool), _along(r)
    tried: list[tuple[str, float, int, np.ndarray]] = []
    for replication in range(config.replications):
        uniform = content_uniforms(r, jax.random.fold_in(key, replication))
        if config.sizes:
            smaller = [(size, _lowest(uniform, size)) for size in sorted({*config.sizes} - {1.0}, reverse=True)]
            full = [(1.0, whole)] if replication == 0 else []
            tried += [("size", size, replication, rows) for size, rows in full + smaller]
        if config.shifts:
            values = [0.0, *sorted({*map(float, config.shifts)} - {0.0})]
            tried += [("shift", v, replication, shifted_rows(along, uniform, v, config.keep)) for v in values]
    found, base = [], {}
    for kind, value, replication, rows in tried:
        for name, scores in _scored(score, r[rows], kind, value).items():
            area = auc(scores, member)
            if value == {"size": 1.0, "shift": 0.0}[kind]:
                base[kind, name] = area
            low, high = auc_interval(scores, member, level)
            realised = float(along[rows].mean())
            found.append(
                (name, kind, value, replication, int(rows.sum()), realised, area, low, high, area - base[kind, name])
            )
        advance()
    names = ["attack", "kind", "value", "replication", "rows", "shift", "auc", "low", "high", "moved"]
    return pd.DataFrame(found, columns=names)


def _scored(score: Callable[[np.ndarray], Any], rows: np.ndarray, kind: str, value: float) -> Mapping[str, Any]:
    """``score(rows)``; what it raises names the setting that these rows come from."""
    where = f"sensitivity.sizes={value:g}" if kind == "size" else f"sensitivity.keep, with a shift of {value:g},"
    try:
        found = score(rows)
    except InputError as error:
        rule = "leave a reference that the attacks can use"
        raise InputError(f"{where} must {rule}, got {len(rows)} rows: {error}") from error
    except Exception as error:
        error.add_note(f"raised with the reference of {where} {len(rows)} rows")
        raise
    require(isinstance(found, Mapping), "score", "return scores by attack", type(found).__name__)
    return found


def _along(rows: np.ndarray) -> np.ndarray:
    """(r,) standardised places along the first principal direction, whose largest loading counts as positive."""
    centred = rows - rows.mean(axis=0)
    direction = np.linalg.eigh(centred.T @ centred).eigenvectors[:, -1]
    loudest = np.argmax(np.abs(direction) > np.abs(direction).max() * (1 - 1e-9))
    place = centred @ (direction * np.sign(direction[loudest]))
    spread = place.std()
    return place / spread if spread > 0 else place


def _lowest(values: np.ndarray, share: float) -> np.ndarray:
    """(r,) bool: the rows of the lowest values, at least 2 of them."""
    chosen = np.zeros(values.size, dtype=bool)
    chosen[np.argsort(values, kind="stable")[: _count(share, values.size)]] = True
    return chosen


def _count(share: float, rows: int) -> int:
    return max(2, round(share * rows))


def shifted_rows(along: np.ndarray, uniform: np.ndarray, shift: float, keep: float) -> np.ndarray:
    """A share of the rows whose mean place is the one asked for, or as near to it as that many rows can be.

    Rows are drawn without replacement with chances that grow like exp(tilt place): those with the largest
    tilt place + Gumbel noise. The noise stays fixed; the mean place of those drawn is then non-decreasing in the
    tilt (it is the slope of a maximum of linear functions of it), which is found by bisection (derived).

    Args:
        along: (r,) places, mean 0 and standard deviation 1.
        uniform: (r,) in (0, 1), the noise.
        shift: mean place wanted; 0 takes the draw without tilt.
        keep: share of rows to keep, in (0, 1).

    Returns:
        (r,) bool.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> place = rng.normal(size=1000)
        >>> [round(float(place[shifted_rows(place, rng.random(1000), s, 0.5)].mean()), 1) for s in (0.5, -0.5)]
        [0.5, -0.5]
    """
    noise = np.log(-np.log(uniform))  # minus a Gumbel variable: low is first
    if shift == 0.0:
        return _lowest(noise, keep)
    sign = np.sign(shift)
    low, high = 0.0, 50.0
    for _ in range(50):
        tilt = (low + high) / 2
        short = sign * along[_lowest(noise - sign * tilt * along, keep)].mean() < abs(shift)
        low, high = (tilt, high) if short else (low, tilt)
    return _lowest(noise - sign * high * along, keep)


def sensitivity_summary(frame: pd.DataFrame) -> tuple[list[dict[str, Any]], list[str]]:
    """Means over replications, and a sentence for every attack that gains from a shifted reference.

    Args:
        frame: from ``sensitivity``.

    Returns:
        Rows of plain values: ``attack``, ``kind``, ``level`` (the value asked for), ``rows``, ``shift``, ``auc``,
        ``auc_low``, ``auc_high`` (ends of intervals over records), ``moved``, and ``auc_sd``, ``moved_sd`` (over
        replications; None with one); and the sentences. An attack gets one where its AUC rises by more than 0.02 on
        average, and by more than two standard errors over replications.

    Example:
        >>> frame = pd.DataFrame({"attack": "domias", "kind": "shift", "value": [0.0, 0.5, 0.0, 0.5], "rows": 20,
        ...     "shift": [0.0, 0.5, 0.0, 0.5], "auc": [0.5, 0.6, 0.5, 0.61], "low": 0.4, "high": 0.7,
        ...     "moved": [0.0, 0.1, 0.0, 0.11]})
        >>> rows, sentences = sensitivity_summary(frame)
        >>> round(rows[1]["moved"], 3), sentences[0][:72]
        (0.105, 'domias reads a shifted reference: shifting it by 0.5 standard deviations')
    """
    rows, sentences = [], []
    for (attack, kind, _), part in frame.groupby(["attack", "kind", "value"], sort=False):
        several, value = len(part) > 1, float(part["value"].iloc[0])
        row: dict[str, Any] = {"attack": attack, "kind": kind, "level": value, "rows": int(part["rows"].iloc[0])}
        row |= {"shift": float(part["shift"].mean())}
        row |= {f"auc_{end}": float(part[end].mean()) for end in ("low", "high")}
        for name in ("auc", "moved"):
            row |= {name: float(part[name].mean()), f"{name}_sd": float(part[name].std()) if several else None}
        rows.append(row)
        error = row["moved_sd"] / np.sqrt(len(part)) if several else 0.0
        if kind == "shift" and row["moved"] > max(_MOVED, 2 * error):
            sentences.append(
                f"{attack} reads a shifted reference: shifting it by {value:g} standard deviations raises its AUC by "
                f"{row['moved']:.3f}, to {row['auc']:.3f}; part of what it shows may be shift and not memorisation."
            )
    return rows, sentences
