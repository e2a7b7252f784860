"""Audits of released synthetic tables: reading, encoding, attacks and their judgement."""

from jaxaudit.tables.data import Release, load_release, reconcile
from jaxaudit.tables.encode import Encoder, fit_encoder
from jaxaudit.tables.example import breast_cancer_release
from jaxaudit.tables.read import read_table

__all__ = [
    "Encoder", "Release", "breast_cancer_release", "fit_encoder", "load_release", "read_table", "reconcile",
]  # fmt: skip
