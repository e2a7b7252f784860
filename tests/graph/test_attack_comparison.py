"""The attack table and the rule table against scikit-learn and loops."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from jaxaudit.graph.attacks import Context, count_errors, cross_fitted_ratio, halves, observe, select
from jaxaudit.graph.attacks.protocol import cross_fit
from jaxaudit.graph.auc import attack_auc, model_weights, pooled_auc, pooled_replicates
from jaxaudit.graph.comparison import LEVELS, _over_nodes, compare_attacks, compare_rules, default_attacks
from jaxaudit.runtime.checks import InputError


@pytest.fixture(scope="module")
def models():
    rng = np.random.default_rng(0)
    half = rng.random((40, 12)) < 0.5
    member = np.stack([half, ~half], axis=2).reshape(40, 24)  # complementary pairs
    labels = rng.integers(0, 3, 40)
    logits = rng.normal(size=(24, 40, 3)) + rng.normal(0, 2, (40, 3))
    logits += 2.0 * member.T[..., None] * (np.arange(3) == labels[:, None])
    return observe(logits.astype(np.float32), labels), member, Context(np.full(40, 0.5))


def realised(score, inside, level):
    best = 0.0
    for cut in np.unique(score):
        if np.mean(score[~inside] >= cut) <= level:
            best = max(best, np.mean(score[inside] >= cut))
    return best


def figures(score, member):
    """The table's figures of one fit's targets, by loops."""
    nodes = [roc_auc_score(m, s) for m, s in zip(member, score, strict=True) if 0 < m.sum() < m.size]
    targets = [(member[:, k], score[:, k]) for k in range(member.shape[1])]
    out = {"within_node_auc": np.mean(nodes), "pooled_auc": roc_auc_score(member.ravel(), score.ravel()),
           "target_auc": np.mean([roc_auc_score(m, s) for m, s in targets])}  # fmt: skip
    return out | {f"tpr_at_{level:g}": np.mean([realised(s, m, level) for m, s in targets]) for level in LEVELS}


def test_realised_rates_at_small_levels():
    rng = np.random.default_rng(3)
    member = rng.random((3000, 2)) < 0.5
    scores = np.round(rng.normal(size=(3000, 2)) + 2 * member, 2)  # with ties
    found = _over_nodes(scores, member)
    for k in range(2):
        for level in LEVELS:
            expected = realised(scores[:, k], member[:, k], level)
            assert 0 < expected == pytest.approx(found[f"tpr_at_{level:g}"][k])


@pytest.mark.parametrize("paired", [False, True])
def test_table_equals_loops(models, paired):
    seen, member, context = models
    row = compare_attacks(seen, member, context, attacks=["base"], paired=paired, replicates=40)[0]
    scores, odd = cross_fit("base", seen, member, context, paired), halves(24, paired)
    expected = [figures(scores[:, half], member[:, half]) for half in (odd, ~odd)]
    assert row.values.keys() == expected[0].keys()
    by_node = [
        [roc_auc_score(m, s) for m, s in zip(member[:, half], scores[:, half], strict=True) if 0 < m.sum() < m.size]
        for half in (odd, ~odd)
    ]
    assert [len(part) for part in by_node] == [40, 40] or not paired
    for name, value in row.values.items():
        if paired or name != "within_node_auc":  # there every node has a pair in both halves
            assert abs(value - np.mean([one[name] for one in expected])) < 1e-9, name
        low, high = row.intervals[name]
        assert low <= value <= high
    if paired:
        low, high = row.intervals["within_node_auc"]
        assert abs((low + high) / 2 - row.values["within_node_auc"]) < 0.3 * (high - low)
    assert row.flat()["pooled_auc_ci"] == list(row.intervals["pooled_auc"])
    assert np.nanmean(row.node_auc) == pytest.approx(row.values["within_node_auc"])
    assert "g_base" not in default_attacks(seen)


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("count", [24, 13])
def test_table_and_audit_agree(models, paired, count):
    """One definition, also where a node is undefined in one half, and with an odd number of models."""
    seen, member, context = models
    count -= count % 2 if paired else 0
    seen, member = select(seen, np.arange(count)), member[:, :count].copy()
    member[:9, ~halves(count, paired)] = True  # nothing to fit on in the even half, no pair to rank there
    row = compare_attacks(seen, member, context, attacks=["likelihood_ratio"], paired=paired, replicates=30)[0]
    audit = attack_auc(np.asarray(seen.statistic), member, context.prior, replicates=30, paired=paired)
    np.testing.assert_allclose(audit.node_likelihood_ratio, row.node_auc)
    for name, value, limits in (
        ("within_node_auc", audit.likelihood_ratio, audit.likelihood_ratio_ci),
        ("pooled_auc", audit.pooled, audit.pooled_ci),
    ):
        assert value == pytest.approx(row.values[name])
        assert limits == pytest.approx(row.intervals[name])
    assert audit.likelihood_ratio == pytest.approx(np.nanmean(row.node_auc))


def test_pairs_are_resampled_together():
    """Values that cancel within pairs: their mean has no spread when pairs are drawn, and some when models are."""
    rng = np.random.default_rng(5)
    member = np.arange(400)[:, None] % 2 == np.zeros(16, int)  # the same for every model
    scores = np.where(member, 1.0, 0.0) * np.tile([1, -1, -1, 1], 4) + 1e-3 * rng.normal(size=(400, 1))
    seen = observe(np.zeros((16, 400, 2)), np.zeros(400, int))._replace(log_prob=scores)
    context = Context(np.full(400, 0.5))
    widths = []
    for paired in (True, False):
        row = compare_attacks(seen, member, context, attacks=["loss"], paired=paired, replicates=50)[0]
        widths.append(np.ptp(row.intervals["target_auc"]))
    assert widths[0] < 1e-9 < 0.1 < widths[1]


def test_separate_targets_are_scored_once(models):
    seen, member, context = models
    shadow, target = np.arange(16), np.arange(16, 24)
    row = compare_attacks(
        select(seen, shadow), member[:, shadow], context, attacks=["likelihood_ratio"], target=select(seen, target),
        target_member=member[:, target], replicates=40,
    )[0]  # fmt: skip
    t = np.asarray(seen.statistic, float)
    score = np.zeros((40, 8))
    for i in range(40):
        inside, outside = (t[i, shadow][member[i, shadow] == side] for side in (True, False))
        score[i] = stats.norm.logpdf(t[i, target], inside.mean(), inside.std(ddof=1)) - stats.norm.logpdf(
            t[i, target], outside.mean(), outside.std(ddof=1)
        )
    for name, value in figures(score, member[:, target]).items():
        assert abs(row.values[name] - value) < 1e-9, name


def test_an_odd_number_of_models_keeps_every_target(models):
    seen, member, context = models
    row = compare_attacks(select(seen, np.arange(15)), member[:, :15], context, attacks=["loss"], replicates=10)[0]
    t = np.asarray(seen.log_prob, float)
    expected = [figures(t[:, use], member[:, use]) for use in (np.arange(1, 15, 2), np.arange(0, 15, 2))]
    assert abs(row.values["pooled_auc"] - np.mean([one["pooled_auc"] for one in expected])) < 1e-9


def test_binned_replicates_equal_the_exact_ones():
    rng = np.random.default_rng(1)
    member = rng.random((3000, 10)) < 0.4
    scores = rng.normal(size=(3000, 10)) + member
    scores[:5] = np.nan
    scores[5:200] = np.round(scores[5:200])
    weights = np.concatenate([np.ones((1, 10)), model_weights(np.zeros(10), 30, rng)])
    exact, binned = pooled_auc(scores, member, weights), pooled_replicates(scores, member, weights)
    assert binned[0] == exact[0]
    np.testing.assert_allclose(binned, exact, atol=1e-5)  # bins of four scores
    few = np.round(scores)
    np.testing.assert_allclose(pooled_replicates(few, member, weights), pooled_auc(few, member, weights), atol=1e-12)


def test_rules_equal_loops(models):
    seen, member, _ = models
    statistic = np.asarray(seen.statistic)
    prior = np.random.default_rng(2).uniform(0.2, 0.7, 40)
    ratio, odd = cross_fitted_ratio(statistic, member), halves(24)
    own = count_errors(statistic, member).said_member
    log_odds, mean = np.log(prior / (1 - prior)), prior.mean()
    posterior = ratio + log_odds[:, None]
    held = np.sort(posterior[:, ~odd][~member[:, ~odd]])
    # the loosest threshold that lets at most a tenth of the held-out non-members pass
    cut = next(value for value in held if np.mean(held > value) <= 0.1)
    expected = {
        ("likelihood", "blind"): ratio > 0, ("likelihood", "aware"): posterior > 0,
        ("bayes", "blind"): ratio > np.log((1 - mean) / mean), ("bayes", "aware"): posterior > 0,
        ("fixed_fpr", "blind"): own, ("fixed_fpr", "aware"): posterior > cut,
        ("prior_only", "aware"): np.repeat(prior[:, None] > 0.5, 24, axis=1),
    }  # fmt: skip
    rows = compare_rules(statistic, member, prior, replicates=50)
    assert {(row["rule"], row["prior"]) for row in rows} == expected.keys()
    for row in rows:
        said, inside = expected[row["rule"], row["prior"]][:, odd], member[:, odd]
        tpr, fpr = said[inside].mean(), said[~inside].mean()
        assert (row["tpr"], row["fpr"]) == pytest.approx((tpr, fpr))
        assert row["balanced_accuracy"] == pytest.approx((tpr + 1 - fpr) / 2)
        assert row["accuracy"] == pytest.approx(np.mean(said == inside))
        assert row["decisions"] == 40 * 12
        if row["rule"] != "prior_only":
            assert row["tpr_ci"][0] <= row["tpr"] <= row["tpr_ci"][1]


def test_knowing_the_prior_pays_where_it_differs_and_not_where_it_is_one_half():
    rng = np.random.default_rng(4)
    prior = rng.choice([0.1, 0.5, 0.9], 600)
    member = rng.random((600, 48)) < prior[:, None]
    t = rng.normal(size=(600, 48)) + 0.8 * member
    rows = {(row["rule"], row["prior"]): row for row in compare_rules(t, member, prior, variance="global")}
    alone = rows["prior_only", "aware"]["accuracy"]
    assert rows["bayes", "aware"]["accuracy"] > max(alone, rows["bayes", "blind"]["accuracy"] + 0.05)
    assert rows["fixed_fpr", "aware"]["tpr"] > rows["fixed_fpr", "blind"]["tpr"] + 0.1
    for knows in ("aware", "blind"):
        assert abs(rows["fixed_fpr", knows]["fpr"] - 0.1) < 0.03
    same = {(row["rule"], row["prior"]): row for row in compare_rules(t, member, np.full(600, 0.5))}
    assert same["bayes", "blind"] | {"prior": ""} == same["bayes", "aware"] | {"prior": ""}
    assert same["prior_only", "aware"]["balanced_accuracy"] == 0.5


def test_bad_arguments(models):
    seen, member, context = models
    t = np.asarray(seen.statistic)
    for call, words in (
        (lambda: compare_attacks(seen, member, context, attacks=["best"]), "attack must"),
        (lambda: compare_attacks(seen, member[:3], context), "member must"),
        (lambda: compare_attacks(seen, member, context, target=seen), "target_member must"),
        (lambda: compare_attacks(seen, member, context, target=seen, target_member=member[:3]), "target_member must"),
        (lambda: compare_rules(t, member, np.full(3, 0.5)), "prior must"),
        (lambda: compare_rules(t, member, np.full(40, 1.5)), "prior must"),
        (lambda: compare_rules(t, member, np.full(40, 0.5), level=1.0), "level must"),
        (lambda: compare_rules(t, member, np.full(40, 0.5), variance="x"), "variance must"),
    ):
        with pytest.raises(InputError, match=words):
            call()
