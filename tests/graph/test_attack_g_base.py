"""The queries behind G-BASE, against dense NumPy one mask at a time."""

import jax
import numpy as np
import pytest

from jaxaudit.graph.attacks import contrast_queries, draw_design
from jaxaudit.graph.data import graph_from_arrays
from jaxaudit.graph.models import build_model
from jaxaudit.graph.structure import graph_arrays
from jaxaudit.runtime.checks import InputError


def dense_loss(params, features, labels, edges, mask):
    """Log-probability of the true class when the nodes of the mask see each other: a two-layer GCN."""
    n = labels.size
    a = np.eye(n)
    for u, v in edges.T:
        if mask[u] and mask[v]:
            a[u, v] = a[v, u] = 1
    scale = 1 / np.sqrt(a.sum(axis=1))
    a = a * scale[:, None] * scale
    first, second = params["params"]["_GraphConvolution_0"], params["params"]["_GraphConvolution_1"]
    hidden = np.maximum(a @ features @ np.asarray(first["kernel"], float) + np.asarray(first["bias"]), 0)
    z = a @ hidden @ np.asarray(second["kernel"], float) + np.asarray(second["bias"])
    return z[np.arange(n), labels] - np.log(np.exp(z).sum(axis=1))


def test_contrast_equals_a_loop_over_masks():
    rng = np.random.default_rng(0)
    n = 14
    edges = np.array([(u, v) for u in range(n) for v in range(u + 1, n) if rng.random() < 0.3]).T
    graph = graph_from_arrays(rng.normal(size=(n, 5)), np.arange(n) % 3, edges)
    model = build_model("gcn", 5, 4, 3)
    params = jax.tree.map(lambda leaf: leaf + 0.1 * rng.normal(size=leaf.shape), model.init(jax.random.key(0)))
    design = draw_design(np.full(n, 0.5), 3, samples=2, blocks=3)
    features, structure = graph_arrays(graph)
    found = jax.jit(contrast_queries(model))(params, features, structure, graph.labels, graph.edges, design)
    assert found.shape == (n, 2)
    for s in range(2):
        for i in range(n):
            toggled = design.blocks[s] == design.blocks[s][i]
            one, other = design.masks[s], design.masks[s] ^ toggled
            inside, outside = (one, other) if one[i] else (other, one)
            x = np.asarray(graph.features, float)
            with_i, without = (
                dense_loss(params, x, graph.labels, graph.edges, mask) for mask in (inside, outside)
            )  # fmt: skip
            expected = with_i[i]
            for u, v in graph.edges.T:
                for j, k in ((u, v), (v, u)):
                    if j == i and one[k] and not toggled[k]:
                        expected += with_i[k] - without[k]
            assert abs(found[i, s] - expected) < 1e-4


def test_design_is_seeded_and_follows_the_prior():
    prior = np.linspace(0, 1, 400)
    design = draw_design(prior, 0, samples=300, blocks=4)
    assert np.abs(design.masks.mean(axis=0) - prior).max() < 0.12
    assert (np.bincount(design.blocks[0]) == 100).all()
    np.testing.assert_array_equal(design.masks, draw_design(prior, 0, samples=300, blocks=4).masks)
    assert not np.array_equal(design.blocks[0], design.blocks[1])
    for bad in ({"samples": 0}, {"blocks": 1}):
        with pytest.raises(InputError):
            draw_design(prior, 0, **bad)
