"""BMDP, the definition given all other memberships: what it means for each sampler.

An attacker who knows every other membership knows a node's own already where the sample has a fixed size. Then BMDP
describes the sampler and not the model, and a report should say so instead of printing a number. It is meaningful for
independent memberships (Yildirim & Khosla, arXiv:2606.04069). ``joint.conditional`` computes it exactly for learners
that are small enough to write down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxaudit.bmp.definitions import from_canonical
from jaxaudit.runtime.checks import check_choice, check_real, require

__all__ = ["STRUCTURES", "Bmdp", "bmdp"]

STRUCTURES = {
    "bernoulli": "independent",
    "degree": "fixed_size",
    "random_walk": "fixed_size",
    "snowball": "fixed_size",
    "uniform": "fixed_size",
}
"""Sampler -> what its memberships are to one another; a sampler that is not here is ``unknown``."""


@dataclass(frozen=True)
class Bmdp:
    """BMDP, the definition given all other memberships, as far as a sampler lets one say it.

    Attributes:
        eps_L: (...) float64; NaN where it is undefined or not known.
        eps_R: likewise.
        structure: ``independent``, ``fixed_size`` or ``unknown``.
        lower_bound: True where the values only bound BMDP from below.
        meaning: one sentence for the report; print it, and not a bare number.
    """

    eps_L: np.ndarray  # noqa: N815 - the symbol of the definition
    eps_R: np.ndarray  # noqa: N815
    structure: str
    lower_bound: bool
    meaning: str


_INDEPENDENT = (
    "Memberships under {sampler} sampling are independent, so BMDP (an attacker who knows all other memberships) is "
    "meaningful; an audit of single memberships bounds it from below."
)
_FIXED = (
    "A {sampler} sample has a known size, so the other memberships determine a node's own and BMDP says nothing about "
    "the model: it is {value} under the reading {definition} by definition."
)
_DRY = (
    "Of the {sampler} samples a share of {ran_dry:.2g} stopped before their quota: the size is not fixed, the other "
    "memberships may leave a node's own open, and BMDP is not given."
)
_UNKNOWN = (
    "Whether the other memberships determine a node's own is not known for the sampler {sampler}: BMDP is not given. "
    "Say structure='independent' or 'fixed_size' if it is one."
)
_VALUES = {"posterior_odds": "infinite", "bayes_factor": "undefined", "membership_privacy": "0"}


def bmdp(
    sampler: str,
    l: Any,
    r: Any,
    prior: Any,
    definition: str = "posterior_odds",
    *,
    structure: str | None = None,
    ran_dry: float = 0.0,
) -> Bmdp:
    """What BMDP is for a sampler, given the (l, r) of single memberships, with the sentence a report needs.

    Derived: under a fixed size the last membership follows from the others, so the posterior given them is 0 or 1
    whatever the model does. Under independent memberships the row of a single membership is the same mixture of
    p(w | S) on both sides, so its ratio lies between the ratios given the others: BMP <= BMDP.

    Args:
        sampler: ``uniform``, ``bernoulli``, ``degree``, ``snowball``, ``random_walk``, or a user's own name.
        l: canonical bound of the single memberships, >= 0; NaN passes through.
        r: likewise.
        prior: P(member), in [0, 1]; all broadcast.
        definition: one of ``DEFINITIONS``.
        structure: of a user's own sampler: ``independent`` or ``fixed_size``; None: as the registry says.
        ran_dry: share, in [0, 1], of samples that stopped before their quota (snowball); if positive, the size is
            not fixed and the values are NaN.

    Returns:
        Bmdp. Fixed size, prior inside (0, 1): infinite on both sides under ``posterior_odds``, NaN under
        ``bayes_factor``, 0 under ``membership_privacy``. A prior of 0 or 1 is as in ``from_canonical``.

    Raises:
        InputError: another definition or structure, a structure that contradicts the registry, values out of range.

    Example:
        >>> found = bmdp("uniform", 0.5, 1.0, 0.1)
        >>> float(found.eps_R), "determine" in found.meaning
        (inf, True)
        >>> bmdp("bernoulli", 0.5, 1.0, 0.1).lower_bound
        True
    """
    known = STRUCTURES.get(sampler)
    if structure is not None:
        check_choice("structure", structure, ("independent", "fixed_size"))
        require(known in (None, structure), "structure", f"be {known} for the sampler {sampler}", structure)
    kind = known or structure or "unknown"
    check_real("ran_dry", ran_dry, 0, 1)
    eps_L, eps_R = from_canonical(l, r, prior, definition)
    names = {"sampler": sampler, "definition": definition, "value": _VALUES[definition]}
    if kind == "independent":
        return Bmdp(eps_L, eps_R, kind, True, _INDEPENDENT.format(**names))
    if kind == "unknown" or ran_dry > 0:
        words = (_UNKNOWN if kind == "unknown" else _DRY).format(**names, ran_dry=ran_dry)
        return Bmdp(np.full_like(eps_L, np.nan), np.full_like(eps_R, np.nan), "unknown", False, words)
    # A certain membership is what infinite l and r mean; only ``membership_privacy`` compares it with a certain prior.
    certain = from_canonical(np.full_like(eps_L, np.inf), np.inf, prior, "posterior_odds")
    value = {"posterior_odds": certain, "bayes_factor": (np.nan, np.nan), "membership_privacy": (0.0, 0.0)}[definition]
    left, right = (np.broadcast_to(np.asarray(side, np.float64), eps_L.shape) for side in value)
    return Bmdp(left, right, kind, False, _FIXED.format(**names))
