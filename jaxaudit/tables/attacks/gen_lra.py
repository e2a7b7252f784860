"""Gen-LRA: how much does adding the target to the reference raise the density of the release around it?

Source: Ward, Wang and Cheng, "Privacy Auditing Synthetic Data Release through Local Likelihood Attacks",
arXiv:2508.21146. The closed forms of the re-estimated density are derived here: with n reference rows of
mean zero and identity covariance, adding u changes the covariance to ``a (I + (b/a) u u^T)``,
``a = (n-1)/n``, ``b = 1/(n+1)``; Sherman-Morrison and the determinant lemma give distances and volume.
So no density is ever refitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxaudit.runtime.checks import check_choice, check_int, check_real
from jaxaudit.runtime.chunks import bucket, chunked_map, pad_rows, rows_per_chunk
from jaxaudit.tables.attacks.neighbours import NeighbourPairs, check_k, nearest_pairs, target_blocks, tie_weights
from jaxaudit.tables.density import (
    Basis,
    KernelDensity,
    as_rows,
    bandwidth_factor,
    distinct_rows,
    fit_basis,
    fit_density,
    kernel_exponents,
    log_kernel_sums,
    pad_columns,
    padded_centres,
    precision_scope,
    span_report,
)

__all__ = ["GenLRAConfig", "GenLRAResult", "gen_lra", "gen_lra_scores"]

_FLOOR = np.log(1e-20)


@dataclass(frozen=True)
class GenLRAConfig:
    """Settings of Gen-LRA.

    Attributes:
        k: nearest synthetic rows that enter a target's score.
        bandwidth: "fixed" keeps bandwidth and covariance of the reference (the influence of one more kernel);
            "refit" re-estimates size, bandwidth and covariance with the target added, exactly; "synth_mia" is
            refit with the additive floor 1e-20 inside the logarithms, in the units of the table: only for
            reproducing that library's numbers (they use ``neighbours="encoded"`` and k = 200).
        neighbours: "encoded": Euclidean in the columns as given; "whitened": in the reference's whitened space,
            which makes scores invariant under invertible affine maps of the table.
        rule: "silverman" or "scott".
        multiplier: scales the bandwidth, before and after adding the target alike; in [0.001, 1000].
        precision: "float64"; "float32" is faster on accelerators (relative error about 1e-4).
    """

    k: int = 10
    bandwidth: str = "fixed"
    neighbours: str = "encoded"
    rule: str = "silverman"
    multiplier: float = 1.0
    precision: str = "float64"

    def __post_init__(self) -> None:
        check_int("gen_lra.k", self.k, 1)
        check_choice("gen_lra.bandwidth", self.bandwidth, ("fixed", "refit", "synth_mia"))
        check_choice("gen_lra.neighbours", self.neighbours, ("encoded", "whitened"))
        check_choice("gen_lra.rule", self.rule, ("silverman", "scott"))
        check_real("gen_lra.multiplier", self.multiplier, 1e-3, 1e3)
        check_choice("gen_lra.precision", self.precision, ("float32", "float64"))


@dataclass(frozen=True)
class GenLRAResult:
    """Scores and what the reference could not describe.

    Attributes:
        scores: (n,) float64, or (grid, n) from a grid of k; higher is more member-like.
        effective_dimension: directions that the reference spans; used in the bandwidth and the densities.
        out_of_span: (n,) distance of each target from that span, in column standard deviations.
        warnings: one sentence each.
    """

    scores: np.ndarray
    effective_dimension: int
    out_of_span: np.ndarray
    warnings: tuple[str, ...]


def gen_lra(
    targets: Any, synthetic: Any, reference: Any, k: int = 10, bandwidth: str = "fixed", neighbours: str = "encoded",
    *, rule: str = "silverman", multiplier: float = 1.0, precision: str = "float64",
) -> np.ndarray:  # fmt: skip
    """Gen-LRA score of every target: the sum of log density ratios over its k nearest synthetic rows.

    ``score(x) = sum_{s in S_k(x)} [log p_{R + x}(s) - log p_R(s)]`` with Gaussian kernel densities. All rows at
    the k-th distance enter with equal fractional weight; scores depend neither on the row order of a table nor,
    beyond rounding, on which other targets are scored.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows.
        reference: (r, d) independent rows of the same population, r >= 2.
        k: neighbours, in [1, m].
        bandwidth: "fixed", "refit" or "synth_mia" (see ``GenLRAConfig``).
        neighbours: "encoded" or "whitened".
        rule: "silverman" or "scott".
        multiplier: bandwidth multiplier, in [0.001, 1000].
        precision: "float64" or "float32".

    Returns:
        (n,) float64; higher is more member-like.

    Raises:
        InputError: an argument outside its range, tables of different width, values that are not finite.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> members, others, reference = rng.normal(size=(3, 40, 2))
        >>> release = members + 0.05 * rng.normal(size=members.shape)
        >>> scores = gen_lra(np.concatenate([members, others]), release, reference, k=1)
        >>> bool(scores[:40].mean() > scores[40:].mean())
        True
    """
    config = GenLRAConfig(k, bandwidth, neighbours, rule, multiplier, precision)
    return gen_lra_scores(targets, synthetic, reference, config).scores


def gen_lra_scores(
    targets: Any, synthetic: Any, reference: Any, config: GenLRAConfig | None = None, *,
    k_grid: tuple[int, ...] | None = None,
) -> GenLRAResult:  # fmt: skip
    """``gen_lra`` with its settings in one place, its warnings, and optionally a grid of k in one pass.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows.
        reference: (r, d) independent rows, r >= 2.
        config: settings; None for the defaults.
        k_grid: several k, each in [1, m], instead of ``config.k``: scores get shape (len(k_grid), n) for about
            the cost of the largest k.

    Raises:
        InputError: as ``gen_lra``.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x, s, r = rng.normal(size=(3, 20, 2))
        >>> flat = np.column_stack([r, np.ones(20)])
        >>> result = gen_lra_scores(np.column_stack([x, np.ones(20)]), np.column_stack([s, np.ones(20)]), flat)
        >>> result.effective_dimension, bool(np.allclose(result.scores, gen_lra(x, s, r)))
        (2, True)
    """
    config = config or GenLRAConfig()
    x = as_rows("targets", targets)
    s_rows, s_counts = distinct_rows(as_rows("synthetic", synthetic, x.shape[1]))
    r_rows, r_counts = distinct_rows(as_rows("reference", reference, x.shape[1]))
    grid = [check_k(k, int(s_counts.sum())) for k in ((config.k,) if k_grid is None else k_grid)]
    basis = fit_basis(r_rows, r_counts)
    u, v = basis.whiten(x), basis.whiten(s_rows)
    n, e = int(r_counts.sum()), basis.dimension
    h = bandwidth_factor(n, e, config.rule, config.multiplier)
    density = fit_density(basis.whiten(r_rows), r_counts, h, basis.log_volume)

    near = (u, v) if config.neighbours == "whitened" else _centred(x, s_rows, basis, config.precision)
    pairs = nearest_pairs(*near, s_counts, max(grid), config.precision)
    if config.bandwidth == "fixed":
        terms = _fixed_terms(pairs, u, v, density, n, config.precision)
    else:
        h_next = bandwidth_factor(n + 1, e, config.rule, config.multiplier)
        terms, log_p = _refit_terms(pairs, u, v, density, n, h_next, config.precision)
        if config.bandwidth == "synth_mia":
            terms = np.logaddexp(log_p + terms, _FLOOR) - np.logaddexp(log_p, _FLOOR)
    # bincount adds a target's pairs one by one in row order; other targets change its terms by rounding at most (their
    # number sets the shapes that are compiled)
    scores = np.stack(
        [np.bincount(pairs.target, weights=tie_weights(pairs, s_counts, k) * terms, minlength=len(x)) for k in grid]
    )
    report = span_report(x, s_rows, basis)
    return GenLRAResult(
        scores[0] if k_grid is None else scores, report.effective_dimension, report.out_of_span, report.warnings
    )


def _centred(x: np.ndarray, s: np.ndarray, basis: Basis, precision: str) -> tuple[np.ndarray, np.ndarray]:
    """float32 loses small differences of large numbers, so it gets centred columns; float64 differences are exact."""
    return (x - basis.mean, s - basis.mean) if precision == "float32" else (x, s)


def _fixed_terms(
    pairs: NeighbourPairs, u: np.ndarray, v: np.ndarray, density: KernelDensity, n: int, precision: str
) -> np.ndarray:
    """Per pair: ``log(n / (n + 1)) + softplus(-|v - u|^2 / 2 h^2 - LSE_R(v))``; one LSE per distinct neighbour."""
    used, row = np.unique(pairs.row, return_inverse=True)
    n_used, n_pairs = _padded_sizes(bucket(len(u)), len(v), pairs.k, len(row))
    near = pad_rows(v[used], n_used)
    sums = log_kernel_sums(density, near, precision)
    with precision_scope(precision) as dtype:
        targets, synthetic = pad_rows(pad_columns(u).astype(dtype), bucket(len(u))), pad_columns(near).astype(dtype)
        index = pad_rows((pairs.target.astype(np.int32), row.astype(np.int32)), n_pairs)
        constants = np.array([0.5 / density.bandwidth**2, -np.log1p(1.0 / n)], dtype)
        chunk = rows_per_chunk(4 * targets[0].nbytes, budget=16 << 20)
        terms = _fixed_kernel(index, targets, synthetic, sums.astype(dtype), constants, chunk)
        return np.asarray(terms, dtype=np.float64)[: len(row)]


def _padded_sizes(targets: int, rows: int, k: int, pairs: int) -> tuple[int, int]:
    """Padded numbers of distinct neighbours and of pairs, from sizes alone.

    How many neighbours two targets share must not decide what is compiled (only more ties than places do).
    """
    return min(bucket(rows), bucket(targets * k)), max(bucket(targets * k), bucket(pairs))


@partial(jax.jit, static_argnames="chunk")
def _fixed_kernel(
    index: tuple[jax.Array, jax.Array], u: jax.Array, v: jax.Array, sums: jax.Array, constants: jax.Array, chunk: int
) -> jax.Array:
    def one(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        t, s = pair
        return constants[1] + jax.nn.softplus(-jnp.sum((v[s] - u[t]) ** 2) * constants[0] - sums[s])

    return chunked_map(one, index, chunk=chunk)


def _refit_terms(
    pairs: NeighbourPairs, u: np.ndarray, v: np.ndarray, density: KernelDensity, n: int, h_next: float, precision: str
) -> tuple[np.ndarray, np.ndarray]:
    """Per pair: the log density ratio after exact re-estimation, and the log density of the row before it.

    Works through tiles of targets and distinct neighbours whose (rows, n) tables fit the memory budget.
    """
    per_target, scalars = _refit_constants(u, density, n, h_next)
    terms, log_p = np.empty(len(pairs.row)), np.empty(len(pairs.row))
    with precision_scope(precision) as dtype:
        centres, log_counts = padded_centres(density, dtype)
        constants = {name: value.astype(dtype) for name, value in scalars.items()}
        row_bytes = len(centres) * centres.itemsize
        starts, t_size = target_blocks(len(u), row_bytes)
        n_used, n_pairs = _padded_sizes(t_size, len(v), pairs.k, 0)
        s_size = min(t_size, n_used)
        size = min(n_pairs, 1 << int(np.log2(rows_per_chunk(6 * row_bytes, budget=32 << 20))))
        for start in starts:
            stop = start + t_size
            block = slice(*np.searchsorted(pairs.target, [start, stop]))
            local = pad_rows(jax.tree.map(lambda leaf, a=start, b=stop: leaf[a:b].astype(dtype), per_target), t_size)
            local = {**local, "projection": _project(centres, local["unit"])}
            used, row = np.unique(pairs.row[block], return_inverse=True)
            for low in range(0, len(used), s_size):
                near = pad_rows(pad_columns(v[used[low : low + s_size]]).astype(dtype), s_size)
                exponents, sums = _exponent_table(near, centres, log_counts, constants["inverse"])
                tile = np.flatnonzero((row >= low) & (row < low + s_size))
                index = ((pairs.target[block][tile] - start).astype(np.int32), (row[tile] - low).astype(np.int32))
                for first in range(0, len(tile), size):
                    part = tuple(i[first : first + size] for i in index)
                    out = _refit_kernel(
                        pad_rows(part, size), local, near, exponents, sums, log_counts, constants
                    )  # fmt: skip
                    where = block.start + tile[first : first + size]
                    terms[where] = np.asarray(out)[: len(where)]
                    log_p[where] = np.asarray(sums, dtype=np.float64)[part[1]] - density.log_norm
    return terms, log_p


def _refit_constants(
    u: np.ndarray, density: KernelDensity, n: int, h_next: float
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What depends on the target alone, in float64: unit vector, norm, shrinkage along it, log volume.

    Along u the covariance grows by ``1 / shrink``, ``shrink = a / (a + b q)``; writing it so, and with unit
    vectors, loses nothing however far out the target is.
    """
    e, h, a, b = u.shape[1], density.bandwidth, (n - 1) / n, 1.0 / (n + 1)
    norm = np.linalg.norm(u, axis=1)
    q = norm**2
    ratio = np.log(h_next / h)
    per_target = {
        "unit": pad_columns(u / np.where(norm > 0, norm, 1.0)[:, None]),
        "norm": norm,
        "shrink": a / (a + b * q),
        "stretch": (b * q / (a + b * q)) / (2 * a * h_next**2),
        "constant": -np.log1p(1.0 / n) - e * ratio - 0.5 * (e * np.log(a) + np.log1p(b * q / a)),
    }
    scalars = {
        "inverse": np.asarray(0.5 / h**2),
        "inverse_next": np.asarray(0.5 / (a * h_next**2)),
        "growth": np.asarray(np.expm1(-2 * ratio - np.log(a))),
    }
    return per_target, scalars


@jax.jit
def _project(centres: jax.Array, unit: jax.Array) -> jax.Array:
    """(targets, n): reference rows along each target's unit vector."""
    return jnp.dot(unit, centres.T, precision=jax.lax.Precision.HIGHEST)


@jax.jit
def _exponent_table(
    v: jax.Array, centres: jax.Array, log_counts: jax.Array, inverse: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """``D / 2 h^2`` of each neighbour to each reference row (b, n), and its log sum of kernels (b,)."""
    exponents = kernel_exponents(v, centres, inverse)
    return exponents, jax.nn.logsumexp(log_counts - exponents, axis=1)


@jax.jit
def _refit_kernel(
    index: tuple[jax.Array, jax.Array], target: dict[str, jax.Array], v: jax.Array, exponents: jax.Array,
    sums: jax.Array, log_counts: jax.Array, scalars: dict[str, jax.Array],
) -> jax.Array:  # fmt: skip
    """Log density ratio of each pair (t, s); the change ``delta_i`` of every exponent is formed directly.

    float64 sums ``p_i exp(delta_i)`` in log space. float32 cannot afford the difference of two sums of
    order one, so where all changes are small it sums ``p_i expm1(delta_i)``.
    """
    t, s = index
    unit, near = target["unit"][t], v[s]
    along = jnp.sum(near * unit, axis=1)
    across = jnp.sum((near - along[:, None] * unit) ** 2, axis=1)
    own = (across + target["shrink"][t] * (along - target["norm"][t]) ** 2) * scalars["inverse_next"]
    shift = (along[:, None] - target["projection"][t]) ** 2 * target["stretch"][t][:, None]
    delta = shift - exponents[s] * scalars["growth"]
    log_p = log_counts - exponents[s] - sums[s][:, None]

    def exact() -> jax.Array:
        return jax.nn.logsumexp(log_p + delta, axis=1)

    if v.dtype == jnp.float32:
        small = jnp.max(jnp.where(jnp.exp(log_p) > 0, jnp.abs(delta), 0.0), axis=1) < 1.0
        stable = jnp.log1p(jnp.sum(jnp.exp(log_p) * jnp.expm1(jnp.where(small[:, None], delta, 0.0)), axis=1))
        # each pair takes its own route; the condition only skips work that no pair of the chunk needs
        change = jax.lax.cond(jnp.all(small), lambda: stable, lambda: jnp.where(small, stable, exact()))
    else:
        change = exact()
    return target["constant"][t] + jnp.logaddexp(change, -own - sums[s])
