"""The gate: which limits are crossed, by which attack, and what is refused."""

from __future__ import annotations

import pytest

from jaxaudit.evaluate import GateConfig, crossings
from jaxaudit.runtime.checks import InputError

NAN = float("nan")
ATTACKS = {
    "dcr": {"auc_ci": [0.55, 0.7], "p_value": 0.02},
    "mc": {"auc_ci": [0.45, 0.6], "p_value": 0.4},
    "broken": {"auc_ci": [NAN, NAN], "p_value": NAN},
}


@pytest.mark.parametrize(
    ("gate", "crossed"),
    [
        (GateConfig(), 0),
        (GateConfig(auc_lower=0.55), 1),  # a limit is crossed where it is reached
        (GateConfig(auc_lower=0.551), 0),
        (GateConfig(auc_lower=0.4), 2),
        (GateConfig(p_value=0.02), 1),
        (GateConfig(p_value=0.0199), 0),
        (GateConfig(auc_lower=0.55, p_value=0.5), 3),
    ],
)
def test_every_attack_that_reaches_a_limit_is_named(gate: GateConfig, crossed: int) -> None:
    lines = crossings(gate, ATTACKS)
    assert len(lines) == crossed
    assert not any(line.startswith("broken") for line in lines)
    assert not GateConfig().given
    assert GateConfig(p_value=0.1).given


@pytest.mark.parametrize("limits", [{"auc_lower": 1.0}, {"p_value": 0.0}, {"p_value": NAN}, {"auc_lower": "high"}])
def test_limits_outside_0_and_1_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(InputError, match="gate\\."):
        GateConfig(**limits)
