"""jaxaudit: a privacy audit engine for graph models and synthetic tables, on JAX.

Two audits: ``audit_graph`` asks how much a graph model reveals about each node's membership of its training
sample; ``audit_release`` asks which records a published synthetic table betrays. Names are imported on first
use, so that ``import jaxaudit`` and the command line's help stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxaudit import bmp, evaluate, graph, report, runtime, tables
    from jaxaudit.graph.audit import audit_graph
    from jaxaudit.report import write_run
    from jaxaudit.runtime.checks import InputError
    from jaxaudit.runtime.devices import configure
    from jaxaudit.runtime.result import AuditResult
    from jaxaudit.tables.attacks.gen_lra import gen_lra
    from jaxaudit.tables.audit import audit_release

__all__ = [
    "AuditResult",
    "InputError",
    "__version__",
    "audit_graph",
    "audit_release",
    "bmp",
    "configure",
    "evaluate",
    "gen_lra",
    "graph",
    "report",
    "runtime",
    "tables",
    "write_run",
]

__version__ = "0.1.0"

_HOMES = {
    "AuditResult": "jaxaudit.runtime.result",
    "InputError": "jaxaudit.runtime.checks",
    "audit_graph": "jaxaudit.graph.audit",
    "audit_release": "jaxaudit.tables.audit",
    "configure": "jaxaudit.runtime.devices",
    "gen_lra": "jaxaudit.tables.attacks.gen_lra",
    "write_run": "jaxaudit.report",
}
_PACKAGES = ("bmp", "evaluate", "graph", "report", "runtime", "tables")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _PACKAGES:
        return import_module(f"jaxaudit.{name}")
    raise AttributeError(f"module 'jaxaudit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
