"""What the report of a graph audit says."""

from __future__ import annotations

import math
from typing import Any

from jaxaudit.report.canvas import Picture
from jaxaudit.report.graph_attacks import attack_section, rules_section, side_by_side
from jaxaudit.report.graph_levels import groups_section, optimistic, posterior_section
from jaxaudit.report.graph_nodes import auditable_section, exposed_section
from jaxaudit.report.words import (
    Card,
    Items,
    Page,
    Section,
    Table,
    Text,
    branch,
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


_CHANCE = 0.1  # share of nodes above 0.1 that can be chance


def _caveats(summary: dict[str, Any]) -> tuple[str, ...]:
    return (
        "r and l are natural logs of the largest factor by which an output of the model can move the odds that a node "
        "was in (r) or out of (l) the training sample. 0 means no leak; 0.69 doubles the odds; 2.3 multiplies them by "
        "ten.",
        "The functional limits speak of this attack alone. A stronger attack can only find more, so they are lower "
        "limits of the leak and never a proof of privacy.",
        "All nodes share the same trained models, so the nodes' errors are dependent and intervals of pooled "
        "quantities would be too short if nodes were counted as independent. The AUC intervals resample models for "
        f"this reason; {optimistic(summary)}",
        "Each node's limit errs on the high side with probability about 5 %: up to 5 % of the nodes exceed the truth "
        "by chance alone (without any leak, 3 to 6 % showed a lower limit of r above 0.1 in simulations, up to 11 % "
        "with one or two models on a side), and the largest of many limits is a selected number.",
        "Counts come from models whose own output did not set the threshold they are judged by, so they are "
        "binomial given that threshold; what they say is said of the threshold as it came out of the other models.",
        "A node above the line of guessing (worse than chance) counts as leaking too, since the test can be reversed; "
        "see worse_than_chance in nodes.csv.",
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
        *_readings(summary),
        posterior_section(summary, result.table),
        attack_section(summary, pictures),
        *side_by_side(result, pictures),
        rules_section(summary),
        *groups_section(summary, pictures),
        auditable_section(summary),
        exposed_section(result.table, pictures),
        Section("How to read these numbers", (Items(_caveats(summary)),)),
        _what(result),
        *shared,
    )
    return Page(
        title=f"Membership audit of a graph model: {name}",
        subtitle=f"{count(get(summary, 'nodes', 'total'))} nodes, "
        f"{count(get(summary, 'shadows', 'count'))} trained models",
        tone=tone, verdict=verdict, explanation=explanation, cards=cards, warnings=result.warnings, sections=sections,
    )  # fmt: skip


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


def _readings(summary: dict[str, Any]) -> tuple[Section, ...]:
    """The same limits under the three definitions, and what BMDP means here; no section where neither is known."""
    found, meaning = branch(summary, "readings"), branch(summary, "bmdp").get("meaning")
    used = str(branch(summary, "prior_lower_bound").get("definition", ""))
    blocks: list[Text | Table | Items] = []
    if found:
        rows = tuple(
            (f"{name} (used above)" if name == used else str(name),
             *(number(get(found, name, eps, part), 2) for eps in ("eps_L", "eps_R") for part in ("median", "q90")))
            for name in found
        )  # fmt: skip
        heads = ("", *(f"{eps}, {part}" for eps in ("eps_L", "eps_R") for part in ("median", "high tenth from")))
        blocks += [
            Text(
                "The evidence is (l, r); what counts as leak depends on what it is measured against. eps_R alone is "
                "the one-sided BMP-R, eps_L alone is BMP-L."
            ),
            Table("Functional lower limits over the auditable nodes, under each definition", heads, rows),
            Items(tuple(_READINGS[name] for name in found if name in _READINGS and name != used)),
            Text(
                "BMP-R minus one-sided membership privacy is the log odds of the prior, identically: it is a "
                "definition, not a finding."
            ),
        ]
    if meaning:
        blocks.append(Text(f"Given all other memberships (BMDP): {meaning}"))
    return (Section("The same evidence under three readings", tuple(blocks)),) if blocks else ()


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
        *_epochs(result),
        *flatten(result.data),
    ]  # fmt: skip
    return Section("What was audited", (Table("", ("", ""), tuple(rows), left=2),))


def _epochs(result: AuditResult) -> tuple[tuple[str, str], ...]:
    """How long training went, where it could stop early."""
    found = branch(result.summary, "shadows", "epochs")
    if not (found and get(result.config, "train", "patience") > 0):
        return ()
    text = f"{number(get(found, 'mean'), 1)} on average, {count(get(found, 'min'))} at least"
    return (("epochs until early stopping", f"{text}, of {count(get(result.config, 'train', 'epochs'))}"),)
