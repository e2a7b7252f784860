r"""Where a kernel for categories helps: Gen-LRA, DOMIAS and density, mixed kernel against Gaussian on indicators.

A real table is shuffled and cut into members, non-members, reference and a rest. A share of the release are members in
which a share of the cells was drawn anew from the column; the other rows are such rows of the rest. AUC over members
and non-members, mean of the seeds, and the paired gain over the Gaussian kernel with its standard error over the seeds.
In brackets: how lam is chosen. Times are warm, encoding excluded, interleaved, with up to 5,000 rows per part.

    python benchmarks/release_mixed.py ../shared/data/tables [--tables kr_vs_kp adult ...] [--seeds 5]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from machine import machine, save
from sklearn.metrics import roc_auc_score

from jaxaudit.tables.attacks.domias import DomiasConfig, density, domias
from jaxaudit.tables.attacks.gen_lra import gen_lra
from jaxaudit.tables.attacks.mixed_attacks import MixedConfig, density_mixed, domias_mixed, gen_lra_mixed
from jaxaudit.tables.encode import fit_encoder
from jaxaudit.tables.layout import Layout
from jaxaudit.tables.read import read_table

TABLES = ("kr_vs_kp", "tic_tac_toe", "analcatdata_dmft", "adult", "health_insurance", "credit_g", "credit_approval",
          "dresses_sales", "wage", "sick_thyroid", "telecom_churn", "wdbc")  # fmt: skip
CELLS = (0.1, 0.3, 0.5)
LAMS: tuple[str | float, ...] = ("cv", "rule", 0.1)
SILVERMAN = DomiasConfig("silverman")
Scores = Callable[[np.ndarray, np.ndarray, np.ndarray, Layout], np.ndarray]


def mixed_attacks(lam: str | float) -> dict[str, Scores]:
    config = MixedConfig(lam=lam)
    return {
        f"gen_lra_mixed[{lam}]": lambda x, s, r, layout: gen_lra_mixed(x, s, r, config, layout),
        f"domias_mixed[{lam}]": lambda x, s, r, layout: domias_mixed(x, s, r, config, layout),
        f"density_mixed[{lam}]": lambda x, s, _, layout: density_mixed(x, s, config, layout),
    }


ATTACKS: dict[str, Scores] = {
    "gen_lra": lambda x, s, r, _: gen_lra(x, s, r, 10),
    "domias": lambda x, s, r, _: domias(x, s, r, SILVERMAN),
    "density": lambda x, s, r, _: density(x, s, SILVERMAN),
    **{name: score for lam in LAMS for name, score in mixed_attacks(lam).items()},
}


def release(table: pd.DataFrame, copied: float, cells: float, seed: int, most: int) -> tuple[pd.DataFrame, ...]:
    """Members, non-members, synthetic and reference rows, at most ``most`` each."""
    rng = np.random.default_rng(seed)
    rows = table.iloc[rng.permutation(len(table))[: 4 * most]]
    size = len(rows) // 4
    members, others, reference, rest = (rows[i * size : (i + 1) * size].reset_index(drop=True) for i in range(4))
    copies = int(copied * size)
    synthetic = pd.concat([members.sample(copies, random_state=rng), rest[copies:]], ignore_index=True)
    for name in table.columns:
        drawn = rng.random(size) < cells
        synthetic.loc[drawn, name] = rest[name].to_numpy()[rng.integers(0, size, int(drawn.sum()))]
    return members, others, synthetic, reference


def aucs(
    table: pd.DataFrame, copied: float, cells: float, seed: int, most: int, attacks: dict[str, Scores] = ATTACKS
) -> dict[str, float]:
    """AUC of every attack on one release."""
    members, others, synthetic, reference = release(table, copied, cells, seed, most)
    encoder = fit_encoder(reference, synthetic)
    x, s, r = (encoder.transform(part) for part in (pd.concat([members, others]), synthetic, reference))
    label = np.arange(len(x)) < len(members)
    return {name: float(roc_auc_score(label, score(x, s, r, encoder.layout))) for name, score in attacks.items()}


def shape(table: pd.DataFrame) -> dict[str, int]:
    layout = fit_encoder(table, table).layout
    return {"numbers": len(layout.numeric), "categories": len(layout.blocks), "encoded_columns": layout.columns}


def times(table: pd.DataFrame, most: int, repeats: int) -> dict[str, Any]:
    """Warm milliseconds per record, targets, release and reference of equal size."""
    members, others, synthetic, reference = release(table, 0.3, 0.3, 0, most)
    encoder = fit_encoder(reference, synthetic)
    x, s, r = (encoder.transform(part) for part in (pd.concat([members, others])[:most], synthetic, reference))
    spent: dict[str, list[float]] = {name: [] for name in ATTACKS}
    for _ in range(repeats + 1):
        for name, score in ATTACKS.items():
            start = time.perf_counter()
            score(x, s, r, encoder.layout)
            spent[name].append(1e3 * (time.perf_counter() - start) / len(x))
    return {"rows": len(s), "targets": len(x), "ms_per_record": {n: float(np.median(t[1:])) for n, t in spent.items()}}


def summary(runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Mean AUC per attack, and what each mixed kernel gains over its Gaussian counterpart, with its standard error."""
    values = {name: np.array([run[name] for run in runs]) for name in ATTACKS}
    gains = {name: v - values[name.split("_mixed")[0]] for name, v in values.items() if "_mixed" in name}
    gain = {n: {"mean": float(g.mean()), "se": float(g.std(ddof=1) / np.sqrt(len(g)))} for n, g in gains.items()}
    return {"auc": {name: float(v.mean()) for name, v in values.items()}, "gain": gain, "runs": list(runs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of NAME.csv.gz")
    parser.add_argument("--tables", nargs="+", default=TABLES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--copied", type=float, default=0.6, help="share of the release that are members")
    parser.add_argument("--cells", type=float, nargs="+", default=CELLS, help="shares of cells drawn anew")
    parser.add_argument("--rows", type=int, default=500, help="most rows of each part")
    parser.add_argument("--timed", nargs="*", default=["adult", "kr_vs_kp"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--name", default="release_mixed", help="of the file under benchmarks/results")
    args = parser.parse_args()
    record: dict[str, Any] = {"machine": machine("jax", "jaxlib", "numpy", "scikit-learn"), "copied": args.copied,
                              "rows": args.rows, "runs": [], "times": {}}  # fmt: skip
    print(f"{'table':>18} {'cells':>5} " + " ".join(ATTACKS))
    for name in args.tables:
        table = read_table(args.folder / f"{name}.csv.gz", name)
        about = shape(table)
        for cells in args.cells:
            entry = summary([aucs(table, args.copied, cells, seed, args.rows) for seed in range(args.seeds)])
            record["runs"].append({"table": name, "cells": cells, **about, **entry})
            print(f"{name:>18} {cells:5.2f} " + " ".join(f"{entry['auc'][a]:{len(a)}.3f}" for a in ATTACKS))
    for name in args.timed:
        table = read_table(args.folder / f"{name}.csv.gz", name)
        record["times"][name] = spent = times(table, 5000, args.repeats)
        print(f"{name:>18} {spent['rows']} rows, ms per record: "
              + ", ".join(f"{attack} {ms:.3f}" for attack, ms in spent["ms_per_record"].items()))  # fmt: skip
    print(save(args.name, record))


if __name__ == "__main__":
    main()
