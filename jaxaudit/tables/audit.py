"""The release audit: load, encode, score, evaluate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from jaxaudit.evaluate.canonical import merge_rounding
from jaxaudit.evaluate.gate import GateConfig, crossings
from jaxaudit.runtime.checks import check_int, require
from jaxaudit.runtime.keys import stream_key
from jaxaudit.runtime.progress import Progress
from jaxaudit.runtime.result import AuditResult
from jaxaudit.tables.attacks import IDENTIFIERS, Attack, AttackSettings, Score, score_attacks
from jaxaudit.tables.basis import fit_basis, span_report
from jaxaudit.tables.copies import Copies, copies
from jaxaudit.tables.data import Release, load_release, table_digest
from jaxaudit.tables.density import distinct_rows
from jaxaudit.tables.encode import Encoder, fit_encoder
from jaxaudit.tables.evidence import ReportConfig, closest_pairs, expose
from jaxaudit.tables.example import breast_cancer_release
from jaxaudit.tables.judgement import EvaluationConfig, judge
from jaxaudit.tables.overlaps import in_release, overlap_masks
from jaxaudit.tables.roles import Roles
from jaxaudit.tables.sensitivity import SensitivityConfig, check_sensitivity, sensitivity_summary
from jaxaudit.tables.sensitivity import sensitivity as try_references
from jaxaudit.tables.strata import Strata, outlier_strata

__all__ = ["EvaluationConfig", "audit_example", "audit_release"]

_ALARMS = 5
"""Crossings of the gate that stand among the warnings; all are in the summary."""

Attacks = str | Attack | Score | Iterable[str | Attack | Score]

DEFAULT_ATTACKS = ("gen_lra", "dcr", "domias")

_BY_DENSITY = ("gen_lra", "domias", "gen_lra_bnaf", "domias_bnaf")


def audit_release(
    members: Any,
    non_members: Any,
    synthetic: Any,
    reference: Any = None,
    attacks: Attacks = DEFAULT_ATTACKS,
    *,
    encoding: str = "standard",
    drop: str | Iterable[str] = (),
    roles: Roles | None = None,
    settings: AttackSettings = AttackSettings(),
    evaluation: EvaluationConfig = EvaluationConfig(),
    gate: GateConfig = GateConfig(),
    report: ReportConfig = ReportConfig(),
    sensitivity: SensitivityConfig = SensitivityConfig(),
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditResult:
    """Attack a synthetic table and judge the attacks on records of known membership.

    Args:
        members: records that trained the generator; a DataFrame or a path (CSV, TSV, gz, Parquet).
        non_members: records that did not, from the same population.
        synthetic: the released table.
        reference: independent records for the attacker; None takes half of the non-members, with a warning.
        attacks: names from ``jaxaudit.tables.attacks.ATTACKS`` or functions
            ``score(targets, synthetic, reference, key) -> (n,)``, higher meaning more member-like; or one of these.
        encoding: "standard" or "raw", see ``jaxaudit.tables.encode``.
        drop: names of columns to leave out of all tables, before anything else.
        roles: column -> ``numeric``, ``categorical``, ``ordinal``, ``datetime``, ``id`` or ``drop``, or the levels of
            an ordinal one from low to high; or a JSON file with such an object. Other columns' roles are inferred.
        settings: settings of the attacks.
        evaluation: settings of the intervals and of the permutation test.
        gate: limits; the attacks that cross one are listed in ``summary["gate"]``.
        report: what is shown of single records.
        sensitivity: smaller and shifted references to try; none by default.
        seed: of every random choice.
        progress: shows and times the stages.

    Returns:
        ``AuditResult`` with ``table`` of columns record (0, 1, ... over all that are scored), member, row (the
        row of the record in the table it came from, from 0), one per attack, and at the end reference_distance,
        release_distance, stratum (0: the most typical quarter of the records) and the columns of identifiers. The
        scores of a record do not depend on the other records. ``tables["evidence"]`` names the released rows that
        betray the most exposed members.

    Raises:
        InputError: for tables or settings that break a rule.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> frame = lambda n: pd.DataFrame(rng.normal(size=(n, 2)), columns=["x", "y"])
        >>> people = frame(40)
        >>> result = audit_release(people, frame(40), people + 0.01, frame(40), attacks=["dcr"])
        >>> result.summary["attacks"]["dcr"]["auc"] > 0.9
        True
    """
    _check_settings(settings, evaluation, gate, report, sensitivity, seed)
    progress = progress or Progress()
    with progress.stage("load"):
        release = load_release(members, non_members, synthetic, reference, seed=seed, drop=drop, roles=roles)
    return _audit(release, attacks, encoding, settings, evaluation, gate, report, sensitivity, seed, progress)


def audit_example(
    attacks: Attacks = DEFAULT_ATTACKS,
    *,
    encoding: str = "standard",
    drop: str | Iterable[str] = (),
    settings: AttackSettings = AttackSettings(),
    evaluation: EvaluationConfig = EvaluationConfig(),
    gate: GateConfig = GateConfig(),
    report: ReportConfig = ReportConfig(),
    sensitivity: SensitivityConfig = SensitivityConfig(),
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditResult:
    """``audit_release`` of the embedded example, see ``jaxaudit.tables.example``."""
    _check_settings(settings, evaluation, gate, report, sensitivity, seed)
    progress = progress or Progress()
    with progress.stage("load"):
        release = breast_cancer_release(seed, drop=drop)
    return _audit(release, attacks, encoding, settings, evaluation, gate, report, sensitivity, seed, progress)


def _check_settings(settings: Any, evaluation: Any, gate: Any, report: Any, sensitivity: Any, seed: Any) -> None:
    require(isinstance(settings, AttackSettings), "settings", "be AttackSettings", type(settings).__name__)
    require(isinstance(gate, GateConfig), "gate", "be a GateConfig", type(gate).__name__)
    require(isinstance(evaluation, EvaluationConfig), "evaluation", "be an EvaluationConfig", type(evaluation).__name__)
    require(isinstance(report, ReportConfig), "report", "be a ReportConfig", type(report).__name__)
    given = type(sensitivity).__name__
    require(isinstance(sensitivity, SensitivityConfig), "sensitivity", "be a SensitivityConfig", given)
    check_int("seed", seed, 0, 2**32 - 1)


def _scores(attacks: Attacks, targets: Any, synthetic: Any, reference: Any, options: Any) -> dict[str, np.ndarray]:
    """Scores of the attacks, those that differ by rounding only made equal."""
    found = score_attacks(attacks, targets, synthetic, reference, **options)
    return {name: merge_rounding(scores) for name, scores in found.items()}


def _audit(
    release: Release,
    attacks: Attacks,
    encoding: str,
    settings: AttackSettings,
    evaluation: EvaluationConfig,
    gate: GateConfig,
    report: ReportConfig,
    sensitivity: SensitivityConfig,
    seed: int,
    progress: Progress,
) -> AuditResult:
    check_sensitivity(sensitivity, len(release.reference), max(10, 2 * settings.ensemble.parts))
    with progress.stage("encode"):
        encoder = fit_encoder(release.reference, release.synthetic, encoding, roles=release.roles)
        parts = {name: encoder.transform(getattr(release, name)) for name in ("members", "non_members")}
        synthetic, reference = encoder.transform(release.synthetic), encoder.transform(release.reference)
    targets = np.concatenate([parts["members"], parts["non_members"]])
    member = np.repeat([True, False], [len(parts["members"]), len(parts["non_members"])])

    with progress.stage("attack", len(targets)) as stage:
        options: Any = {"settings": settings, "layout": encoder.layout, "seed": seed}
        scored = _scores(attacks, targets, synthetic, reference, options)
        stage.advance(len(targets))
    with progress.stage("evaluate", len(scored)) as stage:
        strata = outlier_strata(targets, reference)
        summary = judge(scored, member, overlap_masks(release), strata, evaluation, seed, stage.advance)
    with progress.stage("records"):
        encoded = {"targets": targets, "synthetic": synthetic, "reference": reference}
        same = in_release(release)
        found = copies(targets, member, synthetic, reference, evaluation.level, repeated=same)
        best = summary["permutation"]["best"]
        seen = expose(release, encoded, scored, best, found.distance, strata.stratum, settings.gen_lra, report)
        summary |= {"copies": found.summary, "exposed": seen.summary}
        if report.rows:
            summary["pairs"] = closest_pairs(release, encoded, found.distance, report.top)
    moved: list[str] = []
    if sensitivity.given:
        with progress.stage("sensitivity"):
            frame = try_references(
                lambda rows: _scores(attacks, targets, synthetic, rows, options), member, reference, sensitivity,
                stream_key(seed, "sensitivity"), evaluation.level,
            )  # fmt: skip
            summary["sensitivity"], moved = sensitivity_summary(frame)
    crossed = crossings(gate, summary["attacks"])
    sizes = {name: len(getattr(release, name)) for name in ("members", "non_members", "synthetic", "reference")}
    alarms = [f"gate crossed: {line}" for line in crossed[:_ALARMS]]
    if len(crossed) > _ALARMS:
        alarms.append(f"gate crossed: {len(crossed) - _ALARMS} more times, see gate.crossed in results.json")
    notes = [*encoder.warnings, *encoder.unshared, *_notes(release, encoder, scored, encoded), *moved]
    return AuditResult(
        audit="release",
        config={
            "attacks": list(scored), "release": _files(release, encoding), **asdict(settings),
            "evaluation": asdict(evaluation), "gate": asdict(gate), "report": asdict(report),
            "sensitivity": asdict(sensitivity), "seed": seed,
        },
        data=_describe(release, encoder) | sizes,
        summary={"records": sizes, **summary, "gate": asdict(gate) | {"crossed": list(crossed)}},
        warnings=tuple(dict.fromkeys([*alarms, *release.warnings, *notes])),
        timings=progress.timings,
        table=_table(release, member, scored, strata, found),
        evidence={
            "member": member, "scores": np.stack(list(scored.values())),
            "nearest": found.distance, "nearest_reference": found.reference,
        },
        tables={"evidence": seen.table},
    )  # fmt: skip


def _notes(
    release: Release, encoder: Encoder, scored: Mapping[str, np.ndarray], encoded: Mapping[str, np.ndarray]
) -> list[str]:
    """What the encoding did to single tables, and what a density of the reference cannot see."""
    tables = ("members", "non_members", "synthetic")
    notes = [note for name in tables for note in encoder.notes(getattr(release, name), name)]
    if any(name.split("[")[0] in _BY_DENSITY for name in scored):
        basis = fit_basis(*distinct_rows(encoded["reference"]))
        notes += span_report(encoded["targets"], encoded["synthetic"], basis).warnings
    return notes


def _files(release: Release, encoding: str) -> dict[str, Any]:
    """The settings of the tables: encoding, columns left out, and the roles that a person gave."""
    given = {name: role for name, role in release.roles.items() if role.given and name not in release.dropped}
    roles = {name: list(role.order) if role.order else role.name for name, role in given.items()}
    return {"encoding": encoding, "drop": list(release.dropped), "roles": roles}


def _describe(release: Release, encoder: Encoder) -> dict[str, Any]:
    return {
        "columns": [str(column) for column in release.members.columns],
        "encoded": list(encoder.feature_names),
        "roles": {name: role.as_dict() for name, role in release.roles.items()},
        "counts": dict(release.counts),
        "digests": {name: table_digest(frame) for name, frame in release.tables().items()},
    }


def _table(
    release: Release, member: np.ndarray, scored: Mapping[str, np.ndarray], strata: Strata, found: Copies
) -> pd.DataFrame:
    """One row per scored record."""
    parts = ("members", "non_members")
    rows = [release.rows.get(name, np.arange(len(getattr(release, name)))) for name in parts]
    names = release.ids.get("members", pd.DataFrame())
    return pd.DataFrame({
        "record": np.arange(len(member)), "member": member.astype(int), "row": np.concatenate(rows), **scored,
        "reference_distance": strata.distance, "release_distance": found.distance, "stratum": strata.stratum,
        **{f"{IDENTIFIERS}{name}": np.concatenate([release.ids[part][name].astype(object) for part in parts])
           for name in names},
    })  # fmt: skip
