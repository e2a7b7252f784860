"""The numbers of a graph audit that a reader sees first, and the sentences that qualify them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from jaxaudit import bmp
from jaxaudit.graph.attacks import AttackConfig, Counts
from jaxaudit.graph.auc import AttackAUC
from jaxaudit.graph.data import Graph
from jaxaudit.graph.noise import NoiseConfig
from jaxaudit.graph.sampling import Priors, SamplerConfig, Samples
from jaxaudit.graph.shadow import Ensemble
from jaxaudit.graph.training import TrainConfig

__all__ = [
    "accuracies", "find_warnings", "given_others", "readings", "summarise", "training_warnings",
]  # fmt: skip

_REPLICATES = 400


def accuracies(logits: np.ndarray, labels: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share of members and of non-members that each model classifies right under the inference edges.

    Args:
        logits: (K, n, C).
        labels: (n,).
        nodes: (K, n) bool membership.

    Returns:
        two (K,) float64 arrays: train and test accuracy.

    Example:
        >>> accuracies(np.array([[[1.0, 0.0], [1.0, 0.0]]]), np.array([0, 1]), np.array([[True, False]]))
        (array([1.]), array([0.]))
    """
    right = logits.argmax(axis=-1) == labels
    train, test = ((right & part).sum(axis=1) / np.maximum(part.sum(axis=1), 1) for part in (nodes, ~nodes))
    return train, test


def _spread(values: np.ndarray) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "sd": float(np.std(values, ddof=1))}


def _largest(values: np.ndarray) -> float:
    finite = values[~np.isnan(values)]
    return float(finite.max()) if finite.size else float("nan")


def _quantile(values: np.ndarray, q: float) -> float:
    """Quantile of the defined values; an infinite one is returned as such."""
    defined = np.sort(values[~np.isnan(values)])
    if defined.size == 0:
        return float("nan")
    low, high = defined[int(np.floor(q * (defined.size - 1)))], defined[int(np.ceil(q * (defined.size - 1)))]
    share = q * (defined.size - 1) % 1
    return float(low if low == high else (1 - share) * low + share * high)


def _limits(table: pd.DataFrame) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in ("r_lower", "l_lower", "eps_R_lower", "eps_L_lower"):
        values = table[name].to_numpy()
        out[name] = {"median": _quantile(values, 0.5), "q90": _quantile(values, 0.9), "max": _largest(values)}
    audited = table[table.auditable]
    for x in ("r", "l"):
        above = float((audited[f"{x}_lower"] > 0.1).mean()) if len(audited) else float("nan")
        out[f"share_{x}_above_0.1"] = above
    return out


def summarise(
    table: pd.DataFrame,
    samples: Samples,
    priors: Priors,
    ensemble: Ensemble,
    accuracy: tuple[np.ndarray, np.ndarray],
    counts: Counts,
    auc: AttackAUC,
    attack: AttackConfig,
    definition: str,
    prior: np.ndarray,
    seed: int,
) -> dict[str, Any]:
    """The ``summary`` block of the results, without the pooled posterior."""
    in_models, models = samples.nodes.sum(axis=0), samples.nodes.shape[0]
    eps_L, eps_R = (np.asarray(bound) for bound in bmp.prior_lower_bound(prior, definition))
    audited = table[table.auditable]
    return {
        "shadows": {
            "count": models, "trained": ensemble.trained,
            "train_accuracy": _spread(accuracy[0]), "test_accuracy": _spread(accuracy[1]),
            "sizes": {
                "quota": samples.quota, "mean": float(samples.sizes.mean()),
                "min": int(samples.sizes.min()), "max": int(samples.sizes.max()),
            },
            "epochs": {"mean": float(ensemble.epochs.mean()), "min": int(ensemble.epochs.min())},
            "exhausted": int(samples.exhausted.sum()), "reseeds": int(samples.reseeds.sum()),
            "not_finite": int((~ensemble.finite).sum()),
        },
        "attack_auc": {
            "pooled": auc.pooled, "pooled_ci": list(auc.pooled_ci),
            "pooled_with_prior": auc.pooled_with_prior, "pooled_with_prior_ci": list(auc.pooled_with_prior_ci),
            "within_node": {
                "likelihood_ratio": auc.likelihood_ratio, "likelihood_ratio_ci": list(auc.likelihood_ratio_ci),
                "standardised": auc.standardised, "standardised_ci": list(auc.standardised_ci),
            },
        },
        "prior_only_auc": auc.prior_only,
        "nodes": {
            "total": len(table), "auditable": int(table.auditable.sum()),
            "prior_zero": int((priors.gamma <= 0).sum()), "prior_one": int((priors.gamma >= 1).sum()),
            "never_in": int((in_models == 0).sum()), "never_out": int((in_models == models).sum()),
            "counted_in_none": int((table.n_in == 0).sum()), "counted_out_none": int((table.n_out == 0).sum()),
            "not_fitted": int((~table.auditable & (table.n_in > 0) & (table.n_out > 0)).sum()),
            "worse_than_chance": int(table.worse_than_chance.sum()),
            "median_n_in": float(table.n_in.median()), "median_n_out": float(table.n_out.median()),
        },
        "limits": _limits(table),
        "paper_posterior": {
            x: {f"median_of_{q}": _quantile(audited[f"{x}_{q}"].to_numpy(), 0.5) for q in ("q05", "q50", "q95")}
            for x in ("r", "l")
        },
        "prior_lower_bound": {
            "definition": definition, "eps_R": _largest(eps_R), "eps_L": _largest(eps_L),
            "eps_R_median": _quantile(eps_R, 0.5), "eps_L_median": _quantile(eps_L, 0.5),
        },
        "sampling": {
            "prior_exact": priors.exact, "prior_draws": priors.draws, "prior_min": float(priors.gamma.min()),
            "prior_median": float(np.median(priors.gamma)), "prior_max": float(priors.gamma.max()),
            "prior_draws_exhausted": priors.exhausted,
        },
    }  # fmt: skip


def readings(table: pd.DataFrame, prior: np.ndarray) -> dict[str, Any]:
    """Median and highest tenth of eps_L and eps_R at the functional lower limits, under every definition."""
    audited = table.auditable.to_numpy()
    l, r = (table[f"{x}_lower"].to_numpy()[audited] for x in ("l", "r"))
    side_by_side = bmp.compare_readings(l, r, prior[audited])
    return {
        definition: {
            eps: {"median": _quantile(np.asarray(side_by_side[f"{definition}_{eps}"]), 0.5),
                  "q90": _quantile(np.asarray(side_by_side[f"{definition}_{eps}"]), 0.9)}
            for eps in ("eps_L", "eps_R")
        }
        for definition in bmp.DEFINITIONS
    }  # fmt: skip


def given_others(sampler: SamplerConfig, priors: Priors, definition: str) -> dict[str, Any]:
    """What BMDP, the definition given all other memberships, means for this sampler."""
    stops = sampler.name == "snowball" and sampler.on_exhausted == "stop"
    name = "paired uniform" if sampler.paired else sampler.name  # of an odd number of nodes, its size is not known
    found = bmp.bmdp(name, 0.0, 0.0, 0.5, definition, ran_dry=priors.exhausted if stops else 0.0)
    return {"structure": found.structure, "lower_bound": found.lower_bound, "meaning": found.meaning}


def training_warnings(train: TrainConfig, noise: NoiseConfig) -> tuple[str, ...]:
    """What the options of training and release mean for a reader."""
    found = [
        (train.patience > 0,
         f"early stopping holds out {train.validation:.0%} of each sample from the loss; these nodes count as members"),
        (train.gradient_noise > 0,
         "gradients were clipped and noised as a control; no differential privacy is claimed"),
        (noise.weights > 0, f"weights carry Gaussian noise of sd {noise.weights:g}; no guarantee is claimed"),
        (noise.outputs > 0, f"logits carry Gaussian noise of sd {noise.outputs:g}; no guarantee is claimed"),
    ]  # fmt: skip
    return tuple(text for condition, text in found if condition)


def find_warnings(
    graph: Graph, sampler: SamplerConfig, samples: Samples, priors: Priors, ensemble: Ensemble, table: pd.DataFrame
) -> tuple[str, ...]:
    """What a reader of the results should know, one sentence each, with counts."""
    models, quota = samples.nodes.shape[0], samples.quota
    in_models = samples.nodes.sum(axis=0)
    dry, sizes = int(samples.exhausted.sum()), samples.sizes
    seeds = int(np.minimum(np.bincount(graph.labels), sampler.seeds_per_class).sum())
    missed = np.abs(samples.nodes.sum(axis=1) - quota) > 0
    ending = (
        f"{int(samples.reseeds.sum())} random nodes were added to reach it"
        if sampler.on_exhausted == "reseed"
        else f"realised sizes are {int(sizes.min())} to {int(sizes.max())}, {int(missed.sum())} below it"
    )
    found = [
        (sampler.name == "snowball" and seeds >= quota,
         f"the {seeds} snowball seeds fill the quota of {quota} nodes: no edge is followed"),
        (dry, f"{dry} of {models} draws ran out of frontier before the quota of {quota} nodes; {ending}"),
        ((sizes == 0).any(), f"{int((sizes == 0).sum())} of {models} draws are empty: their models are untrained"),
        (not ensemble.finite.all(),
         f"{int((~ensemble.finite).sum())} of {models} models diverged (loss or logits not finite) and are left out"),
        ((in_models == 0).any(), f"{int((in_models == 0).sum())} nodes are in none of the {models} samples"),
        ((in_models == models).any(), f"{int((in_models == models).sum())} nodes are in all of the {models} samples"),
        (not table.auditable.all(),
         f"{int((~table.auditable).sum())} of {len(table)} nodes are not auditable with {models} models"),
        (table.worse_than_chance.any(),
         f"at {int(table.worse_than_chance.sum())} of {int(table.auditable.sum())} auditable nodes the attack errs "
         "more often than guessing (FPR + FNR > 1): with few models mostly chance, else the reversed test leaks"),
        (priors.exact and ((priors.gamma <= 0) | (priors.gamma >= 1)).any(),
         f"{int(((priors.gamma <= 0) | (priors.gamma >= 1)).sum())} nodes have a prior of exactly 0 or 1: no number of "
         "models audits them"),
        (not priors.exact and (priors.gamma <= 0).any(),
         f"{int((priors.gamma <= 0).sum())} nodes came up in no prior draw; their upper limit serves as the prior"),
        (not priors.exact and (priors.gamma >= 1).any(),
         f"{int((priors.gamma >= 1).sum())} nodes came up in every prior draw; their lower limit serves as the prior"),
    ]  # fmt: skip
    return tuple(text for condition, text in found if condition)
