"""Training against a naive loop, stored models, inference edges."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxaudit.graph import shadow_stages as stages
from jaxaudit.graph.attacks.g_base import contrast_queries, draw_design
from jaxaudit.graph.compact import whole
from jaxaudit.graph.data import csbm
from jaxaudit.graph.models import ModelConfig, build_model, entry_mask, graph_arrays, multiply
from jaxaudit.graph.noise import NoiseConfig, noisy_logits
from jaxaudit.graph.per_model import PerModel
from jaxaudit.graph.sampling import SamplerConfig, draw_samples
from jaxaudit.graph.shadow import ShadowConfig, TrainConfig, inference_mask, train_and_query
from jaxaudit.graph.structure import host_graph
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.devices import ensemble_mesh
from jaxaudit.runtime.keys import stream_key
from jaxaudit.runtime.store import Store

GRAPH = csbm(nodes=80, classes=3, features=6, mean_degree=4, seed=2)
SAMPLER = SamplerConfig(ratio=0.5, seeds_per_class=3)
TRAIN = TrainConfig(epochs=15, hidden=8)
COUNT = 6


@pytest.fixture(scope="module")
def samples():
    return draw_samples(GRAPH, SAMPLER, 0, COUNT)


@pytest.fixture(scope="module")
def ensemble(samples):
    return train_and_query(GRAPH, samples, sampler=SAMPLER, train=TRAIN)


def torch_adam(params, gradient, epochs, lr=0.01, decay=5e-4):
    """PyTorch's Adam with weight_decay, written out: decay enters the gradient."""
    m = v = jax.tree.map(jnp.zeros_like, params)
    for t in range(1, epochs + 1):
        g = jax.tree.map(lambda g, p: g + decay * p, gradient(params), params)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, v, g)
        params = jax.tree.map(
            lambda p, m, v, t=t: p - lr * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8), params, m, v
        )
    return params


@pytest.mark.devices
def test_training_equals_a_plain_loop(samples, ensemble):
    features, structure = graph_arrays(GRAPH)
    model = build_model("gcn", GRAPH.num_features, TRAIN.hidden, GRAPH.num_classes)
    k = 4
    members = np.flatnonzero(samples.nodes[k])
    weights = model.prepare(structure, entry_mask(structure, jnp.asarray(samples.edges[k])))

    @jax.jit
    def loss(params):
        logits = model.apply(params, features, structure, weights)[members]
        return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(GRAPH.labels[members])).mean()

    start = model.init(jax.random.fold_in(stream_key(0, "train"), k))
    params = torch_adam(start, jax.jit(jax.grad(loss)), TRAIN.epochs)
    inside = samples.nodes[k]
    u, v = GRAPH.edges
    both = jnp.asarray((inside[u] & inside[v]) | (~inside[u] & ~inside[v]))
    logits = model.apply(params, features, structure, model.prepare(structure, entry_mask(structure, both)))
    np.testing.assert_allclose(ensemble.logits[k], logits, rtol=2e-3, atol=2e-3)
    assert ensemble.losses[k] < loss(start)


def test_ensemble_shape_and_learning(samples, ensemble):
    assert ensemble.logits.shape == (COUNT, 80, 3)
    assert ensemble.trained == COUNT
    assert ensemble.finite.all()
    right = (ensemble.logits.argmax(-1) == GRAPH.labels)[samples.nodes].mean()
    assert right > 0.6


@pytest.mark.devices
def test_repeat_is_bit_identical_and_chunks_agree(samples, ensemble):
    again = train_and_query(GRAPH, samples, sampler=SAMPLER, train=TRAIN)
    np.testing.assert_array_equal(again.logits, ensemble.logits)
    wide = train_and_query(GRAPH, samples, sampler=SAMPLER, train=TRAIN, chunk=3)
    np.testing.assert_allclose(wide.logits, ensemble.logits, atol=0.05)


def test_segment_path_agrees_with_bcsr(samples, ensemble, monkeypatch):
    from jaxaudit.graph import propagate

    monkeypatch.setattr(propagate, "sparse", None)
    stages.compiled.cache_clear()
    other = train_and_query(GRAPH, samples, sampler=SAMPLER, train=TRAIN)
    stages.compiled.cache_clear()
    np.testing.assert_allclose(other.logits, ensemble.logits, atol=0.05)


def test_models_are_stored_one_by_one(samples, ensemble, tmp_path, monkeypatch):
    store = Store(tmp_path)
    few = draw_samples(GRAPH, SAMPLER, 0, 4)
    settings = {"sampler": SAMPLER, "train": TRAIN, "store": store}
    first = train_and_query(GRAPH, few, **settings)
    assert first.trained == 4
    more = train_and_query(GRAPH, samples, **settings)
    assert more.trained == 2  # the first four are reused
    np.testing.assert_array_equal(more.logits, ensemble.logits)
    assert train_and_query(GRAPH, samples, inference="full", **settings).trained == 0
    assert (
        train_and_query(
            GRAPH, samples, **{**settings, "train": TrainConfig(epochs=15, hidden=8, learning_rate=0.02)}
        ).trained
        == 6
    )
    next(tmp_path.glob("train-*.npz")).write_bytes(b"cut off")
    assert train_and_query(GRAPH, few, **settings).trained <= 1


def test_killed_run_resumes(samples, tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "_GROUP", 2)
    calls = []

    class KilledError(Exception):
        pass

    class Bar:
        def advance(self, items):
            calls.append(items)
            if len(calls) == 2:
                raise KilledError

    class Stage:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return Bar()

        def __exit__(self, *_):
            return False

    with pytest.raises(KilledError):
        train_and_query(GRAPH, samples, sampler=SAMPLER, train=TRAIN, store=Store(tmp_path), stage=Stage)
    resumed = train_and_query(GRAPH, samples, sampler=SAMPLER, train=TRAIN, store=Store(tmp_path))
    assert resumed.trained == COUNT - sum(calls)


def test_divergence_is_a_flag(samples):
    wild = train_and_query(GRAPH, samples, sampler=SAMPLER, train=TrainConfig(epochs=15, hidden=8, learning_rate=1e30))
    assert not wild.finite.any()


def test_inference_edges():
    nodes = np.array([True, True, False, False, True])
    edges = np.array([[0, 0, 1, 2], [1, 2, 4, 3]])
    walked = np.array([True, False, False, False])
    expected = {"split": [1, 0, 1, 1], "full": [1, 1, 1, 1], "none": [0, 0, 0, 0]}
    for setting, mask in expected.items():
        np.testing.assert_array_equal(inference_mask(nodes, edges, walked, setting, False), np.array(mask, bool))
    np.testing.assert_array_equal(inference_mask(nodes, edges, walked, "split", True), [True, False, False, True])


def test_bad_settings(samples):
    for call, words in (
        (lambda: ShadowConfig(count=3), "shadow.count must be"),
        (lambda: ShadowConfig(chunk=-1), "shadow.chunk"),
        (lambda: ShadowConfig(prior_draws=0), "shadow.prior_draws"),
        (lambda: TrainConfig(epochs=-1), "train.epochs"),
        (lambda: TrainConfig(hidden=0), "train.hidden"),
        (lambda: TrainConfig(learning_rate=0.0), "train.learning_rate"),
        (lambda: TrainConfig(weight_decay=-1.0), "train.weight_decay"),
        (lambda: ModelConfig("transformer"), "model"),
        (lambda: train_and_query(GRAPH, samples, sampler=SAMPLER, inference="some"), "edges.inference"),
    ):
        with pytest.raises(InputError, match=words):
            call()


def test_a_chunk_larger_than_the_ensemble_is_refused_before_any_work():
    with pytest.raises(InputError, match=r"shadow\.chunk must be in \[0, 4\], got 5"):
        ShadowConfig(count=4, chunk=5)


def test_noise_meets_queries_and_trains_nothing(samples, tmp_path):
    settings = {"sampler": SAMPLER, "train": TRAIN, "store": Store(tmp_path)}
    plain = train_and_query(GRAPH, samples, **settings)
    outputs = train_and_query(GRAPH, samples, noise=NoiseConfig(outputs=0.5), **settings)
    both = train_and_query(GRAPH, samples, noise=NoiseConfig(0.1, 0.5), **settings)
    assert (plain.trained, outputs.trained, both.trained) == (COUNT, 0, 0)
    base = stream_key(0, "noise-outputs")
    for k in range(COUNT):
        wanted = noisy_logits(jax.random.fold_in(base, k), jnp.asarray(plain.logits[k]), 0.5)
        np.testing.assert_allclose(outputs.logits[k], wanted, atol=1e-6)
    assert np.abs(both.logits - outputs.logits).max() > 0.01  # the weights' noise
    few = train_and_query(GRAPH, samples.part(slice(2)), noise=NoiseConfig(0.1, 0.5), **settings)
    np.testing.assert_array_equal(few.logits, both.logits[:2])
    assert both.epochs.tolist() == [TRAIN.epochs] * COUNT


def test_contrasts_on_the_padded_graph_are_those_on_the_graph_itself(samples):
    design = draw_design(np.full(GRAPH.num_nodes, 0.5), 0, samples=2)
    untrained = TrainConfig(epochs=0, hidden=8)  # parameters are then the initial ones
    found = train_and_query(GRAPH, samples, sampler=SAMPLER, train=untrained, design=design).contrast
    assert found.shape == (COUNT, GRAPH.num_nodes, 2)
    model = build_model("gcn", GRAPH.num_features, 8, GRAPH.num_classes)
    ask = jax.jit(contrast_queries(model))
    for k in (0, COUNT - 1):
        params = model.init(jax.random.fold_in(stream_key(0, "train"), k))
        wanted = ask(params, *graph_arrays(GRAPH), jnp.asarray(GRAPH.labels), jnp.asarray(GRAPH.edges), design)
        np.testing.assert_allclose(found[k], wanted, atol=1e-5)
    noise = NoiseConfig(weights=0.1)
    noisy = train_and_query(GRAPH, samples, sampler=SAMPLER, train=untrained, design=design, noise=noise)
    assert np.abs(noisy.contrast - found).max() > 1e-3
    np.testing.assert_array_equal(noisy.part(slice(1, 3)).contrast, noisy.contrast[1:3])


def test_padding_is_in_no_mask_and_toggled_in_no_block():
    design, host, asked = draw_design(np.full(GRAPH.num_nodes, 0.5), 0, samples=2), host_graph(GRAPH), []

    def contrast(items, shared):
        asked.append(shared[-1])
        return np.zeros((len(items), shared[-3].size, 2))

    models = SimpleNamespace(graph=GRAPH, whole=whole(host), fits=[{}], shared=(), items=lambda group: group)
    each = PerModel(ensemble_mesh(1), 1, Store(None), None)
    found = stages.contrast_models(models, design, SimpleNamespace(contrast=contrast), "", each)
    assert found[0]["contrast"].shape == (GRAPH.num_nodes, 2)
    n, seen = GRAPH.num_nodes, asked[0]
    np.testing.assert_array_equal(seen.masks[:, :n], design.masks)
    np.testing.assert_array_equal(seen.blocks[:, :n], design.blocks)
    assert seen.masks[:, n:].size > 0
    assert not seen.masks[:, n:].any()
    assert not np.isin(seen.blocks[:, n:], seen.number).any()


ARRANGED = {  # how parameters are laid out, and where the matrix and the bias are
    "dict": (lambda w, b: {"w": w, "b": b}, lambda p: (p["w"], p["b"])),
    "names-of-ours": (
        lambda w, b: {"epochs": w, "loss": [b, None], "a/b": {0: jnp.zeros(()), 1: {}}},
        lambda p: (p["epochs"], p["loss"][0] + p["a/b"][0] * 0),
    ),
    "tuple": (lambda w, b: (b, w), lambda p: p[::-1]),
}


def test_parameters_of_any_name_or_nesting_survive(samples):
    found = []
    for arrange, split in ARRANGED.values():

        def build(features, hidden, classes, arrange=arrange, split=split):
            def init(key):
                return arrange(0.1 * jax.random.normal(key, (features, classes)), jnp.ones(classes))

            def apply(params, x, structure, weights):
                kernel, bias = split(params)
                return multiply(x, kernel) + bias

            return init, apply

        found.append(train_and_query(GRAPH, samples.part(slice(2)), sampler=SAMPLER, train=TRAIN, model=build).logits)
    assert np.ptp(found[0], axis=(0, 1)).min() > 0.01
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-5)


def test_models_of_a_sampler_without_an_identity_are_not_stored(tmp_path):
    def every_other(graph, rng):
        return np.flatnonzero(rng.random(graph.num_nodes) < 0.5)

    sampler = SamplerConfig("custom", path=every_other)
    drawn = draw_samples(GRAPH, sampler, 0, 4)
    for _ in range(2):
        found = train_and_query(GRAPH, drawn, sampler=sampler, train=TRAIN, store=Store(tmp_path))
        assert found.trained == 4
