"""Shared rows: masks and counts against loops, copies printed with other precision, AUCs without them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from jaxaudit.evaluate.roc import auc, auc_interval
from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.columns import decimals
from jaxaudit.tables.data import load_release
from jaxaudit.tables.overlaps import auc_without, overlap_masks


def test_masks_against_a_naive_loop() -> None:
    rng = np.random.default_rng(0)
    tables = {
        name: pd.DataFrame({"a": rng.integers(0, 5, rows), "b": rng.choice(["u", "v", None], rows)})
        for name, rows in (("members", 12), ("non_members", 9), ("synthetic", 8), ("reference", 5))
    }
    release = load_release(**tables)
    masks = overlap_masks(release)
    keys = {name: [tuple(map(str, row)) for row in table.to_numpy()] for name, table in tables.items()}
    scored = keys["members"] + keys["non_members"]
    other = [keys["non_members"]] * 12 + [keys["members"]] * 9
    expected = {
        "in_reference": [row in keys["reference"] for row in scored],
        "in_other_class": [row in rows for row, rows in zip(scored, other, strict=True)],
        "in_synthetic": [row in keys["synthetic"] for row in scored],
    }
    for name, mask in expected.items():
        assert masks[name].tolist() == mask, name
        assert 0 < sum(mask) < 21, name
    assert masks["any"].tolist() == [any(row) for row in zip(*expected.values(), strict=True)]
    assert masks["in_synthetic"][:12].sum() == release.counts["members_in_synthetic"]
    assert masks["in_reference"][12:].sum() == release.counts["non_members_in_reference"]
    assert masks["in_other_class"][:12].sum() == release.counts["members_in_non_members"]


def test_auc_without_records() -> None:
    rng = np.random.default_rng(1)
    member = np.repeat([True, False], [30, 25])
    scores = rng.normal(size=55) + member
    masks = {"some": rng.random(55) < 0.2, "none": np.zeros(55, bool), "members": member}
    found = auc_without(scores, member, masks, level=0.9)
    assert list(found) == ["some", "members"]
    left = ~masks["some"]
    assert found["some"] == {
        "left_out_members": int(masks["some"][:30].sum()), "left_out_non_members": int(masks["some"][30:].sum()),
        "auc": auc(scores[left], member[left]), "auc_ci": list(auc_interval(scores[left], member[left], 0.9)),
    }  # fmt: skip
    assert found["members"]["auc"] is None
    assert found["members"]["auc_ci"] is None
    for wrong in (np.zeros(54, bool), np.zeros(55)):
        with pytest.raises(InputError, match=r"masks\['x'\] must be 55 booleans"):
            auc_without(scores, member, {"x": wrong})


@pytest.mark.parametrize("places", [0, 1, 3])
def test_copies_printed_with_fewer_decimals(places: int) -> None:
    rng = np.random.default_rng(places)
    names = ("members", "non_members", "reference")
    tables = {name: pd.DataFrame(100 * rng.normal(size=(40, 3)), columns=list("xyz")) for name in names}
    printed = pd.DataFrame({c: [f"{v:.{places}f}" for v in tables["members"][c]] for c in "xyz"})
    release = load_release(**tables, synthetic=printed[:25])
    assert release.counts["members_in_synthetic"] == 25
    assert release.counts["non_members_in_synthetic"] == 0
    assert release.counts["members_in_reference"] == 0
    assert overlap_masks(release)["in_synthetic"].tolist() == [True] * 25 + [False] * 55
    fewer = [warning for warning in release.warnings if "fewer decimals" in warning]
    assert len(fewer) == 1
    assert f"'x' ({places}), 'y' ({places}), 'z' ({places})." in fewer[0]
    few = load_release(**tables, synthetic=printed[:19])  # too few rows to say how the table prints
    assert few.counts["members_in_synthetic"] == 0


def test_only_comparisons_with_the_release_are_coarse() -> None:
    values = np.arange(30.0)
    tables = {name: pd.DataFrame({"x": values + shift}) for name, shift in (("members", 0.3), ("non_members", 0.4))}
    release = load_release(**tables, synthetic=pd.DataFrame({"x": values % 7}), reference=tables["members"])
    assert release.counts["members_in_non_members"] == 0
    assert release.counts["members_in_reference"] == 30
    assert release.counts["members_in_synthetic"] == release.counts["non_members_in_synthetic"] == 7


def test_decimals() -> None:
    assert [decimals(np.array(cells)) for cells in ([1.0, -2.0], [0.5], [0.25, 1e9], [1e-6], [1e-7], [])] == [
        0, 1, 2, 6, None, 0,
    ]  # fmt: skip
    assert decimals(np.round(np.random.default_rng(0).normal(size=1000), 4)) == 4


def test_repeated_columns_are_named() -> None:
    rng = np.random.default_rng(2)
    draw = lambda: pd.DataFrame({"x": rng.normal(size=30), "s": rng.choice(["a", "b"], 30), "y": rng.normal(size=30)})  # noqa: E731
    tables = {name: draw().assign(x2=lambda t: t.x, s2=lambda t: t.s, s3=lambda t: t.s + "!") for name in
              ("members", "non_members", "synthetic", "reference")}  # fmt: skip
    for table in tables.values():  # the same levels, first met in the same order, but another column
        table["s4"] = ["a", "b"] * 15 if table is tables["members"] else rng.choice(["a", "b"], 30)
        table["s5"] = ["a", "b", "b"] * 10 if table is tables["members"] else table["s4"]
    release = load_release(**tables)
    assert release.counts["repeated_columns"] == 2
    assert "Columns that repeat an earlier one count twice in distances: 'x2' ('x'), 's2' ('s')." in release.warnings
