"""The samplers' settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxaudit.graph.samplers.custom import UserSampler, load_sampler
from jaxaudit.runtime.checks import InputError, check_choice, check_int, check_real, require

__all__ = ["OPTIONS", "TRAVERSING", "SamplerConfig", "as_sampler"]

OPTIONS: dict[str, tuple[str, ...]] = {
    "bernoulli": ("ratio",),
    "custom": ("path",),
    "degree": ("ratio", "power"),
    "random_walk": ("ratio", "restart", "patience"),
    "snowball": ("ratio", "on_exhausted", "seeds_per_class", "fanout"),
    "uniform": ("ratio", "paired"),
}
"""Sampler -> the settings it reads."""
TRAVERSING = ("custom", "random_walk", "snowball")
"""Samplers that (may) walk along edges, and so know which ones they traversed."""


@dataclass(frozen=True)
class SamplerConfig:
    """How training nodes are drawn.

    Attributes:
        name: ``snowball``, ``random_walk``, ``degree`` or ``uniform``, which fill a quota, ``bernoulli``, which takes
            every node by itself with probability ``ratio``, or ``custom``, a function of your own.
        ratio: share of the nodes in (0, 1); the quota is int(ratio·n). Not read by ``custom``.
        on_exhausted: what a snowball does when its frontier is empty before the quota: ``stop``, or
            ``reseed`` with a uniformly random node not yet in.
        seeds_per_class: snowball's start, one node of each class in turn; a smaller class gives all its nodes.
        fanout: neighbours a snowball takes from a popped node.
        power: ``degree`` draws nodes one after another with probability ∝ (degree + 1)^power, in [0, 10].
        restart: probability, in [0, 1), that a random walk returns to its seed before a step.
        patience: steps in a row without a new node after which a random walk moves to a new seed.
        paired: ``uniform`` at ratio .5: draws 2j and 2j + 1 are each other's complement, so that an even number of
            models has every node in exactly half of them. Of an odd number of nodes a fair coin decides which of the
            two draws gets the odd one, so the prior is exactly ½.
        path: ``custom``: "FILE.py:FUNCTION", "PACKAGE.MODULE:FUNCTION" or the function itself; see
            ``jaxaudit.graph.samplers.custom``.
    """

    name: str = "snowball"
    ratio: float = 0.1
    on_exhausted: str = "stop"
    seeds_per_class: int = 10
    fanout: int = 3
    power: float = 1.0
    restart: float = 0.15
    patience: int = 100
    paired: bool = False
    path: str | Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        check_choice("sampler", self.name, OPTIONS)
        check_real("sampler.ratio", self.ratio, 0, 1, open_low=True, open_high=True)
        check_choice("sampler.on_exhausted", self.on_exhausted, ("stop", "reseed"))
        check_int("sampler.seeds_per_class", self.seeds_per_class, 1, 1000)
        check_int("sampler.fanout", self.fanout, 1, 1000)
        check_real("sampler.power", self.power, 0, 10)
        check_real("sampler.restart", self.restart, 0, 1, open_high=True)
        check_int("sampler.patience", self.patience, 1, 100_000)
        require(isinstance(self.paired, bool), "sampler.paired", "be true or false", self.paired)
        if self.paired:
            require(self.name == "uniform", "sampler.paired", f"be false with sampler={self.name}", "true")
            require(self.ratio == 0.5, "sampler.ratio", "be 0.5 with sampler.paired=true", self.ratio)
        given = self.path is not None
        require(given or self.name != "custom", "sampler.path", "be given with sampler=custom", "nothing")
        require(not given or self.name == "custom", "sampler.path", f"be left out with sampler={self.name}", self.path)
        _ = self.user  # code that cannot be loaded is refused here

    @cached_property
    def user(self) -> UserSampler | None:
        """The user's code behind ``custom``, loaded once; None for the other samplers."""
        return None if self.path is None else load_sampler(self.path)

    @property
    def storable(self) -> bool:
        """Whether ``settings()`` identify the draws, so that what follows from them may be stored and read again."""
        return self.user is None or self.user.source is not None

    @property
    def exact(self) -> bool:
        """Whether the inclusion probabilities are known without draws."""
        return self.name in ("uniform", "bernoulli") or (self.user is not None and self.user.prior is not None)

    def quota(self, num_nodes: int) -> int:
        """int(ratio·n), at least 1 by check; about the expected size of a ``bernoulli`` sample, and n for ``custom``,
        whose sizes are its own.

        Example:
            >>> SamplerConfig(ratio=0.5).quota(11)
            5
        """
        if self.name == "custom":
            return num_nodes
        quota = int(self.ratio * num_nodes)
        require(quota >= 1, "sampler.ratio", f"select at least 1 of {num_nodes} nodes", self.ratio)
        return quota

    def exact_prior(self, num_nodes: int) -> float | None:
        """P(node in the sample) where it has a closed form, the same for all nodes.

        Example:
            >>> SamplerConfig("uniform", 0.5).exact_prior(11), SamplerConfig("bernoulli", 0.5).exact_prior(11)
            (0.45454545454545453, 0.5)
        """
        share = 0.5 if self.paired else self.quota(num_nodes) / num_nodes
        return {"uniform": share, "bernoulli": self.ratio}.get(self.name)

    def settings(self) -> dict[str, Any]:
        """The settings that this sampler reads: what its draws depend on (of ``custom`` with the source's digest).

        Example:
            >>> SamplerConfig("degree", 0.5, fanout=7).settings()
            {'name': 'degree', 'ratio': 0.5, 'power': 1.0}
        """
        if self.user is not None:
            return {"name": self.name, "path": self.user.name, "source": self.user.source}
        return {key: getattr(self, key) for key in ("name", *OPTIONS[self.name])}

    def check_edges(self, train: str) -> None:
        """Raise unless training edges of that kind ("induced" or "traversed") exist for this sampler."""
        check_choice("edges.train", train, ("induced", "traversed"))
        fits = train == "induced" or self.name in TRAVERSING
        require(fits, "edges.train", f"be induced with sampler={self.name}, which traverses no edges", train)


def as_sampler(sampler: Any) -> SamplerConfig:
    """A sampler's settings from themselves, a registered name, or a function of the user's own.

    Raises:
        InputError: something else, or an unknown name.

    Example:
        >>> as_sampler("uniform").name, as_sampler(lambda graph, rng: [0]).name
        ('uniform', 'custom')
    """
    if isinstance(sampler, SamplerConfig):
        return sampler
    if isinstance(sampler, str):
        return SamplerConfig(sampler)
    if callable(sampler):
        return SamplerConfig("custom", path=sampler)
    raise InputError(f"sampler must be a SamplerConfig, a name or a function, got {type(sampler).__name__}")
