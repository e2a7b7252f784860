"""Samplers against a naive loop, their invariants, and their priors."""

from collections import deque
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxaudit.graph.data import csbm, graph_from_arrays, load_npz
from jaxaudit.graph.samplers.tables import distinct
from jaxaudit.graph.sampling import SamplerConfig, draw_samples, estimate_priors
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.devices import ensemble_mesh

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "graphs"
GRAPH = csbm(nodes=80, classes=2, features=2, mean_degree=3, seed=1)
CONFIG = SamplerConfig(ratio=0.4, seeds_per_class=2, fanout=2)


def naive(graph, config, rng):
    """The published snowball, one node at a time."""
    around = [[] for _ in range(graph.num_nodes)]
    for number, (u, v) in enumerate(graph.edges.T):
        around[u].append((v, number))
        around[v].append((u, number))
    quota = config.quota(graph.num_nodes)
    picks = [
        rng.permutation(np.flatnonzero(graph.labels == c))[: config.seeds_per_class] for c in range(graph.num_classes)
    ]
    order = [p[j] for j in range(config.seeds_per_class) for p in picks if j < len(p)][:quota]
    inside, queue, edges = set(order), deque(order), np.zeros(graph.num_edges, bool)
    while len(inside) < quota and (queue or config.on_exhausted == "reseed"):
        if not queue:
            node = rng.choice(sorted(set(range(graph.num_nodes)) - inside))
            inside.add(node)
            queue.append(node)
            continue
        u = queue.popleft()
        for j in rng.permutation(len(around[u]))[: config.fanout]:
            v, number = around[u][j]
            if v not in inside and len(inside) < quota:
                inside.add(v)
                queue.append(v)
            if v in inside:
                edges[number] = True
    nodes = np.zeros(graph.num_nodes, bool)
    nodes[list(inside)] = True
    return nodes, edges


@pytest.mark.devices
@pytest.mark.parametrize("ending", ["stop", "reseed"])
def test_distribution_equals_the_naive_loop(ending):
    config = SamplerConfig(ratio=0.6, seeds_per_class=2, fanout=2, on_exhausted=ending)
    count = 2000
    draws = draw_samples(GRAPH, config, 0, count, "traversed")
    rng = np.random.default_rng(0)
    loop = [naive(GRAPH, config, rng) for _ in range(count)]
    for ours, theirs in ((draws.nodes, [n for n, _ in loop]), (draws.edges, [e for _, e in loop])):
        p, q = ours.mean(axis=0), np.mean(theirs, axis=0)
        sd = np.sqrt(np.maximum(p * (1 - p) + q * (1 - q), 1 / count) / count)
        z = (p - q) / sd
        assert np.abs(z).max() < 4.5
        assert z.std() < 1.25
    sizes = np.array([n.sum() for n, _ in loop])
    assert abs(draws.sizes.mean() - sizes.mean()) < 4 * np.hypot(draws.sizes.std(), sizes.std()) / np.sqrt(count) + 1e-9


@pytest.mark.devices
def test_structure_of_a_draw():
    draws = draw_samples(GRAPH, CONFIG, 5, 40, "traversed")
    u, v = GRAPH.edges
    assert draws.quota == 32
    np.testing.assert_array_equal(draws.nodes.sum(axis=1), draws.sizes)
    for nodes, edges, size in zip(draws.nodes, draws.edges, draws.sizes, strict=True):
        assert nodes[u[edges]].all()
        assert nodes[v[edges]].all()  # both ends of a traversed edge are in
        touched = np.zeros(80, bool)
        touched[u[edges]] = touched[v[edges]] = True
        assert (nodes & ~touched).sum() <= 4  # everything but (some) seeds was reached along an edge
        assert edges.sum() <= CONFIG.fanout * size  # at most fanout new edges per popped node
    np.testing.assert_array_equal(draws.exhausted, draws.sizes < draws.quota)
    induced = draw_samples(GRAPH, CONFIG, 5, 40)
    np.testing.assert_array_equal(induced.nodes, draws.nodes)
    np.testing.assert_array_equal(induced.edges, induced.nodes[:, u] & induced.nodes[:, v])
    assert not (draws.edges & ~induced.edges).any()


def test_draws_do_not_depend_on_chunk_count_or_purpose():
    long = draw_samples(GRAPH, CONFIG, 3, 70, "traversed")
    short = draw_samples(GRAPH, CONFIG, 3, 5, chunk=3, mesh=ensemble_mesh(1))
    np.testing.assert_array_equal(long.nodes[:5], short.nodes)
    assert not np.array_equal(short.nodes, draw_samples(GRAPH, CONFIG, 4, 5).nodes)
    one, other = (estimate_priors(GRAPH, CONFIG, 0, 100, chunk=chunk) for chunk in (0, 30))
    np.testing.assert_array_equal(one.gamma, other.gamma)


def test_frontier_runs_dry():
    edges = np.array([[0, 1], [1, 2]])  # one path of three, the other 17 nodes alone
    graph = graph_from_arrays(np.eye(20), np.arange(20) % 2, edges)
    stop = draw_samples(graph, SamplerConfig(ratio=0.5, seeds_per_class=1), 0, 50)
    assert stop.exhausted.all()
    assert stop.sizes.max() <= 4
    assert not stop.reseeds.any()
    reseed = draw_samples(graph, SamplerConfig(ratio=0.5, seeds_per_class=1, on_exhausted="reseed"), 0, 2000)
    assert (reseed.sizes == 10).all()
    assert reseed.exhausted.all()
    assert (reseed.reseeds >= 6).all()
    lonely = reseed.nodes[:, 3:].mean(axis=0)
    assert np.ptp(lonely[0::2]) < 0.06  # reseeds are uniform
    assert estimate_priors(graph, SamplerConfig(ratio=0.5, seeds_per_class=1), 0, 100).exhausted == 1


def test_small_quota_cuts_all_classes_alike():
    graph = csbm(nodes=100, classes=4, features=2, seed=0)
    draws = draw_samples(graph, SamplerConfig(ratio=0.08), 0, 6, "traversed")
    for nodes in draws.nodes:
        np.testing.assert_array_equal(np.bincount(graph.labels[nodes], minlength=4), [2, 2, 2, 2])
    assert not draws.edges.any()


def test_edgeless_graph_and_tiny_class():
    graph = graph_from_arrays(np.eye(30), np.r_[np.zeros(27, int), 1, 1, 1], np.zeros((2, 0)))
    draws = draw_samples(graph, SamplerConfig(ratio=0.9), 0, 4, "traversed")
    assert (draws.sizes == 13).all()  # ten of one class, all three of the other
    assert draws.nodes[:, 27:].all()


@pytest.mark.devices
def test_uniform_is_exact_and_uniform():
    config = SamplerConfig("uniform", 0.3)
    draws = draw_samples(GRAPH, config, 0, 3000)
    assert (draws.nodes.sum(axis=1) == 24).all()
    z = (draws.nodes.mean(axis=0) - 0.3) / np.sqrt(0.21 / 3000)
    assert np.abs(z).max() < 4.5
    priors = estimate_priors(GRAPH, config, 0)
    assert priors.exact
    assert (priors.gamma == 0.3).all()
    assert (priors.lower == 0.3).all()


def test_monte_carlo_priors_and_their_interval():
    draws = 3000
    priors = estimate_priors(GRAPH, CONFIG, 0, draws)
    rng = np.random.default_rng(1)
    loop = np.mean([naive(GRAPH, CONFIG, rng)[0] for _ in range(1500)], axis=0)
    z = (priors.gamma - loop) / np.sqrt(np.maximum(loop * (1 - loop), 1e-3) * (1 / draws + 1 / 1500))
    assert np.abs(z).max() < 4.5
    assert (priors.lower <= priors.gamma).all()
    assert (priors.gamma <= priors.upper).all()
    from scipy.stats import binomtest

    exact = binomtest(round(priors.gamma[0] * draws), draws).proportion_ci(0.95)
    np.testing.assert_allclose([priors.lower[0], priors.upper[0]], exact, rtol=1e-6)


def testdistinct_is_a_random_partial_permutation():
    uniforms = jax.random.uniform(jax.random.key(0), (24_000, 3))
    picks = np.asarray(jax.vmap(distinct, in_axes=(0, None))(uniforms, jnp.int32(4)))
    codes, counts = np.unique(picks @ [16, 4, 1], return_counts=True)
    assert codes.size == 24  # all ordered triples of 4 without repetition
    assert (np.abs(counts - 1000) < 150).all()
    short = np.asarray(jax.vmap(distinct, in_axes=(0, None))(uniforms[:50], jnp.int32(2)))[:, :2]
    np.testing.assert_array_equal(np.sort(short, axis=1), np.tile([0, 1], (50, 1)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ratio": 0.0}, "sampler.ratio must be"),
        ({"ratio": 1.0}, "sampler.ratio"),
        ({"name": "bfs"}, "sampler must be one of"),
        ({"on_exhausted": "panic"}, "sampler.on_exhausted"),
        ({"fanout": 0}, "sampler.fanout"),
        ({"seeds_per_class": 0}, "sampler.seeds_per_class"),
    ],
)
def test_bad_settings(options, words):
    with pytest.raises(InputError) as caught:
        SamplerConfig(**options)
    assert words in str(caught.value)


def test_bad_requests():
    for call, words in (
        (lambda: draw_samples(GRAPH, SamplerConfig("uniform"), 0, 4, "traversed"), "edges.train"),
        (lambda: draw_samples(GRAPH, CONFIG, 0, 4, "all"), "edges.train"),
        (lambda: draw_samples(GRAPH, SamplerConfig(ratio=0.001), 0, 4), "sampler.ratio"),
        (lambda: draw_samples(GRAPH, CONFIG, -1, 4), "seed"),
        (lambda: estimate_priors(GRAPH, CONFIG, 0, 0), "shadow.prior_draws"),
    ):
        with pytest.raises(InputError, match=words):
            call()


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data sets are not there")
def test_pubmed_always_runs_dry_at_half():
    draws = draw_samples(load_npz(SHARED / "pubmed.npz"), SamplerConfig(ratio=0.5), 0, 16)
    assert draws.exhausted.all()
