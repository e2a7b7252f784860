"""Example generators of synthetic tables: material to audit, not privacy mechanisms."""

from jaxaudit.tables.generators.mixture import MixtureConfig, overfitting_mixture

__all__ = ["MixtureConfig", "overfitting_mixture"]
