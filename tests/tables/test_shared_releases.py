"""Every release at hand is audited, at a reduced size: 14 real ones of known membership."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxaudit.evaluate.roc import auc
from jaxaudit.tables.audit import EvaluationConfig, audit_release

RELEASES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "releases"
CENSUS, HEPATITIS, HOUSING = (RELEASES / n for n in ("mostlyai_census2k", "syntheval_hepatitis", "synthmia_housing"))
ROWS = 150
ATTACKS = ("gen_lra", "dcr", "domias", "dcr_diff", "dpi", "density", "mc", "local_neighbourhood")

pytestmark = pytest.mark.skipif(not RELEASES.is_dir(), reason="the shared data folder is absent")


@cache
def table(path: Path) -> pd.DataFrame:
    return pd.read_csv(path)


def tables(name: str) -> dict[str, pd.DataFrame]:
    """Members, non-members, release and reference; without a published reference, the later non-members."""
    if name == "housing":
        names = {"members": "mem", "non_members": "non_mem", "synthetic": "synth", "reference": "ref"}
        return {role: table(HOUSING / f"{file}.csv") for role, file in names.items()}
    folder, files = (
        (CENSUS, ("train.csv.gz", "holdout.csv.gz", f"syn_{name}.csv.gz"))
        if name in ("mostly", "flip30")
        else (
            HEPATITIS,
            ("train.csv", "test.csv", next(HEPATITIS.glob(f"{name}_*")).name if HEPATITIS.is_dir() else ""),
        )
    )
    members, others, synthetic = (table(folder / file) for file in files)
    half = len(others) // 2
    return {"members": members, "non_members": others[:half], "synthetic": synthetic, "reference": others[half:]}


def reduced(name: str) -> dict[str, pd.DataFrame]:
    """The first rows of each table, of the release twice as many."""
    parts = tables(name)
    rows = {**dict.fromkeys(parts, ROWS), "synthetic": 2 * ROWS}
    return {role: frame[: rows[role]] for role, frame in parts.items()}


@cache
def audited(name: str, swapped: bool = False):
    parts = reduced(name)
    if swapped:
        parts |= {"members": parts["non_members"], "non_members": parts["members"]}
    return audit_release(**parts, attacks=ATTACKS, evaluation=EvaluationConfig(permutations=999))


@pytest.mark.parametrize("name", ["housing", "mostly", "flip30", *"abcdefghijk"])
def test_every_release_is_audited(name: str) -> None:
    result = audited(name)
    assert result.summary["records"] == {role: len(frame) for role, frame in reduced(name).items()}
    member = result.table["member"].to_numpy()
    for attack in ATTACKS:
        found, scores = result.summary["attacks"][attack], result.table[attack].to_numpy()
        assert np.isfinite(scores).all()
        assert found["auc"] == pytest.approx(auc(scores, member), abs=1e-12)
        assert found["auc_ci"][0] <= found["auc"] <= found["auc_ci"][1]
        assert 0 < found["p_value_unadjusted"] <= found["p_value"] <= 1


def test_a_copying_generator_is_found_and_an_honest_one_is_not_claimed() -> None:
    """Census, 30 % of the cells flipped, has p < .01 for the likelihood ratio; the commercial generator has not."""
    leaky, honest = (audited(name).summary["attacks"] for name in ("flip30", "mostly"))
    assert leaky["gen_lra"]["p_value"] < 0.01
    assert leaky["gen_lra"]["auc_ci"][0] > 0.5
    assert min(found["p_value"] for found in honest.values()) > 0.05


@pytest.mark.parametrize("name", ["housing", "flip30", "i"])
def test_members_and_non_members_swapped_give_one_minus_the_auc(name: str) -> None:
    there, swapped = (audited(name, swapped).summary["attacks"] for swapped in (False, True))
    for attack in ATTACKS:
        assert swapped[attack]["auc"] == pytest.approx(1 - there[attack]["auc"], abs=1e-9), attack
