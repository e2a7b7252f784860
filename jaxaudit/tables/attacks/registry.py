"""The registered attacks by name, made from their settings and from the columns of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from jaxaudit.runtime.checks import require
from jaxaudit.tables.attacks.bnaf_attacks import density_bnaf, domias_bnaf, gen_lra_bnaf
from jaxaudit.tables.attacks.counting import LocalNeighbourhoodConfig, MCConfig, local_neighbourhood, mc
from jaxaudit.tables.attacks.distance import dcr, dcr_diff
from jaxaudit.tables.attacks.domias import DomiasConfig, density, domias
from jaxaudit.tables.attacks.ensemble import EnsembleConfig, ensemble
from jaxaudit.tables.attacks.gen_lra import GenLRAConfig, gen_lra_family, gen_lra_scores
from jaxaudit.tables.attacks.learned import ClassifierConfig, LoganConfig, classifier, logan
from jaxaudit.tables.attacks.mixed_attacks import (
    MixedConfig,
    density_mixed_family,
    domias_mixed_family,
    gen_lra_mixed_family,
)
from jaxaudit.tables.attacks.weighting import DPIConfig, dpi
from jaxaudit.tables.bnaf import BNAFConfig
from jaxaudit.tables.layout import Layout, infer_layout

__all__ = ["ATTACKS", "SUITE", "Attack", "AttackSettings", "Score", "registered"]

Score = Callable[[np.ndarray, np.ndarray, np.ndarray, jax.Array], Any]


@dataclass(frozen=True)
class Attack:
    """A named attack.

    Attributes:
        name: as on the command line and in the results.
        score: ``score(targets, synthetic, reference, key) -> (n,)``; or a family of attacks, name -> (n,).
        description: one line for the report.
        config: its settings, a frozen dataclass, or None where it has none.

    Raises:
        InputError: a name or description that is no text, a score that is no function.
    """

    name: str
    score: Score
    description: str
    config: Any = None

    def __post_init__(self) -> None:
        require(isinstance(self.name, str) and self.name != "", "an attack's name", "be text, not empty", self.name)
        name = f"attack {self.name}"
        require(callable(self.score), name, "have a function as its score", type(self.score).__name__)
        require(isinstance(self.description, str), name, "have text as description", type(self.description).__name__)


@dataclass(frozen=True)
class AttackSettings:
    """Settings of the registered attacks, each under its name.

    ``domias`` is for ``density`` as well, ``mixed`` for the three attacks with a kernel for categories, ``bnaf`` for
    the three with a flow in place of a kernel density.

    Example:
        >>> AttackSettings(gen_lra=GenLRAConfig(k=5)).gen_lra.k
        5
    """

    gen_lra: GenLRAConfig = field(default_factory=GenLRAConfig)
    domias: DomiasConfig = field(default_factory=DomiasConfig)
    dpi: DPIConfig = field(default_factory=DPIConfig)
    mc: MCConfig = field(default_factory=MCConfig)
    local_neighbourhood: LocalNeighbourhoodConfig = field(default_factory=LocalNeighbourhoodConfig)
    classifier: ClassifierConfig = field(default_factory=ClassifierConfig)
    logan: LoganConfig = field(default_factory=LoganConfig)
    mixed: MixedConfig = field(default_factory=MixedConfig)
    bnaf: BNAFConfig = field(default_factory=BNAFConfig)
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)

    def __post_init__(self) -> None:
        for item in fields(AttackSettings):  # a job of the command line adds fields of its own
            kind: Any = item.default_factory
            given = getattr(self, item.name)
            require(isinstance(given, kind), item.name, f"be a {kind.__name__}", type(given).__name__)


def registered(settings: AttackSettings | None = None, layout: Layout | None = None) -> Mapping[str, Attack]:
    """The attacks by name, in the order of reports.

    Args:
        settings: of the attacks; None for the defaults.
        layout: which encoded columns are numbers and which form a category; None finds it in the tables.

    Raises:
        InputError: settings or a layout of another type.

    Example:
        >>> registered()["dcr"].description
        'minus the distance to the nearest released row'
    """
    own = AttackSettings() if settings is None else settings
    require(isinstance(own, AttackSettings), "settings", "be AttackSettings", type(own).__name__)
    require(layout is None or isinstance(layout, Layout), "layout", "be a Layout", type(layout).__name__)
    mixed, bnaf = own.mixed, own.bnaf
    attacks = (
        _gen_lra(own.gen_lra),
        Attack("dcr", lambda x, s, r, key: dcr(x, s), "minus the distance to the nearest released row"),
        Attack("domias", lambda x, s, r, key: domias(x, s, r, own.domias),
               "log density of the release minus log density of the reference at the record", own.domias),
        Attack("dcr_diff", lambda x, s, r, key: dcr_diff(x, s, r),
               "distance to the reference minus distance to the release, at equal ranks per row"),
        Attack("dpi", lambda x, s, r, key: dpi(x, s, r, own.dpi),
               "log odds of released against reference rows among the nearest, closer ones counting more", own.dpi),
        Attack("density", lambda x, s, r, key: density(x, s, own.domias),
               "log density of the release at the record", own.domias),
        Attack("mc", lambda x, s, r, key: mc(x, s, r, own.mc, key=key),
               "share of the release within the median distance from the reference to the release", own.mc),
        Attack("local_neighbourhood",
               lambda x, s, r, key: local_neighbourhood(x, s, r, own.local_neighbourhood, key=key),
               "share of the release within a small quantile of nearest distances in the reference",
               own.local_neighbourhood),
        Attack("classifier", lambda x, s, r, key: classifier(x, s, r, own.classifier, key=key),
               "probability that the record is synthetic, by balanced random forests", own.classifier),
        Attack("logan", lambda x, s, r, key: logan(x, s, r, own.logan, key=key),
               "log odds of release against reference by an ensemble of discriminators", own.logan),
        Attack("gen_lra_mixed", lambda x, s, r, key: _single(gen_lra_mixed_family(x, s, r, mixed, layout)),
               "gen_lra with a kernel for categories beside the one for numbers", mixed),
        Attack("domias_mixed", lambda x, s, r, key: _single(domias_mixed_family(x, s, r, mixed, layout)),
               "domias with a kernel for categories beside the one for numbers", mixed),
        Attack("density_mixed",
               lambda x, s, r, key: _single(density_mixed_family(x, s, mixed, layout or infer_layout(s, r))),
               "density with a kernel for categories beside the one for numbers", mixed),
        Attack("gen_lra_bnaf", lambda x, s, r, key: gen_lra_bnaf(x, s, r, bnaf, key=key),
               "how much training a flow of the reference on the record raises its density of the release around it",
               bnaf),
        Attack("domias_bnaf", lambda x, s, r, key: domias_bnaf(x, s, r, bnaf, key=key),
               "domias with flows in place of kernel densities", bnaf),
        Attack("density_bnaf", lambda x, s, r, key: density_bnaf(x, s, r, bnaf, key=key),
               "density with a flow in place of the kernel density", bnaf),
    )  # fmt: skip
    known = {attack.name: attack for attack in attacks}
    return MappingProxyType(known | {"ensemble": _ensemble(own.ensemble, known)})


def _gen_lra(config: GenLRAConfig) -> Attack:
    description = "how much adding the record to the reference raises the density of the release around it"
    if isinstance(config.k, tuple) or isinstance(config.multiplier, tuple):
        return Attack("gen_lra", lambda x, s, r, key: gen_lra_family(x, s, r, config), description, config)
    return Attack("gen_lra", lambda x, s, r, key: gen_lra_scores(x, s, r, config).scores, description, config)


def _single(family: Mapping[str, np.ndarray]) -> Any:
    """The scores of a family without a grid, whose one name has no settings in it; or the family."""
    name, *_ = family
    return family if "[" in name else family[name]


def _ensemble(config: EnsembleConfig, known: Mapping[str, Attack]) -> Attack:
    def score(x: np.ndarray, s: np.ndarray, r: np.ndarray, key: jax.Array) -> np.ndarray:
        for name in config.components:
            require(name in known, "ensemble.components", f"be among {', '.join(known)}", name)
        return ensemble(x, s, r, {name: known[name].score for name in config.components}, key, config)

    description = f"mean of the calibrated ranks of {', '.join(config.components)}"
    return Attack("ensemble", score, description, config)


ATTACKS = registered()
"""The registered attacks with their default settings."""

SUITE = ("gen_lra", "dcr", "domias", "dcr_diff", "dpi", "density", "mc", "local_neighbourhood", "classifier", "logan")
"""Gen-LRA and its nine competitors."""
