"""Configuration nodes become the library's frozen settings, or an error that names the key."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hydra import compose, initialize_config_module

from jaxaudit.config import CacheConfig, GraphJob, ReleaseJob, build, read_job
from jaxaudit.runtime.checks import InputError


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1


@dataclass(frozen=True)
class Outer:
    name: str
    count: int = 1
    flag: bool = False
    words: tuple[str, ...] = ()
    path: str | None = None
    several: int | tuple[int, ...] = 1
    measure: str | float = "silverman"
    free: dict[str, int] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)


def test_values_are_converted_to_the_annotated_types() -> None:
    many = build(Outer, {"name": "a", "several": [1, 2], "measure": 0.5})
    assert (many.several, many.measure) == ((1, 2), 0.5)
    assert build(Outer, {"name": "a", "several": 3, "measure": "scott"}).measure == "scott"
    made = build(Outer, {"name": 2024, "count": 3, "words": ["a", "b"], "free": {"x": 1}, "inner": {"rate": 1}})
    assert made == Outer("2024", 3, False, ("a", "b"), free={"x": 1}, inner=Inner(1.0))
    assert isinstance(made.inner.rate, float)
    assert hash(Inner(1.0)) == hash(made.inner)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({}, "name must be given"),
        ({"name": "a", "other": 1}, "unknown option other; known here: count, flag"),
        ({"name": "a", "inner": {"rat": 1}}, "unknown option inner.rat; known here: rate"),
        ({"name": "a", "inner": {"rate": "x"}}, "inner.rate must be a number, got x"),
        ({"name": "a", "inner": 3}, "inner must be a group of settings, got 3"),
        ({"name": "a", "count": 1.5}, "count must be an integer, got 1.5"),
        ({"name": "a", "count": True}, "count must be an integer, got True"),
        ({"name": "a", "flag": 1}, "flag must be true or false, got 1"),
        ({"name": "a", "words": "b"}, "words must be a list, got b"),
        ({"name": "a", "several": "b"}, "several must be an integer, got b"),
        ({"name": "a", "several": [1, "b"]}, "several must be an integer, got b"),
        ({"name": None}, "name must be a word or text, got None"),
    ],
)
def test_errors_name_the_key(node: dict, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(Outer, node)
    assert str(caught.value).startswith(message)


def composed(*overrides: str):
    with initialize_config_module("jaxaudit.configs", version_base="1.3"):
        return compose("config", list(overrides))


def test_the_yaml_defaults_are_the_library_defaults() -> None:
    graph, release = read_job(composed()), read_job(composed("audit=release"))
    assert isinstance(graph, GraphJob)
    assert isinstance(release, ReleaseJob)
    bare = GraphJob("graph", {"name": "digits_knn", "neighbours": 10})
    for name in (
        "graph",
        "sampler",
        "model",
        "train",
        "shadow",
        "edges",
        "attack",
        "posterior",
        "bmp",
        "seed",
        "devices",
    ):
        assert getattr(graph, name) == getattr(bare, name), name
    assert replace(release, cache=CacheConfig()) == ReleaseJob(audit="release")


def test_every_graph_and_sampler_option_composes() -> None:
    for options in (["graph=csbm"], ["graph=npz", "graph.path=a.npz"], ["sampler=uniform"]):
        assert isinstance(read_job(composed(*options)), GraphJob)
