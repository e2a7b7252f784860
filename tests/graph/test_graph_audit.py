"""The pipeline end to end on a small graph, its store, and one device against four."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxaudit.bmp import functional_limits
from jaxaudit.evaluate import auc
from jaxaudit.graph.attacks import AttackConfig, node_statistic
from jaxaudit.graph.auc import attack_auc
from jaxaudit.graph.audit import BMPConfig, EdgeConfig, audit_graph
from jaxaudit.graph.data import csbm, digits_knn, graph_from_arrays, load_npz
from jaxaudit.graph.noise import NoiseConfig
from jaxaudit.graph.sampling import Priors, SamplerConfig, draw_samples
from jaxaudit.graph.shadow import ShadowConfig, TrainConfig, train_and_query
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.progress import Progress
from jaxaudit.runtime.store import Store

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data" / "graphs"
GRAPH = csbm(nodes=120, classes=3, features=8, mean_degree=4, signal=0.6, seed=5)
SMALL = {
    "sampler": SamplerConfig(ratio=0.4, seeds_per_class=3),
    "train": TrainConfig(epochs=30, hidden=8),
    "shadow": ShadowConfig(count=16, prior_draws=400),
}

LEAN = BMPConfig(groups=(), resampling="none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def result(folder):
    return audit_graph(GRAPH, cache_dir=folder, progress=Progress(), **SMALL)


def test_table(result):
    table = result.table
    np.testing.assert_array_equal(table.node, np.arange(120))
    np.testing.assert_array_equal(table.degree, GRAPH.degree)
    assert (table.n_in + table.n_out == 16).all()
    ok = table.auditable.to_numpy()
    assert ok.any()
    assert table.loc[~ok, ["fp", "fn", "r_q50", "r_lower", "eps_R_q50"]].isna().all().all()
    assert table.loc[ok, ["fp", "fn", "r_q50", "r_lower", "eps_R_q50", "auc_standardised"]].notna().all().all()
    for x in ("r", "l", "eps_R", "eps_L"):
        assert (table.loc[ok, f"{x}_q05"] < table.loc[ok, f"{x}_q50"]).all()
        assert (table.loc[ok, f"{x}_q50"] < table.loc[ok, f"{x}_q95"]).all()
    t = table[ok]
    limits = functional_limits(t.fp.to_numpy(int), t.n_out.to_numpy(), t.fn.to_numpy(int), t.n_in.to_numpy())
    np.testing.assert_allclose(t.r_lower, limits.r_lower, atol=0.02)
    odds = np.log(t.prior / (1 - t.prior))
    inner = (t.prior > 0) & (t.prior < 1)
    np.testing.assert_allclose((t.eps_R_q50 - t.r_q50)[inner], odds[inner], atol=1e-5)
    np.testing.assert_allclose((t.eps_L_q50 - t.l_q50)[inner], -odds[inner], atol=1e-5)
    worse = t.fp / t.n_out + t.fn / t.n_in > 1
    np.testing.assert_array_equal(t.worse_than_chance, worse)


def test_summary_and_evidence(result):
    summary = result.summary
    table = result.table
    assert summary["shadows"]["count"] == summary["shadows"]["trained"] == 16
    assert summary["shadows"]["sizes"]["quota"] == 48
    assert summary["nodes"]["auditable"] == int(table.auditable.sum())
    attack = summary["global_attack"]
    ok = table[table.auditable]
    assert attack["decisions"] == ok.n_in.sum() + ok.n_out.sum()
    assert abs(attack["tpr"] - (1 - ok.fn.sum() / ok.n_in.sum())) < 1e-12
    assert abs(attack["fpr"] - ok.fp.sum() / ok.n_out.sum()) < 1e-12
    assert abs(attack["accuracy"] - (1 - (ok.fn.sum() + ok.fp.sum()) / attack["decisions"])) < 1e-12
    assert abs(summary["limits"]["r_lower"]["median"] - ok.r_lower.median()) < 1e-9
    assert abs(summary["limits"]["share_r_above_0.1"] - (ok.r_lower > 0.1).mean()) < 1e-12
    within = summary["attack_auc"]["within_node"]
    assert abs(within["likelihood_ratio"] - table.auc_likelihood_ratio.mean()) < 1e-9
    assert within["likelihood_ratio_ci"][0] <= within["likelihood_ratio"] <= within["likelihood_ratio_ci"][1]
    assert 0.5 < summary["prior_only_auc"] < 1
    assert summary["pooled"]["r"]["q05"] < summary["pooled"]["r"]["q95"]
    evidence = result.evidence
    assert evidence["statistic"].shape == evidence["member"].shape == (120, 16)
    np.testing.assert_allclose(evidence["fpr"], table.fp / table.n_out)
    assert evidence["member"].sum() / 16 == summary["shadows"]["sizes"]["mean"]
    assert set(result.timings) >= {"samples", "priors", "train", "infer", "attack", "posterior"}
    json.dumps([result.summary, result.config, result.data, list(result.warnings)])  # plain values only


def test_store_saves_trainings(result, folder):
    for change in (
        {"edges": EdgeConfig(inference="none")},
        {"attack": AttackConfig(rule="likelihood", statistic="margin")},
        {"bmp": BMPConfig(definition="bayes_factor")},
        {},
    ):
        again = audit_graph(GRAPH, cache_dir=folder, **SMALL, **change)
        assert again.summary["shadows"]["trained"] == 0
    assert again.table.equals(result.table)
    assert again.summary["attack_auc"] == result.summary["attack_auc"]
    grown = audit_graph(GRAPH, cache_dir=folder, **{**SMALL, "shadow": ShadowConfig(count=20, prior_draws=400)})
    assert grown.summary["shadows"]["trained"] == 4


def test_targets_are_further_models_that_the_shadows_judge(result, folder):
    shadow = ShadowConfig(count=16, prior_draws=400, targets=4)
    settings = {**SMALL, "shadow": shadow, "bmp": LEAN, "attack": AttackConfig(compare=("loss", "rmia", "g_base"))}
    found = audit_graph(GRAPH, cache_dir=folder, **settings)
    assert found.table.equals(result.table[found.table.columns])  # counts and AUCs are the shadows'
    assert found.summary["shadows"]["count"] == 16
    drawn = draw_samples(GRAPH, SMALL["sampler"], 0, 20)
    everyone = train_and_query(GRAPH, drawn, sampler=SMALL["sampler"], train=SMALL["train"], store=Store(folder))
    assert everyone.trained == 0
    rows = {row["attack"]: row for row in found.summary["attacks"]}
    assert list(rows) == ["rmia", "g_base", "loss"]
    statistic = node_statistic(everyone.logits, GRAPH.labels, "loss")
    by_target = [auc(statistic[:, k], drawn.nodes[k]) for k in range(16, 20)]
    assert rows["loss"]["target_auc"] == pytest.approx(np.mean(by_target), abs=1e-6)
    assert {row["rule"] for row in found.summary["rules"]} == {"likelihood", "bayes", "fixed_fpr", "prior_only"}
    alone = audit_graph(GRAPH, cache_dir=folder, **{**settings, "attack": AttackConfig(compare=())})
    assert alone.summary["rules"] == []


def test_what_the_attacker_sees_and_the_noise_reach_the_statistic(folder):
    lean = {"bmp": LEAN, "cache_dir": folder}
    label = audit_graph(GRAPH, **SMALL, attack=AttackConfig(observes="label", compare=()), **lean)
    assert np.unique(label.evidence["statistic"]).size == 2  # right or wrong
    noisy = audit_graph(GRAPH, **SMALL, noise=NoiseConfig(outputs=2.0), attack=AttackConfig(compare=("all",)), **lean)
    assert noisy.summary["shadows"]["trained"] == 0
    assert "logits carry Gaussian noise of sd 2" in " ".join(noisy.warnings)
    assert "g_base" not in [row["attack"] for row in noisy.summary["attacks"]]  # it would see through the noise
    with pytest.raises(InputError, match=r"attack\.compare must leave g_base out"):
        audit_graph(GRAPH, **SMALL, noise=NoiseConfig(outputs=2.0), attack=AttackConfig(compare=("g_base",)))


def test_a_function_samples_and_pairs_need_an_even_number():
    def third(graph, rng):
        return np.flatnonzero(rng.random(graph.num_nodes) < 1 / 3)

    third.prior = lambda graph: np.full(graph.num_nodes, 1 / 3)
    quick = {"train": TrainConfig(epochs=2, hidden=4), "bmp": LEAN, "attack": AttackConfig(compare=())}
    found = audit_graph(GRAPH, sampler=third, shadow=ShadowConfig(count=8), **quick)
    assert found.summary["sampling"]["prior_exact"]
    assert (found.table.prior == 1 / 3).all()
    assert "user" in found.summary["bmdp"]["meaning"] or "custom" in found.summary["bmdp"]["meaning"]
    pairs = SamplerConfig("uniform", 0.5, paired=True)
    with pytest.raises(InputError, match=r"shadow\.count must be even"):
        audit_graph(GRAPH, sampler=pairs, shadow=ShadowConfig(count=9), **quick)
    even = audit_graph(GRAPH, sampler=pairs, shadow=ShadowConfig(count=8), **quick)
    assert (even.table.n_in == 4).all()


@pytest.mark.devices
def test_no_leak_without_training():
    """Untrained models know nothing: every within-node AUC interval holds one half."""
    blind = audit_graph(
        GRAPH, sampler=SamplerConfig("uniform", 0.5), train=TrainConfig(epochs=0, hidden=8),
        shadow=ShadowConfig(count=16), edges=EdgeConfig(inference="full"),
    )  # fmt: skip
    low, high = blind.summary["attack_auc"]["within_node"]["standardised_ci"]
    assert low - 0.02 < 0.5 < high + 0.02
    assert blind.summary["prior_only_auc"] == 0.5
    assert blind.summary["prior_lower_bound"]["eps_R"] == 0
    assert blind.summary["sampling"]["prior_exact"]


def test_odd_graphs_warn_and_do_not_crash():
    edges = np.array([[0, 1], [1, 2]])
    graph = graph_from_arrays(np.eye(24), np.arange(24) % 2, edges)
    sparse_run = audit_graph(
        graph, sampler=SamplerConfig(ratio=0.5, seeds_per_class=1), train=TrainConfig(epochs=2, hidden=4),
        shadow=ShadowConfig(count=4, prior_draws=50), attack=AttackConfig(rule="bayes"),
    )  # fmt: skip
    text = " ".join(sparse_run.warnings)
    for words in ("isolated", "ran out of frontier", "in none of the 4 samples", "not auditable"):
        assert words in text
    assert len(sparse_run.table) == 24
    broken = audit_graph(
        graph, sampler=SamplerConfig("uniform", 0.5), train=TrainConfig(epochs=2, hidden=4, learning_rate=1e30),
        shadow=ShadowConfig(count=4),
    )  # fmt: skip
    assert "diverged" in " ".join(broken.warnings)
    assert not broken.table.auditable.any()


def test_prior_of_zero_or_one_is_not_believed():
    gamma = np.array([0.0, 0.5, 1.0])
    sampled = Priors(gamma, np.array([0, 0.4, 0.9]), np.array([0.1, 0.6, 1.0]), exact=False, draws=30)
    np.testing.assert_array_equal(sampled.usable, [0.1, 0.5, 0.9])
    np.testing.assert_array_equal(Priors(gamma, gamma, gamma, exact=True, draws=0).usable, gamma)


def test_bad_settings():
    for options, words in (
        ({"edges": EdgeConfig(train="traversed"), "sampler": SamplerConfig("uniform")}, "edges.train"),
        ({"posterior": "guess"}, "posterior must be one of"),
        ({"model": "transformer"}, "model must be one of"),
        ({"seed": -1}, "seed"),
        ({"sampler": SamplerConfig(ratio=0.001)}, "sampler.ratio"),
    ):
        with pytest.raises(InputError, match=words):
            audit_graph(GRAPH, **options)
    for call in (lambda: EdgeConfig(train="x"), lambda: EdgeConfig(inference="x"), lambda: BMPConfig(definition="x"),
                 lambda: BMPConfig(prior_scale2=0.0), lambda: audit_graph("cora")):  # fmt: skip
        with pytest.raises(InputError):
            call()


CODE = """
import jax, numpy as np, sys
jax.config.update("jax_num_cpu_devices", 4)
from jaxaudit.graph.data import csbm
from jaxaudit.graph.sampling import SamplerConfig, draw_samples, estimate_priors
from jaxaudit.graph.shadow import TrainConfig, train_and_query
from jaxaudit.runtime.devices import ensemble_mesh
graph = csbm(nodes=60, classes=3, features=6, mean_degree=4, seed=2)
config = SamplerConfig(ratio=0.5, seeds_per_class=3)
assert len(jax.devices()) == 4
seen = []
for devices in (1, 2, 4):
    mesh = ensemble_mesh(devices)
    samples = draw_samples(graph, config, 0, 6, "traversed", mesh=mesh)
    priors = estimate_priors(graph, config, 0, 100, mesh=ensemble_mesh(1 if devices == 1 else 4))
    models = train_and_query(graph, samples, sampler=config, train=TrainConfig(epochs=10, hidden=8), mesh=mesh,
                             train_edges="traversed", chunk=2)
    seen.append((samples.nodes, samples.edges, priors.gamma, models.logits))
for other in seen[1:]:
    for a, b in zip(seen[0], other):
        np.testing.assert_array_equal(a, b)
print("identical")
"""


def test_one_two_and_four_devices_are_bit_identical():
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax_cache")}
    run = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, env=env, timeout=300, check=False
    )
    assert run.stdout.strip() == "identical", run.stderr[-2000:]


real = pytest.mark.skipif(not SHARED.is_dir(), reason="shared data sets are not there")


@pytest.mark.slow
@real
@pytest.mark.parametrize(
    ("name", "ratio", "train", "least", "standardised"),
    [
        ("snowball", 0.5, "induced", 0.78, 0.0), ("snowball", 0.5, "traversed", 0.77, 0.0),
        ("uniform", 0.5, "induced", 0.74, 0.0), ("uniform", 0.1, "induced", 0.93, 0.95),
    ],
)  # fmt: skip
def test_cora_figures_and_the_permuted_null(name, ratio, train, least, standardised):
    found = audit_graph(
        load_npz(SHARED / "cora.npz"), sampler=SamplerConfig(name, ratio), edges=EdgeConfig(train=train),
        shadow=ShadowConfig(prior_draws=2000),
    )  # fmt: skip
    within = found.summary["attack_auc"]["within_node"]
    assert within["likelihood_ratio"] >= least
    assert within["standardised"] >= standardised
    if ratio == 0.5:
        assert found.summary["shadows"]["test_accuracy"]["mean"] >= 0.76
    assert abs(found.summary["prior_only_auc"] - (0.79 if name == "snowball" else 0.5)) < 0.015
    covered, values = [], []
    for seed in range(6):
        shuffled = np.random.default_rng(seed).permuted(found.evidence["member"], axis=1)
        null = attack_auc(found.evidence["statistic"], shuffled, np.full(2708, 0.5), replicates=150)
        covered.append([low < 0.5 < high for low, high in (null.likelihood_ratio_ci, null.standardised_ci)])
        values.append((null.likelihood_ratio, null.standardised))
    assert np.sum(covered, axis=0).min() >= 4  # 95 % intervals, six permutations
    assert np.abs(np.mean(values, axis=0) - 0.5).max() < 0.004  # leave-one-out ratios: .44


@pytest.mark.slow
def test_default_audit_of_the_digits():
    found = audit_graph(digits_knn())
    assert found.summary["shadows"]["test_accuracy"]["mean"] > 0.9
    assert found.summary["attack_auc"]["within_node"]["likelihood_ratio"] > 0.6
    assert found.summary["nodes"]["auditable"] > 1700
