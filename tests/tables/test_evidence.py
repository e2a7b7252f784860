"""Exposed records: scores, places and ids are those of the tables, and the evidence is that of Gen-LRA."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.attacks.gen_lra import GenLRAConfig, gen_lra, gen_lra_evidence
from jaxaudit.tables.copies import copies
from jaxaudit.tables.data import load_release
from jaxaudit.tables.encode import fit_encoder
from jaxaudit.tables.evidence import ReportConfig, closest_pairs, expose, released_evidence, single_setting
from jaxaudit.tables.strata import outlier_strata

ODD = ("<script>alert(1)</script>", "=cmd()", "多", "007")


def frame(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "patient": [f"P{seed}-{i}" for i in range(n)], "x": rng.normal(size=n), "y": rng.normal(size=n),
        "<b>colour": rng.choice(["red", "green", "多"], n), "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(
            rng.integers(0, 900, n), "D"),
    })  # fmt: skip


class Case:
    """A release that repeats some members, scored by two attacks."""

    def __init__(self) -> None:
        members, others, reference = frame(30, 1), frame(25, 2), frame(60, 3)
        members.loc[:3, "patient"] = ODD
        members.loc[4, ["x", "patient"]] = np.nan
        released = pd.concat([frame(20, 4), members.iloc[[7, 2, 9]]], ignore_index=True).drop(columns="patient")
        released.loc[20, "x"] += 1e-3
        self.release = load_release(
            members, others, released.assign(patient="s"), reference, roles={"patient": "id", "when": "datetime"}
        )
        encoder = fit_encoder(self.release.reference, self.release.synthetic, "standard", roles=self.release.roles)
        parts = [encoder.transform(part) for part in (self.release.members, self.release.non_members)]
        self.encoded = {
            "targets": np.concatenate(parts), "synthetic": encoder.transform(self.release.synthetic),
            "reference": encoder.transform(self.release.reference),
        }  # fmt: skip
        self.member = np.arange(55) < 30
        self.distance = copies(member=self.member, **self.encoded).distance
        self.scores = {"dcr": -self.distance, "coarse": np.round(self.encoded["targets"][:, 0])}
        self.strata = outlier_strata(self.encoded["targets"], self.encoded["reference"])

    def expose(self, **changes):
        given = {"scores": self.scores, "best": "dcr", "stratum": self.strata.stratum, **changes}
        return expose(self.release, self.encoded, distance=self.distance, **given)


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


def test_the_most_exposed_records_against_pandas(case: Case) -> None:
    found = case.expose(report=ReportConfig(top=12))
    rows = found.summary["records"]
    table = pd.DataFrame(case.scores)
    places = table.rank(ascending=False, method="min").astype(int)
    order = table["dcr"][:30].sort_values(ascending=False, kind="stable").index[:12].tolist()
    assert [row["record"] for row in rows] == order
    assert {2, 7, 9} == set(order[:3])
    for row, i in zip(rows, order, strict=True):
        assert row["ranks"] == places.loc[i].to_dict()
        assert row["scores"] == table.loc[i].to_dict()
        assert row["non_members_as_high"] == sum(s >= table["dcr"][i] for s in table["dcr"][30:])
        assert row["stratum"] == case.strata.stratum[i]
        assert row["distance"] == case.distance[i]
        gap = np.sqrt(np.sum((case.encoded["synthetic"] - case.encoded["targets"][i]) ** 2, axis=1))
        assert row["nearest_row"] == gap.argmin()
        assert (row["table"], row["row"]) == ("members", i)
    assert {row["record"]: row["nearest_row"] for row in rows[:3]} == {7: 20, 2: 21, 9: 22}


def test_ties_of_scores_and_of_released_rows(case: Case) -> None:
    twice = {**case.encoded, "synthetic": np.concatenate([case.encoded["synthetic"], case.encoded["synthetic"]])}
    found = expose(case.release, twice, case.scores, "coarse", case.distance, report=ReportConfig(top=30, evidence=40))
    coarse = case.scores["coarse"]
    for row in found.summary["records"]:
        assert row["non_members_as_high"] == sum(s >= coarse[row["record"]] for s in coarse[30:])
        assert row["ranks"]["coarse"] == 1 + sum(s > coarse[row["record"]] for s in coarse)
        assert row["nearest_row"] < 23  # the first of the copies
    rows = found.table.groupby("record")["released_row"].agg(set)
    assert all({row % 23 for row in group} <= {row for row in group if row < 23} for group in rows)


def test_ids_are_text_as_it_came(case: Case) -> None:
    everyone = case.expose(report=ReportConfig(top=1000)).summary["records"]
    ids = {row["record"]: row["ids"] for row in everyone}
    assert len(ids) == 30
    assert [ids[i] for i in range(4)] == [{"patient": name} for name in ODD]
    assert ids[4] == {}
    assert ids[29] == {"patient": "P1-29"}


def test_rows_are_those_of_the_table_as_given(case: Case) -> None:
    members = np.arange(100, 130)
    release = type(case.release)(**{**vars(case.release), "rows": {"members": members}})
    found = expose(release, case.encoded, case.scores, "dcr", case.distance)
    assert all(row["row"] == row["record"] + 100 for row in found.summary["records"])
    assert (found.table["row"] == found.table["record"] + 100).all()
    assert all(row["stratum"] is None for row in found.summary["records"])


def test_evidence_is_the_score_taken_apart(case: Case) -> None:
    x, s, r = case.encoded["targets"][:9], case.encoded["synthetic"], case.encoded["reference"]
    config = GenLRAConfig(k=4)
    every = released_evidence(x, s, r, config, most=100)
    np.testing.assert_allclose(every.groupby("record")["contribution"].sum(), gen_lra(x, s, r, k=4), rtol=1e-9)
    np.testing.assert_allclose(
        every["distance"], np.linalg.norm(x[every["record"]] - s[every["released_row"]], axis=1), rtol=1e-12
    )
    total = gen_lra(x, s, r, k=4)[every["record"]]
    np.testing.assert_allclose(every["share"], np.where(total > 0, every["contribution"] / total, np.nan), rtol=1e-9)
    few = released_evidence(x, s, r, config, most=2)
    largest = every.groupby("record").head(2).reset_index(drop=True)
    pd.testing.assert_frame_equal(few, largest)
    assert (every.groupby("record")["contribution"].diff().dropna() <= 0).all()
    assert few.loc[few["record"] == 2, "released_row"].iloc[0] == 21


def test_the_table_and_the_summary_agree(case: Case) -> None:
    found = case.expose(report=ReportConfig(top=4, evidence=2))
    assert list(found.table) == [
        "record", "table", "row", "released_row", "distance", "contribution", "share",
    ]  # fmt: skip
    told = [(row["record"], one["released_row"]) for row in found.summary["records"] for one in row["released"]]
    assert told == list(zip(found.table["record"], found.table["released_row"], strict=True))
    assert len(told) == 8
    assert found.summary["evidence"]["k"] == 10
    full = gen_lra_evidence(case.encoded["targets"], case.encoded["synthetic"], case.encoded["reference"])
    top = found.table.iloc[0]
    at = np.flatnonzero((full.target == top["record"]) & (full.row == top["released_row"]))
    np.testing.assert_allclose(full.contribution[at], top["contribution"], rtol=1e-6)


def test_a_grid_is_explained_by_the_setting_that_won() -> None:
    grid = GenLRAConfig(k=(1, 10), multiplier=(0.5, 1.0))
    assert single_setting(grid, "gen_lra[k=10,h=0.5]", 100) == GenLRAConfig(k=10, multiplier=0.5)
    assert single_setting(grid, "gen_lra[k=1,h=1]", 100) == GenLRAConfig(k=1, multiplier=1.0)
    assert single_setting(grid, "dcr", 100) == GenLRAConfig(k=1, multiplier=0.5)
    assert single_setting(GenLRAConfig(k=7, multiplier=(0.5, 2.0)), "gen_lra[h=2]", 5) == GenLRAConfig(
        5, multiplier=2.0
    )


def test_no_density_no_evidence(case: Case) -> None:
    flat = {**case.encoded, "reference": np.zeros_like(case.encoded["reference"])}
    found = expose(case.release, flat, case.scores, "dcr", case.distance)
    assert "reference must vary" in found.summary["no_evidence"]
    assert found.table.empty
    assert [row["released"] for row in found.summary["records"]] == [[]] * 10


def test_closest_pairs_cell_by_cell(case: Case) -> None:
    first, second, third, *rest = closest_pairs(case.release, case.encoded, case.distance, most=5)
    assert [(pair["record"], pair["released_row"]) for pair in (first, second, third)] == [(2, 21), (9, 22), (7, 20)]
    assert first["ids"] == {"patient": "多"}
    assert list(first["cells"]) == ["x", "y", "<b>colour", "when"]
    assert all(mine == theirs for mine, theirs in first["cells"].values())
    mine, theirs = third["cells"]["x"]
    assert float(theirs) - float(mine) == pytest.approx(1e-3)
    assert first["cells"]["when"][0] == f"{case.release.members['when'].iloc[2]:%Y-%m-%d}"
    assert len(rest) == 2
    everyone = closest_pairs(case.release, case.encoded, case.distance, most=100)
    assert next(pair for pair in everyone if pair["record"] == 4)["cells"]["x"][0] == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 1}, "report.rows must be true or false, got 1"),
        ({"top": 0}, r"report.top must be in \[1, 1000\], got 0"),
        ({"evidence": 0}, "report.evidence must be in"),
    ],
)
def test_settings(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ReportConfig(**settings)


def test_an_unknown_attack(case: Case) -> None:
    with pytest.raises(InputError, match="best must be one of dcr, coarse, got domias"):
        case.expose(best="domias")
