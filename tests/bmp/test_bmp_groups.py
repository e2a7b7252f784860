import itertools

import numpy as np
import pytest

from jaxaudit.bmp import exact_posterior, pooled_posterior
from jaxaudit.bmp.groups import group_posterior, group_posteriors, make_groups
from jaxaudit.runtime.checks import InputError

LEVELS = (0.05, 0.5, 0.95)
COUNTS = (
    np.array([4, 7, 2, 4, 0, 9, 5, 3]),
    34,
    np.array([10, 9, 14, 10, 0, 3, 30, 8]),
    np.array([30, 30, 30, 30, 0, 30, 30, 30]),
)
GROUPS = np.array([0, 0, 2, 1, 1, 0, 1, -1])


def table(post):
    return np.array([[post.quantile(name, q) for q in LEVELS] for name in "rl"])


@pytest.fixture(scope="module")
def groups():
    return group_posterior(*COUNTS, GROUPS)


def test_a_group_is_the_pooled_posterior_of_its_nodes(groups):
    assert groups.nodes.tolist() == [3, 2, 1]  # node 4 has no data, node 7 no group
    for g in range(3):
        own = [np.broadcast_to(part, 8)[g == GROUPS] for part in COUNTS]
        assert np.allclose(table(groups)[..., g], table(pooled_posterior(*own)), atol=0.01)


def test_permutation_and_one_node_groups(groups):
    order = np.random.default_rng(0).permutation(8)
    shuffled = group_posterior(COUNTS[0][order], 34, COUNTS[2][order], COUNTS[3][order], GROUPS[order])
    assert np.allclose(table(shuffled), table(groups), atol=1e-9)
    single = group_posterior(*COUNTS, np.arange(8))
    assert np.array_equal(table(single), table(exact_posterior(*COUNTS)), equal_nan=True)


def test_groupings_share_a_table(groups):
    other = np.array([1, 1, 0, 0, 3, 1, 0, 1])
    first, second = group_posteriors(*COUNTS, [GROUPS, other])
    for post, own in ((first, groups), (second, group_posterior(*COUNTS, other))):
        assert np.array_equal(post.nodes, own.nodes)
        assert np.allclose(table(post), table(own), atol=0.005, rtol=0.002, equal_nan=True)


def test_empty_groups_are_nan():
    post = group_posterior(*COUNTS, np.where(GROUPS == 2, 4, -1))
    assert post.nodes.tolist() == [0, 0, 0, 0, 1]
    assert np.isnan(table(post)[..., :4]).all()
    assert np.isfinite(table(post)[..., 4]).all()


def test_quantile_bins_do_not_split_equal_values():
    rng = np.random.default_rng(0)
    for bins in (1, 2, 5, 50):
        degree = rng.geometric(0.3, 200)
        found = make_groups("degree", degree, bins)
        assert len(found.names) <= bins
        assert set(found.index) == set(range(len(found.names)))
        for value in np.unique(degree):
            assert len(set(found.index[degree == value])) == 1
        edges = [(degree[found.index == g].min(), degree[found.index == g].max()) for g in range(len(found.names))]
        assert all(first[1] < second[0] for first, second in itertools.pairwise(edges))
    even = make_groups("prior", np.linspace(0, 1, 100), 4)
    assert np.bincount(even.index).tolist() == [25, 25, 25, 25]
    assert make_groups("degree", [3, 3, 3]).names == ("degree 3",)
    assert make_groups("prior", [0.1, np.nan, 0.3], 2).index.tolist() == [0, -1, 1]


def test_labels():
    assert make_groups("class", [2, 0, 2]).names == ("class 0", "class 2")
    found = make_groups("column", np.array(["north", None, "south", "north"], object))
    assert found.index.tolist() == [0, -1, 1, 0]
    assert make_groups("column", [1.5, np.nan]).index.tolist() == [0, -1]


def test_bad_arguments():
    bad = [([0.5] * 8, "integers"), ([0] * 7, "8 nodes"), ([-2] * 8, ">= -1"), (np.zeros((8, 1), int), "1-D")]
    for groups, words in bad:
        with pytest.raises(InputError, match=words):
            group_posterior(*COUNTS, groups)
    for arguments in (("colour", [1]), ("degree", ["a"]), ("class", [[1]]), ("degree", [1], 0)):
        with pytest.raises(InputError):
            make_groups(*arguments)
