"""The ``jaxaudit`` command: a Hydra application with subcommands dispatched before it.

Exit status: 0 done, 3 done and a gate crossed, 2 bad input (one ``error:`` line on stderr), 130 interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from jaxaudit.runtime.checks import InputError, require

try:  # not public in Hydra 1.3; without it flags and overrides are handed on as they stand
    from hydra._internal.utils import get_args_parser
except ImportError:  # pragma: no cover
    get_args_parser = None

__all__ = ["SUBCOMMANDS", "RunFolders", "main"]

_QUOTING = "quote values with special characters for Hydra as well as for the shell, as in 'graph.path=\"a(1).npz\"'"


_OPEN = ("release.roles=", "release.roles.")
"""Options below which any key may stand."""


def _one_line(error: BaseException) -> str:
    """The message of an error as one line, without Hydra's search paths and links."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot use {error.filename}: {error.strerror}"
    text = str(error).split("Config search path:")[0]
    lines = [line.strip(" \t^") for line in text.splitlines()]
    lines = [
        line for line in lines if line and not line.startswith(("To append to", "See https", "full_key", "object_type"))
    ]
    message = " ".join(lines)
    if found := re.match(r"Could not override '([^']+)'", message):
        return f"unknown option {found[1]} for this audit and these choices; `jaxaudit --cfg job` lists them"
    if found := re.match(r"Error merging override \+*(.+)", message):
        return f"cannot use {found[1]}: the option takes another kind of value; `jaxaudit --cfg job` shows it"
    if type(error).__name__ == "OverrideParseException":
        message = f"cannot read an option: {message} ({_QUOTING})"
    return message


def _fail(message: str, status: int = 2) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(status)


class RunFolders(Callback):
    """Remembers which folders Hydra is about to make, so that a run that fails leaves none of them empty."""

    missing: ClassVar[list[Path]] = []
    since: ClassVar[float] = 0.0
    started: ClassVar[bool] = False
    """Whether a job has begun: what fails before is a matter of configuration."""
    crossed: ClassVar[bool] = False
    """Whether a run has crossed its gate: the exit status is then 3, after all jobs of a sweep."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Note the folders that a single run will make."""
        self._note(config.hydra.run.dir)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Note the folders that a sweep will make."""
        self._note(config.hydra.sweep.dir)

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Look for crossed gates in what the jobs wrote, since a launcher may have run them in other processes."""
        for path in Path(str(config.hydra.sweep.dir)).rglob("results.json"):
            if path.stat().st_mtime >= RunFolders.since:
                gate = json.loads(path.read_text(encoding="utf-8"))["summary"].get("gate", {})
                RunFolders.crossed |= bool(gate.get("crossed"))

    @staticmethod
    def _note(folder: Any) -> None:
        path, RunFolders.since = Path(str(folder)).absolute(), time.time()
        RunFolders.missing = [place for place in (path, *path.parents) if not place.exists()]

    @classmethod
    def clean(cls) -> None:
        """Remove what was made and is still empty but for the list of a sweep's options, innermost first."""
        if cls.missing and cls.missing[0].is_dir() and os.listdir(cls.missing[0]) == ["multirun.yaml"]:
            (cls.missing[0] / "multirun.yaml").unlink()
        for place in cls.missing:
            with contextlib.suppress(OSError):
                place.rmdir()


def _run(cfg: DictConfig, folder: Path) -> None:
    """One job: settings, devices, the audit or plan, files, closing lines."""
    from jaxaudit.config import GraphJob, OverfitJob, PlanJob, read_job
    from jaxaudit.runtime.devices import configure
    from jaxaudit.runtime.progress import Progress
    from jaxaudit.runtime.store import Store

    job = read_job(cfg)
    require(bool(HydraConfig.get().run.dir), "hydra.run.dir", "name a folder", "nothing")
    Store(job.cache.dir)  # a cache that cannot be is refused before any work
    cache = None if job.cache.dir is None else Path(job.cache.dir).expanduser()
    configure(job.devices, None if cache is None else cache / "compiled")
    progress = Progress(show=sys.stderr.isatty())
    if isinstance(job, PlanJob):
        _plan(job, progress, folder)
        return
    if isinstance(job, OverfitJob):
        _overfit(job, progress, folder)
        return
    result = _graph(job, progress) if isinstance(job, GraphJob) else _release(job, progress)

    from jaxaudit.report import headline_numbers, write_run

    config = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(config, dict)
    config["command"] = shlex.join(["jaxaudit", *HydraConfig.get().overrides.task])
    result = dataclasses.replace(result, config={str(key): value for key, value in config.items()})
    paths = write_run(result, folder)
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"report: {paths['report']}")
    for label, text in headline_numbers(result):
        print(f"{label}: {text}")
    RunFolders.crossed |= bool(result.summary.get("gate", {}).get("crossed"))


def _plan(job: Any, progress: Any, folder: Path) -> None:
    from jaxaudit.graph.data import load_graph
    from jaxaudit.graph.plan import format_plan, plan_audit, write_plan

    with progress.stage("load"):
        graph = load_graph(**job.graph)
    plan = plan_audit(
        graph, job.sampler, plan=job.plan, attack=job.attack, shadow=job.shadow, seed=job.seed,
        cache_dir=job.cache.dir, progress=progress,
    )  # fmt: skip
    paths = write_plan(plan, folder)
    for warning in plan.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(format_plan(plan))
    print(f"plan: {paths['plan']}")


def _overfit(job: Any, progress: Any, folder: Path) -> None:
    from jaxaudit.report.overfit_page import write_overfit
    from jaxaudit.tables.overfit import format_overfit, sweep_overfit

    result = sweep_overfit(job.overfit, seed=job.seed, progress=progress)
    command = shlex.join(["jaxaudit", *HydraConfig.get().overrides.task])
    paths = write_overfit(dataclasses.replace(result, config=result.config | {"command": command}), folder)
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(format_overfit(result))
    print(f"report: {paths['report']}")


def _graph(job: Any, progress: Any) -> Any:
    from jaxaudit.graph.audit import audit_graph
    from jaxaudit.graph.data import load_graph

    with progress.stage("load"):
        graph = load_graph(**job.graph)
    return audit_graph(
        graph, sampler=job.sampler, model=job.model, train=job.train, shadow=job.shadow, edges=job.edges,
        noise=job.noise, attack=job.attack, posterior=job.posterior, bmp=job.bmp, seed=job.seed,
        cache_dir=job.cache.dir, progress=progress,
    )  # fmt: skip


def _release(job: Any, progress: Any) -> Any:
    from jaxaudit.tables.audit import audit_example, audit_release

    files = job.release
    options = {
        "attacks": job.attacks, "encoding": files.encoding, "drop": files.drop, "settings": job.attack_settings,
        "evaluation": job.evaluation, "gate": job.gate, "report": job.report,
        "sensitivity": job.sensitivity, "seed": job.seed, "progress": progress,
    }  # fmt: skip
    named = {"members": files.members, "non_members": files.non_members, "synthetic": files.synthetic}
    if all(path is None for path in (*named.values(), files.reference)):
        return audit_example(**options)
    for name, path in named.items():
        if path is None:
            raise InputError(f"release.{name} must be given with the other tables, got nothing")
    return audit_release(**named, reference=files.reference, roles=files.roles, **options)


@hydra.main(version_base="1.3", config_path="pkg://jaxaudit.configs", config_name="config")
def _app(cfg: DictConfig) -> None:
    RunFolders.started = True
    runtime = HydraConfig.get()
    folder = Path(runtime.runtime.output_dir)
    try:
        _run(cfg, folder)
    except BaseException as error:
        if runtime.mode is RunMode.MULTIRUN:
            with contextlib.suppress(OSError):  # not empty, or gone
                folder.rmdir()
        elif isinstance(error, InputError):
            RunFolders.clean()
            _fail(str(error))
        raise  # of a sweep, Hydra finishes the other jobs and then raises the first failure


def _doctor(arguments: Sequence[str]) -> None:
    """Print versions, devices and the time of a first compiled product."""
    if arguments:
        _fail(f"doctor takes no arguments, got {arguments[0]}")
    from jaxaudit.runtime.devices import configure, describe

    configure()
    import jax
    import jax.numpy as jnp

    start = time.perf_counter()
    value = float(jax.jit(lambda x: (x @ x).sum())(jnp.eye(256)))
    for name, entry in describe().items():
        print(f"{name}: {', '.join(f'{k} {v}' for k, v in entry.items()) if isinstance(entry, dict) else entry}")
    print(f"compile and run: {'ok' if value == 256 else 'WRONG'} in {time.perf_counter() - start:.2f} s")


def _compare(arguments: Sequence[str]) -> None:
    from jaxaudit.report.compare import main_compare

    main_compare(arguments)


SUBCOMMANDS: dict[str, Callable[[Sequence[str]], None]] = {"compare": _compare, "doctor": _doctor}
"""Commands by name; each takes the remaining arguments. ``plan`` is a Hydra job like an audit, and not among them."""


def _hydra_arguments(given: Sequence[str]) -> list[str]:
    """Overrides first and flags behind them, since Hydra reads no overrides on both sides of a flag; ``plan`` as one.

    Bad flags end here in one line, where Hydra would print its usage. The names of columns, keys that no configuration
    knows, are added to it.
    """
    given = [f"++{word}" if word.startswith(_OPEN) else word for word in given]
    if get_args_parser is None:
        return [*given[1:], "audit=plan"] if given[:1] == ["plan"] else given
    parser = get_args_parser()
    parser.error = _fail
    overrides, flags = parser.parse_intermixed_args(given).overrides, list(given)
    for word in overrides:
        flags.remove(word)
    if overrides[:1] == ["plan"]:
        audits = [word for word in overrides if word.lstrip("+~").split("=")[0] == "audit"]
        if audits:
            _fail(f"plan takes no audit=..., got {audits[0]}")
        overrides = [*overrides[1:], "audit=plan"]
    return [*overrides, *flags]


def main() -> None:
    """Entry point of the ``jaxaudit`` command and of ``python -m jaxaudit``."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises instead of printing a traceback of its own
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    if first and first != "plan" and "=" not in first and not first.startswith(("-", "+", "~")):
        if first not in SUBCOMMANDS:
            known = ", ".join(sorted([*SUBCOMMANDS, "plan"]))
            _fail(f"unknown command {first}; known: {known}; options are written name=value")
        SUBCOMMANDS[first](sys.argv[2:])
        return
    sys.argv[1:] = _hydra_arguments(sys.argv[1:])
    RunFolders.started, RunFolders.crossed, RunFolders.missing = False, False, []
    try:
        _app()
    except BrokenPipeError:  # whoever read the output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except KeyboardInterrupt:
        RunFolders.clean()
        _fail("interrupted; what is stored in cache.dir is kept (of a graph audit, the models trained so far)", 130)
    except Exception as error:
        RunFolders.clean()
        if RunFolders.started and not isinstance(error, InputError | OSError):
            raise
        _fail(_one_line(error))
    if RunFolders.crossed:
        raise SystemExit(3)
