"""Lower bounds of a differential-privacy epsilon from one release, by the package ``jax-privacy`` where installed.

All records share one release, so that their errors are not independent trials and a Clopper-Pearson bound over records
is no bound of epsilon. One-run audits have bounds that hold nevertheless, under an assumption of their own: every
scored record was put into the training table, or left out, by an independent fair coin, and nothing else differs
between members and non-members. Here members are fixed by the owner of the data. The bound is then valid as far as
who became a member is as good as such coins: a random split of one population is (with as many members as non-members
scored; fixing their numbers takes little away from independence), a selection by date, place or consent is not. There
the bound says how well members can be told from non-members, shift included, and not what the generator gave away.

With probability ``level`` over the coins and the generator: if the generator is (epsilon, delta)-private for adding or
removing one record, the bound is at most epsilon. It is a lower bound by the attack at hand; 0 says nothing.
"""

from __future__ import annotations

import importlib.util
from importlib import metadata
from typing import Any

import numpy as np

from jaxaudit.evaluate.roc import validate
from jaxaudit.runtime.checks import check_int, check_real
from jaxaudit.runtime.keys import host_rng

__all__ = ["ASSUMPTION", "MISSING", "available", "one_run_epsilon"]

ASSUMPTION = (
    "The bounds of epsilon assume that an independent fair coin decided for every scored record whether it became a "
    "member; where members differ from non-members in any other way, the bounds count that difference as leakage."
)
"""For reports that show a bound."""

MISSING = "Bounds of epsilon need the package jax-privacy: pip install 'jaxaudit[epsilon]'."
"""For reports without."""


def available() -> bool:
    """Whether ``jax-privacy`` can be imported; it is not imported."""
    return importlib.util.find_spec("jax_privacy") is not None


def one_run_epsilon(
    scores: Any,
    member: Any,
    delta: float = 1e-5,
    level: float = 0.95,
    seed: int = 0,
    *,
    splits: int = 25,
    gaussian: bool = False,
) -> dict[str, Any] | None:
    """Lower bounds of epsilon from one attack on one release, see the module for what they assume.

    Members and non-members must be equally many, since with other numbers guessing the larger class would be right
    more often than a fair coin: a random part of the larger class is left out. ``epsilon`` is the bound of Steinke
    et al. for guesses "member" above a threshold, for any generator. The threshold is chosen on one random half of the
    records and judged on the other, for ``splits`` halvings at significance (1 - level) / 2; their median is valid at
    ``level`` (Meinshausen et al. 2009). The package's correction for all thresholds at once counts only those on the
    hull of the ROC curve, which depend on the data; it is not used.

    ``epsilon_if_gaussian`` is the f-DP bound of Mahloujifar et al. with the Gaussian mechanism as the family of f, from
    the same halvings. It is a bound only if the generator leaks in that way, hence not computed unless asked for: for
    randomised response with epsilon 1 and 1,000 records it exceeds 1 in two thirds of replications.

    Args:
        scores: (n,) finite real numbers, higher = more member-like.
        member: (n,) of 0/1 or booleans, at least 2 of each.
        delta: in (0, 1).
        level: one-sided confidence, in [0.5, 1).
        seed: of the records left out and of the halvings.
        splits: number of halvings, >= 1.
        gaussian: whether to compute ``epsilon_if_gaussian``; about half a second per halving of 2,000 records.

    Returns:
        Plain values ``epsilon``, ``epsilon_if_gaussian`` (where asked for), ``delta``, ``level``, ``records``
        (scored ones used), ``left_out``, ``package`` (name and version); or None where the package is missing or a
        class has fewer than 2 records.

    Raises:
        InputError: an argument out of its range, or see ``evaluate.roc.validate``.

    References:
        Steinke, Nasr & Jagielski, arXiv:2305.08846; Mahloujifar, Melis & Chaudhuri, arXiv:2410.22235; Meinshausen,
        Meier & Bühlmann, JASA 104 (2009) 1671.

    Example:
        >>> member = np.arange(200) < 100
        >>> found = one_run_epsilon(member + 0.0, member)
        >>> found is None or 1 < found["epsilon"] < 5
        True
    """
    values, labels = validate(scores, member)
    delta = check_real("epsilon.delta", delta, 0, 1, open_low=True, open_high=True)
    level = check_real("epsilon.level", level, 0.5, 1, open_high=True)
    check_int("epsilon.splits", splits, 1)
    equal = min(int(labels.sum()), int((~labels).sum()))
    if equal < 2 or not available():
        return None
    from jax_privacy import auditing  # type: ignore[import-not-found, unused-ignore]

    rng = host_rng(seed, "one-run epsilon")
    inside, outside = (np.sort(values[part]) for part in (labels, ~labels))  # whatever the order of the records
    inside, outside = (rng.permutation(part)[:equal] for part in (inside, outside))
    auditor = auditing.CanaryScoreAuditor(inside, outside)
    halvings = auditing.MultiSplit(num_samples=splits, seed=seed)
    bound = auditor.epsilon_one_run(1 - level, delta, threshold_strategy=halvings)
    curved = {}
    if gaussian:
        curved["epsilon_if_gaussian"] = float(
            auditor.epsilon_one_run_fdp(1 - level, delta, threshold_strategy=halvings)
        )
    return {
        "epsilon": float(bound),
        **curved,
        "delta": delta,
        "level": level,
        "records": 2 * equal,
        "left_out": labels.size - 2 * equal,
        "package": f"jax-privacy {metadata.version('jax-privacy')}",
    }
