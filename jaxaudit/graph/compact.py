"""The part of a graph that one draw trains on, cut out on the host and padded to a capacity.

A model's loss involves its members alone and training edges join members alone, so training on the cut-out subgraph is
training on the masked whole graph, at the cost of the draw. Padding is inert: nodes without features, edges or a share
in the loss, each with its self-loop; spare edges and feature entries sit at the last padding node with weight 0.

Draws of about one size share a ``Capacity``, hence one compiled program. It depends on the graph, on the first draw of
the seed and on the model's own draw, never on how many models there are.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from jaxaudit.graph.propagate import Pattern
from jaxaudit.graph.structure import HostGraph, SparseFeatures, Structure

__all__ = ["Capacity", "Part", "capacities", "cut_out", "round_up", "whole", "whole_capacity"]

_STEP = 1.4  # from one capacity of a graph to the next
_BELOW = 20  # steps below the expected size, for empty and nearly empty draws


class Capacity(NamedTuple):
    """Room for a part of a graph: nodes (one of them padding), undirected edges, entries of sparse features."""

    nodes: int
    edges: int
    entries: int

    def bytes(self, dense_columns: int = 0) -> int:
        """Size of such a part: 20 bytes an entry of the adjacency, 24 one of the features, or dense rows."""
        return 20 * (2 * self.edges + self.nodes) + 24 * self.entries + 4 * self.nodes * (dense_columns + 4)


class Part(NamedTuple):
    """What one model sees in training; NumPy arrays.

    Attributes:
        features: (nodes, f) float32 or ``SparseFeatures`` of that shape.
        structure: of ``nodes`` nodes and ``edges`` undirected edges.
        edges: (edges,) bool, False for spare ones.
        labels: (nodes,) int32.
        use: (nodes,) bool, False for padding.
    """

    features: Any
    structure: Structure
    edges: np.ndarray
    labels: np.ndarray
    use: np.ndarray


def round_up(size: float) -> int:
    """The next of 8 sizes per octave: at most an eighth is padding, and graphs of about one size share programs.

    Example:
        >>> [round_up(size) for size in (3, 17, 100, 1354)]
        [8, 18, 104, 1408]
    """
    whole = max(8, math.ceil(size))
    step = max(1, (1 << (whole - 1).bit_length()) >> 4)
    return -(-whole // step) * step


def _sizes(graph: HostGraph, nodes: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """(K, 3) nodes, edges and feature entries of K draws, a padding node included."""
    entries = np.zeros(nodes.shape[0], np.int64)
    if isinstance(graph.features, SparseFeatures):
        entries = nodes @ np.diff(graph.features.pattern.row_starts).astype(np.int64)
    return np.stack([nodes.sum(axis=1) + 1, edges.sum(axis=1), entries], axis=1)


def _everything(graph: HostGraph) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(graph.labels.size, bool), np.ones(graph.num_edges, bool)


def _size(graph: HostGraph) -> np.ndarray:
    return _sizes(graph, *(mask[None] for mask in _everything(graph)))[0]


def whole_capacity(graph: HostGraph) -> Capacity:
    """Room for all of a graph: another graph of about its size gets the same."""
    return Capacity(*(round_up(size) for size in _size(graph)))


def whole(graph: HostGraph) -> Part:
    """All of a graph, padded: what a trained model is queried on."""
    return cut_out(graph, *_everything(graph), whole_capacity(graph))


def capacities(graph: HostGraph, nodes: np.ndarray, edges: np.ndarray, quota: int) -> list[Capacity]:
    """The smallest capacity of a ladder that holds each of K draws.

    The middle rung holds what a uniform draw of the quota is expected to need, or else (a sampler that follows edges)
    what the first draw needs, with slack for the scatter of sizes; the others are powers of 1.4 apart, up to the whole
    graph. So nearly all draws of a sampler take the middle rung, or few where their size varies.

    Args:
        graph: n nodes, E edges.
        nodes: (K, n) bool, draws in the order of the seed, from the first on.
        edges: (K, E) bool, edges between members.
        quota: nodes asked for.

    Returns:
        one capacity for each draw.
    """
    sizes, ratio, top = _sizes(graph, nodes, edges), quota / graph.labels.size, whole_capacity(graph)
    usual = _size(graph) * [ratio, ratio**2, ratio]
    typical = sizes[0] <= (usual + _with_slack(usual)) / 2
    middle = _with_slack(np.where(typical, usual, np.maximum(usual, sizes[0])))
    ladder, step = [top], -_BELOW
    while (rung := Capacity(*map(min, map(round_up, middle * _STEP**step), top))) != top:
        ladder.insert(-1, rung)
        step += 1
    return [next(rung for rung in ladder if (size <= rung).all()) for size in sizes]


def _with_slack(sizes: np.ndarray) -> np.ndarray:
    """A little for nodes; more for edges and entries, which scatter more and are cheap to spare."""
    return np.maximum(sizes + np.sqrt(sizes) * [1, 5, 5], sizes * [1, 1.15, 1.05])


def cut_out(graph: HostGraph, nodes: np.ndarray, edges: np.ndarray, room: Capacity) -> Part:
    """The nodes and edges of one draw, renumbered in their old order and padded.

    Args:
        graph: n nodes, E edges.
        nodes: (n,) bool.
        edges: (E,) bool, edges between these nodes.
        room: nodes > the number of nodes, edges and entries at least theirs.

    Example:
        >>> from jaxaudit.graph.data import graph_from_arrays
        >>> from jaxaudit.graph.structure import host_graph
        >>> path = host_graph(graph_from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], [[0, 1], [1, 2]]))
        >>> part = cut_out(path, np.array([False, True, True]), np.array([False, True]), Capacity(4, 1, 0))
        >>> part.structure.pattern.columns.tolist(), part.use.tolist()
        ([0, 1, 0, 1, 2, 3], [True, True, False, False])
    """
    seen, padding = np.append(edges, True), np.arange(nodes.sum(), room.nodes)
    old, number = graph.structure, np.append(np.cumsum(edges) - 1, room.edges)
    kept = seen[old.edge] & nodes[old.pattern.rows]  # a padding node has its self-loop, as a member has
    pattern = _restrict(old.pattern, kept, nodes, padding, 2 * room.edges + room.nodes, room.nodes)
    edge = np.concatenate([number[old.edge[kept]], np.full(padding.size, room.edges)])
    edge = _pad(edge, pattern.rows.size, room.edges - 1).astype(np.int32)
    used, real = np.arange(room.nodes) < nodes.sum(), np.arange(room.edges) < edges.sum()
    features = _take(graph.features, nodes, room)
    return Part(features, Structure(pattern, edge), real, _pad(graph.labels[nodes], room.nodes), used)


def _take(features: Any, nodes: np.ndarray, room: Capacity) -> Any:
    """The nodes' rows, padded."""
    if not isinstance(features, SparseFeatures):
        return _pad(features[nodes], room.nodes)
    kept = nodes[features.pattern.rows]
    pattern = _restrict(features.pattern, kept, nodes, np.arange(0), room.entries, room.nodes, square=False)
    return SparseFeatures(pattern, _pad(np.asarray(features.values)[kept], room.entries))


def _pad(values: np.ndarray, size: int, filling: int = 0) -> Any:
    """``values`` and then the filling along axis 0, up to ``size``."""
    return np.concatenate([values, np.full((size - values.shape[0], *values.shape[1:]), filling, values.dtype)])


def _restrict(
    pattern: Any, kept: np.ndarray, nodes: np.ndarray, loops: np.ndarray, size: int, height: int, square: bool = True
) -> Pattern:
    """The kept entries in renumbered rows, then the self-loops, then spare entries of the last row and column.

    Order survives renumbering and all that is new comes last in both orders, so nothing is sorted. Starts leave the
    spare entries out: a product by rows never reads them.
    """
    place, number = (np.cumsum(mask, dtype=np.int32) - 1 for mask in (nodes, kept))
    width = height if square else pattern.transpose_starts.size - 1
    first, second = np.flatnonzero(kept), np.flatnonzero(kept[pattern.transpose_order])  # in row and in column order
    real = first.size + loops.size

    def line(index: np.ndarray, renumber: bool, lines: int) -> np.ndarray:
        index = np.concatenate([place[index] if renumber else index, loops], dtype=np.int32)
        return _pad(index, size, lines - 1)

    def starts(index: np.ndarray, lines: int) -> np.ndarray:
        return np.append(0, np.cumsum(np.bincount(index[:real], minlength=lines))).astype(np.int32)

    rows, columns = line(pattern.rows[first], True, height), line(pattern.columns[first], square, width)
    across = line(pattern.transpose_rows[second], square, width)
    down = line(pattern.transpose_columns[second], True, height)
    order = np.concatenate([number[pattern.transpose_order[second]], np.arange(first.size, size)], dtype=np.int32)
    parts: Any = (rows, columns, starts(rows, height), across, down, starts(across, width), order)
    return Pattern(*parts)
