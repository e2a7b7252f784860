"""Settings with several values, and the names of the attacks that a grid of them makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from jaxaudit.runtime.checks import require
from jaxaudit.tables.settings import as_list

__all__ = ["family", "one_or_several"]


def one_or_several(name: str, value: Any) -> Any:
    """Several values, such as a list from YAML, as a tuple (hashable); anything else as it is, to be checked.

    Raises:
        InputError: no value, one of them twice or in the same six digits (names could not tell them apart), or a value
            that is neither a name nor a number.

    Example:
        >>> one_or_several("gen_lra.k", [1, 5]), one_or_several("gen_lra.k", 5)
        ((1, 5), 5)
    """
    listed = value.ndim > 0 if isinstance(value, np.ndarray) else isinstance(value, Sequence)
    if isinstance(value, str) or not listed:
        return value
    several = as_list(name, list(value))
    require(len({_label(one) for one in several}) == len(several), name, "hold values that differ in six digits",
            list(several))  # fmt: skip
    return several


def family(attack: str, scores: np.ndarray, varying: Mapping[str, tuple[Any, ...]]) -> dict[str, np.ndarray]:
    """Scores by name, one for every combination of the settings that vary.

    Args:
        attack: name of the attack, and of its scores if no setting varies.
        scores: (..., n), an axis for every setting.
        varying: by the letters of a setting in a name, its values.

    Example:
        >>> list(family("gen_lra", np.zeros((2, 1, 9)), {"k": (1, 5), "h": (0.5,)}))
        ['gen_lra[k=1,h=0.5]', 'gen_lra[k=5,h=0.5]']
    """
    if not varying:
        return {attack: scores}
    settings = [
        ",".join(f"{letters}={_label(value)}" for letters, value in zip(varying, values, strict=True))
        for values in product(*varying.values())
    ]
    named = (f"{attack}[{setting}]" for setting in settings)
    return dict(zip(named, scores.reshape(len(settings), -1), strict=True))


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value}"
