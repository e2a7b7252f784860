import numpy as np
import pytest
from channel_oracle import channels, joints, posteriors

from jaxaudit.bmp import DEFINITIONS, from_canonical, prior_lower_bound, region, to_canonical
from jaxaudit.bmp import joint as jt
from jaxaudit.bmp.channel import bounds, epsilons
from jaxaudit.bmp.definitions import bmp_l, bmp_r, compare_readings
from jaxaudit.bmp.given_others import STRUCTURES, bmdp
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


def test_one_sided_definitions_bound_one_posterior():
    """By enumeration: BMP-R is the largest posterior odds of membership, BMP-L of non-membership."""
    many = channels(20)
    l, r = bounds(many)
    one, zero = posteriors(many)
    assert np.allclose(bmp_r(r, many.prior), np.log(one / zero).max(1), atol=1e-9)
    assert np.allclose(bmp_l(l, many.prior), np.log(zero / one).max(1), atol=1e-9)
    for definition in DEFINITIONS:
        assert np.array_equal(
            (bmp_l(l, 0.2, definition), bmp_r(r, 0.2, definition)), from_canonical(l, r, 0.2, definition)
        )


def test_one_sided_regions_are_wider():
    """A test may break the other side's bound: alpha = 0 with power shows r = inf, and l only as far as beta."""
    assert not region.contains(0.0, 0.5, 1.0, 1.0, "R")
    assert region.contains(0.0, 0.5, 1.0, 1.0, "L")
    assert region.contains(0.5, 0.0, 1.0, 1.0, "R")
    assert not region.contains(0.5, 0.0, 1.0, 1.0, "L")


def test_readings_side_by_side():
    prior = np.array([0.1, 0.5, 1.0])
    table = compare_readings(0.5, [1.0, 0.2, 0.2], prior)
    assert {column.shape for column in table.values()} == {(3,)}
    for definition in DEFINITIONS:
        pair = table[f"{definition}_eps_L"], table[f"{definition}_eps_R"]
        assert np.array_equal(pair, from_canonical(0.5, [1.0, 0.2, 0.2], prior, definition), equal_nan=True)
    assert table["symmetric"].tolist() == [1.0, 0.5, 0.5]
    assert np.allclose(table["posterior_odds_eps_R"][:2], table["r"][:2] + table["log_odds"][:2])
    assert table["log_odds"][2] == np.inf
    assert compare_readings(0.5, 1.0, 0.3)["prior"].tolist() == [0.3]


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_bmdp_of_fixed_sizes_is_what_enumeration_gives(definition):
    joint = joints(21, jt.uniform_sampler(4, 2), count=3)
    nodes, exact = jt.node_channels(joint), jt.conditional(joint, definition)
    for sampler in ("uniform", "degree", "snowball", "random_walk"):
        found = bmdp(sampler, *bounds(nodes), nodes.prior, definition)
        assert np.array_equal(found.eps_L, exact.eps_L, equal_nan=True)
        assert np.array_equal(found.eps_R, exact.eps_R, equal_nan=True)
        assert found.structure == "fixed_size"
        assert not found.lower_bound
        words = {"posterior_odds": "infinite", "bayes_factor": "undefined", "membership_privacy": "it is 0"}
        assert words[definition] in found.meaning
        assert sampler in found.meaning


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_bmdp_of_independent_memberships_is_bounded_from_below(definition):
    joint = joints(22, jt.independent_sampler([0.3, 0.5, 0.8]))
    nodes, exact = jt.node_channels(joint), jt.conditional(joint, definition)
    found = bmdp("bernoulli", *bounds(nodes), nodes.prior, definition)
    assert found.lower_bound
    assert np.array_equal((found.eps_L, found.eps_R), epsilons(nodes, definition))
    assert np.all(found.eps_L <= exact.eps_L + 1e-12)
    assert np.all(found.eps_R <= exact.eps_R + 1e-12)
    assert "meaningful" in found.meaning


def test_bmdp_at_certain_priors_and_of_samples_that_stop_early():
    found = bmdp("uniform", 0.5, 0.5, [0.0, 0.5, 1.0])
    assert found.eps_L.tolist() == [np.inf, np.inf, -np.inf]
    assert found.eps_R.tolist() == [-np.inf, np.inf, np.inf]
    for definition in DEFINITIONS:
        dry = bmdp("snowball", 0.5, 0.5, 0.3, definition, ran_dry=0.1)
        assert np.isnan((dry.eps_L, dry.eps_R)).all()
        assert dry.structure == "unknown"
        assert "a share of 0.1 stopped before their quota" in dry.meaning
    assert "quota" not in bmdp("snowball", 0.5, 0.5, 0.3).meaning


def test_bmdp_of_a_users_sampler_is_not_guessed():
    found = bmdp("mine", 0.5, 0.5, [0.3, 0.4])
    assert found.structure == "unknown"
    assert np.isnan(found.eps_R).all()
    assert found.eps_R.shape == (2,)
    assert "mine" in found.meaning
    assert bmdp("mine", 0.5, 0.5, 0.3, structure="fixed_size").eps_R == np.inf
    assert bmdp("mine", 0.5, 0.5, 0.5, structure="independent").eps_R == 0.5
    for call in (
        lambda: bmdp("uniform", 0.5, 0.5, 0.3, structure="independent"),
        lambda: bmdp("mine", 0.5, 0.5, 0.3, structure="unknown"),
        lambda: bmdp("mine", 0.5, 0.5, 0.3, "odds"),
        lambda: bmdp("uniform", -0.5, 0.5, 0.3),
        lambda: bmdp("uniform", 0.5, 0.5, 0.3, ran_dry=2),
        lambda: bmp_r(-1.0, 0.5),
        lambda: compare_readings(0.1, 0.1, 1.5),
    ):
        with pytest.raises(InputError):
            call()


def test_every_sampler_of_the_graph_audit_has_a_structure():
    from jaxaudit.graph.samplers import KERNELS

    assert set(STRUCTURES) == set(KERNELS)
