"""No-box attacks on a synthetic table, by name; a user's own attack is one function.

An attack is ``score(targets, synthetic, reference, key) -> (n,)`` on float64 matrices, higher for records
that look like members. Beyond rounding, a record's score depends neither on which other records are
scored nor on the row order of any table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxaudit.runtime.checks import InputError, check_int, require
from jaxaudit.runtime.keys import stream_key
from jaxaudit.tables.attacks.bnaf_attacks import density_bnaf, domias_bnaf, gen_lra_bnaf
from jaxaudit.tables.attacks.counting import LocalNeighbourhoodConfig, MCConfig, local_neighbourhood, mc
from jaxaudit.tables.attacks.distance import dcr, dcr_diff
from jaxaudit.tables.attacks.domias import DomiasConfig, density, domias
from jaxaudit.tables.attacks.ensemble import EnsembleConfig, ensemble
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
from jaxaudit.tables.attacks.mixed_attacks import (
    MixedConfig,
    density_mixed,
    density_mixed_family,
    domias_mixed,
    domias_mixed_family,
    gen_lra_mixed,
    gen_lra_mixed_family,
)
from jaxaudit.tables.attacks.registry import ATTACKS, SUITE, Attack, AttackSettings, Score, registered
from jaxaudit.tables.attacks.weighting import DPIConfig, dpi
from jaxaudit.tables.bnaf import BNAFConfig
from jaxaudit.tables.density import as_rows
from jaxaudit.tables.layout import Layout

__all__ = [
    "ATTACKS",
    "IDENTIFIERS",
    "RESERVED",
    "SUITE",
    "Attack",
    "AttackSettings",
    "BNAFConfig",
    "ClassifierConfig",
    "DPIConfig",
    "DomiasConfig",
    "EnsembleConfig",
    "GenLRAConfig",
    "GenLRAEvidence",
    "GenLRAResult",
    "LocalNeighbourhoodConfig",
    "LoganConfig",
    "MCConfig",
    "MixedConfig",
    "Score",
    "classifier",
    "dcr",
    "dcr_diff",
    "density",
    "density_bnaf",
    "density_mixed",
    "density_mixed_family",
    "domias",
    "domias_bnaf",
    "domias_mixed",
    "domias_mixed_family",
    "dpi",
    "ensemble",
    "gen_lra",
    "gen_lra_bnaf",
    "gen_lra_evidence",
    "gen_lra_family",
    "gen_lra_mixed",
    "gen_lra_mixed_family",
    "gen_lra_scores",
    "local_neighbourhood",
    "logan",
    "mc",
    "registered",
    "score_attacks",
]

RESERVED = ("record", "member", "row", "reference_distance", "release_distance", "stratum")
"""Columns of records.csv that are no attack."""

IDENTIFIERS = "id: "
"""How the names of columns of identifiers begin in records.csv."""


def score_attacks(
    attacks: str | Attack | Score | Iterable[str | Attack | Score], targets: Any, synthetic: Any, reference: Any, *,
    settings: AttackSettings | None = None, layout: Layout | None = None, seed: int = 0,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Scores of several attacks on the same encoded tables.

    Args:
        attacks: registered names, ``Attack`` objects, or functions ``score(targets, synthetic, reference, key)``
            (named by ``__name__``); or one of these alone.
        targets: (n, d) numbers.
        synthetic: (m, d) numbers.
        reference: (r, d) numbers.
        settings: settings of the registered attacks; None for the defaults.
        layout: which columns are numbers and which form a category; None finds it in the tables.
        seed: an attack's key depends on the seed and the attack's name, not on which others run.

    Returns:
        name -> (n,) float64 scores, in the order asked for; a grid of settings of Gen-LRA or of the mixed attacks has a
        name for each, such as ``gen_lra[k=5,h=1]``.

    Raises:
        InputError: an unknown, repeated or reserved name, also within a family that an attack returns; settings or a
            layout of another type; tables of different width, values that are not finite, an attack that does not
            return n finite numbers. What an attack raises carries a note that names it.

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
    attacks = list(attacks)
    settings = AttackSettings() if settings is None else settings
    require(isinstance(settings, AttackSettings), "settings", "be AttackSettings", type(settings).__name__)
    known = registered(settings, layout)
    check_int("seed", seed, 0, 2**32 - 1)
    chosen = [_resolve(attack, known) for attack in attacks]
    names = [attack.name for attack in chosen]
    require(bool(names), "attacks", "name at least one attack", names)
    require(len(set(names)) == len(names), "attacks", "be named once each", ", ".join(names))
    _check_free("attacks", names)
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
        _check_family(attack.name, family, {*names, *scores} - {attack.name})
        scores |= {name: _checked(name, one, len(x)) for name, one in family.items()}
    return scores


def _check_free(subject: str, names: Iterable[str]) -> None:
    """Names become columns of records.csv: they must not be those of other columns."""
    reserved = ", ".join(name for name in names if name in RESERVED)
    require(not reserved, subject, f"have other names than {', '.join(RESERVED)}", reserved)
    identifying = ", ".join(name for name in names if name.startswith(IDENTIFIERS))
    require(not identifying, subject, f"have names that do not start with {IDENTIFIERS!r}", identifying)


def _check_family(attack: str, family: Mapping[Any, Any], others: set[str]) -> None:
    subject = f"attack {attack}"
    require(bool(family), subject, "return scores under at least one name", "an empty mapping")
    odd = [name for name in family if not (isinstance(name, str) and name)]
    require(not odd, subject, "return scores under names that are text, not empty", odd)
    _check_free(subject, family)
    taken = ", ".join(name for name in family if name in others)
    require(not taken, subject, "return scores under names that no other attack has", taken)


def _resolve(attack: Any, known: Mapping[str, Attack]) -> Attack:
    if isinstance(attack, Attack):
        return attack
    if callable(attack):
        return Attack(getattr(attack, "__name__", type(attack).__name__), attack, "user-defined")
    require(isinstance(attack, str) and attack in known, "attacks", f"be among {', '.join(known)}", attack)
    return known[attack]


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
