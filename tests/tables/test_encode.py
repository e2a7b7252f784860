"""The encoding of mixed tables: roles, scales, missing cells, invariances, and real tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import rankdata
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.data import Release, load_release, read_table, reconcile
from jaxaudit.tables.encode import FARTHEST, LevelColumn, fit_encoder
from jaxaudit.tables.layout import infer_layout

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
TABLES = sorted((DATA / "tables").glob("*.csv.gz"))
needs_data = pytest.mark.skipif(not TABLES, reason="the shared data folder is absent")


def mixed(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({
        "income": rng.lognormal(10, 1, rows), "children": rng.integers(0, 4, rows), "owner": rng.random(rows) < 0.3,
        "code": rng.integers(1, 4, rows), "job": rng.choice(["a", "b", "c"], rows),
        "joined": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), unit="D"),
    })  # fmt: skip
    table.loc[rng.random(rows) < 0.2, "income"] = np.nan
    table.loc[rng.random(rows) < 0.2, "job"] = None
    return table


REFERENCE, SYNTHETIC, TARGETS = mixed(80, 0), mixed(60, 1), mixed(40, 2)


def test_roles_and_names() -> None:
    encoder = fit_encoder(REFERENCE, SYNTHETIC)
    assert encoder.feature_names == (
        "income", "income (missing)", "children", "owner", "code", "job=a", "job=b", "job=c", "job (missing)", "joined",
    )  # fmt: skip
    assert encoder.warnings == ()
    values = encoder.transform(TARGETS)
    assert values.dtype == np.float64
    assert values.shape == (40, 10)
    assert np.isfinite(values).all()


def test_against_scikit_learn() -> None:
    encoder = fit_encoder(REFERENCE, SYNTHETIC)
    numbers = ["children", "owner", "code"]
    scaler = StandardScaler().fit(REFERENCE[numbers].astype(float))
    n = len(REFERENCE)
    expected = scaler.transform(TARGETS[numbers].astype(float)) * np.sqrt((n - 1) / n)  # ddof 0 there
    got = pd.DataFrame(encoder.transform(TARGETS), columns=encoder.feature_names)
    np.testing.assert_allclose(got[numbers], expected, rtol=1e-12, atol=1e-12)
    jobs = TARGETS["job"].fillna("(missing)").to_numpy().reshape(-1, 1)
    levels = OneHotEncoder(categories=[["a", "b", "c", "(missing)"]], sparse_output=False).fit_transform(jobs)
    np.testing.assert_allclose(got[["job=a", "job=b", "job=c", "job (missing)"]], levels / np.sqrt(2), rtol=1e-15)
    days = (TARGETS["joined"] - REFERENCE["joined"].mean()) / REFERENCE["joined"].std()
    np.testing.assert_allclose(got["joined"], days, rtol=1e-9, atol=1e-9)
    since_1970 = (REFERENCE["joined"].mean() - pd.Timestamp(0)).total_seconds() / 86_400
    assert encoder.columns[-1].centre == pytest.approx(since_1970)  # type: ignore[union-attr]


def test_against_a_loop_over_cells() -> None:
    got = fit_encoder(REFERENCE, SYNTHETIC).transform(TARGETS)
    present = REFERENCE["income"].dropna()
    for row, target in enumerate(TARGETS["income"]):
        expected = 0.0 if np.isnan(target) else (target - present.mean()) / present.std(ddof=1)
        assert got[row, 0] == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert got[row, 1] == float(np.isnan(target))


def test_reference_has_unit_covariance_diagonal_and_mismatch_costs_one() -> None:
    encoder = fit_encoder(REFERENCE, SYNTHETIC)
    np.testing.assert_allclose(np.cov(encoder.transform(REFERENCE).T)[[2, 3, 4, 9], [2, 3, 4, 9]], 1, rtol=1e-12)
    pair = encoder.transform(TARGETS.iloc[[0, 0]].assign(job=["a", "c"]))
    assert np.linalg.norm(pair[0] - pair[1]) == pytest.approx(1, rel=1e-15)


def test_never_fitted_on_targets_and_each_row_by_itself() -> None:
    encoder = fit_encoder(REFERENCE, SYNTHETIC)
    whole = encoder.transform(TARGETS)
    for row in (0, 7, 39):
        np.testing.assert_array_equal(encoder.transform(TARGETS.iloc[[row]])[0], whole[row])
    np.testing.assert_array_equal(encoder.transform(TARGETS[TARGETS.columns[::-1]].assign(more=1)), whole)
    assert encoder.transform(TARGETS.iloc[:0]).shape == (0, 10)


def test_order_of_rows_has_no_influence() -> None:
    rng = np.random.default_rng(5)
    shuffled = fit_encoder(REFERENCE.iloc[rng.permutation(80)], SYNTHETIC.iloc[rng.permutation(60)])
    assert shuffled == fit_encoder(REFERENCE, SYNTHETIC)  # to the bit


def test_scale_is_the_references() -> None:
    reference, synthetic = pd.DataFrame({"x": [0.0, 2.0, 4.0]}), pd.DataFrame({"x": [1e6, -1e6]})
    assert fit_encoder(reference, synthetic).transform(pd.DataFrame({"x": [2.0, 4.0]})).tolist() == [[0.0], [1.0]]
    # Constant in the reference only: both tables together.
    encoder = fit_encoder(pd.DataFrame({"x": [3.0, 3.0]}), pd.DataFrame({"x": [3.0, 7.0]}))
    np.testing.assert_allclose(encoder.transform(pd.DataFrame({"x": [4.0, 6.0]})), [[0.0], [1.0]], atol=1e-12)
    # And a column the reference has no value of.
    encoder = fit_encoder(pd.DataFrame({"x": [np.nan]}), pd.DataFrame({"x": [1.0, 3.0]}))
    np.testing.assert_allclose(encoder.transform(pd.DataFrame({"x": [2.0, np.nan]})), [[0, 0], [0, 1]], atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    scale=st.floats(1e-6, 1e6), shift=st.floats(-1e3, 1e3), negative=st.booleans(),
    x=st.lists(st.integers(-1000, 1000), min_size=6, max_size=12, unique=True),
)  # fmt: skip
def test_units_do_not_matter(scale: float, shift: float, negative: bool, x: list[int]) -> None:
    values = np.array(x, dtype=float)
    change = scale * (-1 if negative else 1)

    def encoded(cells: np.ndarray) -> np.ndarray:
        a, b, c = (pd.DataFrame({"x": part}) for part in (cells[:3], cells[3:5], cells[5:]))
        return fit_encoder(a, b).transform(c)

    other = encoded(change * (values + shift)) * (-1 if negative else 1)
    np.testing.assert_allclose(other, encoded(values), rtol=1e-6, atol=1e-6)


def test_two_spellings_of_a_table_are_one() -> None:
    words = pd.DataFrame({"a": ["True", "False", "True"], "b": ["1.0", "2", ""], "c": ["2024-01-01", "", "2024-01-03"]})
    typed = pd.DataFrame({"a": [True, False, True], "b": [1, 2, None], "c": pd.to_datetime(words["c"])})
    encoder = fit_encoder(words, typed)
    assert encoder.feature_names == ("a", "b", "b (missing)", "c", "c (missing)")
    np.testing.assert_array_equal(encoder.transform(words), encoder.transform(typed))


def test_unseen_levels_are_zeros_and_counted() -> None:
    reference, synthetic = pd.DataFrame({"s": ["a", "b"]}), pd.DataFrame({"s": ["b", "c"]})
    targets = pd.DataFrame({"s": ["a", "c", "z", None, "z"]})
    encoder = fit_encoder(reference, synthetic)
    assert encoder.feature_names == ("s=a", "s=b", "s=c")
    np.testing.assert_allclose(encoder.transform(targets) * np.sqrt(2), [[1, 0, 0], [0, 0, 1], *[[0, 0, 0]] * 3])
    assert encoder.unseen(targets) == {"s": 3}
    assert encoder.unseen(reference) == {}
    assert encoder.notes(reference, "members") == ()
    assert encoder.notes(targets, "members") == (
        "Levels in members that neither reference nor synthetic have are encoded as zeros: 's' (3 of 5, 60 %).",
    )


def test_missing_target_without_an_indicator_gets_the_mean() -> None:
    reference, synthetic = pd.DataFrame({"x": [1.0, 3.0]}), pd.DataFrame({"x": [5.0]})
    encoder = fit_encoder(reference, synthetic)
    targets = pd.DataFrame({"x": [np.nan, 2.0, "?"]}, dtype=object)
    assert encoder.transform(targets).tolist() == [[0.0], [0.0], [0.0]]
    assert encoder.notes(targets, "members") == (
        "Missing cells in members take the mean of the column, in which neither reference nor synthetic lack any: "
        "attacks may tell such records apart by that alone: 'x' (2 of 3, 67 %).",
    )
    assert encoder.notes(targets.iloc[1:2], "members") == ()
    traced = fit_encoder(pd.DataFrame({"x": [1.0, 3.0, None]}), synthetic)  # an indicator: nothing is silent
    assert traced.notes(targets, "members") == ()
    days = pd.DataFrame({"d": pd.to_datetime(["2024-01-01", "2024-01-05"])})
    assert "'d' (1 of 2, 50 %)" in fit_encoder(days, days).notes(pd.DataFrame({"d": ["2024-01-02", ""]}), "members")[0]


def test_missing_in_either_table_gives_an_indicator() -> None:
    full, gaps = pd.DataFrame({"x": [1.0, 3.0], "s": ["a", "b"]}), pd.DataFrame({"x": [2.0, None], "s": ["a", None]})
    for pair in ((full, gaps), (gaps, full)):
        assert fit_encoder(*pair).feature_names == ("x", "x (missing)", "s=a", "s=b", "s (missing)")


def test_columns_left_out() -> None:
    rows = np.arange(60)
    table = pd.DataFrame({
        "x": rows % 7, "one": 3.0, "noise": np.where(rows % 2, 0.3, 0.1 + 0.2), "word": "w", "none": np.nan,
        "empty": None,
        "id": [f"p{i}" for i in rows], "city": [f"c{i}" for i in rows % 20], "gap": np.where(rows % 3, 5.0, np.nan),
        "blank": np.where(rows % 3, "v", None),
    })  # fmt: skip
    encoder = fit_encoder(table, table)
    names = [name.split("=")[0] for name in encoder.feature_names]
    assert list(dict.fromkeys(names)) == ["x", "city", "gap (missing)", "blank", "blank (missing)"]
    assert encoder.warnings == (
        "Columns with one value in reference and synthetic are left out: 'one', 'noise', 'word'.",
        "Columns without any value in reference and synthetic are left out: 'none', 'empty'.",
        "Text columns that hardly repeat a value (identifiers?) are left out, look for copied values yourself: 'id'.",
    )
    assert encoder.transform(table).shape == (60, 1 + 20 + 1 + 2)


@pytest.mark.parametrize(("levels", "kept"), [(20, True), (30, True), (31, False)])
def test_identifier_bounds(levels: int, kept: bool) -> None:
    # 60 cells: more than half distinct is an identifier, in either table.
    few, many = pd.DataFrame({"s": ["l0", "l1"] * 30}), pd.DataFrame({"s": [f"l{i % levels}" for i in range(60)]})
    few["x"] = many["x"] = np.arange(60) % 7
    for pair in ((few, many), (many, few)):
        found = any(isinstance(column, LevelColumn) for column in fit_encoder(*pair).columns)
        assert found == kept
    small = pd.DataFrame({"s": [f"l{i}" for i in range(20)]})  # all distinct, but too few to tell
    assert fit_encoder(small, small).transform(small).shape == (20, 20)
    wide = pd.DataFrame({"s": [f"l{i % 1001}" for i in range(2002)], "x": np.arange(2002) % 7})
    assert fit_encoder(wide, wide).feature_names == ("x",)


def test_integer_codes_stay_numbers_unless_declared() -> None:
    table = pd.DataFrame({"code": [1, 2, 3, 1, 2, 3], "bit": [0, 1, 0, 1, 1, 0]})
    assert fit_encoder(table, table).feature_names == ("code", "bit")
    declared = table.assign(code=table["code"].astype("category"))
    assert fit_encoder(declared, table).feature_names == ("code=1", "code=2", "code=3", "bit")


def test_extreme_numbers_stay_finite() -> None:
    table = pd.DataFrame({"x": [1e300, 2e300, -1e300], "y": [1e-300, 2e-300, 3e-300], "z": [1e9, 1e9 + 1, 1e9 + 2]})
    encoder = fit_encoder(table, table)
    values = encoder.transform(table)
    np.testing.assert_allclose(values[:, 1:], [[-1, -1], [0, 0], [1, 1]], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(values[:, 0].std(ddof=1), 1)
    assert encoder.transform(pd.DataFrame({"x": [0.0], "y": [1e300], "z": [-1e300]})).tolist()[0][1:] == [
        FARTHEST,
        -FARTHEST,
    ]


def test_raw_is_the_numbers_as_they_are() -> None:
    table = pd.DataFrame({"x": [1.5, 2.5], "b": [True, False], "one": [7, 7], "i": pd.array([1, 2], dtype="Int8")})
    encoder = fit_encoder(table, table, "raw")
    assert encoder.feature_names == ("x", "b", "one", "i")
    assert encoder.transform(table[["i", "one", "b", "x"]]).tolist() == [[1.5, 1, 7, 1], [2.5, 0, 7, 2]]
    with pytest.raises(InputError, match=r"release.encoding must be standard .* missing cells in column 'x', got raw"):
        encoder.transform(table.assign(x=[1.0, np.nan]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [1, 2], "s": ["a", "b"], "t": ["a", "b"]}, "the text column 's', got raw"),
        ({"x": [1, 2], "d": ["2024-01-01", "2024-01-02"]}, "the date column 'd', got raw"),
        ({"x": [1, None]}, "missing cells in column 'x', got raw"),
    ],
)
def test_raw_refuses_other_tables(columns: dict[str, list[object]], message: str) -> None:
    table = pd.DataFrame(columns)
    with pytest.raises(InputError, match=f"release.encoding must be standard for a table with {message}"):
        fit_encoder(table, table, "raw")


def test_bad_arguments() -> None:
    table = pd.DataFrame({"x": [1.0, 2.0]})
    with pytest.raises(InputError, match=r"release.encoding must be one of raw, standard, got onehot"):
        fit_encoder(table, table, "onehot")
    with pytest.raises(InputError, match=r"release.synthetic must have the column 'x'"):
        fit_encoder(table, table.rename(columns={"x": "y"}))
    with pytest.raises(InputError, match=r"the table must have the column 'x'"):
        fit_encoder(table, table).transform(pd.DataFrame({"y": [1]}))
    with pytest.raises(InputError, match=r"release.reference must have a column that can be encoded"):
        fit_encoder(table * 0, table * 0)
    with pytest.raises(InputError, match=r"column 'x' must have only finite numbers, got 1 infinite"):
        fit_encoder(table, table).transform(pd.DataFrame({"x": [np.inf]}))


# ------------------------------------------------------------------------------------------------- real tables


def check_encoding(release: Release) -> None:
    encoder = fit_encoder(release.reference, release.synthetic)
    for table in release.tables().values():
        values = encoder.transform(table)
        assert values.shape == (len(table), len(encoder.feature_names))
        assert np.isfinite(values).all()
    assert len(set(encoder.feature_names)) == len(encoder.feature_names)
    kept = {column.name for column in encoder.columns}
    named = " ".join(encoder.warnings)
    assert all((name in kept) != (repr(name) in named) for name in release.reference.columns)
    blocks = [column for column in encoder.columns if isinstance(column, LevelColumn)]
    for block in blocks:  # one level per row where fitted
        rows = block.encode(release.synthetic[block.name])
        np.testing.assert_allclose(rows.sum(axis=1), 1 / np.sqrt(2))
    layout = encoder.layout
    assert sum(len(block) > 1 for block in layout.blocks) == len(blocks)
    assert layout.columns == len(encoder.feature_names)
    assert infer_layout(encoder.transform(release.synthetic), encoder.transform(release.reference)) == layout


@needs_data
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name.split(".")[0])
def test_real_tables(path: Path) -> None:
    table = read_table(path, "table").sample(300, random_state=0)
    parts = np.array_split(np.arange(300), 4)
    names = ("members", "non_members", "synthetic", "reference")
    tables, notes = reconcile({name: table.iloc[part] for name, part in zip(names, parts, strict=True)})
    assert notes == ()
    check_encoding(Release(**tables))
    numbers = all(dtype == np.float64 for dtype in tables["reference"].dtypes)
    if numbers and not table.isna().any().any():
        raw = fit_encoder(tables["reference"], tables["synthetic"], "raw").transform(tables["members"])
        np.testing.assert_array_equal(raw, table.iloc[parts[0]].to_numpy(dtype=float))
    elif not numbers:
        with pytest.raises(InputError, match=r"release.encoding must be standard"):
            fit_encoder(tables["reference"], tables["synthetic"], "raw")


@needs_data
def test_real_releases() -> None:
    census, hepatitis = DATA / "releases" / "mostlyai_census2k", DATA / "releases" / "syntheval_hepatitis"
    check_encoding(load_release(*(census / f"{f}.csv.gz" for f in ("train", "holdout", "syn_flip30"))))
    for synthetic in ("c_hepatitis_daib_baseline.csv", "i_hepatitis_BN_7_syn.csv"):
        check_encoding(load_release(hepatitis / "train.csv", hepatitis / "test.csv", hepatitis / synthetic))


def gen_lra(targets: np.ndarray, synthetic: np.ndarray, reference: np.ndarray, k: int) -> np.ndarray:
    """Plain Gen-LRA, fixed form, full-rank covariance (theory: Ward, Wang & Cheng, arXiv:2508.21146)."""
    n, d = reference.shape
    h2 = 2 * (n * (d + 2) / 4) ** (-2 / (d + 4))
    whiten = np.linalg.inv(np.linalg.cholesky(np.cov(reference.T))).T
    t, s, r = targets @ whiten, synthetic @ whiten, reference @ whiten
    density = logsumexp(-((s[:, None] - r) ** 2).sum(-1) / h2, axis=1)
    scores = np.empty(len(targets))
    for i, target in enumerate(targets):
        near = np.argsort(((synthetic - target) ** 2).sum(-1))[:k]
        gain = -((s[near] - t[i]) ** 2).sum(-1) / h2 - density[near]
        scores[i] = (np.log(n / (n + 1)) + np.logaddexp(0, gain)).sum()
    return scores


@needs_data
def test_leak_of_the_housing_release_is_seen() -> None:
    files = ("mem.csv", "non_mem.csv", "synth.csv", "ref.csv")
    release = load_release(*(DATA / "releases" / "synthmia_housing" / file for file in files))
    check_encoding(release)
    encoder = fit_encoder(release.reference, release.synthetic)
    synthetic, reference = encoder.transform(release.synthetic), encoder.transform(release.reference)
    members, others = (
        gen_lra(encoder.transform(table), synthetic, reference, k=10)
        for table in (release.members, release.non_members)
    )
    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    auc = (ranks.mean() - (len(members) + 1) / 2) / len(others)
    assert auc >= 0.70  # .744 measured
