"""No-box attacks on a synthetic table, by name; a user's own attack is one function.

An attack is ``score(targets, synthetic, reference, key) -> (n,)`` on float64 matrices, higher for records
that look like members. Beyond rounding, a record's score depends neither on which other records are
scored nor on the row order of any table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from jaxaudit.runtime.checks import InputError, require
from jaxaudit.runtime.keys import stream_key
from jaxaudit.tables.attacks.counting import LocalNeighbourhoodConfig, MCConfig, local_neighbourhood, mc
from jaxaudit.tables.attacks.distance import dcr, dcr_diff
from jaxaudit.tables.attacks.domias import DomiasConfig, density, domias
from jaxaudit.tables.attacks.gen_lra import (
    GenLRAConfig,
    GenLRAEvidence,
    GenLRAResult,
    gen_lra,
    gen_lra_evidence,
    gen_lra_family,
    gen_lra_scores,
)
from jaxaudit.tables.attacks.learned import ClassifierConfig, LoganConfig, classifier, logan
from jaxaudit.tables.attacks.weighting import DPIConfig, dpi
from jaxaudit.tables.density import as_rows

__all__ = [
    "ATTACKS",
    "RESERVED",
    "Attack",
    "ClassifierConfig",
    "DPIConfig",
    "DomiasConfig",
    "GenLRAConfig",
    "GenLRAEvidence",
    "GenLRAResult",
    "LocalNeighbourhoodConfig",
    "LoganConfig",
    "MCConfig",
    "Score",
    "classifier",
    "dcr",
    "dcr_diff",
    "density",
    "domias",
    "dpi",
    "gen_lra",
    "gen_lra_attack",
    "gen_lra_evidence",
    "gen_lra_family",
    "gen_lra_scores",
    "local_neighbourhood",
    "logan",
    "mc",
    "score_attacks",
]

RESERVED = ("record", "member", "row", "reference_distance", "stratum")
"""Columns of records.csv that are no attack."""

Score = Callable[[np.ndarray, np.ndarray, np.ndarray, jax.Array], Any]


@dataclass(frozen=True)
class Attack:
    """A named attack.

    Attributes:
        name: as on the command line and in the results.
        score: ``score(targets, synthetic, reference, key) -> (n,)``; or a family of attacks, name -> (n,).
        description: one line for the report.
        config: its settings, a frozen dataclass, or None where it has none.
    """

    name: str
    score: Score
    description: str
    config: Any = None


def gen_lra_attack(config: GenLRAConfig | None = None) -> Attack:
    """Gen-LRA with the given settings.

    Example:
        >>> gen_lra_attack(GenLRAConfig(k=5)).config.k
        5
    """
    config = config or GenLRAConfig()
    description = "how much adding the record to the reference raises the density of the release around it"
    if isinstance(config.k, tuple) or isinstance(config.multiplier, tuple):
        return Attack("gen_lra", lambda x, s, r, key: gen_lra_family(x, s, r, config), description, config)
    return Attack("gen_lra", lambda x, s, r, key: gen_lra_scores(x, s, r, config).scores, description, config)


def _domias_attack(config: DomiasConfig) -> Attack:
    description = "log density of the release minus log density of the reference at the record"
    return Attack("domias", lambda x, s, r, key: domias(x, s, r, config), description, config)


ATTACKS: Mapping[str, Attack] = MappingProxyType({
    attack.name: attack
    for attack in (
        gen_lra_attack(),
        Attack("dcr", lambda x, s, r, key: dcr(x, s), "minus the distance to the nearest released row"),
        _domias_attack(DomiasConfig()),
        Attack("dcr_diff", lambda x, s, r, key: dcr_diff(x, s, r),
               "distance to the reference minus distance to the release, at equal ranks per row"),
        Attack("dpi", lambda x, s, r, key: dpi(x, s, r),
               "log odds of released against reference rows among the 20 nearest, closer ones counting more",
               DPIConfig()),
        Attack("density", lambda x, s, r, key: density(x, s), "log density of the release at the record",
               DomiasConfig()),
        Attack("mc", lambda x, s, r, key: mc(x, s, r, key=key),
               "share of the release within the median distance from the reference to the release", MCConfig()),
        Attack("local_neighbourhood", lambda x, s, r, key: local_neighbourhood(x, s, r, key=key),
               "share of the release within the 5 % quantile of nearest distances in the reference",
               LocalNeighbourhoodConfig()),
        Attack("classifier", lambda x, s, r, key: classifier(x, s, r, key=key),
               "probability that the record is synthetic, by balanced random forests", ClassifierConfig()),
        Attack("logan", lambda x, s, r, key: logan(x, s, r, key=key),
               "log odds of release against reference by an ensemble of discriminators", LoganConfig()),
    )
})  # fmt: skip
"""The registered attacks, in the order of reports."""


def score_attacks(
    attacks: str | Attack | Score | Iterable[str | Attack | Score], targets: Any, synthetic: Any, reference: Any, *,
    gen_lra: GenLRAConfig | None = None, seed: int = 0,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Scores of several attacks on the same encoded tables.

    Args:
        attacks: registered names, ``Attack`` objects, or functions ``score(targets, synthetic, reference, key)``
            (named by ``__name__``); or one of these alone.
        targets: (n, d) numbers.
        synthetic: (m, d) numbers.
        reference: (r, d) numbers.
        gen_lra: settings of the attack "gen_lra".
        seed: an attack's key depends on the seed and the attack's name, not on which others run.

    Returns:
        name -> (n,) float64 scores, in the order asked for; a grid of Gen-LRA settings has a name for each, such as
        ``gen_lra[k=5,h=1]``.

    Raises:
        InputError: an unknown, repeated or reserved name, tables of different width, values that are not finite,
            an attack that does not return n finite numbers. What an attack raises carries a note that names it.

    Example:
        >>> def nearest_zero(targets, synthetic, reference, key):
        ...     return -np.abs(targets).sum(axis=1)
        >>> x, s, r = np.random.default_rng(0).normal(size=(3, 9, 2))
        >>> list(score_attacks(["dcr", nearest_zero], x, s, r))
        ['dcr', 'nearest_zero']
    """
    if isinstance(attacks, str | Attack) or callable(attacks):
        attacks = [attacks]
    require(isinstance(attacks, Iterable), "attacks", "be a list of names or functions", type(attacks).__name__)
    chosen = [_resolve(attack, gen_lra) for attack in attacks]
    names = [attack.name for attack in chosen]
    require(bool(names), "attacks", "name at least one attack", names)
    require(len(set(names)) == len(names), "attacks", "be named once each", ", ".join(names))
    reserved = [name for name in names if name in RESERVED]
    require(not reserved, "attacks", f"have other names than {', '.join(RESERVED)}", ", ".join(reserved))
    x = as_rows("targets", targets)
    tables = (x, as_rows("synthetic", synthetic, x.shape[1]), as_rows("reference", reference, x.shape[1]))
    scores: dict[str, np.ndarray] = {}
    for attack in chosen:
        # copies: no attack can change what the next one sees
        targets, synthetic, reference = (table.copy() for table in tables)
        key = stream_key(seed, f"attack/{attack.name}")
        try:
            raw = attack.score(targets, synthetic, reference, key)
        except Exception as error:
            error.add_note(f"raised by the attack {attack.name}")
            raise
        family = raw if isinstance(raw, Mapping) else {attack.name: raw}
        scores |= {name: _checked(name, one, len(x)) for name, one in family.items()}
    return scores


def _resolve(attack: Any, config: GenLRAConfig | None) -> Attack:
    if isinstance(attack, Attack):
        return attack
    if callable(attack):
        return Attack(getattr(attack, "__name__", type(attack).__name__), attack, "user-defined")
    known = isinstance(attack, str) and attack in ATTACKS
    require(known, "attacks", f"be among {', '.join(ATTACKS)}", attack)
    return gen_lra_attack(config) if attack == "gen_lra" and config is not None else ATTACKS[attack]


def _checked(name: str, raw: Any, n: int) -> np.ndarray:
    rule = f"return {n} finite scores, one per target"
    try:
        require(not np.iscomplexobj(raw), f"attack {name}", rule, "complex numbers")
        scores = np.asarray(raw, dtype=np.float64)
    except InputError:
        raise
    except (TypeError, ValueError):
        require(False, f"attack {name}", rule, type(raw).__name__)
    require(scores.shape == (n,), f"attack {name}", rule, f"shape {scores.shape}")
    bad = int(n - np.isfinite(scores).sum())
    require(bad == 0, f"attack {name}", rule, f"{bad} that are not finite")
    return scores
