"""GraphSAGE, GIN, GAT, MLP and a user's own model against dense arithmetic, and under the audit."""

import re
import sys
from functools import lru_cache
from pathlib import Path

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
from hydra import compose, initialize_config_module
from scipy import sparse

from jaxaudit.graph import Model, ModelConfig, SamplerConfig, ShadowConfig, TrainConfig, audit_graph
from jaxaudit.graph.data import csbm, graph_from_arrays
from jaxaudit.graph.models import MODELS, build_model, drop, entry_mask, graph_arrays, multiply
from jaxaudit.graph.propagate import mean_weights, neighbour_softmax, neighbour_sum
from jaxaudit.graph.sampling import draw_samples
from jaxaudit.graph.shadow import train_and_query
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.store import Store

NAMES = ["sage", "gin", "gat", "mlp"]
N, F, H = 24, 5, 3
THIN = csbm(nodes=N, classes=3, features=F, mean_degree=3, seed=4)
VISIBLE = np.random.default_rng(0).random(THIN.num_edges) < 0.6


def rough(params):
    """Parameters away from zero biases and from symmetry."""
    return jax.tree.map(lambda p: p + 0.3 * jax.random.normal(jax.random.key(p.size), p.shape), params)


@lru_cache
def compiled(name):
    model = build_model(name, F, H, 3)

    def forward(params, features, structure, edges):
        return model.apply(params, features, structure, model.prepare(structure, entry_mask(structure, edges)))

    return forward, jax.jit(forward)


def logits_of(name, graph, params, edges):
    return compiled(name)[1](params, *graph_arrays(graph), jnp.asarray(edges))


@pytest.fixture(scope="module")
def parameters():
    return {name: rough(jax.jit(build_model(name, F, H, 3).init)(jax.random.key(0))) for name in NAMES}


def naive_sage(p, x, around):
    mean = np.array([np.mean(x[a], axis=0) if a else np.zeros(x.shape[1]) for a in around])
    return x @ p["kernel_self"] + mean @ p["kernel_neighbour"] + p["bias"]


def naive_gin(p, x, around):
    total = np.array([x[i] + sum((x[j] for j in a), np.zeros(x.shape[1])) for i, a in enumerate(around)])
    return np.maximum(total @ p["kernel"] + p["bias"], 0) @ p["kernel_out"] + p["bias_out"]


def naive_gat(p, x, around):
    heads, width = p["attention_from"].shape
    out = np.zeros((len(x), heads * width))
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        z = x @ p["kernel"][:, part]
        for i, a in enumerate(around):
            seen = [*a, i]
            score = np.array([z[j] @ p["attention_from"][h] + z[i] @ p["attention_to"][h] for j in seen])
            score = np.exp(np.where(score > 0, score, 0.2 * score))
            out[i, part] = (score / score.sum()) @ z[seen]
    return out + p["bias"]


def naive_mlp(p, x, around):
    return x @ p["kernel"] + p["bias"]


NAIVE = {"sage": naive_sage, "gin": naive_gin, "gat": naive_gat, "mlp": naive_mlp}


@pytest.mark.devices
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_naive_loops_dense_and_sparse(name, parameters):
    x = np.where(THIN.features > 0.3, THIN.features, 0)
    around = [[] for _ in range(N)]
    for u, v in THIN.edges[:, VISIBLE].T:
        around[u].append(v)
        around[v].append(u)
    assert [] in around  # a node that sees nobody
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), parameters[name]["params"])
    expected = NAIVE[name](p["second"], np.maximum(NAIVE[name](p["first"], x, around), 0), around)
    for features in (x, sparse.csr_array(x)):
        graph = graph_from_arrays(features, THIN.labels, THIN.edges)
        np.testing.assert_allclose(logits_of(name, graph, parameters[name], VISIBLE), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_dropout_is_between_the_layers(name, parameters):
    """A given mask, in float64: after the ReLU, before the second layer, and nowhere else."""
    key, rate, p = jax.random.key(3), 0.4, jax.tree.map(lambda a: np.asarray(a, np.float64), parameters[name]["params"])
    around = [[] for _ in range(N)]
    for u, v in THIN.edges.T:
        around[u].append(v)
        around[v].append(u)
    hidden = np.maximum(NAIVE[name](p["first"], THIN.features.astype(np.float64), around), 0)
    kept = np.asarray(jax.random.bernoulli(key, 1 - rate, hidden.shape))
    model = build_model(name, F, H, 3)
    features, structure = graph_arrays(THIN)
    weights = model.prepare(structure, entry_mask(structure, jnp.ones(THIN.num_edges)))
    ours = jax.jit(model.apply)(parameters[name], features, structure, weights, dropout=(key, rate))
    np.testing.assert_allclose(ours, NAIVE[name](p["second"], hidden * kept / 0.6, around), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_equal_the_segment_path_and_differences(name, parameters, monkeypatch):
    edges = jnp.where(jnp.asarray(VISIBLE), 0.7, 0.2)
    target = jax.random.normal(jax.random.key(9), (N, 3))

    arrays = graph_arrays(THIN)

    def loss(params, edges):
        return jnp.sum(compiled(name)[0](params, *arrays, edges) * target)

    value, ours = jax.jit(loss), jax.jit(jax.grad(loss, argnums=(0, 1)))(parameters[name], edges)
    step = jax.tree.map(lambda g: 1e-3 * g / jnp.linalg.norm(g.ravel()), ours[0])
    up, down = (value(jax.tree.map(lambda p, s, a=a: p + a * s, parameters[name], step), edges) for a in (1, -1))
    slope = sum(float(jnp.vdot(g, s)) for g, s in zip(jax.tree.leaves(ours[0]), jax.tree.leaves(step), strict=True))
    np.testing.assert_allclose((up - down) / 2, slope, rtol=0.02)
    monkeypatch.setattr("jaxaudit.graph.propagate.sparse", None)
    theirs = jax.jit(jax.grad(lambda *point: loss(*point), argnums=(0, 1)))(parameters[name], edges)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_renumbering_nodes_renumbers_logits(name, parameters):
    order = np.random.default_rng(1).permutation(N)
    place = np.argsort(order)
    moved_edges = np.sort(place[THIN.edges], axis=0)
    back = np.lexsort((moved_edges[1], moved_edges[0]))
    moved = graph_from_arrays(THIN.features[order], THIN.labels[order], moved_edges[:, back])
    np.testing.assert_array_equal(moved.edges, moved_edges[:, back])
    plain = logits_of(name, THIN, parameters[name], VISIBLE)
    np.testing.assert_allclose(
        logits_of(name, moved, parameters[name], VISIBLE[back]), plain[order], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", NAMES)
def test_masked_edges_have_no_influence(name, parameters):
    """A node with enormous features behind masked edges changes nobody; the edges might as well not exist."""
    hub = int(np.argmax(THIN.degree))
    edges = ~(THIN.edges == hub).any(axis=0)
    plain = np.asarray(logits_of(name, THIN, parameters[name], edges))
    loud = THIN.features.copy()
    loud[hub] = 1e4
    changed = logits_of(name, graph_from_arrays(loud, THIN.labels, THIN.edges), parameters[name], edges)
    others = np.arange(N) != hub
    np.testing.assert_array_equal(np.asarray(changed)[others], plain[others])
    without = graph_from_arrays(THIN.features, THIN.labels, THIN.edges[:, edges])
    np.testing.assert_allclose(
        logits_of(name, without, parameters[name], np.ones(edges.sum(), bool)), plain, rtol=1e-6, atol=1e-6
    )
    if name == "mlp":
        np.testing.assert_array_equal(logits_of(name, THIN, parameters[name], VISIBLE), plain)
    else:
        assert np.abs(logits_of(name, THIN, parameters[name], VISIBLE) - plain).max() > 1e-3


def test_softmax_over_visible_entries():
    structure = graph_arrays(THIN)[1]
    pattern = structure.pattern
    mask = entry_mask(structure, jnp.asarray(VISIBLE))
    scores = jax.random.normal(jax.random.key(0), (mask.size, 2)) * jnp.array([1.0, 400.0])  # exp(400) overflows
    attention = neighbour_softmax(pattern, mask, scores)
    hidden = jnp.where(mask[:, None] > 0, scores, -jnp.inf)
    np.testing.assert_allclose(attention, jraph.segment_softmax(hidden, pattern.rows, N), rtol=1e-5, atol=1e-7)
    assert not np.asarray(attention)[np.asarray(mask) == 0].any()
    np.testing.assert_allclose(jraph.segment_sum(attention, pattern.rows, N), 1, rtol=1e-5)
    louder = jnp.where(mask[:, None] > 0, scores, 1e30)
    np.testing.assert_array_equal(neighbour_softmax(pattern, mask, louder), attention)
    pull = jax.grad(lambda s: jnp.sum(neighbour_softmax(pattern, mask, s) ** 2))
    assert np.isfinite(pull(louder)).all()
    fraction = mask * 0.5 + 0.25
    np.testing.assert_allclose(
        neighbour_softmax(pattern, fraction, scores[:, :1]),
        jraph.segment_softmax(scores[:, :1] + jnp.log(fraction)[:, None], pattern.rows, N), rtol=1e-4, atol=1e-6,
    )  # fmt: skip


def test_mean_ignores_self_loops_and_empty_neighbourhoods():
    structure = graph_arrays(THIN)[1]
    mask = entry_mask(structure, jnp.asarray(VISIBLE))
    weights = mean_weights(structure.pattern, mask)
    sums = np.asarray(jraph.segment_sum(weights, structure.pattern.rows, N))
    seen = np.bincount(THIN.edges[:, VISIBLE].ravel(), minlength=N)
    np.testing.assert_allclose(sums, seen > 0, rtol=1e-6)


def test_initial_weights_have_the_published_scales():
    inits = {name: jax.jit(build_model(name, 400, 100, 7).init)(jax.random.key(1))["params"] for name in NAMES}
    bounds = {
        ("sage", "kernel_self"): 1 / 20, ("sage", "kernel_neighbour"): 1 / 20, ("sage", "bias"): 1 / 20,
        ("gin", "kernel"): 1 / 20, ("gin", "kernel_out"): 1 / 10, ("gin", "bias_out"): 1 / 10,
        ("gat", "kernel"): np.sqrt(6 / 1200), ("gat", "attention_from"): np.sqrt(6 / 108),
        ("gat", "attention_to"): np.sqrt(6 / 108), ("mlp", "kernel"): np.sqrt(6 / 500),
    }  # fmt: skip
    for (name, leaf), bound in bounds.items():
        values = np.asarray(inits[name]["first"][leaf])
        assert 0.9 * bound < np.abs(values).max() <= bound * (1 + 1e-6), (name, leaf)
        assert values.size < 1000 or abs(values.mean()) < 4 * bound / np.sqrt(3 * values.size), (name, leaf)
    assert inits["gat"]["first"]["kernel"].shape == (400, 800)  # 8 heads
    assert inits["gat"]["second"]["attention_to"].shape == (1, 7)
    assert not np.asarray(inits["gat"]["first"]["bias"]).any()


LEARN = csbm(nodes=90, classes=3, features=6, mean_degree=5, signal=1.5, seed=2)
UNIFORM = SamplerConfig("uniform", 0.5)
TRAIN = TrainConfig(epochs=30, hidden=8)


@pytest.mark.devices
@pytest.mark.parametrize("name", NAMES)
def test_shadows_learn(name):
    samples = draw_samples(LEARN, UNIFORM, 0, 4)
    ensemble = train_and_query(LEARN, samples, sampler=UNIFORM, model=ModelConfig(name), train=TRAIN)
    right = ensemble.logits.argmax(-1) == LEARN.labels
    assert ensemble.finite.all()
    assert right[samples.nodes].mean() > 0.6
    assert right[~samples.nodes].mean() > 0.5  # chance: .33


@pytest.mark.devices
@pytest.mark.parametrize("name", ["sage", "gat"])
def test_models_side_by_side(name, parameters):
    pair = jax.tree.map(lambda p: jnp.stack([p, 0.5 * p]), parameters[name])
    masks = jnp.asarray(np.stack([VISIBLE, ~VISIBLE]))
    both = jax.jit(jax.vmap(compiled(name)[0], in_axes=(0, None, None, 0)))(pair, *graph_arrays(THIN), masks)
    for k in (0, 1):
        alone = logits_of(name, THIN, jax.tree.map(lambda p, k=k: p[k], pair), masks[k])
        np.testing.assert_allclose(both[k], alone, rtol=1e-5, atol=1e-5)


def mean_of_neighbours(features, hidden, classes):
    """A user's model without flax: logits are the neighbourhood's mean features times one matrix."""

    def init(key):
        return {"w": 0.1 * jax.random.normal(key, (features, classes))}

    def apply(params, x, structure, weights):
        return neighbour_sum(structure.pattern, weights, multiply(x, params["w"]))

    return Model(init, apply, lambda structure, mask: mean_weights(structure.pattern, mask))


def jraph_model(features, hidden, classes):
    """Two rounds of jraph's message passing with a dense layer after each: a pair of functions, nothing else."""

    def init(key):
        first, second = jax.random.split(key)
        return {
            "first": 0.3 * jax.random.normal(first, (features, hidden)),
            "second": 0.3 * jax.random.normal(second, (hidden, classes)),
        }

    def apply(params, x, structure, weights, dropout=None):
        def propagate(nodes):
            layer = jraph.InteractionNetwork(
                update_edge_fn=lambda visible, sent, received: visible[:, None] * sent,
                update_node_fn=lambda own, received: received,
            )
            receivers, senders = structure.pattern.rows, structure.pattern.columns
            sizes = jnp.array([nodes.shape[0]]), jnp.array([senders.shape[0]])
            return layer(jraph.GraphsTuple(nodes, weights, receivers, senders, None, *sizes)).nodes

        hidden = jax.nn.relu(propagate(multiply(x, params["first"])))
        return propagate(multiply(drop(hidden, dropout), params["second"]))

    return init, apply


def test_a_jraph_model_plugs_in():
    model = build_model(jraph_model, F, H, 3)
    params = model.init(jax.random.key(0))
    features, structure = graph_arrays(THIN)
    mask = entry_mask(structure, jnp.asarray(VISIBLE))
    logits = jax.jit(model.apply)(params, features, structure, model.prepare(structure, mask))
    seen = np.eye(N)
    u, v = THIN.edges[:, VISIBLE]
    seen[u, v] = seen[v, u] = 1
    hidden = np.maximum(seen @ THIN.features @ np.asarray(params["first"]), 0)
    np.testing.assert_allclose(logits, seen @ hidden @ np.asarray(params["second"]), rtol=1e-4, atol=1e-4)
    train = TrainConfig(epochs=30, hidden=8, dropout=0.2, patience=20)
    result = audit_graph(LEARN, model=jraph_model, sampler=UNIFORM, train=train, shadow=ShadowConfig(count=4))
    assert result.summary["shadows"]["train_accuracy"]["mean"] > 0.45  # chance: .33
    with pytest.raises(InputError, match=r"train\.dropout must be 0 for a model"):
        audit_graph(LEARN, model=mean_of_neighbours, sampler=UNIFORM, train=train, shadow=ShadowConfig(count=4))


def test_a_model_of_ones_own(tmp_path: Path):
    settings = {"sampler": UNIFORM, "train": TRAIN, "shadow": ShadowConfig(count=4), "cache_dir": tmp_path}
    result = audit_graph(LEARN, model=mean_of_neighbours, **settings)
    assert result.summary["shadows"]["train_accuracy"]["mean"] > 0.45
    assert result.config["model"] == {"name": "mean_of_neighbours"}
    again = audit_graph(LEARN, model=mean_of_neighbours, **settings)
    assert again.summary["shadows"]["trained"] == 4  # never stored: its code may have changed
    np.testing.assert_array_equal(again.evidence["statistic"], result.evidence["statistic"])
    assert not list(tmp_path.glob("train-*"))


def altered(**parts):
    """The builder of ``mean_of_neighbours`` with other functions in place of its own."""
    return lambda *sizes: mean_of_neighbours(*sizes)._replace(**parts)


def failing(*_):
    raise RuntimeError("first line\nsecond line")


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def mute(*_):
    raise MuteError


def changed_logits(change):
    return altered(apply=lambda params, x, structure, weights: change(multiply(x, params["w"])))


def undecided(params, x, structure, weights):
    return multiply(x, params["w"]) if structure.edge[0] > 0 else multiply(x, -params["w"])


def dropout_without_default(params, x, structure, weights, dropout):
    return multiply(x, params["w"])


def dropout_misread(params, x, structure, weights, dropout=None):
    return multiply(x, params["w"]) if dropout is None else multiply(x, params["w"]) * dropout.rate


LOGITS = r"model must give logits of the shape \(nodes, 2\), one floating-point array, got "
CALL = r"model must have an apply\(params, features, structure, prepare\(structure, mask\)"
INIT = r"model must have an init\(key\) that JAX can trace to a pytree of arrays, got "
FLOATS = "model must have floating-point parameters, got "

WRONG = {
    "builder-none": (lambda *sizes: None, r"model must build a jaxaudit.graph.Model or a pair .*, got NoneType"),
    "builder-numbers": (lambda *sizes: (1, 2), "model must build a jaxaudit.graph.Model or a pair"),
    "builder-raises": (failing, r"model must be a function of \(features, .*, got RuntimeError: first line$"),
    "builder-arguments": (lambda features: None, "model must be a function of .*, got TypeError: "),
    "init-raises": (altered(init=failing), INIT + "RuntimeError: first line$"),
    "init-exits": (altered(init=sys.exit), INIT + "SystemExit"),
    "init-mute": (altered(init=mute), INIT + "MuteError$"),
    "init-arguments": (altered(init=lambda key, extra: {}), INIT + "TypeError: "),
    "init-text": (altered(init=lambda key: {"w": "text"}), INIT + "TypeError: "),
    "init-nothing": (altered(init=lambda key: None), FLOATS + "none$"),
    "init-integers": (altered(init=lambda key: {"w": jnp.ones((4, 2)), "step": jnp.int32(0)}), FLOATS + "int32$"),
    "prepare-raises": (altered(prepare=failing), CALL + r"\) that JAX can trace, got RuntimeError: first line$"),
    "apply-silent": (altered(apply=lambda *_: 1 // 0), CALL + ".*, got ZeroDivisionError: "),
    "apply-arguments": (altered(apply=lambda params, x: x), CALL + ".*, got TypeError: "),
    "apply-if": (altered(apply=undecided), CALL + ".*, got TracerBoolConversionError: "),
    "dropout-no-default": (altered(apply=dropout_without_default), CALL + r"\) that .*, got TypeError: .*dropout"),
    "dropout-misread": (altered(apply=dropout_misread), CALL + r", dropout=\(key, rate\)\) .*, got AttributeError: "),
    "logits-wide": (lambda f, h, c: mean_of_neighbours(f, h, c + 1), LOGITS + r"float32 of \(3, 3\) for 3 nodes$"),
    "logits-one-row": (changed_logits(lambda z: z[:1]), LOGITS + r"float32 of \(1, 2\) for 3 nodes$"),
    "logits-tuple": (changed_logits(lambda z: (z, z)), LOGITS + "tuple$"),
    "logits-integers": (changed_logits(lambda z: z.astype(int)), LOGITS + r"int32 of \(3, 2\) for 3 nodes$"),
}


@pytest.mark.parametrize("name", WRONG)
def test_models_of_ones_own_that_break_the_protocol(name):
    model, words = WRONG[name]
    with pytest.raises(InputError, match=words) as caught:
        build_model(model, 4, 3, 2)
    assert "\n" not in str(caught.value)
    raised = re.search(r"got \w*(Error|Exit)", str(caught.value))
    assert (caught.value.__cause__ is None) == (raised is None)


def test_a_model_for_dense_features_alone_is_refused_sparse_ones():
    dense = altered(apply=lambda params, x, structure, weights: x @ params["w"])
    build_model(dense, 4, 3, 2)
    build_model(mean_of_neighbours, 4, 3, 2, sparse=True)
    graph = graph_from_arrays(sparse.csr_array(LEARN.features), LEARN.labels, LEARN.edges)
    with pytest.raises(InputError, match=CALL + ".*, got TypeError: "):
        audit_graph(graph, model=dense, sampler=UNIFORM, train=TRAIN, shadow=ShadowConfig(count=4))


def test_unknown_names_and_builders_that_cannot_be_told_apart_are_refused():
    class Builder(list):
        __call__ = staticmethod(mean_of_neighbours)

    with pytest.raises(InputError, match="model must be hashable, as functions are, got Builder"):
        audit_graph(LEARN, model=Builder(), sampler=UNIFORM, train=TRAIN, shadow=ShadowConfig(count=4))
    with pytest.raises(InputError, match="model must be one of"):
        audit_graph(LEARN, model="transformer")


def test_the_stored_models_know_their_architecture(tmp_path: Path):
    samples = draw_samples(LEARN, UNIFORM, 0, 4)
    few = {"sampler": UNIFORM, "train": TrainConfig(epochs=1, hidden=4), "store": Store(tmp_path)}
    for name in ("mlp", "sage"):
        assert train_and_query(LEARN, samples, model=ModelConfig(name), **few).trained == 4
    assert train_and_query(LEARN, samples, model=ModelConfig("mlp"), **few).trained == 0


def test_every_model_has_a_file_of_settings():
    for name in MODELS:
        with initialize_config_module("jaxaudit.configs", version_base="1.3"):
            assert dict(compose("config", [f"model={name}"]).model) == {"name": name}
