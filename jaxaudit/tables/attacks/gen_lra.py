"""Gen-LRA: how much does adding the target to the reference raise the density of the release around it?

Source: Ward, Wang and Cheng, "Privacy Auditing Synthetic Data Release through Local Likelihood Attacks",
arXiv:2508.21146. The terms of the sum, and why no density is ever refitted: ``gen_lra_terms``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxaudit.runtime.checks import check_choice, check_int, check_real, require
from jaxaudit.tables.attacks.gen_lra_terms import fixed_terms, refit_terms
from jaxaudit.tables.attacks.grids import family, one_or_several
from jaxaudit.tables.attacks.neighbours import NeighbourPairs, check_k, nearest_pairs, tie_weights
from jaxaudit.tables.basis import Basis, SpanReport, fit_basis, span_report
from jaxaudit.tables.density import as_rows, bandwidth_factor, distinct_rows, fit_density

__all__ = ["GenLRAConfig", "GenLRAEvidence", "GenLRAResult", "gen_lra", "gen_lra_evidence", "gen_lra_family",
           "gen_lra_scores"]  # fmt: skip

_FLOOR = np.log(1e-20)

_REACH = {"float32": 1e15, "float64": 1e100}
"""Farthest rows, in standard deviations of the reference: squares of their distances are finite."""


@dataclass(frozen=True)
class GenLRAConfig:
    """Settings of Gen-LRA.

    Attributes:
        k: nearest synthetic rows that enter a target's score; or several k, scored in one pass.
        bandwidth: "fixed" keeps bandwidth and covariance of the reference (the influence of one more kernel);
            "refit" re-estimates size, bandwidth and covariance with the target added, exactly; "synth_mia" is
            refit with the additive floor 1e-20 inside the logarithms, in the units of the table: only for
            reproducing that library's numbers (they use ``neighbours="encoded"`` and k = 200).
        neighbours: "encoded": Euclidean in the columns as given; "whitened": in the reference's whitened space,
            which makes scores invariant under invertible affine maps of the table.
        rule: "silverman" or "scott"; or a number in [1e-6, 1e6], the bandwidth itself in units of the standard
            deviation (of whitened columns), which adding the target then leaves as it is.
        multiplier: scales the bandwidth, before and after adding the target alike; in [0.001, 1000]; or several.
        precision: "float64"; "float32" for the sums over the reference is faster on accelerators. An exponent is then
            off by about 1e-7 (|u|^2 + |v|^2) / h^2 in whitened coordinates: relative error of a score about 1e-4 at
            the bandwidths of the rules, much more with a multiplier of .1 and less. Neighbours are exact either way.
    """

    k: int | tuple[int, ...] = 10
    bandwidth: str = "fixed"
    neighbours: str = "encoded"
    rule: str | float = "silverman"
    multiplier: float | tuple[float, ...] = 1.0
    precision: str = "float64"

    def __post_init__(self) -> None:
        for name in ("k", "multiplier"):
            object.__setattr__(self, name, one_or_several(f"gen_lra.{name}", getattr(self, name)))
        for k in self.ks:
            check_int("gen_lra.k", k, 1)
        check_choice("gen_lra.bandwidth", self.bandwidth, ("fixed", "refit", "synth_mia"))
        check_choice("gen_lra.neighbours", self.neighbours, ("encoded", "whitened"))
        if isinstance(self.rule, str):
            check_choice("gen_lra.rule", self.rule, ("silverman", "scott"))
        else:
            check_real("gen_lra.rule", self.rule, 1e-6, 1e6)
        for multiplier in self.multipliers:
            check_real("gen_lra.multiplier", multiplier, 1e-3, 1e3)
        check_choice("gen_lra.precision", self.precision, ("float32", "float64"))

    @property
    def ks(self) -> tuple[int, ...]:
        """Every k."""
        return self.k if isinstance(self.k, tuple) else (self.k,)

    @property
    def multipliers(self) -> tuple[float, ...]:
        """Every bandwidth multiplier."""
        return self.multiplier if isinstance(self.multiplier, tuple) else (self.multiplier,)


@dataclass(frozen=True)
class GenLRAResult:
    """Scores and what the reference could not describe.

    Attributes:
        scores: (n,) float64; a grid of k puts an axis (k,) in front, a grid of multipliers one (multipliers,) between:
            (k, multipliers, n); higher is more member-like.
        effective_dimension: directions that the reference spans; used in the bandwidth and the densities.
        out_of_span: (n,) distance of each target from that span, in column standard deviations.
        warnings: one sentence each.
    """

    scores: np.ndarray
    effective_dimension: int
    out_of_span: np.ndarray
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class GenLRAEvidence:
    """Which released rows betray a record, and by how much; one entry per pair, a target's largest first.

    Attributes:
        target: (p,) index of the target, ascending.
        row: (p,) index of the row in the synthetic table as given; copies have an entry each.
        squared: (p,) squared distance, in the space where neighbours were found.
        weight: (p,) share of a place among the k nearest, in (0, 1]: below 1 for ties at the k-th distance.
        contribution: (p,) weight times log density ratio at the row; a target's sum is its score.
        scores: (n,) the scores.
    """

    target: np.ndarray
    row: np.ndarray
    squared: np.ndarray
    weight: np.ndarray
    contribution: np.ndarray
    scores: np.ndarray


def gen_lra(
    targets: Any, synthetic: Any, reference: Any, k: int | Sequence[int] = 10, bandwidth: str = "fixed",
    neighbours: str = "encoded", *, rule: str | float = "silverman", multiplier: float | Sequence[float] = 1.0,
    precision: str = "float64",
) -> np.ndarray:  # fmt: skip
    """Gen-LRA score of every target: the sum of log density ratios over its k nearest synthetic rows.

    ``score(x) = sum_{s in S_k(x)} [log p_{R + x}(s) - log p_R(s)]`` with Gaussian kernel densities. All rows at
    the k-th distance enter with equal fractional weight; scores depend neither on the row order of a table nor,
    beyond rounding, on which other targets are scored.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows.
        reference: (r, d) independent rows of the same population, r >= 2.
        k: neighbours, in [1, m]; or several.
        bandwidth: "fixed", "refit" or "synth_mia" (see ``GenLRAConfig``).
        neighbours: "encoded" or "whitened".
        rule: "silverman", "scott" or the bandwidth itself.
        multiplier: bandwidth multiplier, in [0.001, 1000]; or several.
        precision: "float64" or "float32".

    Returns:
        (n,) float64, higher is more member-like; with several k and multipliers (len(k), len(multiplier), n), found in
        one pass: neighbours once, every k by weights of the same terms.

    Raises:
        InputError: an argument outside its range, tables of different width, values that are not finite.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> members, others, reference = rng.normal(size=(3, 40, 2))
        >>> release = members + 0.05 * rng.normal(size=members.shape)
        >>> scores = gen_lra(np.concatenate([members, others]), release, reference, k=1)
        >>> bool(scores[:40].mean() > scores[40:].mean())
        True
        >>> gen_lra(members, release, reference, k=[1, 5, 10], multiplier=[0.5, 1.0]).shape
        (3, 2, 40)
    """
    config = GenLRAConfig(k, bandwidth, neighbours, rule, multiplier, precision)  # type: ignore[arg-type]
    return gen_lra_scores(targets, synthetic, reference, config).scores


def gen_lra_scores(
    targets: Any, synthetic: Any, reference: Any, config: GenLRAConfig | None = None, *,
    k_grid: tuple[int, ...] | None = None,
) -> GenLRAResult:  # fmt: skip
    """``gen_lra`` with its settings in one place, and its warnings.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows.
        reference: (r, d) independent rows, r >= 2.
        config: settings; None for the defaults.
        k_grid: several k, each in [1, m], instead of ``config.k``.

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
    work = _Work(targets, synthetic, reference, config if k_grid is None else replace(config, k=tuple(k_grid)))
    scores = work.scores()
    if not isinstance(work.config.multiplier, tuple):
        scores = scores[:, 0]
    if not isinstance(work.config.k, tuple):
        scores = scores[0]
    report = work.report()
    return GenLRAResult(scores, report.effective_dimension, report.out_of_span, report.warnings)


def gen_lra_family(
    targets: Any, synthetic: Any, reference: Any, config: GenLRAConfig | None = None
) -> dict[str, np.ndarray]:
    """The scores of a grid as a family of attacks, by name: ``gen_lra[k=5,h=1]``, h the bandwidth multiplier.

    Names carry the settings that vary; without a grid the one name is ``gen_lra``.

    Raises:
        InputError: as ``gen_lra``.

    Example:
        >>> x, s, r = np.random.default_rng(0).normal(size=(3, 20, 2))
        >>> list(gen_lra_family(x, s, r, GenLRAConfig(k=(1, 5), multiplier=(0.5, 1))))
        ['gen_lra[k=1,h=0.5]', 'gen_lra[k=1,h=1]', 'gen_lra[k=5,h=0.5]', 'gen_lra[k=5,h=1]']
    """
    config = config or GenLRAConfig()
    scores = gen_lra_scores(targets, synthetic, reference, config).scores
    varying = {"k": config.k, "h": config.multiplier}
    return family("gen_lra", scores, {name: value for name, value in varying.items() if isinstance(value, tuple)})


def gen_lra_evidence(
    targets: Any, synthetic: Any, reference: Any, config: GenLRAConfig | None = None
) -> GenLRAEvidence:
    """Which released rows betray each record, and by how much.

    Args:
        targets: (n, d) numbers.
        synthetic: (m, d) the released rows.
        reference: (r, d) independent rows, r >= 2.
        config: settings with one k and one multiplier; None for the defaults.

    Raises:
        InputError: as ``gen_lra``; a grid of k or of multipliers.

    Example:
        >>> x, s, r = np.array([[0.0]]), np.array([[4.0], [0.1], [-3.0]]), np.array([[-1.0], [0.0], [1.0], [2.0]])
        >>> evidence = gen_lra_evidence(x, s, r, GenLRAConfig(k=2))
        >>> evidence.row.tolist(), bool(np.isclose(evidence.contribution.sum(), gen_lra(x, s, r, k=2)[0]))
        ([1, 2], True)
    """
    work = _Work(targets, synthetic, reference, config or GenLRAConfig())
    for name in ("k", "multiplier"):
        require(not isinstance(getattr(work.config, name), tuple), f"gen_lra.{name}", "be one value for evidence",
                getattr(work.config, name))  # fmt: skip
    pairs, (terms,) = work.pairs, work.terms()
    share = tie_weights(pairs, work.s_counts, work.config.ks[0]) / work.s_counts[pairs.row]
    # every copy of a distinct row is a row of its own; ``origin`` lists them, distinct row by distinct row
    copies = work.s_counts[pairs.row]
    pair = np.repeat(np.arange(len(copies)), copies)
    first = np.cumsum(work.s_counts) - work.s_counts
    place = np.arange(len(pair)) - np.repeat(np.cumsum(copies) - copies, copies)
    row = work.origin[first[pairs.row][pair] + place]
    contribution = (share * terms)[pair]
    kept = np.flatnonzero(share[pair] > 0)
    kept = kept[np.lexsort((row[kept], -contribution[kept], pairs.target[pair[kept]]))]
    pair = pair[kept]
    scores = work.scores_from([terms])[0, 0]
    return GenLRAEvidence(pairs.target[pair], row[kept], pairs.squared[pair], share[pair], contribution[kept], scores)


class _Work:
    """Tables, neighbours and terms of one call."""

    def __init__(self, targets: Any, synthetic: Any, reference: Any, config: GenLRAConfig) -> None:
        self.config = config
        self.x = as_rows("targets", targets)
        s = as_rows("synthetic", synthetic, self.x.shape[1])
        self.s_rows, self.s_counts, self.origin = distinct_rows(s, origin=True)
        r_rows, r_counts = distinct_rows(as_rows("reference", reference, self.x.shape[1]))
        largest = max(check_k(k, len(s)) for k in config.ks)
        self.basis: Basis = fit_basis(r_rows, r_counts)
        self.u, self.v = self.basis.whiten(self.x), self.basis.whiten(self.s_rows)
        for name, rows in (("targets", self.u), ("synthetic", self.v)):
            reach = float(np.abs(rows).max())
            rule = f"lie within {_REACH[config.precision]:g} standard deviations of the reference"
            require(reach <= _REACH[config.precision], name, rule, reach)
        self.r, self.r_counts, self.n = self.basis.whiten(r_rows), r_counts, int(r_counts.sum())
        near = (self.u, self.v) if config.neighbours == "whitened" else (self.x, self.s_rows)
        self.pairs: NeighbourPairs = nearest_pairs(*near, self.s_counts, largest)

    def terms(self) -> list[np.ndarray]:
        """Per multiplier the terms (p,) of all pairs."""
        config, e, found = self.config, self.basis.dimension, []
        for multiplier in config.multipliers:
            h = bandwidth_factor(self.n, e, config.rule, multiplier)
            density = fit_density(self.r, self.r_counts, h, self.basis.log_volume)
            where = (self.pairs, self.u, self.v, density, self.n)
            if config.bandwidth == "fixed":
                found.append(fixed_terms(*where, config.precision))
                continue
            h_next = bandwidth_factor(self.n + 1, e, config.rule, multiplier)
            terms, log_p = refit_terms(*where, h_next, config.precision)
            if config.bandwidth == "synth_mia":
                terms = np.logaddexp(log_p + terms, _FLOOR) - np.logaddexp(log_p, _FLOOR)
            found.append(terms)
        return found

    def scores_from(self, terms: list[np.ndarray]) -> np.ndarray:
        """Sums of weighted terms, (k, multipliers, n)."""
        # bincount adds a target's pairs one by one in row order; other targets change its terms by rounding at most
        # (their number sets the shapes that are compiled)
        scores = np.empty((len(self.config.ks), len(terms), len(self.x)))
        for i, k in enumerate(self.config.ks):
            weights = tie_weights(self.pairs, self.s_counts, k)
            for j, values in enumerate(terms):
                scores[i, j] = np.bincount(self.pairs.target, weights=weights * values, minlength=len(self.x))
        return scores

    def scores(self) -> np.ndarray:
        return self.scores_from(self.terms())

    def report(self) -> SpanReport:
        return span_report(self.x, self.s_rows, self.basis)
