"""How well the attacks and rules of a graph audit do, and what one number for all nodes hides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxaudit.report.attack_words import ATTACKS, FITS, attack_rows
from jaxaudit.report.canvas import Picture
from jaxaudit.report.words import (
    Items,
    Section,
    Table,
    Text,
    beside,
    branch,
    count,
    ends,
    get,
    interval,
    number,
    p_value,
    percent,
)
from jaxaudit.runtime.result import AuditResult

__all__ = ["attack_section", "heterogeneity_sentence", "rules_section", "side_by_side"]

_FIGURES = (
    ("within_node_auc", "AUC\nwithin a node"),
    ("pooled_auc", "AUC\npooled"),
    ("target_auc", "AUC\nin a model"),
    ("tpr_at_0.01", "TPR at\n1 % FPR"),
    ("tpr_at_0.001", "TPR at\n0.1 % FPR"),
)
_RATES = ("accuracy", "balanced_accuracy", "tpr", "fpr")
_RATE_HEADS = ("accuracy", "balanced accuracy", "true-positive rate", "false-positive rate")


def attack_section(summary: Mapping[str, Any], pictures: Mapping[str, Picture]) -> Section:
    """The main attack's AUCs, and its errors in the plane."""
    auc = branch(summary, "attack_auc")
    within = branch(auc, "within_node")
    rows = (
        ("Within a node, cross-fitted likelihood ratio (main)", number(get(within, "likelihood_ratio")),
         interval(within.get("likelihood_ratio_ci"))),
        ("Within a node, standardised statistic", number(get(within, "standardised")),
         interval(within.get("standardised_ci"))),
        ("Pooled over nodes and models", number(get(auc, "pooled")), interval(auc.get("pooled_ci"))),
        ("Pooled, with the prior odds added", number(get(auc, "pooled_with_prior")),
         interval(auc.get("pooled_with_prior_ci"))),
        ("Pooled, from the sampling prior alone (no model)", number(get(summary, "prior_only_auc")), ""),
    )  # fmt: skip
    return Section(
        "How well the attack does",
        (
            Text(
                "Within a node, the models with the node are compared with the models without it, so the prior plays "
                "no part: 0.5 is guessing. The pooled AUC mixes both; what the prior gives on its own stands below it."
            ),
            Table("Area under the ROC curve", ("", "AUC", "95 % interval"), rows),
            pictures["error_plane"],
        ),
    )


def side_by_side(result: AuditResult, pictures: Mapping[str, Picture]) -> tuple[Section, ...]:
    """All compared attacks on the same models; no section where none was compared."""
    found = attack_rows(result.summary)
    if not found:
        return ()
    rows = [
        (str(row.get("attack")), *(beside(get(row, name), row.get(f"{name}_ci")) for name, _ in _FIGURES))
        for row in found
    ]
    known = [(name, *ATTACKS[name]) for name in (str(row.get("attack")) for row in found) if name in ATTACKS]
    table = Table(
        "Attacks side by side: value and 95 % interval, judged models resampled with the fits held fixed",
        ("attack", *(head for _, head in _FIGURES)), tuple(rows),
    )  # fmt: skip
    legend = Table(
        "What each attack is. In and out models: those trained with and without the node",
        ("attack", "fitted to", "scores by"),
        tuple((name, FITS[fits], words) for name, fits, words in known), left=3,
    )  # fmt: skip
    drawn = [pictures[name] for name in ("attack_comparison",) if name in pictures]
    blocks = (Text(_judged_on(result)), table, *drawn, Items(_meaning(result)), *((legend,) if known else ()))
    return (Section("Attacks side by side", blocks),)


def _judged_on(result: AuditResult) -> str:
    models, targets = get(result.summary, "shadows", "count"), get(result.config, "shadow", "targets")
    if targets > 0:
        how = (
            f"All {count(models)} shadow models teach, and {count(targets)} target models that no attack was fitted to "
            "are judged."
        )
    else:
        how = (
            f"The {count(models)} models are split into two halves that judge each other: no model is judged by a fit "
            "that saw it, and every attack learns from half of them. With target models of their own (shadow.targets) "
            "it learns from all."
        )
    return (
        f"{how} Every attack sees the same models, so two rows can differ reliably although their intervals overlap. "
        "The best row is the highest of several: this audit's verdict rests on the likelihood ratio, chosen beforehand."
    )


def _meaning(result: AuditResult) -> tuple[str, ...]:
    summary, targets = result.summary, get(result.config, "shadow", "targets")
    others = get(summary, "nodes", "total") - get(summary, "shadows", "sizes", "mean")
    lines = [
        "AUC within a node: models with the node against models without it, mean over nodes. Neither the prior nor how "
        "hard a node is to classify plays a part."
        + ("" if targets > 0 else " Halves are averaged last here and first above, so the third digit may differ."),
        "AUC pooled: over all pairs of node and model. AUC in a model: over the nodes of one model, mean over the "
        "judged models; most public tools report this one. Both also count differences between nodes.",
        "TPR at 1 % FPR: share of a model's training nodes that the attack finds while at most 1 % of the others are "
        "called members; a realised share, never interpolated, mean over models.",
    ]
    if others > 0:
        allowed = math.floor(0.001 * others)
        lines.append(
            f"0.1 % of about {count(others)} other nodes is {count(allowed) if allowed else 'less than one'}: TPR at "
            "0.1 % FPR rests on very few nodes of each model."
        )
    return tuple(lines)


def heterogeneity_sentence(summary: Mapping[str, Any]) -> str:
    """Whether nodes differ by more than noise, "" where that was not measured."""
    found = branch(summary, "heterogeneity")
    p, (low, high) = get(found, "p_value"), ends(found.get("sd_ci90"))
    if math.isnan(p):
        return ""
    spread = f"sd {number(get(found, 'sd'))} ({number(low)}–{number(high)})"
    about = (
        f" Over {count(get(found, 'nodes'))} nodes, mean {number(get(found, 'mean'))}; sd with its 90 % interval over "
        "models, sampling error taken out."
    )
    if p < 0.05:
        return (
            f"Nodes differ by more than noise (p {p_value(p)}): the AUC of the statistic varies over nodes with "
            f"{spread}; {percent(get(found, 'real_share'))} of the observed variance is real." + about
        )
    return (
        f"Nodes were not seen to differ by more than noise (p {p_value(p)}): the AUC of the statistic varies over "
        f"nodes with sd {number(get(found, 'observed_sd'))} as observed, and with {spread} once "
        "sampling error is taken out. That is no proof that they are alike." + about
    )


def rules_section(summary: Mapping[str, Any]) -> Section:
    """Global accuracy, the rules with and without the prior, and what both hide."""
    blocks: list[Any] = []
    listed = summary.get("rules")
    rules = [branch(row) for row in listed if branch(row)] if isinstance(listed, list | tuple) else []
    alone = [row for row in rules if row.get("rule") == "prior_only"]
    hides = []
    if alone:
        hides.append(
            "What the prior alone gives: deciding by it, without a look at the model, is right in "
            f"{percent(get(alone[0], 'accuracy'), 1)} of the decisions below (balanced accuracy "
            f"{number(get(alone[0], 'balanced_accuracy'))}; guessing: 0.5). Only what lies above is due to the model."
        )
    if sentence := heterogeneity_sentence(summary):
        hides.append(sentence)
    blocks.append(Text("One accuracy for all nodes hides what the prior alone gives, and how much nodes differ."))
    blocks += [Items(tuple(hides))] if hides else []
    blocks.append(_global_table(branch(summary, "global_attack")))
    if rules:
        blocks += [_rules_table(rules), Text(_rules_words(summary))]
    return Section("Global accuracy, and what it hides", tuple(blocks))


def _global_table(rule: Mapping[str, Any]) -> Table:
    level = get(rule, "level")
    split = rule.get("rule") == "fixed_fpr"
    how = "split halves of the models" if split else "resampled judged models, the rule as fitted"
    name = f"Rule {rule.get('rule', 'not stated')}" + ("" if math.isnan(level) else f" at level {number(level, 2)}")
    return Table(
        f"{name}: {count(get(rule, 'decisions'))} decisions over all auditable nodes, with 95 % intervals from {how}",
        _RATE_HEADS, (tuple(beside(get(rule, d), rule.get(f"{d}_ci")) for d in _RATES),), left=0,
    )  # fmt: skip


def _rules_table(rules: list[Mapping[str, Any]]) -> Table:
    rows = tuple(
        (f"{row.get('rule')}, {row.get('prior')}", *(beside(get(row, d), row.get(f"{d}_ci")) for d in _RATES))
        for row in rules
    )
    return Table(
        f"Rules that know the nodes' priors (aware) and that do not (blind), on the same "
        f"{count(get(rules[0], 'decisions'))} decisions: fitted on half of the models, judged on the other half",
        ("rule", *_RATE_HEADS), rows,
    )  # fmt: skip


def _rules_words(summary: Mapping[str, Any]) -> str:
    low, high = get(summary, "sampling", "prior_min"), get(summary, "sampling", "prior_max")
    text = (
        "likelihood: member if the ratio Λ is above 1; aware: if Λ times the node's prior odds is. bayes: Λ times the "
        "odds of the mean prior; aware: as likelihood, aware. fixed_fpr: blind spends the level alike on every node, "
        "aware puts one threshold on the posterior odds of all nodes. prior_only: member if the prior is above 1/2."
    )
    if high - low < 1e-9:
        text += (
            f" Every node has the same prior here ({number(high)}), so it tells no node from another; fixed_fpr, "
            "aware, differs by its single threshold only."
        )
    return text
