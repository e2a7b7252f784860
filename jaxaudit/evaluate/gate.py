"""A limit for pipelines: does a release audit cross what its owner tolerates?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxaudit.runtime.checks import check_real

__all__ = ["GateConfig", "crossings"]


@dataclass(frozen=True)
class GateConfig:
    """Limits; None sets none. An audit crosses the gate when one attack crosses one limit.

    Attributes:
        auc_lower: in (0, 1); crossed where the lower end of an attack's AUC interval is at least this. The
            intervals are those of single attacks: with many attacks, one crosses by luck more often than with one.
        p_value: in (0, 1); crossed where a p-value, adjusted for all attacks run, is at most this.
    """

    auc_lower: float | None = None
    p_value: float | None = None

    def __post_init__(self) -> None:
        for name in ("auc_lower", "p_value"):
            if getattr(self, name) is not None:
                check_real(f"gate.{name}", getattr(self, name), 0, 1, open_low=True, open_high=True)

    @property
    def given(self) -> bool:
        """Whether there is a limit at all."""
        return self.auc_lower is not None or self.p_value is not None


def crossings(gate: GateConfig, attacks: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """One sentence for every limit that an attack crosses; undefined numbers cross none.

    Args:
        gate: the limits.
        attacks: name -> ``auc_ci`` (low, high) and ``p_value``, as in the summary of a release audit.

    Example:
        >>> crossings(GateConfig(p_value=0.01), {"dcr": {"auc_ci": (0.6, 0.7), "p_value": 0.0001}})
        ('dcr: adjusted p 0.0001 is at or below gate.p_value=0.01',)
    """
    found = []
    for name, numbers in attacks.items():
        low, p = float(numbers["auc_ci"][0]), float(numbers["p_value"])
        if gate.auc_lower is not None and low >= gate.auc_lower:
            found.append(
                f"{name}: the AUC's interval starts at {low:.3f}, at or above gate.auc_lower={gate.auc_lower:g}"
            )
        if gate.p_value is not None and p <= gate.p_value:
            found.append(f"{name}: adjusted p {p:.4g} is at or below gate.p_value={gate.p_value:g}")
    return tuple(found)
