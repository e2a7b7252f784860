"""What the attacks on nodes are, in a reader's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxaudit.report.words import branch

__all__ = ["ATTACKS", "FITS", "attack_rows"]

FITS = {"both": "in and out models", "out": "out models", "none": "nothing"}
"""What an attack is fitted to; in and out models are those trained with and without the node."""

ATTACKS = {
    "likelihood_ratio": ("both", "log ratio of normal densities fitted to either side, per node"),
    "likelihood_ratio_global": ("both", "likelihood_ratio with one variance for all nodes"),
    "likelihood_ratio_shrunken": ("both", "likelihood_ratio with variances shrunk to a common one"),
    "likelihood_ratio_offline": ("out", "how far above the normal fit of the out models, per node"),
    "likelihood_ratio_offline_global": ("out", "likelihood_ratio_offline with one variance for all nodes"),
    "likelihood_ratio_offline_shrunken": ("out", "likelihood_ratio_offline with shrunken variances"),
    "rmia": ("both", "true-class probability over its mean, ranked among all other nodes"),
    "rmia_offline": ("out", "rmia with the mean guessed from the out models"),
    "base": ("both", "true-class probability over its mean (BASE)"),
    "base_offline": ("out", "base with the mean over the out models"),
    "g_base": ("both", "BASE that also looks at the neighbours' losses (G-BASE)"),
    "loss": ("none", "true-class probability of the judged model alone"),
    "confidence": ("none", "largest probability of the judged model"),
    "entropy": ("none", "entropy of the judged model's prediction"),
    "modified_entropy": ("none", "entropy that knows the true class"),
    "global_mlp": ("both", "one network for all nodes, fed with sorted outputs"),
}
"""Attack -> (key of ``FITS``, what it scores by)."""


def attack_rows(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of the attacks side by side; none where the audit has none.

    Example:
        >>> attack_rows({"attacks": [{"attack": "loss"}, None]}), attack_rows({})
        ([{'attack': 'loss'}], [])
    """
    rows = summary.get("attacks")
    return [branch(row) for row in rows if branch(row)] if isinstance(rows, list | tuple) else []
