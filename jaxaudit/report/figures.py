"""All figures of a run. Matplotlib's object API with the Agg canvas: no pyplot, no global state left behind."""

from __future__ import annotations

from jaxaudit.report.canvas import Picture, style
from jaxaudit.report.figures_graph import draw_graph
from jaxaudit.report.figures_release import draw_release
from jaxaudit.runtime.checks import check_choice
from jaxaudit.runtime.result import AuditResult

__all__ = ["Picture", "draw"]


def draw(result: AuditResult) -> list[Picture]:
    """Draw the figures of an audit as PNG bytes, in the order of the report.

    Args:
        result: of a graph or a release audit; empty or all-NaN parts give figures that say so.

    Returns:
        Pictures named limits, prior_and_model, error_plane, attack_comparison, groups (these two where the audit has
        such numbers), who_leaks (graph) or attacks, roc, scores (release).

    Raises:
        InputError: an unknown kind of audit.
    """
    check_choice("audit", result.audit, ("graph", "release"))
    with style():
        return draw_graph(result) if result.audit == "graph" else draw_release(result)
