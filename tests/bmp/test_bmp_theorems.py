"""Every theorem against enumeration: 1,000 random finite channels a time, and channels that attain the bound.

"Exact" below means the enumerated epsilons of the composed channel, computed from its probabilities alone.
"""

import itertools

import numpy as np
import pytest
from channel_oracle import channels, dp_epsilon, epsilons_by_definition, joints, posteriors, rows

from jaxaudit.bmp import DEFINITIONS, from_canonical, prior_lower_bound
from jaxaudit.bmp import channel as ch
from jaxaudit.bmp import joint as jt
from jaxaudit.bmp import theorems as th
from jaxaudit.bmp.coupling import coupling_distance, steps_between
from jaxaudit.runtime.checks import InputError

MANY = channels(0)
ODDS = np.log(MANY.prior / (1 - MANY.prior))
EXACT = epsilons_by_definition(MANY, "posterior_odds")


def same_prior(seed, outputs=4):
    """Other random channels about the memberships of ``MANY``."""
    return channels(seed, outputs=outputs, prior=MANY.prior)


def holds(exact, bound):
    return all(np.all(got <= most + 1e-9 * (1 + np.abs(most))) for got, most in zip(exact, bound, strict=True))


def attained(exact, bound):
    return np.allclose(exact, bound, rtol=1e-9, atol=1e-9)


def test_prior_lower_bound_holds_and_is_attained():
    assert holds(prior_lower_bound(MANY.prior), EXACT)
    deaf = ch.Channel(MANY.prior, MANY.p_out, MANY.p_out)
    assert attained(epsilons_by_definition(deaf, "posterior_odds"), prior_lower_bound(MANY.prior))
    least = th.learner_lower_bound(MANY.prior)
    assert attained(np.max(epsilons_by_definition(deaf, "posterior_odds"), 1), least)
    assert EXACT[0].max() >= least[0]
    assert EXACT[1].max() >= least[1]


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_post_processing_can_only_shrink(definition):
    before = epsilons_by_definition(MANY, definition)
    kernel = rows(np.random.default_rng(1), 1000, 4, 5, sharpness=2.0)
    after = epsilons_by_definition(ch.post_process(MANY, kernel), definition)
    assert holds(after, th.post_processing(*before))
    assert np.any(after[1] < before[1] - 0.1)
    renamed = np.eye(4)[[2, 0, 3, 1]]
    assert attained(epsilons_by_definition(ch.post_process(MANY, renamed), definition), before)


def test_merging_outputs_of_one_ratio_loses_nothing():
    split = np.array([[0.3, 0.7, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])
    wide = ch.post_process(MANY, split)
    merged = ch.post_process(wide, (split > 0).T.astype(float))
    assert attained(epsilons_by_definition(merged, "posterior_odds"), EXACT)


def test_mp_and_bmp():
    other = same_prior(2)
    eps = np.abs(ch.log_ratio(other)).max(1)
    bound = th.mp_bmp(*EXACT, eps)
    assert holds(epsilons_by_definition(ch.compose(MANY, other), "posterior_odds"), bound)
    # Randomised response has both extreme ratios: attained on both sides.
    keep = rows(np.random.default_rng(3), 1000, 2)
    response = ch.make_channel(MANY.prior, keep, keep[:, ::-1])
    eps = np.abs(np.log(keep[:, 0] / keep[:, 1]))
    exact = epsilons_by_definition(ch.compose(MANY, response), "posterior_odds")
    assert attained(exact, th.mp_bmp(*EXACT, eps))


def test_two_outputs_about_one_membership():
    other = same_prior(4, outputs=3)
    exact = epsilons_by_definition(ch.compose(MANY, other), "posterior_odds")
    tight = epsilons_by_definition(other, "posterior_odds")
    assert attained(exact, th.bmp_bmp(EXACT, tight, MANY.prior))
    # Bounds that are not tight leave exactly their slack.
    loose = th.bmp_bmp((EXACT[0] + 0.25, EXACT[1]), (tight[0], tight[1] + 0.5), MANY.prior)
    assert holds(exact, loose)
    assert np.allclose(np.subtract(loose, exact), [[0.25], [0.5]])


def test_composition_is_commutative_and_a_deaf_output_changes_nothing():
    tight = epsilons_by_definition(same_prior(4), "posterior_odds")
    there, back = th.bmp_bmp(EXACT, tight, MANY.prior), th.bmp_bmp(tight, EXACT, MANY.prior)
    assert attained(there, back)
    assert attained(th.bmp_bmp(EXACT, prior_lower_bound(MANY.prior), MANY.prior), EXACT)


def test_two_trainings_on_one_sample_are_not_independent_given_the_membership():
    """A training that tosses a coin and shows M2, or M1 xor M2, says nothing of M1. Two on one sample say it all."""
    member = jt.memberships(2)
    for noise in (0.0, 0.1):
        table = np.zeros((4, 4))
        for s, (one, two) in enumerate(member):
            for coin, bit in ((0, two), (1, one ^ two)):
                table[s, 2 * coin + int(bit)] += 0.5 * (1 - noise)
                table[s, 2 * coin + int(not bit)] += 0.5 * noise
        single = jt.make_joint(jt.independent_sampler([0.5, 0.5]), table)
        pair = jt.make_joint(single.sampler, np.einsum("sw,sv->swv", table, table).reshape(4, 16))
        eps = [side[0] for side in ch.epsilons(jt.node_channels(single))]
        truth = [side[0] for side in ch.epsilons(jt.node_channels(pair))]
        claimed = th.bmp_bmp(eps, eps, 0.5)
        assert np.allclose(eps, 0, atol=1e-12)
        assert np.allclose(claimed, 0, atol=1e-12)
        # One shows M2 and the other M1 xor M2, each right with probability 1 - noise.
        right = (1 - noise) ** 2 + noise**2
        assert np.allclose(truth, np.inf if noise == 0 else np.log(right / (1 - right)))
        # Outputs that are independent given M1 itself do obey the bound.
        node = jt.node_channels(single)
        one = ch.Channel(node.prior[0], node.p_in[0], node.p_out[0])
        assert attained(ch.epsilons(ch.compose(one, one)), claimed)


def test_independent_rounds():
    """Three rounds with their own priors and channels; membership in at least one of them."""
    parts = [channels(seed, outputs=3) for seed in (5, 6, 7)]
    whole = ch.rounds(ch.rounds(parts[0], parts[1]), parts[2])
    eps = np.array([epsilons_by_definition(part, "posterior_odds") for part in parts])
    bound = th.independent_rounds(eps[:, 0], eps[:, 1], axis=0)
    assert attained(epsilons_by_definition(whole, "posterior_odds"), bound)
    assert np.allclose(th.rounds_prior([part.prior for part in parts], axis=0), whole.prior)
    # Deaf rounds: the prior lower bounds compose to that of the union.
    deaf = prior_lower_bound(np.array([part.prior for part in parts]))
    assert attained(th.independent_rounds(*deaf, axis=0), prior_lower_bound(whole.prior))


def test_independent_rounds_by_brute_force_over_two_samples():
    """Two whole trainings on two independent samples: every pair of membership vectors is summed."""
    sampler = jt.independent_sampler([0.3, 0.6])
    table = rows(np.random.default_rng(8), 4, 3)
    inside, outside = np.zeros(9), np.zeros(9)
    for s, t in itertools.product(range(4), repeat=2):
        output = sampler[s] * sampler[t] * np.outer(table[s], table[t]).ravel()
        if (s | t) & 1:
            inside += output
        else:
            outside += output
    odds = np.log(inside / outside)
    once = [side[0] for side in ch.epsilons(jt.node_channels(jt.make_joint(sampler, table)))]
    bound = th.independent_rounds([once[0]] * 2, [once[1]] * 2)
    assert attained(bound, ((-odds).max(), odds.max()))


def test_independent_rounds_do_not_lose_digits():
    """Against whole numbers and logs of whole numbers, at epsilons where e^eps is no float."""
    for rounds in (1, 2, 5):
        for eps in (-800.0, -40.0, -1e-3, 0.0, 30.0, 800.0):
            left, right = th.independent_rounds([eps] * rounds, [eps] * rounds)
            if eps <= -40:
                assert right == pytest.approx(eps + np.log(rounds), rel=1e-14)
                assert left == pytest.approx(rounds * eps, rel=1e-14)
            elif eps >= 30:
                assert right == pytest.approx(rounds * eps, rel=1e-12)
                assert left == pytest.approx(eps - np.log(rounds), rel=1e-12)
            else:
                assert right == pytest.approx(np.log((1 + np.exp(eps)) ** rounds - 1), abs=1e-12)
    x = np.linspace(-60, 60, 2001)[:, None]
    twice = x[:, 0] + np.log(2 + np.exp(x[:, 0]))  # (1 + y)^2 - 1 = y (2 + y)
    assert np.allclose(th.independent_rounds(-np.repeat(x, 2, 1), np.repeat(x, 2, 1)), (-twice, twice), rtol=1e-13)
    assert np.allclose(th.independent_rounds(x, x), (x[:, 0], x[:, 0]), rtol=1e-12, atol=1e-12)
    left, right = th.independent_rounds(
        [[np.inf, 1.0], [-np.inf, 1.0], [np.nan, 1]], [[-np.inf, 1.0], [np.inf, 1], [1, 1]]
    )
    assert np.allclose(left, [1.0, -np.inf, np.nan], equal_nan=True)
    assert np.allclose(right[:2], [1.0, np.inf])


def test_composition_on_simulated_rounds():
    """Frequencies of outputs among members and non-members, 400,000 draws: the composed bound is what they show."""
    rng, draws = np.random.default_rng(9), 400_000
    prior, p_in, p_out = 0.3, 0.6, 0.2
    part = ch.make_channel(prior, [p_in, 1 - p_in], [p_out, 1 - p_out])
    once = ch.epsilons(part)

    def log_odds(member, output):
        found = []
        for value in range(4):
            a, b = np.sum(member & (output == value)), np.sum(~member & (output == value))
            found.append((np.log(a / b), np.sqrt(1 / a + 1 / b)))
        return np.array(found)

    def agrees(found, bound):
        low, high = found[np.argmin(found[:, 0])], found[np.argmax(found[:, 0])]
        return abs(high[0] - bound[1]) < 4 * high[1] and abs(-low[0] - bound[0]) < 4 * low[1]

    member = rng.random((2, draws)) < prior
    output = rng.random((2, draws)) >= np.where(member, p_in, p_out)
    union = log_odds(member.any(0), 2 * output[0] + output[1])
    rounds = th.independent_rounds([once[0]] * 2, [once[1]] * 2)
    assert agrees(union, rounds)
    output = rng.random((2, draws)) >= np.where(member[0], p_in, p_out)
    same = log_odds(member[0], 2 * output[0] + output[1])
    both = th.bmp_bmp(once, once, prior)
    assert agrees(same, both)
    # The two theorems are about different things: neither figure would pass for the other.
    assert not agrees(same, rounds)
    assert not agrees(union, both)


def test_mp_gives_bmp_and_back():
    eps = np.abs(ch.log_ratio(MANY)).max(1)
    bound = th.mp_to_bmp(eps, MANY.prior)
    assert holds(EXACT, bound)
    tight = np.isclose(EXACT, bound, rtol=1e-9, atol=1e-9)
    assert np.all(tight.any(0))
    assert np.allclose(th.bmp_to_mp(*EXACT, MANY.prior, axis=None), eps, rtol=1e-9)
    assert th.bmp_to_mp(*EXACT, MANY.prior) == pytest.approx(eps.max())
    by_learner = th.bmp_to_mp(*(np.reshape(part, (50, 20)) for part in (*EXACT, MANY.prior)))
    assert np.allclose(by_learner, eps.reshape(50, 20).max(1))


def test_one_sided_bmp_minus_one_sided_mp_is_the_log_odds():
    """By definition: the largest posterior odds over the largest likelihood ratio, whatever the channel."""
    one, zero = posteriors(MANY)
    gap = np.log(one / zero).max(1) - ch.log_ratio(MANY).max(1)
    assert np.allclose(gap, ODDS, atol=1e-12)
    # So it does not know the model: the channel may be another one.
    other = same_prior(10)
    one, zero = posteriors(other)
    assert np.allclose(np.log(one / zero).max(1) - ch.log_ratio(other).max(1), gap, atol=1e-12)


def test_uniform_sampling_of_one_half_is_membership_privacy():
    """Two of four nodes drawn: at prior 1/2 the posterior odds are the ratio, so BMP is (two-sided, symmetric) MP.

    Relations: posterior_odds = bayes_factor = (l, r); max(eps_L, eps_R) = eps-MP; for the reading of Li et al.
    e^r = 2 e^eps - 1, hence eps_Li <= r <= 2 eps_Li.
    """
    nodes = jt.node_channels(joints(11, jt.uniform_sampler(4, 2), sharpness=2.0))
    assert np.allclose(nodes.prior, 0.5, atol=1e-15)
    l, r = ch.bounds(nodes)
    for definition in ("posterior_odds", "bayes_factor"):
        assert np.allclose(epsilons_by_definition(nodes, definition), (l, r), atol=1e-9)
    eps = np.maximum(l, r)
    assert np.allclose(th.bmp_to_mp(l, r, 0.5), eps.max(1), atol=1e-12)
    assert np.allclose(th.mp_to_bmp(eps, 0.5), (eps, eps), atol=1e-12)
    li_left, li_right = epsilons_by_definition(nodes, "membership_privacy")
    assert np.allclose(np.exp(r), 2 * np.exp(li_right) - 1)
    assert np.allclose(np.exp(l), 2 * np.exp(li_left) - 1)
    assert holds((li_left, li_right), (l, r))
    assert holds((l, r), (2 * li_left, 2 * li_right))
    # At another ratio they part: one of four drawn.
    skewed = jt.node_channels(joints(11, jt.uniform_sampler(4, 1)))
    assert np.allclose(ch.epsilons(skewed)[1] - ch.bounds(skewed)[1], np.log(1 / 3))


# Differential privacy. Mechanisms over all 16 subsets of 4 nodes; their own eps by enumeration of all neighbours.

TABLES = rows(np.random.default_rng(12), 1000, 16, 3, sharpness=0.7)


def node_bounds(sampler, table):
    return ch.bounds(jt.node_channels(jt.make_joint(sampler, table)))


def ladder(score, eps):
    """Three outputs with ratios e^(±eps · score) exactly and a rest that hardly moves: (S, 3)."""
    up = 1e-3 * np.exp(eps * (score - np.abs(score).max()))
    down = 1e-3 * np.exp(-eps * (score + np.abs(score).max()))
    return np.stack([up, down, 1 - up - down], -1)


def test_dp_and_independent_memberships():
    sampler = jt.independent_sampler(np.random.default_rng(13).uniform(0.05, 0.95, (1000, 4)))
    bound = th.dp_bounds(dp_epsilon(TABLES, "add_remove"))[:, None]
    assert holds(node_bounds(sampler, TABLES), (bound, bound))
    member = jt.memberships(4)[:, 0]
    response = np.where(member[:, None], [0.8, 0.2], [0.2, 0.8])
    assert dp_epsilon(response, "add_remove") == pytest.approx(np.log(4))
    found = np.array(node_bounds(sampler, response))[:, :, 0]
    assert attained(found, np.full_like(found, th.dp_bounds(np.log(4))))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_dp_and_uniform_sampling(size, adjacency):
    sampler, eps = jt.uniform_sampler(4, size), dp_epsilon(TABLES, adjacency)
    bound = th.dp_bounds(eps, "uniform", adjacency)[:, None]
    assert holds(node_bounds(sampler, TABLES), (bound, bound))
    assert np.allclose(coupling_distance(sampler, adjacency) * eps[:, None], bound)
    # Attained: every node added moves this score by one; with node 0 in it is two above that without.
    member = jt.memberships(4)
    score = 2.0 * member[:, 0] - (member.sum(1) if adjacency == "add_remove" else 0)
    step = 0.4 if adjacency == "add_remove" else 0.2
    table = ladder(score, step)
    own = dp_epsilon(table, adjacency)
    assert own == pytest.approx(0.4)
    found = np.array(node_bounds(sampler, table))[:, 0]
    assert attained(found, np.full(2, th.dp_bounds(own, "uniform", adjacency)))


def test_dp_and_any_sampler():
    """Ten random samplers (some subsets never drawn), 100 mechanisms each."""
    rng, eps = np.random.default_rng(14), dp_epsilon(TABLES, "add_remove")
    for k in range(10):
        sampler = rng.random(16) * (rng.random(16) < 0.5)
        sampler[[1, 14]] += 0.2
        sampler /= sampler.sum()
        part = slice(100 * k, 100 * k + 100)
        bound = th.dp_bounds(eps[part, None], "general", distance=coupling_distance(sampler))
        assert holds(node_bounds(sampler, TABLES[part]), (bound, bound))


def test_dp_and_a_sampler_of_blocks_attains_the_distance():
    """Either nodes 0 and 1, or 2 and 3, like a snowball that starts here or there: the whole sample moves."""
    member = jt.memberships(4)
    sampler = np.zeros(16)
    sampler[[0b0011, 0b1100]] = 0.5
    assert coupling_distance(sampler).tolist() == [4] * 4
    assert coupling_distance(sampler, "replace_one").tolist() == [2] * 4
    table = ladder(member[:, :2].sum(1) - member[:, 2:].sum(1).astype(float), 0.3)
    eps = dp_epsilon(table, "add_remove")
    assert eps == pytest.approx(0.3)
    bound = th.dp_bounds(eps, "general", distance=coupling_distance(sampler))
    assert attained(node_bounds(sampler, table), np.stack([bound, bound]))


def test_replace_one_says_nothing_about_samples_of_unequal_size():
    """A mechanism that shows the size is 0-DP under replace-one and yet leaks a membership."""
    size = jt.memberships(4).sum(1)
    table = np.stack([0.2 * size, 1 - 0.2 * size], -1)
    assert dp_epsilon(table + 0.01 / 1.02, "replace_one") == 0
    sampler = jt.independent_sampler([0.5] * 4)
    assert np.all(node_bounds(sampler, table)[1] > 0.2)
    assert th.dp_bounds(0.0, "independent", "replace_one") == np.inf
    assert np.isinf(coupling_distance(sampler, "replace_one")).all()


def strassen(sampler, node, adjacency):
    """The least D such that every set A of samples with the node has P(A) <= Q(samples within D of A)."""
    member = jt.memberships(sampler.size.bit_length() - 1)
    has, lacks = (np.flatnonzero((member[:, node] == side) & (sampler > 0)) for side in (True, False))
    p, q = (sampler[which] / sampler[which].sum() for which in (has, lacks))
    steps = steps_between(member[has], member[lacks], adjacency)
    for distance in np.unique(steps):
        near = steps <= distance
        sets = itertools.product([False, True], repeat=len(has))
        if all(p[list(a)].sum() <= q[near[list(a)].any(0)].sum() + 1e-9 for a in sets):
            return distance
    raise AssertionError("no distance is enough")


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_coupling_distance_against_the_marriage_condition(adjacency):
    rng, seen = np.random.default_rng(15), set()
    for trial in range(12):
        sampler = rng.random(16) * (rng.random(16) < 0.6)
        if trial % 2:
            sampler *= jt.memberships(4).sum(1) == 2
        if np.count_nonzero(sampler) < 4:
            continue
        sampler /= sampler.sum()
        found = coupling_distance(sampler, adjacency)
        prior = sampler @ jt.memberships(4)
        for node in range(4):
            if 1e-12 < prior[node] < 1 - 1e-12:
                assert found[node] == strassen(sampler, node, adjacency)
                seen.add(float(found[node]))
            else:
                assert np.isnan(found[node])
    assert len(seen) >= 2


def test_priors_of_zero_and_one_decide():
    certain = np.array([0.0, 1.0])
    left, right = prior_lower_bound(certain)
    for found in (th.mp_to_bmp(3.0, certain), th.bmp_bmp((left, right), (left, right), certain)):
        assert np.array_equal(found[0], [np.inf, -np.inf])
        assert np.array_equal(found[1], [-np.inf, np.inf])
    assert np.isnan(th.bmp_to_mp(left, right, certain, axis=None)).all()
    assert th.rounds_prior([0.2, 1.0]) == 1
    distance = coupling_distance(jt.independent_sampler([0.0, 1.0, 0.5]))
    assert np.array_equal(distance, [np.nan, np.nan, 1.0], equal_nan=True)


def test_missing_nodes_pass_through():
    nan = (np.nan, np.nan)
    assert np.isnan(th.bmp_bmp(nan, (3.0, 3.0), 0.5)).all()
    assert np.isnan(th.mp_bmp(*nan, 1.0)).all()
    assert np.isnan(th.bmp_to_mp(*nan, 0.5))
    assert np.isnan(th.dp_bounds(1.0, "general", distance=np.nan))


def test_broadcasting():
    left, right = th.bmp_bmp((np.ones((3, 1)), 1.0), (1.0, np.ones(4)), 0.5)
    assert left.shape == right.shape == (3, 4)
    assert th.independent_rounds(np.ones((2, 5)), np.ones(5), axis=0)[0].shape == (5,)
    assert th.dp_bounds(np.ones((2, 1)), "general", distance=np.ones(3)).shape == (2, 3)


def test_bounds_below_the_prior_are_refused():
    with pytest.raises(InputError, match="eps_R of second must be at least the prior lower bound"):
        th.bmp_bmp((3.0, 0.0), (3.0, -2.3), 0.1)
    with pytest.raises(InputError, match="eps_L must be at least"):
        th.bmp_to_mp(2.1, 0.0, 0.1)
    th.bmp_to_mp(*prior_lower_bound(MANY.prior), MANY.prior)


def test_bad_arguments():
    for call in (
        lambda: th.mp_bmp(1, 1, -0.1),
        lambda: th.mp_to_bmp(-1, 0.5),
        lambda: th.mp_to_bmp(1, 1.5),
        lambda: th.rounds_prior([0.5, -0.1]),
        lambda: th.independent_rounds(1.0, 1.0),
        lambda: th.independent_rounds([], []),
        lambda: th.dp_bounds(-1),
        lambda: th.dp_bounds(1, "snowball"),
        lambda: th.dp_bounds(1, "uniform", "swap"),
        lambda: th.dp_bounds(1, "general"),
        lambda: th.dp_bounds(1, "uniform", distance=2),
        lambda: th.dp_bounds(1, "general", distance=-2),
        lambda: coupling_distance([0.5, 0.4]),
        lambda: coupling_distance([0.5, 0.25, 0.25]),
        lambda: coupling_distance(np.full(256, 1 / 256)),
        lambda: steps_between([[True]], [[False]], "swap"),
        lambda: from_canonical(0, 0, 0.5, "odds"),
    ):
        with pytest.raises(InputError):
            call()
