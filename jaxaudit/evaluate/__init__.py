"""Evaluation of membership attacks: ROC numbers with intervals, and control of multiplicity."""

from jaxaudit.evaluate.multiplicity import PermutationTest, max_permutation
from jaxaudit.evaluate.roc import (
    RocCurve,
    auc,
    auc_interval,
    clopper_pearson,
    roc_curve,
    tpr_at_fpr,
)

__all__ = [
    "PermutationTest",
    "RocCurve",
    "auc",
    "auc_interval",
    "clopper_pearson",
    "max_permutation",
    "roc_curve",
    "tpr_at_fpr",
]
