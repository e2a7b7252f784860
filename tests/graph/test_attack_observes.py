"""Post-processed outputs: what each setting leaves, that no more is used, and that leakage only falls."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import softmax

from jaxaudit.graph import SamplerConfig, TrainConfig
from jaxaudit.graph.attacks import OBSERVES, Context, observe, post_process, select
from jaxaudit.graph.comparison import compare_attacks
from jaxaudit.graph.data import csbm, load_npz
from jaxaudit.graph.sampling import draw_samples
from jaxaudit.graph.shadow import train_and_query
from jaxaudit.runtime.checks import InputError


def loop(z, setting, topk):
    """Probabilities that the setting lets through, one output at a time."""
    p = softmax(z.astype(float))
    if setting == "topk":
        hidden = np.argsort(-p)[topk:]
        if hidden.size:
            p[hidden] = p[hidden].sum() / hidden.size
    if setting == "label":
        best = p.argmax()
        p = np.full(p.size, 0.1 / (p.size - 1))
        p[best] = 0.9
    return p


@pytest.mark.parametrize("setting", OBSERVES)
def test_post_processing_equals_a_loop(setting):
    logits = np.random.default_rng(0).normal(0, 3, (3, 4, 5)).astype(np.float32)
    for topk in (1, 2, 5, 9) if setting == "topk" else (2,):
        out = np.asarray(post_process(logits, setting, topk), float)
        for k in range(3):
            for i in range(4):
                np.testing.assert_allclose(softmax(out[k, i]), loop(logits[k, i], setting, topk), atol=1e-6)


def test_a_setting_uses_no_more_than_it_shows():
    """Outputs that agree in what is shown give one and the same statistic."""
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(0, 2, (1, 50, 6)).astype(np.float32), rng.integers(0, 6, 50)
    order = np.argsort(-logits, axis=-1)
    shuffled = logits.copy()
    for i in range(50):
        hidden = order[0, i, 2:]
        shuffled[0, i, hidden] = logits[0, i, rng.permutation(hidden)]
    for before, after, setting in (
        (logits, shuffled, "topk"), (logits, logits + 7, "probabilities"), (logits, 3 * shuffled, "label"),
    ):  # fmt: skip
        seen = [observe(z, labels, setting, 2) for z in (before, after)]
        for name in ("statistic", "log_prob", "confidence", "entropy", "modified_entropy", "outputs"):
            np.testing.assert_allclose(getattr(seen[0], name), getattr(seen[1], name), atol=2e-5)
    assert np.unique(observe(logits, labels, "label").statistic).size == 2  # right or wrong


def test_settings_keep_all_or_nothing_at_their_ends():
    logits, labels = np.random.default_rng(2).normal(size=(2, 9, 4)).astype(np.float32), np.arange(9) % 4
    whole = observe(logits, labels).statistic
    np.testing.assert_allclose(observe(logits, labels, "topk", 4).statistic, whole, atol=1e-6)
    np.testing.assert_allclose(observe(logits, labels, "topk", 3).statistic, whole, atol=1e-5)  # the rest is one class
    broken = logits.copy()
    broken[1, 3, 0] = np.nan
    for setting in OBSERVES:
        seen = observe(broken, labels, setting, 2)
        assert np.isnan(seen.statistic[3, 1])
        assert np.isfinite(seen.statistic[:, 0]).all()
    assert select(observe(logits, labels), np.array([1])).outputs.shape == (9, 1, 4)


def falls(logits, labels, member, attack="likelihood_ratio"):
    context = Context(np.full(labels.size, 0.5))
    auc = {}
    for setting in OBSERVES:
        seen = observe(logits, labels, setting, 2)
        row = compare_attacks(seen, member, context, attacks=[attack], replicates=0)[0]
        auc[setting] = row.values["within_node_auc"]
    assert all(after < before + 0.005 for before, after in pairwise(auc.values())), auc
    return auc


def test_leakage_falls_with_what_is_shown():
    rng = np.random.default_rng(3)
    member, labels = rng.random((150, 32)) < 0.5, rng.integers(0, 5, 150)
    logits = rng.normal(size=(32, 150, 5)) + rng.normal(size=(150, 5)) + 2 * (np.arange(5) == labels[:, None])
    logits += 1.5 * member.T[..., None] * (np.arange(5) == labels[:, None])
    auc = falls(logits.astype(np.float32), labels, member)
    assert auc["logits"] > auc["label"] + 0.05


def trained(graph, count, epochs):
    sampler = SamplerConfig("uniform", 0.5)
    samples = draw_samples(graph, sampler, 0, count)
    found = train_and_query(graph, samples, sampler=sampler, train=TrainConfig(epochs=epochs, hidden=16))
    return found.logits, graph.labels, samples.nodes.T


@pytest.mark.slow
def test_leakage_falls_on_a_trained_csbm():
    auc = falls(*trained(csbm(nodes=300, classes=4), 48, 100))
    assert auc["logits"] > auc["label"] > 0.49


@pytest.mark.slow
def test_leakage_falls_on_cora(shared_data):
    auc = falls(*trained(load_npz(shared_data / "graphs" / "cora.npz"), 32, 200))
    assert auc["logits"] > 0.7
    assert auc["logits"] > auc["label"] + 0.05


def test_bad_arguments():
    logits, labels = np.zeros((2, 3, 4), np.float32), np.zeros(3, int)
    for call, words in (
        (lambda: observe(logits, labels, "nothing"), "attack.observes must"),
        (lambda: observe(logits, labels, "topk", 0), "attack.topk must"),
        (lambda: observe(logits, labels[:2]), "labels must"),
        (lambda: observe(logits[0], labels), "logits must"),
        (lambda: observe(logits, labels, statistic="x"), "attack.statistic must"),
    ):
        with pytest.raises(InputError, match=words):
            call()
