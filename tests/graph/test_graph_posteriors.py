"""Levels of the privacy parameters as the audit assembles them, from counts that are made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxaudit import bmp
from jaxaudit.graph import BMPConfig
from jaxaudit.graph.attacks import Counts, count_errors
from jaxaudit.graph.data import csbm
from jaxaudit.graph.posteriors import infer_posteriors, measure_exposure, node_column, share_models
from jaxaudit.runtime.checks import InputError

GRAPH = csbm(nodes=60, classes=3, features=4, mean_degree=4, seed=1)
QUICK = BMPConfig(groups=("class",), resampling="none")


@pytest.fixture(scope="module")
def member() -> np.ndarray:
    rng = np.random.default_rng(0)
    member = rng.random((60, 16)) < 0.5
    member[0] = True  # never out: not auditable
    return member


@pytest.fixture(scope="module")
def counts(member: np.ndarray) -> Counts:
    signal = np.random.default_rng(1).normal(size=member.shape) + 1.5 * member
    return count_errors(signal.astype(np.float32), member)


def rows(counts: Counts, keep: np.ndarray) -> list[np.ndarray]:
    return [part[keep].astype(np.int64) for part in (counts.fp, counts.n_out, counts.fn, counts.n_in)]


def test_every_level_is_that_of_the_library_on_the_auditable_nodes(counts: Counts) -> None:
    ok = counts.auditable
    assert (ok.sum(), ok[0]) == (59, False)
    prior = np.full(60, 0.5)
    found = infer_posteriors(counts, prior, GRAPH, "exact", QUICK, None, 0)
    assert np.isnan(found.columns["r_q50"][0])
    exact = bmp.exact_posterior(*rows(counts, ok))
    np.testing.assert_array_equal(found.columns["r_q95"][ok], exact.quantile("r", 0.95))
    np.testing.assert_allclose(found.columns["eps_L_lower"][ok], found.columns["l_lower"][ok])
    pooled = bmp.pooled_posterior(*rows(counts, ok))
    assert found.blocks["pooled"]["nodes"] == 59
    assert found.blocks["pooled"]["r"]["q50"] == pytest.approx(pooled.quantile("r", 0.5), abs=0.01)
    assert found.blocks["pooled"]["prior_sensitivity"]["10"]["l"] == found.blocks["pooled"]["l"]
    groups = found.blocks["groups"]["class"]
    assert sum(groups["nodes"]) == 59
    mine = ok & (GRAPH.labels == 1)
    alone = bmp.pooled_posterior(*rows(counts, mine))
    assert groups["nodes"][1] == mine.sum()
    assert groups["l"]["q05"][1] == pytest.approx(alone.quantile("l", 0.05), abs=0.02)


def test_a_users_column_groups_nodes_and_one_group_is_no_grouping(counts: Counts, tmp_path: Path) -> None:
    teams = np.where(np.arange(60) < 20, "red", "blue")
    prior = np.full(60, 0.5)  # constant: no groups by prior
    config = replace(QUICK, groups=("prior",))
    given = infer_posteriors(counts, prior, GRAPH, "exact", config, teams, 0).blocks["groups"]
    assert list(given) == ["column"]
    assert dict(zip(given["column"]["names"], given["column"]["nodes"], strict=True)) == {"blue": 40, "red": 19}
    pd.DataFrame({"team": teams, "other": 1}).to_csv(tmp_path / "t.csv", index=False)
    np.testing.assert_array_equal(node_column(f"{tmp_path}/t.csv:team", 60), teams)
    for column, text in ((f"{tmp_path}/t.csv:tem", "name one of the columns team, other"),
                         (f"{tmp_path}/u.csv:team", "name a table that exists"), ("team", "be FILE:COLUMN"),
                         (teams[:-1], "one label for each of 60 nodes"),
                         (f"{tmp_path}/t.csv:", "be FILE:COLUMN")):  # fmt: skip
        with pytest.raises(InputError, match=r"bmp\.column must") as caught:
            node_column(column, 60)
        assert text in str(caught.value)


def test_no_auditable_node_gives_no_number(member: np.ndarray) -> None:
    nothing = count_errors(np.full(member.shape, np.nan), member)
    found = infer_posteriors(nothing, np.full(60, 0.5), GRAPH, "exact", QUICK, None, 0)
    assert np.isnan(found.blocks["pooled"]["r"]["q50"])
    assert np.isnan(found.columns["r_lower"]).all()
    assert share_models(nothing, member, BMPConfig(), 0) == ({}, [])
    exposure = measure_exposure(nothing, np.full(member.shape, np.nan), member, False, 0)
    assert exposure.heterogeneity == {}
    assert np.isnan(exposure.columns["rank"]).all()


def test_shared_models_and_exposure_are_those_of_the_library(counts: Counts, member: np.ndarray) -> None:
    ok = counts.auditable
    block, warnings = share_models(counts, member, BMPConfig(), 3)
    direct = bmp.bootstrap_posterior(counts.said_member[ok], counts.counted[ok], member[ok], replicates=8, seed=3)
    assert block["r"]["interval"] == pytest.approx(list(direct.interval["r"]))
    parts = counts.said_member[ok], counts.counted[ok], member[ok]
    pairs = bmp.bootstrap_posterior(*parts, replicates=8, paired=True, seed=3)
    found = share_models(counts, member, BMPConfig(), 3, paired=True)[0]
    assert found["r"]["spread"] == pytest.approx(pairs.spread["r"])
    assert found["r"]["spread"] != pytest.approx(block["r"]["spread"])
    few = count_errors(np.where(np.arange(16) < 6, 1.0 * member, np.nan), member)  # three pairs that did not diverge
    assert share_models(few, member, BMPConfig(), 3, paired=True) == ({}, [])
    assert len(warnings) == sum(direct.inflation[x] > 1.5 for x in ("r", "l"))
    statistic = np.random.default_rng(1).normal(size=member.shape) + 1.5 * member
    exposure = measure_exposure(counts, statistic, member, False, 3)
    ranks = bmp.rank_nodes(*rows(counts, ok), seed=3)
    np.testing.assert_array_equal(exposure.columns["rank"][ok], ranks.expected)
    spread = bmp.auc_spread(statistic, member, seed=3)
    assert (exposure.heterogeneity["nodes"], exposure.heterogeneity["sd"]) == (59, spread.sd)
    assert exposure.heterogeneity["p_value"] == spread.p_value


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["nuts", "mhaar"])
def test_engines_agree_at_every_level(counts: Counts, engine: str) -> None:
    prior = np.full(60, 0.5)
    config = replace(QUICK, nodes=engine, hierarchical=engine == "nuts")
    exact = infer_posteriors(counts, prior, GRAPH, "exact", QUICK, None, 0)
    found = infer_posteriors(counts, prior, GRAPH, engine, config, None, 0)
    ok = counts.auditable & np.isfinite(found.columns["r_q50"])
    assert ok.sum() >= 57
    np.testing.assert_allclose(found.columns["r_q50"][ok], exact.columns["r_q50"][ok], atol=0.25)
    for x in ("r", "l"):
        assert found.blocks["pooled"][x]["q50"] == pytest.approx(exact.blocks["pooled"][x]["q50"], abs=0.2)
        np.testing.assert_allclose(
            found.blocks["groups"]["class"][x]["q50"], exact.blocks["groups"]["class"][x]["q50"], atol=0.25
        )
    if engine == "nuts":
        assert {"mu_l", "tau_r", "rhat"} <= set(found.blocks["population"])
        assert np.nanstd(found.columns["r_shrunken_q50"]) < np.nanstd(found.columns["r_q50"])


BAD = {
    "nodes": "laplace", "groups": ("age",), "bins": 0, "resampling": "all", "hierarchical": 1, "strength": "yes",
    "definition": "odds", "prior_scale2": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_settings_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"bmp\.{name} must"):
        BMPConfig(**{name: BAD[name]})
    with pytest.raises(InputError, match=r"bmp\.groups must be a tuple"):
        BMPConfig(groups=["class"])
