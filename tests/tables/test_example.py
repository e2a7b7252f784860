"""The embedded example: real rows, disjoint roles, a leak that is visible and not total."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.datasets import load_breast_cancer

from jaxaudit.runtime.checks import InputError
from jaxaudit.tables import Release, breast_cancer_release, fit_encoder
from jaxaudit.tables.generators import MixtureConfig


def dcr_auc(release: Release) -> float:
    """AUC of the negative distance to the closest synthetic record."""
    encoder = fit_encoder(release.reference, release.synthetic)
    synthetic = encoder.transform(release.synthetic)
    members, others = (
        -np.sqrt(((encoder.transform(table)[:, None] - synthetic) ** 2).sum(-1)).min(axis=1)
        for table in (release.members, release.non_members)
    )
    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    return float((ranks.mean() - (len(members) + 1) / 2) / len(others))


def test_roles_are_disjoint_rows_of_the_table() -> None:
    release = breast_cancer_release(0)
    real = [release.members, release.non_members, release.reference]
    assert [len(table) for table in real] == [190, 190, 189]
    rows = np.concatenate([table.to_numpy() for table in real])
    everything = load_breast_cancer().data
    np.testing.assert_array_equal(np.unique(rows, axis=0), np.unique(everything, axis=0))
    assert release.synthetic.shape == (190, 30)
    assert list(release.synthetic.columns) == list(load_breast_cancer().feature_names)
    assert (release.synthetic.to_numpy() >= 0).all()
    assert release.warnings == ()
    assert all(count == 0 for count in release.counts.values())


def test_seed() -> None:
    first, again, other = (breast_cancer_release(seed) for seed in (0, 0, 1))
    for name, table in first.tables().items():
        assert table.equals(again.tables()[name])
        assert not table.equals(other.tables()[name])
    with pytest.raises(InputError, match=r"seed must be .*, got -1"):
        breast_cancer_release(-1)


def test_leak_is_visible_but_not_total_and_comes_from_the_copies() -> None:
    seeds = range(3)
    leaking = [dcr_auc(breast_cancer_release(seed)) for seed in seeds]
    smooth = [dcr_auc(breast_cancer_release(seed, MixtureConfig(copies=0))) for seed in seeds]
    total = dcr_auc(breast_cancer_release(0, MixtureConfig(copies=1, noise=0.01)))
    assert all(0.60 < auc < 0.77 for auc in leaking)  # .71, .73, .65 measured
    assert np.mean(leaking) - np.mean(smooth) > 0.08
    assert total > 0.75
