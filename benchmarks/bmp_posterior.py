"""Posteriors of (l, r): time, memory and error of every engine, and effective samples per second against the peer.

Two parts. ``--part exact``: the exact posterior and the functional limits of 19,717 and of a million distinct count
tuples, each size in a process of its own, with the error against a quadrature of the same posterior.
``--part chains``: effective samples per second of NUTS, of our MHAAR (1,000 particles) and, with
``--peer PATH`` (a checkout of the public Python sampler of arXiv:2504.16683; never part of this repository), of that
sampler, interleaved on the same counts. The peer's model is symmetric, l = r = epsilon, with delta = 0; without attack
strength (s = 0), which is the model of the other two.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine, peak_mib, save

CASES = {
    32: [(3, 32, 20, 32), (12, 32, 10, 32)],
    100: [(10, 100, 10, 100), (50, 100, 50, 100)],
    500: [(60, 500, 200, 500), (30, 500, 40, 500)],
    1000: [(100, 1000, 300, 1000), (480, 1000, 500, 1000)],
}
"""Trials a side -> a node that leaks and one that leaks less (32, 500), nothing (100) or hardly (1000)."""

SPREAD = [(10, 100, 10, 100), (1, 90, 8, 10), (50, 100, 50, 100), (0, 1, 500, 1000), (3, 32, 20, 32)]
"""Tuples whose quantiles are also found by quadrature."""


def exact_part(size: int, repeats: int) -> dict[str, Any]:
    """Wall seconds, cold and warm, peak memory and largest error of both analytic engines."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "bmp"))
    from bmp_oracle import QUANTILES, posterior_quantiles

    from jaxaudit.bmp import exact_posterior, functional_limits

    rng = np.random.default_rng(0)
    n_out, n_in = rng.integers(1, 1000, (2, 2 * size))
    rows = np.stack([rng.integers(0, n_out + 1), n_out, rng.integers(0, n_in + 1), n_in], axis=1)
    counts = np.unique(rows, axis=0)
    counts = counts[rng.permutation(len(counts))[:size]].T
    before, seconds = peak_mib(), []
    for _ in range(repeats):
        start, used = time.perf_counter(), time.process_time()
        exact_posterior(*counts)
        middle = time.perf_counter()
        functional_limits(*counts)
        end = time.perf_counter()
        seconds.append(
            {"exact_s": middle - start, "functional_s": end - middle, "total_s": end - start,
             "processor_s": time.process_time() - used}
        )  # fmt: skip
    peak = peak_mib()
    spread = exact_posterior(*np.transpose(SPREAD))
    found = np.array([[spread.quantile(name, q) for q in QUANTILES] for name in "rl"])
    truth = np.stack([posterior_quantiles(case, (10.0,))[10.0] for case in SPREAD], axis=-1)
    return {
        "distinct_tuples": counts.shape[1],
        "cold": seconds[0],
        "warm": seconds[1:],
        "peak_mib": peak,
        "peak_mib_above_start": peak - before,
        "max_error_of_quantiles": float(np.abs(found - truth).max()),
    }


def peer_rate(peer: Path, case: tuple[int, ...], steps: int) -> dict[str, float]:
    """Effective samples per second of the public sampler's epsilon, after a tenth as burn-in; one chain."""
    import blackjax

    if str(peer) not in sys.path:
        sys.path.insert(0, str(peer))
    from src.MCMC_epsDP_v2 import MCMC_epsDP_v2

    fp, n_out, fn, n_in = (np.array([float(x)]) for x in case)
    arguments = (n_out, n_in, fp, fn, steps, 1000, 0.0, [1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0])
    start, used = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
        samples = MCMC_epsDP_v2(*arguments, [10.0, 1.0, 1.0], [1, 0, 0, 0])[0]
    spent, processor = time.perf_counter() - start, time.process_time() - used
    kept = samples[steps // 10 :]
    kept = kept[: len(kept) // 2 * 2].reshape(2, -1)
    return {"seconds": spent, "processor_s": processor, "ess": float(blackjax.ess_bulk(kept)), "steps": steps}


def chains_part(peer: Path | None, rounds: int, peer_steps: int) -> dict[str, Any]:
    """ESS per second, the smaller of r and l, warm-up included, compiled beforehand; median over rounds."""
    from jaxaudit.bmp.chains import Demands
    from jaxaudit.bmp.mhaar import mhaar
    from jaxaudit.bmp.nuts import node_nuts

    cases = [case for pair in CASES.values() for case in pair]
    counts = np.transpose(np.repeat(cases, 2, axis=0))
    counts[[1, 3]] += np.tile(np.arange(2), len(cases))  # 16 distinct tuples
    sizes = np.repeat(list(CASES), len(counts.T) // len(CASES))
    once = Demands(rhat=10.0, ess=1.0, reruns=0)
    engines = {
        "nuts": lambda seed: node_nuts(*counts, seed=seed, demands=once),
        "mhaar": lambda seed: mhaar(*counts, seed=seed, draws=1000, warmup=200, demands=once),
    }
    cold = {}
    for name, engine in engines.items():
        start = time.perf_counter()
        engine(0)
        cold[name] = time.perf_counter() - start
    runs: dict[str, list[dict[str, Any]]] = {"nuts": [], "mhaar": [], "peer": []}
    for round_ in range(rounds):
        for name, engine in engines.items():
            start, used = time.perf_counter(), time.process_time()
            post = engine(round_ + 1)
            spent, processor = time.perf_counter() - start, time.process_time() - used
            ess = np.minimum(post.ess_bulk["r"], post.ess_bulk["l"]).reshape(-1)
            runs[name].append(
                {"seconds": spent, "processor_s": processor, "ess": float(ess.sum()), "least_ess": float(ess.min()),
                 "ess_by_size": {size: float(ess[sizes == size].sum()) for size in CASES},
                 "divergences": int(post.divergences.sum()),
                 "largest_rhat": max(float(x.max()) for x in post.rhat.values())}
            )  # fmt: skip
        if peer is not None:
            each = [peer_rate(peer, case, peer_steps) for case in cases]
            runs["peer"].append(
                {"seconds": sum(x["seconds"] for x in each), "processor_s": sum(x["processor_s"] for x in each),
                 "ess": sum(x["ess"] for x in each),
                 "ess_by_size": {size: each[2 * i]["ess"] + each[2 * i + 1]["ess"] for i, size in enumerate(CASES)},
                 "cases": each}
            )  # fmt: skip
    rate = {name: statistics.median(x["ess"] / x["seconds"] for x in found) for name, found in runs.items() if found}
    others = [name for name in ("mhaar", "peer") if runs[name]]

    def over(name: str, ess: Any, seconds: str) -> float:
        """Median over rounds of NUTS' effective samples per second in units of the other's."""
        return statistics.median(
            (ess(a) / a[seconds]) / (ess(b) / b[seconds]) for a, b in zip(runs["nuts"], runs[name], strict=True)
        )

    ratio = {
        name: {
            "wall": over(name, lambda x: x["ess"], "seconds"),
            "processor": over(name, lambda x: x["ess"], "processor_s"),
            # The work of a step does not depend on the counts: every size has the same share of the time.
            "processor_by_size": {
                size: over(name, lambda x, size=size: x["ess_by_size"][size], "processor_s") for size in CASES
            },
        }
        for name in others
    }
    processor = {name: statistics.median(x["ess"] / x["processor_s"] for x in runs[name]) for name in ("nuts", *others)}
    return {
        "cases": CASES,
        "ess_per_processor_s": processor,
        "cold_s": cold,
        "runs": runs,
        "ess_per_s": rate,
        "nuts_over": ratio,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("exact", "chains", "both"), default="both")
    parser.add_argument("--sizes", nargs="+", type=int, default=[19_717, 1_000_000])
    parser.add_argument("--repeats", type=int, default=2, help="of the exact part; the first is cold")
    parser.add_argument("--peer", type=Path, help="folder that contains src/MCMC_epsDP_v2.py")
    parser.add_argument("--peer-steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="bmp_posterior", help="of the file under benchmarks/results")
    options = parser.parse_args()
    record: dict[str, Any] = {"machine": machine("jax", "jaxlib", "blackjax", "numpy"), "load": os.getloadavg()}
    spawn = multiprocessing.get_context("spawn")
    if options.part != "chains":
        record["exact"] = []
        for size in options.sizes:
            with spawn.Pool(1) as pool:  # a process of its own: peak memory and compilation are this size's
                run = pool.apply(exact_part, (size, options.repeats))
            record["exact"].append(run)
            last = (run["warm"] or [run["cold"]])[-1]
            print(
                f"{size:>9} distinct: exact {last['exact_s']:.1f} s, functional {last['functional_s']:.1f} s "
                f"({last['processor_s']:.1f} s of processor time), peak {run['peak_mib']:.0f} MiB, "
                f"largest error {run['max_error_of_quantiles']:.4f}",
                flush=True,
            )
    if options.part != "exact":
        record["chains"] = found = chains_part(options.peer, options.rounds, options.peer_steps)
        for name, rate in found["ess_per_s"].items():
            print(f"{name:>6}: {rate:.1f} effective samples a second")
        for name, ratio in found["nuts_over"].items():
            sizes = ", ".join(f"{size} trials {x:.0f}x" for size, x in ratio["processor_by_size"].items())
            whole = f"{ratio['wall']:.1f}x by the clock, {ratio['processor']:.1f}x a processor second"
            print(f"NUTS over {name}: {whole}; {sizes}")
    print(f"wrote {os.path.relpath(save(options.name, record))}")


if __name__ == "__main__":
    main()
