"""Realistic results of both audits, made from simulated error counts and scores: no audit is run."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from jaxaudit.evaluate import auc, auc_interval, detectable_auc, max_permutation, tpr_at_fpr
from jaxaudit.runtime.result import AuditResult

FIGURES = ("within_node_auc", "tpr_at_0.01", "target_auc", "tpr_at_0.001", "pooled_auc")
QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def _limits(fp, n0, fn, n1, rng, draws=400):
    """Quantiles of (r*, l*) under Jeffreys Betas: what the functional limits are, by simulation."""
    a = rng.beta(fp + 0.5, n0 - fp + 0.5, (draws, fp.size))
    b = rng.beta(fn + 0.5, n1 - fn + 0.5, (draws, fp.size))
    r = np.log(np.maximum((1 - b) / a, b / (1 - a)))
    l = np.log(np.maximum(a / (1 - b), (1 - a) / b))
    return np.maximum(r, 0), np.maximum(l, 0)


def graph_result(nodes=600, models=64, seed=0, sampler="snowball", leak=1.2) -> AuditResult:
    """A graph audit as the engine returns it; ``leak`` = 0 is a model that reveals nothing."""
    rng = np.random.default_rng(seed)
    degree = np.minimum(rng.zipf(1.9, nodes) + 1, 120)
    reach = 0.1 * degree**0.7 * np.exp(0.3 * rng.normal(size=nodes)) / np.mean(degree**0.7)
    prior = np.clip(reach, 0.005, 0.999) if sampler == "snowball" else np.full(nodes, 0.5)
    member = rng.random((nodes, models)) < prior[:, None]
    n_in, n_out = member.sum(1), (~member).sum(1)
    shift = leak * rng.gamma(2, 0.5, nodes)
    statistic = rng.normal(size=(nodes, models)) + shift[:, None] * member
    decision = statistic > 1.28
    fp, fn = (decision & ~member).sum(1), (~decision & member).sum(1)
    auditable = (n_in > 0) & (n_out > 0)

    def known(values):
        return np.where(auditable, values, np.nan)

    r, l = _limits(fp, np.maximum(n_out, 0), fn, np.maximum(n_in, 0), rng)
    odds = np.log(prior / (1 - prior))
    table = pd.DataFrame({
        "node": np.arange(nodes), "label": rng.integers(0, 10, nodes), "degree": degree, "prior": prior,
        "prior_lower": prior * 0.95, "prior_upper": np.minimum(1, prior * 1.05),
        "n_in": n_in, "n_out": n_out, "fp": fp, "fn": fn, "auditable": auditable,
    })  # fmt: skip
    for name, values in (("r", r * 1.25 + 0.2), ("l", l * 1.2 + 0.3)):
        for q, at in QUANTILES.items():
            table[f"{name}_{q}"] = known(np.quantile(values, at, axis=0))
    for q in QUANTILES:
        table[f"eps_R_{q}"], table[f"eps_L_{q}"] = table[f"r_{q}"] + odds, table[f"l_{q}"] - odds
    table["r_lower"], table["l_lower"] = known(np.quantile(r, 0.05, axis=0)), known(np.quantile(l, 0.05, axis=0))
    table["eps_R_lower"], table["eps_L_lower"] = table["r_lower"] + odds, table["l_lower"] - odds
    both = np.flatnonzero((n_in > 1) & (n_out > 1))
    within = np.full(nodes, np.nan)
    within[both] = [auc(statistic[i], member[i]) for i in both]
    table["auc_likelihood_ratio"], table["auc_standardised"] = within, np.clip(within - 0.01, 0, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        fpr, fnr = known(fp / n_out), known(fn / n_in)
    table["worse_than_chance"] = np.nan_to_num(fpr + fnr) > 1
    table["log_odds"] = odds
    ranks = np.argsort(np.argsort(-r[:100], axis=1), axis=1) + 1.0
    table["rank"], table["top_probability"] = known(ranks.mean(0)), known((ranks <= 0.05 * nodes).mean(0))
    table["rank_q05"], table["rank_q95"] = (known(np.quantile(ranks, q, axis=0).round()) for q in (0.05, 0.95))
    for q in QUANTILES:
        table[f"r_shrunken_{q}"] = 1.5 + 0.1 * table[f"r_{q}"]
    return AuditResult(
        audit="graph",
        config=_graph_config(sampler, models, seed),
        data={"name": "digits_knn", "nodes": nodes, "edges": int(degree.sum() // 2), "features": 64, "classes": 10,
              "digest": "5f0c2a9e61d34b7788aa0012"},
        summary=_graph_summary(table, fpr, fnr, member, statistic, prior, models) | _graph_blocks(table, rng),
        warnings=("3 of 64 snowball draws ran out of frontier below the quota of 60 nodes.",
                  "21 nodes were in no training sample: they are not auditable with 64 models."),
        timings={"priors": {"compile_s": 0.0, "run_s": 1.9, "items": 10_000},
                 "shadow models": {"compile_s": 3.12, "run_s": 28.4, "items": models},
                 "attack": {"compile_s": 0.8, "run_s": 0.3, "items": nodes},
                 "posterior": {"compile_s": 1.1, "run_s": 0.9, "items": nodes}},
        table=table,
        evidence={"fpr": fpr, "fnr": fnr, "statistic": statistic.astype(np.float32), "member": member},
    )  # fmt: skip


def _graph_config(sampler, models, seed):
    return {
        "audit": "graph", "seed": seed, "graph": {"name": "digits_knn", "neighbours": 10},
        "sampler": {"name": sampler, "ratio": 0.1, "on_exhausted": "stop"}, "model": "gcn",
        "train": {"epochs": 200, "hidden": 64, "learning_rate": 0.01, "weight_decay": 5e-4},
        "shadow": {"count": models}, "edges": {"train": "induced", "inference": "split"},
        "attack": {"rule": "fixed_fpr", "level": 0.1}, "posterior": "exact",
        "bmp": {"definition": "posterior_odds", "prior_scale2": 10.0}, "cache": {"dir": None},
    }  # fmt: skip


def _spread(values):
    return {
        "median": float(np.nanmedian(values)),
        "q90": float(np.nanquantile(values, 0.9)),
        "max": float(np.nanmax(values)),
    }


def _graph_summary(table, fpr, fnr, member, statistic, prior, models):
    within = float(np.nanmean(table["auc_likelihood_ratio"]))
    pooled = auc(statistic.ravel(), member.ravel())
    quantile = {n: {f"median_of_{q}": float(np.nanmedian(table[f"{n}_{q}"])) for q in QUANTILES} for n in "rl"}
    auditable = table["auditable"]
    return {
        "shadows": {"count": models, "trained": models, "train_accuracy": {"mean": 0.991, "sd": 0.006},
                    "test_accuracy": {"mean": 0.913, "sd": 0.021},
                    "sizes": {"quota": 60, "mean": 59.7, "min": 51, "max": 60}, "exhausted": 3},
        "attack_auc": {"pooled": pooled, "pooled_ci": [pooled - 0.01, pooled + 0.01],
                       "within_node": {"likelihood_ratio": within,
                                       "likelihood_ratio_ci": [within - 0.012, within + 0.012],
                                       "standardised": within - 0.01,
                                       "standardised_ci": [within - 0.02, within + 0.004]}},
        "prior_only_auc": auc(np.repeat(prior, models), member.ravel()),
        "global_attack": {"rule": "fixed_fpr", "level": 0.1, "accuracy": 0.846, "balanced_accuracy": 0.702,
                          "tpr": 0.51, "fpr": 0.104, "decisions": int(member.size)},
        "nodes": {"total": len(table), "auditable": int(auditable.sum()), "prior_zero": 0, "prior_one": 0,
                  "never_in": int((table["n_in"] == 0).sum()), "never_out": int((table["n_out"] == 0).sum()),
                  "worse_than_chance": int(table["worse_than_chance"].sum()),
                  "median_n_in": float(table["n_in"].median()), "median_n_out": float(table["n_out"].median())},
        "limits": {**{f"{n}_lower": _spread(table[f"{n}_lower"]) for n in ("r", "l", "eps_R", "eps_L")},
                   "share_r_above_0.1": float(np.mean(table["r_lower"][auditable] > 0.1)),
                   "share_l_above_0.1": float(np.mean(table["l_lower"][auditable] > 0.1))},
        "paper_posterior": quantile,
        "pooled": {"engine": "exact", "nodes": int(auditable.sum()), "r": {"q05": 1.71, "q50": 1.79, "q95": 1.88},
                   "l": {"q05": 0.61, "q50": 0.66, "q95": 0.72},
                   "shared_models": {
                       "scheme": "jackknife", "dropped": 2,
                       "r": {"median": 1.79, "naive": [1.71, 1.88], "interval": [1.64, 1.97], "spread": 0.04,
                             "inflation": 1.92},
                       "l": {"median": 0.66, "naive": [0.61, 0.72], "interval": [0.61, 0.72], "spread": 0.0,
                             "inflation": 1.0}},
                   "prior_sensitivity": {s: {"r": {"q05": 1.70, "q50": 1.78, "q95": 1.87},
                                             "l": {"q05": 0.60, "q50": 0.66, "q95": 0.72}} for s in ("1", "100")}},
        "prior_lower_bound": {"definition": "posterior_odds", "eps_R": 1.83, "eps_L": 4.02, "eps_R_median": -2.31,
                              "eps_L_median": 2.31},
        "sampling": {"prior_exact": False, "prior_draws": 10_000, "prior_min": float(prior.min()),
                     "prior_median": float(np.median(prior)), "prior_max": float(prior.max())},
    }  # fmt: skip


def _graph_blocks(table, rng):
    """The blocks that an audit may lack: attacks, rules and levels side by side."""
    attacks = [
        {"attack": name, **{f"{figure}{suffix}": value(base + 0.3 * k) for k, figure in enumerate(FIGURES)
                            for suffix, value in (("", float), ("_ci", lambda x: [x - 0.02, x + 0.03]))}}
        for name, base in (("loss", 0.11), ("likelihood_ratio", 0.17), ("my_own", 0.14))
    ]  # fmt: skip
    rules = []
    for rule, prior in (("likelihood", "blind"), ("likelihood", "aware"), ("prior_only", "aware")):
        row = {"rule": rule, "prior": prior, "decisions": 4321}
        for name in ("accuracy", "balanced_accuracy", "tpr", "fpr"):
            row[name] = float(rng.uniform(0.3, 0.9))
            row[f"{name}_ci"] = [row[name] - 0.01, row[name] + 0.01]
        rules.append(row)
    groups = {}
    for by, names in (("degree", ["degree 2", "degree 3 to 9"]), ("class", [f"class {c}" for c in range(4)])):
        middle = {x: rng.uniform(1, 3, len(names)) for x in "rl"}
        groups[by] = {"names": names, "nodes": rng.integers(5, 300, len(names)).tolist()} | {
            x: {"q05": (m - 0.4).tolist(), "q50": m.tolist(), "q95": (m + 0.7).tolist()} for x, m in middle.items()
        }  # fmt: skip
    hyper = {"mu_r": 0.61, "mu_l": 0.23, "tau_r": 0.31, "tau_l": 0.47}
    return {
        "attacks": attacks, "rules": rules, "groups": groups,
        "heterogeneity": {"nodes": 431, "mean": 0.4, "observed_sd": 0.211, "sd": 0.187, "sd_ci90": [0.171, 0.202],
                          "real_share": 0.786, "p_value": 0.0005},
        "readings": {d: {e: {"median": float(rng.uniform(-2, 2)), "q90": float(rng.uniform(2, 4))}
                         for e in ("eps_L", "eps_R")}
                     for d in ("posterior_odds", "bayes_factor", "membership_privacy")},
        "bmdp": {"structure": "fixed_size", "lower_bound": False, "meaning": "The others determine a node's own."},
        "population": {name: {"q05": m - 0.1, "q50": m, "q95": m + 0.1} for name, m in hyper.items()}
        | {"nodes": int(table["auditable"].sum()), "rhat": 1.004, "ess": 812.0, "divergences": 0},
    }  # fmt: skip


def release_result(members=200, others=200, seed=0, attacks=("gen_lra", "dcr", "domias"), leak=0.6) -> AuditResult:
    """A release audit as the engine returns it: heavy-tailed, normal and coarse scores."""
    rng = np.random.default_rng(seed)
    n = members + others
    member = np.arange(n) < members
    rows = []
    for k, _ in enumerate(attacks):
        base = rng.normal(size=n) + leak * member * (rng.random(n) < 0.7) / (1 + 0.7 * k)
        rows.append(np.sinh(1.5 * base) if k == 0 else -np.abs(base - 3) if k == 1 else np.round(base, 1))
    scores = np.stack(rows) if rows else np.zeros((0, n))
    summary = {"records": {"members": members, "non_members": others, "synthetic": 500, "reference": 169},
               "attacks": {}, "permutation": {"permutations": 999}}  # fmt: skip
    if rows:
        test = max_permutation(scores, member, 999)
        for k, name in enumerate(attacks):
            summary["attacks"][name] = {
                "auc": auc(scores[k], member), "auc_ci": list(auc_interval(scores[k], member)),
                "tpr_at_fpr": tpr_at_fpr(scores[k], member), "p_value": float(test.adjusted[k]),
                "p_value_unadjusted": float(test.unadjusted[k]), "critical_auc": float(test.critical_auc[k]),
                "detectable_auc": detectable_auc(float(test.critical_auc[k]), int(member.sum()), int((~member).sum())),
            }  # fmt: skip
    table = pd.DataFrame(
        {"record": np.concatenate([np.arange(members), np.arange(others)]), "member": member.astype(int)}
    )
    for k, name in enumerate(attacks):
        table[name] = scores[k]
    return AuditResult(
        audit="release",
        config={"audit": "release", "seed": seed, "release": {"members": "members.csv",
                "non_members": "non members.csv", "synthetic": "synthetic.csv.gz", "reference": None,
                "encoding": "standard"}, "attacks": list(attacks),
                "gen_lra": {"k": 10, "bandwidth": "fixed", "neighbours": "encoded"}},
        data={"columns": ["mean radius", "mean texture", "diagnosis"], "encoded_columns": 31},
        summary=summary,
        warnings=("No reference table: half of the non-members serve as reference.",
                  "2 rows occur among both members and non-members."),
        timings={"encode": {"compile_s": 0.0, "run_s": 0.1, "items": 4},
                 "gen_lra": {"compile_s": 1.4, "run_s": 0.2, "items": n}},
        table=table,
        evidence={"member": member, "scores": scores},
    )  # fmt: skip


@pytest.fixture(scope="session")
def graph() -> AuditResult:
    return graph_result()


@pytest.fixture(scope="session")
def release() -> AuditResult:
    return release_result()


@pytest.fixture(scope="session")
def environment() -> dict:
    return {"python": "3.11.2", "device": "cpu", "device_count": 2, "versions": {"jax": "0.10.2", "numpy": "2.4.6"}}


@pytest.fixture(scope="session")
def make():
    """The builders themselves, for tests that need other sizes."""
    return {"graph": graph_result, "release": release_result}
