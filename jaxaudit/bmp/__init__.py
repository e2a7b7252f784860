"""Bayesian Membership Privacy: regions of errors, definitions, and posteriors of the privacy parameters (l, r)."""

from jaxaudit.bmp import channel, coupling, joint, region, theorems
from jaxaudit.bmp.definitions import (
    DEFINITIONS,
    bmp_l,
    bmp_r,
    compare_readings,
    from_canonical,
    prior_lower_bound,
    to_canonical,
)
from jaxaudit.bmp.exposure import auc_spread, decompose, rank_nodes
from jaxaudit.bmp.functional import FunctionalLimits, functional_limits
from jaxaudit.bmp.given_others import Bmdp, bmdp
from jaxaudit.bmp.groups import Groups, group_posterior, make_groups
from jaxaudit.bmp.hierarchical import hierarchical_posterior
from jaxaudit.bmp.mhaar import mhaar
from jaxaudit.bmp.nuts import NutsPosterior, node_nuts, pooled_nuts
from jaxaudit.bmp.pooled import PooledPosterior, pooled_posterior
from jaxaudit.bmp.posterior import ExactPosterior, exact_posterior
from jaxaudit.bmp.resampling import bootstrap_posterior
from jaxaudit.bmp.table import shared_posteriors

__all__ = [
    "DEFINITIONS",
    "Bmdp",
    "ExactPosterior",
    "FunctionalLimits",
    "Groups",
    "NutsPosterior",
    "PooledPosterior",
    "bmdp",
    "bootstrap_posterior",
    "bmp_l",
    "bmp_r",
    "channel",
    "compare_readings",
    "coupling",
    "decompose",
    "exact_posterior",
    "from_canonical",
    "functional_limits",
    "group_posterior",
    "hierarchical_posterior",
    "joint",
    "auc_spread",
    "make_groups",
    "mhaar",
    "node_nuts",
    "pooled_nuts",
    "pooled_posterior",
    "prior_lower_bound",
    "rank_nodes",
    "region",
    "shared_posteriors",
    "theorems",
    "to_canonical",
]
