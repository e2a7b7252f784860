"""Gen-LRA, DOMIAS and the density attack with a kernel for numbers and categories: ``jaxaudit.tables.mixed``.

The Gaussian attacks treat the indicator columns of a category as numbers: whitening blows up the columns of rare
levels, and every level adds a dimension. Here a category is one column whose levels agree or differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxaudit.runtime.checks import InputError, check_choice, check_int, check_real, require
from jaxaudit.tables.attacks.gen_lra_terms import fixed_terms
from jaxaudit.tables.attacks.neighbours import nearest_pairs, tie_weights
from jaxaudit.tables.basis import fit_basis
from jaxaudit.tables.density import as_rows, distinct_rows
from jaxaudit.tables.layout import Layout, infer_layout
from jaxaudit.tables.mixed import Categories, MixedDensity, MixedRows, check_lam, fit_mixed

__all__ = ["MixedConfig", "density_mixed", "domias_mixed", "gen_lra_mixed"]


@dataclass(frozen=True)
class MixedConfig:
    """Settings of the attacks with a mixed kernel.

    Attributes:
        k: nearest synthetic rows that enter a target's score (Gen-LRA only).
        neighbours: "encoded": Euclidean in the encoded columns; "kernel": by the kernel of the reference's density,
            so that numbers are whitened and a category weighs as much as the kernel lets it (Gen-LRA only).
        rule: bandwidth of the numbers, "silverman", "scott" or a number in [1e-6, 1e6], in units of the standard
            deviation of whitened columns; dimension and covariance are those of the numeric columns alone.
        multiplier: scales that bandwidth, in [0.001, 1000].
        lam: smoothing of the categories, a number in [1e-6, 1]: the share of its largest value (c-1)/c, that is the
            share of cells drawn anew; or "cv" (leave-one-out likelihood) or "rule" (a rule of thumb per column), see
            ``mixed.fit_mixed``. These two fit the density of a table; likelihood smooths away the single copies that an
            attack looks for (``benchmarks/release_mixed.py``), hence a small number as the default.
        precision: "float64" or "float32".
    """

    k: int = 10
    neighbours: str = "encoded"
    rule: str | float = "silverman"
    multiplier: float = 1.0
    lam: str | float = 0.1
    precision: str = "float64"

    def __post_init__(self) -> None:
        check_int("mixed.k", self.k, 1)
        check_choice("mixed.neighbours", self.neighbours, ("encoded", "kernel"))
        if isinstance(self.rule, str):
            check_choice("mixed.rule", self.rule, ("silverman", "scott"))
        else:
            check_real("mixed.rule", self.rule, 1e-6, 1e6)
        check_real("mixed.multiplier", self.multiplier, 1e-3, 1e3)
        check_lam("mixed.lam", self.lam)
        check_choice("mixed.precision", self.precision, ("float32", "float64"))


def gen_lra_mixed(
    targets: Any, synthetic: Any, reference: Any, config: MixedConfig | None = None, layout: Layout | None = None
) -> np.ndarray:
    """Gen-LRA whose density of the reference has a mixed kernel.

    ``score(x) = sum_{s in S_k(x)} [log(n/(n+1)) + softplus(log K(s, x) - log sum_i K(s, r_i))]``: one more kernel, with
    bandwidths and lam of the reference kept. Refitted covariances have no counterpart for categories and are left to
    ``gen_lra``. Ties at the k-th distance share what is left of k.

    Args:
        targets: (n, d) encoded rows.
        synthetic: (m, d) encoded released rows, m >= k.
        reference: (r, d) encoded independent rows, r >= 2.
        config: settings; None for the defaults.
        layout: ``Encoder.layout``; None to infer it from the synthetic and the reference rows.

    Returns:
        (n,) float64; higher is more member-like. Equal to ``gen_lra`` (fixed) where all columns are numbers.

    Raises:
        InputError: tables or a layout of different width, k above m, a row with two levels of one column, a table of
            numbers that do not vary in the reference.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> members, others, reference = rng.integers(0, 2, size=(3, 40, 12)).astype(float)
        >>> scores = gen_lra_mixed(np.concatenate([members, others]), members, reference, MixedConfig(k=1))
        >>> bool(scores[:40].mean() > scores[40:].mean())
        True
    """
    config = config or MixedConfig()
    x, s, r, layout = _tables(targets, synthetic, reference, layout)
    check_int("mixed.k", config.k, 1, len(s))
    (s_rows, s_counts), (r_rows, r_counts) = distinct_rows(s), distinct_rows(r)
    parts, categories = _categories(layout, x, s_rows, r_rows)
    numbers, log_volume = _whitened_by_last(layout, (x, s_rows, r_rows), r_counts, "reference")
    px, ps, pr = (MixedRows(*part) for part in zip(numbers, parts, strict=True))
    p_r = _fit(pr, r_counts, categories, config, log_volume)
    u, v = p_r.embed(px), p_r.embed(ps)
    near = (x, s_rows) if config.neighbours == "encoded" else (u, v)
    pairs = nearest_pairs(*near, s_counts, config.k)
    terms = fixed_terms(pairs, u, v, p_r.kernel, p_r.rows, config.precision)
    return np.bincount(pairs.target, weights=tie_weights(pairs, s_counts, config.k) * terms, minlength=len(x))


def domias_mixed(
    targets: Any, synthetic: Any, reference: Any, config: MixedConfig | None = None, layout: Layout | None = None
) -> np.ndarray:
    """``log p_S(x) - log p_R(x)`` with mixed kernels, each with its own covariance, bandwidth and lam.

    As in ``domias`` the numbers live in the directions in which both tables vary; where there are none, the categories
    decide alone.

    Args:
        targets: (n, d) encoded rows.
        synthetic: (m, d) encoded released rows, m >= 2.
        reference: (r, d) encoded independent rows, r >= 2.
        config: settings (not k, not neighbours); None for the defaults.
        layout: ``Encoder.layout``; None to infer it from the synthetic and the reference rows.

    Returns:
        (n,) float64; higher is more member-like. Equal to ``domias`` of the same rule where all columns are numbers.

    Raises:
        InputError: fewer than two rows, tables or a layout of different width, a row with two levels of one column, a
            table of numbers without a direction in which both vary.

    Example:
        >>> x, s, r = np.eye(2)[:, :1], np.eye(10)[:, :1], 1 - np.eye(10)[:, :1]
        >>> domias_mixed(x, s, r, MixedConfig(lam=0.5)).round(3).tolist()  # log of .3 / .7
        [-0.847, 0.847]
    """
    config = config or MixedConfig()
    x, s, r, layout = _tables(targets, synthetic, reference, layout)
    (s_rows, s_counts), (r_rows, r_counts) = distinct_rows(s), distinct_rows(r)
    parts, categories = _categories(layout, x, s_rows, r_rows)
    in_s, in_r, log_volume = _common_numbers(layout, (x, s_rows, r_rows), s_counts, r_counts)
    p_s = _fit(MixedRows(in_s[1], parts[1]), s_counts, categories, config, 0.0)
    p_r = _fit(MixedRows(in_r[2], parts[2]), r_counts, categories, config, log_volume)
    ratio = p_s.log_density(MixedRows(in_s[0], parts[0]), config.precision)
    return ratio - p_r.log_density(MixedRows(in_r[0], parts[0]), config.precision)


def density_mixed(
    targets: Any, synthetic: Any, config: MixedConfig | None = None, layout: Layout | None = None
) -> np.ndarray:
    """``log p_S(x)`` with a mixed kernel: the first term of ``domias_mixed`` alone.

    Args:
        targets: (n, d) encoded rows.
        synthetic: (m, d) encoded released rows, m >= 2.
        config: settings (not k, not neighbours); None for the defaults.
        layout: ``Encoder.layout``; None to infer it from the synthetic rows alone, in which a level that only the
            reference has leaves no trace.

    Returns:
        (n,) float64; higher is more member-like. Equal to ``density`` of the same rule where all columns are numbers.

    Raises:
        InputError: fewer than two rows, tables or a layout of different width, a row with two levels of one column, a
            table of numbers that do not vary in the release.

    Example:
        >>> s = np.array([[1.0, 0.0]] * 3 + [[0.0, 1.0]])
        >>> np.exp(density_mixed(s[2:], s, MixedConfig(lam=0.5), Layout((), ((0, 1),)))).round(9).tolist()
        [0.625, 0.375]
    """
    config = config or MixedConfig()
    x, s, _, layout = _tables(targets, synthetic, None, layout)
    s_rows, s_counts = distinct_rows(s)
    parts, categories = _categories(layout, x, s_rows)
    numbers, log_volume = _whitened_by_last(layout, (x, s_rows), s_counts, "synthetic")
    p_s = _fit(MixedRows(numbers[1], parts[1]), s_counts, categories, config, log_volume)
    return p_s.log_density(MixedRows(numbers[0], parts[0]), config.precision)


def _tables(
    targets: Any, synthetic: Any, reference: Any, layout: Layout | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Layout]:
    """Checked tables (the release also for an absent reference) and their layout."""
    x = as_rows("targets", targets)
    s = as_rows("synthetic", synthetic, x.shape[1])
    r = s if reference is None else as_rows("reference", reference, x.shape[1])
    for name, table in (("synthetic", s), ("reference", r)):
        require(len(table) >= 2, name, "have at least 2 rows", len(table))
    layout = layout or infer_layout(s, r)
    require(layout.columns == x.shape[1], "layout", f"have {x.shape[1]} columns", layout.columns)
    return x, s, r, layout


def _categories(layout: Layout, *tables: np.ndarray) -> tuple[list[np.ndarray], Categories]:
    codes = [layout.codes(table) for table in tables]
    unknown = np.any([(part < 0).any(axis=0) for part in codes], axis=0).reshape(-1)
    return codes, Categories(np.array(layout.levels, dtype=np.int64), unknown)


def _whitened_by_last(
    layout: Layout, tables: tuple[np.ndarray, ...], counts: np.ndarray, name: str
) -> tuple[list[np.ndarray], float]:
    """The tables' numbers in the coordinates of the last one, and its log volume; no column if it does not vary."""
    parts = [layout.numbers(table) for table in tables]
    if not layout.numeric:
        return parts, 0.0
    try:
        basis = fit_basis(parts[-1], counts, name=name)
    except InputError:  # numbers that do not vary have no density; the categories have one
        if not layout.blocks:
            raise
        return [part[:, :0] for part in parts], 0.0
    return [basis.whiten(part) for part in parts], basis.log_volume


def _common_numbers(
    layout: Layout, tables: tuple[np.ndarray, ...], s_counts: np.ndarray, r_counts: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray], float]:
    """Numbers of targets, release and reference in the directions in which the latter two vary.

    Whitened by the release, whitened by the reference, and the log volume of the second in units of the first.
    """
    outer, _ = _whitened_by_last(layout, tables, r_counts, "reference")
    if not outer[0].shape[1]:
        return outer, outer, 0.0
    try:
        # in the reference's whitened units: a direction in which the release has no variance to speak of is not common
        common = fit_basis(outer[1], s_counts, name="synthetic", standardise=False)
    except InputError:
        if not layout.blocks:
            raise
        empty = [part[:, :0] for part in outer]
        return empty, empty, 0.0
    in_s = [common.whiten(part) for part in outer]
    inner = fit_basis(in_s[2], r_counts)
    return in_s, [inner.whiten(part) for part in in_s], inner.log_volume


def _fit(
    rows: MixedRows, counts: np.ndarray, categories: Categories, config: MixedConfig, log_volume: float
) -> MixedDensity:
    return fit_mixed(rows, counts, categories, rule=config.rule, multiplier=config.multiplier, lam=config.lam,
                     log_volume=log_volume, precision=config.precision)  # fmt: skip
