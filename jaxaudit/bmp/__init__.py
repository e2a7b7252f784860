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
from jaxaudit.bmp.functional import FunctionalLimits, functional_limits
from jaxaudit.bmp.given_others import Bmdp, bmdp
from jaxaudit.bmp.nuts import NutsPosterior, pooled_nuts
from jaxaudit.bmp.pooled import PooledPosterior, pooled_posterior
from jaxaudit.bmp.posterior import ExactPosterior, exact_posterior

__all__ = [
    "DEFINITIONS",
    "Bmdp",
    "ExactPosterior",
    "FunctionalLimits",
    "NutsPosterior",
    "PooledPosterior",
    "bmdp",
    "bmp_l",
    "bmp_r",
    "channel",
    "compare_readings",
    "coupling",
    "exact_posterior",
    "from_canonical",
    "functional_limits",
    "joint",
    "pooled_nuts",
    "pooled_posterior",
    "prior_lower_bound",
    "region",
    "theorems",
    "to_canonical",
]
