"""How well every attack tells members from non-members, with everything that a careful reader asks of such a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxaudit.evaluate.bca import auc_bca
from jaxaudit.evaluate.canonical import merge_rounding
from jaxaudit.evaluate.epsilon import ASSUMPTION, MISSING, available, one_run_epsilon
from jaxaudit.evaluate.multiplicity import max_permutation
from jaxaudit.evaluate.operating import operating_point
from jaxaudit.evaluate.paired import compare_aucs
from jaxaudit.evaluate.power import detectable_auc
from jaxaudit.evaluate.roc import auc, auc_interval, tpr_at_fpr
from jaxaudit.runtime.checks import check_int, check_real
from jaxaudit.tables.overlaps import auc_without
from jaxaudit.tables.strata import Strata, strata_summary

__all__ = ["EvaluationConfig", "judge"]


@dataclass(frozen=True)
class EvaluationConfig:
    """How scores are judged.

    Attributes:
        level: confidence level of every interval, of AUCs and of true-positive rates, in (0, 0.9999].
        permutations: label permutations of the joint max-statistic test, >= 99.
        delta: of the lower bounds of epsilon (with the package ``jax-privacy``), in (0, 1).
    """

    level: float = 0.95
    permutations: int = 9999
    delta: float = 1e-5

    def __post_init__(self) -> None:
        check_real("evaluation.level", self.level, 0, 0.9999, open_low=True)
        check_int("evaluation.permutations", self.permutations, 99, 10_000_000)
        check_real("evaluation.delta", self.delta, 0, 1, open_low=True, open_high=True)


def judge(
    scored: Mapping[str, np.ndarray],
    member: np.ndarray,
    masks: Mapping[str, np.ndarray],
    strata: Strata,
    evaluation: EvaluationConfig,
    seed: int,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The blocks ``attacks``, ``permutation`` and ``epsilon`` of the summary, as plain nested values.

    Scores that differ by rounding only are judged as equal (``evaluate.canonical.merge_rounding``), so that the order
    of columns breaks no ties; and no number depends on the order of the records.

    Args:
        scored: attack -> (n,) scores.
        member: (n,) bool.
        masks: name -> (n,) bool, records that overlap another table (``overlaps.overlap_masks``).
        strata: how typical each record is.
        evaluation: settings.
        seed: of permutations, resamples and splits.
        advance: called after each attack.
    """
    names, scores = list(scored), merge_rounding(np.stack(list(scored.values())))
    level, bound = evaluation.level, min(max(evaluation.level, 0.5), 0.999)
    test = max_permutation(scores, member, permutations=evaluation.permutations, seed=seed)
    paired = compare_aucs(scores, member, level, seed=seed)
    accelerated = auc_bca(scores, member, level, seed)
    best = int(np.argmax(paired.auc))
    judged: dict[str, dict[str, Any]] = {}
    for index, (name, row) in enumerate(zip(names, scores, strict=True)):
        critical = float(test.critical_auc[index])
        judged[name] = {
            "auc": auc(row, member),
            "auc_ci": list(auc_interval(row, member, level=level)),
            "auc_bca": accelerated[index].tolist(),
            "tpr_at_fpr": tpr_at_fpr(row, member, level=level),
            "p_value": float(test.adjusted[index]),
            "p_value_unadjusted": float(test.unadjusted[index]),
            "first_share": float(paired.first[index]),
            "behind_best": float(paired.difference[best, index]),
            "behind_best_ci": [float(paired.low[best, index]), float(paired.high[best, index])],
            "critical_auc": critical,
            "detectable_auc": detectable_auc(critical, int(member.sum()), int((~member).sum())),
            "auc_without": auc_without(row, member, masks, level),
            "strata": strata_summary(row, member, strata, level=level),
            "operating": operating_point(row, member, level=bound, seed=seed),
        }
        if epsilon := one_run_epsilon(row, member, evaluation.delta, bound, seed):
            judged[name]["epsilon"] = epsilon
        advance()
    described = {
        "statistic": "maximum standardised AUC over the attacks run",
        "permutations": evaluation.permutations,
        "attacks": len(names),
        "interval": "DeLong",
        "best": names[best],
        "resamples": paired.resamples,
        "level": level,
    }
    epsilon_words = {"assumptions": ASSUMPTION} if available() else {"sentence": MISSING}
    return {"attacks": judged, "permutation": described, "epsilon": epsilon_words}
