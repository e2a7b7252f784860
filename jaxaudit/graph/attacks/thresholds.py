"""Attacks that look at the judged model alone: no shadow models, one number per node.

``loss``: Yeom et al. 2018 (arXiv:1709.01604); ``confidence`` (largest probability) and ``entropy``: Salem et al. 2019
(arXiv:1806.01246); ``modified_entropy``: Song & Mittal 2021 (arXiv:2003.10595), the negative of which is
(1 − p_y)·log p_y + Σ_{c≠y} p_c·log(1 − p_c).
"""

from __future__ import annotations

import numpy as np

from jaxaudit.graph.attacks.observed import Context, Observed

__all__ = ["confidence", "entropy", "loss", "modified_entropy"]


def _finite(values: object) -> np.ndarray:
    values = np.asarray(values, np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def loss(shadow: Observed, member: np.ndarray, target: Observed, context: Context) -> np.ndarray:
    """Log-probability of the true class, (n, T)."""
    return _finite(target.log_prob)


def confidence(shadow: Observed, member: np.ndarray, target: Observed, context: Context) -> np.ndarray:
    """Log of the largest probability, (n, T): the label is not asked for."""
    return _finite(target.confidence)


def entropy(shadow: Observed, member: np.ndarray, target: Observed, context: Context) -> np.ndarray:
    """Minus the entropy of the output, (n, T)."""
    return _finite(target.entropy)


def modified_entropy(shadow: Observed, member: np.ndarray, target: Observed, context: Context) -> np.ndarray:
    """Minus the modified entropy, (n, T)."""
    return _finite(target.modified_entropy)
