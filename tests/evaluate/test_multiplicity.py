from __future__ import annotations

import time
from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from jaxaudit.evaluate import auc, max_permutation
from jaxaudit.evaluate.canonical import canonical_order
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.keys import host_rng


def test_against_naive_loop():
    """The same permutations, one at a time, with scikit-learn's AUC."""
    rng = np.random.default_rng(0)
    member = np.arange(30) < 12
    scores = np.stack([rng.normal(size=30) + 0.6 * member, np.round(rng.normal(size=30)), rng.normal(size=30)])
    permutations = 200
    test = max_permutation(scores, member, permutations, seed=4)

    order = canonical_order(scores, member)
    scores, member = scores[:, order], member[order]
    draws = host_rng(4, "label permutation").permuted(np.tile(member.astype(np.uint8), (permutations, 1)), axis=1)
    areas = np.array([[roc_auc_score(d, s) for s in scores] for d in draws])
    exact_sd = []
    for row in scores:  # the AUC's permutation variance with ties, from the textbook formula
        _, t = np.unique(row, return_counts=True)
        exact_sd.append(np.sqrt((31 - np.sum(t**3 - t) / (30 * 29)) / (12 * 12 * 18)))
    observed = np.array([roc_auc_score(member, s) for s in scores])
    z, z0 = (areas - 0.5) / exact_sd, (observed - 0.5) / exact_sd
    np.testing.assert_allclose(test.auc, observed, atol=1e-12)
    np.testing.assert_allclose(test.statistic, z0, atol=1e-9)
    for j in range(3):
        unadjusted = (1 + sum(zz[j] >= z0[j] - 1e-9 for zz in z)) / (permutations + 1)
        adjusted = (1 + sum(max(zz) >= z0[j] - 1e-9 for zz in z)) / (permutations + 1)
        assert test.unadjusted[j] == pytest.approx(unadjusted)
        assert test.adjusted[j] == pytest.approx(adjusted)
    top = min(t for t in z.max(axis=1) if (1 + sum(z.max(axis=1) >= t)) / (permutations + 1) <= 0.05)
    np.testing.assert_allclose(test.critical_auc, 0.5 + top * np.array(exact_sd), atol=1e-9)


def test_one_attack_agrees_with_mann_whitney():
    rng = np.random.default_rng(1)
    member = np.arange(80) < 30
    scores = rng.normal(size=80) + 0.4 * member
    test = max_permutation(scores[None], member, 20_000)
    exact = stats.mannwhitneyu(scores[member], scores[~member], alternative="greater", method="exact").pvalue
    assert test.adjusted[0] == test.unadjusted[0] == pytest.approx(exact, abs=4 * np.sqrt(exact / 20_000))


def test_properties():
    rng = np.random.default_rng(2)
    member = np.arange(100) < 40
    scores = rng.normal(size=(4, 100)) + member * np.array([[0.0], [0.3], [0.6], [3.0]])
    test = max_permutation(scores, member, 999)
    assert np.all(test.adjusted >= test.unadjusted)
    assert np.all(np.argsort(test.statistic) == np.argsort(-test.adjusted, kind="stable"))
    assert test.adjusted[3] == 1 / 1000
    again = max_permutation(np.exp(scores), member, 999)  # only ranks count
    np.testing.assert_array_equal(test.adjusted, again.adjusted)
    twice = max_permutation(np.concatenate([scores, scores]), member, 999)  # copies of an attack cost nothing
    np.testing.assert_array_equal(twice.adjusted, np.tile(test.adjusted, 2))
    assert not np.array_equal(max_permutation(scores, member, 999, seed=1).adjusted, test.adjusted)


@pytest.mark.parametrize("scores", [np.arange(8.0), [0.0, 0, 0, 0, 1, 1, 1, 1], [0.0, 0, 0, 0, 0, 0, 0, 1]])
def test_an_attack_at_its_critical_auc_is_significant(scores):
    """Few records: the 95 % quantile is an atom. All labellings, each with the critical AUC of the same draws."""
    scores = np.asarray(scores)
    significant = []
    for chosen in combinations(range(8), 4):
        member = np.isin(np.arange(8), chosen)
        test = max_permutation(scores[None], member, 999)
        reached = test.auc[0] >= test.critical_auc[0] - 1e-12  # False where NaN
        assert reached == (test.adjusted[0] <= 0.05)
        significant.append(reached)
    assert sum(significant) == (0 if scores.sum() == 1 else 2 if scores.sum() == 28 else 1)


def test_too_few_records_have_no_critical_auc():
    member = np.arange(6) < 3  # 1 labelling in 20 separates perfectly: p is about .05
    perfect = max_permutation(np.stack([member + 0.0, np.tile([0.0, 1.0], 3)]), member, 9999)
    assert np.isnan(perfect.critical_auc[1]) or perfect.critical_auc[1] == 1
    assert np.isnan(max_permutation(np.arange(4.0)[None], [0, 0, 1, 1], 999).critical_auc[0])
    assert np.isnan(max_permutation(np.arange(40.0)[None], np.arange(40) < 20, 18).critical_auc[0])  # p >= 1/19
    top = max_permutation(np.arange(40.0)[None], np.arange(40) < 20, 19)  # every drawn statistic has p >= 2/20
    assert top.critical_auc[0] == 1  # p = 1/20: an AUC that no permutation drew
    # one member in forty on top is no evidence, whatever the other attack could show
    rng = np.random.default_rng(0)
    member = np.arange(40) < 20
    test = max_permutation(np.stack([rng.normal(size=40), (np.arange(40) == 0) + 0.0]), member, 999)
    assert 0.6 < test.critical_auc[0] < 0.8
    assert np.isnan(test.critical_auc[1])


def test_constant_and_reversed_attacks_are_no_evidence():
    member = np.arange(40) < 20
    rng = np.random.default_rng(3)
    test = max_permutation(np.stack([np.zeros(40), -1.0 * member, rng.normal(size=40)]), member, 499)
    assert test.statistic[0] == 0
    assert np.isnan(test.critical_auc[0])
    assert test.unadjusted[0] == 1.0
    assert test.unadjusted[1] == test.adjusted[1] == 1.0
    assert max_permutation(np.zeros((1, 40)), member, 99).adjusted[0] == 1.0


def test_best_of_twenty_null_attacks_shows_an_auc_by_luck():
    """200 + 200 null records: the best of 20 attacks has mean AUC .554 and 95 % quantile .580."""
    rng = np.random.default_rng(4)
    member = np.arange(400) < 200
    best = [max(auc(row, member) for row in rng.normal(size=(20, 400))) for _ in range(150)]
    assert np.mean(best) == pytest.approx(0.554, abs=0.004)
    critical = max_permutation(rng.normal(size=(20, 400)), member, 4000).critical_auc
    np.testing.assert_allclose(critical, 0.580, atol=0.004)


def null_p_values(replications: int, permutations: int) -> np.ndarray:
    """Smallest adjusted p over five dependent null attacks, one of them coarse, per replication."""
    rng = np.random.default_rng(5)
    member = np.arange(60) < 20
    smallest = []
    for run in range(replications):
        base = rng.normal(size=60)
        scores = rng.normal(size=(5, 60)) + base
        scores[4] = scores[4] > 1
        smallest.append(max_permutation(scores, member, permutations, seed=run).adjusted.min())
    return np.array(smallest)


def test_null_rejection_rate():
    p = null_p_values(400, 199)
    assert 0.02 <= np.mean(p <= 0.05) <= 0.08  # 3 standard errors
    assert 0.42 <= np.mean(p <= 0.5) <= 0.58


@pytest.mark.slow
def test_null_p_values_are_uniform():
    p = null_p_values(12_000, 999)  # ties count against an attack: valid, some .015 below the uniform line
    assert 0.0415 <= np.mean(p <= 0.05) <= 0.0562  # .048 and .05, 3 standard errors of .002
    assert stats.kstest(p, "uniform").statistic < 0.03


def test_speed():
    rng = np.random.default_rng(6)
    member = np.arange(2000) < 1000
    scores = rng.normal(size=(10, 2000))
    took = []
    for _ in range(3):
        start = time.perf_counter()
        max_permutation(scores, member)
        took.append(time.perf_counter() - start)
        if took[-1] < 2:
            break
    assert min(took) < 2


def test_bad_input():
    member = [0, 1, 1]
    for scores, labels, message in (
        (np.zeros((0, 3)), member, "scores must have at least one attack"),
        (np.zeros(3), member, "scores must have 2 axes"),
        (np.full((1, 3), np.nan), member, "scores must have only finite values"),
        (np.zeros((2, 4)), member, "member must have 4 labels"),
        (np.zeros((2, 3)), [1, 1, 1], "member must have both classes"),
    ):
        with pytest.raises(InputError, match=message):
            max_permutation(scores, labels)
    with pytest.raises(InputError, match="permutations must be"):
        max_permutation(np.zeros((1, 3)), member, 0)
