"""Outlier strata: distances, cuts and rates against loops; no influence of the order of records or rows."""

from __future__ import annotations

import numpy as np
import pytest

from jaxaudit.evaluate.roc import auc, auc_interval, clopper_pearson, tpr_at_fpr
from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.strata import outlier_strata, reference_distance, strata_summary

RNG = np.random.default_rng(0)
REFERENCE = np.round(RNG.normal(size=(60, 3)), 1)
TARGETS = np.round(RNG.normal(size=(90, 3)) * RNG.choice([1, 3], (90, 1)), 1)
MEMBER = RNG.random(90) < 0.5
SCORES = np.round(RNG.normal(size=90) + MEMBER * np.linalg.norm(TARGETS, axis=1), 1)


def test_distance_against_a_full_sort() -> None:
    every = np.sort(np.linalg.norm(TARGETS[:, None] - REFERENCE[None], axis=2), axis=1)
    for k in (1, 5, 60):
        np.testing.assert_allclose(reference_distance(TARGETS, REFERENCE, k), every[:, k - 1], rtol=1e-9, atol=1e-12)


def test_quartiles_and_rates_against_a_loop() -> None:
    strata = outlier_strata(TARGETS, REFERENCE)
    n = len(TARGETS)
    threshold = tpr_at_fpr(SCORES, MEMBER, levels=(0.1,))["0.1"]["threshold"]
    for i in range(n):
        below = sum(d < strata.distance[i] for d in strata.distance)
        tied = sum(d == strata.distance[i] for d in strata.distance)
        assert strata.stratum[i] == int(4 * (below + tied / 2) / n)
    rows = strata_summary(SCORES, MEMBER, strata, level=0.9)
    assert sum(row["members"] + row["non_members"] for row in rows) == n
    for index, row in enumerate(rows):
        inside = [i for i in range(n) if strata.stratum[i] == index]
        said = [i for i in inside if SCORES[i] >= threshold]
        hits, members = sum(MEMBER[said]), sum(MEMBER[inside])
        false, others = len(said) - hits, len(inside) - members
        assert (row["stratum"], row["members"], row["non_members"], row["threshold"]) == (
            index,
            members,
            others,
            threshold,
        )
        assert (row["true_positives"], row["false_positives"]) == (hits, false)
        assert (row["tpr"], row["fpr"]) == (hits / members, false / others)
        assert row["tpr_ci"] == [float(x) for x in clopper_pearson(hits, members, 0.9)]
        assert row["fpr_ci"] == [float(x) for x in clopper_pearson(false, others, 0.9)]
        assert row["auc"] == auc(SCORES[inside], MEMBER[inside])
        assert row["auc_ci"] == list(auc_interval(SCORES[inside], MEMBER[inside], 0.9))
        assert row["distance"] == [min(strata.distance[inside]), max(strata.distance[inside])]
    whole = tpr_at_fpr(SCORES, MEMBER, levels=(0.1,))["0.1"]
    assert sum(row["true_positives"] for row in rows) == whole["true_positives"]
    assert sum(row["false_positives"] for row in rows) == whole["false_positives"]
    assert rows[3]["auc"] > rows[0]["auc"]  # the score was made to betray unusual members


def test_order_has_no_influence() -> None:
    order, rows = RNG.permutation(90), RNG.permutation(60)
    first, again = outlier_strata(TARGETS, REFERENCE), outlier_strata(TARGETS[order], REFERENCE[rows])
    np.testing.assert_array_equal(first.distance[order], again.distance)
    np.testing.assert_array_equal(first.stratum[order], again.stratum)
    assert strata_summary(SCORES, MEMBER, first) == strata_summary(SCORES[order], MEMBER[order], again)
    alone = reference_distance(TARGETS[:1], REFERENCE)
    np.testing.assert_array_equal(alone, first.distance[:1])  # whatever else is scored


def test_ties_stay_together() -> None:
    same = outlier_strata(np.zeros((10, 1)), [[1.0]])
    assert (np.unique(same.stratum).tolist(), same.k) == ([2], 1)
    rows = strata_summary(np.arange(10), np.arange(10) > 4, same)
    assert [row["members"] for row in rows] == [0, 0, 5, 0]
    assert (rows[0]["auc"], rows[0]["tpr"], rows[0]["tpr_ci"], rows[0]["distance"]) == (None, None, None, None)
    # the same distance up to rounding: three levels of one category, coded in another order
    nearly = outlier_strata([[1.0], [1.0 + 1e-13], [1.0 - 1e-13], [5.0]], [[0.0]])
    assert nearly.stratum.tolist() == [1, 1, 1, 3]
    assert outlier_strata(TARGETS, REFERENCE, count=1).stratum.max() == 0


def test_refusals() -> None:
    strata = outlier_strata(TARGETS, REFERENCE)
    for bad, message in (
        ({"k": 0}, r"strata\.k must be 1 or more"),
        ({"count": 0}, r"strata\.count must be in \[1, 100\]"),
    ):
        with pytest.raises(InputError, match=message):
            outlier_strata(TARGETS, REFERENCE, **bad)
    with pytest.raises(InputError, match="strata must be of 89 records, got 90"):
        strata_summary(SCORES[1:], MEMBER[1:], strata)
    with pytest.raises(InputError, match=r"strata\.fpr must be in \[0, 1\]"):
        strata_summary(SCORES, MEMBER, strata, fpr=2)
    with pytest.raises(InputError, match="reference must have 3 columns"):
        reference_distance(TARGETS, REFERENCE[:, :2])
