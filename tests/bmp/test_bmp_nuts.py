import numpy as np
import pytest

from jaxaudit.bmp import pooled_nuts, pooled_posterior
from jaxaudit.bmp.nuts import _warnings
from jaxaudit.runtime.checks import InputError

COUNTS = (np.array([4, 7, 2, 4, 6, 3]), 30, np.array([10, 9, 14, 10, 12, 20]), 30)


@pytest.fixture(scope="module")
def chains():
    return pooled_nuts(*COUNTS, chains=2, warmup=300, draws=600, seed=1)


def agree(nuts, exact):
    """Gated by the chains' own ESS: P(x < exact quantile) is the level, within four standard errors."""
    for name in ("r", "l"):
        for q in (0.05, 0.25, 0.5, 0.75, 0.95):
            share = (getattr(nuts, name) < exact.quantile(name, q)).mean()
            size = min(nuts.ess_bulk[name], nuts.ess_tail[name])
            assert abs(share - q) < 4 * np.sqrt(q * (1 - q) / size), (name, q, share, size)


def test_agrees_with_the_exact_posterior(chains):
    assert min(chains.ess_bulk.values()) > 150
    agree(chains, pooled_posterior(*COUNTS))


def test_shapes_and_diagnostics(chains):
    assert chains.r.shape == chains.l.shape == (2, 600)
    assert chains.nodes == 6
    assert chains.quantile("r", 0.5) == pytest.approx(np.median(chains.r))
    assert set(chains.rhat) == set(chains.ess_bulk) == set(chains.ess_tail) == {"r", "l"}
    assert chains.warnings == _warnings(chains.rhat, chains.ess_bulk, chains.divergences)


def test_seed_decides_the_draws(chains):
    again = pooled_nuts(*COUNTS, chains=2, warmup=300, draws=600, seed=1)
    other = pooled_nuts(*COUNTS, chains=2, warmup=300, draws=600, seed=2)
    assert np.array_equal(again.r, chains.r)
    assert not np.array_equal(other.r, chains.r)


def test_warnings_name_what_fails():
    good = {"r": 1.0, "l": 1.009}, {"r": 400.0, "l": 1e4}, 0
    assert _warnings(*good) == ()
    assert "R-hat of r" in _warnings({"r": 1.02, "l": 1.0}, good[1], 0)[0]
    assert "ESS of l" in _warnings(good[0], {"r": 500.0, "l": 399.0}, 0)[0]
    assert "3 divergent" in _warnings(good[0], good[1], 3)[0]
    assert len(_warnings({"r": np.nan}, {"r": np.nan}, 0)) == 2


def test_bad_arguments():
    for bad in ({"chains": 1}, {"draws": 0}, {"warmup": 3}, {"seed": -1}, {"prior_scale2": 0.0}):
        with pytest.raises(InputError):
            pooled_nuts(*COUNTS, **bad)


@pytest.mark.slow
def test_defaults_agree_and_do_not_warn():
    nuts = pooled_nuts(np.full(20, 10), 100, 10, 100)
    assert max(nuts.rhat.values()) < 1.01
    assert min(nuts.ess_bulk.values()) > 400
    agree(nuts, pooled_posterior(np.full(20, 10), 100, 10, 100))
