"""Bernoulli, degree and random-walk samplers against naive loops, closed forms and their invariants."""

from itertools import permutations

import jax.numpy as jnp
import numpy as np
import pytest
from hydra import compose, initialize_config_module

from jaxaudit.graph import EdgeConfig, ShadowConfig, TrainConfig, audit_graph
from jaxaudit.graph.data import csbm, graph_from_arrays
from jaxaudit.graph.samplers.config import OPTIONS
from jaxaudit.graph.samplers.fixed import largest
from jaxaudit.graph.sampling import SamplerConfig, draw_samples, estimate_priors
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.devices import ensemble_mesh

GRAPH = csbm(nodes=60, classes=2, features=2, mean_degree=2, seed=1)  # sparse: several components, lonely nodes
WALK = SamplerConfig("random_walk", 0.5, restart=0.3, patience=6)
PAIRED = SamplerConfig("uniform", 0.5, paired=True)
COUNT = 3000


def naive_degree(graph, config, rng):
    """One node after another, in proportion to the weights of those left."""
    left = list(range(graph.num_nodes))
    nodes = np.zeros(graph.num_nodes, bool)
    for _ in range(config.quota(graph.num_nodes)):
        weight = np.array([(graph.degree[i] + 1.0) ** config.power for i in left])
        nodes[left.pop(rng.choice(len(left), p=weight / weight.sum()))] = True
    return nodes


def naive_walk(graph, config, rng):
    """The walk as its docstring tells it."""
    around = [[] for _ in range(graph.num_nodes)]
    for number, (u, v) in enumerate(graph.edges.T):
        around[u].append((v, number))
        around[v].append((u, number))
    nodes, edges, reseeds = np.zeros(graph.num_nodes, bool), np.zeros(graph.num_edges, bool), 0
    seed = here = rng.integers(graph.num_nodes)
    nodes[seed], waited = True, 0
    while nodes.sum() < config.quota(graph.num_nodes):
        if waited >= config.patience or not around[seed]:
            seed = here = rng.choice(np.flatnonzero(~nodes))
            nodes[seed], waited, reseeds = True, 0, reseeds + 1
            continue
        if rng.random() < config.restart:
            here = seed
        here, number = around[here][rng.integers(len(around[here]))]
        edges[number] = True
        waited = waited + 1 if nodes[here] else 0
        nodes[here] = True
    return nodes, edges, reseeds


def assert_same_frequencies(ours, theirs):
    p, q = ours.mean(axis=0), theirs.mean(axis=0)
    sd = np.sqrt(np.maximum(p * (1 - p) / len(ours) + q * (1 - q) / len(theirs), 1 / min(len(ours), len(theirs)) ** 2))
    z = (p - q) / sd
    assert np.abs(z).max() < 4.5
    assert z.std() < 1.3


@pytest.fixture(scope="module")
def walks():
    return draw_samples(GRAPH, WALK, 0, COUNT, "traversed")


@pytest.mark.devices
def test_walks_are_distributed_like_the_naive_loop(walks):
    rng = np.random.default_rng(0)
    loop = [naive_walk(GRAPH, WALK, rng) for _ in range(1000)]
    assert_same_frequencies(walks.nodes, np.array([n for n, _, _ in loop]))
    assert_same_frequencies(walks.edges, np.array([e for _, e, _ in loop]))
    reseeds = np.array([r for _, _, r in loop])
    assert abs(walks.reseeds.mean() - reseeds.mean()) < 4 * reseeds.std() / np.sqrt(1000)
    both = [np.mean(np.prod(part[:, [0, 7]], axis=1)) for part in (walks.nodes, np.array([n for n, _, _ in loop]))]
    assert abs(both[0] - both[1]) < 4 * np.sqrt(0.25 / 1000)  # pairs too


def test_structure_of_a_walk(walks):
    u, v = GRAPH.edges
    assert (walks.sizes == 30).all()
    np.testing.assert_array_equal(walks.nodes.sum(axis=1), 30)
    assert not walks.exhausted.any()
    for nodes, edges, reseeds in zip(walks.nodes[:100], walks.edges, walks.reseeds, strict=False):
        assert nodes[u[edges]].all()
        assert nodes[v[edges]].all()
        parent = np.arange(60)
        for a, b in zip(u[edges], v[edges], strict=True):
            parent[parent == parent[a]] = parent[b]
        assert np.unique(parent[nodes]).size <= reseeds + 1  # everything hangs on a seed by traversed edges
        assert edges.sum() >= 30 - 1 - reseeds  # every other node came along an edge
    induced = draw_samples(GRAPH, WALK, 0, 5)
    np.testing.assert_array_equal(induced.nodes, walks.nodes[:5])
    np.testing.assert_array_equal(induced.edges, induced.nodes[:, u] & induced.nodes[:, v])


def test_walks_on_lonely_nodes_end():
    graph = graph_from_arrays(np.eye(20), np.arange(20) % 2, np.array([[0], [1]]))
    config = SamplerConfig("random_walk", 0.95, patience=3)
    draws = draw_samples(graph, config, 0, 50, "traversed")
    assert (draws.sizes == 19).all()
    assert (draws.reseeds >= 17).all()
    edgeless = graph_from_arrays(np.eye(20), np.arange(20) % 2, np.zeros((2, 0)))
    draws = draw_samples(edgeless, SamplerConfig("random_walk", 0.5), 0, 2000, "traversed")
    assert (draws.reseeds == 9).all()
    assert np.abs(draws.nodes.mean(axis=0) - 0.5).max() < 4.5 * np.sqrt(0.25 / 2000)  # reseeds are uniform


@pytest.mark.devices
def test_degree_is_distributed_like_the_naive_loop():
    config = SamplerConfig("degree", 0.3, power=1.5)
    draws = draw_samples(GRAPH, config, 0, COUNT)
    assert (draws.nodes.sum(axis=1) == 18).all()
    rng = np.random.default_rng(0)
    assert_same_frequencies(draws.nodes, np.array([naive_degree(GRAPH, config, rng) for _ in range(1500)]))
    mean = [draws.nodes[:, GRAPH.degree == d].mean() for d in np.unique(GRAPH.degree)]
    assert (np.diff(mean) > 0).all()  # inclusion increases in degree


def test_degree_equals_enumeration():
    graph = graph_from_arrays(np.eye(5), np.array([0, 1, 0, 1, 0]), np.array([[0, 0, 0, 1], [1, 2, 3, 2]]))
    weight = (graph.degree + 1.0) ** 2
    exact = np.zeros(5)
    for first, second in permutations(range(5), 2):
        p = weight[first] / weight.sum() * weight[second] / (weight.sum() - weight[first])
        exact[[first, second]] += p
    gamma = estimate_priors(graph, SamplerConfig("degree", 0.4, power=2.0), 0, 20_000).gamma
    assert np.abs((gamma - exact) / np.sqrt(exact * (1 - exact) / 20_000)).max() < 4.5
    even = estimate_priors(graph, SamplerConfig("degree", 0.4, power=0.0), 0, 20_000).gamma
    assert np.abs(even - 0.4).max() < 4.5 * np.sqrt(0.24 / 20_000)


def test_largest_equals_a_sort():
    rng = np.random.default_rng(0)
    for values in (rng.normal(size=50), rng.integers(-2, 3, 50), np.r_[-0.5, -np.inf, np.inf, 1e-30, -1e-30]):
        values = np.asarray(values, np.float32)
        for count in (1, 3, values.size):
            expected = np.zeros(values.size, bool)
            expected[np.argsort(-values, kind="stable")[:count]] = True
            np.testing.assert_array_equal(largest(jnp.asarray(values), count), expected)


@pytest.mark.devices
def test_bernoulli_is_independent_and_exact():
    config = SamplerConfig("bernoulli", 0.3)
    draws = draw_samples(GRAPH, config, 0, COUNT)
    assert np.abs(draws.nodes.mean(axis=0) - 0.3).max() < 4.5 * np.sqrt(0.21 / COUNT)
    np.testing.assert_array_equal(draws.nodes.sum(axis=1), draws.sizes)
    variance = 60 * 0.21
    assert abs(draws.sizes.var() / variance - 1) < 4.5 * np.sqrt(2 / COUNT)  # binomial, not a fixed size
    z = np.corrcoef(draws.nodes.T)[np.triu_indices(60, 1)] * np.sqrt(COUNT)
    assert 0.9 < z.std() < 1.1
    priors = estimate_priors(GRAPH, config, 0)
    assert priors.exact
    assert (priors.gamma == 0.3).all()


def test_an_empty_draw_is_an_untrained_model():
    graph = csbm(nodes=12, classes=2, features=3, mean_degree=3, seed=0)
    result = audit_graph(
        graph, sampler=SamplerConfig("bernoulli", 0.1), shadow=ShadowConfig(count=16), train=TrainConfig(3, hidden=4)
    )
    empty = int((result.evidence["member"].sum(axis=0) == 0).sum())
    assert empty > 0
    assert result.summary["shadows"]["not_finite"] == 0
    assert result.summary["shadows"]["sizes"]["min"] == 0
    assert any(f"{empty} of 16 draws are empty" in text for text in result.warnings)


@pytest.mark.parametrize("config", [WALK, SamplerConfig("degree", 0.3), SamplerConfig("bernoulli", 0.3), PAIRED])
def test_draws_do_not_depend_on_chunk_count_or_purpose(config):
    long = draw_samples(GRAPH, config, 3, 70)
    short = draw_samples(GRAPH, config, 3, 5, chunk=3, mesh=ensemble_mesh(1))
    np.testing.assert_array_equal(long.nodes[:5], short.nodes)
    assert not np.array_equal(short.nodes, draw_samples(GRAPH, config, 4, 5).nodes)
    assert len(np.unique(long.nodes, axis=0)) > 65  # every draw has its own key
    one, other = (estimate_priors(GRAPH, config, 0, 100, chunk=chunk) for chunk in (0, 30))
    np.testing.assert_array_equal(one.gamma, other.gamma)


@pytest.mark.parametrize("config", [WALK, SamplerConfig("degree", 0.5)])
def test_shadows_follow_the_priors(config):
    priors = estimate_priors(GRAPH, config, 0, 4000)
    assert not priors.exact
    draws = draw_samples(GRAPH, config, 1, 2000)
    assert np.abs(priors.gamma - draws.nodes.mean(axis=0)).max() < 4.5 * np.sqrt(0.25 / 2000 + 0.25 / 4000)
    assert abs(priors.gamma.sum() - 30) < 1e-9


@pytest.mark.devices
@pytest.mark.parametrize("n", [60, 61])
def test_paired_draws_are_complements(n):
    graph = csbm(nodes=n, classes=2, features=2, mean_degree=2, seed=1)
    draws = draw_samples(graph, PAIRED, 0, COUNT)
    even, odd = draws.nodes[0::2], draws.nodes[1::2]
    np.testing.assert_array_equal(even, ~odd)
    np.testing.assert_array_equal(draws.nodes.sum(axis=0), COUNT // 2)  # no variance left in n_in
    np.testing.assert_array_equal(draws.sizes, draws.nodes.sum(axis=1))
    assert set(draws.sizes) == {n // 2, n - n // 2}
    assert draws.edges.shape == (COUNT, graph.num_edges)
    pairs = COUNT // 2
    assert np.abs(even.mean(axis=0) - 0.5).max() < 4.5 * np.sqrt(0.25 / pairs)  # each draw by itself has prior 1/2
    z = (np.corrcoef(even.T)[np.triu_indices(n, 1)] + (1 / (n - 1) if n == 60 else 0)) * np.sqrt(pairs)
    assert abs(z.mean()) < 0.1 + (np.sqrt(pairs) / n if n == 61 else 0)
    assert 0.9 < z.std() < 1.1  # and is uniform over the halves
    assert len(np.unique(even, axis=0)) == pairs
    priors = estimate_priors(graph, PAIRED, 0)
    assert priors.exact
    assert (priors.gamma == 0.5).all()


def test_the_smaller_half_falls_on_either_draw_of_a_pair():
    graph = graph_from_arrays(np.eye(7), np.arange(7) % 2, np.zeros((2, 0)))
    sizes = draw_samples(graph, PAIRED, 0, COUNT).sizes[0::2]
    assert abs((sizes == 3).mean() - 0.5) < 4.5 * np.sqrt(0.25 / sizes.size)
    codes, counts = np.unique(
        draw_samples(graph, PAIRED, 0, COUNT).nodes[0::2] @ (1 << np.arange(7)), return_counts=True
    )
    assert codes.size == 70  # all sets of 3 and of 4
    expected = COUNT / 2 / 70
    assert ((counts - expected) ** 2 / expected).sum() < 69 + 4.5 * np.sqrt(2 * 69)


def test_unpaired_uniform_draws_are_not_complements():
    draws = draw_samples(GRAPH, SamplerConfig("uniform", 0.5), 0, 64)
    assert not (draws.nodes[0::2] ^ draws.nodes[1::2]).all(axis=1).any()
    assert draws.nodes.sum(axis=0).std() > 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "snowball", "ratio": 0.5}, "sampler.paired must be false with sampler=snowball, got true"),
        ({"name": "uniform", "ratio": 0.4}, "sampler.ratio must be 0.5 with sampler.paired=true, got 0.4"),
        ({"name": "uniform", "ratio": 0.5, "paired": 1}, "sampler.paired must be true or false, got 1"),
    ],
)
def test_where_pairs_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        SamplerConfig(**{"paired": True, **options})


def test_settings_are_what_a_sampler_reads():
    for name, options in OPTIONS.items():
        if name == "custom":  # its settings name the code; see its own tests
            continue
        with initialize_config_module("jaxaudit.configs", version_base="1.3"):
            node = compose("config", [f"sampler={name}"]).sampler
        config = SamplerConfig(name)
        assert dict(node) == config.settings()
        assert set(config.settings()) == {"name", *options}
    assert SamplerConfig("uniform", fanout=5).settings() == SamplerConfig("uniform").settings()
    assert SamplerConfig("degree", power=2.0).settings() != SamplerConfig("degree").settings()


def test_unread_settings_keep_the_stored_models(tmp_path):
    settings = {"shadow": ShadowConfig(count=4), "train": TrainConfig(2, hidden=4), "cache_dir": tmp_path}
    first = audit_graph(GRAPH, sampler=SamplerConfig("degree", 0.5), **settings)
    again = audit_graph(GRAPH, sampler=SamplerConfig("degree", 0.5, fanout=7), **settings)
    assert (first.summary["shadows"]["trained"], again.summary["shadows"]["trained"]) == (4, 0)


def test_walks_train_along_their_edges():
    result = audit_graph(
        GRAPH, sampler=WALK, edges=EdgeConfig(train="traversed"), shadow=ShadowConfig(count=4), train=TrainConfig(2)
    )
    assert result.summary["shadows"]["reseeds"] > 0
    assert result.config["sampler"] == {"name": "random_walk", "ratio": 0.5, "restart": 0.3, "patience": 6}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"power": -1.0}, "sampler.power must be"),
        ({"restart": 1.0}, "sampler.restart must be"),
        ({"patience": 0}, "sampler.patience must be"),
    ],
)
def test_bad_settings(options, words):
    with pytest.raises(InputError, match=words):
        SamplerConfig(**options)


@pytest.mark.parametrize("name", ["bernoulli", "degree"])
def test_samplers_without_edges_have_none_to_traverse(name):
    with pytest.raises(InputError, match=f"edges.train must be induced with sampler={name}"):
        draw_samples(GRAPH, SamplerConfig(name), 0, 4, "traversed")
