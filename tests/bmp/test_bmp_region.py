import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxaudit.bmp import region
from jaxaudit.runtime.checks import InputError

PAIRS = [(0.3, 0.3), (1.0, 2.0), (2.5, 0.7), (6.0, 0.05), (30.0, 20.0)]


@pytest.mark.parametrize(("l", "r"), PAIRS)
def test_contains_is_the_four_inequalities(l, r):
    alpha, beta = np.random.default_rng(0).random((2, 4000))
    A, B = np.exp(l), np.exp(r)
    right = (beta + B * alpha >= 1) & (alpha + beta / B <= 1)
    left = (alpha + A * beta >= 1) & (beta + alpha / A <= 1)
    assert np.array_equal(region.contains(alpha, beta, l, r), right & left)
    assert np.array_equal(region.contains(alpha, beta, l, r, "R"), right)
    assert np.array_equal(region.contains(alpha, beta, l, r, "L"), left)


@pytest.mark.parametrize(("l", "r"), PAIRS)
def test_vertices_order_closed_form_and_area(l, r):
    A, B = np.exp(l), np.exp(r)
    a, b = (A - 1) / (A * B - 1), (B - 1) / (A * B - 1)
    corners = region.vertices(l, r)
    assert np.allclose(corners, [[0, 1], [a, b], [1, 0], [1 - a, 1 - b]], atol=1e-12)
    x, y = corners.T
    shoelace = abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2
    assert region.area(l, r) == pytest.approx(1 - (A + B - 2) / (A * B - 1), abs=1e-12) == pytest.approx(shoelace)
    assert np.all(region.contains(corners[:, 0], corners[:, 1], l, r))
    assert np.allclose(np.exp(region.log_vertex(l, r)), [a, 1 - a, b, 1 - b], atol=1e-12)


@pytest.mark.parametrize("side", ["both", "R", "L"])
def test_area_is_the_share_of_the_square(side):
    alpha, beta = np.random.default_rng(1).random((2, 200_000))
    share = region.contains(alpha, beta, 0.8, 1.7, side).mean()
    assert region.area(0.8, 1.7, side) == pytest.approx(share, abs=0.005)


def test_symmetric_area_is_tanh():
    eps = np.array([0.0, 1e-9, 0.5, 3.0, 800.0])
    assert np.allclose(region.area(eps, eps), np.tanh(eps / 2), rtol=1e-12, atol=0)


def test_tightest_is_the_boundary():
    alpha, beta = np.random.default_rng(2).random((2, 500))
    l, r = region.tightest(alpha, beta)
    assert np.all(region.contains(alpha, beta, l, r))
    assert not np.any(region.contains(alpha, beta, l * 0.999, r + 1) | region.contains(alpha, beta, l + 1, r * 0.999))
    assert np.allclose(r, np.log(np.maximum((1 - beta) / alpha, beta / (1 - alpha))))
    assert np.allclose(l, np.log(np.maximum(alpha / (1 - beta), (1 - alpha) / beta)))


def test_reversed_tests_leak_as_much():
    alpha, beta = np.random.default_rng(3).random((2, 50))
    assert np.allclose(region.tightest(alpha, beta), region.tightest(1 - alpha, 1 - beta))


def test_vertices_are_the_points_whose_tightest_parameters_are_l_and_r():
    l, r = np.random.default_rng(4).uniform(0.01, 8, (2, 100))
    corner = region.vertices(l, r)[:, 1]
    found = region.tightest(corner[:, 0], corner[:, 1])
    assert np.allclose(found, (l, r), rtol=1e-8)


def test_degenerate_and_extreme_parameters():
    assert region.tightest(0.0, 0.5) == (pytest.approx(np.log(2)), np.inf)
    assert [float(x) for x in region.tightest(1.0, 0.0)] == [0, 0]
    assert np.isnan(region.tightest(np.nan, 0.5)).all()
    assert region.area(800.0, 800.0) == 1
    assert region.area(0.0, 0.0) == region.area(0.0, 5.0) == 0
    assert region.area(800.0, 1.0) == pytest.approx(1 - np.exp(-1))
    assert np.isfinite(region.vertices([0.0, 800, 800, 0], [0.0, 800, 0, 800])).all()
    assert region.vertices(0.0, 5.0)[1].tolist() == [0, 1]
    assert region.contains(0.0, 0.0, np.inf, np.inf)
    assert not region.contains(0.0, 0.0, np.inf, 5.0)
    assert region.contains(0.3, 0.7, 0.0, 0.0)
    assert not region.contains(0.3, 0.6, 0.0, 0.0)


def test_traced_by_jax_and_the_same_there():
    l, r = np.array([0.5, 2.0]), np.array([1.5, 0.1])
    with jax.enable_x64(True):
        assert np.allclose(jax.jit(region.vertices)(jnp.array(l), jnp.array(r)), region.vertices(l, r))
        assert np.allclose(jax.jit(region.area)(jnp.array(l), jnp.array(r)), region.area(l, r))
        assert np.allclose(jax.jit(region.tightest)(jnp.array(0.1), jnp.array(0.2)), region.tightest(0.1, 0.2))
        assert jax.jit(region.contains)(jnp.array(0.5), jnp.array(0.5), jnp.array(1.0), jnp.array(1.0))
        assert np.isfinite(jax.grad(lambda x: region.area(x, 1.0))(jnp.array(0.3)))


@pytest.mark.parametrize(
    "call",
    [
        lambda: region.contains(1.1, 0.5, 1, 1),
        lambda: region.contains(0.5, 0.5, -1, 1),
        lambda: region.contains(0.5, 0.5, 1, 1, "X"),
        lambda: region.area(-1, 1),
        lambda: region.tightest(-0.1, 0.5),
    ],
)
def test_bad_arguments(call):
    with pytest.raises(InputError):
        call()
