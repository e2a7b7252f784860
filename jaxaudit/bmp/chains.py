"""What the two MCMC engines share: independent problems in blocks, diagnostics, reruns, and what is kept.

A problem is a distinct count tuple, or a group of nodes that shares (l, r). Problems run in blocks of bounded
memory, the chains of a block inside one compiled call that ends in quantiles and diagnostics. A problem that
fails runs again, longer and more carefully; one that still fails gives NaN, never a number that
did not converge. R-hat and effective sample sizes: Vehtari et al. 2021, as implemented by BlackJAX.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.bmp.posterior import LEVELS, probit_interpolate
from jaxaudit.runtime.checks import InputError, check_choice, check_int, check_real, require
from jaxaudit.runtime.chunks import pad_rows

__all__ = ["ChainPosterior", "Demands", "Report", "Settings", "by_group", "collect", "failed_diagnostics", "summarise"]

_DIVERGENT = 0.001


@dataclass(frozen=True)
class Demands:
    """What the chains of a problem must reach, and what is done if they do not.

    Attributes:
        rhat: largest R-hat of any quantity, > 1.
        ess: smallest effective sample size, bulk and tail, of any quantity; at most about ``chains * draws``.
        reruns: times a failing problem runs again, in [0, 2]; each doubles warm-up and steps between kept draws.

    Raises:
        InputError: a value out of range.
    """

    rhat: float = 1.01
    ess: float = 400.0
    reruns: int = 2

    def __post_init__(self) -> None:
        check_real("rhat", self.rhat, 1, open_low=True)
        check_real("ess", self.ess, 1)
        check_int("reruns", self.reruns, 0, 2)


@dataclass(frozen=True)
class Settings:
    """Length of a run, checked; ``attempt`` counts from 0 and doubles warm-up and thinning."""

    chains: int
    warmup: int
    draws: int
    attempt: int = 0

    def __post_init__(self) -> None:
        check_int("chains", self.chains, 2)
        check_int("warmup", self.warmup, 20)
        check_int("draws", self.draws, 4)

    @property
    def factor(self) -> int:
        """Steps per kept draw, and the multiple of the warm-up."""
        return 2**self.attempt


class Report(NamedTuple):
    """One problem's outcome inside jit.

    Attributes:
        tables: name -> (levels,) quantiles at ``LEVELS``.
        rhat: name -> rank-normalised split R-hat.
        ess_bulk: name -> effective sample size of the bulk.
        ess_tail: name -> effective sample size of the 5 % and 95 % tails.
        divergences: divergent transitions after warm-up (0 for MHAAR).
        acceptance: mean acceptance rate after warm-up.
        draws: name -> (chains, draws), or {} when they are not kept.
    """

    tables: dict[str, Any]
    rhat: dict[str, Any]
    ess_bulk: dict[str, Any]
    ess_tail: dict[str, Any]
    divergences: Any
    acceptance: Any
    draws: dict[str, Any]


@dataclass(frozen=True)
class ChainPosterior:
    """Marginal posteriors by MCMC, one per problem (distinct count tuple, or group), looked up per node.

    Attributes:
        engine: "nuts" or "mhaar".
        names: sampled quantities: "r", "l" and, with attack strength, "s".
        problem: (n,) int64 row of each node's problem in the arrays below; -1 without data on both sides.
        ok: (p,) bool; False where the last run still fails: quantiles are NaN there.
        runs: (p,) int, runs it took.
        rhat: name -> (p,).
        ess_bulk: name -> (p,).
        ess_tail: name -> (p,).
        divergences: (p,) int, of the last run.
        acceptance: (p,) mean acceptance rate.
        draws: name -> (p, chains, draws) float32; {} unless ``keep_draws``.
        warnings: sentences a reader must see.
    """

    engine: str
    names: tuple[str, ...]
    problem: np.ndarray
    ok: np.ndarray
    runs: np.ndarray
    rhat: dict[str, np.ndarray]
    ess_bulk: dict[str, np.ndarray]
    ess_tail: dict[str, np.ndarray]
    divergences: np.ndarray
    acceptance: np.ndarray
    draws: dict[str, np.ndarray]
    warnings: tuple[str, ...]
    _tables: dict[str, np.ndarray] = field(repr=False)

    @property
    def auditable(self) -> np.ndarray:
        """(n,) bool: the node belongs to a problem with data on both sides."""
        return self.problem >= 0

    def quantile(self, name: str, q: float) -> np.ndarray:
        """Posterior quantile of ``name`` at level ``q`` in [0.001, 0.999].

        Returns:
            (n,) float64; NaN where not auditable, and where the chains failed.

        Raises:
            InputError: another name, or a level out of range.
        """
        check_choice("name", name, self.names)
        check_real("q", q, 0.001, 0.999)
        values = np.where(self.ok, probit_interpolate(self._tables[name], q), np.nan)
        return np.append(values, np.nan)[self.problem]  # -1 finds the last entry


def summarise(values: dict[str, jax.Array], divergences: jax.Array, acceptance: jax.Array, keep: bool) -> Report:
    """Quantiles and diagnostics of one problem's draws, name -> (chains, draws); traceable."""
    import blackjax  # here: importing blackjax 1.7 starts the backend, and the device count is then fixed

    tables = {name: jnp.quantile(x, LEVELS.astype(np.float32)) for name, x in values.items()}
    functions = blackjax.rhat, blackjax.ess_bulk, blackjax.ess_tail
    rhat, bulk, tail = ({name: function(x) for name, x in values.items()} for function in functions)
    return Report(tables, rhat, bulk, tail, divergences.sum(), acceptance.mean(), values if keep else {})


def _passes(report: Report, settings: Settings, demands: Demands, strict: bool) -> np.ndarray:
    """(p,) bool; ``strict`` asks for a rerun at the first divergence, the final verdict tolerates one in a thousand."""
    allowed = 0 if strict else _DIVERGENT * settings.chains * settings.draws * settings.factor
    passes = np.asarray(report.divergences) <= allowed
    for x in report.rhat.values():
        passes &= x <= demands.rhat  # NaN fails
    for x in (*report.ess_bulk.values(), *report.ess_tail.values()):
        passes &= x >= demands.ess
    return passes


def _in_blocks(run: Callable[..., Report], data: Any, size: int, block: int, settings: Settings) -> Report:
    """Blocks of one fixed size: what else is in the call changes no draw. One thread per core."""

    def part(first: int) -> Report:
        rows = jax.tree.map(lambda leaf: leaf[first : first + block], data)
        out = run(pad_rows(rows, block), settings)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[: min(block, size - first)], out)

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(min(8, cores) if jax.default_backend() == "cpu" else 1) as pool:
        parts = list(pool.map(part, range(0, size, block)))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def collect(
    run: Callable[..., Report],
    data: Any,
    problem: np.ndarray,
    settings: Settings,
    *,
    engine: str,
    names: tuple[str, ...],
    block: int,
    demands: Demands,
) -> ChainPosterior:
    """Run every problem, rerun those that fail, and assemble the posterior.

    Args:
        run: ``run(block of data, settings)`` -> Report with a leading axis; its draws depend on the data and
            ``settings.attempt`` alone.
        data: pytree of NumPy arrays with a leading axis of length p.
        problem: (n,) int64 rows in ``data``, -1 for none.
        settings: of the first run.
        engine: name for reports and warnings.
        names: of the quantities in the report.
        block: problems per compiled call.
        demands: what a problem must reach.

    Returns:
        ChainPosterior.
    """
    size = len(jax.tree.leaves(data)[0])
    require(size > 0, "counts", "have at least one node with data on both sides", "none")
    total = _in_blocks(run, data, size, block, settings)
    total = jax.tree.map(lambda leaf: np.array(leaf), total)
    runs, ok, last = np.ones(size, np.int64), _passes(total, settings, demands, strict=False), settings
    again = np.flatnonzero(~_passes(total, settings, demands, strict=True))
    for attempt in range(1, demands.reruns + 1):
        if not again.size:
            break
        last = Settings(settings.chains, settings.warmup, settings.draws, attempt)
        part = _in_blocks(run, jax.tree.map(lambda leaf, rows=again: leaf[rows], data), again.size, block, last)
        for leaf, new in zip(jax.tree.leaves(total), jax.tree.leaves(part), strict=True):
            leaf[again] = new
        runs[again], ok[again] = attempt + 1, _passes(part, last, demands, strict=False)
        again = again[~_passes(part, last, demands, strict=True)]
    return ChainPosterior(
        engine, names, problem, ok, runs, total.rhat, total.ess_bulk, total.ess_tail, total.divergences,
        total.acceptance, total.draws, _warnings(engine, ok, total, problem, demands), total.tables,
    )  # fmt: skip


def _warnings(engine: str, ok: np.ndarray, report: Report, problem: np.ndarray, demands: Demands) -> tuple[str, ...]:
    found: list[str] = []
    failed = np.flatnonzero(~ok)
    if failed.size:
        worst = max(float(np.nanmax(x[failed], initial=1.0)) for x in report.rhat.values())
        least = min(float(np.nanmin(x[failed], initial=np.inf)) for x in report.ess_bulk.values())
        nodes = int(np.isin(problem, failed).sum())
        found.append(
            f"{engine}: {failed.size} of {ok.size} problems ({nodes} nodes) still fail after {demands.reruns + 1} runs "
            f"and are NaN (largest R-hat {worst:.3f}, smallest bulk ESS {least:.0f}, "
            f"wanted {demands.rhat} and {demands.ess:.0f})"
        )
    divergent = ok & (np.asarray(report.divergences) > 0)
    if divergent.any():
        found.append(
            f"{engine}: {int(divergent.sum())} of {ok.size} problems keep divergent transitions, "
            f"at most {int(np.max(report.divergences[divergent]))} each"
        )
    return tuple(found)


def failed_diagnostics(engine: str, rhat: dict[str, float], ess: dict[str, float], divergences: int) -> tuple[str, ...]:
    """What a reader must know before using one problem's draws; a NaN diagnostic fails too.

    Example:
        >>> failed_diagnostics("NUTS", {"r": 1.02}, {"r": 500.0}, 1)
        ('NUTS: R-hat of r is 1.020, above 1.01', 'NUTS: 1 divergent transition')
    """
    found = [f"{engine}: R-hat of {x} is {value:.3f}, above 1.01" for x, value in rhat.items() if not value <= 1.01]
    found += [f"{engine}: bulk ESS of {x} is {value:.0f}, below 400" for x, value in ess.items() if not value >= 400]
    plural = "" if divergences == 1 else "s"
    return (*found, f"{engine}: {divergences} divergent transition{plural}") if divergences else tuple(found)


def by_group(groups: Any, usable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels of the groups that have data, and each node's row among them (-1: none).

    Args:
        groups: (n,) integers, any labels >= 0; negative: in no group.
        usable: (n,) bool, data on both sides.

    Returns:
        (labels (g,) int64 sorted, problem (n,) int64). A node without data belongs to its group if others have data.

    Raises:
        InputError: another shape or type.

    Example:
        >>> labels, problem = by_group([5, 2, 5, -1], np.array([True, False, False, True]))
        >>> labels.tolist(), problem.tolist()
        ([5], [0, -1, 0, -1])
    """
    array = np.asarray(groups)
    if array.shape != usable.shape or array.dtype.kind not in "iu":
        raise InputError(f"groups must be {usable.size} integers, got shape {array.shape} of {array.dtype}")
    labels = np.unique(array[usable & (array >= 0)]).astype(np.int64)
    place = np.searchsorted(labels, array)
    found = (place < labels.size) & (labels[np.minimum(place, labels.size - 1)] == array) if labels.size else False
    return labels, np.where(found, place, -1)
