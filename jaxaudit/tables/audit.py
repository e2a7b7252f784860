"""The release audit: load, encode, score, evaluate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from jaxaudit.evaluate.gate import GateConfig, crossings
from jaxaudit.evaluate.multiplicity import max_permutation
from jaxaudit.evaluate.operating import operating_point
from jaxaudit.evaluate.paired import compare_aucs
from jaxaudit.evaluate.power import detectable_auc
from jaxaudit.evaluate.roc import auc, auc_interval, tpr_at_fpr
from jaxaudit.runtime.checks import check_int, check_real, require
from jaxaudit.runtime.progress import Progress
from jaxaudit.runtime.result import AuditResult
from jaxaudit.tables.attacks import Attack, AttackSettings, Score, score_attacks
from jaxaudit.tables.data import Release, load_release
from jaxaudit.tables.density import distinct_rows, fit_basis, span_report
from jaxaudit.tables.encode import fit_encoder
from jaxaudit.tables.example import breast_cancer_release
from jaxaudit.tables.overlaps import auc_without, overlap_masks
from jaxaudit.tables.strata import Strata, outlier_strata, strata_summary

__all__ = ["EvaluationConfig", "audit_example", "audit_release"]

Attacks = str | Attack | Score | Iterable[str | Attack | Score]

DEFAULT_ATTACKS = ("gen_lra", "dcr", "domias")


@dataclass(frozen=True)
class EvaluationConfig:
    """How scores are judged.

    Attributes:
        level: confidence level of every interval, of AUCs and of true-positive rates, in (0, 1).
        permutations: label permutations of the joint max-statistic test, >= 99.
    """

    level: float = 0.95
    permutations: int = 9999

    def __post_init__(self) -> None:
        check_real("evaluation.level", self.level, 0, 1, open_low=True, open_high=True)
        check_int("evaluation.permutations", self.permutations, 99, 10_000_000)


def audit_release(
    members: Any,
    non_members: Any,
    synthetic: Any,
    reference: Any = None,
    attacks: Attacks = DEFAULT_ATTACKS,
    *,
    encoding: str = "standard",
    drop: str | Iterable[str] = (),
    roles: Mapping[str, Any] | None = None,
    settings: AttackSettings = AttackSettings(),
    evaluation: EvaluationConfig = EvaluationConfig(),
    gate: GateConfig = GateConfig(),
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
            an ordinal one from low to high; the other columns' roles are inferred.
        settings: settings of the attacks.
        evaluation: settings of the intervals and of the permutation test.
        gate: limits; the attacks that cross one are listed in ``summary["gate"]``.
        seed: of every random choice.
        progress: shows and times the stages.

    Returns:
        ``AuditResult`` with ``table`` of columns record (0, 1, ... over all that are scored), member, row (the
        row of the record in the table it came from, from 0), one per attack, and at the end reference_distance
        and stratum (0: the most typical quarter of the records). The scores of a record do not depend on the other
        records.

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
    _check_settings(settings, evaluation, gate, seed)
    progress = progress or Progress()
    with progress.stage("load"):
        release = load_release(members, non_members, synthetic, reference, seed=seed, drop=drop, roles=roles)
    return _audit(release, attacks, encoding, settings, evaluation, gate, seed, progress)


def audit_example(
    attacks: Attacks = DEFAULT_ATTACKS,
    *,
    encoding: str = "standard",
    drop: str | Iterable[str] = (),
    settings: AttackSettings = AttackSettings(),
    evaluation: EvaluationConfig = EvaluationConfig(),
    gate: GateConfig = GateConfig(),
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditResult:
    """``audit_release`` of the embedded example, see ``jaxaudit.tables.example``."""
    _check_settings(settings, evaluation, gate, seed)
    progress = progress or Progress()
    with progress.stage("load"):
        release = breast_cancer_release(seed, drop=drop)
    return _audit(release, attacks, encoding, settings, evaluation, gate, seed, progress)


def _check_settings(settings: Any, evaluation: Any, gate: Any, seed: Any) -> None:
    require(isinstance(settings, AttackSettings), "settings", "be AttackSettings", type(settings).__name__)
    require(isinstance(gate, GateConfig), "gate", "be a GateConfig", type(gate).__name__)
    require(isinstance(evaluation, EvaluationConfig), "evaluation", "be an EvaluationConfig", type(evaluation).__name__)
    check_int("seed", seed, 0, 2**32 - 1)


def _audit(
    release: Release,
    attacks: Attacks,
    encoding: str,
    settings: AttackSettings,
    evaluation: EvaluationConfig,
    gate: GateConfig,
    seed: int,
    progress: Progress,
) -> AuditResult:
    with progress.stage("encode"):
        encoder = fit_encoder(release.reference, release.synthetic, encoding, roles=release.roles)
        parts = {name: encoder.transform(getattr(release, name)) for name in ("members", "non_members")}
        synthetic, reference = encoder.transform(release.synthetic), encoder.transform(release.reference)
    targets = np.concatenate([parts["members"], parts["non_members"]])
    member = np.repeat([True, False], [len(parts["members"]), len(parts["non_members"])])

    with progress.stage("attack", len(targets)) as stage:
        scored = score_attacks(
            attacks, targets, synthetic, reference, settings=settings, layout=encoder.layout, seed=seed
        )
        stage.advance(len(targets))
    names = list(scored)
    with progress.stage("evaluate", len(names)) as stage:
        scores = np.stack([scored[name] for name in names])
        judged, permutation = _judge(names, scores, member, evaluation, seed, stage.advance)
        strata = outlier_strata(targets, reference)
        _judge_further(judged, scores, member, overlap_masks(release), strata, evaluation, seed)
    crossed = crossings(gate, judged)
    alarms = [f"gate crossed: {line}" for line in crossed]
    sizes = {name: len(getattr(release, name)) for name in ("members", "non_members", "synthetic", "reference")}
    notes = [note for name in parts for note in encoder.notes(getattr(release, name), name)]
    if any(name.split("[")[0] in ("gen_lra", "domias") for name in scored):  # the attacks by densities
        notes += span_report(targets, synthetic, fit_basis(*distinct_rows(reference))).warnings
    rows = [release.rows.get(name, np.arange(len(part))) for name, part in parts.items()]
    columns = {"record": np.arange(len(targets)), "member": member.astype(int), "row": np.concatenate(rows)}
    typical = {"reference_distance": strata.distance, "stratum": strata.stratum}
    return AuditResult(
        audit="release",
        config={
            "attacks": names,
            "release": {
                "encoding": encoding, "drop": list(release.dropped),
                "roles": {
                    name: list(role.order) if role.order else role.name
                    for name, role in release.roles.items()
                    if role.given and name not in release.dropped
                },
            },
            **asdict(settings),
            "evaluation": asdict(evaluation),
            "gate": asdict(gate),
            "seed": seed,
        },
        data={
            "columns": [str(column) for column in release.members.columns],
            "encoded": list(encoder.feature_names),
            "roles": {name: role.as_dict() for name, role in release.roles.items()},
            "counts": dict(release.counts),
            **sizes,
        },
        summary={
            "records": sizes, "attacks": judged, "permutation": permutation,
            "gate": asdict(gate) | {"crossed": list(crossed)},
        },
        warnings=tuple(dict.fromkeys([*alarms, *release.warnings, *encoder.warnings, *notes])),
        timings=progress.timings,
        table=pd.DataFrame(columns | scored | typical),
        evidence={"member": member, "scores": scores},
    )  # fmt: skip


def _judge(
    names: list[str],
    scores: np.ndarray,
    member: np.ndarray,
    evaluation: EvaluationConfig,
    seed: int,
    advance: Callable[[], None],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Per attack: AUC, interval, TPR at FPR and p-values; and a description of the permutation test."""
    test = max_permutation(scores, member, permutations=evaluation.permutations, seed=seed)
    paired = compare_aucs(scores, member, evaluation.level, seed=seed)
    best = int(np.argmax(paired.auc))
    judged = {}
    for index, name in enumerate(names):
        low, high = auc_interval(scores[index], member, level=evaluation.level)
        critical = float(test.critical_auc[index])
        judged[name] = {
            "auc": auc(scores[index], member),
            "auc_ci": [low, high],
            "tpr_at_fpr": tpr_at_fpr(scores[index], member, level=evaluation.level),
            "p_value": float(test.adjusted[index]),
            "p_value_unadjusted": float(test.unadjusted[index]),
            "first_share": float(paired.first[index]),
            "behind_best": float(paired.difference[best, index]),
            "behind_best_ci": [float(paired.low[best, index]), float(paired.high[best, index])],
            "critical_auc": critical,
            "detectable_auc": detectable_auc(critical, int(member.sum()), int((~member).sum())),
        }
        advance()
    described = {
        "statistic": "maximum standardised AUC over the attacks run",
        "permutations": evaluation.permutations,
        "attacks": len(names),
        "interval": "DeLong",
        "best": names[best],
        "resamples": paired.resamples,
        "level": evaluation.level,
    }
    return judged, described


def _judge_further(
    judged: dict[str, Any],
    scores: np.ndarray,
    member: np.ndarray,
    masks: Mapping[str, np.ndarray],
    strata: Strata,
    evaluation: EvaluationConfig,
    seed: int,
) -> None:
    """Add to every attack what it does without overlapping records, by typicality, and at one fixed threshold."""
    level = evaluation.level
    for name, row in zip(judged, scores, strict=True):
        judged[name] |= {
            "auc_without": auc_without(row, member, masks, level),
            "strata": strata_summary(row, member, strata, level=level),
            "operating": operating_point(row, member, level=min(max(level, 0.5), 0.999), seed=seed),
        }
