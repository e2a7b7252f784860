"""Evaluation of membership attacks: ROC numbers with intervals, and control of multiplicity."""

from jaxaudit.evaluate.bands import Bands, roc_bands
from jaxaudit.evaluate.bca import auc_bca
from jaxaudit.evaluate.canonical import merge_rounding
from jaxaudit.evaluate.epsilon import one_run_epsilon
from jaxaudit.evaluate.gate import GateConfig, crossings
from jaxaudit.evaluate.multiplicity import PermutationTest, max_permutation
from jaxaudit.evaluate.operating import operating_point
from jaxaudit.evaluate.paired import PairedComparison, compare_aucs
from jaxaudit.evaluate.power import auc_variance, detectable_auc
from jaxaudit.evaluate.roc import (
    RocCurve,
    auc,
    auc_interval,
    clopper_pearson,
    roc_curve,
    tpr_at_fpr,
)

__all__ = [
    "Bands",
    "GateConfig",
    "PairedComparison",
    "PermutationTest",
    "RocCurve",
    "auc",
    "auc_bca",
    "auc_interval",
    "auc_variance",
    "clopper_pearson",
    "compare_aucs",
    "crossings",
    "detectable_auc",
    "max_permutation",
    "merge_rounding",
    "one_run_epsilon",
    "operating_point",
    "roc_bands",
    "roc_curve",
    "tpr_at_fpr",
]
