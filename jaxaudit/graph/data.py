"""Attributed, undirected graphs: one validated record, a file loader and two embedded sources."""

from __future__ import annotations

import inspect
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from jaxaudit.runtime import store
from jaxaudit.runtime.checks import InputError, check_choice, check_int, check_real, require
from jaxaudit.runtime.keys import host_rng

__all__ = ["SOURCES", "Graph", "csbm", "digits_knn", "graph_from_arrays", "load_graph", "load_npz", "normalise_rows"]

_KEYS = ("x_data", "x_indices", "x_indptr", "x_shape", "labels", "edges")
_OPTIONAL = ("num_nodes", "name", "missing_idx")
_SMALL_CLASS = 10
_MOST_FEATURES = 10_000_000  # a weight matrix of 64 columns is then 2.5 GB


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph with node features and class labels; build it with ``graph_from_arrays``.

    Attributes:
        name: what reports call it.
        features: (n, f) float32, dense or ``scipy.sparse.csr_array``; finite.
        labels: (n,) int32 in [0, classes).
        edges: (2, E) int32, every undirected edge once with u < v, sorted by (u, v).
        missing: (n,) bool, nodes known to have neither features nor a real label.
        notes: one sentence per thing that was repaired when the graph was built.
    """

    name: str
    features: Any
    labels: np.ndarray
    edges: np.ndarray
    missing: np.ndarray = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def num_nodes(self) -> int:
        """Number of nodes, n."""
        return int(self.labels.shape[0])

    @property
    def num_edges(self) -> int:
        """Number of undirected edges, E."""
        return int(self.edges.shape[1])

    @property
    def num_features(self) -> int:
        """Number of feature columns, f."""
        return int(self.features.shape[1])

    @cached_property
    def num_classes(self) -> int:
        """Number of classes: the largest label plus one."""
        return int(self.labels.max()) + 1

    @cached_property
    def degree(self) -> np.ndarray:
        """(n,) int64 number of neighbours."""
        return np.bincount(self.edges.ravel(), minlength=self.num_nodes)

    def digest(self) -> str:
        """Hash of features, labels and edges; the name does not enter."""
        x = self.features
        parts = [x.data, x.indices, x.indptr] if sparse.issparse(x) else [x]
        return store.digest(list(x.shape), parts, self.labels, self.edges)

    def warnings(self) -> tuple[str, ...]:
        """What a reader of the results should know of the data, one sentence each."""
        counts = np.bincount(self.labels, minlength=self.num_classes)
        found = [
            (int((self.degree == 0).sum()), "{} nodes are isolated (no neighbours)"),
            (_shared_rows(self.features), "{} nodes share their features with another node"),
            (int((counts < _SMALL_CLASS).sum()), f"{{}} classes have fewer than {_SMALL_CLASS} nodes"),
            (int(self.missing.sum()), "{} nodes have neither features nor a real label; they are kept"),
        ]
        return self.notes + tuple(text.format(count) for count, text in found if count)


def _shared_rows(features: Any) -> int:
    """How many rows equal at least one other row."""
    if sparse.issparse(features):
        x = features
        spans = [slice(a, b) for a, b in zip(x.indptr[:-1], x.indptr[1:], strict=True)]
        rows = [x.indices[s].tobytes() + x.data[s].tobytes() for s in spans]
    else:
        rows = [row.tobytes() for row in features]
    seen: dict[bytes, int] = {}
    for row in rows:
        seen[row] = seen.get(row, 0) + 1
    return sum(count for count in seen.values() if count > 1)


def graph_from_arrays(
    features: Any,
    labels: Any,
    edges: Any,
    *,
    name: str = "graph",
    missing: Any = (),
    source: str = "graph",
) -> Graph:
    """Validate arrays and bring them into the one form that the package works with.

    Args:
        features: (n, f) numbers, dense or SciPy sparse.
        labels: (n,) integers >= 0 (whole-numbered floats are taken).
        edges: (2, E) node numbers. Self-loops are dropped, duplicates and reversed copies merged, and
            the counts noted.
        name: what reports call the graph.
        missing: numbers of nodes without features and label, or (n,) bool.
        source: how messages call the input.

    Raises:
        InputError: sizes disagree, values are not finite or not whole, labels or edges are out of range.

    Example:
        >>> graph = graph_from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], [[0, 1, 1], [1, 0, 2]])
        >>> graph.edges.tolist(), graph.notes
        ([[0, 1], [1, 2]], ('1 duplicate or reversed edges were merged',))
    """
    labels = _labels(np.asarray(labels), source)
    n = labels.shape[0]
    features = _features(features, n, source)
    edges, notes = _edges(np.asarray(edges), n, source)
    index = np.asarray(missing)
    if index.dtype == bool and index.shape == (n,):
        index = np.flatnonzero(index)
    rule = "have missing_idx of node numbers or one flag per node"
    require(index.size == 0 or index.dtype.kind in "iu", source, rule, f"dtype {index.dtype}, shape {index.shape}")
    index = index.astype(np.int64).ravel()
    inside = (index >= 0) & (index < n)
    require(bool(inside.all()), source, f"have missing_idx in [0, {n - 1}]", f"{(~inside).sum()} outside")
    absent = np.zeros(n, bool)
    absent[index] = True
    return Graph(str(name), features, labels, edges, absent, notes)


def _labels(labels: np.ndarray, source: str) -> np.ndarray:
    require(labels.dtype.kind in "iufb", source, "have numeric labels", f"dtype {labels.dtype}")
    require(labels.ndim == 1 and labels.size >= 2, source, "have one label per node", f"shape {labels.shape}")
    whole = np.isfinite(labels) & (labels == np.floor(labels)) & (labels >= 0)
    bad = labels[~whole]
    require(bad.size == 0, source, "have labels that are whole numbers >= 0", f"{bad.size} others, such as {bad[:1]}")
    top = labels.max()
    require(0 < top < labels.size, source, "have labels 0 .. C-1 of 2 <= C <= nodes classes", f"largest label {top}")
    return labels.astype(np.int32)


def _features(features: Any, n: int, source: str) -> Any:
    if sparse.issparse(features):
        x: Any = sparse.csr_array(features).astype(np.float32)
        x.sum_duplicates()  # sorts the indices as well
        values = x.data
    else:
        x = np.asarray(features)
        require(x.dtype.kind in "iufb", source, "have numeric features", f"dtype {x.dtype}")
        x = values = np.ascontiguousarray(x, dtype=np.float32)
    right = x.ndim == 2 and x.shape[0] == n and x.shape[1] > 0
    require(right, source, f"have one feature row for each of {n} labels", f"shape {x.shape}")
    bad = int((~np.isfinite(values)).sum())
    require(bad == 0, source, "have finite features", f"{bad} values that are not")
    return x


def _edges(edges: np.ndarray, n: int, source: str) -> tuple[np.ndarray, tuple[str, ...]]:
    require(edges.ndim == 2 and edges.shape[0] == 2, source, "have edges of shape (2, E)", f"shape {edges.shape}")
    require(edges.size == 0 or edges.dtype.kind in "iu", source, "have integer edges", f"dtype {edges.dtype}")
    edges = edges.astype(np.int64)
    outside = edges[(edges < 0) | (edges >= n)]
    rule = f"have edges between nodes 0 and {n - 1}"
    require(outside.size == 0, source, rule, f"{outside.size} entries outside, such as {outside[:1]}")
    proper = edges[0] != edges[1]
    code = np.sort(edges[:, proper], axis=0)
    unique = np.unique(code[0] * n + code[1])
    merged = code.shape[1] - unique.size
    notes = []
    if not proper.all():
        notes.append(f"{int((~proper).sum())} self-loops were dropped")
    if merged:
        notes.append(f"{merged} duplicate or reversed edges were merged")
    return np.stack([unique // n, unique % n]).astype(np.int32), tuple(notes)


def normalise_rows(features: Any) -> Any:
    """Scale every row to absolute sum 1; rows of zeros stay. Sparse stays sparse.

    Example:
        >>> normalise_rows(np.array([[1.0, 3.0], [0.0, 0.0]])).tolist()
        [[0.25, 0.75], [0.0, 0.0]]
    """
    total = np.asarray(abs(features).sum(axis=1), dtype=np.float64).ravel()
    scale = 1 / np.where(total > 0, total, 1)
    if sparse.issparse(features):
        return sparse.csr_array(sparse.diags_array(scale) @ features)
    return features * scale[:, None]


def load_npz(path: str | os.PathLike[str], normalise: str = "row") -> Graph:
    """Read a graph file: features as CSR, labels, and each undirected edge.

    Keys: ``x_data, x_indices, x_indptr, x_shape, labels, edges``; optional ``num_nodes, name, missing_idx``.
    CSR features stay sparse.

    Args:
        path: the file.
        normalise: ``row`` scales every feature row to sum 1, as is usual for bags of words and as the published
            numbers do (on raw Cora a GCN overfits: .99 in training, .72 in test accuracy); ``none`` keeps the values.

    Raises:
        InputError: the file or a key is missing, an array holds Python objects, or a rule of
            ``graph_from_arrays`` is broken.
    """
    source = "graph.path"
    check_choice("graph.normalise", normalise, ("row", "none"))
    require(isinstance(path, str | os.PathLike), source, "be the path of a file", path)
    path = Path(path).expanduser()
    require(path.is_file(), source, "be an existing file", str(path))
    require(zipfile.is_zipfile(path), source, "be an .npz archive", str(path))
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files if key in _KEYS + _OPTIONAL}
    except (zipfile.BadZipFile, EOFError, OSError, TypeError, AttributeError):
        raise InputError(f"{source} must be a readable .npz archive, got {path}") from None
    except InputError:
        raise
    except ValueError as error:
        what = "an array of Python objects" if "allow_pickle" in str(error) else str(error).splitlines()[0]
        raise InputError(f"{source} must hold plain numeric arrays in an .npz archive, got {what} in {path}") from None
    absent = [name for name in _KEYS if name not in arrays]
    require(not absent, source, f"have the keys {', '.join(_KEYS)}", f"no {', '.join(absent)} in {path}")
    labels = _labels(arrays["labels"], source)
    if "num_nodes" in arrays:
        count = arrays["num_nodes"]
        agrees = count.size == 1 and count.dtype.kind in "iu" and int(count.item()) == labels.shape[0]
        require(agrees, source, f"have num_nodes = {labels.shape[0]}, the number of labels", count.tolist())
    name = str(arrays["name"].item()) if "name" in arrays and arrays["name"].size == 1 else path.stem
    features = _csr(arrays, source)
    if normalise == "row":
        features = normalise_rows(features)
    return graph_from_arrays(
        features, labels, arrays["edges"], name=name, missing=arrays.get("missing_idx", ()), source=source
    )


def _csr(arrays: dict[str, np.ndarray], source: str) -> sparse.csr_array:
    """The CSR matrix of the x_* arrays; every broken invariant is an InputError."""
    data, indices, indptr, shape = (arrays[f"x_{part}"] for part in ("data", "indices", "indptr", "shape"))
    kinds = data.dtype.kind in "iufb" and all(part.dtype.kind in "iu" for part in (indices, indptr, shape))
    require(kinds, source, "have numeric x_data and integer x_indices, x_indptr, x_shape", "other types")
    require(shape.shape == (2,) and shape.min() > 0, source, "have an x_shape of two positive numbers", shape.tolist())
    ordered = indptr.shape == (int(shape[0]) + 1,) and indptr[0] == 0 and bool((np.diff(indptr) >= 0).all())
    fits = ordered and data.ndim == 1 and data.shape == indices.shape and indptr[-1] == data.size
    require(bool(fits), source, "have x_data, x_indices, x_indptr, x_shape that agree", "sizes that disagree")
    inside = indices.size == 0 or (indices.min() >= 0 and indices.max() < shape[1])
    require(bool(inside), source, f"have x_indices in [0, {int(shape[1]) - 1}]", "indices outside")
    require(shape[1] <= _MOST_FEATURES, source, f"have at most {_MOST_FEATURES} feature columns", int(shape[1]))
    with np.errstate(over="ignore"):
        values = data.astype(np.float32)
    bad = int((~np.isfinite(values)).sum())  # before rows are scaled: a row divided by infinity looks harmless
    require(bad == 0, source, "have finite features", f"{bad} values that are not")
    return sparse.csr_array((values, indices, indptr), shape=tuple(int(size) for size in shape))


def digits_knn(neighbours: int = 10) -> Graph:
    """Symmetric k-nearest-neighbour graph of scikit-learn's handwritten digits (1,797 nodes, 64 features).

    Features are pixel values scaled to [0, 1]; an edge joins two digits if either is among the
    ``neighbours`` nearest of the other.

    Args:
        neighbours: k, in [1, 100].
    """
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    check_int("graph.neighbours", neighbours, 1, 100)
    digits = load_digits()
    features = (digits.data / 16.0).astype(np.float32)
    nearest = kneighbors_graph(features, neighbours).tocoo()
    both = np.sort(np.stack([nearest.row, nearest.col]), axis=0)
    return graph_from_arrays(features, digits.target, np.unique(both, axis=1), name=f"digits_knn{neighbours}")


def csbm(
    nodes: int = 1000,
    classes: int = 4,
    features: int = 32,
    mean_degree: float = 10.0,
    homophily: float = 0.8,
    signal: float = 1.0,
    degree_exponent: float = 2.5,
    seed: int = 0,
) -> Graph:
    """Contextual, degree-corrected stochastic block model, for controlled tests.

    Node weights are Pareto with density ∝ x^-``degree_exponent``; each of nodes·mean_degree/2 edges picks an end
    by weight, then its other end by weight within the same class (probability ``homophily``) or within
    the others. Repeated picks merge, so the realised mean degree is somewhat lower. Features are a class
    mean of length ``signal`` plus standard normal noise.
    Source: Deshpande et al. 2018 (arXiv:1807.09596); degree correction of Karrer & Newman 2011.

    Args:
        nodes: n >= 10.
        classes: in [2, n/2], of equal size.
        features: >= 1.
        mean_degree: in [0, n/2].
        homophily: share of edges inside a class, in [0, 1].
        signal: distance of a class mean from the origin, >= 0, in noise standard deviations.
        degree_exponent: > 1; the larger, the more even the degrees.
        seed: >= 0.

    Example:
        >>> csbm(nodes=60, seed=1).digest() == csbm(nodes=60, seed=1).digest()
        True
    """
    check_int("graph.nodes", nodes, 10)
    check_int("graph.classes", classes, 2, nodes // 2)
    check_int("graph.features", features, 1)
    check_real("graph.mean_degree", mean_degree, 0, nodes / 2)
    check_real("graph.homophily", homophily, 0, 1)
    check_real("graph.signal", signal, 0)
    check_real("graph.degree_exponent", degree_exponent, 1, open_low=True)
    rng = host_rng(check_int("seed", seed, 0), "csbm")
    labels = rng.permutation(np.arange(nodes) % classes)
    with np.errstate(over="ignore"):  # capped at the square root of n
        weight = np.minimum((1 - rng.random(nodes)) ** (-1 / (degree_exponent - 1)), np.sqrt(nodes))
    first = rng.choice(nodes, size=round(nodes * mean_degree / 2), p=weight / weight.sum())
    same = rng.random(first.size) < homophily
    second = np.empty_like(first)
    for label in range(classes):
        for inside in (True, False):
            picks = (labels[first] == label) & (same == inside)
            pool = np.flatnonzero((labels == label) == inside)
            second[picks] = rng.choice(pool, size=int(picks.sum()), p=weight[pool] / weight[pool].sum())
    pairs = np.sort(np.stack([first, second]), axis=0)
    means = rng.standard_normal((classes, features))
    means *= signal / np.linalg.norm(means, axis=1, keepdims=True)
    x = means[labels] + rng.standard_normal((nodes, features))
    return graph_from_arrays(x, labels, np.unique(pairs[:, pairs[0] != pairs[1]], axis=1), name="csbm")


SOURCES: dict[str, Callable[..., Graph]] = {"digits_knn": digits_knn, "csbm": csbm, "npz": load_npz}
"""Name -> loader, as ``graph=`` names them."""


def load_graph(name: str, **options: Any) -> Graph:
    """The graph of a named source.

    Raises:
        InputError: unknown source, an option it does not have, or a value it does not take.

    Example:
        >>> load_graph("csbm", nodes=60).num_nodes
        60
    """
    source = SOURCES[check_choice("graph", name, SOURCES)]
    known = inspect.signature(source).parameters
    unknown = [option for option in options if option not in known]
    require(not unknown, f"graph={name}", f"have options among {', '.join(known)}", ", ".join(unknown))
    absent = [key for key, item in known.items() if item.default is item.empty and key not in options]
    require(not absent, f"graph.{absent[0] if absent else ''}", "be given", "nothing")
    return source(**options)
