"""Node-level membership attacks on an ensemble, as operations on (nodes, models) arrays.

Higher statistics and scores are more member-like. No model that is judged moves its own threshold or fit.
"""

from jaxaudit.graph.attacks.g_base import Design, contrast_queries, draw_design
from jaxaudit.graph.attacks.gaussian import MIN_FIT, MIN_OWN_VARIANCE, VARIANCES, cross_fitted_ratio
from jaxaudit.graph.attacks.observed import OBSERVES, Context, Observed, observe, post_process, select
from jaxaudit.graph.attacks.protocol import NODE_ATTACKS, NodeAttack, attack_counts, cross_fit, score_targets
from jaxaudit.graph.attacks.rules import RULES, AttackConfig, Counts, count_errors, prior_log_odds
from jaxaudit.graph.attacks.statistics import STATISTICS, halves, node_statistic

__all__ = [
    "MIN_FIT", "MIN_OWN_VARIANCE", "NODE_ATTACKS", "OBSERVES", "RULES", "STATISTICS", "VARIANCES",
    "AttackConfig", "Context", "Counts", "Design", "NodeAttack", "Observed",
    "attack_counts", "contrast_queries", "count_errors", "cross_fit", "cross_fitted_ratio", "draw_design", "halves",
    "node_statistic", "observe", "post_process", "prior_log_odds", "score_targets", "select",
]  # fmt: skip
