"""The overfitting sweep: closed forms against naive Monte-Carlo, straight lines, the limit, seeds, bad input."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from scipy import stats

from jaxaudit.evaluate.roc import auc
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.keys import stream_key
from jaxaudit.tables.attacks import gen_lra
from jaxaudit.tables.density import bandwidth_factor
from jaxaudit.tables.overfit import OverfitConfig, format_overfit, limit_errors, sweep_overfit
from jaxaudit.tables.overfit_model import draw_population, overfit_tables
from jaxaudit.tables.overfit_summary import Cell, Label, standard_error, summarise, welch_test
from jaxaudit.tables.overfit_theory import expected_terms, first_order_slope, limit_ratio, plug_in_terms

SMALL = OverfitConfig(
    eps=(0.0, 0.3, 0.9), rho=(0.05, 0.6), d=(2,), n=(60,), train=60, release=60, scored=60, k=(1,),
    multiplier=(1.0, 2.0), attacks=("dcr", "gen_lra", "domias"), replications=6, draws=300, limit=(),
)  # fmt: skip


@pytest.fixture(scope="module")
def swept():
    return sweep_overfit(SMALL, seed=3)


# --- the model


def test_release_is_the_mixture_it_says() -> None:
    tables = overfit_tables(jax.random.key(0), 0.3, 0.0, d=2, n=60, train=60, release=4000, scored=60)
    copied = (tables.synthetic[:, None] == tables.members).all(axis=2)
    assert stats.binomtest(int(copied.any(axis=1).sum()), 4000, 0.3).pvalue > 1e-3
    assert (copied.sum(axis=0) > 0).all()  # of all training rows
    fresh = tables.synthetic[~copied.any(axis=1)]
    np.testing.assert_allclose(np.cov(fresh.T), np.eye(2), atol=0.08)
    near = overfit_tables(jax.random.key(0), 1.0, 0.01, d=2, n=60, train=60, release=4000, scored=60)
    error = near.synthetic[:, None] - near.members
    closest = error[np.arange(4000), (error**2).sum(axis=2).argmin(axis=1)]
    np.testing.assert_allclose(closest.std(axis=0), 0.01, rtol=0.06)


@pytest.mark.parametrize("population", ["normal", "mixture"])
@pytest.mark.parametrize("d", [1, 3])
def test_populations_are_standardised(population: str, d: int) -> None:
    rows = np.asarray(jax.jit(draw_population, static_argnums=(1, 2, 3))(jax.random.key(1), 20_000, d, population))
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=0.03)
    np.testing.assert_allclose(np.atleast_2d(np.cov(rows.T)), np.eye(d), atol=0.04)
    along = stats.kurtosis(rows.sum(axis=1))
    assert (along < -0.5) == (population == "mixture")  # two clusters along the diagonal


# --- the terms


def naive_terms(rng, rho: float, h: float, d: int, n: int, draws: int, rows: int) -> np.ndarray:
    """Own and other, (draws, 2), written down from the definition."""
    found = []
    for _ in range(draws):
        reference, x = rng.normal(size=(n, d)), rng.normal(size=(rows, d))
        s, other = x + rho * rng.normal(size=(rows, d)), rng.normal(size=(rows, d))
        inverse = np.linalg.inv(np.atleast_2d(np.cov(reference.T)))

        def kernel(a, b, inverse=inverse):
            gap = a - b
            return np.exp(-np.einsum("...i,ij,...j->...", gap, inverse, gap) / (2 * h**2))

        before = kernel(s[:, None], reference).sum(axis=1)
        found.append([np.mean(np.log(n / (n + 1) * (1 + kernel(s, y) / before))) for y in (x, other)])
    return np.array(found)


@pytest.mark.parametrize(("rho", "h", "d", "n"), [(0.1, 0.4, 2, 60), (1.0, 0.8, 1, 60), (0.3, 1.0, 3, 10)])
def test_expected_terms_against_a_naive_simulation(rho: float, h: float, d: int, n: int) -> None:
    """The last case, a handful of rows, is one in which whitening and padding make most of the numbers."""
    naive = naive_terms(np.random.default_rng(0), rho, h, d, n, 300, 256)
    terms = expected_terms(jax.random.key(0), rho, [h], d=d, n=n, draws=300)
    gap = naive[:, 0] - naive[:, 1]
    z = (terms.gap[0] - gap.mean()) / np.hypot(terms.gap_se[0], standard_error(gap))
    assert abs(z) < 3.5
    for value, column in ((terms.own[0], naive[:, 0]), (terms.other[0], naive[:, 1])):
        assert abs(value - column.mean()) < 6 * standard_error(column)
    assert standard_error(gap) < 0.06 * gap.mean()  # the comparison has teeth
    assert 0.5 < terms.gap_se[0] / standard_error(gap) < 2


@pytest.mark.parametrize(("rho", "h", "d", "n"), [(0.0, 0.5, 3, 100), (0.2, 0.3, 2, 400), (1.5, 1.0, 1, 50)])
def test_plug_in_terms_against_a_naive_mean(rho: float, h: float, d: int, n: int) -> None:
    rng = np.random.default_rng(1)
    x, other = rng.normal(size=(2, 400_000, d))
    s = x + rho * rng.normal(size=x.shape)
    q = np.exp(-(s**2).sum(axis=1) / (2 * (1 + h**2))) / (2 * np.pi * (1 + h**2)) ** (d / 2)

    def g(y):
        kernel = np.exp(-((s - y) ** 2).sum(axis=1) / (2 * h**2)) / (2 * np.pi * h**2) ** (d / 2)
        return np.log((n * q + kernel) / ((n + 1) * q))

    terms = plug_in_terms(rho, [h], d=d, n=n)
    for value, drawn in ((terms.own[0], g(x)), (terms.other[0], g(other))):
        assert abs(value - drawn.mean()) < 4 * standard_error(drawn) + 1e-9
    assert terms.gap[0] == terms.own[0] - terms.other[0]


def test_plug_in_is_below_and_right_where_kernels_are_wide() -> None:
    exact = expected_terms(jax.random.key(2), 0.3, [0.4, 1.5], d=2, n=60, draws=300)
    plug_in = plug_in_terms(0.3, [0.4, 1.5], d=2, n=60)
    assert (plug_in.gap < exact.gap + 3 * exact.gap_se).all()  # Jensen
    low, high = plug_in.gap / exact.gap
    assert low < 0.8
    assert high > 0.9  # what is left is of order 1 / n: whitening by 60 rows


def test_slope_falls_with_rho_and_reaches_its_first_order() -> None:
    gaps = [plug_in_terms(rho, [0.3, 0.6], d=4, n=300).gap for rho in (0, 0.05, 0.2, 0.5, 1, 2)]
    assert (np.diff(gaps, axis=0) < 0).all()
    wide, narrow = plug_in_terms(0.3, [0.6], d=1, n=10**7).gap, plug_in_terms(0.3, [0.6], d=1, n=100).gap
    limits = [first_order_slope(0.6, d=1, n=n, train=1, release=1) for n in (10**7, 100)]
    assert wide[0] == pytest.approx(limits[0], rel=0.01)
    assert narrow[0] < limits[1]
    assert first_order_slope(0.6, d=1, n=100, train=50, release=200) == pytest.approx(4 * limits[1])


def test_bandwidths_do_not_disturb_each_other() -> None:
    both = expected_terms(jax.random.key(0), 0.3, [0.4, 0.9], d=2, n=60, draws=300)
    one = expected_terms(jax.random.key(0), 0.3, [0.9], d=2, n=60, draws=300)
    np.testing.assert_allclose(both.gap[1], one.gap[0], rtol=1e-12)


# --- the limit


def test_limit_ratio_against_a_naive_integral() -> None:
    rng = np.random.default_rng(0)
    train, x, eps, h = rng.normal(size=(3, 2)), np.array([[0.5, -1.0], [1.0, 1.0]]), 0.3, 0.7
    axis = np.linspace(-9, 9, 601)
    s = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    area = (axis[1] - axis[0]) ** 2

    def normal(centre, variance):
        return np.exp(-((s - centre) ** 2).sum(axis=1) / (2 * variance)) / (2 * np.pi * variance)

    for rho in (0.4, 1.1):
        p_s = (1 - eps) * normal(np.zeros(2), 1.0) + eps * np.mean([normal(row, rho**2) for row in train], axis=0)
        expected = [area * np.sum(normal(row, h**2) * p_s / normal(np.zeros(2), 1 + h**2)) for row in x]
        np.testing.assert_allclose(limit_ratio(x, train, eps=eps, rho=rho, bandwidth=h), expected, rtol=1e-6)
    exact = limit_ratio(x, train, eps=eps, rho=0.0, bandwidth=h)
    np.testing.assert_allclose(exact, limit_ratio(x, train, eps=eps, rho=1e-6, bandwidth=h), rtol=1e-9)


def test_limit_of_a_faithful_release_is_the_smoothed_ratio() -> None:
    x = np.array([[0.0], [1.5]])
    found = limit_ratio(x, x, eps=0.0, rho=0.3, bandwidth=0.05)
    np.testing.assert_allclose(found, 1, rtol=0.01)  # p_S = p_R, and a small bandwidth


def test_score_tends_to_its_limit() -> None:
    errors = [row["error"] for row in limit_errors((128, 512, 2048), seed=1)]
    assert errors[0] > 1.5 * errors[1] > 1.5 * 1.5 * errors[2]  # the root of 4 would be 2
    assert errors[2] < 0.04


# --- the sweep


def test_table_holds_means_of_independent_data_sets(swept) -> None:
    """One cell by hand: the model, the attack at k = m and k = 1, the AUC."""
    key = stream_key(3, "overfit/normal/N=60/m=60/d=2/n=60/rho=0.05/eps=0.9")
    gaps, areas = [], []
    for replication in range(6):
        tables = overfit_tables(
            jax.random.fold_in(key, replication), 0.9, 0.05, d=2, n=60, train=60, release=60, scored=60
        )
        x = np.concatenate([tables.members, tables.non_members])
        score = gen_lra(x, tables.synthetic, tables.reference, k=60, multiplier=2.0)
        gaps.append(score[:60].mean() - score[60:].mean())
        areas.append(auc(score, np.repeat([1, 0], 60)))
    table = swept.table
    row = table[(table.rho == 0.05) & (table.eps == 0.9) & (table.k == 60) & (table.multiplier == 2.0)].iloc[0]
    assert row.gap == pytest.approx(np.mean(gaps))
    assert row.gap_se == pytest.approx(np.std(gaps, ddof=1) / np.sqrt(6))
    assert row.auc == pytest.approx(np.mean(areas))
    assert row.bandwidth == pytest.approx(bandwidth_factor(60, 2, "silverman", 2.0))
    assert len(table) == 6 * (1 + 4 + 1)


def test_predictions_are_proportional_to_eps_and_beside_k_m_only(swept) -> None:
    whole = swept.table[swept.table.predicted.notna()]
    assert set(whole.k) == {60}
    assert (whole[whole.eps == 0].predicted == 0).all()
    by = whole.set_index(["rho", "multiplier", "eps"]).predicted
    for rho in SMALL.rho:
        for multiplier in SMALL.multiplier:
            assert by[rho, multiplier, 0.9] == pytest.approx(3 * by[rho, multiplier, 0.3])
    assert by[0.05, 1.0, 0.9] > by[0.6, 1.0, 0.9] > 0
    h = [bandwidth_factor(60, 2, "silverman", multiplier) for multiplier in SMALL.multiplier]
    key = stream_key(3, "overfit/normal/N=60/m=60/d=2/n=60/rho=0.6/terms")
    terms, plug_in = expected_terms(key, 0.6, h, d=2, n=60, draws=300), plug_in_terms(0.6, h, d=2, n=60)
    last = whole[(whole.rho == 0.6) & (whole.eps == 0.9)]
    np.testing.assert_allclose(last.predicted, 0.9 * terms.gap)
    np.testing.assert_allclose(last.predicted_se, 0.9 * terms.gap_se)
    np.testing.assert_allclose(last.plug_in, 0.9 * plug_in.gap)


def test_same_seed_same_numbers_whatever_else_is_swept(swept) -> None:
    part = dataclasses.replace(SMALL, eps=(0.9,), rho=(0.05,), attacks=("gen_lra", "dcr"), multiplier=(2.0,), k=(60,))
    again = sweep_overfit(part, seed=3).table
    table = swept.table
    here = table[(table.rho == 0.05) & (table.eps == 0.9)]
    for name, k in (("gen_lra", 60), ("dcr", None)):
        old = here[(here.attack == name) & (here.k.isna() if k is None else (here.k == k) & (here.multiplier == 2.0))]
        new = again[again.attack == name]
        assert old.auc.item() == new.auc.item()
        assert old.gap.item() == new.gap.item()
    assert again.predicted.dropna().item() == pytest.approx(here[here.multiplier == 2.0].predicted.dropna().item())
    other = sweep_overfit(part, seed=4).table
    assert other.auc[0] != again.auc[0]


def test_exactly_linear_in_eps_at_k_m_and_concave_at_k_1() -> None:
    """Power comes from many copies per record: 1 - exp(-eps m / N) of the members have one."""
    config = OverfitConfig(
        eps=(0.1, 0.5, 1.0), rho=(0.05,), d=(5,), n=(60,), train=60, release=240, scored=60, k=(1,),
        multiplier=(1.0,), attacks=("gen_lra",), replications=40, draws=300, limit=(),
    )  # fmt: skip
    summary = sweep_overfit(config, seed=0).summary
    small, whole = summary["linearity"]
    assert (small["k"], whole["k"]) == (1, 240)
    assert whole["lack_of_fit_p"] > 0.01
    assert abs(whole["slope"] - whole["predicted"]) < 3.5 * np.hypot(whole["slope_se"], whole["predicted_se"])
    assert whole["slope_se"] < 0.08 * whole["slope"]
    assert small["lack_of_fit_p"] < 1e-4
    assert small["trend"] < -5 * small["trend_se"]
    assert summary["agreement"]["p_adjusted"] > 0.01


@pytest.mark.slow
def test_theory_agrees_over_a_grid_and_for_a_mixture() -> None:
    for population in ("normal", "mixture"):
        config = OverfitConfig(
            eps=(0.2, 0.8), rho=(0.1, 0.5), d=(1, 4), n=(100, 300), train=150, release=200, scored=150, k=(5,),
            attacks=("gen_lra",), replications=30, population=population, limit=(),
        )  # fmt: skip
        result = sweep_overfit(config, seed=1)
        found = result.summary["agreement"]
        assert found["cells"] == 48
        assert stats.binom.cdf(found["within"], 48, 0.95) > 1e-3
        assert found["p_adjusted"] > 1e-3
        assert result.table.plug_in.isna().all() == (population == "mixture")


# --- the summary


def test_welch_against_scipy() -> None:
    groups = np.random.default_rng(0).normal(size=(4, 7)) * np.array([[1.0], [2.0], [0.5], [3.0]]) + 0.3
    expected = stats.f_oneway(*groups, equal_var=False).pvalue
    assert welch_test(groups.mean(axis=1), standard_error(groups), 7) == pytest.approx(expected)


def cells_of(areas, gaps=None, labels=None, eps=(0.5,), slope=1.0):
    labels = labels or [Label("gen_lra", 1, 1.0), Label("gen_lra", 9, 1.0), Label("dcr"), Label("domias")]
    gaps = np.random.default_rng(9).normal(size=areas.shape) if gaps is None else gaps
    cells = [Cell(2, 50, 0.1, share, area, gap, np.array([slope]), np.array([0.0]), np.array([np.nan]))
             for share, area, gap in zip(eps, areas, gaps, strict=True)]  # fmt: skip
    return summarise(cells, labels, ks=(1, 9), multipliers=(1.0,), level=0.95)


def test_winner_ties_and_nobody() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, size=(1, 4, 12))
    noise[0, 3] = noise[0, 2]  # the same luck: a paired difference sees it
    base = np.array([0.60, 0.62, 0.70, 0.699])[None, :, None]
    entry = cells_of(base + noise)["map"][0]
    assert (entry["winner"], entry["tied"]) == ("dcr", [])
    assert entry["gen_lra"] == {"k": 9, "multiplier": 1.0}
    noise[0, 3] = noise[0, 1]
    assert cells_of(base + noise)["map"][0]["tied"] == ["domias"]
    assert cells_of(0.5 + 2 * noise)["map"][0]["winner"] is None
    rows = cells_of(base + noise)["claims"]
    assert list(rows) == ["gen_lra - domias", "dcr - gen_lra"]
    first = rows["dcr - gen_lra"][0]
    assert (first["ahead"], first["tied"], first["behind"]) == (1, 0, 0)
    assert first["difference"] == pytest.approx(0.08, abs=0.015)


def test_gen_lra_is_not_credited_with_luck() -> None:
    """Of many settings that only guess, the best on average is above one half, the one chosen elsewhere is not."""
    areas = 0.5 + np.random.default_rng(0).normal(0, 0.05, size=(60, 42, 8))
    labels = [Label("gen_lra", 1, 1.0), Label("gen_lra", 9, 1.0)]
    labels += [Label("gen_lra", 100 + i, 1.0) for i in range(38)] + [Label("dcr"), Label("domias")]
    summary = cells_of(areas, labels=labels, eps=np.linspace(0.1, 1, 60))
    chosen = np.array([entry["attacks"]["gen_lra"]["auc"] for entry in summary["map"]])
    assert abs(chosen.mean() - 0.5) < 4 * chosen.std() / np.sqrt(60)
    assert areas[:, :40].mean(axis=2).max(axis=1).mean() > 0.53


def test_agreement_counts_what_lies_inside() -> None:
    rng = np.random.default_rng(1)
    eps = np.linspace(0.05, 1, 80)
    gaps = 2.0 * eps[:, None, None] + rng.normal(0, 0.5, size=(80, 4, 10))
    areas = np.full((80, 4, 10), 0.6) + rng.normal(0, 0.01, size=(80, 4, 10))
    right = cells_of(areas, gaps, eps=eps, slope=2.0)
    assert 70 <= right["agreement"]["within"] <= 80
    assert right["agreement"]["p_adjusted"] > 0.05
    line = right["linearity"][1]
    assert line["slope"] == pytest.approx(2.0, abs=4 * line["slope_se"])
    assert line["lack_of_fit_p"] > 0.01
    wrong = cells_of(areas, gaps, eps=eps, slope=3.0)["agreement"]
    assert wrong["within"] < 50
    assert wrong["largest_z"] < 0
    assert wrong["p_adjusted"] < 0.01
    bent = cells_of(areas, gaps - 1.5 * eps[:, None, None] ** 2, eps=eps)["linearity"][1]
    assert bent["trend"] == pytest.approx(-1.5, abs=4 * bent["trend_se"])
    assert bent["lack_of_fit_p"] < 0.01


def test_text_names_winners(swept) -> None:
    text = format_overfit(swept)
    assert "simulated and predicted agree in" in text
    assert "best attack, AUC (d = 2, n = 60; ~: others within error)" in text
    assert text.count("\nrho ") == 2
    assert "none" in text  # eps = 0
    assert "limit theorem" not in text


# --- bad input


@pytest.mark.parametrize(("setting", "message"), [
    ({"eps": (1.2,)}, r"overfit.eps must be in \[0, 1\], got 1.2"),
    ({"eps": 0.5}, "overfit.eps must be a list, got 0.5"),
    ({"eps": ()}, "overfit.eps must hold at least one value, got none"),
    ({"eps": (0.1, 0.1)}, r"overfit.eps must hold each value once, got \[0.1, 0.1\]"),
    ({"rho": (-0.1,)}, r"overfit.rho must be in \[0, 1e\+06\], got -0.1"),
    ({"d": (0,)}, r"overfit.d must be in \[1, 1000\], got 0"),
    ({"d": (5,), "n": (6,)}, "overfit.n must be 7 or more, got 6"),
    ({"k": (501,)}, r"overfit.k must be in \[1, 500\], got 501"),
    ({"multiplier": (0.0,)}, r"overfit.multiplier must be in \[0.001, 1000\], got 0.0"),
    ({"rule": "guess"}, "overfit.rule must be one of scott, silverman, got guess"),
    ({"rule": 0.0}, r"overfit.rule must be in \[1e-06, 1e\+06\], got 0.0"),
    ({"scored": 501}, r"overfit.scored must be in \[2, 500\], got 501"),
    ({"train": 1}, r"overfit.train must be in \[2, 100000\], got 1"),
    ({"replications": 3}, r"overfit.replications must be in \[4, 100000\], got 3"),
    ({"attacks": ("gen_lra", "oracle")}, "overfit.attacks must be one of .*, got oracle"),
    ({"attacks": ("dcr",)}, "overfit.attacks must name gen_lra, got dcr"),
    ({"population": "flat"}, "overfit.population must be one of mixture, normal, got flat"),
    ({"limit": (5,)}, r"overfit.limit must be in \[10, 100000\], got 5"),
    ({"level": 1.0}, r"overfit.level must be in \(0, 1\), got 1.0"),
])  # fmt: skip
def test_bad_settings_are_one_line(setting, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        OverfitConfig(**setting)


def test_lists_become_tuples_and_m_is_always_scored() -> None:
    config = OverfitConfig(eps=[0.1], k=[10, 1])
    assert config.eps == (0.1,)
    assert config.ks == (1, 10, 500)
    assert hash(config) == hash(OverfitConfig(eps=(0.1,), k=(10, 1)))


@pytest.mark.parametrize(("call", "message"), [
    (lambda: sweep_overfit("all"), "overfit must be an OverfitConfig, got str"),
    (lambda: sweep_overfit(SMALL, seed=-1), "seed must be in .*, got -1"),
    (lambda: plug_in_terms(-1.0, [0.5], d=1, n=5), "rho must be in .*, got -1.0"),
    (lambda: plug_in_terms(1.0, [], d=1, n=5), r"bandwidths must be a list of numbers > 0, got \[\]"),
    (lambda: expected_terms(jax.random.key(0), 1.0, [0.5], d=3, n=4), "n must be 5 or more, got 4"),
    (lambda: limit_ratio(np.zeros((2, 2)), np.zeros((2, 3)), eps=0.1, rho=0.1, bandwidth=1.0),
     r"train must be as wide as records, got \(2, 3\)"),
])  # fmt: skip
def test_bad_arguments_are_one_line(call, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        call()
