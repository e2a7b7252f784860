"""What a sweep of the local-overfitting model shows: agreement with theory, straight lines, and which attack wins.

Every interval is over replications, which are independent data sets; cells are independent of each other too, so
that tests over cells need no further assumption. Within a cell all attacks see the same data: they are compared by
differences inside replications.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

__all__ = ["Cell", "Label", "expectations", "linearity_sentence", "standard_error", "summarise", "welch_test"]


class Label(NamedTuple):
    """Which score a row of ``Cell.auc`` is: the attack, and k and bandwidth multiplier of Gen-LRA."""

    attack: str
    k: int | None = None
    multiplier: float | None = None


@dataclass(frozen=True)
class Cell:
    """One cell of a sweep: V scores, R replications, H bandwidths.

    Attributes:
        d: columns.
        n: rows of the reference.
        rho: standard deviation of a near copy.
        eps: share of near copies.
        auc: (V, R) of every score.
        gap: (V, R) mean score of members minus that of non-members.
        slope: (H,) predicted gap per eps at k = m.
        slope_se: (H,) its standard error.
        plug_in: (H,) its plug-in value.
    """

    d: int
    n: int
    rho: float
    eps: float
    auc: np.ndarray
    gap: np.ndarray
    slope: np.ndarray
    slope_se: np.ndarray
    plug_in: np.ndarray


def standard_error(values: Any) -> np.ndarray:
    """Standard error of the mean along the last axis.

    Example:
        >>> round(float(standard_error([1.0, 2.0, 3.0])), 3)
        0.577
    """
    values = np.asarray(values, dtype=np.float64)
    return np.asarray(values.std(axis=-1, ddof=1) / np.sqrt(values.shape[-1]))


def welch_test(means: Any, errors: Any, count: int) -> float:
    """p-value of equal means of L groups with variances of their own.

    Welch's heteroscedastic analysis of variance ("On the comparison of several mean values", Biometrika 38, 1951).

    Args:
        means: (L,) group means, L >= 2.
        errors: (L,) their standard errors, > 0.
        count: values per group, >= 2.

    Example:
        >>> groups = np.array([[1.0, 2.0, 3.0, 4.0], [1.5, 2.5, 3.5, 5.5]])
        >>> expected = stats.ttest_ind(*groups, equal_var=False).pvalue
        >>> bool(np.isclose(welch_test(groups.mean(axis=1), standard_error(groups), 4), expected))
        True
    """
    means, weights = np.asarray(means, dtype=np.float64), 1 / np.asarray(errors, dtype=np.float64) ** 2
    groups, share = len(means), weights / weights.sum()
    between = np.sum(weights * (means - np.sum(share * means)) ** 2) / (groups - 1)
    spare = np.sum((1 - share) ** 2) / (count - 1)
    statistic = between / (1 + 2 * (groups - 2) / (groups**2 - 1) * spare)
    return float(stats.f.sf(statistic, groups - 1, (groups**2 - 1) / (3 * spare)))


def summarise(
    cells: Sequence[Cell], labels: Sequence[Label], *, ks: Sequence[int], multipliers: Sequence[float], level: float
) -> dict[str, Any]:
    """The findings of a sweep as plain nested values.

    Args:
        cells: all with the same scores.
        labels: of the scores.
        ks: every k of Gen-LRA, m last.
        multipliers: every bandwidth multiplier.
        level: confidence level.

    Returns:
        "agreement": ``agreement``; "linearity": one entry per (d, n, rho, k, multiplier), ``linearity``; "map": one
        entry per cell, ``winners``; "claims": differences of AUC by rho, ``claims``.
    """
    where = {(label.k, label.multiplier): index for index, label in enumerate(labels) if label.attack == "gen_lra"}
    whole = [where[ks[-1], float(h)] for h in multipliers]
    found = [_winner(cell, labels, level) for cell in cells]
    return {
        "agreement": agreement(cells, whole, level),
        "linearity": linearity(cells, where, ks, multipliers),
        "map": [entry for entry, _ in found],
        "claims": claims(cells, [areas for _, areas in found], level),
    }


def agreement(cells: Sequence[Cell], whole: Sequence[int], level: float) -> dict[str, Any]:
    """Simulated against predicted gaps at k = m, over all cells and bandwidths.

    A case is "within" where the difference is inside its own t interval at ``level``, both standard errors
    counted; "p_adjusted" is the smallest p-value times the number of cases (Bonferroni).
    """
    z, count = [], cells[0].gap.shape[1]
    for cell in cells:
        gaps = cell.gap[list(whole)]
        error = np.sqrt(standard_error(gaps) ** 2 + (cell.eps * cell.slope_se) ** 2)
        z.append((gaps.mean(axis=1) - cell.eps * cell.slope) / error)
    values = np.concatenate(z)
    p = 2 * stats.t.sf(np.abs(values), count - 1)
    return {
        "cells": len(values), "within": int((p > 1 - level).sum()), "level": level,
        "largest_z": float(values[np.abs(values).argmax()]), "p_adjusted": float(min(1.0, len(p) * p.min())),
    }  # fmt: skip


def linearity(
    cells: Sequence[Cell], where: dict[tuple[int | None, float | None], int], ks: Sequence[int],
    multipliers: Sequence[float],
) -> list[dict[str, Any]]:  # fmt: skip
    """Is the gap a straight line through the origin in eps? One entry per (d, n, rho, k, multiplier).

    It is one exactly where gap / eps has the same mean in every cell, which Welch's test checks ("lack_of_fit_p"; cells
    with eps = 0 say nothing). "slope" is the gap per eps by least squares, "trend" the change of gap / eps per unit of
    eps with the same weights eps^2 (weights taken from the data would pull both down, since large gaps vary more);
    below 0 the gap grows ever more slowly. NaN with a single eps > 0.
    """
    found = []
    for d, n, rho in dict.fromkeys((cell.d, cell.n, cell.rho) for cell in cells):
        line = [cell for cell in cells if (cell.d, cell.n, cell.rho) == (d, n, rho) and cell.eps > 0]
        for k in ks if line else ():
            for at, multiplier in enumerate(multipliers):
                slopes = np.stack([cell.gap[where[k, float(multiplier)]] / cell.eps for cell in line])
                entry = {"d": d, "n": n, "rho": float(rho), "k": k, "multiplier": float(multiplier)}
                entry |= _line(np.array([cell.eps for cell in line]), slopes)
                if k == ks[-1]:
                    entry |= {"predicted": float(line[0].slope[at]), "predicted_se": float(line[0].slope_se[at])}
                found.append(entry)
    return found


def _line(eps: np.ndarray, slopes: np.ndarray) -> dict[str, float]:
    """Fit and test of gap / eps, slopes (cells, replications)."""
    means, errors, share = slopes.mean(axis=1), standard_error(slopes), eps**2 / np.sum(eps**2)
    found = {"slope": float(share @ means), "slope_se": float(np.linalg.norm(share * errors))}
    if len(eps) < 2:
        return found | {"lack_of_fit_p": np.nan, "trend": np.nan, "trend_se": np.nan}
    pull = share * (eps - share @ eps)
    pull = pull / (pull @ eps)
    return found | {
        "lack_of_fit_p": welch_test(means, errors, slopes.shape[1]),
        "trend": float(pull @ means), "trend_se": float(np.linalg.norm(pull * errors)),
    }  # fmt: skip


def _contenders(cell: Cell, labels: Sequence[Label]) -> tuple[dict[str, np.ndarray], Label]:
    """AUC (R,) of every attack, and Gen-LRA's best setting.

    Gen-LRA enters at the setting that is best in the other replications: choosing it by the replication that it is
    judged by would credit it with luck.
    """
    areas: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(label.attack for label in labels):
        index = [i for i, label in enumerate(labels) if label.attack == name]
        rows = cell.auc[index]
        elsewhere = rows.sum(axis=1, keepdims=True) - rows
        areas[name] = rows[elsewhere.argmax(axis=0), np.arange(rows.shape[1])]
        if name == "gen_lra":
            best = labels[index[int(rows.mean(axis=1).argmax())]]
    return areas, best


def _winner(cell: Cell, labels: Sequence[Label], level: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Entry of the map, and the AUCs (R,) that it rests on.

    "winner" is the attack with the largest mean AUC; None where even its interval, Bonferroni over the attacks, reaches
    down to guessing. "tied" lists the attacks whose difference to it is within error at ``level``.
    """
    areas, setting = _contenders(cell, labels)
    count = cell.auc.shape[1]
    best = max(areas, key=lambda name: areas[name].mean())
    sure = stats.t.ppf(1 - (1 - level) / (2 * len(areas)), count - 1)
    close = stats.t.ppf((1 + level) / 2, count - 1)
    tied = [
        name for name, area in areas.items()
        if name != best and (areas[best] - area).mean() <= close * standard_error(areas[best] - area)
    ]  # fmt: skip
    found = bool(areas[best].mean() - sure * standard_error(areas[best]) > 0.5)
    entry = {
        "d": cell.d, "n": cell.n, "rho": float(cell.rho), "eps": float(cell.eps), "winner": best if found else None,
        "auc": float(areas[best].mean()), "auc_se": float(standard_error(areas[best])), "tied": tied if found else [],
        "gen_lra": {"k": setting.k, "multiplier": setting.multiplier},
        "attacks": {
            name: {"auc": float(area.mean()), "auc_se": float(standard_error(area))} for name, area in areas.items()
        },
    }  # fmt: skip
    return entry, areas


def claims(
    cells: Sequence[Cell], areas: Sequence[dict[str, np.ndarray]], level: float
) -> dict[str, list[dict[str, Any]]]:
    """What theory expects of pairs of attacks: differences of AUC by rho, over all cells with it.

    Per rho "difference" is the mean over cells, with its standard error; "ahead", "tied" and "behind" count cells by
    their own t interval at ``level``.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for first, second in (("gen_lra", "domias"), ("dcr", "gen_lra")):
        if first not in areas[0] or second not in areas[0]:
            continue
        rows = []
        for rho in sorted({cell.rho for cell in cells}):
            here = [a[first] - a[second] for cell, a in zip(cells, areas, strict=True) if cell.rho == rho]
            differences = np.stack(here)
            mean, error = differences.mean(axis=1), standard_error(differences)
            reach = stats.t.ppf((1 + level) / 2, differences.shape[1] - 1) * error
            rows.append({
                "rho": float(rho), "cells": len(here), "difference": float(mean.mean()),
                "difference_se": float(np.sqrt(np.sum(error**2)) / len(here)),
                "ahead": int((mean > reach).sum()), "behind": int((mean < -reach).sum()),
                "tied": int((np.abs(mean) <= reach).sum()),
            })  # fmt: skip
        found[f"{first} - {second}"] = rows
    return found


def linearity_sentence(entries: Sequence[dict[str, Any]], release: int) -> str:
    """Straight lines at k = m, and how they bend at the smallest k."""
    tested = [entry for entry in entries if not np.isnan(entry["lack_of_fit_p"])]
    if not tested:
        return "straight lines in eps: not tested with a single eps above 0"
    whole = [entry["lack_of_fit_p"] for entry in tested if entry["k"] == release]
    smallest = min(entry["k"] for entry in tested)
    bent = [entry for entry in tested if entry["k"] == smallest]
    falling = sum(entry["trend"] < -2 * entry["trend_se"] for entry in bent)
    rising = sum(entry["trend"] > 2 * entry["trend_se"] for entry in bent)
    text = (
        f"straight line in eps at k = m: {sum(p < 0.05 for p in whole)} of {len(whole)} lines rejected at p < .05 "
        f"(smallest p, adjusted: {min(1.0, len(whole) * min(whole)):.2g})"
    )
    if smallest == release:
        return text
    return f"{text}; at k = {smallest} the gap per eps falls with eps in {falling} of {len(bent)}, rises in {rising}"


def expectations(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[str, ...]:
    """What theory expects of pairs of attacks, and what was found, one sentence each; ``found`` is of ``claims``."""
    lines = []
    for name, rows in found.items():
        first, second = name.split(" - ")
        cells, ahead, behind = (sum(row[key] for row in rows) for key in ("cells", "ahead", "behind"))
        tally = f"{first} is ahead of {second} in {ahead}, behind in {behind} of {cells} cells"
        if first == "gen_lra":
            lines.append(f"expected: gen_lra at its best k is not behind {second}; found: {tally}")
            continue
        signs = [(row["rho"], row["difference"] / max(row["difference_se"], 1e-300)) for row in rows]
        better, worse = ([f"{rho:g}" for rho, z in signs if sign * z > 2] for sign in (1, -1))
        by_rho = [f"{word} on the mean over eps at rho {', '.join(values)}" for word, values in
                  (("ahead", better), ("behind", worse)) if values]  # fmt: skip
        lines.append(f"expected: {first} is ahead of {second} for rho below about 0.3 and behind above; found: "
                     + "; ".join([tally, *by_rho]))  # fmt: skip
    return tuple(lines)
