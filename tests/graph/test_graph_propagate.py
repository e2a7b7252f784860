"""Neighbour sums and the GCN against dense arithmetic, plain segment sums and jraph."""

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
from scipy import sparse

from jaxaudit.graph import propagate
from jaxaudit.graph.data import csbm, graph_from_arrays
from jaxaudit.graph.models import build_model, entry_mask, graph_arrays, multiply
from jaxaudit.graph.propagate import csr_pattern, gcn_weights, neighbour_sum
from jaxaudit.runtime.checks import InputError

GRAPH = csbm(nodes=60, features=7, mean_degree=5, seed=3)
METHODS = ["bcsr", "segment"]


@pytest.fixture(scope="module")
def structure():
    return graph_arrays(GRAPH)[1]


def dense(pattern, weights, shape):
    out = np.zeros(shape)
    for r, c, w in zip(np.asarray(pattern.rows), np.asarray(pattern.columns), np.asarray(weights), strict=True):
        out[r, c] += w
    return out


@pytest.mark.devices
@pytest.mark.parametrize("method", METHODS)
def test_sum_and_gradients_equal_dense_and_plain_segment_sum(structure, method):
    pattern, rng = structure.pattern, np.random.default_rng(0)
    weights = jnp.asarray(rng.normal(size=pattern.rows.size), jnp.float32)
    values = jnp.asarray(rng.normal(size=(60, 4)), jnp.float32)
    g = jnp.asarray(rng.normal(size=(60, 4)), jnp.float32)
    out, pull = jax.vjp(lambda w, v: neighbour_sum(pattern, w, v, method), weights, values)
    np.testing.assert_allclose(out, dense(pattern, weights, (60, 60)) @ np.asarray(values), rtol=1e-5, atol=1e-5)

    def plain(w, v):
        return jraph.segment_sum(w[:, None] * v[pattern.columns], pattern.rows, 60)

    expected, plain_pull = jax.vjp(plain, weights, values)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(pull(g), plain_pull(g), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_rectangular_pattern_and_vmap(method):
    x = sparse.random_array((9, 5), density=0.4, rng=np.random.default_rng(1), format="csr")
    pattern = csr_pattern(x.indices, x.indptr, 5)
    weights = jnp.stack([jnp.asarray(x.data, jnp.float32), 2 * jnp.asarray(x.data, jnp.float32)])
    values = jnp.asarray(np.random.default_rng(2).normal(size=(2, 5, 3)), jnp.float32)
    product = jax.jit(jax.vmap(lambda w, v: neighbour_sum(pattern, w, v, method)))
    expected = [x.toarray() @ np.asarray(values[0]), 2 * x.toarray() @ np.asarray(values[1])]
    np.testing.assert_allclose(product(weights, values), expected, rtol=1e-5, atol=1e-5)
    slope = jax.grad(lambda v: product(weights, v)[0].sum())(values)
    np.testing.assert_allclose(slope[0], np.repeat(x.toarray().sum(axis=0)[:, None], 3, axis=1), rtol=1e-5)
    assert not slope[1].any()
    back = dense(pattern.transpose(), jnp.asarray(x.data)[pattern.transpose_order], (5, 9))
    np.testing.assert_allclose(back, x.toarray().T, rtol=1e-6)


def test_without_bcsr_the_segment_path_serves(monkeypatch):
    monkeypatch.setattr(propagate, "sparse", None)
    assert propagate.default_method() == "segment"


def naive_gcn(graph, params, edges):
    """One edge at a time, in float64."""
    n = graph.num_nodes
    adjacency = np.eye(n)
    for (u, v), weight in zip(graph.edges.T, edges, strict=True):
        adjacency[u, v] = adjacency[v, u] = weight
    degree = adjacency.sum(axis=1)
    norm = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            norm[i, j] = adjacency[i, j] / np.sqrt(degree[i] * degree[j])
    first, second = (
        {k: np.asarray(v, np.float64) for k, v in params["params"][f"_GraphConvolution_{i}"].items()} for i in (0, 1)
    )
    x = graph.features.toarray() if sparse.issparse(graph.features) else graph.features
    hidden = np.maximum(norm @ (x @ first["kernel"]) + first["bias"], 0)
    return norm @ (hidden @ second["kernel"]) + second["bias"]


@pytest.mark.devices
@pytest.mark.parametrize("thin", [False, True])
def test_gcn_equals_naive_loops(thin):
    x = np.where(GRAPH.features > 0.3, GRAPH.features, 0)
    graph = graph_from_arrays(sparse.csr_array(x) if thin else x, GRAPH.labels, GRAPH.edges)
    features, structure = graph_arrays(graph)
    model = build_model("gcn", 7, 6, graph.num_classes)
    params = jax.tree.map(lambda p: p + 0.1, model.init(jax.random.key(0)))  # biases away from 0
    edges = np.random.default_rng(0).random(graph.num_edges) < 0.5
    weights = model.prepare(structure, entry_mask(structure, jnp.asarray(edges)))
    logits = model.apply(params, features, structure, weights)
    np.testing.assert_allclose(logits, naive_gcn(graph, params, edges), rtol=1e-4, atol=1e-4)


def test_normalisation_follows_jraph(structure):
    """jraph.GraphConvolution divides by the roots of sender and receiver degrees, self-edges counted."""
    nodes = jnp.asarray(GRAPH.features)
    ours = neighbour_sum(structure.pattern, gcn_weights(structure.pattern, jnp.ones(structure.edge.size)), nodes)
    both = np.concatenate([GRAPH.edges, GRAPH.edges[::-1]], axis=1)
    graph = jraph.GraphsTuple(
        nodes=nodes, edges=None, senders=jnp.asarray(both[0]), receivers=jnp.asarray(both[1]),
        n_node=jnp.array([60]), n_edge=jnp.array([both.shape[1]]), globals=None,
    )  # fmt: skip
    theirs = jraph.GraphConvolution(lambda x: x, add_self_edges=True)(graph).nodes
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_edge_weights_are_differentiable_end_to_end(structure):
    features, _ = graph_arrays(GRAPH)
    model = build_model("gcn", 7, 4, GRAPH.num_classes)
    params = model.init(jax.random.key(1))

    def loss(edges):
        weights = model.prepare(structure, entry_mask(structure, edges))
        return jnp.sum(model.apply(params, features, structure, weights) ** 2)

    edges = jnp.full(GRAPH.num_edges, 0.5)
    slope = jax.grad(loss)(edges)
    step = jnp.zeros_like(edges).at[3].set(1e-2)
    numeric = (loss(edges + step) - loss(edges - step)) / 2e-2
    assert abs(numeric) > 1e-2
    np.testing.assert_allclose(slope[3], numeric, rtol=2e-2)


def test_initialisation_and_registry():
    model = build_model("gcn", 30, 20, 5)
    first = model.init(jax.random.key(0))["params"]["_GraphConvolution_0"]
    bound = np.sqrt(6 / 50)
    assert 0.9 * bound < np.abs(first["kernel"]).max() <= bound  # Glorot uniform
    assert not first["bias"].any()
    np.testing.assert_allclose(multiply(jnp.eye(30), first["kernel"]), first["kernel"], rtol=1e-6)
    with pytest.raises(InputError, match="model must be one of gat, gcn, gin, mlp, sage"):
        build_model("transformer", 3, 3, 2)
