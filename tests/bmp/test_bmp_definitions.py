import numpy as np
import pytest

from jaxaudit.bmp import DEFINITIONS, from_canonical, prior_lower_bound, to_canonical
from jaxaudit.runtime.checks import InputError

L, R = np.meshgrid([0.0, 0.01, 0.7, 3.0, 40.0, 800.0], [0.0, 0.02, 1.1, 5.0, 700.0])


@pytest.mark.parametrize("definition", DEFINITIONS)
@pytest.mark.parametrize("prior", [1e-6, 0.1, 0.5, 0.93])
def test_round_trip(definition, prior):
    eps = from_canonical(L, R, prior, definition)
    assert np.all(np.isfinite(eps))
    back = to_canonical(*eps, prior, definition)
    # membership_privacy saturates like -log g + tiny: compare where the inverse has digits left.
    ok = (L < 30) & (R < 30) if definition == "membership_privacy" else L >= 0
    assert np.allclose(back[0][ok], L[ok], atol=1e-7, rtol=1e-7)
    assert np.allclose(back[1][ok], R[ok], atol=1e-7, rtol=1e-7)


def test_posterior_odds_closed_form_and_negative_epsilon():
    eps_L, eps_R = from_canonical(0.5, 0.3, 0.1)
    assert eps_R == pytest.approx(0.3 + np.log(1 / 9))
    assert eps_R < -1.8
    assert eps_L == pytest.approx(0.5 - np.log(1 / 9))


def test_membership_privacy_by_its_definition():
    """Naive: at the epsilon of (l, r) the four posterior inequalities hold at both extreme ratios, and just hold."""
    for g in (0.1, 0.5, 0.8):
        for l, r in ((0.4, 1.3), (2.0, 0.1), (0.0, 0.0), (1.0, 4.0)):
            eps_L, eps_R = from_canonical(l, r, g, "membership_privacy")

            def least(ratio, g=g):
                """Smallest eps with post(1) <= e^eps g and post(0) >= e^-eps (1-g) at this likelihood ratio."""
                post = g * ratio / (g * ratio + 1 - g)
                return max(np.log(post / g), np.log((1 - g) / (1 - post)))

            assert eps_R == pytest.approx(least(np.exp(r)), abs=1e-12)
            post = g * np.exp(-l) / (g * np.exp(-l) + 1 - g)
            assert eps_L == pytest.approx(max(np.log((1 - post) / (1 - g)), np.log(g / post)), abs=1e-12)


def test_membership_privacy_bound_by_the_formula_of_u():
    for g, eps in ((0.1, 0.5), (0.1, 2.2), (0.7, 0.2), (0.7, 3.0)):
        first = np.exp(eps) * (1 - g) / (1 - g * np.exp(eps)) if g * np.exp(eps) < 1 else np.inf
        expected = np.log(min(first, 1 + (np.exp(eps) - 1) / g))
        assert to_canonical(0.0, eps, g, "membership_privacy")[1] == pytest.approx(expected)
        assert to_canonical(eps, 0.0, 1 - g, "membership_privacy")[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("definition", "at_one", "at_zero"),
    [
        ("posterior_odds", (-np.inf, np.inf), (np.inf, -np.inf)),
        ("bayes_factor", (np.nan, np.nan), (np.nan, np.nan)),
        ("membership_privacy", (0, 0), (0, 0)),
    ],
)
def test_prior_zero_and_one(definition, at_one, at_zero):
    for l, r in ((0.5, 0.7), (0.0, 0.0), (np.inf, np.inf)):
        assert np.array_equal(from_canonical(l, r, 1.0, definition), at_one, equal_nan=True)
        assert np.array_equal(from_canonical(l, r, 0.0, definition), at_zero, equal_nan=True)
    if definition != "posterior_odds":
        assert np.isnan(to_canonical(1.0, 1.0, [0.0, 1.0], definition)).all()


def test_nan_passes_and_infinite_bounds_stay():
    for definition in DEFINITIONS:
        assert np.isnan(from_canonical(np.nan, np.nan, 0.4, definition)).all()
        assert np.isposinf(from_canonical(np.inf, np.inf, 0.4, definition)).all()
        assert np.isposinf(to_canonical(np.inf, np.inf, 0.4, definition)).all()


def test_prior_lower_bound():
    assert np.allclose(prior_lower_bound(0.1), (np.log(9), -np.log(9)))
    assert np.allclose(prior_lower_bound([0.1, 0.9], "bayes_factor"), 0)
    assert np.allclose(prior_lower_bound(0.3, "membership_privacy"), 0)


def test_larger_bounds_mean_larger_epsilons():
    for definition in DEFINITIONS:
        eps = from_canonical(np.linspace(0, 5, 50), np.linspace(0, 5, 50), 0.2, definition)
        assert np.all(np.diff(eps) > 0)


def test_bad_arguments():
    for call in (
        lambda: to_canonical(1, 1, 1.2),
        lambda: from_canonical(1, 1, 0.5, "odds"),
        lambda: from_canonical(-0.1, 1, 0.5),
    ):
        with pytest.raises(InputError):
            call()
