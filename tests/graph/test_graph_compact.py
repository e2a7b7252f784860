"""Cut-out subgraphs against naive loops and the masked whole graph; capacities and what they may depend on."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

from jaxaudit.graph import per_model, shadow, shadow_stages
from jaxaudit.graph.compact import Capacity, capacities, cut_out, round_up, whole, whole_capacity
from jaxaudit.graph.data import csbm, graph_from_arrays
from jaxaudit.graph.models import MODELS, Model, ModelConfig, build_model, multiply
from jaxaudit.graph.propagate import gcn_weights, neighbour_sum
from jaxaudit.graph.sampling import SamplerConfig, draw_samples
from jaxaudit.graph.shadow import TrainConfig, train_and_query
from jaxaudit.graph.structure import SparseFeatures, entry_mask, host_graph
from jaxaudit.graph.training import make_fit

DENSE = csbm(nodes=70, classes=3, features=5, mean_degree=5, seed=6)
THIN = graph_from_arrays(sparse.csr_array(np.where(DENSE.features > 0.2, DENSE.features, 0)), DENSE.labels, DENSE.edges)
TRAIN = TrainConfig(epochs=20, hidden=6)
UNIFORM = SamplerConfig("uniform", 0.5)


def draw(traversed, seed=0):
    """Half of the nodes, and all of their edges or about half."""
    rng = np.random.default_rng(seed)
    nodes = rng.permutation(DENSE.num_nodes) < DENSE.num_nodes // 2
    both = nodes[DENSE.edges].all(axis=0)
    return nodes, both & (rng.random(both.size) < 0.5) if traversed else both


def check_pattern(pattern, shape):
    """Row order, column order and starts describe the same entries; spare ones sit in the last row and column."""
    real = pattern.row_starts[-1]
    assert (pattern.row_starts.size, pattern.transpose_starts.size) == (shape[0] + 1, shape[1] + 1)
    assert pattern.transpose_starts[-1] == real
    assert (pattern.rows[real:] == shape[0] - 1).all()
    assert (pattern.columns[real:] == shape[1] - 1).all()
    np.testing.assert_array_equal(pattern.transpose_order, np.lexsort((pattern.rows, pattern.columns)))
    np.testing.assert_array_equal(pattern.transpose_rows, pattern.columns[pattern.transpose_order])
    np.testing.assert_array_equal(pattern.transpose_columns, pattern.rows[pattern.transpose_order])
    for index, starts in ((pattern.rows, pattern.row_starts), (pattern.columns, pattern.transpose_starts)):
        np.testing.assert_array_equal(np.diff(starts), np.bincount(index[:real], minlength=starts.size - 1))
    assert all(part.dtype == np.int32 for part in pattern)


@pytest.mark.parametrize("graph", [DENSE, THIN], ids=["dense", "sparse"])
@pytest.mark.parametrize("traversed", [False, True], ids=["induced", "traversed"])
def test_a_cut_out_part_equals_a_naive_loop(graph, traversed):
    nodes, edges = draw(traversed)
    members, room = np.flatnonzero(nodes), Capacity(40, 90, 120)
    part = cut_out(host_graph(graph), nodes, edges, room)
    check_pattern(part.structure.pattern, (40, 40))
    assert part.structure.pattern.row_starts[-1] == 40 + 2 * edges.sum()  # spare entries are never read
    place = {node: i for i, node in enumerate(members)}
    expected, pad = np.eye(40), 39
    for u, v in graph.edges[:, edges].T:
        expected[place[u], place[v]] = expected[place[v], place[u]] = 1
    mask = np.asarray(entry_mask(part.structure, part.edges))
    got = np.zeros((40, 40))
    np.add.at(got, (part.structure.pattern.rows, part.structure.pattern.columns), mask)
    np.testing.assert_array_equal(got, expected)
    alone = np.arange(part.edges.size) == 1  # the numbers of edges survive as well
    u, v = graph.edges[:, edges][:, 1]
    got = entry_mask(part.structure, alone) > 0
    off = part.structure.pattern.rows != part.structure.pattern.columns
    assert set(part.structure.pattern.rows[got & off].tolist()) == {place[u], place[v]}
    x = graph.features.toarray() if sparse.issparse(graph.features) else graph.features
    rows = np.concatenate([x[members], np.zeros((40 - members.size, 5), np.float32)])
    np.testing.assert_allclose(multiply(jax.tree.map(jnp.asarray, part.features), jnp.eye(5)), rows, rtol=1e-6)
    if isinstance(part.features, SparseFeatures):
        check_pattern(part.features.pattern, (40, 5))
        assert part.features.values.size == 120
    np.testing.assert_array_equal(part.labels[: members.size], graph.labels[members])
    assert part.use.sum() == members.size
    assert not part.use[pad]


@pytest.mark.parametrize("graph", [DENSE, THIN], ids=["dense", "sparse"])
def test_the_whole_graph_comes_back_behind_its_padding(graph):
    host, part = host_graph(graph), whole(host_graph(graph))
    assert (part.use.sum(), part.edges.sum()) == (70, graph.num_edges)
    real = part.structure.pattern.rows < 70
    for ours, old in zip(part.structure.pattern[:2], host.structure.pattern[:2], strict=True):
        np.testing.assert_array_equal(ours[real], old)
    edge = part.structure.edge[real]
    np.testing.assert_array_equal(np.where(edge == part.edges.size, graph.num_edges, edge), host.structure.edge)


@lru_cache
def fitted(name):
    model = build_model(name, 5, TRAIN.hidden, 3)
    fit = make_fit(model, TRAIN)

    @jax.jit
    def train(part):
        mask = entry_mask(part.structure, part.edges)
        params, loss = fit(jax.random.key(3), part.features, part.structure, mask, part.labels, part.use)
        return model.apply(params, part.features, part.structure, model.prepare(part.structure, mask)), loss

    return train


@pytest.mark.devices
@pytest.mark.parametrize("name", sorted(MODELS))
def test_training_on_the_part_is_training_on_the_masked_whole(name):
    """The logits of members; the part in a room as large as the graph's, so that one program serves both."""
    train, host, everything = fitted(name), host_graph(THIN), whole(host_graph(THIN))
    spare = np.zeros(everything.edges.size - THIN.num_edges, bool)
    for traversed in (False, True):
        nodes, edges = draw(traversed)
        use = np.append(nodes, np.zeros(everything.use.size - nodes.size, bool))
        logits, loss = train(everything._replace(edges=np.append(edges, spare), use=use))
        ours, our_loss = train(cut_out(host, nodes, edges, whole_capacity(host)))
        np.testing.assert_allclose(our_loss, loss, rtol=1e-5)
        np.testing.assert_allclose(ours[: nodes.sum()], logits[use], atol=1e-4)
        if name == "gcn":  # and without more padding than needed
            tight, _ = train(cut_out(host, nodes, edges, Capacity(nodes.sum() + 1, edges.sum(), 100)))
            np.testing.assert_allclose(tight[: nodes.sum()], logits[use], atol=1e-4)
    assert np.ptp(logits, axis=0).max() > 0.1


def by_hand(nodes, edges):
    """Draws with these members and all edges between them."""
    both = nodes[:, edges[0]] & nodes[:, edges[1]]
    zeros = np.zeros(len(nodes), np.int32)
    return shadow.Samples(nodes, both, nodes.sum(axis=1).astype(np.int32), zeros > 0, zeros, 35)


def odd_draws():
    """Half, nobody, everybody, one node, half, half."""
    half = [draw(False, seed)[0] for seed in (0, 1, 2)]
    one, everybody = np.arange(70) == 4, np.ones(70, bool)
    return np.stack([half[0], ~everybody, everybody, one, half[1], half[2]])


@pytest.mark.parametrize("graph", [DENSE, THIN], ids=["dense", "sparse"])
def test_capacities_hold_their_draws_and_are_the_smallest(graph):
    host, nodes = host_graph(graph), odd_draws()
    edges = nodes[:, graph.edges[0]] & nodes[:, graph.edges[1]]
    rooms = capacities(host, nodes, edges, 35)
    for count in (1, 3):
        assert capacities(host, nodes[:count], edges[:count], 35) == rooms[:count]
    x = sparse.csr_array(graph.features) if sparse.issparse(graph.features) else None
    for k, room in enumerate(rooms):
        entries = 0 if x is None else x[np.flatnonzero(nodes[k])].nnz
        needed = (nodes[k].sum() + 1, edges[k].sum(), entries)
        assert all(need <= size for need, size in zip(needed, room, strict=True))
        for other in rooms:
            fits = all(need <= size for need, size in zip(needed, other, strict=True))
            assert not fits or other >= room
    assert rooms[2] == whole_capacity(host)
    assert rooms[0] == rooms[4] == rooms[5]
    assert rooms[0].nodes < 48
    assert rooms[1].nodes == 8


def test_one_sampler_few_capacities():
    """200 uniform draws of a fixed size share one room; independent ones need two at most here."""
    graph = csbm(nodes=600, classes=3, features=4, mean_degree=4, seed=1)
    host = host_graph(graph)
    for name, most in (("uniform", 1), ("bernoulli", 2)):
        samples = draw_samples(graph, SamplerConfig(name, 0.5), 0, 200)
        assert len(set(capacities(host, samples.nodes, samples.edges, samples.quota))) <= most


def test_sizes_are_rounded_up_by_an_eighth_at_most():
    sizes = np.arange(1, 5000)
    rounded = np.array([round_up(size) for size in sizes])
    assert (rounded >= sizes).all()
    assert (np.diff(rounded) >= 0).all()
    assert (rounded <= np.maximum(8, 1.125 * sizes + 1)).all()
    assert len(set(rounded.tolist())) < 85
    full = csbm(nodes=72, classes=3, features=2, mean_degree=3, seed=0)
    assert round_up(72) == 72
    assert whole_capacity(host_graph(full)).nodes > 72  # room for a padding node


@pytest.mark.devices
def test_a_model_does_not_depend_on_the_others(monkeypatch):
    """Draws of every size, among them an empty one: alone, together, and grouped otherwise, bit for bit."""
    nodes = odd_draws()
    settings = {"sampler": UNIFORM, "train": TrainConfig(epochs=4, hidden=4)}
    together = train_and_query(THIN, by_hand(nodes, THIN.edges), **settings)
    assert together.finite.all()
    assert together.losses[1] == 0  # nobody's loss
    few = train_and_query(THIN, by_hand(nodes[:4], THIN.edges), **settings)
    np.testing.assert_array_equal(few.logits, together.logits[:4])
    monkeypatch.setattr(shadow_stages, "_HOST_BYTES", 1)
    alone = train_and_query(THIN, by_hand(nodes, THIN.edges), **settings)
    np.testing.assert_array_equal(alone.logits, together.logits)
    np.testing.assert_array_equal(alone.losses, together.losses)


def test_a_second_graph_of_the_same_bucket_compiles_nothing():
    traces = []

    def counted(features, hidden, classes):
        def apply(params, x, structure, weights):
            traces.append(structure.edge.shape)
            return neighbour_sum(structure.pattern, weights, multiply(x, params["w"]))

        return Model(
            init=lambda key: {"w": 0.1 * jax.random.normal(key, (features, classes))},
            apply=apply,
            prepare=lambda structure, mask: gcn_weights(structure.pattern, mask),
        )

    def audit(graph):
        samples = draw_samples(graph, UNIFORM, 0, 4)
        train_and_query(graph, samples, sampler=UNIFORM, model=counted, train=TRAIN)
        return len(traces)

    first = audit(THIN)
    assert first > 1  # the shape check of one's own builder, training and query
    other = csbm(nodes=70, classes=3, features=5, mean_degree=5, seed=8)
    x = THIN.features[::-1]
    other = graph_from_arrays(x, other.labels, other.edges[:, : THIN.num_edges - 1])
    assert other.digest() != THIN.digest()
    assert audit(other) == first


def test_the_store_keeps_models_trained_otherwise_apart(tmp_path, monkeypatch):
    samples = draw_samples(DENSE, UNIFORM, 0, 4)
    settings = {"sampler": UNIFORM, "train": TrainConfig(epochs=1, hidden=4), "store": shadow.Store(tmp_path)}
    assert train_and_query(DENSE, samples, model=ModelConfig("mlp"), **settings).trained == 4
    assert train_and_query(DENSE, samples, model=ModelConfig("mlp"), **settings).trained == 0
    monkeypatch.setattr(shadow, "_TRAINING", 1)
    assert train_and_query(DENSE, samples, model=ModelConfig("mlp"), **settings).trained == 4


def test_a_capacity_never_depends_on_later_draws():
    host = host_graph(THIN)
    usual, huge = np.arange(THIN.num_nodes) < 30, np.arange(THIN.num_nodes) < THIN.num_nodes - 1
    for first, later in ((usual, huge), (huge, usual)):
        nodes = np.stack([first, first, later])
        edges = nodes[:, THIN.edges[0]] & nodes[:, THIN.edges[1]]
        alone = capacities(host, nodes[:1], edges[:1], 30)
        assert capacities(host, nodes, edges, 30)[:2] == alone * 2


def test_groups_waste_little():
    assert [per_model._group_size(64, most, 2) for most in (16, 14, 2, 1)] == [16, 8, 2, 2]
    assert [per_model._group_size(count, 16, 4) for count in (1, 5, 16, 17)] == [4, 8, 16, 12]
    for count in range(1, 80):
        size = per_model._group_size(count, 14, 2)
        assert size % 2 == 0
        assert size <= 14
        padded = [-(-count // other) * other for other in (8, 10, 12, 14)]
        assert -(-count // size) * size == min(padded) or count <= 14
