"""Copies and near copies in a release report; cells of records only where the audit was asked for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxaudit.report.canvas import Picture
from jaxaudit.report.figures_release import counted
from jaxaudit.report.words import Section, Table, Text, branch, count, get, interval, number, p_value, percent

__all__ = ["copied", "copies_section", "copies_words", "distance_text", "record_name"]

_GROUPS = {"members": "member", "non_members": "non-member", "reference": "reference row"}
_QUANTILES = {"0": "closest", "0.01": "1 %", "0.05": "5 %", "0.25": "25 %", "0.5": "median"}
_LONG = 60
"""Characters of a cell that are shown."""


def distance_text(value: float) -> str:
    """A distance with three significant digits; exactly 0 is "0", however small another one is.

    Example:
        >>> distance_text(0.0), distance_text(0.00123), distance_text(12.5), distance_text(1e-9)
        ('0', '0.00123', '12.5', '1e−09')
    """
    return number(value) if value != value else f"{value:.3g}".replace("-", "−")


def _p(p: float) -> str:
    return "p < 0.0001" if p < 1e-4 else f"p = {p_value(p)}"


def copied(summary: Mapping[str, Any]) -> bool:
    """Whether members have exact or near copies more often than luck explains: p at most .05, two looks allowed for."""
    return get(summary, "copies", "p_value") <= 0.05


def copies_words(summary: Mapping[str, Any]) -> str:
    """One sentence for the verdict, "" where nothing is known."""
    members, others = (branch(summary, "copies", "groups", name) for name in ("members", "non_members"))
    if not members:
        return ""
    exact, near = (f"{count(get(members, kind))} and {count(get(others, kind))}" for kind in ("exact", "near"))
    shares = " and ".join(percent(get(group, "near_share"), 1) for group in (members, others))
    told = f"holds exact copies of {exact}"
    if get(summary, "copies", "yardstick") > 0:  # or else near is exact
        told += f", and comes very near to {near}"
    tail = f"; {_p(get(summary, 'copies', 'p_value'))}" if copied(summary) else ""
    return (
        f"Of {counted(get(members, 'rows'), 'member')} and {counted(get(others, 'rows'), 'non-member')} the release "
        f"{told} ({shares}{tail})."
    )


def copies_section(summary: Mapping[str, Any], pictures: Mapping[str, Picture]) -> tuple[Section, ...]:
    """Counts, distances, their figure, and the closest pairs where rows were asked for; nothing without distances."""
    found = branch(summary, "copies")
    if not branch(found, "groups"):
        return ()
    picture = (pictures["copies"],) if "copies" in pictures else ()
    return (
        Section(
            "Copies and near copies",
            (_introduction(found), _counts(found), _difference(found), *picture, _distances(found), *_pairs(summary)),
        ),
    )


def _introduction(found: Mapping[str, Any]) -> Text:
    share, r = get(found, "expected_share"), get(found, "groups", "reference", "rows")
    quantile = f"{100 * get(found, 'quantile'):g} %"
    if share != share:
        near = (
            f"More than {quantile} of the reference occurs exactly in the release, so that being very near is no news "
            "in this table: only exact copies are counted."
        )
    else:
        near = (
            f"A near copy is closer to a released row than all but the nearest {quantile} of the "
            f"{counted(r, 'reference row')}, that is closer than {distance_text(get(found, 'yardstick'))}; of records "
            f"that the generator never saw at most {percent(share, 1)} are expected to be."
        )
    return Text(
        "A release that repeats its training data lies closer to members than to other records of the population. An "
        f"exact copy agrees in every cell, as printed, and has distance 0. {near} Copies of non-members are made by "
        "chance, as in tables with few columns or few levels: the difference between the two groups is what speaks of "
        "copying."
    )


def _counts(found: Mapping[str, Any]) -> Table:
    rows = []
    for name, noun in _GROUPS.items():
        row = branch(found, "groups", name)
        cells = [
            f"{count(get(row, kind))} ({percent(get(row, f'{kind}_share'), 1)})\n{_share_ends(row, kind)}"
            for kind in ("exact", "near")
        ]
        rows.append((f"{noun}s", count(get(row, "rows")), *(cell.rstrip() for cell in cells)))
    return Table(
        f"Records that the release repeats, with exact {100 * get(found, 'level'):.6g} % intervals of the shares",
        ("", "records", "exact copies", "near copies, exact ones included"), tuple(rows),
    )  # fmt: skip


def _share_ends(row: Mapping[str, Any], kind: str) -> str:
    pair = row.get(f"{kind}_share_ci")
    return interval([100 * end for end in pair], 1) + " %" if isinstance(pair, list | tuple) else ""


def _difference(found: Mapping[str, Any]) -> Text:
    sentences = []
    for kind, name in (("exact", "exact"), ("near", "near")):
        row = branch(found, "compared", kind)
        pair = row.get("ci") if isinstance(row.get("ci"), list | tuple) else ()
        inside = f" {interval([100 * end for end in pair], 1)}" if pair else ""
        sentences.append(
            f"{name} copies {number(100 * get(row, 'difference'), 1)} percentage points{inside}, "
            f"{_p(get(row, 'p_value'))}"
        )
    return Text(
        f"Members less non-members: {'; '.join(sentences)} (Newcombe's interval; Fisher's exact test that members have "
        f"more). Allowing for two looks, {_p(get(found, 'p_value'))}."
    )


def _distances(found: Mapping[str, Any]) -> Table:
    rows = [
        (f"{noun}s", *(distance_text(get(found, "groups", name, "quantiles", key)) for key in _QUANTILES))
        for name, noun in _GROUPS.items()
    ]
    return Table("Distance to the nearest released row: quantiles", ("", *_QUANTILES.values()), tuple(rows))


def _pairs(summary: Mapping[str, Any]) -> tuple[Text | Table, ...]:
    pairs = summary.get("pairs")
    if not isinstance(pairs, list | tuple) or not pairs:
        return (Text("Rows themselves are not shown; report.rows=true shows the closest pairs side by side."),)
    return (
        Text(
            "The members closest to the release beside their nearest released rows, as asked for by report.rows=true. "
            "THESE ARE PERSONAL DATA: this page may now be shown only to those who may see the members' table."
        ),
        *(_pair(pair) for pair in pairs),
    )


def _pair(pair: Mapping[str, Any]) -> Table:
    cells = branch(pair, "cells")
    equal = sum(mine == theirs for mine, theirs in cells.values())
    rows = [
        (str(name), _cut(mine), _cut(theirs), "" if mine == theirs else "differs")
        for name, (mine, theirs) in cells.items()
    ]
    return Table(
        f"Member: {record_name(pair)}; released row {get(pair, 'released_row'):.0f}: distance "
        f"{distance_text(get(pair, 'distance'))}, {equal} of {counted(len(cells), 'cell')} equal",
        ("column", "record", "released row", ""), tuple(rows), left=4,
    )  # fmt: skip


def _cut(cell: str) -> str:
    text = str(cell)
    return "(missing)" if text == "" else text if len(text) <= _LONG else text[: _LONG - 1] + "…"


def record_name(row: Mapping[str, Any]) -> str:
    r"""A member by its identifiers where it has any, and by its row in the members' table.

    Example:
        >>> record_name({"row": 3, "ids": {"patient": "P-7"}}).replace("\u00a0", " ")
        'patient P-7 (row 3)'
    """
    place = f"row\u00a0{get(row, 'row'):.0f}"
    ids = ", ".join(f"{name} {_cut(value)}" for name, value in branch(row, "ids").items())
    return f"{ids} ({place})" if ids else place
