"""A user's own sampler: its example, the pipeline around it, and one line for everything that can be wrong."""

import re
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from jaxaudit import configs
from jaxaudit.graph.data import csbm
from jaxaudit.graph.samplers import custom
from jaxaudit.graph.sampling import (
    SamplerConfig,
    as_sampler,
    draw_samples,
    estimate_priors,
    stored_priors,
    stored_samples,
)
from jaxaudit.graph.shadow import TrainConfig, train_and_query
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.keys import host_rng
from jaxaudit.runtime.store import Store

GRAPH = csbm(nodes=60, classes=2, features=2, mean_degree=2, seed=1)  # sparse: some nodes have prior 0
EXAMPLE = dedent(custom.__doc__.split("::\n")[1])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_sampler.py"
    path.write_text(EXAMPLE)
    return path


def half(graph, rng):
    return rng.permutation(graph.num_nodes)[: graph.num_nodes // 2]


def test_the_documented_example(file):
    config = SamplerConfig("custom", path=f"{file}:draw")
    draws = draw_samples(GRAPH, config, 0, 400, "traversed")
    u, v = GRAPH.edges
    touched = np.zeros((400, 60), bool)
    for k, edges in enumerate(draws.edges):
        touched[k, u[edges]] = touched[k, v[edges]] = True
    np.testing.assert_array_equal(draws.nodes, touched)
    np.testing.assert_array_equal(draws.sizes, draws.nodes.sum(axis=1))
    assert draws.quota == draws.sizes[0]
    assert not draws.exhausted.any()
    seen = draws.edges.mean(axis=0)
    assert np.abs(seen - 0.3).max() < 4.5 * np.sqrt(0.21 / 400)
    induced = draw_samples(GRAPH, config, 0, 3)
    np.testing.assert_array_equal(induced.nodes, draws.nodes[:3])
    np.testing.assert_array_equal(induced.edges, induced.nodes[:, u] & induced.nodes[:, v])
    assert (induced.edges & ~draws.edges[:3]).any()
    assert config.exact
    priors = estimate_priors(GRAPH, config, 0)
    assert (priors.exact, priors.draws) == (True, 0)
    np.testing.assert_allclose(priors.gamma, 1 - 0.7**GRAPH.degree)


def test_the_option_file_shows_the_same_example():
    text = (Path(configs.__file__).parent / "sampler" / "custom.yaml").read_text()
    shown, mine = {}, {}
    exec("\n".join(line[4:] for line in text.splitlines() if line.startswith("#   ")), shown)
    exec(EXAMPLE, mine)
    for part in (0, 1):
        ours, theirs = (code["draw"](GRAPH, host_rng(0, "x"))[part] for code in (shown, mine))
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(shown["draw"].prior(GRAPH), mine["draw"].prior(GRAPH))


def test_a_draw_depends_on_the_seed_and_its_number_alone():
    config = as_sampler(half)
    long = draw_samples(GRAPH, config, 3, 70)
    short = draw_samples(GRAPH, config, 3, 5, chunk=2)
    np.testing.assert_array_equal(long.nodes[:5], short.nodes)
    for k in (0, 4):
        expected = np.zeros(60, bool)
        expected[half(GRAPH, host_rng(3, "samples", k))] = True
        np.testing.assert_array_equal(short.nodes[k], expected)
    assert len(np.unique(long.nodes, axis=0)) == 70
    assert not np.array_equal(short.nodes, draw_samples(GRAPH, config, 4, 5).nodes)
    told = []
    one, other = (estimate_priors(GRAPH, config, 0, 300, chunk=c, advance=told.append) for c in (0, 7))
    np.testing.assert_array_equal(one.gamma, other.gamma)
    assert sum(told) == 600
    assert one.draws == 300
    assert not one.exact
    loop = np.mean([np.isin(np.arange(60), half(GRAPH, host_rng(0, "priors", k))) for k in range(300)], axis=0)
    np.testing.assert_allclose(one.gamma, loop)
    assert ((one.lower < loop) & (loop < one.upper)).all()


def test_masks_numbers_and_buffers_are_one():
    def mask(graph, rng):
        out = np.zeros(graph.num_nodes, bool)
        out[half(graph, rng)] = True
        return out

    class Buffer:
        kept = np.zeros(60, bool)

        def __call__(self, graph, rng):
            self.kept[:] = mask(graph, rng)
            return self.kept

    want = draw_samples(GRAPH, as_sampler(half), 0, 6).nodes
    for draw in (mask, lambda g, rng: half(g, rng).tolist(), lambda g, rng: half(g, rng).astype(np.uint8), Buffer()):
        np.testing.assert_array_equal(draw_samples(GRAPH, as_sampler(draw), 0, 6).nodes, want)


def test_empty_draws_are_kept_and_counted():
    sometimes = as_sampler(lambda graph, rng: [] if rng.random() < 0.5 else [1, 2])
    draws = draw_samples(GRAPH, sometimes, 0, 40)
    assert 5 < (draws.sizes == 0).sum() < 35
    with pytest.raises(InputError, match=r"sampler\.path must draw nodes"):
        draw_samples(GRAPH, as_sampler(lambda graph, rng: []), 0, 4)


def broken(value):
    return lambda graph, rng: value


ONE_EDGE = np.arange(GRAPH.num_edges) == 0
RETURNS = {
    "float nodes": (broken([0.0, 1.0]), "or a pair (nodes, edges), got dtype float64"),
    "none": (broken(None), "a bool mask (60,), integer node numbers"),
    "matrix": (broken(np.zeros((60, 1), bool)), "shape (60, 1)"),
    "ragged": (broken([[1], [1, 2]]), "return an array of nodes, got ValueError"),
    "short mask": (broken(np.ones(59, bool)), "return a mask of shape (60,), got (59,)"),
    "outside": (broken([3, 60]), "return nodes in [0, 59], got [60]"),
    "negative": (broken([-1]), "return nodes in [0, 59], got [-1]"),
    "twice": (broken([4, 5, 4]), "return distinct nodes (a mask must be bool), got node 4 2 times"),
    "zeros and ones": (broken(np.ones(60, int)), "(a mask must be bool), got node 1 60 times"),
    "triple": (broken(([1], None, None)), "return nodes or a pair (nodes, edges), got a tuple of 3"),
    "scalars": (broken((1, 2)), "shape ()"),
    "edge numbers": (broken(([1], [0])), f"traversed edges as a bool mask ({GRAPH.num_edges},), got dtype int64"),
    "ragged edges": (broken(([1], [[1], [1, 2]])), "traversed edges as a bool mask"),
    "masked nodes": (broken(np.ma.masked_array([1, 2], [True, False])), "return an array of nodes, got a masked array"),
    "masked edges": (broken(([], np.ma.masked_array(ONE_EDGE, ~ONE_EDGE))), "got a masked array"),
    "loose edge": (broken((np.zeros(60, bool), ONE_EDGE)), "both ends in the sample, got 1 others, such as edge 0"),
    "one end": (broken(([GRAPH.edges[0, 0]], ONE_EDGE)), "both ends in the sample, got 1 others"),
}  # fmt: skip


@pytest.mark.parametrize("case", RETURNS)
def test_what_a_draw_may_not_return(case):
    draw, words = RETURNS[case]
    with pytest.raises(InputError) as caught:
        draw_samples(GRAPH, as_sampler(draw), 0, 2)
    message = str(caught.value)
    assert words in message
    assert re.match(r"draw 0 \(samples\) of sampler\.path \w+:.* must ", message)
    assert "\n" not in message
    assert "custom.py" not in message  # where an error is of the call, no line of ours is named


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def leave(*arguments):
    sys.exit(3)


def mute(*arguments):
    raise MuteError


def inside_numpy(graph, rng):
    return np.linalg.inv(np.zeros((2, 2)))


class Lazy:
    """An array that can only be asked for."""

    def __array__(self, *arguments, **options):
        sys.exit(4)


class Closed:
    def __call__(self, graph, rng):
        return [0]

    @property
    def prior(self):
        raise KeyError("closed")


class Unprintable:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (leave, "must return nodes, got SystemExit: 3 (test_custom_sampler.py, line "),
        (mute, "must return nodes, got MuteError (test_custom_sampler.py, line "),
        (inside_numpy, "got LinAlgError: Singular matrix (test_custom_sampler.py, line "),
        (broken(Lazy()), "must return an array of nodes, got SystemExit: 4 (test_custom_sampler.py, line "),
        (broken(([1], Lazy())), "got SystemExit: 4 (test_custom_sampler.py, line "),
        (Closed(), "sampler.path must have a function as its attribute prior, got KeyError: 'closed' (test_custom"),
    ],
)
def test_code_that_exits_or_cannot_be_shown_is_one_line(draw, words):
    with pytest.raises(InputError, match=re.escape(words)):
        draw_samples(GRAPH, as_sampler(draw), 0, 2)


def through(graph, rng):
    return inside_numpy(graph, rng)


@pytest.mark.parametrize("draw", [inside_numpy, through])
def test_the_line_is_the_innermost_one_of_the_users_file(draw):
    line = inside_numpy.__code__.co_firstlineno + 1
    with pytest.raises(InputError, match=rf"\(test_custom_sampler.py, line {line}\)$"):
        draw_samples(GRAPH, as_sampler(draw), 0, 2)


def test_an_interrupt_is_not_the_samplers_error():
    def interrupted(graph, rng):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw_samples(GRAPH, as_sampler(interrupted), 0, 2)


def test_errors_in_the_users_code_are_one_line_with_the_draw():
    def late(graph, rng):
        if rng.random() > 0.95:
            raise KeyError("two\nlines")
        return [0]

    first = next(k for k in range(100) if host_rng(0, "samples", k).random() > 0.95)
    assert first > 0
    with pytest.raises(InputError) as caught:
        draw_samples(GRAPH, as_sampler(late), 0, 100)
    assert re.match(
        rf"draw {first} \(samples\) of sampler.path .*late must return nodes, got KeyError: ", str(caught.value)
    )
    assert "(test_custom_sampler.py, line " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(InputError, match=r"draw \d+ \(priors\)"):
        estimate_priors(GRAPH, as_sampler(late), 0, 100)
    with pytest.raises(InputError, match="must return nodes, got TypeError"):
        draw_samples(GRAPH, as_sampler(lambda graph: [0]), 0, 2)


def test_hidden_randomness_and_writing_to_the_graph_are_refused():
    hidden = np.random.default_rng(0)
    with pytest.raises(InputError, match=r"must depend on \(graph, rng\) alone"):
        draw_samples(GRAPH, as_sampler(lambda graph, rng: half(graph, hidden)), 0, 2)

    def write(graph, rng):
        graph.labels[0] = 1
        return [0]

    before = GRAPH.digest()
    with pytest.raises(InputError, match="ValueError: assignment destination is read-only"):
        draw_samples(GRAPH, as_sampler(write), 0, 2)
    assert GRAPH.digest() == before


def with_prior(function):
    def draw(graph, rng):
        return half(graph, rng)

    draw.prior = function
    return SamplerConfig("custom", path=draw)


def test_a_stated_prior_is_held_against_draws():
    good = with_prior(lambda graph: np.full(graph.num_nodes, 0.5))
    assert (estimate_priors(GRAPH, good, 0).gamma == 0.5).all()
    for wrong, words in (
        (lambda graph: np.full(graph.num_nodes, 0.2), "agree with the draws, got 0.2 for node"),
        (lambda graph: np.full(graph.num_nodes, 0.8), "agree with the draws, got 0.8 for node"),
        (lambda graph: np.where(np.arange(graph.num_nodes) == 7, 0.0, 0.5), "got 0 for node 7, which was in"),
        (lambda graph: np.where(np.arange(graph.num_nodes) == 7, 1.0, 0.5), "got 1 for node 7, which was in"),
        (lambda graph: np.full(3, 0.5), "return one probability for each of 60 nodes"),
        (lambda graph: np.full(graph.num_nodes, 1.5), r"return numbers in \[0, 1\], got \[1.5\]"),
        (lambda graph: np.full(graph.num_nodes, np.nan), r"return numbers in \[0, 1\], got \[nan\]"),
        (lambda graph: 1 / 0, "return probabilities, got ZeroDivisionError"),
        (leave, r"return probabilities, got SystemExit: 3 \(test_custom_sampler.py"),
        (lambda graph: np.ma.masked_array(np.full(graph.num_nodes, 0.5)), "got a masked array"),
        (lambda graph: [[0.5], [0.5, 0.5]], "return an array of probabilities, got ValueError"),
    ):
        with pytest.raises(InputError, match=words):
            estimate_priors(GRAPH, with_prior(wrong), 0)
    draw = lambda graph, rng: [0]  # noqa: E731
    for value in (0.5, Unprintable()):
        draw.prior = value
        with pytest.raises(InputError, match="a function as its attribute prior, got "):
            as_sampler(draw)


def test_paths(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int' = 1\n"
                                      "def draw(graph, rng):\n    return [A().x]\nnot_callable = 3\n")  # fmt: skip
    (tmp_path / "broken.py").write_text("x = 1\nx +\n")
    (tmp_path / "leaves.py").write_text("import sys\n\nsys.exit(3)\n")
    (tmp_path / "lazy.py").write_text("def __getattr__(name):\n    raise OSError(name)\n")
    (tmp_path / "leaves_too.py").write_text("import sys\nsys.exit('bye')\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "raises.py").write_text("\nraise RuntimeError('no')\n")
    assert draw_samples(GRAPH, SamplerConfig("custom", path=f"{tmp_path}/mine.py:draw"), 0, 2).nodes[:, 1].all()
    for path, words in (
        (None, "sampler.path must be given with sampler=custom"),
        ("mine.py", "sampler.path must be FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION"),
        ("mine:", "sampler.path must be FILE.py:FUNCTION"),
        (3, "sampler.path must be FILE.py:FUNCTION"),
        (f"{tmp_path}/none.py:draw", r"file that can be read \(No such file or directory\)"),
        (f"{tmp_path}/mine.py:other", "name a function of .*mine.py, got other"),
        (f"{tmp_path}/mine.py:not_callable", "name a function of"),
        (f"{tmp_path}/broken.py:draw", "sampler.path broken.py must be Python that can be run, got SyntaxError"),
        (f"{tmp_path}/raises.py:draw", r"got RuntimeError: no \(raises.py, line 2\)"),
        (f"{tmp_path}/leaves.py:draw", r"got SystemExit: 3 \(leaves.py, line 3\)"),
        (f"{tmp_path}/lazy.py:draw", r"name a function of .*, got OSError: draw \(lazy.py, line 2\)"),
        ("leaves_too:draw", r"must be a module on .*, got SystemExit: bye \(leaves_too.py, line 2\)$"),
        ("no_such_package.here:draw", "must be a module on Python's path .*, got ModuleNotFoundError: [^(]*$"),
        ("a\0b.py:draw", r"file that can be read \(.*null.*\), got 'a\\x00b.py'"),
        ("~nobody_of_this_name/a.py:draw", "file that can be read"),
    ):
        with pytest.raises(InputError, match=words):
            SamplerConfig("custom", path=path)
    with pytest.raises(InputError, match=r"sampler\.path must be left out with sampler=uniform"):
        SamplerConfig("uniform", path="mine.py:draw")
    with pytest.raises(InputError, match="a name or a function, got int"):
        as_sampler(3)
    imported = SamplerConfig("custom", path="mine:draw")
    assert imported.storable
    assert imported.settings()["path"] == "mine:draw"
    monkeypatch.delitem(sys.modules, "mine")


def test_stored_draws_follow_the_source(file, tmp_path):
    store = Store(tmp_path / "store")
    config = SamplerConfig("custom", path=f"{file}:draw")
    assert config.storable
    first = stored_samples(store, GRAPH, config, 0, 4)
    assert len(list(store.folder.iterdir())) == 1
    np.testing.assert_array_equal(stored_samples(store, GRAPH, config, 0, 4).nodes, first.nodes)
    stored_priors(store, GRAPH, config, 0, 50)
    assert len(list(store.folder.iterdir())) == 2
    file.write_text(EXAMPLE.replace("0.3", "0.9").replace("0.7", "0.1"))  # at once: no clock tells them apart
    changed = SamplerConfig("custom", path=f"{file}:draw")
    assert changed.settings()["source"] != config.settings()["source"]
    assert stored_samples(store, GRAPH, changed, 0, 4).nodes.sum() > first.nodes.sum()
    np.testing.assert_allclose(stored_priors(store, GRAPH, changed, 0, 50).gamma, 1 - 0.1**GRAPH.degree)
    entries = len(list(store.folder.iterdir()))
    direct = as_sampler(half)
    assert not direct.storable
    stored_samples(store, GRAPH, direct, 0, 4)
    stored_priors(store, GRAPH, direct, 0, 50)
    assert len(list(store.folder.iterdir())) == entries


@pytest.mark.slow
def test_models_train_on_its_draws(file):
    config = SamplerConfig("custom", path=f"{file}:draw")
    samples = draw_samples(GRAPH, config, 0, 4, "traversed")
    ensemble = train_and_query(GRAPH, samples, sampler=config, train=TrainConfig(2), train_edges="traversed")
    assert ensemble.finite.all()


def test_traversed_edges_have_to_be_returned():
    with pytest.raises(InputError, match=r"return \(nodes, edges\) with edges.train=traversed"):
        draw_samples(GRAPH, as_sampler(half), 0, 4, "traversed")
