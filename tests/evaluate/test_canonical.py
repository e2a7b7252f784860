"""What must not matter to a judgement: rounding of scores, the order of records, and that of attacks."""

from __future__ import annotations

import numpy as np
import pytest

from jaxaudit.evaluate import auc, auc_bca, auc_interval, compare_aucs, max_permutation, merge_rounding, roc_bands
from jaxaudit.evaluate.canonical import canonical_order, shuffled_order
from jaxaudit.tables.attacks.distance import dcr_diff
from jaxaudit.tables.attacks.weighting import dpi
from jaxaudit.tables.judgement import EvaluationConfig, judge
from jaxaudit.tables.strata import outlier_strata


def naive(row: np.ndarray) -> np.ndarray:
    """One score after the other, from the smallest."""
    found, smallest = np.empty_like(row), -1e300
    for index in np.argsort(row):
        if row[index] > smallest + 1e-12 * max(1.0, abs(smallest)):
            smallest = row[index]
        found[index] = smallest
    return found


@pytest.mark.parametrize("scale", [1e-13, 3e-13, 2e-12, 1e-3, 1.0, 40.0])
def test_merging_is_that_of_a_loop_and_bounded(scale: float) -> None:
    rng = np.random.default_rng(0)
    row = np.r_[scale * rng.integers(0, 50, 300), 1.0, -1.0] + 1e-15 * rng.normal(size=302)
    merged = merge_rounding(row)
    np.testing.assert_array_equal(merged, naive(row))
    assert (merged <= row).all()
    assert (row - merged <= 1e-12 * np.maximum(1.0, abs(merged)) + 1e-15).all()  # chains do not grow
    order = np.argsort(row, kind="stable")
    assert (np.diff(merged[order]) >= 0).all()
    np.testing.assert_array_equal(merge_rounding(merged), merged)
    shuffled = rng.permutation(302)
    np.testing.assert_array_equal(merge_rounding(row[shuffled]), merged[shuffled])


def test_what_is_kept() -> None:
    real = np.array([0.0, 1.1e-12, 2.2e-12, 1.0])
    np.testing.assert_array_equal(merge_rounding(real), real)
    wide = np.array([-1000.0, 5e-10 - 1000, 2e-9 - 1000, 0.0, 5e-10, 1000.0, 1000 + 5e-10])  # relative to the score
    assert merge_rounding(wide).tolist() == [-1000.0, -1000.0, 2e-9 - 1000, 0.0, 5e-10, 1000.0, 1000.0]
    tiny = np.array([1e-20, 2e-20, 2e-20 * (1 + 1e-13)])  # relative to the largest
    assert merge_rounding(tiny).tolist() == [1e-20, 2e-20, 2e-20]
    broken = np.array([[0.0, 1e-16, np.nan], [0.0, 1e-16, 1.0]])
    np.testing.assert_array_equal(merge_rounding(broken), [[0.0, 1e-16, np.nan], [0.0, 0.0, 1.0]])
    assert merge_rounding(np.zeros((2, 0))).shape == (2, 0)


@pytest.fixture(scope="module")
def levels() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Tables of 9 columns of 3 levels with a few spreads, so that distances tie and are no binary fractions."""
    rng = np.random.default_rng(1)
    tables = {name: rng.integers(0, 3, (n, 9)) - 1.0 for name, n in {"s": 120, "r": 120, "t": 160}.items()}
    return {name: rows * np.repeat([1.2247, 1.3, 0.9], 3) for name, rows in tables.items()}, np.arange(160) < 80


def judged(scores: dict[str, np.ndarray], member: np.ndarray, mask: np.ndarray, distance: np.ndarray) -> dict:
    strata = outlier_strata(distance[:, None], np.zeros((1, 1)))
    return judge(scores, member, {"any": mask}, strata, EvaluationConfig(permutations=199), seed=0)["attacks"]


def test_the_order_of_columns_does_not_move_the_aucs(levels) -> None:
    tables, member = levels
    raw, found = [], []
    for seed in range(3):
        columns = np.random.default_rng(seed).permutation(9)
        t, s, r = (tables[name][:, columns] for name in ("t", "s", "r"))
        scores = {"dcr_diff": dcr_diff(t, s, r), "dpi": dpi(t, s, r)}
        raw.append([auc(row, member) for row in scores.values()])
        rows = judged(scores, member, np.arange(160) < 9, np.arange(160.0))
        found.append([(row["auc"], row["auc_ci"], row["auc_bca"], row["p_value"]) for row in rows.values()])
        bands = roc_bands(np.stack(list(scores.values())), member)
        found[-1].append(bands.tpr.tolist())
    assert len({row[0] for row in raw}) > 1  # there is something to mend
    assert found[0] == found[1] == found[2]
    exact = [auc(row.round(9), member) for row in scores.values()]
    assert [row[0] for row in found[0][:2]] == exact


@pytest.fixture(scope="module")
def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    member = np.arange(70) < 30
    scores = rng.normal(size=(3, 70)) + 0.4 * member
    scores[1] = np.round(scores[1])
    return scores, member


def test_no_number_depends_on_the_order_of_records(records) -> None:
    scores, member = records
    names, rng = ("a", "b", "c"), np.random.default_rng(3)
    mask, distance = rng.random(70) < 0.1, rng.exponential(size=70)
    there = judged(dict(zip(names, scores, strict=True)), member, mask, distance)
    for order in (rng.permutation(70), np.r_[30:70, 0:30], np.r_[rng.permutation(30), 30 + rng.permutation(40)]):
        again = dict(zip(names, scores[:, order], strict=True))
        assert judged(again, member[order], mask[order], distance[order]) == there
        assert auc(scores[0, order], member[order]) == auc(scores[0], member)
        assert auc_interval(scores[0, order], member[order]) == auc_interval(scores[0], member)


def test_the_order_of_attacks_moves_neither_p_nor_differences(records) -> None:
    scores, member = records
    p, back = max_permutation(scores, member, 199), max_permutation(scores[::-1], member, 199)
    np.testing.assert_array_equal(p.adjusted, back.adjusted[::-1])
    np.testing.assert_array_equal(compare_aucs(scores, member).low, compare_aucs(scores[::-1], member).low[::-1, ::-1])


def test_canonical_order_separates_classes_and_sorts_by_the_best_attack(records) -> None:
    scores, member = records
    order = canonical_order(scores, member)
    best = scores[np.argmax([auc(row, member) for row in scores])]
    assert (np.diff(member[order].astype(int)) >= 0).all()
    assert (np.diff(best[order][:40]) >= 0).all()
    assert (np.diff(best[order][40:]) >= 0).all()


def test_shuffled_order_depends_on_seed_and_ranks_only(records) -> None:
    scores, member = records
    order = shuffled_order(scores, member, 5)
    assert sorted(order) == list(range(70))
    np.testing.assert_array_equal(shuffled_order(np.arctan(scores), member, 5), order)
    np.testing.assert_array_equal(shuffled_order(scores[::-1], member, 5), order)
    shuffled = np.random.default_rng(4).permutation(70)
    np.testing.assert_array_equal(shuffled[shuffled_order(scores[:, shuffled], member[shuffled], 5)], order)
    assert (shuffled_order(scores, member, 6) != order).any()
    places = []  # among the sorted records: others for other scores
    for rows in (scores, scores[:, ::-1]):
        rank = np.argsort(canonical_order(rows, member))
        places.append(rank[shuffled_order(rows, member, 5)].tolist())
    assert places[0] != places[1]


def test_attacks_judged_together_see_no_rounding(records) -> None:
    scores, member = records
    scores = np.round(scores)
    noisy = scores + np.random.default_rng(5).uniform(0, 1e-14, scores.shape)
    for judged_by in (
        lambda rows: max_permutation(rows, member, 99).unadjusted,
        lambda rows: compare_aucs(rows, member).auc,
        lambda rows: auc_bca(rows, member, resamples=100),
        lambda rows: roc_bands(rows, member).tpr,
    ):
        np.testing.assert_array_equal(judged_by(noisy), judged_by(scores))
