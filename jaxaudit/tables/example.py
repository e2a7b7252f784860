"""The embedded example: a real table and a synthetic one that leaks by construction."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from sklearn.datasets import load_breast_cancer

from jaxaudit.runtime.checks import check_int
from jaxaudit.runtime.keys import host_rng
from jaxaudit.tables.data import Release, load_release
from jaxaudit.tables.generators.mixture import MixtureConfig, overfitting_mixture

__all__ = ["EXAMPLE_MIXTURE", "breast_cancer_release"]

EXAMPLE_MIXTURE = MixtureConfig()
"""Settings of the example: four rows in ten are near copies; AUCs of about .7, clear but far from total."""


def breast_cancer_release(
    seed: int = 0, mixture: MixtureConfig = EXAMPLE_MIXTURE, drop: str | Iterable[str] = ()
) -> Release:
    """A release audit without files: scikit-learn's breast-cancer table and an overfitting mixture.

    The 569 records (30 numeric columns, the diagnosis left out) are shuffled and cut into 190 members, 190
    non-members and 189 reference records. The synthetic table has 190 rows drawn from
    ``generators.mixture.overfitting_mixture`` fitted on the members; its leak is there by design.

    Args:
        seed: of the shuffle and of the mixture.
        mixture: settings of the mixture.
        drop: names of columns to leave out.

    Returns:
        The release, all columns float64.

    Example:
        >>> release = breast_cancer_release(seed=0)
        >>> [len(table) for table in release.tables().values()], release.members.shape[1]
        ([190, 190, 190, 189], 30)
    """
    check_int("seed", seed, 0)
    records = load_breast_cancer(as_frame=True).data
    order = host_rng(seed, "tables.example.split").permutation(len(records))
    members, non_members, reference = (records.iloc[part] for part in (order[:190], order[190:380], order[380:]))
    drawn = overfitting_mixture(members.to_numpy(), len(members), host_rng(seed, "tables.example.mixture"), mixture)
    synthetic = pd.DataFrame(drawn, columns=records.columns)
    return load_release(members, non_members, synthetic, reference, seed=seed, drop=drop)
