"""One-run bounds of epsilon; what needs jax-privacy is skipped without it."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy import optimize, stats

from jaxaudit.evaluate import epsilon
from jaxaudit.evaluate.epsilon import one_run_epsilon
from jaxaudit.runtime.checks import InputError

needs_package = pytest.mark.skipif(not epsilon.available(), reason="jax-privacy is not installed")


def randomised_response(rng: np.random.Generator, n: int, true: float) -> tuple[np.ndarray, np.ndarray]:
    """Membership bits of fair coins, released truthfully with probability e^eps / (1 + e^eps)."""
    member = rng.random(n) < 0.5
    told = np.where(rng.random(n) < 1 / (1 + np.exp(-true)), member, ~member)
    return told + 0.5 * rng.random(n), member


def test_without_the_package_there_is_a_sentence_and_no_failure(monkeypatch) -> None:
    monkeypatch.setattr(epsilon, "available", lambda: False)
    assert one_run_epsilon([0.0, 0.0, 1.0, 1.0], [0, 0, 1, 1]) is None
    assert "jaxaudit[epsilon]" in epsilon.MISSING
    assert "fair coin" in epsilon.ASSUMPTION


def test_importing_the_module_does_not_import_the_package() -> None:
    assert epsilon.available() in (True, False)
    if not epsilon.available():
        assert "jax_privacy" not in sys.modules


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delta": 0.0}, "epsilon.delta must be in"),
        ({"delta": 1.0}, "epsilon.delta must be in"),
        ({"level": 1.0}, "epsilon.level must be in"),
        ({"splits": 0}, "epsilon.splits must be"),
    ],
)
def test_bad_arguments(arguments, message: str) -> None:
    with pytest.raises(InputError, match=message):
        one_run_epsilon([0.0, 1.0, 0.0, 1.0], [0, 1, 0, 1], **arguments)
    with pytest.raises(InputError, match="both classes"):
        one_run_epsilon([0.0, 1.0], [1, 1])


@needs_package
def test_perfect_attack_against_the_closed_form() -> None:
    """All n/2 guesses of every half right: q^(n/2) + delta's share = alpha / 2, q = e^eps / (1 + e^eps)."""
    member = np.arange(400) < 200
    found = one_run_epsilon(member + 0.0, member, delta=1e-12)
    exact = optimize.brentq(lambda e: stats.binom.sf(99, 100, 1 / (1 + np.exp(-e))) - 0.025, 0, 20)
    assert found["epsilon"] == pytest.approx(exact, abs=1e-4)
    assert (found["records"], found["left_out"]) == (400, 0)
    assert "epsilon_if_gaussian" not in found
    assert found["package"].startswith("jax-privacy 2.")


@needs_package
def test_unequal_classes_are_no_evidence() -> None:
    """Nine tenths are members and scores are noise: guessing "member" is right in .9 of cases."""
    rng = np.random.default_rng(0)
    member = np.arange(1000) < 900
    found = one_run_epsilon(rng.normal(size=1000), member, splits=3, gaussian=True)
    assert found["epsilon"] == 0.0
    assert found["epsilon_if_gaussian"] == 0.0
    assert (found["records"], found["left_out"]) == (200, 800)


@needs_package
def test_row_order_does_not_matter_and_seed_does() -> None:
    rng = np.random.default_rng(1)
    scores, member = randomised_response(rng, 300, 2.0)
    first = one_run_epsilon(scores, member)
    order = rng.permutation(300)
    assert one_run_epsilon(scores[order], member[order]) == first
    assert len({one_run_epsilon(scores, member, seed=i, splits=1)["epsilon"] for i in range(4)}) > 1
    assert one_run_epsilon(scores, member, level=0.5)["epsilon"] > first["epsilon"]


@needs_package
@pytest.mark.slow
@pytest.mark.parametrize("true", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("n", [200, 800])
def test_bound_is_below_the_true_epsilon_of_randomised_response(true: float, n: int) -> None:
    rng = np.random.default_rng(2)
    bounds = [one_run_epsilon(*randomised_response(rng, n, true), splits=9, seed=i)["epsilon"] for i in range(200)]
    assert np.mean(np.array(bounds) <= true + 1e-9) >= 0.95
    if true == 2.0:
        assert np.mean(bounds) > 0.9  # and not empty


@needs_package
@pytest.mark.slow
def test_the_gaussian_reading_is_no_bound_for_randomised_response() -> None:
    rng = np.random.default_rng(3)
    bounds = [one_run_epsilon(*randomised_response(rng, 1000, 1.0), seed=i, splits=5, gaussian=True) for i in range(16)]
    assert np.mean([b["epsilon_if_gaussian"] > 1.0 for b in bounds]) > 0.2  # .05 would do
