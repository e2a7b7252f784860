"""Error rates over all nodes against loops, and their intervals against audits whose truth is known."""

import numpy as np
import pytest
from scipy import stats

from jaxaudit.graph.attacks import AttackConfig, count_errors
from jaxaudit.graph.auc import half_weights, interval, model_weights
from jaxaudit.graph.comparison import compare_rules
from jaxaudit.graph.rates import fixed_fpr_rates, global_attack, rates, resampled_rates, split_errors
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.keys import host_rng

NAMES = ("fpr", "tpr", "accuracy", "balanced_accuracy")


def simulate(nodes, models, rho, paired, seed, low=0.5, high=0.5):
    """One audit of always the same nodes: a share rho of the statistic's variance is the model's own."""
    same = np.random.default_rng(99)
    centre, scale, shift, prior = (same.uniform(*ends, (nodes, 1)) for ends in ((-5, 5), (0.5, 3), (0, 3), (low, high)))
    rng = np.random.default_rng(seed)
    member = rng.random((nodes, models)) < prior
    if paired:
        half = rng.random((nodes, models // 2)) < 0.5
        member = np.stack([half, ~half], axis=2).reshape(nodes, models)
    noise = np.sqrt(1 - rho) * rng.normal(size=(nodes, models)) + np.sqrt(rho) * rng.normal(size=models)
    return centre + scale * (noise + shift * member), member


def audit(t, member, rule="fixed_fpr"):
    counts = count_errors(t, member, AttackConfig(rule=rule))
    return counts, counts.counted & counts.auditable[:, None]


def test_rates_equal_loops():
    rng = np.random.default_rng(0)
    said, use, member = (rng.random((6, 5)) < p for p in (0.4, 0.8, 0.5))
    weights = np.array([[1, 1, 1, 1, 1], [2, 0, 1, 0, 3]])
    found = rates(said, use, member, weights)
    for r, w in enumerate(weights):
        columns = np.repeat(np.arange(5), w)
        s, u, m = (x[:, columns] for x in (said, use, member))
        assert found["tpr"][r] == pytest.approx(s[u & m].mean())
        assert found["fpr"][r] == pytest.approx(s[u & ~m].mean())
        assert found["accuracy"][r] == pytest.approx((s == m)[u].mean())
        assert found["balanced_accuracy"][r] == pytest.approx((s[u & m].mean() + 1 - s[u & ~m].mean()) / 2)
    assert np.isnan(rates(said, use, member | True)["fpr"][0])


@pytest.mark.parametrize("rule", ["fixed_fpr", "likelihood"])
@pytest.mark.parametrize("paired", [False, True])
def test_global_attack_is_the_rate_of_the_counts(rule, paired):
    t, member = simulate(30, 24, 0.2, paired, 0)
    t[:, 3] = np.nan  # a model that diverged
    config = AttackConfig(rule=rule)
    counts = count_errors(t, member, config, paired=paired)
    found = global_attack(counts, t, member, config, paired=paired)
    ok = counts.auditable
    assert found["fpr"] == pytest.approx(counts.fp[ok].sum() / counts.n_out[ok].sum())
    assert found["tpr"] == pytest.approx(1 - counts.fn[ok].sum() / counts.n_in[ok].sum())
    assert found["decisions"] == counts.n_in[ok].sum() + counts.n_out[ok].sum()
    assert (found["rule"], np.isnan(found["level"])) == (rule, rule != "fixed_fpr")
    for name in NAMES:
        low, high = found[f"{name}_ci"]
        assert 0 <= low < found[name] < high <= 1
    assert repr(global_attack(counts, t, member, config, paired=paired)) == repr(found)  # the same, bit for bit


def test_error_of_a_mean_is_the_usual_one():
    """Decisions that no threshold enters: over random splits, s² / K of the models (pairs)."""
    rng = np.random.default_rng(1)
    member = np.ones((1, 16), bool) & (np.arange(16) % 2 == 0)
    member = np.repeat(member, 50, axis=0)
    said = rng.random((50, 16)) < np.repeat(rng.random(8), 2)
    found, units = split_errors(
        lambda columns: (said[:, columns], np.ones(50, bool)), np.ones((50, 16), bool), member, paired=True, splits=3000
    )
    assert units == 8
    for name, sign in (("tpr", said[:, ::2]), ("fpr", said[:, 1::2])):
        assert found[name] == pytest.approx(sign.mean(axis=0).std(ddof=1) / np.sqrt(8), rel=0.05), name


def test_pairs_and_judged_models_stay_together_in_every_split():
    use = np.zeros((2, 20), bool)
    use[:, [0, 1, 4, 5, 8, 9, 12, 13]] = True  # four judged pairs of ten
    seen = []

    def decide(columns):
        seen.append(columns)
        return np.zeros((2, columns.size), bool), np.ones(2, bool)

    assert split_errors(decide, use, use, paired=True, splits=4)[1] == 4
    for first, second in zip(seen[::2], seen[1::2], strict=True):
        assert first.size == second.size == 10
        assert np.intersect1d(first, second).size == 0
        for part in (first, second):
            assert use[0, part].sum() == 4
            assert (np.sort(part).reshape(-1, 2) // 2 == np.sort(part)[::2, None] // 2).all()
    again = []
    split_errors(lambda c: (again.append(c), decide(c))[1], use, use, paired=True, splits=2)
    np.testing.assert_array_equal(again, seen[:4])  # a split does not depend on how many there are


def test_a_node_that_one_half_cannot_fit_is_left_out_of_both():
    member = np.arange(8) % 2 == np.zeros((2, 1))
    said = np.array([member[0], np.arange(8) < 3])  # the first node is judged right always, the second as it comes

    def decide(columns):
        return said[:, columns], np.array([True, 0 in columns])  # the second by the half of model 0 alone

    found, _ = split_errors(decide, np.ones((2, 8), bool), member, splits=20)
    assert found == {"accuracy": 0, "balanced_accuracy": 0, "tpr": 0, "fpr": 0}


@pytest.mark.parametrize("paired", [False, True])
def test_resampled_rates_are_those_of_repeated_models(paired):
    rng = np.random.default_rng(0)
    said, member = rng.random((9, 12)) < 0.5, rng.random((9, 12)) < 0.5
    use = np.ones((9, 12), bool) & (np.arange(12) >= 4)
    found = resampled_rates(said, use, member, paired=paired, seed=5, replicates=50)
    units = np.arange(4, 12).reshape((-1, 2) if paired else (-1, 1))
    drawn = model_weights(np.zeros(len(units)), 50, host_rng(5, "bootstrap-decisions")).astype(int)
    columns = [np.repeat(units, weights, axis=0).ravel() for weights in drawn]
    values = np.array([rates(said[:, c], use[:, c], member[:, c])["accuracy"][0] for c in columns])
    assert found["accuracy_ci"] == pytest.approx(interval(values, len(units)))


def test_halves_are_resampled_apart_and_replicates_do_not_depend_on_their_number():
    first, second = half_weights([8, 8], 6, 0)
    assert (first[0] == 1).all()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(half_weights([8, 5], 3, 0)[0], first[:4])


def test_intervals_do_not_depend_on_place_scale_or_order_of_nodes():
    t, member = simulate(40, 16, 0.2, False, 3)
    use, order = np.ones_like(member), np.random.default_rng(0).permutation(40)
    found = fixed_fpr_rates(t, use, member, 0.1)
    for other in (fixed_fpr_rates(3 * t + 7, use, member, 0.1), fixed_fpr_rates(t[order], use, member[order], 0.1)):
        for name, value in found.items():
            assert other[name] == pytest.approx(value), name
    narrow = fixed_fpr_rates(t, use, member, 0.1, confidence=0.5)
    assert np.ptp(narrow["tpr_ci"]) / np.ptp(found["tpr_ci"]) == pytest.approx(
        stats.t.isf(0.25, 15) / stats.t.isf(0.025, 15)
    )


def test_too_few_models_give_no_interval():
    t, member = simulate(20, 4, 0.0, False, 0)
    found = fixed_fpr_rates(t, np.arange(4) == np.zeros((20, 1)), member, 0.1)
    assert np.isnan(found["tpr_ci"]).all()
    nothing = resampled_rates(member, np.zeros_like(member), member)
    assert np.isnan(nothing["accuracy"])
    assert np.isnan(nothing["accuracy_ci"]).all()
    with pytest.raises(InputError, match="even number"):
        fixed_fpr_rates(t[:, :3], np.ones((20, 3), bool), member[:, :3], 0.1, paired=True)
    with pytest.raises(InputError, match="splits"):
        fixed_fpr_rates(t, np.ones_like(member), member, 0.1, splits=0)


def test_the_rule_table_takes_the_thresholds_along():
    t, member = simulate(60, 24, 0.3, True, 0)
    rows = {(row["rule"], row["prior"]): row for row in compare_rules(t, member, np.full(60, 0.5), paired=True)}
    fixed = rows["fixed_fpr", "blind"]
    assert fixed["decisions"] == 60 * 12
    odd = np.ones_like(member) & (np.arange(24) // 2 % 2 == 1)
    assert {k: fixed[k] for k in fixed if k not in ("rule", "prior")} == fixed_fpr_rates(
        t, odd, member, 0.1, paired=True
    )
    said = count_errors(t, member).said_member
    held, taken = (part["fpr_ci"] for part in (
        resampled_rates(said, odd | True, member, paired=True),
        fixed_fpr_rates(t, odd | True, member, 0.1, paired=True),
    ))  # fmt: skip
    assert np.ptp(taken) < 0.5 * np.ptp(held)


def coverage(found, points):
    """Share of intervals that hold the mean of the points, by rate."""
    ends = np.array([[one[f"{name}_ci"] for name in NAMES] for one in found])
    truth = np.mean([[float(np.ravel(one[name])[0]) for name in NAMES] for one in points], axis=0)
    return dict(zip(NAMES, ((ends[..., 0] <= truth) & (truth <= ends[..., 1])).mean(axis=0), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("models", "rho", "paired", "low", "high"),
    [(32, 0.3, False, 0.5, 0.5), (32, 0.3, True, 0.5, 0.5), (32, 0.0, False, 0.5, 0.5), (64, 0.1, False, 0.1, 0.9)],
)
def test_intervals_of_fixed_fpr_cover(models, rho, paired, low, high):
    """90 % intervals over 300 audits; the truth is the mean over these and 600 more."""
    found, points = [], []
    for seed in range(900):
        t, member = simulate(150, models, rho, paired, seed, low, high)
        counts, use = audit(t, member)
        if seed < 300:
            found.append(fixed_fpr_rates(t, use, member, 0.1, paired=paired, seed=seed, confidence=0.9))
        points.append(found[-1] if seed < 300 else rates(counts.said_member, use, member))
    share = coverage(found, points)
    print(f"{models} models, rho {rho}, paired {paired}, priors {low} to {high}: 90 % intervals cover {share}")
    assert all(0.85 <= value <= 0.95 for value in share.values()), share


@pytest.mark.slow
@pytest.mark.parametrize("paired", [False, True])
def test_intervals_of_a_fitted_rule_cover_the_rule_as_it_was_fitted(paired):
    """95 % intervals of ``likelihood``: the truth is of the same fit on 400 further models."""
    hits = []
    for seed in range(200):
        t, member = simulate(100, 32, 0.3, paired, seed)
        counts, use = audit(t, member, "likelihood")
        if paired:
            counts = count_errors(t, member, AttackConfig(rule="likelihood"), paired=True)
            use = counts.counted & counts.auditable[:, None]
        found = resampled_rates(counts.said_member, use, member, paired=paired, seed=seed)
        more, inside = simulate(100, 400, 0.3, paired, 10_000 + seed)
        even = ~(np.arange(32) // (2 if paired else 1) % 2 == 1)
        said = np.zeros((100, 400), bool)
        for i in range(100):
            sides = [t[i, even & (member[i] == side)] for side in (True, False)]
            pooled = min(map(len, sides)) < 3
            if min(map(len, sides)) < 2:
                continue
            spread = [np.var(side, ddof=1) for side in sides]
            if pooled:
                spread = [np.average(spread, weights=[len(side) - 1 for side in sides])] * 2
            density = [
                stats.norm.logpdf(more[i], side.mean(), np.sqrt(v)) for side, v in zip(sides, spread, strict=True)
            ]
            said[i] = density[0] > density[1]
        truth = rates(said, np.ones_like(inside) & counts.auditable[:, None], inside)
        hits.append([found[f"{name}_ci"][0] <= truth[name][0] <= found[f"{name}_ci"][1] for name in NAMES])
    share = dict(zip(NAMES, np.mean(hits, axis=0), strict=True))
    print(f"likelihood, paired {paired}: 95 % intervals cover {share}")
    assert all(0.9 <= value <= 0.985 for value in share.values()), share
