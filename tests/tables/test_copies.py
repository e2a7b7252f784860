"""Copies against naive loops, published intervals and exchangeability."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.copies import copies, difference_interval


@pytest.fixture(scope="module")
def tables() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    members, others, reference = rng.normal(size=(60, 3)), rng.normal(size=(50, 3)), rng.normal(size=(150, 3))
    released = np.concatenate([members[:6], members[6:20] + 1e-3, others[:1], rng.normal(size=(70, 3))])
    return {"targets": np.concatenate([members, others]), "synthetic": released, "reference": reference}


MEMBER = np.arange(110) < 60


def test_against_a_loop(tables: dict) -> None:
    found = copies(**tables, member=MEMBER)

    def nearest(rows):
        return np.array([min(np.sqrt(np.sum((x - s) ** 2)) for s in tables["synthetic"]) for x in rows])

    mine, others = nearest(tables["targets"]), nearest(tables["reference"])
    np.testing.assert_allclose(found.distance, mine, rtol=1e-12)
    np.testing.assert_allclose(found.reference, others, rtol=1e-12)
    yardstick = np.sort(others)[1]  # two of 150 are the first 1 %
    assert found.summary["yardstick"] == pytest.approx(yardstick)
    assert found.summary["expected_share"] == pytest.approx(2 / 151)
    groups = found.summary["groups"]
    for name, values in (("members", mine[:60]), ("non_members", mine[60:]), ("reference", others)):
        assert groups[name]["rows"] == len(values)
        assert groups[name]["exact"] == sum(v == 0 for v in values)
        assert groups[name]["near"] == sum(v < yardstick for v in values)
        for share, at in (("0", 0), ("0.05", int(np.ceil(0.05 * len(values))) - 1), ("0.5", -(-len(values) // 2) - 1)):
            assert groups[name]["quantiles"][share] == pytest.approx(np.sort(values)[at])
    assert (groups["members"]["exact"], groups["non_members"]["exact"], groups["reference"]["near"]) == (6, 1, 1)
    assert groups["members"]["near"] >= 20


def test_shares_and_tests(tables: dict) -> None:
    summary = copies(**tables, member=MEMBER, level=0.9).summary
    row = summary["groups"]["members"]
    expected = stats.binomtest(6, 60).proportion_ci(0.9, method="exact")
    np.testing.assert_allclose(row["exact_share_ci"], [expected.low, expected.high])
    compared = summary["compared"]["exact"]
    assert compared["difference"] == pytest.approx(6 / 60 - 1 / 50)
    assert compared["ci"] == pytest.approx(difference_interval((6, 1), (60, 50), 0.9))
    # members having at least as many of the 7 copies, all ways of handing them out being equally likely
    assert compared["p_value"] == pytest.approx(stats.hypergeom.sf(5, 110, 7, 60))
    assert summary["p_value"] == pytest.approx(2 * min(part["p_value"] for part in summary["compared"].values()))


@pytest.mark.parametrize(
    ("hits", "trials", "expected"),
    [
        ((9, 3), (10, 10), (0.1705, 0.8090)),
        ((5, 0), (56, 29), (-0.0381, 0.1926)),
        ((0, 0), (10, 20), (-0.1611, 0.2775)),
    ],
)
def test_published_intervals(hits, trials, expected) -> None:
    np.testing.assert_allclose(difference_interval(hits, trials), expected, atol=5e-5)
    np.testing.assert_allclose(difference_interval(hits[::-1], trials[::-1]), [-expected[1], -expected[0]], atol=5e-5)


def test_row_order_and_the_records_scored_do_not_matter(tables: dict) -> None:
    whole = copies(**tables, member=MEMBER)
    rng = np.random.default_rng(1)
    mixed = {name: rng.permutation(table) for name, table in tables.items() if name != "targets"}
    part = np.array([2, 70, 30, 100])
    found = copies(tables["targets"][part], MEMBER[part], mixed["synthetic"], mixed["reference"])
    np.testing.assert_array_equal(found.distance, whole.distance[part])
    assert found.summary["yardstick"] == whole.summary["yardstick"]


def test_a_reference_full_of_copies_knows_no_near_ones() -> None:
    levels = np.array([[0.0], [1.0]])
    found = copies([[0.0], [0.5], [1.0]], [1, 1, 0], levels, np.tile(levels, (5, 1))).summary
    assert (found["yardstick"], found["expected_share"]) == (0.0, None)
    assert found["groups"]["members"]["near"] == found["groups"]["members"]["exact"] == 1
    assert found["groups"]["reference"]["near"] == 10


@pytest.mark.slow
def test_near_copies_are_as_rare_as_promised() -> None:
    """Records that the generator never saw: the mean share below the yardstick is k / (r + 1)."""
    rng = np.random.default_rng(2)
    shares = []
    for _ in range(300):
        x, s, r = rng.normal(size=(100, 2)), rng.normal(size=(80, 2)), rng.normal(size=(120, 2))
        found = copies(x, np.arange(100) < 50, s, r).summary
        shares.append(sum(found["groups"][name]["near"] for name in ("members", "non_members")) / 100)
    assert found["expected_share"] == pytest.approx(2 / 121)
    assert abs(np.mean(shares) - 2 / 121) < 4 * np.std(shares) / np.sqrt(300)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"synthetic": np.zeros((3, 2))}, "synthetic must have 3 columns, got 2"),
        ({"reference": np.full((3, 3), np.nan)}, "reference"),
        ({"member": np.ones(110)}, "member must have both classes"),
        ({"member": [1, 0]}, "member must have 110 labels"),
        ({"level": 1.0}, "level"),
        ({"quantile": 0.0}, "quantile"),
    ],
)
def test_bad_arguments(change: dict, message: str, tables: dict) -> None:
    with pytest.raises(InputError, match=message):
        copies(**{**tables, "member": MEMBER, **change})


def test_rows_that_the_release_only_prints_shorter_are_exact_copies() -> None:
    targets, released, reference = [[0.1234], [5.0], [2.0]], [[0.12], [5.1]], [[1.0], [5.11], [9.0]]
    plain = copies(targets, [1, 1, 0], released, reference)
    same = (np.array([True, False, False]), np.array([False, True, False]))
    found = copies(targets, [1, 1, 0], released, reference, repeated=same)
    assert [plain.summary["groups"][name]["exact"] for name in ("members", "reference")] == [0, 0]
    assert [found.summary["groups"][name]["exact"] for name in ("members", "reference")] == [1, 1]
    assert found.distance.tolist() == [0.0, *plain.distance.tolist()[1:]]
    assert found.summary["yardstick"] == 0.0
