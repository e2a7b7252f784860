"""Sections about records: what they show is what the summary holds, and nothing where it holds nothing."""

from __future__ import annotations

import numpy as np
import pytest

from jaxaudit.evaluate import operating_point
from jaxaudit.report.release_records import operating_section, overlap_section, strata_section
from jaxaudit.report.words import Table
from jaxaudit.tables.overlaps import auc_without
from jaxaudit.tables.strata import outlier_strata, strata_summary


@pytest.fixture(scope="module")
def attacks() -> dict:
    rng = np.random.default_rng(0)
    member = np.arange(80) < 40
    scores = {"<b>strong": rng.normal(size=80) + 2 * member, "weak": rng.normal(size=80)}
    masks = {"in_reference": np.zeros(80, bool), "in_synthetic": np.arange(80) < 5}
    strata = outlier_strata(rng.normal(size=(80, 2)), rng.normal(size=(50, 2)))
    return {
        name: {
            "auc": 0.9, "auc_ci": [0.8, 1.0], "auc_without": auc_without(row, member, masks),
            "strata": strata_summary(row, member, strata), "operating": operating_point(row, member),
        }
        for name, row in scores.items()
    }  # fmt: skip


def table(sections: tuple) -> Table:
    ((section,)) = sections
    return section.blocks[1]


def test_overlaps_name_what_was_left_out(attacks: dict) -> None:
    found = table(overlap_section(attacks))
    assert found.columns == ("attack", "all records", "without records copied exactly into the release "
                             "(5 members, 0 non-members)")  # fmt: skip
    assert found.rows[1][2].startswith(f"{attacks['weak']['auc_without']['in_synthetic']['auc']:.3f}\n[")


def test_all_kinds_together_where_there_are_several() -> None:
    row = {"auc": 0.6, "auc_ci": [0.5, 0.7], "left_out_members": 1, "left_out_non_members": 2}
    one, two = {"in_reference": row, "any": row}, {"in_reference": row, "in_synthetic": row, "any": row}
    assert len(table(overlap_section({"dcr": {"auc": 0.6, "auc_without": one}})).columns) == 3
    columns = table(overlap_section({"dcr": {"auc": 0.6, "auc_without": two}})).columns
    assert columns[-1] == "without records of any of these kinds (1 member, 2 non-members)"


def test_strata_are_four_rows_of_every_attack(attacks: dict) -> None:
    found = table(strata_section(attacks))
    assert [row[1] for row in found.rows] == ["1", "2", "3", "4"] * 2
    third = attacks["<b>strong"]["strata"][2]
    assert found.rows[2][3] == f"{third['members']} / {third['non_members']}"
    assert found.rows[2][4].startswith(f"{third['auc']:.3f}")


def test_a_limit_without_evidence_is_not_shown(attacks: dict) -> None:
    strong, weak = table(operating_section(attacks)).rows
    point = attacks["<b>strong"]["operating"]
    assert strong[2] == f"{point['n_in'] - point['fn']} of {point['n_in']}"
    assert strong[4] == f"{point['r_lower']:.2f}"
    assert attacks["weak"]["operating"]["p_value"] > 0.05
    assert weak[4:] == ("no evidence", "no evidence")


def test_nothing_is_shown_of_older_results() -> None:
    for section in (overlap_section, strata_section, operating_section):
        assert section({"dcr": {"auc": 0.5}}) == ()
        assert section({}) == ()
    assert operating_section({"dcr": {"operating": None}}) == ()
