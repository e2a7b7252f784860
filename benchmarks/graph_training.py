"""Shadow training beside PyTorch Geometric: 2-layer GCN, hidden 64, 200 epochs, interleaved in one process.

    python benchmarks/graph_training.py [--graph FILE.npz] [--models 64] [--peer-models 3]

Ours trains ``--models`` shadows on all devices; the peer trains one after another on one thread (its best
setting on few cores), on the subgraph of the sampled nodes only, with dense and with sparse features. Without
torch and torch_geometric only ours is measured. Ours is measured cold (fresh process, no persistent cache)
and warm, compilation apart; test accuracies are printed beside the times.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import numpy as np
from machine import machine, peak_mib, save
from scipy import sparse

from jaxaudit.runtime import devices

devices.configure(0)

from jaxaudit.graph.data import Graph, digits_knn, load_npz  # noqa: E402
from jaxaudit.graph.sampling import SamplerConfig, draw_samples  # noqa: E402
from jaxaudit.graph.shadow import train_and_query  # noqa: E402
from jaxaudit.runtime.progress import Progress  # noqa: E402


def ours(graph: Graph, samples: Any, sampler: SamplerConfig) -> dict[str, float]:
    """One ensemble: seconds compiling and running, and its mean test accuracy."""
    progress = Progress()
    ensemble = train_and_query(graph, samples, sampler=sampler, stage=progress.stage)
    right = ensemble.logits.argmax(-1) == graph.labels
    outside = ~samples.nodes
    spent = progress.timings["train"]
    return {
        "compile_s": spent["compile_s"],
        "run_s": spent["run_s"],
        "test_accuracy": float((right & outside).sum() / outside.sum()),
    }


def peer(graph: Graph, nodes: np.ndarray, kind: str, seed: int) -> dict[str, float]:
    """One PyTorch Geometric training on the induced subgraph: seconds, and test accuracy with split edges."""
    import torch
    from torch_geometric.nn import GCNConv

    torch.manual_seed(seed)

    def part(mask: np.ndarray) -> tuple[Any, Any, Any]:
        place = np.full(graph.num_nodes, -1)
        place[mask] = np.arange(mask.sum())
        kept = graph.edges[:, mask[graph.edges].all(axis=0)]
        ends = place[np.concatenate([kept, kept[::-1]], axis=1)]
        rows = graph.features[np.flatnonzero(mask)]
        if kind == "sparse":
            rows = sparse.csr_array(rows)
            parts = [torch.as_tensor(np.asarray(p)) for p in (rows.indptr, rows.indices, rows.data)]
            x = torch.sparse_csr_tensor(parts[0].long(), parts[1].long(), parts[2], size=rows.shape)
        else:
            x = torch.as_tensor(rows.toarray() if sparse.issparse(rows) else rows)
        return x, torch.as_tensor(ends), torch.as_tensor(graph.labels[mask].astype(np.int64))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = GCNConv(graph.num_features, 64)
            self.second = GCNConv(64, graph.num_classes)

        def forward(self, x: Any, ends: Any) -> Any:
            return self.second(self.first(x, ends).relu(), ends)

    x, ends, labels = part(nodes)
    net = Net()
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)
    start = time.perf_counter()
    for _ in range(200):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(x, ends), labels).backward()
        optimiser.step()
    spent = time.perf_counter() - start
    with torch.no_grad():
        x, ends, labels = part(~nodes)
        accuracy = (net(x, ends).argmax(-1) == labels).float().mean().item()
    return {"run_s": spent, "test_accuracy": accuracy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", help="npz file; default: the embedded digits graph")
    parser.add_argument("--models", type=int, default=64)
    parser.add_argument("--peer-models", type=int, default=3, help="trainings of each peer per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ratio", type=float, default=0.5)
    options = parser.parse_args()
    graph = load_npz(options.graph) if options.graph else digits_knn()
    sampler = SamplerConfig("uniform", options.ratio)
    samples = draw_samples(graph, sampler, seed=0, count=options.models)
    try:
        import torch
        import torch_geometric  # noqa: F401

        torch.set_num_threads(1)
        kinds = ["dense", "sparse"]
    except ImportError:
        print("torch and torch_geometric are not installed: only ours is measured")
        kinds = []
    first = ours(graph, samples, sampler)
    print(f"ours, cold: compile {first['compile_s']:.2f} s, run {first['run_s']:.2f} s for {options.models} models")
    peak = peak_mib()
    warm, peers = [], {kind: [] for kind in kinds}
    for round_ in range(options.rounds):
        warm.append(ours(graph, samples, sampler))
        for kind in kinds:
            peers[kind] += [peer(graph, samples.nodes[k], kind, k + 100 * round_) for k in range(options.peer_models)]
    each = statistics.median(run["run_s"] for run in warm) / options.models
    print(f"ours, warm: {1e3 * each:.1f} ms a model, test accuracy {warm[0]['test_accuracy']:.3f}")
    record: dict[str, Any] = {
        "machine": machine("jax", "jaxlib", "torch", "torch_geometric"),
        "graph": {"name": graph.name, "nodes": graph.num_nodes, "edges": graph.num_edges, "ratio": options.ratio},
        "models": options.models,
        "ours": {"cold": first, "warm": warm, "ms_per_model": 1e3 * each, "peak_mib": peak},
        "peers": {},
    }
    for kind, runs in peers.items():
        theirs = statistics.median(run["run_s"] for run in runs)
        accuracy = statistics.mean(run["test_accuracy"] for run in runs)
        print(f"PyTorch Geometric, {kind}: {1e3 * theirs:.0f} ms a model, test accuracy {accuracy:.3f}")
        print(f"    ratio {theirs / each:.1f}x")
        record["peers"][kind] = {"runs": runs, "ms_per_model": 1e3 * theirs, "ratio": theirs / each}
    print(f"wrote {os.path.relpath(save(f'graph_training_{graph.name}', record))}")


if __name__ == "__main__":
    main()
