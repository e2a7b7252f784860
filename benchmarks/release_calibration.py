"""Calibration of the release audit: what it says of releases that leak nothing, and what it finds in those that copy.

Null: members, non-members, reference and release are independent draws from one population. Of the adjusted p-values
5 % should be <= .05, and the intervals of the AUC should cover .5 as often as they say. Positive: a share of the
released rows are members, resampled; the power is the share of releases whose adjusted p is <= .05.

Writes ``benchmarks/results/release_calibration.json`` and ``benchmarks/results/figures/release_power.png``.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np
import pandas as pd
from machine import RESULTS, machine, save
from scipy.stats import binom

FAST = ("gen_lra", "dcr", "domias", "dcr_diff", "dpi", "density", "mc", "local_neighbourhood")
SLOW = ("classifier", "logan", "gen_lra_bnaf", "domias_bnaf", "density_bnaf")
SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
LEVEL = 0.95


def population(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """Four dependent numbers, one of them skewed and one rounded, and a category that depends on them."""
    z = rng.normal(size=(rows, 4))
    x = z[:, :1] * 0.6 + z * 0.8
    return pd.DataFrame({
        "a": x[:, 0], "b": np.exp(x[:, 1]), "c": np.round(10 * x[:, 2]), "d": x[:, 3],
        "e": np.where(x[:, 0] + rng.normal(size=rows) > 0.5, "p", np.where(rng.random(rows) < 0.3, "q", "r")),
    })  # fmt: skip


def judge(n: int, share: float, attacks: tuple[str, ...], permutations: int, seed: int) -> dict[str, Any]:
    """One release of n rows, of which a share are members: AUCs, adjusted p-values, whether the intervals hold .5."""
    from jaxaudit.evaluate.bca import auc_bca
    from jaxaudit.evaluate.multiplicity import max_permutation
    from jaxaudit.evaluate.roc import auc_interval
    from jaxaudit.tables.attacks import score_attacks
    from jaxaudit.tables.encode import fit_encoder

    rng = np.random.default_rng([seed, n, round(1000 * share)])
    members, non_members, reference, synthetic = (population(rng, n) for _ in range(4))
    copied = np.flatnonzero(rng.random(n) < share)
    synthetic.iloc[copied] = members.iloc[rng.integers(n, size=len(copied))].to_numpy()
    encoder = fit_encoder(reference, synthetic)
    encoded = [encoder.transform(table) for table in (members, non_members, synthetic, reference)]
    targets, member = np.concatenate(encoded[:2]), np.arange(2 * n) < n
    scores = np.stack(list(score_attacks(attacks, targets, *encoded[2:], seed=seed).values()))
    test = max_permutation(scores, member, permutations, seed)
    delong = np.array([auc_interval(row, member, level=LEVEL) for row in scores])
    bca = auc_bca(scores, member, level=LEVEL, seed=seed)
    covers = {name: (ends[:, 0] <= 0.5) & (ends[:, 1] >= 0.5) for name, ends in (("delong", delong), ("bca", bca))}
    return {"auc": test.auc, "p": test.adjusted, **covers}


def repeat(n: int, share: float, attacks: tuple[str, ...], options: argparse.Namespace, times: int) -> dict[str, Any]:
    """Figures over ``times`` releases: of all attacks together (smallest p) and of each one."""
    start = time.perf_counter()
    runs = [judge(n, share, attacks, options.permutations, seed) for seed in range(options.seed, options.seed + times)]
    p = np.stack([run["p"] for run in runs])
    joint = p.min(axis=1) <= 0.05
    low, high = binom.ppf([0.025, 0.975], times, 0.05) / times
    row = {
        "n": n, "share": share, "releases": times, "attacks": list(attacks), "rejected": float(joint.mean()),
        "expected_if_null": [float(low), float(high)],
        "rejected_by_attack": dict(zip(attacks, (p <= 0.05).mean(axis=0).tolist(), strict=True)),
        "mean_auc": dict(zip(attacks, np.mean([run["auc"] for run in runs], axis=0).round(4).tolist(), strict=True)),
        **{f"covers_half_{k}": np.mean([run[k] for run in runs], axis=0).tolist() for k in ("delong", "bca")},
        "seconds": time.perf_counter() - start,
    }  # fmt: skip
    covers = {k: f"{min(row[f'covers_half_{k}']):.3f}-{max(row[f'covers_half_{k}']):.3f}" for k in ("delong", "bca")}
    print(
        f"n {n}, copied {share:.0%}: {times} releases, p <= .05 in {joint.mean():.3f} (null: {low:.3f}-{high:.3f}); "
        f"DeLong covers .5 in {covers['delong']}, BCa in {covers['bca']}; {row['seconds']:.0f} s",
        flush=True,
    )
    return row


def figure(rows: list[dict[str, Any]]) -> None:
    """Power against the share of copied rows, by attack, with 95 % intervals."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(7.5, 4.5), layout="constrained")
    ax = page.subplots()
    shares = 100 * np.array([row["share"] for row in rows])
    for name in rows[0]["attacks"]:
        ax.plot(shares, [row["rejected_by_attack"][name] for row in rows], marker="o", markersize=3, label=name)
    joint, times = np.array([row["rejected"] for row in rows]), rows[0]["releases"]
    error = 1.96 * np.sqrt(joint * (1 - joint) / times)
    ax.errorbar(shares, joint, error, color="black", linewidth=2, capsize=3, label="any of them (95 % interval)")
    ax.axhline(0.05, color="grey", linestyle=":", label="level of the test")
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xlim(left=0)
    ax.set_xticks(shares, [f"{share:g}" for share in shares])
    ax.set_xlabel("released rows that are copies of members (%)")
    ax.set_ylabel("share of releases with adjusted p <= .05")
    ax.set_title(f"Power of the release audit: {times} releases of {rows[0]['n']} rows per point")
    ax.legend(fontsize=8)
    (RESULTS / "figures").mkdir(parents=True, exist_ok=True)
    page.savefig(RESULTS / "figures" / "release_power.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 500, 1000])
    parser.add_argument("--releases", type=int, default=500, help="null releases of the fast attacks, of each size")
    parser.add_argument("--slow", type=int, default=100, help="null releases of the slow attacks; 0 leaves them out")
    parser.add_argument("--power", type=int, default=100, help="releases of 500 rows at each share of copies")
    parser.add_argument("--permutations", type=int, default=999)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    record: dict[str, Any] = {"machine": machine("jax", "numpy", "scipy", "scikit-learn"), "level": LEVEL}
    record["null"] = [repeat(n, 0.0, FAST, options, options.releases) for n in options.sizes]
    if options.slow:
        record["null_slow"] = [repeat(options.sizes[0], 0.0, SLOW, options, options.slow)]
    record["power"] = [repeat(500, share, FAST, options, options.power) for share in SHARES]
    figure(record["power"])
    print(f"wrote {os.path.relpath(save('release_calibration', record))}")


if __name__ == "__main__":
    main()
