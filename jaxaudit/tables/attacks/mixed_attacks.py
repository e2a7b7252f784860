"""Gen-LRA, DOMIAS and the density attack with a kernel for numbers and categories: ``jaxaudit.tables.mixed``.

The Gaussian attacks treat the indicator columns of a category as numbers: whitening blows up the columns of rare
levels, and every level adds a dimension. Here a category is one column whose levels agree or differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from jaxaudit.runtime.checks import check_choice, check_int, check_real
from jaxaudit.tables.attacks.gen_lra_terms import fixed_terms
from jaxaudit.tables.attacks.grids import family, one_or_several
from jaxaudit.tables.attacks.mixed_tables import categories, common_numbers, mixed_tables, whitened_by_last
from jaxaudit.tables.attacks.neighbours import NeighbourPairs, nearest_pairs, tie_weights
from jaxaudit.tables.density import distinct_rows
from jaxaudit.tables.layout import Layout
from jaxaudit.tables.mixed import Categories, MixedDensity, MixedRows, check_lam, fit_mixed

__all__ = ["MixedConfig", "density_mixed", "density_mixed_family", "domias_mixed", "domias_mixed_family",
           "gen_lra_mixed", "gen_lra_mixed_family"]  # fmt: skip

_LETTERS = {"k": "k", "multiplier": "h", "lam": "lam"}
"""Settings of which there may be several, in the order of axes and names; and how a name calls them."""


@dataclass(frozen=True)
class MixedConfig:
    """Settings of the attacks with a mixed kernel.

    Of k, multiplier and lam there may be several values: all combinations are scored in one pass.

    Attributes:
        k: nearest synthetic rows that enter a target's score (Gen-LRA only); or several.
        neighbours: "encoded": Euclidean in the encoded columns; "kernel": by the kernel of the reference's density,
            so that numbers are whitened and a category weighs as much as the kernel lets it (Gen-LRA only).
        rule: bandwidth of the numbers, "silverman", "scott" or a number in [1e-6, 1e6], in units of the standard
            deviation of whitened columns; dimension and covariance are those of the numeric columns alone.
        multiplier: scales that bandwidth, in [0.001, 1000]; or several.
        lam: smoothing of the categories, a number in [1e-6, 1]: the share of its largest value (c-1)/c, that is the
            share of cells drawn anew; or "cv" (leave-one-out likelihood) or "rule" (a rule of thumb per column), see
            ``mixed.fit_mixed``. These two fit the density of a table; likelihood smooths away the single copies that an
            attack looks for (``benchmarks/release_mixed.py``), hence a small number as the default. Or several.
        precision: "float64" or "float32".
    """

    k: int | tuple[int, ...] = 10
    neighbours: str = "encoded"
    rule: str | float = "silverman"
    multiplier: float | tuple[float, ...] = 1.0
    lam: str | float | tuple[str | float, ...] = 0.1
    precision: str = "float64"

    def __post_init__(self) -> None:
        for name in _LETTERS:
            object.__setattr__(self, name, one_or_several(f"mixed.{name}", getattr(self, name)))
        for k in self.ks:
            check_int("mixed.k", k, 1)
        check_choice("mixed.neighbours", self.neighbours, ("encoded", "kernel"))
        if isinstance(self.rule, str):
            check_choice("mixed.rule", self.rule, ("silverman", "scott"))
        else:
            check_real("mixed.rule", self.rule, 1e-6, 1e6)
        for multiplier, lam in self.kernels:
            check_real("mixed.multiplier", multiplier, 1e-3, 1e3)
            check_lam("mixed.lam", lam)
        check_choice("mixed.precision", self.precision, ("float32", "float64"))

    @property
    def ks(self) -> tuple[int, ...]:
        """Every k."""
        return self.k if isinstance(self.k, tuple) else (self.k,)

    @property
    def kernels(self) -> tuple[tuple[float, str | float], ...]:
        """Every multiplier with every lam."""
        multipliers = self.multiplier if isinstance(self.multiplier, tuple) else (self.multiplier,)
        return tuple(product(multipliers, self.lam if isinstance(self.lam, tuple) else (self.lam,)))

    def varying(self, *, k: bool = False) -> dict[str, tuple[Any, ...]]:
        """The settings with several values, with or without k, by their letters and in the order of axes."""
        names = list(_LETTERS)[0 if k else 1 :]
        return {_LETTERS[name]: value for name in names if isinstance(value := getattr(self, name), tuple)}


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
        (n,) float64; higher is more member-like. Equal to ``gen_lra`` (fixed) where all columns are numbers. Several
        values of a setting put an axis in front, in the order k, multiplier, lam.

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
    x, s, r, layout = mixed_tables(targets, synthetic, reference, layout)
    for k in config.ks:
        check_int("mixed.k", k, 1, len(s))
    (s_rows, s_counts), (r_rows, r_counts) = distinct_rows(s), distinct_rows(r)
    parts, levels = categories(layout, x, s_rows, r_rows)
    numbers, log_volume = whitened_by_last(layout, (x, s_rows, r_rows), r_counts, "reference")
    px, ps, pr = (MixedRows(*part) for part in zip(numbers, parts, strict=True))
    encoded = _nearest(x, s_rows, s_counts, config.ks) if config.neighbours == "encoded" else None

    def scores(multiplier: float, lam: str | float) -> np.ndarray:
        p_r = _fit(pr, r_counts, levels, config, multiplier, lam, log_volume)
        u, v = p_r.embed(px), p_r.embed(ps)
        pairs, weights = encoded or _nearest(u, v, s_counts, config.ks)
        terms = fixed_terms(pairs, u, v, p_r.kernel, p_r.rows, config.precision)
        return np.stack([np.bincount(pairs.target, weights=own * terms, minlength=len(x)) for own in weights])

    return _every_kernel(scores, config, k=True)


def gen_lra_mixed_family(
    targets: Any, synthetic: Any, reference: Any, config: MixedConfig | None = None, layout: Layout | None = None
) -> dict[str, np.ndarray]:
    """``gen_lra_mixed`` of a grid as a family of attacks, by name: ``gen_lra_mixed[k=5,h=1,lam=0.1]``.

    Names carry the settings of which several values are given, h for the multiplier; without any the one name is
    ``gen_lra_mixed``.

    Raises:
        InputError: as ``gen_lra_mixed``.

    Example:
        >>> x, s, r = np.random.default_rng(0).integers(0, 2, size=(3, 20, 4)).astype(float)
        >>> list(gen_lra_mixed_family(x, s, r, MixedConfig(k=(1, 5), lam=("cv",))))
        ['gen_lra_mixed[k=1,lam=cv]', 'gen_lra_mixed[k=5,lam=cv]']
    """
    config = config or MixedConfig()
    return family("gen_lra_mixed", gen_lra_mixed(targets, synthetic, reference, config, layout), config.varying(k=True))


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
        Several values of a setting put an axis in front, in the order multiplier, lam.

    Raises:
        InputError: fewer than two rows, tables or a layout of different width, a row with two levels of one column, a
            table of numbers without a direction in which both vary.

    Example:
        >>> x, s, r = np.eye(2)[:, :1], np.eye(10)[:, :1], 1 - np.eye(10)[:, :1]
        >>> domias_mixed(x, s, r, MixedConfig(lam=0.5)).round(3).tolist()  # log of .3 / .7
        [-0.847, 0.847]
    """
    config = config or MixedConfig()
    x, s, r, layout = mixed_tables(targets, synthetic, reference, layout)
    (s_rows, s_counts), (r_rows, r_counts) = distinct_rows(s), distinct_rows(r)
    parts, levels = categories(layout, x, s_rows, r_rows)
    in_s, in_r, log_volume = common_numbers(layout, (x, s_rows, r_rows), s_counts, r_counts)

    def scores(multiplier: float, lam: str | float) -> np.ndarray:
        p_s = _fit(MixedRows(in_s[1], parts[1]), s_counts, levels, config, multiplier, lam, 0.0)
        p_r = _fit(MixedRows(in_r[2], parts[2]), r_counts, levels, config, multiplier, lam, log_volume)
        ratio = p_s.log_density(MixedRows(in_s[0], parts[0]), config.precision)
        return ratio - p_r.log_density(MixedRows(in_r[0], parts[0]), config.precision)

    return _every_kernel(scores, config)


def domias_mixed_family(
    targets: Any, synthetic: Any, reference: Any, config: MixedConfig | None = None, layout: Layout | None = None
) -> dict[str, np.ndarray]:
    """``domias_mixed`` of a grid as a family of attacks, by name: ``domias_mixed[h=1,lam=0.1]``.

    Raises:
        InputError: as ``domias_mixed``.

    Example:
        >>> x, s, r = np.random.default_rng(0).integers(0, 2, size=(3, 20, 4)).astype(float)
        >>> list(domias_mixed_family(x, s, r, MixedConfig(k=(1, 5), lam=(0.1, "rule"))))  # k is not for DOMIAS
        ['domias_mixed[lam=0.1]', 'domias_mixed[lam=rule]']
    """
    config = config or MixedConfig()
    return family("domias_mixed", domias_mixed(targets, synthetic, reference, config, layout), config.varying())


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
        Several values of a setting put an axis in front, in the order multiplier, lam.

    Raises:
        InputError: fewer than two rows, tables or a layout of different width, a row with two levels of one column, a
            table of numbers that do not vary in the release.

    Example:
        >>> s = np.array([[1.0, 0.0]] * 3 + [[0.0, 1.0]])
        >>> np.exp(density_mixed(s[2:], s, MixedConfig(lam=0.5), Layout((), ((0, 1),)))).round(9).tolist()
        [0.625, 0.375]
    """
    config = config or MixedConfig()
    x, s, _, layout = mixed_tables(targets, synthetic, None, layout)
    s_rows, s_counts = distinct_rows(s)
    parts, levels = categories(layout, x, s_rows)
    numbers, log_volume = whitened_by_last(layout, (x, s_rows), s_counts, "synthetic")

    def scores(multiplier: float, lam: str | float) -> np.ndarray:
        p_s = _fit(MixedRows(numbers[1], parts[1]), s_counts, levels, config, multiplier, lam, log_volume)
        return p_s.log_density(MixedRows(numbers[0], parts[0]), config.precision)

    return _every_kernel(scores, config)


def density_mixed_family(
    targets: Any, synthetic: Any, config: MixedConfig | None = None, layout: Layout | None = None
) -> dict[str, np.ndarray]:
    """``density_mixed`` of a grid as a family of attacks, by name: ``density_mixed[h=1,lam=0.1]``.

    Raises:
        InputError: as ``density_mixed``.

    Example:
        >>> x, s = np.random.default_rng(0).integers(0, 2, size=(2, 20, 4)).astype(float)
        >>> list(density_mixed_family(x, s, MixedConfig(multiplier=(0.5, 1))))
        ['density_mixed[h=0.5]', 'density_mixed[h=1]']
    """
    config = config or MixedConfig()
    return family("density_mixed", density_mixed(targets, synthetic, config, layout), config.varying())


def _every_kernel(
    scores: Callable[[float, str | float], np.ndarray], config: MixedConfig, *, k: bool = False
) -> np.ndarray:
    """``scores(multiplier, lam)``, (n,) or (k, n), of every kernel; an axis for every setting that varies."""
    found = np.stack([scores(*kernel) for kernel in config.kernels], axis=-2)
    return found.reshape(*(len(values) for values in config.varying(k=k).values()), found.shape[-1])


def _nearest(
    targets: np.ndarray, rows: np.ndarray, counts: np.ndarray, ks: tuple[int, ...]
) -> tuple[NeighbourPairs, list[np.ndarray]]:
    """Pairs for the largest k, and their weights under every k."""
    pairs = nearest_pairs(targets, rows, counts, max(ks))
    return pairs, [tie_weights(pairs, counts, k) for k in ks]


def _fit(
    rows: MixedRows, counts: np.ndarray, categories: Categories, config: MixedConfig, multiplier: float,
    lam: str | float, log_volume: float,
) -> MixedDensity:  # fmt: skip
    return fit_mixed(rows, counts, categories, rule=config.rule, multiplier=multiplier, lam=lam,
                     log_volume=log_volume, precision=config.precision)  # fmt: skip
