"""What an audit returns: one frozen record for both audits, ready to be written or looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["SCHEMA_VERSION", "AuditResult"]

SCHEMA_VERSION = 1
"""Version of the layout of ``results.json``; raised when a key changes its meaning or its place."""


@dataclass(frozen=True)
class AuditResult:
    """The outcome of one audit.

    Attributes:
        audit: "graph" or "release".
        config: every setting that was used, as plain nested values.
        data: what was audited: names, sizes, digests, columns.
        summary: the numbers of the audit, as plain nested values (NaN where undefined).
        warnings: one sentence each, about input or results a reader should know of.
        timings: stage name -> {"compile_s", "run_s", "items"}, in seconds.
        table: one row per node (graph) or per record (release).
        evidence: arrays behind the figures, by name.
        tables: further tables, by the name of their file without ".csv".
    """

    audit: str
    config: dict[str, Any]
    data: dict[str, Any]
    summary: dict[str, Any]
    warnings: tuple[str, ...]
    timings: dict[str, dict[str, float]]
    table: pd.DataFrame
    evidence: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)
