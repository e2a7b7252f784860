"""Power of the AUC test: the exact variance against formulas and simulation, and what can be seen at all."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from jaxaudit.evaluate import auc, auc_variance, detectable_auc
from jaxaudit.runtime.checks import InputError


def simulated(true: float, n1: int, n0: int, repeats: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shift = np.sqrt(2) * stats.norm.ppf(true)
    labels = np.arange(n1 + n0) < n1
    return np.array([auc(rng.normal(shift * labels), labels) for _ in range(repeats)])


def test_variance_is_the_mann_whitney_one_without_signal_and_the_simulated_one_with_it() -> None:
    for n1, n0 in ((1, 1), (7, 30), (200, 100)):
        assert auc_variance(0.5, n1, n0) == pytest.approx((n1 + n0 + 1) / (12 * n1 * n0), rel=1e-8)
    found = simulated(0.75, 30, 80, 4000, 0)
    assert np.var(found) / auc_variance(0.75, 30, 80) == pytest.approx(1, abs=0.08)
    assert auc_variance(0.3, 12, 30) == pytest.approx(auc_variance(0.7, 12, 30), rel=1e-6)


@pytest.mark.parametrize(("n1", "n0", "critical"), [(200, 200, 0.55), (30, 20, 0.66)])
def test_the_detectable_auc_is_detected_as_often_as_said(n1: int, n0: int, critical: float) -> None:
    true = detectable_auc(critical, n1, n0, power=0.9)
    share = np.mean(simulated(true, n1, n0, 2000, 1) >= critical)
    assert 0.88 <= share <= 0.94


@pytest.mark.parametrize(
    ("n1", "n0", "critical"),
    [(5, 5, 0.88), (6, 6, 0.80), (4, 4, 0.9375), (1, 40, 0.975), (40, 1, 0.975), (8, 8, 0.766), (3, 3, 1.0),
     (49, 45, 0.6), (1, 150, 0.96), (5, 120, 0.72), (300, 3, 0.77)],
)  # fmt: skip
def test_few_records_have_a_detectable_auc_of_the_power_promised(n1: int, n0: int, critical: float) -> None:
    true = detectable_auc(critical, n1, n0)
    rng = np.random.default_rng(3)
    members = rng.normal(size=(6000, n1)) + np.sqrt(2) * stats.norm.ppf(true)
    won = [np.searchsorted(np.sort(rng.normal(size=n0)), row).sum() for row in members]
    assert critical < true < 1 or true < critical == 1
    assert np.mean(np.array(won) >= critical * n1 * n0 - 1e-9) == pytest.approx(0.95, abs=0.013)  # 4 sd and ours
    assert detectable_auc(critical, n1, n0) == true == detectable_auc(critical, n0, n1)


def test_simulated_and_normal_detectable_aucs_join() -> None:
    for critical in (0.6, 0.7):
        assert detectable_auc(critical, 49, 49) == pytest.approx(detectable_auc(critical, 50, 50), abs=0.004)
        assert detectable_auc(critical, 49, 100) == pytest.approx(detectable_auc(critical, 49, 101), abs=0.003)


def test_more_records_detect_smaller_aucs_and_what_never_rejects_detects_nothing() -> None:
    few, many = detectable_auc(0.55, 100, 100), detectable_auc(0.55, 1000, 1000)
    assert 0.55 < many < few < 1
    assert detectable_auc(0.55, 100, 100, power=0.5) == pytest.approx(0.55)
    assert np.isnan(detectable_auc(float("nan"), 10, 10))
    with pytest.raises(InputError, match="power must be"):
        detectable_auc(0.6, 10, 10, power=1.0)
