"""Graph records, the file loader and the embedded sources."""

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from jaxaudit.graph.data import csbm, digits_knn, graph_from_arrays, load_graph, load_npz, normalise_rows
from jaxaudit.runtime.checks import InputError

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "graphs"
X = np.array([[1.0, 0, 3], [0, 0, 0], [0, 2, 0], [0, 2, 0]])
LABELS = np.array([0, 1, 1, 0])
EDGES = np.array([[0, 1, 2], [1, 2, 3]])


def write(path, **changes):
    x = sparse.csr_array(X)
    arrays = {
        "x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": np.array(x.shape),
        "labels": LABELS, "edges": EDGES, "num_nodes": np.array(4), "name": np.array("tiny"),
    } | changes  # fmt: skip
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_file_round_trip(tmp_path):
    raw = load_npz(write(tmp_path / "g.npz"), normalise="none")
    assert (raw.name, raw.num_nodes, raw.num_edges, raw.num_classes, raw.num_features) == ("tiny", 4, 3, 2, 3)
    assert sparse.issparse(raw.features)
    assert raw.features.dtype == np.float32
    np.testing.assert_array_equal(raw.features.toarray(), X)
    np.testing.assert_array_equal(raw.degree, [1, 2, 2, 1])
    scaled = load_npz(tmp_path / "g.npz")
    np.testing.assert_allclose(scaled.features.toarray().sum(axis=1), [1, 0, 1, 1])
    assert scaled.digest() != raw.digest()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": None}, "no labels"),
        ({"labels": np.array([0, 1, 1])}, "num_nodes"),
        ({"labels": np.array([0, 1, 1]), "num_nodes": None}, "feature row"),
        ({"labels": np.array([0.0, np.nan, 1, 1])}, "whole"),
        ({"labels": np.array([0.0, 0.5, 1, 1])}, "whole"),
        ({"labels": np.array([0, -1, 1, 1])}, "whole"),
        ({"labels": np.array([0, 9, 1, 1])}, "classes"),
        ({"labels": np.zeros(4, int)}, "classes"),
        ({"labels": np.array(["a", "b", "a", "b"])}, "numeric labels"),
        ({"labels": np.array([0, 1, None, 1], dtype=object)}, "Python objects"),
        ({"edges": np.array([[0, 1], [1, 4]])}, "between nodes 0 and 3"),
        ({"edges": np.array([[0, 1], [1, -1]])}, "between nodes 0 and 3"),
        ({"edges": np.array([[0.5], [1.0]])}, "integer edges"),
        ({"edges": np.array([0, 1, 2])}, "shape"),
        ({"x_data": np.array([1.0, np.nan, 2, 2])}, "finite"),
        ({"x_data": np.array([1.0, 2.0])}, "agree"),
        ({"x_indices": np.array([0, 7, 1, 1])}, "x_indices"),
        ({"x_indptr": np.array([0, 2, 1, 3, 4])}, "agree"),
        ({"num_nodes": np.array(5)}, "num_nodes"),
        ({"missing_idx": np.array([9])}, "missing_idx"),
        ({"missing_idx": np.array(["a"])}, "missing_idx"),
        ({"missing_idx": np.array([1.7])}, "missing_idx"),
        ({"num_nodes": np.array("sixty")}, "num_nodes"),
        ({"num_nodes": np.array(4.5)}, "num_nodes"),
        ({"labels": LABELS[:, None]}, "one label per node"),
        ({"x_data": np.array([1.0, np.inf, 2, 2])}, "finite"),
        ({"x_data": np.array([1.0, 1e300, 2, 2])}, "finite"),
        ({"x_shape": np.array([4, 10**12])}, "feature columns"),
    ],
)
def test_bad_files(tmp_path, changes, words):
    with pytest.raises(InputError, match=r"^graph\.path must .*, got ") as caught:
        load_npz(write(tmp_path / "bad.npz", **changes))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_nodes_as_numbers_or_flags(tmp_path):
    flags = np.array([False, False, True, False])
    for missing in (flags, np.array([2])):
        graph = load_npz(write(tmp_path / "g.npz", missing_idx=missing))
        np.testing.assert_array_equal(graph.missing, flags)
    assert not load_npz(write(tmp_path / "g.npz", missing_idx=~flags & flags)).missing.any()


def test_missing_and_foreign_files(tmp_path):
    for path in (None, 5):
        with pytest.raises(InputError, match=r"graph\.path must be the path of a file"):
            load_npz(path)
    with pytest.raises(InputError, match="existing file"):
        load_npz(tmp_path / "absent.npz")
    with pytest.raises(InputError, match="existing file"):
        load_npz(tmp_path)
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "plain.npy", np.zeros(3))
    for name in ("text.npz", "plain.npy"):
        with pytest.raises(InputError, match=r"graph\.path"):
            load_npz(tmp_path / name)


def test_edges_are_repaired_and_counted():
    graph = graph_from_arrays(X, LABELS, [[0, 1, 1, 2, 2, 2], [1, 0, 2, 1, 2, 3]], missing=[1])
    np.testing.assert_array_equal(graph.edges, EDGES)
    text = " ".join(graph.warnings())
    for part in ("1 self-loops", "2 duplicate", "2 nodes share", "2 classes have fewer", "1 nodes have neither"):
        assert part in text


def test_sparse_and_dense_are_one_graph():
    dense = graph_from_arrays(X, LABELS, EDGES)
    thin = graph_from_arrays(sparse.coo_array(X), LABELS, EDGES)
    assert [w for w in dense.warnings() if "share" in w] == [w for w in thin.warnings() if "share" in w]
    np.testing.assert_allclose(normalise_rows(X), normalise_rows(sparse.csr_array(X)).toarray())
    lonely = graph_from_arrays(X, LABELS, np.zeros((2, 0)))
    assert "4 nodes are isolated" in " ".join(lonely.warnings())


def test_digits():
    graph = digits_knn()
    assert (graph.num_nodes, graph.num_classes, graph.num_features) == (1797, 10, 64)
    assert graph.features.min() == 0
    assert graph.features.max() == 1
    assert graph.degree.min() >= 10
    distance = ((graph.features[7] - graph.features) ** 2).sum(axis=1)
    nearest = set(np.argsort(distance)[1:11].tolist())
    ends = graph.edges[:, (graph.edges == 7).any(axis=0)].ravel()
    assert nearest <= set(ends[ends != 7].tolist())


def test_csbm_follows_its_parameters():
    graph = csbm(nodes=2000, classes=3, mean_degree=8, homophily=0.7, signal=3.0, seed=4)
    same = graph.labels[graph.edges[0]] == graph.labels[graph.edges[1]]
    assert abs(same.mean() - 0.7) < 0.03
    assert 6 < graph.degree.mean() <= 8
    assert graph.degree.max() > 4 * graph.degree.mean()  # heavy tail
    means = np.stack([graph.features[graph.labels == c].mean(axis=0) for c in range(3)])
    np.testing.assert_allclose(np.linalg.norm(means, axis=1), 3, atol=0.3)
    assert graph.digest() == csbm(nodes=2000, classes=3, mean_degree=8, homophily=0.7, signal=3.0, seed=4).digest()
    assert graph.digest() != csbm(nodes=2000, classes=3, mean_degree=8, homophily=0.7, signal=3.0, seed=5).digest()


def test_load_graph_checks_its_options():
    assert load_graph("csbm", nodes=40).num_nodes == 40
    for name, options, words in (
        ("cora", {}, "graph must be one of"),
        ("csbm", {"neighbours": 3}, "graph=csbm must have options"),
        ("npz", {}, "graph.path must be given"),
        ("digits_knn", {"neighbours": 0}, "graph.neighbours"),
        ("csbm", {"homophily": 1.5}, "graph.homophily"),
    ):
        with pytest.raises(InputError, match=words):
            load_graph(name, **options)


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data sets are not there")
def test_real_graphs_load():
    cora, citeseer = load_npz(SHARED / "cora.npz"), load_npz(SHARED / "citeseer.npz")
    assert (cora.num_nodes, cora.num_edges, cora.num_classes) == (2708, 5278, 7)
    text = " ".join(citeseer.warnings())
    assert "48 nodes are isolated" in text
    assert "15 nodes have neither" in text
