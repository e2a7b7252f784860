"""Operating points: the split, thresholds against loops, and how often limits miss the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import hypergeom, norm

from jaxaudit.bmp import functional_limits, region
from jaxaudit.evaluate.canonical import shuffled_order
from jaxaudit.evaluate.operating import calibration_half, choose_threshold, error_counts, operating_point
from jaxaudit.runtime.checks import InputError

RNG = np.random.default_rng(0)
MEMBER = RNG.permutation(np.repeat([True, False], [41, 64]))
SCORES = np.round(RNG.normal(size=105) + MEMBER, 1)


def test_split_is_stratified_seeded_and_shared() -> None:
    half = calibration_half(MEMBER, 3)
    assert (half & MEMBER).sum() == 20
    assert (half & ~MEMBER).sum() == 32
    np.testing.assert_array_equal(half, calibration_half(MEMBER.astype(int), 3))
    assert (half != calibration_half(MEMBER, 4)).any()
    often = np.mean([calibration_half(MEMBER, seed) for seed in range(400)], axis=0)
    assert np.all(np.abs(often - 0.5) < 0.12)  # every record is equally often in either half: 4.8 sd
    # members and non-members are drawn apart: more non-members leave the members' draw as it is
    np.testing.assert_array_equal(
        calibration_half([1, 1, 1, 1, 0, 0])[:4], calibration_half([1, 1, 1, 1, 0, 0, 0, 0])[:4]
    )


@pytest.mark.parametrize("at", [0, 0.1, 0.25, 1, "youden"])
def test_threshold_against_a_loop(at: float | str) -> None:
    found = choose_threshold(SCORES, MEMBER, at)
    best = (np.inf, 0.0)
    for threshold in sorted(set(SCORES), reverse=True):
        fpr = np.mean(SCORES[~MEMBER] >= threshold)
        gain = round(np.mean(SCORES[MEMBER] >= threshold) - fpr, 12)
        if (at == "youden" and gain > best[1]) or (at != "youden" and fpr <= at):
            best = (threshold, gain)
    assert found == best[0]


def test_counts_against_a_loop_and_whole_point() -> None:
    counts = error_counts(SCORES, MEMBER, 0.5)
    assert counts.fp == sum(s >= 0.5 and not m for s, m in zip(SCORES, MEMBER, strict=True))
    assert counts.fn == sum(s < 0.5 and m for s, m in zip(SCORES, MEMBER, strict=True))
    point = operating_point(SCORES, MEMBER, 0.2, level=0.9, seed=1)
    order = shuffled_order(SCORES[None], MEMBER, 1)
    scores, member = SCORES[order], MEMBER[order]
    half = calibration_half(member, 1)
    threshold = choose_threshold(scores[half], member[half], 0.2)
    counts = error_counts(scores[~half], member[~half], threshold)
    limits = functional_limits(*counts, level=0.9)
    assert {name: point[name] for name in counts._asdict()} == counts._asdict()
    assert (counts.n_in, counts.n_out) == (21, 32)
    assert (point["calibration_members"], point["calibration_non_members"]) == (20, 32)
    assert (point["at"], point["level"], point["threshold"]) == (0.2, 0.9, threshold)
    assert (point["fpr"], point["fnr"]) == (counts.fp / 32, counts.fn / 21)
    for name in ("r_lower", "r_median", "r_upper", "l_lower", "l_median", "l_upper"):
        assert point[name] == float(getattr(limits, name)[0])
    hits = 21 - counts.fn
    assert point["p_value"] == pytest.approx(hypergeom.sf(hits - 1, 53, hits + counts.fp, 21))


def test_edges() -> None:
    nobody = operating_point([*[9.0] * 20, *range(8)], np.repeat([0, 1], [20, 8]), at=0)
    assert nobody is not None
    assert (nobody["threshold"], nobody["fp"], nobody["fn"], nobody["p_value"]) == (np.inf, 0, 4, 1.0)
    assert operating_point([1, 2, 3], [0, 1, 1]) is None
    split = operating_point(np.arange(400), np.repeat([0, 1], 200), at=0)
    assert split is not None
    assert split["r_lower"] > 3 > 1e-9 > split["p_value"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at": "best"}, r"operating\.at must be a false-positive rate or youden, got best"),
        ({"at": 1.5}, r"operating\.at must be in \[0, 1\]"),
        ({"level": 0.4}, r"operating\.level must be in \[0\.5, 0\.999\]"),
        ({"member": MEMBER[1:]}, r"member must have 105 labels"),
    ],
)
def test_refusals(arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        operating_point(**{"scores": SCORES, "member": MEMBER} | arguments)


def misses(shift: float, n: int, at: float | str, repeats: int) -> tuple[float, float]:
    """Shares of repetitions in which the lower limits of r and l lie above the truth at the chosen threshold."""
    rng = np.random.default_rng(7)
    member = np.repeat([True, False], n)
    counts, thresholds = [], []
    for repeat in range(repeats):
        scores = rng.normal(size=2 * n) + shift * member
        half = calibration_half(member, repeat)
        thresholds.append(choose_threshold(scores[half], member[half], at))
        counts.append(error_counts(scores[~half], member[~half], thresholds[-1]))
    l, r = region.tightest(norm.sf(thresholds), norm.cdf(np.array(thresholds) - shift))
    limits = functional_limits(*np.transpose(counts))
    return float(np.mean(limits.r_lower > r)), float(np.mean(limits.l_lower > l))


def test_lower_limits_overshoot_rarely() -> None:
    """5 % of 600 repetitions, with 3 sd of a binomial: 7.7 %."""
    assert max(misses(1.0, 100, 0.1, 600)) < 0.077
    assert max(misses(0.5, 100, "youden", 600)) < 0.077


@pytest.mark.slow
@pytest.mark.parametrize("at", [0.1, "youden"])
@pytest.mark.parametrize(("shift", "n"), [(0.5, 100), (0.5, 400), (1.0, 100), (1.0, 400), (2.0, 400)])
def test_lower_limits_overshoot_rarely_long(shift: float, n: int, at: float | str) -> None:
    """4,000 repetitions: 6 % and no more than 3 sd (1 %) above."""
    assert max(misses(shift, n, at, 4000)) < 0.07


def test_chance_is_for_the_p_value() -> None:
    """Without leakage limits are positive all the same, and small p-values as rare as they say."""
    rng = np.random.default_rng(3)
    member = np.repeat([True, False], 60)
    points = [operating_point(rng.normal(size=120), member, seed=seed) for seed in range(100)]
    assert all(point["r_lower"] > 0 for point in points)
    assert np.mean([point["p_value"] <= 0.05 for point in points]) <= 0.115  # 3 sd


def test_the_split_moves_with_the_scores_and_not_with_the_order_of_records() -> None:
    shuffled = np.random.default_rng(1).permutation(105)
    assert operating_point(SCORES[shuffled], MEMBER[shuffled]) == operating_point(SCORES, MEMBER)
    rng = np.random.default_rng(2)  # one seed: were the ranks that are judged always the same, so would the count be
    member = np.arange(80) < 40
    assert len({operating_point(rng.normal(size=80), member)["fp"] for _ in range(20)}) > 3
