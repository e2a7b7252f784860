"""The samplers' settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxaudit.runtime.checks import check_choice, check_int, check_real, require

__all__ = ["OPTIONS", "TRAVERSING", "SamplerConfig"]

OPTIONS: dict[str, tuple[str, ...]] = {
    "bernoulli": (),
    "degree": ("power",),
    "random_walk": ("restart", "patience"),
    "snowball": ("on_exhausted", "seeds_per_class", "fanout"),
    "uniform": (),
}
"""Sampler -> the settings it reads besides ``ratio``."""
TRAVERSING = ("random_walk", "snowball")
"""Samplers that walk along edges, and so know which ones they traversed."""


@dataclass(frozen=True)
class SamplerConfig:
    """How training nodes are drawn.

    Attributes:
        name: ``snowball``, ``random_walk``, ``degree`` or ``uniform``, which fill a quota, or ``bernoulli``, which
            takes every node by itself with probability ``ratio``.
        ratio: share of the nodes in (0, 1); the quota is int(ratio·n).
        on_exhausted: what a snowball does when its frontier is empty before the quota: ``stop``, or
            ``reseed`` with a uniformly random node not yet in.
        seeds_per_class: snowball's start, one node of each class in turn; a smaller class gives all its nodes.
        fanout: neighbours a snowball takes from a popped node.
        power: ``degree`` draws nodes one after another with probability ∝ (degree + 1)^power, in [0, 10].
        restart: probability, in [0, 1), that a random walk returns to its seed before a step.
        patience: steps in a row without a new node after which a random walk moves to a new seed.
    """

    name: str = "snowball"
    ratio: float = 0.1
    on_exhausted: str = "stop"
    seeds_per_class: int = 10
    fanout: int = 3
    power: float = 1.0
    restart: float = 0.15
    patience: int = 100

    def __post_init__(self) -> None:
        check_choice("sampler", self.name, OPTIONS)
        check_real("sampler.ratio", self.ratio, 0, 1, open_low=True, open_high=True)
        check_choice("sampler.on_exhausted", self.on_exhausted, ("stop", "reseed"))
        check_int("sampler.seeds_per_class", self.seeds_per_class, 1, 1000)
        check_int("sampler.fanout", self.fanout, 1, 1000)
        check_real("sampler.power", self.power, 0, 10)
        check_real("sampler.restart", self.restart, 0, 1, open_high=True)
        check_int("sampler.patience", self.patience, 1, 100_000)

    def quota(self, num_nodes: int) -> int:
        """int(ratio·n), at least 1 by check; about the expected size of a ``bernoulli`` sample.

        Example:
            >>> SamplerConfig(ratio=0.5).quota(11)
            5
        """
        quota = int(self.ratio * num_nodes)
        require(quota >= 1, "sampler.ratio", f"select at least 1 of {num_nodes} nodes", self.ratio)
        return quota

    def exact_prior(self, num_nodes: int) -> float | None:
        """P(node in the sample) where it has a closed form, the same for all nodes.

        Example:
            >>> SamplerConfig("uniform", 0.5).exact_prior(11), SamplerConfig("bernoulli", 0.5).exact_prior(11)
            (0.45454545454545453, 0.5)
        """
        return {"uniform": self.quota(num_nodes) / num_nodes, "bernoulli": self.ratio}.get(self.name)

    def settings(self) -> dict[str, Any]:
        """The settings that this sampler reads: what its draws depend on.

        Example:
            >>> SamplerConfig("degree", 0.5, fanout=7).settings()
            {'name': 'degree', 'ratio': 0.5, 'power': 1.0}
        """
        return {key: getattr(self, key) for key in ("name", "ratio", *OPTIONS[self.name])}

    def check_edges(self, train: str) -> None:
        """Raise unless training edges of that kind ("induced" or "traversed") exist for this sampler."""
        check_choice("edges.train", train, ("induced", "traversed"))
        fits = train == "induced" or self.name in TRAVERSING
        require(fits, "edges.train", f"be induced with sampler={self.name}, which traverses no edges", train)
