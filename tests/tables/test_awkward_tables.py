"""Tables as people have them, through reading, encoding and every density and distance of an audit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxaudit.evaluate.roc import auc
from jaxaudit.tables.attacks.distance import dcr, dcr_diff
from jaxaudit.tables.attacks.domias import domias
from jaxaudit.tables.attacks.gen_lra import gen_lra
from jaxaudit.tables.data import Release, load_release
from jaxaudit.tables.encode import fit_encoder
from jaxaudit.tables.strata import outlier_strata, strata_summary

ROWS = 24
MEMBER = np.repeat([True, False], ROWS)


def one_category(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({"square": rng.choice(["x", "o", "b"], ROWS)})


def categories(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({f"square {j}": rng.choice(["x", "o", "b"], ROWS) for j in range(6)})


def one_number(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({"größe [cm]": rng.normal(170, 10, ROWS)})


def wide(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame(rng.normal(size=(ROWS, 40)), columns=[f"x {j}" for j in range(40)])


def odd_columns(rng: np.random.Generator) -> pd.DataFrame:
    table = pd.DataFrame({"x": rng.normal(size=ROWS), "one": 1, "word": "a", "none": np.nan, "empty": [None] * ROWS})
    return table.assign(x2=table["x"], flag=pd.array(rng.choice([True, False, None], ROWS), dtype="boolean"))


def constants_that_differ(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({"x": rng.normal(size=ROWS), "batch": int(rng.integers(10**6))})


KINDS = (one_category, categories, one_number, wide, odd_columns, constants_that_differ)


def leaking(draw: Callable[[np.random.Generator], pd.DataFrame], tmp_path: Path) -> Release:
    """A release of 12 members, printed, and 12 fresh rows, all tables through files."""
    tables = {
        name: draw(np.random.default_rng(seed)) for seed, name in enumerate(("members", "non_members", "reference"))
    }
    fresh = draw(np.random.default_rng(9))
    tables["synthetic"] = pd.concat([tables["members"][:12], fresh[:12]], ignore_index=True)
    paths = {name: tmp_path / f"{name}.csv" for name in tables}
    for name, table in tables.items():
        table.to_csv(paths[name], index=False, float_format="%.4f" if name == "synthetic" else None)
    return load_release(**paths)


@pytest.mark.parametrize("draw", KINDS)
def test_every_attack_gives_finite_and_sensible_scores(draw, tmp_path: Path) -> None:
    release = leaking(draw, tmp_path)
    encoder = fit_encoder(release.reference, release.synthetic, roles=release.roles)
    x, s, r = (
        encoder.transform(t)
        for t in (pd.concat([release.members, release.non_members]), release.synthetic, release.reference)
    )
    assert np.isfinite(x).all()
    assert x.shape[1] == len(encoder.feature_names) == len(set(encoder.feature_names))
    scores = {
        "dcr": dcr(x, s),
        "dcr_diff": dcr_diff(x, s, r),
        "gen_lra": gen_lra(x, s, r, k=5),
        "domias": domias(x, s, r),
    }
    for name, score in scores.items():
        assert np.isfinite(score).all(), name
        rows = strata_summary(score, MEMBER, outlier_strata(x, r))
        assert sum(row["members"] for row in rows) == ROWS
    if draw in (wide, one_number, odd_columns):  # with rows that hardly repeat, printed copies stand out
        assert release.counts["members_in_synthetic"] >= 12
        assert auc(scores["dcr"], MEMBER) > 0.6


def test_odd_columns_are_left_out_and_named(tmp_path: Path) -> None:
    release = leaking(odd_columns, tmp_path)
    encoder = fit_encoder(release.reference, release.synthetic, roles=release.roles)
    assert encoder.feature_names == ("x", "x2", "flag", "flag (missing)")
    warnings = " ".join((*release.warnings, *encoder.warnings))
    assert "Columns with one value in reference and synthetic are left out: 'one', 'word'." in warnings
    assert "Columns without any value in reference and synthetic are left out: 'none', 'empty'." in warnings
    assert "Columns that repeat an earlier one count twice in distances: 'x2' ('x')." in warnings
    assert release.counts["constant_columns"] == 4


def test_codes_and_counts_apart() -> None:
    """An integer column is a number unless a role says code: 1 and 9 are then as far apart as 1 and 2."""
    rng = np.random.default_rng(0)
    tables = {
        name: pd.DataFrame({"k": rng.integers(1, 10, 40)})
        for name in ("members", "non_members", "synthetic", "reference")
    }
    targets = pd.DataFrame({"k": [1, 2, 9]})
    for roles, ratio in ((None, 8.0), ({"k": "categorical"}, 1.0)):
        release = load_release(**tables, roles=roles)
        one, two, nine = fit_encoder(release.reference, release.synthetic, roles=release.roles).transform(targets)
        assert np.linalg.norm(nine - one) / np.linalg.norm(two - one) == pytest.approx(ratio)
