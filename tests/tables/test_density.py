"""Bases and kernel densities against SciPy and NumPy, on healthy and on singular tables."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import gaussian_kde

import jaxaudit.tables.density as density_module
from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.basis import fit_basis, span_report
from jaxaudit.tables.density import (
    as_rows,
    bandwidth_factor,
    distinct_rows,
    fit_density,
    log_density,
    log_sum_kernels,
    precision_scope,
)


def table(n: int, d: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) * np.logspace(-3, 3, d) + np.arange(d)


@pytest.mark.parametrize("rule", ["silverman", "scott"])
@pytest.mark.parametrize(("n", "d"), [(30, 1), (40, 5), (200, 12)])
def test_density_matches_scipy(n: int, d: int, rule: str) -> None:
    rows, counts = distinct_rows(np.concatenate([table(n, d), table(n, d)[:7]]))  # seven copies
    full = np.repeat(rows, counts, axis=0)
    kde = gaussian_kde(full.T, bw_method=rule)
    h = bandwidth_factor(len(full), d, rule)
    assert h == pytest.approx(kde.factor, rel=1e-14)  # SciPy's silverman is (n (d + 2) / 4)^(-1/(d + 4))
    basis = fit_basis(rows, counts)
    assert basis.log_volume == pytest.approx(0.5 * np.linalg.slogdet(np.cov(full.T).reshape(d, d))[1], abs=1e-9)
    points = table(50, d, seed=1)[:25]
    density = fit_density(basis.whiten(rows), counts, h, basis.log_volume)
    expected = kde.logpdf(points.T)
    error = np.abs(log_density(density, basis.whiten(points)) - expected) / (1 + np.abs(expected))
    assert error.max() < 1e-9
    error32 = np.abs(log_density(density, basis.whiten(points), "float32") - expected) / (1 + np.abs(expected))
    assert error32.max() < 1e-4


def test_far_points_have_a_density_in_logs() -> None:
    rows, counts = distinct_rows(table(40, 5))
    basis = fit_basis(rows, counts)
    density = fit_density(basis.whiten(rows), counts, 0.3, basis.log_volume)
    far = log_density(density, np.full((1, 5), 1e3))  # a plain density would be exp(-2.7e7) = 0
    nearest = ((1e3 - basis.whiten(rows)) ** 2).sum(axis=1).min()
    norm = np.log(40) + 5 * np.log(0.3 * np.sqrt(2 * np.pi)) + basis.log_volume
    assert far[0] == pytest.approx(-nearest / (2 * 0.09) - norm, abs=1e-3)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("far", [0.0, 60.0, 1e9])
def test_kernel_sums_by_blocks(precision: str, far: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps over the centres, padding among them; one point out of the safe range sends all on the stable route."""
    monkeypatch.setattr(density_module, "_CENTRES", 8)
    rng = np.random.default_rng(0)
    points, centres = rng.normal(size=(6, 4)), rng.normal(size=(24, 4))
    counts = np.array([*rng.integers(1, 5, size=21), 0, 0, 0])
    points[2] += far
    squared = ((points[:, None] - centres) ** 2).sum(-1)
    expected = logsumexp(-squared * 0.7, b=counts, axis=1)
    with precision_scope(precision) as dtype, np.errstate(divide="ignore"):
        arrays = (part.astype(dtype) for part in (points, centres, np.log(counts)))
        got = np.asarray(log_sum_kernels(*arrays, dtype(0.7)), dtype=np.float64)
    assert np.allclose(got, expected, rtol=1e-13 if precision == "float64" else 1e-5, atol=1e-12)
    assert np.isfinite(got).all()


def test_whitened_rows_have_identity_covariance_and_match_mahalanobis() -> None:
    rows = table(100, 6)
    basis = fit_basis(rows)
    white = basis.whiten(rows)
    assert np.allclose(np.cov(white.T), np.eye(6), atol=1e-9)
    centred = rows - rows.mean(0)
    expected = np.einsum("ni,ij,nj->n", centred, np.linalg.inv(np.cov(rows.T)), centred)
    assert np.allclose((white**2).sum(1), expected, rtol=1e-6)
    assert np.array_equal(basis.whiten(rows[3:4])[0], white[3])  # one row alone: the same bits
    assert np.array_equal(basis.whiten(np.tile(rows, (3, 1)))[150:200], white[50:])  # at other places: the same bits
    assert basis.whiten(rows[:64]).shape == basis.whiten(np.tile(rows, (2, 1))[:128])[64:].shape == (64, 6)


@pytest.mark.parametrize(
    ("extra", "dimension"),
    [
        (lambda t: np.column_stack([t, np.full(len(t), 0.1)]), 3),
        (lambda t: np.column_stack([t, t @ [1.0, -2.0, 0.5]]), 3),
        (lambda t: np.column_stack([t, np.eye(4)[np.arange(len(t)) % 4]]), 6),
        (lambda t: np.column_stack([t, t]), 3),
        (lambda t: np.repeat(t, 20, axis=1)[:10], 3),
        (lambda t: np.column_stack([1e6 * t[:, 0], 1e-6 * t[:, 1]]), 2),  # units do not make a direction vanish
        (lambda t: np.random.default_rng(5).normal(size=(5, 9)), 4),  # n <= d
    ],
)
def test_effective_dimension(extra, dimension: int) -> None:
    rows = extra(np.random.default_rng(1).normal(size=(60, 3)))
    basis = fit_basis(rows)
    assert basis.dimension == dimension
    assert np.allclose(np.cov(basis.whiten(rows).T), np.eye(dimension), atol=1e-8)
    assert not basis.out_of_span(rows).any()


def test_out_of_span_is_reported() -> None:
    rng = np.random.default_rng(0)
    reference = np.column_stack([rng.normal(size=(50, 2)), np.full(50, 4.0)])
    targets = np.column_stack([rng.normal(size=(6, 2)), [4.0, 4.0, 7.0, 4.0, 1.0, 4.0]])
    report = span_report(targets, reference, fit_basis(reference))
    assert np.allclose(report.out_of_span, [0, 0, 3, 0, 3, 0])
    assert report.effective_dimension == 2
    assert len(report.warnings) == 2
    assert "2 of 6 target rows" in report.warnings[1]
    assert span_report(targets[:, :2], targets[:, :2], fit_basis(reference[:, :2])).warnings == ()


def test_distinct_rows() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(-1, 2, size=(200, 3)) * 1.0
    distinct, counts = distinct_rows(rows)
    expected, expected_counts = np.unique(rows, axis=0, return_counts=True)
    assert np.array_equal(distinct, expected)
    assert np.array_equal(counts, expected_counts)
    assert len(distinct_rows(np.array([[0.0], [-0.0]]))[0]) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_basis(np.ones((5, 2))), "reference must vary in at least one column"),
        (lambda: fit_basis(np.ones((1, 2))), "reference must have at least 2 rows, got 1"),
        (lambda: bandwidth_factor(5, 2, "bayes"), "rule must be one of"),
        (lambda: as_rows("targets", [1.0, 2.0]), "targets must be a matrix"),
        (lambda: as_rows("targets", np.empty((0, 2))), "targets must be a matrix"),
        (lambda: as_rows("targets", [["a"]]), "targets must be a table of numbers"),
        (lambda: as_rows("targets", [[np.nan]]), "targets must have only finite values"),
        (lambda: as_rows("targets", [[1.0]], 2), "targets must have 2 columns, got 1"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
