import jax
import numpy as np
import pytest
from bmp_oracle import QUANTILES
from scipy import sparse
from scipy.special import logsumexp
from scipy.stats import binom

from jaxaudit.bmp import pooled_posterior
from jaxaudit.bmp.counts import distinct, validate
from jaxaudit.bmp.pooled import pooled_data, shared_log_likelihood
from jaxaudit.bmp.table import log_likelihoods, shared_posteriors, summed_log_likelihoods
from jaxaudit.runtime.checks import InputError

COUNTS = (np.array([4, 7, 2, 4, 0, 33, 17]), 34, np.array([10, 9, 14, 10, 0, 3, 30]), 30)
L, R = np.array([0.2, 1.0, 5.0, 0.7]), np.array([0.1, 2.0, 0.4, 9.0])


@pytest.fixture(scope="module")
def tuples():
    return distinct(validate(*COUNTS))[0]


def table(post, b=0):
    return np.array([[np.ravel(post.quantile(name, q))[b] for q in QUANTILES] for name in "rl"])


def test_rows_are_the_shared_likelihood_of_one_node(tuples):
    found = log_likelihoods(tuples, L, R)
    with jax.enable_x64(True):
        for row, counts in zip(found, tuples, strict=True):
            data, _ = pooled_data(counts[None], np.float64)
            naive = [
                float(shared_log_likelihood(np.float64(l), np.float64(r), data)) for l, r in zip(L, R, strict=True)
            ]
            assert np.allclose(row, naive, atol=1e-7)
    assert np.all(found <= 1e-9)


def test_symmetries(tuples):
    found = log_likelihoods(tuples, L, R)
    order = np.random.default_rng(0).permutation(len(tuples))
    assert np.array_equal(log_likelihoods(tuples[order], L, R), found[order])
    assert np.allclose(log_likelihoods(tuples[:, [2, 3, 0, 1]], R, L), found, atol=1e-6)  # errors and l, r exchanged
    reversed_test = np.stack(
        [tuples[:, 1] - tuples[:, 0], tuples[:, 1], tuples[:, 3] - tuples[:, 2], tuples[:, 3]], axis=1
    )
    assert np.allclose(log_likelihoods(reversed_test, L, R), found, atol=1e-6)


def test_sums_with_multiplicities_in_blocks(tuples):
    l, r = np.meshgrid(np.linspace(0.1, 3, 9), np.linspace(0.1, 3, 7))  # 63 points: more than one block
    weights = np.random.default_rng(1).integers(0, 4, (3, len(tuples)))
    naive = weights @ log_likelihoods(tuples, l.ravel(), r.ravel())
    assert np.allclose(summed_log_likelihoods(tuples, weights, l.ravel(), r.ravel()), naive)
    assert np.allclose(summed_log_likelihoods(tuples, sparse.csr_matrix(weights), l.ravel(), r.ravel()), naive)
    assert np.array_equal(
        log_likelihoods(tuples, l.ravel()[50:], r.ravel()[50:]), log_likelihoods(tuples, l.ravel(), r.ravel())[:, 50:]
    )


def test_sets_of_nodes_are_their_pooled_posteriors(tuples):
    both = shared_posteriors(tuples, np.array([np.ones(len(tuples)), np.full(len(tuples), 9.0)]))
    for b, times in enumerate((1, 9)):
        pooled = pooled_posterior(*np.tile(tuples, (times, 1)).T)
        assert np.allclose(table(both, b), table(pooled), atol=0.01)


def test_a_narrow_set_beside_a_wide_one_gets_its_own_box():
    rows = np.array([[1, 90, 8, 10], [30, 100, 30, 100]])
    weights = np.array([[1.0, 0.0], [0.0, 3000.0]])
    post = shared_posteriors(rows, weights)
    assert np.allclose(table(post, 0), table(pooled_posterior(*rows[0])), atol=0.01)
    narrow = table(pooled_posterior(*np.repeat(rows[1:], 3000, axis=0).T))
    assert np.allclose(table(post, 1), narrow, atol=0.002)
    assert narrow[1, 2] - narrow[1, 0] < 0.15


def test_prior_scales_and_starts_share_the_table(tuples):
    times, scales = np.ones((2, len(tuples))), (1.0, 100.0)
    both = shared_posteriors(tuples, times, scales)
    for b, scale2 in enumerate(scales):
        own = shared_posteriors(tuples, times[:1], scale2)
        assert np.allclose(table(both, b), table(own), atol=0.005, rtol=0.002)
        # A start that holds a corner of the support, or far more than it, is corrected.
        (low, high), _ = own.box
        for start in (((low, (low + high) / 2),) * 2, ((-7.0, 9.0),) * 2):
            moved = shared_posteriors(tuples, times[:1], scale2, start)
            assert np.allclose(table(moved), table(own), atol=0.005, rtol=0.002)


def test_likelihood_is_sharp_in_both_tails_and_in_thin_regions():
    # l = r -> 0: all mass lies on a + b = 1, with density 4 min(a, 1 - a); counts far off that line test the tails.
    a = (np.arange(200_000) + 0.5) / 200_000
    for fp, n_out, fn, n_in in ((3, 90, 2, 80), (88, 90, 79, 80), (45, 90, 40, 80)):
        found = log_likelihoods(np.array([[fp, n_out, fn, n_in]]), [1e-5], [1e-5])[0, 0]
        likely = binom.logpmf(fp, n_out, a) + binom.logpmf(fn, n_in, 1 - a) + np.log(4 * np.minimum(a, 1 - a))
        largest = binom.logpmf(fp, n_out, fp / n_out) + binom.logpmf(fn, n_in, fn / n_in)
        assert found == pytest.approx(logsumexp(likely) - np.log(a.size) - largest, abs=0.005)


@pytest.mark.slow
def test_cora_size_agrees_with_the_pooled_posterior():
    rng = np.random.default_rng(3)
    n_in = rng.binomial(60, 0.5, 2708) + 2
    fp, fn = rng.binomial(64 - n_in, rng.uniform(0.1, 0.4, 2708)), rng.binomial(n_in, rng.uniform(0.2, 0.6, 2708))
    rows, index = distinct(validate(fp, 64 - n_in, fn, n_in))
    post = shared_posteriors(rows, np.bincount(index)[None])
    assert np.allclose(table(post), table(pooled_posterior(fp, 64 - n_in, fn, n_in)), atol=0.001)


def test_bad_arguments(tuples):
    with pytest.raises(InputError, match="at least one node"):
        log_likelihoods(tuples[:0], L, R)
    post = shared_posteriors(tuples[:1], np.ones((1, 1)))
    for bad in (("x", 0.5), ("r", 0.0)):
        with pytest.raises(InputError):
            post.quantile(*bad)
    with pytest.raises(InputError, match="prior_scale2"):
        shared_posteriors(tuples, np.ones((1, len(tuples))), np.inf)
    with pytest.raises(InputError, match="weights"):
        shared_posteriors(tuples, np.ones((0, len(tuples))))
