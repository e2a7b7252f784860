"""Audits of released synthetic tables: reading, encoding, attacks and their judgement."""

from jaxaudit.tables.data import Release, load_release, reconcile
from jaxaudit.tables.encode import Encoder, fit_encoder
from jaxaudit.tables.example import breast_cancer_release
from jaxaudit.tables.overlaps import overlap_masks
from jaxaudit.tables.read import read_table
from jaxaudit.tables.roles import Role
from jaxaudit.tables.strata import outlier_strata, strata_summary

__all__ = [
    "Encoder", "Release", "Role", "breast_cancer_release", "fit_encoder", "load_release", "outlier_strata",
    "overlap_masks", "read_table", "reconcile", "strata_summary",
]  # fmt: skip
