"""From a composed Hydra configuration to the frozen settings of the library, checked once.

The library's own frozen dataclasses are the schema: a key they do not have, or a value of another
type, is an error that names the key. Ranges are checked by the dataclasses themselves.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jaxaudit.evaluate.gate import GateConfig
from jaxaudit.graph.attacks import AttackConfig
from jaxaudit.graph.audit import EdgeConfig
from jaxaudit.graph.models import ModelConfig
from jaxaudit.graph.noise import NoiseConfig
from jaxaudit.graph.plan import PlanConfig
from jaxaudit.graph.posteriors import BMPConfig
from jaxaudit.graph.sampling import SamplerConfig
from jaxaudit.graph.shadow import ShadowConfig
from jaxaudit.graph.training import TrainConfig
from jaxaudit.runtime.checks import InputError, check_choice, require
from jaxaudit.tables.attacks import AttackSettings
from jaxaudit.tables.evidence import ReportConfig
from jaxaudit.tables.judgement import EvaluationConfig
from jaxaudit.tables.overfit import OverfitConfig
from jaxaudit.tables.sensitivity import SensitivityConfig

__all__ = [
    "JOBS",
    "CacheConfig",
    "GraphJob",
    "Job",
    "OverfitJob",
    "PlanJob",
    "ReleaseFiles",
    "ReleaseJob",
    "build",
    "read_job",
]

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class CacheConfig:
    """Where stage results and compiled programs are kept between runs; None keeps none."""

    dir: str | None = None


@dataclass(frozen=True)
class GraphJob:
    """Everything that ``audit=graph`` can set.

    ``graph`` holds the loader's name and its options; ``graphs_dir`` is the folder that experiments find graphs in.
    """

    audit: str
    graph: dict[str, Any]
    graphs_dir: str = "graphs"
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    shadow: ShadowConfig = field(default_factory=ShadowConfig)
    edges: EdgeConfig = field(default_factory=EdgeConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    posterior: str = "exact"
    bmp: BMPConfig = field(default_factory=BMPConfig)
    seed: int = 0
    devices: int = 0
    cache: CacheConfig = field(default_factory=CacheConfig)


@dataclass(frozen=True)
class PlanJob:
    """Everything that ``audit=plan`` can set: what the sampler decides before any training."""

    audit: str
    graph: dict[str, Any]
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    shadow: ShadowConfig = field(default_factory=ShadowConfig)
    seed: int = 0
    devices: int = 0
    cache: CacheConfig = field(default_factory=CacheConfig)


@dataclass(frozen=True)
class ReleaseFiles:
    """The four tables of a release, the columns to leave out and how cells become numbers."""

    members: str | None = None
    non_members: str | None = None
    synthetic: str | None = None
    reference: str | None = None
    drop: tuple[str, ...] = ()
    encoding: str = "standard"
    roles: dict[str, Any] | str = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReleaseJob(AttackSettings):
    """Everything that ``audit=release`` can set: the settings of the attacks, each under its name, and the rest."""

    audit: str
    release: ReleaseFiles = field(default_factory=ReleaseFiles)
    attacks: tuple[str, ...] = ("gen_lra", "dcr", "domias")
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    sensitivity: SensitivityConfig = field(default_factory=SensitivityConfig)
    seed: int = 0
    devices: int = 0
    cache: CacheConfig = field(default_factory=CacheConfig)

    @property
    def attack_settings(self) -> AttackSettings:
        """The settings of the attacks alone."""
        return AttackSettings(**{item.name: getattr(self, item.name) for item in fields(AttackSettings)})


@dataclass(frozen=True)
class OverfitJob:
    """Everything that ``audit=overfit`` can set: a generator that overfits by a known amount."""

    audit: str
    overfit: OverfitConfig = field(default_factory=OverfitConfig)
    seed: int = 0
    devices: int = 0
    cache: CacheConfig = field(default_factory=CacheConfig)


Job = GraphJob | PlanJob | ReleaseJob | OverfitJob
JOBS: dict[str, type[Job]] = {"graph": GraphJob, "plan": PlanJob, "release": ReleaseJob, "overfit": OverfitJob}
"""What ``audit=`` names."""


def _option(options: tuple[Any, ...], value: Any) -> Any:
    """The member of a union that a value is meant as: a list, text, or else the first."""
    for kind, given in ((tuple, list | tuple), (str, str)):
        fitting = [option for option in options if (typing.get_origin(option) or option) is kind]
        if fitting and isinstance(value, given):
            return fitting[0]
    plain = [option for option in options if option is not type(None) and typing.get_origin(option) is not tuple]
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return next((option for option in plain if numeric and option in (int, float)), plain[0])


def _convert(annotation: Any, value: Any, name: str) -> Any:
    """``value`` as the annotated type, or an ``InputError`` that names the key."""
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        options = typing.get_args(annotation)
        if value is None and type(None) in options:
            return None
        return _convert(_option(options, value), value, name)
    if is_dataclass(annotation):
        return build(typing.cast(type, annotation), value, name)
    if origin is tuple:
        require(isinstance(value, list | tuple), name, "be a list", value)
        return tuple(_convert(typing.get_args(annotation)[0], item, name) for item in value)
    if origin is dict:
        require(isinstance(value, Mapping), name, "be a group of settings", value)
        return dict(value)
    if annotation is float:
        require(isinstance(value, int | float) and not isinstance(value, bool), name, "be a number", value)
        return float(value)
    words = {int: "an integer", bool: "true or false", str: "a word or text"}
    if annotation is str and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # a file may be called 2024
    ok = isinstance(value, annotation) and not (annotation is int and isinstance(value, bool))
    require(ok, name, f"be {words[annotation]}", value)
    return value


def build(cls: type[Settings], node: Any, prefix: str = "") -> Settings:
    """Build the frozen dataclass ``cls`` from nested plain values.

    Args:
        cls: a dataclass whose fields are scalars, tuples, dicts or dataclasses.
        node: mapping with (some of) its fields.
        prefix: name of the node in messages, such as "train".

    Raises:
        InputError: for an unknown or missing key, or a value of the wrong type.

    Example:
        >>> build(CacheConfig, {"dir": "here"}, "cache")
        CacheConfig(dir='here')
    """
    require(isinstance(node, Mapping), prefix, "be a group of settings", node)
    hints = typing.get_type_hints(cls)
    known = {item.name: item for item in fields(typing.cast(Any, cls))}
    dotted = f"{prefix}." if prefix else ""
    values = {}
    for key, value in node.items():
        if key not in known:
            raise InputError(f"unknown option {dotted}{key}; known here: {', '.join(sorted(known))}")
        values[key] = _convert(hints[key], value, f"{dotted}{key}")
    for key, item in known.items():
        if key not in values and item.default is MISSING and item.default_factory is MISSING:
            raise InputError(f"{dotted}{key} must be given")
    return cls(**values)


def read_job(cfg: DictConfig) -> Job:
    """The settings of one run, from the configuration that Hydra composed.

    Raises:
        InputError: names the first key that breaks a rule.
    """
    try:
        missing = sorted(OmegaConf.missing_keys(cfg))
        require(not missing, missing[0] if missing else "", "be given", "nothing")
        plain = typing.cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True))
    except OmegaConfBaseException as error:
        raise InputError(str(error).splitlines()[0]) from None
    audit = check_choice("audit", plain.get("audit"), tuple(JOBS))
    job: Job = build(JOBS[audit], plain)
    require(0 <= job.seed < 2**32, "seed", "be an integer in [0, 4294967295]", job.seed)
    return job
