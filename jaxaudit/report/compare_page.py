"""What the page of a comparison says: one section per question, then every run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxaudit.report.canvas import Picture
from jaxaudit.report.effects import Effect, Measured, measure
from jaxaudit.report.sweeps import Run, Sweep
from jaxaudit.report.words import Card, Items, Page, Section, Table, Text, count, get, interval, number, percent

__all__ = ["QUESTIONS", "comparison_page", "effect_sentence", "question"]

QUESTIONS = {
    "sampler.name": "Does one way of sampling leak more than another?",
    "noise.weights": "Does noise on the weights help?",
    "noise.outputs": "Does noise on the outputs help?",
    "edges.inference": "What do edges at inference do?",
    "edges.train": "What do the edges used in training do?",
    "model.name": "Does the architecture matter?",
    "sampler.ratio": "What does the share of nodes in the sample do?",
    "attack.observes": "What does it help to show less of the output?",
    "attack.rule": "What does the rule of decision change?",
    "shadow.count": "What do more shadow models change?",
}
"""Titles of the sections of known options, the paper's questions first; others are named after their option."""

_MOST_ROWS = 300

_READING = (
    "Every number is taken from the results.json and nodes.csv of finished runs; nothing was refitted.",
    "Runs are paired that agree in all options but one. The interval of a difference combines the two runs' intervals, "
    "95 % over resampled models, as if the runs were independent. Runs that share their models (other edges at "
    "inference, other noise, other rules) or their seed are not, as a rule positively, and the interval is then too "
    "wide: a difference that it does not separate from 0 may still be real.",
    "A mean difference is the mean over exactly these settings. Its interval covers the chance in the models and not "
    "the choice of graphs: it does not say what another graph would show. Pairs that rest on the same models count as "
    "moving together, the others as independent.",
    "The AUC is that of the cross-fitted likelihood ratio within a node, where the prior plays no part; 0.5 is "
    "guessing. r and l are functional lower limits per node: r and l at the median node carry no interval here, since "
    "the nodes share their models.",
    "Many comparisons stand side by side and none is corrected for that: one interval in twenty misses by chance.",
)


def question(option: str) -> str:
    """The title of the section of an option."""
    return QUESTIONS.get(option, f"What does {option} change?")


def _name(value: Any) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _with_interval(found: Measured, digits: int = 3) -> str:
    return f"{number(found.value, digits)} {interval([found.low, found.high], digits)}".strip()


def effect_sentence(effect: Effect) -> str:
    """What the pairs show about the AUC, in counts and a mean."""
    known, higher, above, below = effect.tally("auc") if effect.pairs else (0, 0, 0, 0)
    names = f"{effect.option} {_name(effect.level)} against {_name(effect.baseline)}"
    if not known:
        return f"{names}: no two runs with an AUC agree in all other options."
    return (
        f"{names}: the AUC is higher in {count(higher)} of {count(known)} "
        f"{'pair' if known == 1 else 'pairs'} of runs; the interval of the difference lies above 0 in {count(above)} "
        f"and below 0 in {count(below)}. Mean difference {_with_interval(effect.means['auc'])}."
    )


def _effect_table(effects: Sequence[Effect]) -> Table:
    rows = []
    for effect in effects:
        means = effect.means or dict.fromkeys(_DIFFERENCES, Measured(math.nan))
        known, higher, above, below = effect.tally("auc") if effect.pairs else (0, 0, 0, 0)
        rows.append(
            (f"{_name(effect.level)} − {_name(effect.baseline)}", f"{count(higher)} of {count(known)}",
             f"{count(above)} / {count(below)}",
             _with_interval(means["auc"]).replace(" [", "\n["), *(number(means[n].value) for n in [*_DIFFERENCES][1:]))
        )  # fmt: skip
    return Table(
        f"Mean differences by {effects[0].option}, over pairs of runs that agree in all else",
        ("", "AUC\nhigher in", "interval\n> 0 / < 0", *_DIFFERENCES.values()), tuple(rows), left=0,
    )  # fmt: skip


_DIFFERENCES = {
    "auc": "AUC", "auc_standardised": "AUC,\nstandardised", "r_median": "median r", "test_accuracy": "test\naccuracy",
}  # fmt: skip


def _effects(effects: Sequence[Effect], picture: Picture) -> Section:
    return Section(
        question(effects[0].option),
        (Items(tuple(effect_sentence(effect) for effect in effects)), _effect_table(effects), picture),
    )


def _ranking(rows: Sequence[tuple[str, Mapping[str, float]]], runs_too: float, picture: Picture | None) -> Section:
    varied = [(label, found) for label, found in rows if get(found, "prior_spread") > 1e-9]
    same = sum(get(found, "prior_spread") <= 1e-9 for _, found in rows)
    sentences = []
    if same:
        sentences.append(
            f"In {count(same)} of {count(len(rows))} runs every node has the same prior: by construction it changes no "
            "order there (rank correlation 1)."
        )
    if varied:
        kept = sorted(get(found, "top_kept") for _, found in varied)
        ranks = sorted(get(found, "r_odds") for _, found in varied)
        sentences.append(
            f"In the {count(len(varied))} others the rank correlation of r with the posterior odds goes from "
            f"{number(ranks[0], 2)} to {number(ranks[-1], 2)}, and {percent(kept[0])} to {percent(kept[-1])} of the "
            "tenth of nodes with the largest r stay in the tenth with the largest odds."
        )
    if not math.isnan(runs_too):
        sentences.append(
            f"The order of the runs themselves: rank correlation {number(runs_too, 2)} between the median r and the "
            "median eps_R."
        )
    table = Table(
        "Rank correlations over the auditable nodes of each run (under posterior_odds, eps_R is r + log prior odds)",
        ("run", "nodes", "sd of log\nprior odds", "r and\nodds", "r and\neps_R", "prior and\nodds", "top tenth\nkept"),
        tuple(
            (label, count(get(found, "nodes")), number(get(found, "prior_spread"), 2),
             *(number(get(found, name), 2) for name in ("r_odds", "r_eps", "prior_odds")),
             percent(get(found, "top_kept")))
            for label, found in varied[:_MOST_ROWS]
        ),
    )  # fmt: skip
    blocks: tuple[Any, ...] = (Items(tuple(sentences)),) if sentences else (Text("No run has a usable nodes.csv."),)
    return Section("Do priors change the ranking?", blocks + ((table, picture) if picture else ()))


def _priors(rows: Sequence[tuple[str, Run]], picture: Picture) -> Section:
    found = [measure(run) for _, run in rows]
    names = ("prior_auc", "pooled_auc", "pooled_auc_with_prior")
    known = [f for f in found if all(math.isfinite(f[name].value) for name in names)]
    ahead = sum(f["prior_auc"].value > f["pooled_auc"].value for f in known)
    gained = sum(f["pooled_auc_with_prior"].value > f["prior_auc"].value for f in known)
    flat = sum(abs(f["prior_auc"].value - 0.5) < 1e-9 for f in known)
    sentence = (
        f"Of {count(len(known))} runs, the prior tells nothing in {count(flat)} (the same for every node), does better "
        f"alone than the attack alone in {count(ahead)}, and gains from the attack in {count(gained)}."
    )
    table = Table(
        "AUC over all pairs of node and model",
        ("run", "prior alone", "attack alone", "attack with prior"),
        tuple((label, *(_with_interval(f[name]) for name in names))
              for (label, _), f in zip(rows[:_MOST_ROWS], found, strict=False)),
    )  # fmt: skip
    return Section("What does the prior alone give?", (Text(sentence), table, picture))


def _all_graphs(rows: Sequence[tuple[str, Run]]) -> Section:
    cells = []
    for label, run in rows[:_MOST_ROWS]:
        m = measure(run)
        cells.append((
            label, _with_interval(m["auc"]).replace(" [", "\n["), number(m["auc_standardised"].value),
            *(f"{number(m[f'{x}_median'].value, 2)} / {number(m[f'{x}_q90'].value, 2)}" for x in "rl"),
            number(m["eps_R_median"].value, 2),
            f"{number(m['train_accuracy'].value)} /\n{number(m['test_accuracy'].value)}",
            number(m["global_accuracy"].value), percent(m["auditable"].value), percent(m["sample_filled"].value),
        ))  # fmt: skip
    heads = ("run", "AUC within\na node", "standard-\nised", "r: median /\nhigh tenth", "l: median /\nhigh tenth",
             "eps_R,\nmedian", "train / test\naccuracy", "accuracy of\ndecisions", "auditable",
             "sample\nfilled")  # fmt: skip
    caption = "r, l and eps_R: functional lower limits. Sample filled: mean size of a sample as a share of its quota"
    return Section("All runs", (Table(caption + _cut(rows), heads, tuple(cells)),))


def _cut(rows: Sequence[Any]) -> str:
    return f". The first {_MOST_ROWS} of {count(len(rows))}; summary.csv has all" if len(rows) > _MOST_ROWS else ""


def _releases(rows: Sequence[tuple[str, Run]], attacks: Sequence[str], picture: Picture) -> Section:
    first: dict[str, int] = dict.fromkeys(attacks, 0)
    cells = []
    for label, run in rows:
        found = {name: get(run.summary, "attacks", name, "auc") for name in attacks}
        known = {name: value for name, value in found.items() if not math.isnan(value)}
        if known:
            first[max(known, key=lambda name: known[name])] += 1
        cells.append((label, *(number(found[name]) for name in attacks)))
    wins = ("attack with the largest AUC, in runs", *(count(first[name]) for name in attacks))
    return Section(
        "Attacks on releases",
        (
            Text("AUC of each attack, 0.5 is guessing. The largest of several AUCs is a selected number."),
            Table("AUC by run and attack" + _cut(rows), ("run", *attacks), (wins, *cells[:_MOST_ROWS])),
            picture,
        ),
    )


def comparison_page(
    sweep: Sweep,
    labels: Mapping[Run, str],
    effects: Sequence[Sequence[Effect]],
    rankings: Sequence[tuple[str, Mapping[str, float]]],
    runs_ranking: float,
    attacks: Sequence[str],
    differing: Sequence[str],
    pictures: Mapping[str, Picture],
) -> Page:
    """The page of a comparison.

    Args:
        sweep: the runs.
        labels: a name for each run.
        effects: per option, the effects of its levels.
        rankings: label and ``ranking`` of each graph audit.
        runs_ranking: rank correlation of the runs by median r and by median eps_R.
        attacks: names of all attacks on releases.
        differing: options in which the runs differ.
        pictures: by name.
    """
    graphs = [(labels[run], run) for run in sweep.runs if run.audit == "graph"]
    releases = [(labels[run], run) for run in sweep.runs if run.audit == "release"]
    named = {f"effect_{_slug(one[0].option)}": one for one in effects}
    sections = [_effects(one, pictures[name]) for name, one in named.items()]
    if graphs:
        sections += [_ranking(rankings, runs_ranking, pictures.get("ranking")),
                     _priors(graphs, pictures["prior_alone"]), _all_graphs(graphs)]  # fmt: skip
    if releases:
        sections.append(_releases(releases, attacks, pictures["attacks"]))
    sections += [Section("How to read these numbers", (Items(_READING),)), _left_out(sweep)]
    areas = sorted(v for v in (measure(run)["auc"].value for _, run in graphs) if not math.isnan(v))
    failed = f"{count(len(sweep.missing))} of {count(sweep.jobs)}" if sweep.jobs else count(len(sweep.missing))
    cards = [Card("Runs compared", count(len(sweep.runs)), f"{len(graphs)} of graphs, {len(releases)} of releases"),
             Card("Jobs without a result", failed, "failed, stopped or never started")]  # fmt: skip
    if areas:
        cards.insert(1, Card("Attack AUC within a node", f"{number(areas[0])} to {number(areas[-1])}",
                             f"over {len(areas)} runs; guessing: 0.5"))  # fmt: skip
    short = [effect_sentence(effect) for one in effects if one[0].option in QUESTIONS for effect in one][:2]
    return Page(
        title="Comparison of audits",
        subtitle=f"{count(len(sweep.runs))} runs that differ in " + (", ".join(differing) or "nothing"),
        tone="unknown", verdict=_verdict(len(sweep.runs), len(effects)), explanation=" ".join(short),
        cards=tuple(cards), warnings=_warnings(sweep), sections=tuple(sections),
    )  # fmt: skip


def _verdict(runs: int, options: int) -> str:
    return f"{count(runs)} {'run' if runs == 1 else 'runs'}; {count(options)} options compared, all else equal."


def _slug(option: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in option)


def _warnings(sweep: Sweep) -> tuple[str, ...]:
    lines = []
    if sweep.missing:
        lines.append(f"{count(len(sweep.missing))} jobs left no result and are not part of any number here")
    if sweep.skipped:
        lines.append(f"{count(len(sweep.skipped))} files or runs were left out; they are listed below")
    numbers = [measure(run) for run in sweep.runs if run.audit == "graph"]
    small = sum(found["sample_filled"].value < 0.95 for found in numbers)
    if small:
        lines.append(
            f"in {count(small)} runs the samples reach less than 95 % of their quota on average, so they are smaller "
            "than those of the runs they are compared with"
        )
    hidden = sum(found["auditable"].value < 0.5 for found in numbers)
    if hidden:
        lines.append(
            f"in {count(hidden)} runs fewer than half of the nodes could be audited: medians are over the others"
        )
    noted = sum(run.warnings > 0 for run in sweep.runs)
    if noted:
        lines.append(f"{count(noted)} runs carry warnings of their own: see their reports")
    return tuple(lines)


def _left_out(sweep: Sweep) -> Section:
    lines = [*(f"no result: {name}" for name in sweep.missing), *sweep.skipped]
    shown = lines[:50] + ([f"and {count(len(lines) - 50)} more, all in summary.json"] if len(lines) > 50 else [])
    return Section("Left out", (Items(tuple(shown)),) if shown else (Text("Nothing."),))
