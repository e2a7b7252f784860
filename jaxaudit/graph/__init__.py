"""Graph audits: data, samplers, shadow models, node-level attacks, and the pipeline over them."""

from jaxaudit.graph.attacks import AttackConfig
from jaxaudit.graph.audit import BMPConfig, EdgeConfig, audit_graph
from jaxaudit.graph.data import Graph, csbm, digits_knn, graph_from_arrays, load_graph, load_npz
from jaxaudit.graph.models import Model, ModelConfig
from jaxaudit.graph.sampling import SamplerConfig, draw_samples, estimate_priors
from jaxaudit.graph.shadow import ShadowConfig
from jaxaudit.graph.training import TrainConfig

__all__ = [
    "AttackConfig", "BMPConfig", "EdgeConfig", "Graph", "Model", "ModelConfig", "SamplerConfig", "ShadowConfig",
    "TrainConfig", "audit_graph", "csbm", "digits_knn", "draw_samples", "estimate_priors", "graph_from_arrays",
    "load_graph", "load_npz",
]  # fmt: skip
