r"""Gen-LRA against the loop that published code runs, in one script, interleaved.

The peer takes one record at a time: nearest rows by a KD-tree, then ``scipy.stats.gaussian_kde`` refitted on
reference plus record ("refit"), or evaluated once more with the covariance kept ("fixed"). It runs on a few
records (its time is per record) with one BLAS thread and with as many as it likes, and the faster counts; ours scores
all records. The error is against the peer's float64 scores.

    python benchmarks/release_gen_lra.py [--quick] [--sizes 5000x5000x40x200 ...] [--repeats 3]
    python benchmarks/release_gen_lra.py --sizes 50000x50000x20x200 100000x100000x20x200 \
        --variants fixed_float64 --peer-targets 2 --repeats 1 --name release_gen_lra_large
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from machine import machine, peak_mib, save
from scipy.spatial import cKDTree
from scipy.special import logsumexp
from scipy.stats import gaussian_kde
from threadpoolctl import threadpool_limits

SIZES = ("1000x1000x10x10", "5000x5000x10x200", "5000x5000x40x200")
QUICK = ("200x200x5x10", "1000x1000x10x10")
SPELL = 0.3
"""Seconds for which each of the two is measured in its turn: short calls are repeated."""
VARIANTS = ("fixed_float64", "fixed_float32", "refit_float64", "refit_float32")


def tables(targets: int, n: int, m: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(d, d)) / np.sqrt(d) + np.eye(d)
    x, s, r = (rng.normal(size=(rows, d)) @ mix for rows in (targets, m, n))
    near = min(targets, m) // 2
    s[:near] = x[:near] + 0.1 * rng.normal(size=(near, d))
    return x, s, r


def peer(x: np.ndarray, s: np.ndarray, r: np.ndarray, k: int, mode: str) -> np.ndarray:
    tree, before = cKDTree(s), gaussian_kde(r.T, "silverman")
    scores = np.empty(len(x))
    white = np.linalg.inv(np.linalg.cholesky(before.covariance)).T
    for i, target in enumerate(x):
        near = s[np.atleast_1d(tree.query(target, k=k)[1])]
        log_p = before.logpdf(near.T)
        if mode == "refit":
            scores[i] = (gaussian_kde(np.column_stack([r.T, target]), "silverman").logpdf(near.T) - log_p).sum()
        else:  # one more kernel of the same covariance
            norm = 0.5 * np.linalg.slogdet(2 * np.pi * before.covariance)[1]
            kernel = -0.5 * (((near - target) @ white) ** 2).sum(1) - norm
            scores[i] = (logsumexp([log_p + np.log(len(r)), kernel], axis=0) - np.log(len(r) + 1) - log_p).sum()
    return scores


def timed(function: Callable[[], np.ndarray], least: float = 0.0) -> tuple[float, np.ndarray]:
    """Seconds of one call, and its result; the mean of as many calls as take ``least`` seconds together."""
    start, calls = time.perf_counter(), 0
    while True:
        out, calls = function(), calls + 1
        if (passed := time.perf_counter() - start) >= least:
            return passed / calls, out


def compile_seconds(events: list[tuple[str, float]]) -> float:
    # stages of one compilation do not nest, nested traces do: only the backend and the lowering are added up
    return sum(s for name, s in events if name.endswith(("backend_compile_duration", "jaxpr_to_mlir_module_duration")))


def measure(size: str, targets: int, peer_targets: int, repeats: int, variants: tuple[str, ...]) -> dict[str, Any]:
    """One size in a process of its own: peak memory and cold compilation are its own."""
    import jax.monitoring

    from jaxaudit.tables.attacks.gen_lra import gen_lra

    events: list[tuple[str, float]] = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, seconds, **_: events.append((name, seconds)))
    n, m, d, k = (int(part) for part in size.split("x"))
    x, s, r = tables(targets, n, m, d)
    index = np.linspace(0, targets - 1, peer_targets).astype(int)
    few = x[index]
    before = peak_mib()
    results: dict[str, Any] = {}
    pairs = [tuple(variant.split("_")) for variant in variants]
    for mode, precision in pairs:
        events.clear()
        cold, _ = timed(lambda mode=mode, precision=precision: gen_lra(x, s, r, k, mode, precision=precision))
        results[f"{mode}_{precision}"] = {"cold_s": cold, "compile_s": compile_seconds(events), "warm_s": []}
    peak = peak_mib()
    slow: dict[str, list[float]] = {mode: [] for mode in dict.fromkeys(mode for mode, _ in pairs)}
    threads: dict[str, dict[str, list[float]]] = {mode: {"1": [], "any": []} for mode in slow}
    for _ in range(repeats):  # interleaved: a busy spell of the machine meets both
        for mode in slow:
            for limit, most in (("1", 1), ("any", None)):
                with threadpool_limits(most, "blas"):
                    seconds, expected = timed(lambda mode=mode: peer(few, s, r, k, mode), SPELL)
                threads[mode][limit].append(seconds / peer_targets)
            slow[mode].append(min(times[-1] for times in threads[mode].values()))
            time.sleep(0.1)  # threads of the peer's BLAS go on spinning for a while: not at our cost
            for precision in (precision for other, precision in pairs if other == mode):
                seconds, got = timed(
                    lambda mode=mode, precision=precision: gen_lra(x, s, r, k, mode, precision=precision), SPELL
                )
                entry = results[f"{mode}_{precision}"]
                entry["warm_s"].append(seconds)
                entry["max_error"] = float((np.abs(got[index] - expected) / (1 + np.abs(expected))).max())
                entry["max_error_to_spread"] = float(np.abs(got[index] - expected).max() / expected.std())
    for name, entry in results.items():
        mode = name.split("_")[0]
        entry["ms_per_record"] = 1e3 * float(np.median(entry["warm_s"])) / targets
        entry["peer_ms_per_record"] = 1e3 * float(np.median(slow[mode]))
        entry["peer_ms_by_threads"] = {t: 1e3 * float(np.median(times)) for t, times in threads[mode].items()}
        entry["speedup"] = entry["peer_ms_per_record"] / entry["ms_per_record"]
        entry["speedup_per_repeat"] = [p * targets / w for p, w in zip(slow[mode], entry["warm_s"], strict=True)]
    return {
        "n": n, "m": m, "d": d, "k": k, "targets": targets, "peer_targets": peer_targets,
        "peak_mib_before": before, "peak_mib": peak, "load": os.getloadavg(), "results": results,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, one minute")
    parser.add_argument("--sizes", nargs="+", help="n x m x d x k, e.g. 5000x5000x40x200")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--targets", type=int, default=1000)
    parser.add_argument("--peer-targets", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--name", default="release_gen_lra", help="of the file under benchmarks/results")
    args = parser.parse_args()
    sizes = args.sizes or (QUICK if args.quick else SIZES)
    runs = []
    print(f"{'n x m x d x k':>20} {'variant':>14} {'ours ms':>9} {'peer ms':>9} {'speedup':>8} {'cold s':>7} "
          f"{'compile s':>9} {'max error':>10} {'peak MiB':>9}")  # fmt: skip
    for size in sizes:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            run = pool.apply(measure, (size, args.targets, args.peer_targets, args.repeats, tuple(args.variants)))
        runs.append(run)
        for name, e in run["results"].items():
            print(
                f"{size:>20} {name:>14} {e['ms_per_record']:9.4f} {e['peer_ms_per_record']:9.2f} {e['speedup']:8.1f} "
                f"{e['cold_s']:7.2f} {e['compile_s']:9.2f} {e['max_error']:10.1e} {run['peak_mib']:9.0f}"
            )
        print(f"{'':>20} load average {run['load'][0]:.1f}")
    record = {"machine": machine("jax", "jaxlib", "numpy", "scipy"), "runs": runs}
    print(save(args.name, record))


if __name__ == "__main__":
    main()
