"""The plan against enumeration, against the attack's own counting, and against draws of the sampler."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from jaxaudit.bmp import functional_limits
from jaxaudit.graph.attacks import RULES, AttackConfig, count_errors
from jaxaudit.graph.data import csbm
from jaxaudit.graph.needed import chance_auditable, expected_width, models_auditable, models_width
from jaxaudit.graph.plan import PlanConfig, expected_prior_auc, format_plan, plan_audit, write_plan
from jaxaudit.graph.sampling import SamplerConfig, draw_samples
from jaxaudit.graph.shadow import ShadowConfig
from jaxaudit.runtime.checks import InputError

GRAPH = csbm(nodes=80, classes=2, features=2, mean_degree=3, seed=1)
SNOWBALL = SamplerConfig(ratio=0.3, seeds_per_class=2, fanout=2)
PAIRED = SamplerConfig("uniform", 0.5, paired=True)


@pytest.fixture(scope="module")
def plan():
    return plan_audit(GRAPH, SNOWBALL, shadow=ShadowConfig(count=24, prior_draws=4000))


def audited(rule, member, paired=False):
    """Which nodes the attack itself can audit."""
    statistic = np.random.default_rng(0).normal(size=member.shape)
    return count_errors(statistic, member, AttackConfig(rule), np.full(len(member), 0.5), paired).auditable


@pytest.mark.parametrize(("rule", "count"), [*product(RULES, (3, 4, 9, 10))])
def test_chance_equals_enumeration_through_the_attack(rule, count):
    member = np.array(list(product((False, True), repeat=count)))
    ok = audited(rule, member)
    for gamma in (0.0, 0.07, 0.5, 0.8, 1.0):
        weight = (gamma ** member.sum(axis=1)) * ((1 - gamma) ** (~member).sum(axis=1))
        assert chance_auditable(rule, count, np.array([gamma]))[0] == pytest.approx(weight[ok].sum(), abs=1e-12)


@pytest.mark.parametrize(("rule", "pairs"), [*product(RULES, (1, 2, 3, 4))])
def test_chance_in_pairs_equals_enumeration_through_the_attack(rule, pairs):
    first = np.array(list(product((False, True), repeat=pairs)))
    member = np.stack([first, ~first], axis=2).reshape(len(first), -1)
    chance = chance_auditable(rule, 2 * pairs, np.array([0.5]), paired=True)[0]
    assert chance == audited(rule, member, paired=True).mean()


@pytest.mark.parametrize("rule", ["fixed_fpr", "likelihood"])
@pytest.mark.parametrize("paired", [False, True])
def test_needed_models_are_the_fewest(rule, paired):
    gamma = np.full(1, 0.5) if paired else np.array([0.0, 1e-4, 0.03, 0.5, 0.9, 0.999, 1.0])
    needed = models_auditable(rule, gamma, 0.9, paired)
    np.testing.assert_array_equal(np.isinf(needed), (gamma == 0) | (gamma == 1))
    some = np.isfinite(needed)
    for k, g in zip(needed[some].astype(int), gamma[some], strict=True):
        around = chance_auditable(rule, np.arange(2, k + 1, 2)[:100], np.array([g]), paired)
        assert (np.diff(around) >= -1e-12).all()  # more models never hurt
        assert chance_auditable(rule, k, np.array([g]), paired)[0] >= 0.9
        assert chance_auditable(rule, k - 1, np.array([g]), paired)[0] < 0.9


def realised_width(n_out, n_in, fpr, tpr, level, rng):
    limits = functional_limits(rng.binomial(n_out, fpr), n_out, rng.binomial(n_in, 1 - tpr), n_in, (1 + level) / 2)
    return limits.r_upper - limits.r_lower


@pytest.mark.parametrize(
    ("n_out", "n_in", "tolerance"), [(150, 150, 0.05), (40, 700, 0.15), (3000, 60, 0.06), (4000, 25_000, 0.05)]
)
def test_width_equals_the_mean_of_simulated_ones(n_out, n_in, tolerance):
    rng = np.random.default_rng(0)
    widths = realised_width(np.full(1500, n_out), np.full(1500, n_in), 0.1, 0.3, 0.9, rng)
    assert expected_width(n_out, n_in) == pytest.approx(widths.mean(), rel=tolerance)


def test_width_at_many_trials_is_the_delta_method():
    n = np.array([2000, 8000, 40_000])
    sd = np.sqrt(0.9 / 0.1 / n + 0.7 / 0.3 / n)  # of log(TPR / FPR)
    np.testing.assert_allclose(expected_width(n, n), 2 * stats.norm.ppf(0.95) * sd, rtol=0.04)


def test_width_falls_in_both_counts():
    grid = np.geomspace(1, 1e6, 60)
    width = expected_width(grid[:, None], grid)
    assert (np.diff(width, axis=0) <= 1e-12).all()
    assert (np.diff(width, axis=1) <= 1e-12).all()
    assert np.isinf(expected_width(np.array([0.5, 5.0]), np.array([5.0, 0.5]))).all()
    assert not np.allclose(width, width.T)  # the sides are not alike


@pytest.mark.parametrize("rule", ["fixed_fpr", "likelihood"])
def test_models_for_a_width_are_the_fewest(rule):
    gamma = np.array([0.02, 0.3, 0.5, 0.97])
    share = 1 if rule == "fixed_fpr" else 0.5
    needed = models_width(rule, gamma, 0.8)
    for k, enough in ((needed, True), (needed - 1, False)):
        width = expected_width(share * k * (1 - gamma), share * k * gamma)
        assert ((width <= 0.8) == enough).all()
    assert np.isinf(models_width(rule, np.array([0.0, 1.0]), 0.8)).all()
    assert (models_width(rule, gamma, 0.4) > needed).all()


def test_the_plan_foretells_what_draws_give(plan):
    """Auditable nodes and interval widths at the planned number of models, over many realised ensembles."""
    rng = np.random.default_rng(1)
    member = draw_samples(GRAPH, SNOWBALL, 7, 24 * 200).nodes.reshape(200, 24, 80).transpose(2, 0, 1)
    found = np.stack([audited("fixed_fpr", member[:, j]) for j in range(200)])
    p = plan.table.chance_auditable.to_numpy()
    spread = np.sqrt(np.maximum(p * (1 - p), 0.005) / 200)
    assert np.abs((found.mean(axis=0) - p) / spread).max() < 4.5
    nodes = plan.summary["nodes"]
    assert nodes["expected_auditable"] == pytest.approx(found.sum(axis=1).mean(), abs=0.5)
    n_in = member.sum(axis=2)
    assert np.abs(n_in.mean(axis=1) - plan.table.expected_in).max() < 4.5 * np.sqrt(6 / 200 + 144 / 4000)
    # Widths at ten times the models, where counts no longer scatter much.
    gamma = plan.table.prior.to_numpy()
    n_in = rng.binomial(2000, gamma, (20, 80))
    width = realised_width(2000 - n_in.ravel(), n_in.ravel(), 0.1, 0.3, 0.9, rng).reshape(20, 80).mean(axis=0)
    usual = (gamma > 0.05) & (gamma < 0.9)
    assert usual.sum() > 60
    foretold = expected_width(2000 * (1 - gamma), 2000 * gamma)
    np.testing.assert_allclose(foretold[usual], width[usual], rtol=0.2)
    assert foretold[usual].mean() == pytest.approx(width[usual].mean(), rel=0.04)


def test_half_of_the_nodes_reach_the_wanted_width():
    rng = np.random.default_rng(2)
    for gamma in (0.1, 0.5, 0.8):
        k = int(models_width("fixed_fpr", np.array([gamma]), 0.7)[0])
        n_in = rng.binomial(k, gamma, 1000)
        width = realised_width(k - n_in, n_in, 0.1, 0.3, 0.9, rng)
        assert width.mean() == pytest.approx(0.7, rel=0.06)
        assert 0.4 < (width <= 0.7).mean() < 0.65


def test_table_and_summary_agree(plan):
    table, summary = plan.table, plan.summary
    assert len(table) == 80
    np.testing.assert_allclose(table.expected_in + table.expected_out, 24)
    np.testing.assert_allclose(table.expected_width, expected_width(table.expected_out, table.expected_in))
    assert (table.models_width >= table.models_auditable).all()
    assert (table.models_width_low <= table.models_width).all()
    assert (table.models_width <= table.models_width_high).all()
    assert (table.models_width_low < table.models_width_high).any()
    for name in ("models_auditable", "models_width"):
        assert summary[name]["all"] == table[name].max()
        for key, share in (("q50", 0.5), ("q90", 0.9)):
            assert (table[name] <= summary[name][key]).mean() >= share
            assert (table[name] < summary[name][key]).mean() < share
    assert summary["curve"]["4096"]["within_width"] == (table.models_width <= 4096).mean()
    shares = [entry["auditable"] for entry in summary["curve"].values()]
    assert (np.diff(shares) >= 0).all()
    short = int((table.models_auditable > 24).sum())
    assert f"{short} of 80 nodes need more than 24 models for a chance of 0.95 to be audited" in plan.warnings


def test_prior_auc_is_that_of_nodes_and_models(plan):
    gamma = plan.table.prior.to_numpy()
    less = (gamma[:, None] > gamma) + (gamma[:, None] == gamma) / 2
    weight = gamma[:, None] * (1 - gamma)
    assert expected_prior_auc(gamma) == pytest.approx((less * weight).sum() / weight.sum())
    from sklearn.metrics import roc_auc_score

    member = draw_samples(GRAPH, SNOWBALL, 3, 400).nodes
    auc = roc_auc_score(member.ravel(), np.tile(gamma, 400))
    assert plan.summary["prior_only_auc"] == pytest.approx(auc, abs=0.01)
    assert np.isnan(expected_prior_auc(np.zeros(3)))


def some_never(graph, rng):
    return np.flatnonzero(np.r_[True, False, rng.random(graph.num_nodes - 2) < 0.5])


some_never.prior = lambda graph: np.r_[1.0, 0.0, np.full(graph.num_nodes - 2, 0.5)]


def test_out_of_reach_and_out_of_sight():
    exact = plan_audit(GRAPH, some_never)
    assert exact.table.reach.tolist() == ["never", "never", *["yes"] * 78]
    assert np.isinf(exact.table.models_auditable[:2]).all()
    assert exact.summary["nodes"]["never"] == 2
    assert exact.summary["models_auditable"]["all"] is None
    assert any("no number of models audits them" in text for text in exact.warnings)
    assert "out of reach: 2 nodes" in format_plan(exact)
    assert exact.config["sampler"]["name"] == "custom"
    estimated = plan_audit(GRAPH, lambda graph, rng: some_never(graph, rng), shadow=ShadowConfig(prior_draws=500))
    assert estimated.table.reach.tolist() == ["beyond", "beyond", *["yes"] * 78]
    end = stats.beta.ppf(0.975, 1, 500)  # no draw in 500
    np.testing.assert_array_equal(
        estimated.table.models_auditable[:2], models_auditable("fixed_fpr", np.array([1 - end, end]))
    )
    least = int(estimated.table.models_auditable[:2].min())
    assert f"2 nodes, at least {least} models each" in format_plan(estimated)
    assert np.isinf(estimated.table.models_width_high[:2]).all()


def test_pairs_need_fewer_models():
    pairs, single = (
        plan_audit(GRAPH, sampler, shadow=ShadowConfig(count=6)) for sampler in (PAIRED, SamplerConfig("uniform", 0.5))
    )
    assert pairs.summary["models_auditable"]["all"] == 6
    assert pairs.summary["nodes"]["expected_auditable"] == 80
    assert single.summary["models_auditable"]["all"] == 11
    for rule in RULES:
        assert plan_audit(GRAPH, PAIRED, attack=AttackConfig(rule)).summary["models_width"]["all"] % 2 == 0


def test_files_and_text(plan, tmp_path):
    paths = write_plan(plan, tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["plan.csv", "plan.json"]
    pd.testing.assert_frame_equal(pd.read_csv(paths["table"]), plan.table, check_exact=True, check_dtype=False)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    content = json.loads(paths["plan"].read_text(), parse_constant=refuse)
    assert content["summary"] == plan.summary
    assert content["config"]["shadow"] == {"count": 24, "prior_draws": 4000}
    text = format_plan(plan)
    assert max(map(len, text.splitlines())) <= 120
    assert "snowball" in text
    assert str(plan.summary["models_width"]["q90"]) in text
    with pytest.raises(InputError, match="folder must be writable"):
        write_plan(plan, paths["plan"])


def test_an_undefined_auc_is_null_and_said_so(tmp_path):
    everyone = plan_audit(GRAPH, lambda graph, rng: range(graph.num_nodes), shadow=ShadowConfig(prior_draws=100))
    assert everyone.summary["prior_only_auc"] is None
    assert "prior alone: AUC undefined" in format_plan(everyone)
    text = write_plan(everyone, tmp_path)["plan"].read_text()
    assert "NaN" not in text
    assert json.loads(text)["summary"]["prior_only_auc"] is None
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_plan(replace(everyone, summary={"other": np.nan}), tmp_path)


def nobody(graph, rng):
    return []


def test_a_sampler_that_draws_nothing_is_refused_as_an_audit_does():
    with pytest.raises(InputError, match=r"sampler.path must draw nodes, got none in 100 draws of .*:nobody"):
        plan_audit(GRAPH, nobody, shadow=ShadowConfig(prior_draws=100))

    def stated(graph, rng):
        return []

    stated.prior = lambda graph: np.zeros(graph.num_nodes)
    with pytest.raises(InputError, match=r"sampler.path must draw nodes, got none in any draws of .*stated"):
        plan_audit(GRAPH, stated)


def test_one_seed_one_plan_and_shared_priors(plan, tmp_path):
    settings = {"shadow": ShadowConfig(count=24, prior_draws=4000), "cache_dir": tmp_path}
    again = plan_audit(GRAPH, SNOWBALL, **settings)
    pd.testing.assert_frame_equal(again.table, plan.table, check_exact=True)
    (entry,) = tmp_path.iterdir()
    assert entry.name.startswith("priors-")
    wider = plan_audit(GRAPH, SNOWBALL, plan=PlanConfig(width=2), **settings)
    assert list(tmp_path.iterdir()) == [entry]
    assert wider.summary["models_width"]["q50"] < plan.summary["models_width"]["q50"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: PlanConfig(width=0), "plan.width must be"),
        (lambda: PlanConfig(level=1.0), "plan.level must be"),
        (lambda: PlanConfig(tpr=0), "plan.tpr must be"),
        (lambda: PlanConfig(chance=1.0), "plan.chance must be"),
        (lambda: plan_audit("cora"), "graph must be a Graph"),
        (lambda: plan_audit(GRAPH, seed=-1), "seed must be"),
        (lambda: plan_audit(GRAPH, SamplerConfig(ratio=0.001)), "sampler.ratio"),
        (lambda: plan_audit(GRAPH, PAIRED, shadow=ShadowConfig(count=5)), "shadow.count must be even"),
        (lambda: plan_audit(GRAPH, "bfs"), "sampler must be one of"),
    ],
)
def test_bad_settings(call, words):
    with pytest.raises(InputError, match=words):
        call()
