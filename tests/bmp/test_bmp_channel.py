import itertools

import numpy as np
import pytest
from channel_oracle import channels, epsilons_by_definition, joints, rows

from jaxaudit.bmp import DEFINITIONS, from_canonical, region
from jaxaudit.bmp import channel as ch
from jaxaudit.bmp import joint as jt
from jaxaudit.runtime.checks import InputError

MANY = channels(0)


def test_bounds_of_the_binary_channel():
    """Closed form of the positive control."""
    p0, p1 = 0.2, 0.6
    l, r = ch.bounds(ch.make_channel(0.3, [p1, 1 - p1], [p0, 1 - p0]))
    assert r == pytest.approx(np.log(max(p1 / p0, (1 - p1) / (1 - p0))))
    assert l == pytest.approx(np.log(max(p0 / p1, (1 - p0) / (1 - p1))))


def test_bounds_with_impossible_outputs():
    l, r = ch.bounds(ch.make_channel(0.5, [[0.5, 0.5, 0], [0, 1, 0], [0.3, 0.7, 0]], [0.25, 0.75, 0]))
    assert l == pytest.approx([np.log(1.5), np.inf, np.log(0.75 / 0.7)])
    assert r == pytest.approx([np.log(2), np.log(4 / 3), np.log(1.2)])
    assert ch.bounds(ch.make_channel(0.5, [0, 1], [1, 0])) == (np.inf, np.inf)
    assert ch.bounds(ch.make_channel(0.5, [0.1, 0.9], [0.1, 0.9])) == (0, 0)


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_epsilons_are_the_definition(definition):
    found = ch.epsilons(MANY, definition)
    assert np.allclose(found, epsilons_by_definition(MANY, definition), atol=1e-9, rtol=1e-9)


def test_swapping_members_and_non_members_swaps_the_sides():
    for definition in DEFINITIONS:
        left, right = ch.epsilons(MANY, definition)
        other = ch.epsilons(ch.swap(MANY), definition)
        assert np.allclose(other, (right, left), atol=1e-9)


def test_errors_are_the_best_and_fill_the_region():
    """All 2^W deterministic tests lie in the region, none beats a threshold, and the thresholds alone reach (l, r)."""
    some = channels(1, count=200)
    l, r = ch.bounds(some)
    ratio = ch.log_ratio(some)
    thresholds = np.concatenate([ratio - 1e-9, ratio + 1e-9], axis=1)
    pairs = np.array([ch.errors(some, thresholds[:, j]) for j in range(thresholds.shape[1])])
    for says in itertools.product([False, True], repeat=4):
        alpha, beta = some.p_out @ np.array(says), some.p_in @ ~np.array(says)
        assert np.all(region.contains(np.clip(alpha, 0, 1), np.clip(beta, 0, 1), l, r))
        better_alpha, better_beta = alpha < pairs[:, 0] - 1e-12, beta < pairs[:, 1] - 1e-12
        assert not np.any((better_alpha & (beta <= pairs[:, 1])) | (better_beta & (alpha <= pairs[:, 0])))
    reached = np.array([region.tightest(*pair) for pair in pairs]).max(0)
    assert np.allclose(reached, (l, r), rtol=1e-7, atol=1e-9)


def test_bayes_rule_has_the_least_total_error():
    odds = np.log(MANY.prior / (1 - MANY.prior))
    alpha, beta = ch.errors(MANY, -odds)
    total = (1 - MANY.prior) * alpha + MANY.prior * beta
    least = np.minimum((1 - MANY.prior[:, None]) * MANY.p_out, MANY.prior[:, None] * MANY.p_in).sum(1)
    assert np.allclose(total, least, atol=1e-12)


def test_predictive_values_stay_below_their_bounds_and_reach_them():
    ppv_most, npv_most = ch.predictive_bounds(*ch.epsilons(MANY))
    ratio = ch.log_ratio(MANY)
    for threshold in (0.0, 0.5, -1.0):
        ppv, npv = ch.predictive_values(MANY, threshold)
        assert not np.any(ppv > ppv_most + 1e-9)
        assert not np.any(npv > npv_most + 1e-9)
    top, bottom = np.sort(ratio, 1)[:, -2], ratio.min(1)
    assert np.allclose(ch.predictive_values(MANY, top)[0], ppv_most, atol=1e-9)
    assert np.allclose(ch.predictive_values(MANY, bottom)[1], npv_most, atol=1e-9)
    assert np.isnan(ch.predictive_values(MANY, np.inf)[0]).all()


def test_operations_against_loops():
    one, two = channels(2, 5, 2), channels(3, 5, 3)
    kernel = rows(np.random.default_rng(4), 5, 2, 3)
    after, either = ch.post_process(one, kernel), ch.rounds(one, two)
    both = ch.compose(one, ch.Channel(one.prior, two.p_in, two.p_out))
    for i in range(5):
        a, b = one.prior[i], two.prior[i]
        for v in range(3):
            assert after.p_in[i, v] == pytest.approx(sum(one.p_in[i, w] * kernel[i, w, v] for w in range(2)))
        assert either.prior[i] == pytest.approx(1 - (1 - a) * (1 - b))
        for w, v in itertools.product(range(2), range(3)):
            at = 3 * w + v
            assert both.p_in[i, at] == pytest.approx(one.p_in[i, w] * two.p_in[i, v])
            joint_in = 0.0
            for m, k in ((1, 0), (0, 1), (1, 1)):
                first = a * one.p_in[i, w] if m else (1 - a) * one.p_out[i, w]
                second = b * two.p_in[i, v] if k else (1 - b) * two.p_out[i, v]
                joint_in += first * second
            assert either.p_in[i, at] * either.prior[i] == pytest.approx(joint_in)
            assert either.p_out[i, at] == pytest.approx(one.p_out[i, w] * two.p_out[i, v])


def naive_node(joint, node):
    prior, p_in, p_out = 0.0, 0.0, 0.0
    for s, probability in enumerate(joint.sampler):
        if s >> node & 1:
            prior, p_in = prior + probability, p_in + probability * joint.rows[s]
        else:
            p_out = p_out + probability * joint.rows[s]
    return prior, p_in / prior, p_out / (1 - prior)


def test_node_channels_against_loops():
    rng = np.random.default_rng(5)
    joint = jt.make_joint(rows(rng, 8), rows(rng, 8, 3))
    found = jt.node_channels(joint)
    for node in range(3):
        prior, p_in, p_out = naive_node(joint, node)
        assert found.prior[node] == pytest.approx(prior)
        assert np.allclose(found.p_in[node], p_in)
        assert np.allclose(found.p_out[node], p_out)


def test_samplers_by_their_meaning():
    assert jt.memberships(3)[6].tolist() == [False, True, True]
    p = np.array([0.2, 0.7, 0.4])
    law = jt.independent_sampler(p)
    assert law.sum() == pytest.approx(1)
    assert np.allclose(law @ jt.memberships(3), p)
    assert law[5] == pytest.approx(0.2 * 0.3 * 0.4)
    assert np.allclose(jt.uniform_sampler(4, 1) @ jt.memberships(4), 0.25)
    assert np.count_nonzero(jt.uniform_sampler(5, 2)) == 10


def test_certain_memberships_give_the_readings_infinities():
    joint = joints(6, jt.independent_sampler([0.0, 1.0, 0.5]), count=1)
    node = jt.node_channels(joint)
    assert node.prior[0].tolist()[:2] == [0.0, 1.0]
    assert np.isnan(ch.bounds(node)[0][0, :2]).all()
    left, right = ch.epsilons(node)
    assert left[0, :2].tolist() == [np.inf, -np.inf]
    assert right[0, :2].tolist() == [-np.inf, np.inf]
    assert np.isnan(ch.epsilons(node, "bayes_factor")[0][0, :2]).all()
    assert ch.epsilons(node, "membership_privacy")[0][0, :2].tolist() == [0, 0]


def test_certain_memberships_are_certain_in_spite_of_rounding():
    mass = np.where(jt.memberships(4)[:, 0], rows(np.random.default_rng(9), 100, 16), 0)
    mass /= mass.sum(1, keepdims=True)
    always = jt.node_channels(jt.make_joint(mass, np.full((16, 2), 0.5))).prior[:, 0]
    assert np.any(mass.sum(1) != 1)
    assert np.array_equal(always, np.ones(100))


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_conditional_under_independent_memberships(definition):
    """The largest epsilon over the others' memberships, node by node; never below the single membership's."""
    p = np.array([0.3, 0.5, 0.8])
    joint = joints(7, jt.independent_sampler(p), count=300)
    found = jt.conditional(joint, definition)
    assert np.array_equal(found.determined, np.zeros((300, 3)))
    for node in range(3):
        l, r = np.full(300, -np.inf), np.full(300, -np.inf)
        for s in range(8):
            if s >> node & 1:
                ratio = np.log(joint.rows[:, s] / joint.rows[:, s ^ (1 << node)])
                l, r = np.maximum(l, (-ratio).max(1)), np.maximum(r, ratio.max(1))
        expected = from_canonical(l, r, p[node], definition)
        assert np.allclose((found.eps_L[:, node], found.eps_R[:, node]), expected)
    left, right = ch.epsilons(jt.node_channels(joint), definition)
    assert np.all(left <= found.eps_L + 1e-12)
    assert np.all(right <= found.eps_R + 1e-12)
    assert np.any(right < found.eps_R - 0.05)


def test_conditional_under_a_fixed_size_says_nothing_about_the_model():
    for size in (1, 2, 3):
        joint = joints(8, jt.uniform_sampler(4, size), count=20)
        values = {"posterior_odds": np.inf, "bayes_factor": np.nan, "membership_privacy": 0.0}
        for definition, value in values.items():
            found = jt.conditional(joint, definition)
            assert np.array_equal(found.eps_L, np.full((20, 4), value), equal_nan=True)
            assert np.array_equal(found.eps_R, np.full((20, 4), value), equal_nan=True)
            assert np.allclose(found.determined, 1)


def test_conditional_where_only_some_cases_are_open():
    """Both nodes, node 0 alone, or none: node 1 is open only where node 0 is in."""
    joint = jt.make_joint([0.5, 0.25, 0, 0.25], [[0.5, 0.5], [0.8, 0.2], [0.9, 0.1], [0.3, 0.7]])
    found = jt.conditional(joint, "bayes_factor")
    assert found.eps_R[1] == pytest.approx(np.log(0.7 / 0.2))
    assert found.eps_L[1] == pytest.approx(np.log(0.8 / 0.3))
    assert found.determined == pytest.approx([0.25, 0.5])
    odds = jt.conditional(joint)
    assert odds.eps_L[1] == np.inf
    assert odds.eps_R[1] == pytest.approx(np.log(0.7 / 0.2))


def test_bad_arguments():
    one = ch.make_channel(0.5, [0.6, 0.4], [0.2, 0.8])
    other = ch.make_channel(0.4, [0.6, 0.4], [0.2, 0.8])
    for call in (
        lambda: ch.make_channel(1.5, [0.5, 0.5], [0.5, 0.5]),
        lambda: ch.make_channel(0.5, [0.5, 0.4], [0.5, 0.5]),
        lambda: ch.make_channel(0.5, [1.5, -0.5], [0.5, 0.5]),
        lambda: ch.make_channel(0.5, [0.5, np.nan], [0.5, 0.5]),
        lambda: ch.make_channel(0.5, [1.0], [0.5, 0.5]),
        lambda: ch.compose(one, other),
        lambda: ch.post_process(one, [[0.5, 0.5]]),
        lambda: ch.epsilons(one, "odds"),
        lambda: jt.make_joint([0.5, 0.25, 0.25], np.full((3, 2), 0.5)),
        lambda: jt.make_joint([0.5, 0.5], np.full((3, 2), 0.5)),
        lambda: jt.memberships(13),
        lambda: jt.uniform_sampler(3, 4),
        lambda: jt.independent_sampler([0.5, 1.1]),
    ):
        with pytest.raises(InputError):
            call()
