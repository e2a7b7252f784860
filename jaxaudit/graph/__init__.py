"""Graph audits: data, samplers, shadow models, node-level attacks, and the pipeline over them."""

from jaxaudit.graph.attacks import NODE_ATTACKS, AttackConfig
from jaxaudit.graph.audit import EdgeConfig, audit_graph
from jaxaudit.graph.data import Graph, csbm, digits_knn, graph_from_arrays, load_graph, load_npz
from jaxaudit.graph.models import Model, ModelConfig
from jaxaudit.graph.noise import NoiseConfig
from jaxaudit.graph.plan import AuditPlan, PlanConfig, format_plan, plan_audit, write_plan
from jaxaudit.graph.posteriors import BMPConfig
from jaxaudit.graph.sampling import SamplerConfig, as_sampler, draw_samples, estimate_priors
from jaxaudit.graph.shadow import ShadowConfig
from jaxaudit.graph.training import TrainConfig

__all__ = [
    "NODE_ATTACKS", "AttackConfig", "AuditPlan", "BMPConfig", "EdgeConfig", "Graph", "Model", "ModelConfig",
    "NoiseConfig", "PlanConfig", "SamplerConfig", "ShadowConfig", "TrainConfig", "as_sampler", "audit_graph", "csbm",
    "digits_knn", "draw_samples", "estimate_priors", "format_plan", "graph_from_arrays", "load_graph", "load_npz",
    "plan_audit", "write_plan",
]  # fmt: skip
