r"""All ten attacks and their permutation test on large tables: seconds per attack, peak memory, growth with the rows.

Every size runs in a process of its own, so that its peak memory and its compilations are its own. The first pass
compiles; the second is on other tables of the same sizes and must compile nothing.

    python benchmarks/release_large.py [--quick] [--sizes 50000 100000] [--attacks gen_lra dcr ...]
    python benchmarks/release_large.py --sizes 1000 --columns 10 --k 10 --name release_first_result
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from typing import Any

import numpy as np
from machine import machine, peak_mib, save
from release_gen_lra import tables

PERMUTATIONS = 9999


def measure(rows: int, columns: int, k: int, records: int, names: list[str], passes: int) -> dict[str, Any]:
    """Seconds of the import and of every attack, pass by pass."""
    start = time.perf_counter()
    import jax.monitoring

    from jaxaudit.evaluate.multiplicity import max_permutation
    from jaxaudit.tables.attacks import SUITE, AttackSettings, GenLRAConfig, score_attacks

    compiled: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(seconds) if name.endswith("backend_compile_duration") else None
    )
    import_s, runs = time.perf_counter() - start, []
    settings = AttackSettings(gen_lra=GenLRAConfig(k=k))
    for number in range(passes):
        x, s, r = (table + 0.1 * number for table in tables(records, rows, rows, columns))
        scores, steps = {}, {}
        for name in [*(names or SUITE), "permutation test"]:
            compiled.clear()
            start, cpu = time.perf_counter(), time.process_time()
            if name == "permutation test":
                max_permutation(np.stack(list(scores.values())), np.arange(records) < records // 2, PERMUTATIONS)
            else:
                scores |= score_attacks([name], x, s, r, settings=settings)
            steps[name] = {
                "wall_s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu,
                "compilations": len(compiled), "compile_s": sum(compiled), "peak_mib": peak_mib(),
            }  # fmt: skip
        runs.append(steps)
    return {
        "rows": rows, "columns": columns, "k": k, "records": records, "import_s": import_s, "runs": runs,
        "wall_s": [sum(step["wall_s"] for step in steps.values()) for steps in runs],
        "cpu_s": [sum(step["cpu_s"] for step in steps.values()) for steps in runs],
        "peak_mib": peak_mib(), "load": os.getloadavg(),
    }  # fmt: skip


def show(run: dict[str, Any], before: dict[str, Any] | None) -> None:
    """One line per attack and pass, and what doubling the rows costs."""
    size = f"{run['rows']}x{run['columns']}"
    for number, steps in enumerate(run["runs"]):
        for name, step in steps.items():
            growth = step["cpu_s"] / before["runs"][number][name]["cpu_s"] if before else float("nan")
            print(
                f"{size:>12} {number:4d} {name:>20} {step['wall_s']:9.2f} {step['cpu_s']:8.2f} "
                f"{step['compilations']:8d} {step['compile_s']:9.2f} {step['peak_mib']:9.0f} {growth:7.2f}"
            )
        growth = run["cpu_s"][number] / before["cpu_s"][number] if before else float("nan")
        print(f"{size:>12} {number:4d} {'all':>20} {run['wall_s'][number]:9.2f} {run['cpu_s'][number]:8.2f} "
              f"{'':8} {'':9} {run['peak_mib']:9.0f} {growth:7.2f}")  # fmt: skip
    print(f"{size:>12} import {run['import_s']:.2f} s, load average {run['load'][0]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, a minute")
    parser.add_argument("--sizes", type=int, nargs="+", help="rows of release and reference each")
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--k", type=int, default=200, help="neighbours of Gen-LRA")
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--attacks", nargs="+", default=[], help="by name; all by default")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--name", default="release_large", help="of the file under benchmarks/results")
    args = parser.parse_args()
    runs: list[dict[str, Any]] = []
    print(f"{'rows':>12} {'pass':>4} {'attack':>20} {'wall s':>9} {'cpu s':>8} {'compiled':>8} {'compile s':>9} "
          f"{'peak MiB':>9} {'growth':>7}")  # fmt: skip
    for rows in args.sizes or ((2000, 4000) if args.quick else (50_000, 100_000)):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            run = pool.apply(measure, (rows, args.columns, args.k, args.records, args.attacks, args.passes))
        show(run, runs[-1] if runs and runs[-1]["rows"] * 2 == rows else None)
        runs.append(run)
    record = {"machine": machine("jax", "jaxlib", "numpy", "scikit-learn"), "runs": runs}
    print(save(args.name, record))


if __name__ == "__main__":
    main()
