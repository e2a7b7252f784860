"""Bayesian Membership Privacy: regions of errors, definitions, and posteriors of the privacy parameters (l, r)."""

from jaxaudit.bmp import region
from jaxaudit.bmp.definitions import DEFINITIONS, from_canonical, prior_lower_bound, to_canonical
from jaxaudit.bmp.functional import FunctionalLimits, functional_limits
from jaxaudit.bmp.nuts import NutsPosterior, pooled_nuts
from jaxaudit.bmp.pooled import PooledPosterior, pooled_posterior
from jaxaudit.bmp.posterior import ExactPosterior, exact_posterior

__all__ = [
    "DEFINITIONS",
    "ExactPosterior",
    "FunctionalLimits",
    "NutsPosterior",
    "PooledPosterior",
    "exact_posterior",
    "from_canonical",
    "functional_limits",
    "pooled_nuts",
    "pooled_posterior",
    "prior_lower_bound",
    "region",
    "to_canonical",
]
