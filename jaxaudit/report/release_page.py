"""What the report of a release audit says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxaudit.report.canvas import Picture
from jaxaudit.report.figures_release import confidence, counted
from jaxaudit.report.release_bounds import epsilon_section, sensitivity_section, two_intervals
from jaxaudit.report.release_copies import copies_section
from jaxaudit.report.release_records import exposed_section, operating_section, overlap_section, strata_section
from jaxaudit.report.release_verdict import best_attack, smallest_p, verdict
from jaxaudit.report.words import (
    Card,
    Items,
    Page,
    Section,
    Table,
    Text,
    branch,
    count,
    flatten,
    get,
    interval,
    number,
    p_value,
    percent,
    short,
)
from jaxaudit.runtime.result import AuditResult
from jaxaudit.tables.overlaps import MEANING

__all__ = ["release_headline", "release_page"]

_LEVELS = ("0", "0.001", "0.01", "0.1")
_TABLES = {"members": "members", "non_members": "non-members", "synthetic": "released rows",
           "reference": "reference rows"}  # fmt: skip
_COLUMNS = 60
"""Columns of the audited table that are listed for each role."""

_CAVEATS = (
    "Members are records that the generator was trained on, non-members records that it never saw. An attack sees "
    "the released synthetic table and a reference table, and scores each record: higher means more member-like.",
    "The records share one release. Intervals and p-values speak of this release and the attacks run on it; they are "
    "not a bound on the generator, and an attack that fails is not a proof of privacy.",
    "A difference between the populations (members of one year, non-members of another) gives an AUC above 0.5 as "
    "memorisation does. The numbers mean memorisation only where both tables are random draws from one population.",
    "The permutation test and an interval of the AUC answer different questions. The test asks whether these records, "
    "labelled at random, would do as well; the interval asks how far the AUC would move with other records.",
    "An AUC below 0.5 is no evidence here: the direction of each score was fixed beforehand.",
    "A true-positive rate at a small false-positive rate rests on few non-members: FPR = 0 means above every one of "
    "those at hand, and a rate below 1 / (number of non-members) cannot be told from 0.",
)


def release_headline(result: AuditResult) -> list[tuple[str, str]]:
    """The three numbers that matter: the best attack's AUC, the adjusted p-value, members found at FPR 0."""
    best = best_attack(result)
    attack = result.summary.get("attacks", {}).get(best, {})
    zero = attack.get("tpr_at_fpr", {}).get("0", {})
    named = f" ({best})" if best else ""
    _, p = smallest_p(result)
    return [
        (f"AUC of the best attack{named}", f"{number(get(attack, 'auc'))} {interval(attack.get('auc_ci'))}".strip()),
        (f"p-value, adjusted for {counted(len(result.summary.get('attacks', {})), 'attack')}", p_value(p)),
        (
            f"Members it finds at FPR 0{named}",
            f"{count(get(zero, 'true_positives'))} of {count(get(zero, 'n_members'))} (above "
            f"{'' if get(zero, 'n_non_members') == 1 else 'all '}{counted(get(zero, 'n_non_members'), 'non-member')})",
        ),
    ]


def release_page(result: AuditResult, pictures: dict[str, Picture], shared: tuple[Section, ...]) -> Page:
    """The page of a release audit; ``shared`` are the closing sections that both audits have."""
    tone, headline, explanation = verdict(result)
    level = confidence(result)
    notes = (f"{level} interval; guessing: 0.5", "smallest over the attacks", "")
    cards = tuple(
        Card(label, value, note) for (label, value), note in zip(release_headline(result), notes, strict=True)
    )
    records = result.summary.get("records", {})
    attacks = result.summary.get("attacks", {})
    sections = (
        Section(
            "The attacks",
            (_attacks(attacks, level), _p_words(result), pictures["attacks"], *two_intervals(attacks, level)),
        ),
        Section("Members found at few false alarms", (_tprs(attacks, level), pictures["roc"])),
        Section("Scores", (pictures["scores"],)),
        *copies_section(result.summary, pictures),
        *exposed_section(result, best_attack(result)),
        *strata_section(attacks),
        *overlap_section(attacks),
        *operating_section(attacks),
        *epsilon_section(result.summary),
        *sensitivity_section(result.summary),
        Section("How to read these numbers", (Items(_CAVEATS),)),
        Section("What was audited", _what(result.data, records)),
        *_reproducible(shared, result),
    )
    return Page(
        title="Membership audit of a synthetic table",
        subtitle=f"{counted(get(records, 'synthetic'), 'released record')}, judged on "
        f"{counted(get(records, 'members'), 'member')} and {counted(get(records, 'non_members'), 'non-member')} "
        f"with {counted(get(records, 'reference'), 'reference record')}",
        tone=tone, verdict=headline, explanation=explanation, cards=cards, warnings=result.warnings, sections=sections,
    )  # fmt: skip


def _attacks(attacks: dict[str, Any], level: str) -> Table:
    rows = [
        (str(name), number(get(attacks, name, "auc")), interval(attacks[name].get("auc_ci")),
         _behind(attacks[name]), percent(get(attacks, name, "first_share")),
         p_value(get(attacks, name, "p_value")), p_value(get(attacks, name, "p_value_unadjusted")))
        for name in sorted(attacks, key=lambda n: -np.nan_to_num(get(attacks, n, "auc"), nan=-1.0))
    ]  # fmt: skip
    return Table(
        "Attacks, best first",
        ("attack", "AUC", f"{level} interval", "behind the best", "first in", "p, adjusted", "p, this attack alone"),
        tuple(rows),
    )


def _behind(attack: dict[str, Any]) -> str:
    """How far an attack's AUC is below the largest one, with the paired interval."""
    if get(attack, "behind_best") == 0:
        return ""
    return f"{number(get(attack, 'behind_best'))} {interval(attack.get('behind_best_ci'))}".strip()


def _p_words(result: AuditResult) -> Text:
    b = get(result.summary, "permutation", "permutations")
    times = "many times" if math.isnan(b) else f"{count(b)} times"
    floor = "" if math.isnan(b) else f" It cannot be smaller than {p_value(1 / (b + 1))}."
    return Text(
        f"The p-value: the labels member / non-member were shuffled {times}, each time for all attacks together. The "
        "adjusted p is the share of shuffles in which the best of all attacks did at least as well as this one; it "
        f"stays honest however many attacks are tried.{floor} The other column ignores that several "
        "attacks were tried. "
        "Behind the best: the AUC's distance from the largest one, with an interval from resampled records, the same "
        "records for both attacks. First in: the share of resamples in which the attack has the largest AUC."
    )


def _tprs(attacks: dict[str, Any], level: str) -> Table:
    rows = []
    for name in attacks:
        found = attacks[name].get("tpr_at_fpr", {})
        rows.append((str(name), *(_tpr_cell(found.get(rate, {})) for rate in _LEVELS)))
    heads = tuple(f"FPR {'' if rate == '0' else '≤ '}{100 * float(rate):g} %" for rate in _LEVELS)
    return Table(
        f"True-positive rate at the largest realised false-positive rate within each level, its exact {level} "
        "interval, and the members found and non-members wrongly called members",
        ("attack", *heads), tuple(rows),
    )  # fmt: skip


def _tpr_cell(row: dict[str, Any]) -> str:
    if math.isnan(get(row, "tpr")):
        return number(math.nan)
    if row.get("supported") is False:
        return "not supported\nby " + counted(get(row, "n_non_members"), "non-member").replace(" ", "\n")
    return (
        f"{number(get(row, 'tpr'))}\n{interval(row.get('tpr_ci'))}\n"
        f"{count(get(row, 'true_positives'))} found, {count(get(row, 'false_positives'))} false"
    )


def _what(data: Mapping[str, Any], records: Mapping[str, Any]) -> tuple[Table, ...]:
    """What was audited: columns with their roles, counts of rows with what they mean, and everything else."""
    roles, counts = branch(data, "roles"), branch(data, "counts")
    rest = {name: value for name, value in data.items() if name not in ("roles", "counts", "encoded", *records)}
    if roles:
        rest.pop("columns", None)
    plain = [(f"number of {_TABLES.get(name, name)}", count(get(records, name))) for name in records]
    if isinstance(data.get("encoded"), list | tuple):  # their names hold levels, which are cells
        plain.append(("number of encoded columns", count(len(data["encoded"]))))
    tables = [Table("", ("", ""), (*plain, *flatten(rest)), left=2)]
    if roles:
        tables.append(Table("Columns by what they were taken for", ("role", "columns"), _roles(roles), left=2))
    if counts:
        meant = [(MEANING.get(name, str(name).replace("_", " ")), count(get(counts, name))) for name in counts]
        tables.append(Table("Rows and columns counted", ("", "count"), tuple(meant)))
    return tuple(tables)


def _roles(roles: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """One row per role, those that a person gave apart; ordinal columns with their levels."""
    found: dict[str, list[str]] = {}
    for name, given in roles.items():
        role = branch(given)
        order = role.get("order")
        levels = f" ({' < '.join(map(str, order))})" if isinstance(order, list | tuple) else ""
        words = f"{role.get('role', given)}, {'as told' if role.get('given') else 'found'}"
        found.setdefault(words, []).append(f"{short(name, 60)}{levels}")
    return tuple(
        (words, ", ".join(names[:_COLUMNS]) + (f", … ({len(names)} in all)" if len(names) > _COLUMNS else ""))
        for words, names in found.items()
    )


def _reproducible(shared: tuple[Section, ...], result: AuditResult) -> tuple[Section, ...]:
    """The closing sections with seed and versions beside the command."""
    versions = [
        f"{name.removeprefix('versions.')} {value}"
        for section in shared if section.title == "Environment"
        for table in section.blocks if isinstance(table, Table)
        for name, value in table.rows if name == "python" or name.startswith("versions.")
    ]  # fmt: skip
    seed = get(result.config, "seed")
    items = [f"Seed: {seed:.0f}."] if math.isfinite(seed) else []
    items += [f"Versions: {', '.join(versions)}."] if versions else []
    items += ["Tables: the files named in the settings, with the numbers of rows given above."]
    return tuple(
        Section(section.title, (*section.blocks, Items(tuple(items))))
        if section.title == "How to reproduce"
        else section
        for section in shared
    )
