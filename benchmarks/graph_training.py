"""Shadow training beside PyTorch Geometric: 2 layers, hidden 64, 200 epochs, interleaved in one process.

    python benchmarks/graph_training.py [--graph FILE.npz] [--model gcn] [--models 64] [--processes 2]

Ours trains ``--models`` shadows on all devices; the peer (``pyg_peer``) trains one after another on one thread, in
every setting that it has for the model, on the subgraph of the sampled nodes only, and with ``--processes 2`` also in
two processes at once. Without torch and torch_geometric only ours is measured: cold (fresh process, no persistent
cache) and warm, compilation apart; all models against a quarter of them; peak memory above the data; and what a second
graph of the same size compiles. Test accuracies are printed beside the times.
"""

from __future__ import annotations

import argparse
import os
import statistics
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from machine import machine, peak_mib, save
from scipy import sparse

from jaxaudit.runtime import devices


def ours(graph: Any, samples: Any, options: argparse.Namespace) -> dict[str, float]:
    """One ensemble: seconds compiling and running, and its mean test accuracy."""
    from jaxaudit.graph.models import ModelConfig
    from jaxaudit.graph.sampling import SamplerConfig
    from jaxaudit.graph.shadow import TrainConfig, train_and_query
    from jaxaudit.runtime.progress import Progress

    progress = Progress()
    ensemble = train_and_query(
        graph, samples, sampler=SamplerConfig("uniform", options.ratio), model=ModelConfig(options.model),
        train=TrainConfig(epochs=options.epochs), stage=progress.stage,
    )  # fmt: skip
    right = ensemble.logits.argmax(-1) == graph.labels
    outside = ~samples.nodes
    train, infer = progress.timings["train"], progress.timings["infer"]
    return {
        "models": len(samples.nodes),
        "compile_s": train["compile_s"],
        "compile_query_s": infer["compile_s"],
        "run_s": train["run_s"],
        "run_query_s": infer["run_s"],
        "test_accuracy": float((right & outside).sum() / outside.sum()),
    }


def first_draws(samples: Any, count: int) -> Any:
    """The same draws, but fewer of them."""
    return replace(
        samples, **{name: part[:count] for name, part in vars(samples).items() if isinstance(part, np.ndarray)}
    )


def another(graph: Any) -> Any:
    """A graph of the same size: other features for every node, and its edges less one."""
    from jaxaudit.graph.data import graph_from_arrays

    return graph_from_arrays(graph.features[::-1], graph.labels[::-1], graph.edges[:, 1:], name="another")


def measure_ours(graph: Any, options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Draws, and what one cold ensemble costs; before anything else takes memory."""
    from jaxaudit.graph.sampling import SamplerConfig, draw_samples

    samples = draw_samples(graph, SamplerConfig("uniform", options.ratio), seed=0, count=options.models)
    before = peak_mib()
    cold = ours(graph, samples, options)
    record = {"cold": cold, "peak_mib": peak_mib(), "peak_above_data_mib": peak_mib() - before}
    second = another(graph)
    draws = draw_samples(second, SamplerConfig("uniform", options.ratio), seed=0, count=options.models)
    record["second_graph"] = ours(second, draws, options)
    print(f"ours, cold: compile {cold['compile_s']:.2f} + {cold['compile_query_s']:.2f} s, run {cold['run_s']:.2f} s")
    print(f"    for {options.models} models; peak {record['peak_above_data_mib']:.0f} MiB above the data")
    print(f"    a second graph of this size: compile {record['second_graph']['compile_s']:.3f} s")
    return samples, record


def interleave(graph: Any, samples: Any, record: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Rounds of ours, a quarter of ours, and each setting of the peer, one after another."""
    import pyg_peer as peer

    peer.torch.set_num_threads(1)
    arrays = (graph.features, graph.labels, graph.edges)
    settings = [s for s in peer.SETTINGS[options.model] if s[0] == "dense" or sparse.issparse(graph.features)]
    found: dict[str, Any] = {" ".join(setting): {"runs": [], "process_s": []} for setting in settings}
    for round_ in range(options.rounds):
        warm(graph, samples, record, options)
        for setting in settings:
            entry = found[" ".join(setting)]
            for k in range(options.peer_models):
                seed = k + 100 * round_
                entry["runs"].append(peer.train(options.model, setting, arrays, samples.nodes[k], seed, options.epochs))
            if options.processes > 1:
                nodes = samples.nodes[: options.peer_models]
                spent = peer.train_in_processes(
                    options.model, setting, arrays, nodes, options.epochs, options.processes
                )
                entry["process_s"].append(spent)
    return found


def warm(graph: Any, samples: Any, record: dict[str, Any], options: argparse.Namespace) -> None:
    """A warm run of all models and one of a quarter of them, appended to the record."""
    record.setdefault("warm", []).append(ours(graph, samples, options))
    quarter = first_draws(samples, max(4, options.models // 4))
    if not record.get("warm_quarter"):
        ours(graph, quarter, options)  # its shape may be new
    record.setdefault("warm_quarter", []).append(ours(graph, quarter, options))


def summarise(record: dict[str, Any], peers: dict[str, Any], options: argparse.Namespace) -> None:
    """Medians, and the ratios to each setting of the peer."""
    full, quarter = (statistics.median(run["run_s"] for run in record[name]) for name in ("warm", "warm_quarter"))
    each = full / options.models
    record |= {"ms_per_model": 1e3 * each, "time_all_to_quarter": full / quarter}
    print(f"ours, warm: {1e3 * each:.1f} ms a model, test accuracy {record['warm'][0]['test_accuracy']:.3f};", end=" ")
    print(f"time of all models / a quarter of them: {full / quarter:.2f}")
    for name, entry in peers.items():
        theirs = statistics.median(run["run_s"] for run in entry["runs"])
        accuracy = statistics.mean(run["test_accuracy"] for run in entry["runs"])
        entry |= {"ms_per_model": 1e3 * theirs, "ratio": theirs / each}
        print(f"PyTorch Geometric, {name}: {1e3 * theirs:.0f} ms a model, test accuracy {accuracy:.3f};", end=" ")
        print(f"ratio {theirs / each:.1f}")
        if entry["process_s"]:
            entry["processes_ratio"] = statistics.median(entry["process_s"]) / each
            print(f"    {options.processes} processes at once: ratio {entry['processes_ratio']:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", help="npz file; default: the embedded digits graph")
    parser.add_argument("--model", default="gcn", choices=["gcn", "sage", "gin", "gat"])
    parser.add_argument("--models", type=int, default=64)
    parser.add_argument("--peer-models", type=int, default=3, help="trainings of each peer per round")
    parser.add_argument("--processes", type=int, default=1, help="also time the peer in so many processes at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ratio", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    devices.configure(0)
    from jaxaudit.graph.data import digits_knn, load_npz

    graph = load_npz(options.graph) if options.graph else digits_knn()
    samples, record = measure_ours(graph, options)
    peers: dict[str, Any] = {}
    if find_spec("torch") and find_spec("torch_geometric"):
        peers = interleave(graph, samples, record, options)
    else:
        print("torch and torch_geometric are not installed: only ours is measured")
        for _ in range(options.rounds):
            warm(graph, samples, record, options)
    summarise(record, peers, options)
    saved = {
        "machine": machine("jax", "jaxlib", "torch", "torch_geometric"),
        "graph": {"name": graph.name, "nodes": graph.num_nodes, "edges": graph.num_edges, "ratio": options.ratio},
        "settings": vars(options),
        "ours": record,
        "peers": peers,
    }
    print(f"wrote {os.path.relpath(save(f'graph_training_{options.model}_{graph.name}', saved))}")


if __name__ == "__main__":
    main()
