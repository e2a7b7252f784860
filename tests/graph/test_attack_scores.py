"""Every registered attack against a naive loop, its invariances, and the null: no signal, AUC one half."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import log_softmax, logsumexp, polygamma

from jaxaudit.graph.attacks import (
    NODE_ATTACKS,
    AttackConfig,
    Context,
    attack_counts,
    cross_fit,
    halves,
    observe,
    score_targets,
    select,
)
from jaxaudit.graph.attacks.gaussian import _inverse_trigamma
from jaxaudit.graph.attacks.global_mlp import global_mlp
from jaxaudit.graph.attacks.references import OFFLINE_SLOPE
from jaxaudit.graph.comparison import compare_attacks
from jaxaudit.runtime.checks import InputError

FAST = tuple(name for name in NODE_ATTACKS if name != "global_mlp")
SHORT = ("likelihood_ratio", "likelihood_ratio_offline", "rmia", "base_offline", "g_base", "loss", "entropy")


def simulate(nodes=12, models=16, classes=3, shift=1.5, share=0.5, masks=2, seed=0):
    """Logits whose true class is raised for members; node effects, model effects and noise; a contrast alike."""
    rng = np.random.default_rng(seed)
    member = rng.random((nodes, models)) < share
    labels = rng.integers(0, classes, nodes)
    logits = rng.normal(size=(models, nodes, classes)) + rng.normal(0, 2, (nodes, classes))
    logits += rng.normal(0, 0.5, (models, 1, 1)) * (np.arange(classes) == labels[:, None])
    logits += shift * member.T[..., None] * (np.arange(classes) == labels[:, None])
    seen = observe(logits.astype(np.float32), labels)
    contrast = np.asarray(seen.log_prob)[..., None] + rng.normal(0, 0.3, (nodes, models, masks))
    return seen._replace(contrast=contrast.astype(np.float32)), member, Context(rng.uniform(0.2, 0.8, nodes))


@pytest.fixture(scope="module")
def split():
    seen, member, context = simulate()
    shadow, target = np.arange(11), np.arange(11, 16)
    return select(seen, shadow), member[:, shadow], select(seen, target), context


def columns(split, i):
    shadow, member, target, _ = split
    t, own = (np.asarray(s.statistic[i], float) for s in (shadow, target))
    p, q = (np.asarray(s.log_prob[i], float) for s in (shadow, target))
    return t, own, p, q, member[i]


def moderated(rows):
    """Hyperparameters of Smyth's moderation of the variances of ragged samples, by root finding."""
    d = np.array([len(r) - 1.0 for r in rows])
    s2 = np.array([np.var(r, ddof=1) for r in rows])
    e = np.log(s2) - polygamma(0, d / 2) + np.log(d / 2)
    excess = np.var(e, ddof=1) - polygamma(1, d / 2).mean()
    grid = np.geomspace(1e-3, 1e6, 2_000_001)
    d0 = 2 * grid[np.argmin(np.abs(polygamma(1, grid) - excess))] if excess > 0 else 1e6
    s0 = np.exp(e.mean() + polygamma(0, d0 / 2) - np.log(d0 / 2))
    return [
        stats.t(d0 + v, r.mean(), np.sqrt((d0 * s0 + v * w) / (d0 + v) * (1 + 1 / len(r))))
        for r, v, w in zip(rows, d, s2, strict=True)
    ]


def loop_likelihood(split, name):
    nodes = split[1].shape[0]
    data = [columns(split, i) for i in range(nodes)]
    sides = [[t[m == side] for t, _, _, _, m in data] for side in (True, False)]
    if name.endswith("shrunken"):
        fits = [moderated(rows) for rows in sides]
    elif name.endswith("global"):
        used = sides[1:] if "offline" in name else sides
        total = sum(((r - r.mean()) ** 2).sum() for rows in used for r in rows)
        sd = np.sqrt(total / sum(len(r) - 1 for rows in used for r in rows))
        fits = [[stats.norm(r.mean(), sd) for r in rows] for rows in sides]
    else:
        fits = [[stats.norm(r.mean(), r.std(ddof=1)) for r in rows] for rows in sides]
    inside, outside = fits
    if "offline" in name:
        return np.array([outside[i].logcdf(data[i][1]) for i in range(nodes)])
    return np.array([inside[i].logpdf(data[i][1]) - outside[i].logpdf(data[i][1]) for i in range(nodes)])


@pytest.mark.devices
@pytest.mark.parametrize("name", [name for name in NODE_ATTACKS if name.startswith("likelihood")])
def test_likelihood_ratios_equal_scipy(split, name):
    assert min(split[1].sum(axis=1).min(), (~split[1]).sum(axis=1).min()) >= 3
    np.testing.assert_allclose(score_targets(name, *split), loop_likelihood(split, name), rtol=2e-4, atol=2e-4)


def test_inverse_trigamma():
    x = np.geomspace(1e-2, 1e4, 30)
    import jax

    with jax.enable_x64(True):
        np.testing.assert_allclose(_inverse_trigamma(polygamma(1, x)), x, rtol=1e-9)


def test_base_equals_a_loop(split):
    found = {name: score_targets(name, *split) for name in ("base", "base_offline")}
    for i in range(split[1].shape[0]):
        _, _, p, q, m = columns(split, i)
        for name, use in (("base", p), ("base_offline", p[~m])):
            np.testing.assert_allclose(found[name][i], q - np.log(np.mean(np.exp(use))), atol=1e-9)


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_rmia_equals_pairwise_loops(split, gamma):
    shadow, member, target, context = split
    nodes, targets = target.statistic.shape
    for name in ("rmia", "rmia_offline"):
        found = score_targets(name, shadow, member, target, context._replace(rmia_gamma=gamma))
        ratio = np.zeros((nodes, targets))
        for i in range(nodes):
            _, _, p, q, m = columns(split, i)
            out = np.exp(p[~m]).mean()
            mean = (np.exp(p[m]).mean() + out) / 2
            guess = 0.5 * ((1 + OFFLINE_SLOPE) * out + 1 - OFFLINE_SLOPE)
            ratio[i] = np.exp(q) / (guess if "offline" in name else mean)
        for k in range(targets):
            for i in range(nodes):
                share = np.mean([ratio[i, k] >= gamma * ratio[z, k] for z in range(nodes) if z != i])
                assert abs(found[i, k] - share) < 1e-9


def test_rmia_ranks_the_nodes_of_a_model_as_the_ratio(split):
    """At γ = 1, with as many in- as out-models, RMIA and BASE order nodes alike (arXiv:2505.24089)."""
    shadow, member, target, context = split
    even = np.zeros_like(member)
    even[:, ::2] = True
    use = np.arange(10)
    arguments = select(shadow, use), even[:, use], target, context
    rmia, base = (score_targets(name, *arguments) for name in ("rmia", "base"))
    for k in range(5):
        np.testing.assert_array_equal(np.argsort(rmia[:, k]), np.argsort(base[:, k]))


def test_g_base_equals_a_loop(split):
    shadow, _, target, context = split
    found = score_targets("g_base", *split)
    odds = context.prior / (1 - context.prior)
    for i in range(found.shape[0]):
        for k in range(found.shape[1]):
            chances = []
            for s in range(2):
                evidence = np.mean(np.exp(np.asarray(shadow.contrast[i, :, s], float)))
                posterior = odds[i] * np.exp(float(target.contrast[i, k, s])) / evidence
                chances.append(posterior / (1 + posterior))
            mean = np.mean(chances)
            assert abs(found[i, k] - (np.log(mean / (1 - mean)) - np.log(odds[i]))) < 1e-6
    assert np.isnan(score_targets("g_base", shadow._replace(contrast=None), *split[1:])).all()


def test_thresholds_equal_loops():
    rng = np.random.default_rng(3)
    logits, labels = rng.normal(0, 2, (4, 6, 5)).astype(np.float32), rng.integers(0, 5, 6)
    seen = observe(logits, labels)
    context, none = Context(np.full(6, 0.5)), np.zeros((6, 4), bool)
    scores = {name: score_targets(name, seen, none, seen, context) for name in FAST}
    for k in range(4):
        for i in range(6):
            p, y = np.exp(log_softmax(logits[k, i].astype(float))), labels[i]
            rest = np.delete(p, y)
            expected = {
                "loss": np.log(p[y]), "confidence": np.log(p.max()), "entropy": (p * np.log(p)).sum(),
                "modified_entropy": (1 - p[y]) * np.log(p[y]) + (rest * np.log1p(-rest)).sum(),
            }  # fmt: skip
            for name, value in expected.items():
                assert abs(scores[name][i, k] - value) < 1e-5
            np.testing.assert_allclose(np.exp(seen.outputs[i, k]), np.sort(p)[::-1], atol=1e-6)


def test_log_probability_keeps_its_digits_near_one():
    logits = np.array([[[30.0, 0.0], [31.0, 0.0]]], np.float32)
    seen = observe(logits, np.zeros(2, int))
    np.testing.assert_allclose(seen.log_prob[:, 0], -np.exp([-30.0, -31.0]), rtol=1e-5)


@pytest.mark.parametrize("name", FAST)
def test_scores_do_not_depend_on_the_order_of_models_or_on_other_targets(split, name):
    shadow, member, target, context = split
    plain = score_targets(name, *split)
    few = score_targets(name, shadow, member, select(target, np.array([3, 1])), context)
    np.testing.assert_allclose(few, plain[:, [3, 1]], rtol=1e-12)
    assert plain.dtype == np.float64
    assert np.isfinite(plain).all()
    order = np.random.default_rng(0).permutation(member.shape[1])
    shuffled = score_targets(name, select(shadow, order), member[:, order], target, context)
    np.testing.assert_allclose(shuffled, plain, rtol=1e-6, atol=1e-9)


def test_missing_models_and_sides_are_left_out(split):
    shadow, member, target, context = split
    broken = shadow._replace(**{
        name: np.concatenate([part, np.full_like(part[:, :1], np.nan)], axis=1)
        for name, part in shadow._asdict().items()
    })  # fmt: skip
    extra = np.concatenate([member, np.ones((12, 1), bool)], axis=1)
    for name in FAST:
        expected = score_targets(name, *split)
        np.testing.assert_allclose(score_targets(name, broken, extra, target, context), expected, rtol=1e-6, atol=1e-9)
    sided = member.copy()
    sided[0], sided[1] = True, False
    for name, attack in NODE_ATTACKS.items():
        if name in ("g_base", "base", "global_mlp"):
            continue
        missing = np.isnan(score_targets(name, shadow, sided, target, context)).all(axis=1)
        expected = {"nothing": [False, False], "out": [True, False], "in and out": [True, True]}[attack.uses]
        assert missing[:2].tolist() == expected, name
        assert not missing[2:].any()


def _null_rows(attacks, permutations, nodes, shift=0.0):
    seen, member, context = simulate(nodes, 32, shift=shift, seed=7)
    rng = np.random.default_rng(8)
    for _ in range(permutations):
        member = rng.permuted(member, axis=1)
        yield compare_attacks(seen, member, context, attacks=attacks, replicates=100)


def test_every_attack_finds_a_signal_and_no_other():
    """Memberships permuted across models: no within-node AUC is off one half, and its interval covers that."""
    seen, member, context = simulate(150, 32, shift=3.0, seed=5)
    for row in compare_attacks(seen, member, context, attacks=SHORT, replicates=100):
        assert row.values["within_node_auc"] > (0.6 if row.attack == "entropy" else 0.8), row.attack
    null = list(_null_rows(SHORT, 8, 150))
    for j, name in enumerate(SHORT):
        values = np.array([rows[j].values["within_node_auc"] for rows in null])
        limits = [rows[j].intervals["within_node_auc"] for rows in null]
        assert abs(values.mean() - 0.5) < 0.004 + 3 * values.std(ddof=1) / np.sqrt(len(values)), name
        assert sum(low < 0.5 < high for low, high in limits) >= 6, name


@pytest.mark.slow
@pytest.mark.parametrize("name", NODE_ATTACKS)
def test_null_auc_is_one_half_and_its_intervals_cover(name):
    rows = [rows[0] for rows in _null_rows([name], 12 if name == "global_mlp" else 100, 400)]
    values = np.array([row.values["within_node_auc"] for row in rows])
    assert abs(values.mean() - 0.5) < 0.004
    for figure in rows[0].values:
        if figure.endswith("auc"):
            share = np.mean([row.intervals[figure][0] < 0.5 < row.intervals[figure][1] for row in rows])
            assert share > 0.87, figure


@pytest.mark.parametrize(
    "name", [name if name in SHORT[:1] else pytest.param(name, marks=pytest.mark.slow) for name in FAST]
)
def test_error_counts_are_binomial_under_the_null(name):
    """Variance ratio of theory 1.4, for every attack and each rule that decides it."""
    nodes = 4000
    seen, _, _ = simulate(nodes, 64, shift=0.0, masks=1, seed=9)
    member = np.random.default_rng(9).random((nodes, 64)) < 0.5
    context = Context(np.full(nodes, 0.5))
    for rule in ("fixed_fpr", "likelihood") if NODE_ATTACKS[name].log_ratio else ("fixed_fpr",):
        counts = attack_counts(name, seen, member, context, AttackConfig(rule=rule, level=0.2))
        ok = counts.auditable
        n = (counts.n_in + counts.n_out)[ok]
        share = (counts.said_member & counts.counted).sum(axis=1)[ok] / n
        own = share * (1 - share) * n / (n - 1)  # unbiased for the node's p(1 - p)
        binomial = np.mean(own / counts.n_out[ok] + own / counts.n_in[ok])
        ratio = np.var((counts.fp / counts.n_out + counts.fn / counts.n_in)[ok]) / binomial
        noise = 3 * np.sqrt(2 / nodes)
        assert 0.95 - noise < ratio < 1.07 + noise, rule


def test_cross_fit_scores_each_half_by_the_other():
    seen, member, context = simulate(8, 16)
    for paired in (False, True):
        odd = halves(16, paired)
        scores = cross_fit("likelihood_ratio", seen, member, context, paired)
        for half in (odd, ~odd):
            alone = score_targets(
                "likelihood_ratio", select(seen, ~half), member[:, ~half], select(seen, half), context
            )
            np.testing.assert_array_equal(scores[:, half], alone)
    assert not np.array_equal(halves(16), halves(16, paired=True))


def test_global_mlp_is_seeded_and_learns():
    seen, member, context = simulate(400, 16, shift=4.0, seed=11)
    arguments = select(seen, np.arange(12)), member[:, :12], select(seen, np.arange(12, 16))
    first = global_mlp(*arguments, context, steps=150)
    few, second, other = (global_mlp(*arguments, context._replace(seed=seed), steps=5) for seed in (0, 0, 1))
    np.testing.assert_array_equal(few, second)
    assert not np.array_equal(few, other)
    inside = member[:, 12:]
    assert first[inside].mean() > first[~inside].mean() + 0.5


def test_bad_arguments(split):
    shadow, member, target, context = split
    for call, words in (
        (lambda: score_targets("best", *split), "attack must"),
        (lambda: score_targets("base", shadow, member[:, :3], target, context), "member must"),
        (lambda: score_targets("base", shadow, member, observe(np.zeros((1, 2, 3)), np.zeros(2, int)), context),
         "target must"),
        (lambda: attack_counts("loss", shadow, member, context, AttackConfig(rule="bayes")), "attack.rule must"),
        (lambda: halves(7, paired=True), "count must"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            call()


def test_base_is_the_bayes_rule_of_a_finite_world():
    """Log Λ of a two-output channel where training raises p(W) by its likelihood: enumerated, not retyped."""
    prob = np.array([0.2, 0.5, 0.9])  # true-class probability of three possible models
    before = np.array([0.5, 0.3, 0.2])  # their chances without the node
    after = before * prob / (before * prob).sum()  # and with it
    logits = np.log(np.stack([prob, 1 - prob], axis=-1)).astype(np.float32)[:, None, :]
    repeats = np.repeat(logits, (before * 10).astype(int), axis=0)
    shadow, target = observe(repeats, np.array([0])), observe(logits, np.array([0]))
    score = score_targets("base_offline", shadow, np.zeros((1, 10), bool), target, Context(np.array([0.5])))
    np.testing.assert_allclose(score[0], np.log(after / before), atol=1e-6)
    assert abs(logsumexp(score[0] + np.log(before))) < 1e-6
