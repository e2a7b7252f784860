"""A user's own sampler: a Python function in a file, in an installed module, or given directly.

``draw(graph, rng)`` is called once per draw and returns the training nodes: a bool mask (n,) or distinct node
numbers. It may return the pair (nodes, edges) instead, ``edges`` a bool mask (E,) of traversed edges between nodes
that are in; then ``edges.train=traversed`` works. ``rng`` is a ``numpy.random.Generator`` of that draw alone, the
only source of randomness to use: draw k then never depends on how many there are. ``graph`` is read-only. A function
``prior(graph)`` set as the attribute ``draw.prior`` gives exact inclusion probabilities (n,); without it they are
estimated from draws. A file with all of it, for ``sampler=custom sampler.path=my_sampler.py:draw``::

    import numpy as np

    def draw(graph, rng):
        # Edge sampling: every edge is seen with probability .3, and with it both of its ends.
        seen = rng.random(graph.num_edges) < 0.3
        return np.unique(graph.edges[:, seen]), seen

    def prior(graph):
        return 1 - 0.7**graph.degree

    draw.prior = prior
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from scipy import sparse, stats

from jaxaudit.graph.data import Graph
from jaxaudit.runtime.checks import InputError, require
from jaxaudit.runtime.keys import host_rng

__all__ = ["UserSampler", "exact_inclusion", "host_draws", "load_sampler"]

_PRIOR_CHECK, _CHANCE = 200, 1e-6  # draws that a stated prior is held against, and the level over all nodes


@dataclass(frozen=True, eq=False)
class UserSampler:
    """A user's function and what identifies it.

    Attributes:
        name: how messages and results call it, "place:function".
        draw: called with (graph, rng).
        prior: called with (graph,), or None.
        source: digest of the source file; None where there is none to tell when stored results are out of date, as
            for a function given directly, which may depend on values around it.
    """

    name: str
    draw: Callable[..., Any]
    prior: Callable[..., Any] | None
    source: str | None


def load_sampler(path: str | Callable[..., Any]) -> UserSampler:
    """The sampler at "FILE.py:FUNCTION" or "PACKAGE.MODULE:FUNCTION", or the function itself.

    What a file imports besides is not part of its digest.

    Raises:
        InputError: nothing there, or the code fails or exits when it is loaded.

    Example:
        >>> load_sampler(lambda graph, rng: [0, 1]).source is None
        True
    """
    if callable(path):
        with _theirs("sampler.path", "be a function that can be named"):
            name = f"{getattr(path, '__module__', '')}:{getattr(path, '__qualname__', type(path).__qualname__)}"
        return _user(name, path, None)
    place, _, function = path.rpartition(":") if isinstance(path, str) else ("", "", "")
    rule = "be FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION, or a function"
    require(bool(place) and function.isidentifier(), "sampler.path", rule, path)
    in_file = place.endswith(".py") or os.sep in place or "/" in place
    module, source = _from_file(place) if in_file else _from_import(place)
    with _theirs("sampler.path", f"name a function of {place}"):
        draw = getattr(module, function, None)
    require(callable(draw), "sampler.path", f"name a function of {place}", function)
    return _user(f"{Path(place).name if in_file else place}:{function}", draw, source)


def _user(name: str, draw: Any, source: str | None) -> UserSampler:
    rule = "have a function as its attribute prior"
    with _theirs("sampler.path", rule):
        prior = getattr(draw, "prior", None)
    require(prior is None or callable(prior), "sampler.path", rule, type(prior).__name__)
    return UserSampler(name, draw, prior, source)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def _from_file(place: str) -> tuple[ModuleType, str | None]:
    try:
        content = (file := Path(place).expanduser()).read_bytes()
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a zero byte; RuntimeError: nobody's home
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"sampler.path must name a file that can be read ({why}), got {place!r}") from error
    return _run(str(file.resolve()), content), _digest(content)


@lru_cache(maxsize=32)
def _run(file: str, content: bytes) -> ModuleType:
    """The module that these lines make. Not through an import, whose compiled copy may be older than the file."""
    module = ModuleType(f"jaxaudit_sampler_{_digest(file.encode() + content)}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # where dataclasses look their module up
    try:
        with _theirs(f"sampler.path {Path(file).name}", "be Python that can be run"):
            exec(compile(content, file, "exec"), module.__dict__)
    except InputError:
        sys.modules.pop(module.__name__, None)
        raise
    return module


def _from_import(place: str) -> tuple[ModuleType, str | None]:
    with _theirs(f"sampler.path {place}", "be a module on Python's path (or a file, .py)"):
        module = importlib.import_module(place)
    try:
        return module, _digest(Path(inspect.getsourcefile(module) or "").read_bytes())
    except (OSError, TypeError):
        return module, None


@contextlib.contextmanager
def _theirs(name: str, rule: str) -> Iterator[None]:
    """Around the user's code: whatever it raises, ``sys.exit`` as well, is one line with the place in their file."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise InputError(f"{name} must {rule}, got {_text(error)}{_where(error)}") from error


def _text(error: BaseException) -> str:
    try:
        return " ".join(f"{type(error).__name__}: {error}".split())
    except (Exception, SystemExit):  # an error of the user's own, whose text fails
        return type(error).__name__


def _where(error: BaseException) -> str:
    """The last line in the first file outside this one and the import machinery; "" where the error is of a call."""
    ours = (_where.__code__.co_filename, importlib.__file__)
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    places = [place for place in places if place[0] not in ours and not place[0].startswith("<frozen")]
    lines = [line for file, line in places if file == places[0][0]]
    return f" ({Path(places[0][0]).name}, line {lines[-1]})" if lines else ""


def _read_only(graph: Graph) -> Graph:
    """The same graph behind views that cannot be written to."""

    def view(array: np.ndarray) -> np.ndarray:
        out = array.view()
        out.flags.writeable = False
        return out

    x = graph.features
    if sparse.issparse(x):
        x = sparse.csr_array((view(x.data), view(x.indices), view(x.indptr)), shape=x.shape, copy=False)
    else:
        x = view(x)
    shown = replace(
        graph, features=x, labels=view(graph.labels), edges=view(graph.edges), missing=view(graph.missing)
    )  # fmt: skip
    shown.degree.flags.writeable = False
    return shown


def _array(name: str, rule: str, value: Any) -> np.ndarray:
    require(not isinstance(value, np.ma.MaskedArray), name, rule, "a masked array, whose mask would be lost")
    with _theirs(name, rule):
        return np.asarray(value)


def _nodes(name: str, value: Any, n: int) -> np.ndarray:
    """(n,) bool from a mask or node numbers."""
    array = _array(name, "return an array of nodes", value)
    if array.size == 0 and array.shape != (n,):
        return np.zeros(n, bool)
    rule = f"return a bool mask ({n},), integer node numbers, or a pair (nodes, edges)"
    require(array.ndim == 1 and array.dtype.kind in "biu", name, rule, f"dtype {array.dtype}, shape {array.shape}")
    if array.dtype == bool:
        require(array.shape == (n,), name, f"return a mask of shape ({n},)", array.shape)
        return array
    outside = array[(array < 0) | (array >= n)]
    require(outside.size == 0, name, f"return nodes in [0, {n - 1}]", str(outside[:1]))
    counts = np.bincount(array.astype(np.int64), minlength=n)
    rule = "return distinct nodes (a mask must be bool)"
    require(counts.max() <= 1, name, rule, f"node {counts.argmax()} {counts.max()} times")
    return counts > 0


def _edges(name: str, value: Any, graph: Graph, nodes: np.ndarray) -> np.ndarray:
    """(E,) bool, edges between nodes that are in."""
    rule = f"return traversed edges as a bool mask ({graph.num_edges},)"
    array = _array(name, rule, value)
    ok = array.dtype == bool and array.shape == (graph.num_edges,)
    require(ok, name, rule, f"dtype {array.dtype}, shape {array.shape}")
    loose = array & ~nodes[graph.edges].all(axis=0)
    rule = "return traversed edges with both ends in the sample"
    require(not loose.any(), name, rule, f"{int(loose.sum())} others, such as edge {int(loose.argmax())}")
    return array


def _draw(
    user: UserSampler, graph: Graph, rng: np.random.Generator, name: str, traversed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """One checked draw: (n,) nodes, and (E,) edges or (0,) where not asked for."""
    with _theirs(name, "return nodes"):
        out = user.draw(graph, rng)
    parts = out if isinstance(out, tuple) else (out,)
    require(len(parts) in (1, 2), name, "return nodes or a pair (nodes, edges)", f"a tuple of {len(parts)}")
    require(len(parts) == 2 or not traversed, name, "return (nodes, edges) with edges.train=traversed", "nodes alone")
    nodes = _nodes(name, parts[0], graph.num_nodes)
    edges = _edges(name, parts[1], graph, nodes) if len(parts) == 2 else np.zeros(0, bool)
    return nodes.copy(), edges.copy() if traversed else np.zeros(0, bool)  # a buffer of the user's may be used again


def host_draws(
    user: UserSampler, graph: Graph, seed: int, stream: str, count: int, traversed: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield ``count`` checked draws of a user's sampler; draw k depends on (seed, stream, k) alone.

    Args:
        user: the sampler.
        graph: n nodes, E edges.
        seed: >= 0.
        stream: name of the random stream.
        count: draws.
        traversed: hand out traversed edges as well.

    Yields:
        (n,) bool nodes and (E,) bool edges, or (0,) without ``traversed``.

    Raises:
        InputError: a return that breaks a rule, an error in the user's code, or a first draw that comes out
            otherwise when it is repeated.

    Example:
        >>> from jaxaudit.graph.data import csbm
        >>> [nodes.sum().item() for nodes, _ in host_draws(load_sampler(lambda g, rng: [3, 1]), csbm(), 0, "demo", 2)]
        [2, 2]
    """
    shown = _read_only(graph)
    for k in range(count):
        name = f"draw {k} ({stream}) of sampler.path {user.name}"
        drawn = _draw(user, shown, host_rng(seed, stream, k), name, traversed)
        if k == 0:
            again = _draw(user, shown, host_rng(seed, stream, k), name, traversed)
            same = all(np.array_equal(a, b) for a, b in zip(drawn, again, strict=True))
            require(same, name, "depend on (graph, rng) alone", "two different draws from one rng")
        yield drawn


def exact_inclusion(user: UserSampler, graph: Graph, seed: int) -> np.ndarray:
    """The inclusion probabilities (n,) float64 that a user's ``prior`` states, held against draws.

    A node whose count in 200 draws has a two-sided binomial tail below 1e-6 / n refutes them.

    Raises:
        InputError: no (n,) probabilities, or draws that contradict them.
    """
    name = f"prior of sampler.path {user.name}"
    assert user.prior is not None
    with _theirs(name, "return probabilities"):
        stated = user.prior(_read_only(graph))
    gamma = _array(name, "return an array of probabilities", stated)
    n = graph.num_nodes
    ok = gamma.shape == (n,) and gamma.dtype.kind in "biuf"
    require(ok, name, f"return one probability for each of {n} nodes", f"dtype {gamma.dtype}, shape {gamma.shape}")
    gamma = gamma.astype(np.float64)
    bad = ~((gamma >= -1e-9) & (gamma <= 1 + 1e-9))
    require(not bad.any(), name, "return numbers in [0, 1]", str(gamma[bad][:1]))
    gamma = np.clip(gamma, 0, 1)
    counts = np.zeros(n, np.int64)
    for nodes, _ in host_draws(user, graph, seed, "prior-check", _PRIOR_CHECK):
        counts += nodes
    low, high = stats.binom.cdf(counts, _PRIOR_CHECK, gamma), stats.binom.sf(counts - 1, _PRIOR_CHECK, gamma)
    tail = 2 * np.minimum(low, high)
    worst = int(tail.argmin())
    found = f"{gamma[worst]:.3g} for node {worst}, which was in {counts[worst]} of {_PRIOR_CHECK}"
    require(bool(tail[worst] >= _CHANCE / n), name, "agree with the draws", found)
    return gamma
