"""What the report of a graph audit says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from jaxaudit.report.canvas import Picture
from jaxaudit.report.words import (
    Card,
    Items,
    Page,
    Section,
    Table,
    Text,
    count,
    factor,
    flatten,
    get,
    interval,
    number,
    percent,
)
from jaxaudit.runtime.result import AuditResult

__all__ = ["graph_headline", "graph_page"]

_READINGS = {
    "posterior_odds": "posterior odds: e^eps_R bounds the odds of membership after seeing the model, e^eps_L those of "
    "non-membership. A perfectly private model still has eps_R = log prior odds, so part of eps is the prior and not "
    "a leak.",
    "bayes_factor": "Bayes factor: eps bounds posterior odds / prior odds, so (eps_L, eps_R) equals (l, r).",
    "membership_privacy": "membership privacy (Li et al. 2013): the posterior probability of membership is at most "
    "e^eps_R times the prior one, that of non-membership at most e^eps_L times.",
}

_CAVEATS = (
    "r and l are natural logs of the largest factor by which an output of the model can move the odds that a node "
    "was in (r) or out of (l) the training sample. 0 means no leak; 0.69 doubles the odds; 2.3 multiplies them by "
    "ten.",
    "The functional limits speak of this attack alone. A stronger attack can only find more, so they are lower "
    "limits of the leak and never a proof of privacy.",
    "All nodes share the same trained models, so the nodes' errors are dependent and intervals of pooled quantities "
    "would be too short if nodes were counted as independent. The AUC intervals resample models for this reason; the "
    "pooled posterior does not and is optimistic.",
    "Each node's limit errs on the high side with probability about 5 %: up to 5 % of the nodes exceed the truth by "
    "chance alone (without any leak, 3 to 6 % showed a lower limit of r above 0.1 in simulations, up to 11 % with "
    "one or two models on a side), and the largest of many limits is a selected number.",
    "Counts come from models whose own output did not set the threshold they are judged by, so they are binomial.",
    "A node above the line of guessing (worse than chance) counts as leaking too, since the test can be reversed; see "
    "worse_than_chance in nodes.csv.",
)


def graph_headline(result: AuditResult) -> list[tuple[str, str]]:
    """The three numbers that matter: limits of (r, l), the attack's AUC, the share of exposed nodes."""
    limits, auc = result.summary.get("limits", {}), result.summary.get("attack_auc", {})
    within = auc.get("within_node", {})
    r, l = limits.get("r_lower", {}), limits.get("l_lower", {})
    return [
        (
            "Posterior odds / prior odds, functional lower limit (r, l)",
            f"median ({number(get(r, 'median'), 2)}, {number(get(l, 'median'), 2)}), "
            f"highest ({number(get(r, 'max'), 2)}, {number(get(l, 'max'), 2)})",
        ),
        (
            "Attack AUC within a node (guessing: 0.5)",
            f"{number(get(within, 'likelihood_ratio'))} {interval(within.get('likelihood_ratio_ci'))}".strip(),
        ),
        (
            "Auditable nodes with lower limit of r above 0.1",
            f"{percent(get(limits, 'share_r_above_0.1'))} of {count(get(result.summary, 'nodes', 'auditable'))}",
        ),
    ]


def graph_page(result: AuditResult, pictures: dict[str, Picture], shared: tuple[Section, ...]) -> Page:
    """The page of a graph audit; ``shared`` are the closing sections that both audits have."""
    summary = result.summary
    tone, verdict, explanation = _verdict(summary)
    (_, limits), (_, area), (_, share) = graph_headline(result)
    cards = (
        Card("Posterior odds / prior odds: lower limit of (r, l)", limits, _limits_note(summary)),
        Card("Attack AUC within a node", area, "guessing: 0.5; mean over nodes, interval by resampling models"),
        Card("Nodes with lower limit of r above 0.1", share, "auditable nodes; 5 to 10 % can be chance"),
    )
    name = str(result.data.get("name", result.data.get("graph", "graph")))
    sections = (
        _leak(summary, pictures),
        _paper(summary),
        _attack(summary, pictures),
        _auditable(summary),
        Section("Who is exposed", (pictures["who_leaks"], _exposed(result.table))),
        Section("How to read these numbers", (Items(_CAVEATS),)),
        _what(result),
        *shared,
    )
    return Page(
        title=f"Membership audit of a graph model: {name}",
        subtitle=f"{count(get(summary, 'nodes', 'total'))} nodes, "
        f"{count(get(summary, 'shadows', 'count'))} trained models",
        tone=tone, verdict=verdict, explanation=explanation, cards=cards, warnings=result.warnings, sections=sections,
    )  # fmt: skip


_CHANCE = 0.1  # share of nodes above 0.1 that can be chance
_PRIOR_ZERO = {
    True: "prior 0: the sampler never draws them (eps infinite by definition)",
    False: "in no prior draw: the prior's upper limit is used",
}
_PRIOR_ONE = {
    True: "prior 1: the sampler always draws them (eps infinite by definition)",
    False: "in every prior draw: the prior's lower limit is used",
}


def _limits_note(summary: dict[str, Any]) -> str:
    limits = summary.get("limits", {})
    eps_l, eps_r = (get(limits, name, "median") for name in ("eps_L_lower", "eps_R_lower"))
    return (
        f"one-sided 95 % per node; median r: {factor(get(limits, 'r_lower', 'median'))}. "
        f"With the prior: median (eps_L, eps_R) = ({number(eps_l, 2)}, {number(eps_r, 2)})"
    )


def _verdict(summary: dict[str, Any]) -> tuple[str, str, str]:
    auditable, total = get(summary, "nodes", "auditable"), get(summary, "nodes", "total")
    within = summary.get("attack_auc", {}).get("within_node", {})
    area, bounds = get(within, "likelihood_ratio"), within.get("likelihood_ratio_ci") or (math.nan, math.nan)
    low = get({"v": bounds[0]}, "v")
    diverged, models = get(summary, "shadows", "not_finite"), get(summary, "shadows", "count")
    if diverged > models / 2:
        return (
            "unknown",
            "Nothing can be said: the models did not train.",
            f"{count(diverged)} of {count(models)} models ended with a loss or outputs that are not finite. A smaller "
            "learning rate (train.learning_rate) or scaled features may help.",
        )
    if not auditable > 0 or math.isnan(area):
        return (
            "unknown",
            "Nothing can be said: too few nodes could be audited.",
            f"{count(auditable)} of {count(total)} nodes were both in and out of the training samples often enough. "
            "More trained models (shadow.count) or another sampling ratio are needed.",
        )
    middle, tenth = (get(summary, "limits", "r_lower", name) for name in ("median", "q90"))
    strength = (
        f"At half of the {count(auditable)} auditable nodes the odds of membership can rise {factor(middle)} or "
        f"more, at one node in ten {factor(tenth)} or more (functional lower limits, 95 % one-sided per node)."
        + _few(summary)
    )
    if low > 0.5 and get(summary, "limits", "share_r_above_0.1") <= _CHANCE:
        return (
            "quiet",
            "Weak evidence: the attack does better than guessing, but hardly any node's limit shows it.",
            f"Its AUC within a node is {number(area)} {interval(bounds)}; one audit in forty without a leak gets that "
            f"far by chance. {strength}",
        )
    if low > 0.5:
        return "leak", "The trained model reveals which nodes it was trained on.", strength
    if math.isnan(low):
        return "unknown", "No verdict: the attack's AUC has no interval.", strength
    return (
        "quiet",
        "This attack found no evidence that the model reveals its training nodes.",
        f"Its AUC within a node, {number(area)} {interval(bounds)}, is compatible with guessing. That is not a proof "
        f"of privacy: a stronger attack or more trained models may find more.",
    )


def _few(summary: dict[str, Any], enough: int = 10) -> str:
    """A sentence on how little the single node's limit rests on, where it does."""
    sides = {"with": get(summary, "nodes", "median_n_in"), "without": get(summary, "nodes", "median_n_out")}
    side = min(sides, key=lambda name: sides[name])
    if not sides[side] < enough:
        return ""
    return (
        f" Half of the nodes rest on {count(sides[side])} or fewer counted models {side} the node, so that single "
        "nodes can show little: more models (shadow.count) would sharpen these limits."
    )


def _leak(summary: dict[str, Any], pictures: dict[str, Picture]) -> Section:
    limits = summary.get("limits", {})
    labels = {
        "r_lower": "r: odds of membership, posterior / prior",
        "l_lower": "l: odds of non-membership, posterior / prior",
        "eps_L_lower": "eps_L, prior included",
        "eps_R_lower": "eps_R, prior included",
    }
    rows = []
    for name, label in labels.items():
        values = [get(limits, name, part) for part in ("median", "q90", "max")]
        factors = [factor(v) if name in ("r_lower", "l_lower") else "" for v in values]
        rows.append((label, *(f"{number(v)}  {f}".strip() for v, f in zip(values, factors, strict=True))))
    lower = summary.get("prior_lower_bound", {})
    definition = str(lower.get("definition", "posterior_odds"))
    floor = (
        f"Without any leak, sampling alone gives eps_R = {number(get(lower, 'eps_R'))} and eps_L = "
        f"{number(get(lower, 'eps_L'))} for the learner as a whole (the largest over nodes), and eps_R = "
        f"{number(get(lower, 'eps_R_median'))}, eps_L = {number(get(lower, 'eps_L_median'))} at the median node."
    )
    if not summary.get("sampling", {}).get("prior_exact", True):
        floor += " The largest is as high as the number of prior draws lets it be."
    if definition == "bayes_factor":
        floor = "Under this reading sampling alone gives 0: there is no prior lower bound."
    return Section(
        "How much the model adds to what sampling gives away",
        (
            Text(
                "The evidence comes first as posterior odds / prior odds, the published formula: r bounds how far the "
                "model can raise the odds that a node was in the training sample, l how far it can raise the odds "
                "that it was not. Both are functional lower limits, 95 % one-sided, per node: what the errors of this "
                "attack show."
            ),
            Table(
                "Functional lower limits over the auditable nodes (natural logs, and the factor)",
                ("", "median", "highest tenth from", "highest"), tuple(rows),
            ),
            Text(f"(eps_L, eps_R) are read as {_READINGS.get(definition, definition)} {floor}"),
            pictures["limits"],
            pictures["prior_and_model"],
        ),
    )  # fmt: skip


def _quantiles(label: str, tree: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    return (label, *(number(get(tree, name), 2) for name in names))


def _paper(summary: dict[str, Any]) -> Section:
    paper, pooled = summary.get("paper_posterior", {}), summary.get("pooled", {})
    names = ("q05", "q50", "q95")
    rows = [
        _quantiles(f"{name}, per node (medians over nodes)", paper.get(name), tuple(f"median_of_{q}" for q in names))
        for name in "rl"
    ]
    rows += [
        _quantiles(f"{name}, one value for all {count(get(pooled, 'nodes'))} nodes", pooled.get(name), names)
        for name in "rl"
    ]
    sensitivity = pooled.get("prior_sensitivity")
    if isinstance(sensitivity, dict):
        for scale, found in sensitivity.items():
            rows += [_quantiles(f"{n}, pooled, prior scale² {scale}", found.get(n), names)
                     for n in "rl" if isinstance(found, dict) and n in found]  # fmt: skip
    blocks: list[Text | Table] = [
        Text(
            "The posterior of the paper assumes that the attack's errors sit uniformly inside the region that (l, r) "
            "allows. Its lower limit can therefore overshoot the truth where the attack is near-optimal (on a "
            "two-output channel the 5 % limit lay above the true r in 87 % of cases with 500 models, the functional "
            "limit in 5 %), and its upper limit is driven by the prior on (l, r) and not by data. It is shown beside "
            "the evidence, not as evidence."
        ),
        Table("The paper's posterior (5, 50 and 95 % quantiles)", ("", "5 %", "50 %", "95 %"), tuple(rows)),
    ]
    checks = [f"{label} {number(get(pooled, key), digits)}" for key, label, digits in
              (("rhat", "R-hat", 3), ("ess", "effective draws", 0), ("divergences", "divergences", 0))
              if not math.isnan(get(pooled, key))]  # fmt: skip
    engine = f"Pooled posterior by engine {pooled.get('engine', 'exact')}" + (
        f": {', '.join(checks)}." if checks else "."
    )
    blocks.append(Text(engine + " Its nodes share their models, so its interval is optimistic."))
    return Section("The paper's posterior, and what it assumes", tuple(blocks))


def _attack(summary: dict[str, Any], pictures: dict[str, Picture]) -> Section:
    auc, rule = summary.get("attack_auc", {}), summary.get("global_attack", {})
    within = auc.get("within_node", {})
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
    level = get(rule, "level")
    name = f"Rule {rule.get('rule', 'not stated')}" + ("" if math.isnan(level) else f" at level {number(level, 2)}")
    decisions = ("accuracy", "balanced_accuracy", "tpr", "fpr")
    return Section(
        "How well the attack does",
        (
            Text(
                "Within a node, the models with the node are compared with the models without it, so the prior plays "
                "no part: 0.5 is guessing. The pooled AUC mixes both; what the prior gives on its own stands below it."
            ),
            Table("Area under the ROC curve", ("", "AUC", "95 % interval"), rows),
            Table(
                f"{name}: decisions over {count(get(rule, 'decisions'))} pairs of node and model",
                ("accuracy", "balanced accuracy", "true-positive rate", "false-positive rate"),
                (tuple(number(get(rule, d)) for d in decisions),), left=0,
            ),
            pictures["error_plane"],
        ),
    )  # fmt: skip


def _auditable(summary: dict[str, Any]) -> Section:
    nodes, sampling = summary.get("nodes", {}), summary.get("sampling", {})
    exact = sampling.get("prior_exact")
    labels = (
        ("total", "nodes in the graph"),
        ("auditable", "auditable: in some counted models and out of others"),
        ("counted_in_none", "not auditable: in no counted model"),
        ("counted_out_none", "not auditable: out of no counted model"),
        ("not_fitted", "not auditable: too few models on a side to fit the rule"),
        ("prior_zero", _PRIOR_ZERO[bool(exact)]),
        ("prior_one", _PRIOR_ONE[bool(exact)]),
        ("worse_than_chance", "worse than chance (FPR + FNR > 1)"),
    )
    how = "known exactly" if exact else f"estimated from {count(get(sampling, 'prior_draws'))} draws of the sampler"
    return Section(
        "Which nodes could be audited",
        (
            Text(
                "A node needs models trained with it and models trained without it. Nodes that the sampler almost "
                "always or almost never draws lack one side; they are listed with empty cells in nodes.csv and not "
                "counted above."
            ),
            Table("", ("", "nodes"), tuple((text, count(get(nodes, key))) for key, text in labels)),
            Text(
                f"Counted models per node (median): {count(get(nodes, 'median_n_in'))} with it, "
                f"{count(get(nodes, 'median_n_out'))} without it. The prior probability of membership is {how}: lowest "
                f"{number(get(sampling, 'prior_min'))}, median {number(get(sampling, 'prior_median'))}, highest "
                f"{number(get(sampling, 'prior_max'))}."
            ),
        ),
    )


def _exposed(table: pd.DataFrame, rows: int = 15) -> Table | Text:
    """The nodes with the largest lower limit of r; ties by l, then by node."""
    if "r_lower" not in table or not np.isfinite(table["r_lower"].to_numpy(float)).any():
        return Text("No node could be audited, so none can be listed.")
    by = [c for c in ("r_lower", "l_lower") if c in table]
    top = (
        table[np.isfinite(table["r_lower"].to_numpy(float))].sort_values(by, ascending=False, kind="stable").head(rows)
    )
    columns = (("node", -1), ("label", -1), ("degree", 0), ("prior", 3), ("n_in", 0), ("n_out", 0), ("fp", 0),
               ("fn", 0), ("r_lower", 2), ("l_lower", 2), ("eps_L_lower", 2), ("eps_R_lower", 2),
               ("auc_likelihood_ratio", 2))  # fmt: skip
    heads = {"n_in": "in", "n_out": "out", "r_lower": "r", "l_lower": "l", "eps_L_lower": "eps_L",
             "eps_R_lower": "eps_R", "auc_likelihood_ratio": "AUC"}  # fmt: skip
    shown = [(name, digits) for name, digits in columns if name in top]
    cells = tuple(
        tuple(str(row[name]) if digits < 0 else number(float(row[name]), digits) for name, digits in shown)
        for row in top.to_dict("records")
    )
    return Table(
        f"The {len(cells)} nodes with the highest lower limit of r (functional, 95 %): chosen as the highest of many, "
        "so read them as candidates",
        tuple(heads.get(name, name) for name, _ in shown), cells,
    )  # fmt: skip


def _what(result: AuditResult) -> Section:
    shadows = result.summary.get("shadows", {})
    sizes = shadows.get("sizes", {})
    accuracy = [
        f"{number(get(shadows, f'{part}_accuracy', 'mean'))} ± {number(get(shadows, f'{part}_accuracy', 'sd'))}"
        for part in ("train", "test")
    ]
    rows = [
        ("trained models", f"{count(get(shadows, 'count'))} ({count(get(shadows, 'trained'))} trained in this run)"),
        ("accuracy on training nodes", accuracy[0]),
        ("accuracy on the other nodes", accuracy[1]),
        ("training nodes: quota, mean, range", f"{count(get(sizes, 'quota'))}, {number(get(sizes, 'mean'), 1)}, "
         f"{count(get(sizes, 'min'))}–{count(get(sizes, 'max'))}"),
        ("draws in which the sampler ran dry", count(get(shadows, "exhausted"))),
        *flatten(result.data),
    ]  # fmt: skip
    return Section("What was audited", (Table("", ("", ""), tuple(rows), left=2),))
