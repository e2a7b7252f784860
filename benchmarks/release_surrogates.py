r"""Kernels against block neural autoregressive flows as the density of Gen-LRA, DOMIAS and the density attack.

Every release of a folder, and releases made here from real tables: copies of the members with noise (a share of them,
or all), beside a smooth fit. Per release and attack: both AUCs, their difference and its paired bootstrap interval;
over releases: the mean difference with a bootstrap interval over releases, and how often each is ahead. Releases of
one folder share their members and non-members and are not independent: the mean over groups is given too. Tables with
more than 40 encoded columns are audited on their columns of numbers.

    python benchmarks/release_surrogates.py ../shared/data [--targets 100] [--only housing] [--keep]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from machine import RESULTS, machine, peak_mib, save

from jaxaudit.evaluate.paired import compare_aucs
from jaxaudit.runtime.keys import host_rng
from jaxaudit.tables.attacks.bnaf_attacks import density_bnaf, domias_bnaf, gen_lra_bnaf
from jaxaudit.tables.attacks.domias import density, domias
from jaxaudit.tables.attacks.gen_lra import gen_lra
from jaxaudit.tables.bnaf import BNAFConfig
from jaxaudit.tables.data import Release, load_release
from jaxaudit.tables.encode import fit_encoder
from jaxaudit.tables.generators.mixture import MixtureConfig, overfitting_mixture

WIDEST = 40
MADE = {
    "banknote": MixtureConfig(0.0), "diabetes": MixtureConfig(0.1, 0.1), "phoneme": MixtureConfig(0.4, 0.1),
    "wine_quality": MixtureConfig(0.4, 0.3), "california_housing": MixtureConfig(1.0, 0.3),
    "abalone": MixtureConfig(1.0, 1.0),
}  # fmt: skip
"""Table -> share of near copies and their noise."""
ATTACKS = ("gen_lra", "domias", "density")


def releases(data: Path) -> Iterator[tuple[str, str, Release]]:
    """Name, group and tables; releases of a group share their records."""
    folder = data / "releases"
    housing = folder / "synthmia_housing"
    if housing.is_dir():
        yield "housing", "housing", load_release(*(housing / f"{f}.csv" for f in ("mem", "non_mem", "synth", "ref")))
    for group, members, others, pattern in (
        ("mostlyai_census2k", "train.csv.gz", "holdout.csv.gz", "syn_*.csv.gz"),
        ("syntheval_hepatitis", "train.csv", "test.csv", "?_*.csv"),
    ):
        for path in sorted((folder / group).glob(pattern)):
            name = path.name.split(".")[0]
            yield name, group, load_release(folder / group / members, folder / group / others, path)
    for table, config in MADE.items():
        path = data / "tables" / f"{table}.csv.gz"
        if path.exists():
            yield f"{table} copies={config.copies:g} noise={config.noise:g}", table, made(path, config)


def made(path: Path, config: MixtureConfig, rows: int = 200) -> Release:
    """Members, non-members and reference of ``rows`` each, the columns of numbers, and a release of the mixture."""
    frame = pd.read_csv(path).select_dtypes("number").dropna()
    frame = frame.iloc[host_rng(0, "surrogates.split").permutation(len(frame))[: 3 * rows]].reset_index(drop=True)
    members, others, reference = (frame.iloc[i * rows : (i + 1) * rows] for i in range(3))
    drawn = overfitting_mixture(members.to_numpy(float), rows, host_rng(0, "surrogates.mixture"), config)
    return load_release(members, others, pd.DataFrame(drawn, columns=frame.columns), reference)


def encoded(release: Release, targets: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, bool]:
    """Targets, release, reference, membership, and whether only the columns of numbers were used."""
    tables = release.tables()
    encoder = fit_encoder(tables["reference"], tables["synthetic"], roles=release.roles)
    numbers = len(encoder.feature_names) > WIDEST
    if numbers:
        tables = {name: frame.select_dtypes("float") for name, frame in tables.items()}
        encoder = fit_encoder(tables["reference"], tables["synthetic"])
    parts = []
    for name in ("members", "non_members"):
        order = host_rng(0, "surrogates.targets").permutation(len(tables[name]))[:targets]
        parts.append(encoder.transform(tables[name].iloc[np.sort(order)]))
    member = np.repeat([True, False], [len(part) for part in parts])
    s, r = encoder.transform(tables["synthetic"]), encoder.transform(tables["reference"])
    return np.concatenate(parts), s, r, member, numbers


def compare(release: Release, targets: int, config: BNAFConfig) -> dict[str, Any]:
    """Both surrogates' AUCs of each attack on one release."""
    x, s, r, member, numbers = encoded(release, targets)
    key = jax.random.key(0)
    calls = {
        "gen_lra": (lambda: gen_lra(x, s, r, config.k), lambda: gen_lra_bnaf(x, s, r, config, key=key)),
        "domias": (lambda: domias(x, s, r), lambda: domias_bnaf(x, s, r, config, key=key)),
        "density": (lambda: density(x, s), lambda: density_bnaf(x, s, r, config, key=key)),
    }
    found: dict[str, Any] = {
        "columns": x.shape[1], "numbers_only": numbers, "members": int(member.sum()),
        "non_members": int((~member).sum()), "synthetic": len(s), "reference": len(r), "attacks": {},
    }  # fmt: skip
    for name, both in calls.items():
        seconds, scores = [], []
        for call in both:
            begin = time.perf_counter()
            scores.append(call())
            seconds.append(time.perf_counter() - begin)
        paired = compare_aucs(np.stack(scores), member)
        found["attacks"][name] = {
            "kde": float(paired.auc[0]), "bnaf": float(paired.auc[1]), "kde_minus_bnaf": float(paired.difference[0, 1]),
            "ci": [float(paired.low[0, 1]), float(paired.high[0, 1])], "seconds_kde": seconds[0],
            "seconds_bnaf": seconds[1],
        }  # fmt: skip
    return found


def summary(runs: dict[str, Any]) -> dict[str, Any]:
    """Per attack the mean over releases, and over groups of releases that share their records."""
    found = {}
    for attack in ATTACKS:
        entries = [run["attacks"][attack] for run in runs.values()]
        gaps = np.array([entry["kde_minus_bnaf"] for entry in entries])
        drawn = host_rng(0, "surrogates.bootstrap").integers(len(gaps), size=(5000, len(gaps)))
        groups = pd.Series(gaps).groupby([run["group"] for run in runs.values()]).mean()
        found[attack] = {
            "releases": len(gaps), "mean_kde": float(np.mean([entry["kde"] for entry in entries])),
            "mean_bnaf": float(np.mean([entry["bnaf"] for entry in entries])), "mean_difference": float(gaps.mean()),
            "ci": np.quantile(gaps[drawn].mean(axis=1), [0.025, 0.975]).tolist(),
            "mean_of_groups": float(groups.mean()), "groups": len(groups),
            "kde_ahead": int((gaps > 0).sum()), "bnaf_ahead": int((gaps < 0).sum()),
            "kde_clearly": sum(entry["ci"][0] > 0 for entry in entries),
            "bnaf_clearly": sum(entry["ci"][1] < 0 for entry in entries),
        }  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with releases/ and tables/")
    parser.add_argument("--targets", type=int, default=100, help="most members, and most non-members, per release")
    parser.add_argument("--ensemble", type=int, default=2, help="flows per density")
    parser.add_argument("--only", default="", help="releases whose name contains this")
    parser.add_argument("--keep", action="store_true", help="go on from the releases in the results file")
    parser.add_argument("--name", default="release_surrogates", help="of the file under benchmarks/results")
    args = parser.parse_args()
    config = BNAFConfig(ensemble=args.ensemble)
    path = RESULTS / f"{args.name}.json"
    runs: dict[str, Any] = json.loads(path.read_text())["releases"] if args.keep and path.exists() else {}
    for name, group, release in releases(args.data):
        if args.only not in name or name in runs:
            continue
        runs[name] = {"group": group} | compare(release, args.targets, config)
        line = " ".join(
            f"{attack} {e['kde']:.3f} {e['bnaf']:.3f} [{e['ci'][0]:+.3f}, {e['ci'][1]:+.3f}] {e['seconds_bnaf']:.0f}s;"
            for attack, e in runs[name]["attacks"].items()
        )
        print(f"{name:>40} d={runs[name]['columns']:<3} {line}", flush=True)
        record = {
            "machine": machine("jax", "jaxlib", "numpy", "optax"), "settings": vars(config), "summary": summary(runs),
            "peak_mib": peak_mib(), "releases": runs,
        }  # fmt: skip
        save(args.name, record)  # after every release: an interrupted run leaves what it has
    for attack, e in summary(runs).items():
        print(f"{attack}: kde {e['mean_kde']:.3f} bnaf {e['mean_bnaf']:.3f} difference {e['mean_difference']:+.3f} "
              f"[{e['ci'][0]:+.3f}, {e['ci'][1]:+.3f}] over {e['releases']} releases")  # fmt: skip
    print(path)


if __name__ == "__main__":
    main()
