"""Calibration of every posterior: rank histograms with their chi-square p, and coverage on known channels.

Writes ``benchmarks/results/bmp_calibration.json`` and ``benchmarks/results/figures/bmp_calibration.png``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import numpy as np
from machine import RESULTS, machine, save

TRIALS = (20, 12)
"""Non-member and member trials of the calibration: 32 shadow models; few enough for MHAAR with 200 particles."""

CHANNELS = [(0.2, 0.6), (0.1, 0.5), (0.3, 0.75), (0.05, 0.45), (0.6, 0.2)]
"""(p0, p1) with r, l >= .5."""

POPULATION = (30, 20, 20)
"""Nodes of a data set of the partial pooling, non-member and member trials of each."""

PRIORS = (0.05, 0.2, 0.5, 0.8, 0.95)
SMALLER_SIDE = (100, 500)
LEVEL = 0.95


def engines(exact: int, nuts: int, mhaar_size: int) -> dict[str, tuple[int, bool, Any]]:
    """Name -> (simulations, with attack strength, counts -> posterior)."""
    from jaxaudit.bmp import exact_posterior
    from jaxaudit.bmp.chains import Demands
    from jaxaudit.bmp.mhaar import mhaar
    from jaxaudit.bmp.nuts import node_nuts

    # Ten bins need no more than a hundred effective samples of a posterior.
    short: dict[str, Any] = {"draws": 1500, "particles": 200, "demands": Demands(rhat=1.05, ess=100)}
    return {
        "exact": (exact, False, lambda counts: exact_posterior(*counts)),
        "nuts": (nuts, False, lambda counts: node_nuts(*counts)),
        "mhaar": (mhaar_size, False, lambda counts: mhaar(*counts, **short)),
        "mhaar with strength": (mhaar_size, True, lambda counts: mhaar(*counts, **short, strength=True)),
    }


def rank_histograms(options: argparse.Namespace) -> dict[str, Any]:
    """Simulation-based calibration of every engine; prints the p-values."""
    from jaxaudit.bmp.calibration import calibrate, simulate

    found = {}
    for name, (size, strength, engine) in engines(options.exact, options.nuts, options.mhaar).items():
        if not size:
            continue
        data, start = simulate(size, *TRIALS, strength=strength, seed=options.seed), time.perf_counter()
        post = engine(data.counts)
        bins = 20 if size >= 2000 else 10
        result = calibrate(post, data.truth, bins)
        for quantity, c in result.items():
            print(
                f"{name:>20} {quantity}: chi-square p {c.p:.3f}, {size} simulations, {c.left_out} left out", flush=True
            )
        found[name] = {
            "simulations": size,
            "seconds": time.perf_counter() - start,
            "warnings": list(getattr(post, "warnings", ())),
            "ranks": {
                q: {"histogram": c.histogram.tolist(), "p": c.p, "left_out": c.left_out} for q, c in result.items()
            },
        }
    return found


def hierarchical(size: int, seed: int) -> dict[str, Any]:
    """Simulation-based calibration of partial pooling; prints the p-values and the nodes' coverage."""
    from jaxaudit.bmp.population_calibration import calibrate_populations, simulate_populations

    start = time.perf_counter()
    found = calibrate_populations(simulate_populations(size, *POPULATION, seed=seed), *POPULATION[1:], seed=seed)
    for name, c in found.ranks.items():
        print(f"{'hierarchical':>20} {name}: chi-square p {c.p:.3f}, {size} data sets", flush=True)
    for name, (share, error) in found.covered.items():
        print(f"hierarchical: 90 % intervals of the nodes' {name} cover {share:.3f}, standard error {error:.3f}")
    return {
        "simulations": size,
        "nodes": POPULATION[0],
        "trials": POPULATION[1:],
        "seed": seed,
        "seconds": time.perf_counter() - start,
        "divergences": int(found.divergences.sum()),
        "ranks": {q: {"histogram": c.histogram.tolist(), "p": c.p} for q, c in found.ranks.items()},
        "covered": {q: {"share": share, "standard_error": error} for q, (share, error) in found.covered.items()},
    }


def coverage(replications: int, seed: int) -> list[dict[str, Any]]:
    """Nominal 90 % intervals of the functional posterior and of the paper's, on channels where (l, r) is known."""
    from jaxaudit.bmp import exact_posterior, functional_limits
    from jaxaudit.bmp.calibration import channel_counts, covered

    rows = []
    for p0, p1 in CHANNELS:
        for prior in PRIORS:
            for small in SMALLER_SIDE:
                models = round(small / min(prior, 1 - prior))
                n_in = round(prior * models)
                counts, (l, r) = channel_counts(p0, p1, models - n_in, n_in, replications, seed)
                limits, post = functional_limits(*counts, level=LEVEL), exact_posterior(*counts)
                row: dict[str, Any] = {"p0": p0, "p1": p1, "prior": prior, "n_out": models - n_in, "n_in": n_in}
                for name, truth in (("l", l), ("r", r)):
                    functional = getattr(limits, f"{name}_lower"), getattr(limits, f"{name}_upper")
                    paper = post.quantile(name, 1 - LEVEL), post.quantile(name, LEVEL)
                    row[name] = {
                        "true": truth,
                        "functional": covered(*functional, truth),
                        "paper": covered(*paper, truth),
                    }
                rows.append(row)
    return rows


def null(replications: int, seed: int) -> list[dict[str, Any]]:
    """No leak (p0 = p1): share of replications whose Clopper-Pearson bounds are 0."""
    from jaxaudit.bmp.calibration import channel_counts, confidence_bound

    rows = []
    for p in (0.05, 0.2, 0.5, 0.8):
        for prior in PRIORS:
            models = round(100 / min(prior, 1 - prior))
            n_in = round(prior * models)
            counts, _ = channel_counts(p, p, models - n_in, n_in, replications, seed)
            l, r = confidence_bound(*counts)
            rows.append({"p": p, "prior": prior, "zero_l": float((l == 0).mean()), "zero_r": float((r == 0).mean())})
    return rows


def figure(found: dict[str, Any]) -> None:
    """Rank histograms, one panel per engine and quantity, with the band that holds 99 % of uniform bars."""
    from matplotlib.figure import Figure
    from scipy.stats import binom

    panels = [(name, q, e) for name, run in found.items() for q, e in run["ranks"].items()]
    columns = 4
    rows = -(-len(panels) // columns)
    page = Figure(figsize=(2.6 * columns, 2.0 * rows), layout="constrained")
    axes = page.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    for ax, (name, quantity, e) in zip(axes, panels, strict=False):
        bars = np.array(e["histogram"])
        low, high = binom.ppf([0.005, 0.995], bars.sum(), 1 / bars.size)
        ax.axhspan(low, high, color="#d5dbe1", zorder=0)
        ax.bar((np.arange(bars.size) + 0.5) / bars.size, bars, width=0.9 / bars.size, color="#2f6690")
        ax.set_title(f"{name}: {quantity}, p = {e['p']:.2f}", fontsize=8)
        ax.set_xlabel("posterior level of the true value", fontsize=7)
        ax.set_ylabel(f"simulations of {bars.sum()}", fontsize=7)
        ax.tick_params(labelsize=7)
    page.suptitle(
        "Simulation-based calibration: counts of true values per bin; grey, where 99 % of uniform bars lie", fontsize=9
    )
    (RESULTS / "figures").mkdir(parents=True, exist_ok=True)
    page.savefig(RESULTS / "figures" / "bmp_calibration.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exact", type=int, default=5000, help="simulations; 0 leaves the engine out")
    parser.add_argument("--nuts", type=int, default=500)
    parser.add_argument("--mhaar", type=int, default=300)
    parser.add_argument("--replications", type=int, default=500)
    parser.add_argument("--hierarchical", type=int, default=240, help="data sets of 30 nodes")
    parser.add_argument("--only", choices=["hierarchical"], help="run this part alone, the record keeps the others")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    record: dict[str, Any]
    if options.only:
        record = json.loads((RESULTS / "bmp_calibration.json").read_text())
        record["hierarchical"] = hierarchical(options.hierarchical, options.seed)
        record["hierarchical"]["command"] = machine()["command"]
        print(f"wrote {os.path.relpath(save('bmp_calibration', record))}")
        return
    record = {"machine": machine("jax", "blackjax", "numpy", "scipy"), "trials": TRIALS}
    record["coverage"] = rows = coverage(options.replications, options.seed)
    for kind in ("functional", "paper"):
        shares = np.array([[row[name][kind]["covered"] for name in "lr"] for row in rows])
        over = np.array([[row[name][kind]["overshoot"] for name in "lr"] for row in rows])
        print(f"90 % intervals, {kind}: cover {shares.min():.3f} to {shares.max():.3f} (mean {shares.mean():.3f}); "
              f"lower limit above the truth {over.min():.3f} to {over.max():.3f}")  # fmt: skip
    record["null"] = rows = null(options.replications, options.seed)
    least = min(row[k] for row in rows for k in ("zero_l", "zero_r"))
    print(f"null: Clopper-Pearson bound 0 in at least {least:.3f}")
    record["calibration"] = rank_histograms(options)
    record["hierarchical"] = hierarchical(options.hierarchical, options.seed)
    figure(record["calibration"])
    print(f"wrote {os.path.relpath(save('bmp_calibration', record))}")


if __name__ == "__main__":
    main()
