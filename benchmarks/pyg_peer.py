"""The peer of the shadow-training benchmark: the same models in PyTorch Geometric, one training after another.

Every setting is the peer's own. ``dense`` and ``sparse`` are the form of the features; ``edges`` sends messages along
an edge list, as the library's examples do, ``tuned`` computes what depends on the graph alone once (the normalisation
of a GCN; a CSR adjacency for GraphSAGE and GIN). Training is on the subgraph of the sampled nodes only. JAX is not
imported.
"""

from __future__ import annotations

import time
import warnings
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch_geometric import nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm

__all__ = ["SETTINGS", "Arrays", "train", "train_in_processes"]

HIDDEN, HEADS = 64, 8
SETTINGS = {
    "gcn": [("dense", "edges"), ("dense", "tuned"), ("sparse", "edges"), ("sparse", "tuned")],
    "sage": [("dense", "edges"), ("dense", "tuned")],
    "gin": [("dense", "edges"), ("dense", "tuned")],
    "gat": [("dense", "edges"), ("sparse", "edges")],
}
"""Per model the (features, adjacency) that the library runs."""

Arrays = tuple[Any, np.ndarray, np.ndarray]
"""Features (dense or CSR), labels, undirected edges (2, E)."""

warnings.filterwarnings("ignore", message="Sparse")


def _part(graph: Arrays, nodes: np.ndarray, features: str) -> tuple[Any, Any, Any]:
    """Features, both directions of the edges, and labels of the induced subgraph."""
    x, labels, edges = graph
    place = np.cumsum(nodes) - 1
    kept = edges[:, nodes[edges].all(axis=0)]
    ends = torch.as_tensor(place[np.concatenate([kept, kept[::-1]], axis=1)])
    rows = x[np.flatnonzero(nodes)]
    if features == "sparse":
        rows = sparse.csr_array(rows)
        parts = [torch.as_tensor(np.asarray(part)) for part in (rows.indptr, rows.indices, rows.data)]
        tensor = torch.sparse_csr_tensor(parts[0].long(), parts[1].long(), parts[2], size=rows.shape)
    else:
        tensor = torch.as_tensor(rows.toarray() if sparse.issparse(rows) else rows)
    return tensor, ends, torch.as_tensor(labels[nodes].astype(np.int64))


class _Net(torch.nn.Module):
    """Two layers with a ReLU between."""

    def __init__(self, model: str, features: int, classes: int, tuned: bool):
        super().__init__()
        if model == "gcn":
            self.first, self.second = (
                nn.GCNConv(*size, normalize=not tuned) for size in self._sizes(features, classes)
            )
        elif model == "sage":
            self.first, self.second = (nn.SAGEConv(*size) for size in self._sizes(features, classes))
        elif model == "gin":
            self.first, self.second = (
                nn.GINConv(torch.nn.Sequential(torch.nn.Linear(a, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, b)))
                for a, b in self._sizes(features, classes)
            )
        else:
            self.first = nn.GATConv(features, HIDDEN, heads=HEADS)
            self.second = nn.GATConv(HEADS * HIDDEN, classes)

    @staticmethod
    def _sizes(features: int, classes: int) -> tuple[tuple[int, int], tuple[int, int]]:
        return (features, HIDDEN), (HIDDEN, classes)

    def forward(self, x: Any, *ends: Any) -> Any:
        return self.second(self.first(x, *ends).relu(), *ends)


def _adjacency(model: str, ends: Any, count: int, tuned: bool) -> tuple[Any, ...]:
    if not tuned:
        return (ends,)
    if model == "gcn":
        return gcn_norm(ends, num_nodes=count)
    ones = torch.ones(ends.shape[1])
    return (torch.sparse_coo_tensor(ends.flip(0), ones, (count, count)).coalesce().to_sparse_csr(),)


def train(model: str, setting: tuple[str, str], graph: Arrays, nodes: np.ndarray, seed: int, epochs: int) -> Any:
    """One training: seconds in the epochs, and the accuracy outside the sample, split edges."""
    torch.manual_seed(seed)
    features, tuned = setting[0], setting[1] == "tuned"
    x, ends, labels = _part(graph, nodes, features)
    ends = _adjacency(model, ends, x.shape[0], tuned)
    net = _Net(model, x.shape[1], int(graph[1].max()) + 1, tuned)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)
    start = time.perf_counter()
    for _ in range(epochs):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(x, *ends), labels).backward()
        optimiser.step()
    spent = time.perf_counter() - start
    with torch.no_grad():
        x, ends, labels = _part(graph, ~nodes, features)
        logits = net(x, *_adjacency(model, ends, x.shape[0], tuned))
    return {"run_s": spent, "test_accuracy": (logits.argmax(-1) == labels).float().mean().item()}


def _worker(
    barrier: Any, results: Any, model: str, setting: Any, graph: Arrays, nodes: np.ndarray, epochs: int
) -> None:
    torch.set_num_threads(1)
    train(model, setting, graph, nodes[0], 0, 2)  # warm
    barrier.wait()
    start = time.monotonic()
    for seed, each in enumerate(nodes):
        train(model, setting, graph, each, seed, epochs)
    results.put((start, time.monotonic()))


def train_in_processes(
    model: str, setting: tuple[str, str], graph: Arrays, nodes: np.ndarray, epochs: int, processes: int
) -> float:
    """Seconds a model where ``processes`` of one thread each train ``nodes.shape[0]`` models at once."""
    context = get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    arguments = (barrier, results, model, setting, graph, nodes, epochs)
    workers = [context.Process(target=_worker, args=arguments) for _ in range(processes)]
    for worker in workers:
        worker.start()
    spans = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    starts, ends = zip(*spans, strict=True)
    return (max(ends) - min(starts)) / (processes * nodes.shape[0])
