"""A sweep of the local-overfitting model: what theory says of the score gap beside what attacks find, cell by cell.

Ward, Wang & Cheng (arXiv:2508.21146) explain Gen-LRA by a generator that releases ``(1 - eps) P + eps N(x_train,
rho^2 I)``. Here everything is known, so that the shipped attacks can be held against the formulas
(``overfit_theory``), and one sees which attack wins where. Each replication draws its own training rows, release,
reference and non-members; the members that are scored are training rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import jax
import numpy as np
import pandas as pd

from jaxaudit.evaluate.canonical import merge_rounding
from jaxaudit.evaluate.roc import auc
from jaxaudit.runtime.checks import check_choice, check_int, check_real, require
from jaxaudit.runtime.keys import host_rng, stream_key
from jaxaudit.runtime.progress import Progress
from jaxaudit.tables.attacks import ATTACKS, AttackSettings, GenLRAConfig, gen_lra_scores, score_attacks
from jaxaudit.tables.density import bandwidth_factor
from jaxaudit.tables.overfit_model import POPULATIONS, overfit_tables
from jaxaudit.tables.overfit_summary import (
    Cell,
    Label,
    expectations,
    linearity_sentence,
    standard_error,
    summarise,
)
from jaxaudit.tables.overfit_theory import Terms, expected_terms, limit_ratio, plug_in_terms
from jaxaudit.tables.settings import as_list

__all__ = ["OverfitConfig", "OverfitResult", "format_overfit", "limit_errors", "sweep_overfit"]

LIMIT = {"d": 2, "bandwidth": 1.0, "eps": 0.5, "rho": 0.2, "train": 20, "records": 40, "draws": 8}
"""The case in which the limit theorem is shown: n = m grows, everything else stays."""

_ROWS = 100_000
"""Most rows of a simulated table."""

_PAIRS = 100_000_000
"""Most pairs of a scored record and a released row: at k = m Gen-LRA has a term for each."""


@dataclass(frozen=True)
class OverfitConfig:
    """The grid and how much is simulated. All lengths are in standard deviations of P.

    Attributes:
        eps: shares of near copies among the released rows, each in [0, 1].
        rho: standard deviations of a near copy around its training row, each in [0, 1e6].
        d: numbers of columns, each in [1, 1000].
        n: rows of the reference, each in [d + 2, 100_000].
        train: training rows N, in [2, 100_000].
        release: released rows m, in [2, 100_000].
        scored: members that are scored, and as many non-members, in [2, N]; scored * m at most 1e8.
        k: neighbours of Gen-LRA, each in [1, m]; m itself, for which the theory holds, is always added.
        multiplier: bandwidths of Gen-LRA, as multiples of what the rule says.
        rule: "silverman", "scott" or the bandwidth itself.
        population: P, "normal" or "mixture" (see ``overfit_model.draw_population``).
        attacks: names from ``jaxaudit.tables.attacks.ATTACKS``, "gen_lra" among them and "ensemble" not. Not among
            the defaults are those that are trained, since a forest takes ten times as long as all others together.
        replications: independent data sets of every cell, in [4, 100_000].
        draws: references over which the prediction is averaged, in [2, 1e6].
        limit: sizes n = m at which the limit theorem is shown, ascending; none: leave it out.
        level: confidence level of every interval, in (0, 1).
    """

    eps: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8)
    rho: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
    d: tuple[int, ...] = (5,)
    n: tuple[int, ...] = (500,)
    train: int = 500
    release: int = 500
    scored: int = 250
    k: tuple[int, ...] = (1, 10, 100)
    multiplier: tuple[float, ...] = (0.5, 1.0, 2.0)
    rule: str | float = "silverman"
    population: str = "normal"
    attacks: tuple[str, ...] = (
        "gen_lra", "dcr", "domias", "dcr_diff", "dpi", "density", "mc", "local_neighbourhood",
    )  # fmt: skip
    replications: int = 20
    draws: int = 200
    limit: tuple[int, ...] = (250, 1000, 4000)
    level: float = 0.95

    def __post_init__(self) -> None:
        for name in ("eps", "rho", "d", "n", "k", "multiplier", "attacks", "limit"):
            object.__setattr__(self, name, as_list(f"overfit.{name}", getattr(self, name), empty=name == "limit"))
        for name, low, high in (
            ("train", 2, _ROWS), ("release", 2, _ROWS), ("replications", 4, 100_000), ("draws", 2, 1_000_000),
        ):  # fmt: skip
            check_int(f"overfit.{name}", getattr(self, name), low, high)
        check_int("overfit.scored", self.scored, 2, self.train)
        most = _PAIRS // self.release
        require(self.scored <= most, "overfit.scored", f"be at most {most} with release={self.release}", self.scored)
        for values, name, check in (
            (self.eps, "eps", partial(check_real, low=0, high=1)),
            (self.rho, "rho", partial(check_real, low=0, high=1e6)),
            (self.d, "d", partial(check_int, low=1, high=1000)),
            (self.n, "n", partial(check_int, low=3, high=_ROWS)),
            (self.k, "k", partial(check_int, low=1, high=self.release)),
            (self.multiplier, "multiplier", partial(check_real, low=1e-3, high=1e3)),
            (self.limit, "limit", partial(check_int, low=10, high=100_000)),
        ):
            for value in values:
                check(f"overfit.{name}", value)
        check_int("overfit.n", min(self.n), max(self.d) + 2)
        if isinstance(self.rule, str):
            check_choice("overfit.rule", self.rule, ("silverman", "scott"))
        else:
            check_real("overfit.rule", self.rule, 1e-6, 1e6)
        check_choice("overfit.population", self.population, POPULATIONS)
        for attack in self.attacks:
            check_choice("overfit.attacks", attack, tuple(ATTACKS))
        require("gen_lra" in self.attacks, "overfit.attacks", "name gen_lra", ", ".join(self.attacks))
        # it combines single scores, and Gen-LRA has one per k and multiplier here
        require("ensemble" not in self.attacks, "overfit.attacks", "be other attacks than ensemble", "ensemble")
        check_real("overfit.level", self.level, 0, 1, open_low=True, open_high=True)

    @property
    def ks(self) -> tuple[int, ...]:
        """Every k that is scored, ascending; m is the last."""
        return tuple(sorted({*self.k, self.release}))


@dataclass(frozen=True)
class OverfitResult:
    """The outcome of a sweep.

    Attributes:
        config: every setting that was used, as plain nested values.
        summary: "agreement", "linearity", "map", "claims", "limit": see ``overfit_summary.summarise``.
        warnings: one sentence each.
        timings: stage name -> {"compile_s", "run_s", "items"}, in seconds.
        table: one row per cell (d, n, rho, eps) and attack, Gen-LRA with a row per k and multiplier: ``auc`` and
            ``gap`` (mean score of members minus that of non-members) with their standard errors over the replications;
            for Gen-LRA ``bandwidth``, and at k = m ``predicted`` with its standard error, and ``plug_in`` (NaN for
            another P than the normal).
    """

    config: dict[str, Any]
    summary: dict[str, Any]
    warnings: tuple[str, ...]
    timings: dict[str, dict[str, float]]
    table: pd.DataFrame

    audit = "overfit"


def sweep_overfit(
    config: OverfitConfig | None = None, *, seed: int = 0, progress: Progress | None = None
) -> OverfitResult:
    """Simulate every cell (d, n, rho, eps), run the attacks, and hold the score gaps against the theory.

    A cell's numbers depend on the seed and its own settings, not on which other cells, k or attacks are in the sweep.

    Args:
        config: the grid; None for the defaults.
        seed: of every random choice, >= 0.
        progress: shows and times the stages.

    Raises:
        InputError: a setting outside its range, before anything is drawn.

    Example:
        >>> small = OverfitConfig(eps=(0.5,), rho=(0.1,), d=(2,), n=(60,), train=60, release=60, scored=60, k=(1,),
        ...     multiplier=(1.0,), attacks=("gen_lra", "dcr"), replications=4, draws=20, limit=())
        >>> result = sweep_overfit(small)
        >>> result.table.attack.tolist(), result.table.k.dropna().tolist()
        (['gen_lra', 'gen_lra', 'dcr'], [1, 60])
    """
    config = OverfitConfig() if config is None else config
    require(isinstance(config, OverfitConfig), "overfit", "be an OverfitConfig", type(config).__name__)
    check_int("seed", seed, 0, 2**32 - 1)
    progress = progress or Progress()
    lines = list(product(config.d, config.n, config.rho))
    with progress.stage("predict", len(lines)) as stage:
        terms = {}
        for line in lines:
            terms[line] = _predict(config, seed, *line)
            stage.advance()
    cells = []
    with progress.stage("simulate", len(lines) * len(config.eps) * config.replications) as stage:
        for (d, n, rho), eps in product(lines, config.eps):
            name = _stream(config, d, n, rho) + f"/eps={eps!r}"
            gaps, areas = [], []
            for replication in range(config.replications):
                gap, area = _replicate(config, seed, name, replication, d, n, rho, eps)
                gaps.append(gap)
                areas.append(area)
                stage.advance()
            # contiguous rows: a mean then does not depend on how many attacks there are
            auc_rows, gap_rows = (np.ascontiguousarray(np.transpose(found)) for found in (areas, gaps))
            cells.append(Cell(d, n, rho, eps, auc_rows, gap_rows, *terms[d, n, rho]))
    with progress.stage("limit", len(config.limit)):
        limit = limit_errors(config.limit, seed) if config.limit else []
    labels = _labels(config)
    summary = summarise(cells, labels, ks=config.ks, multipliers=config.multiplier, level=config.level)
    return OverfitResult(
        config={"audit": "overfit", "overfit": asdict(config), "seed": seed},
        summary=summary | {"limit": {"case": LIMIT, "sizes": limit}},
        warnings=_warnings(config),
        timings=progress.timings,
        table=_table(config, cells, labels),
    )


def _stream(config: OverfitConfig, d: int, n: int, rho: float) -> str:
    """Name of the random stream of a line of cells: everything that its distribution depends on."""
    return f"overfit/{config.population}/N={config.train}/m={config.release}/d={d}/n={n}/rho={float(rho)!r}"


def _bandwidths(config: OverfitConfig, d: int, n: int) -> np.ndarray:
    return np.array([bandwidth_factor(n, d, config.rule, multiplier) for multiplier in config.multiplier])


def _predict(config: OverfitConfig, seed: int, d: int, n: int, rho: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predicted gap per eps at k = m, its standard error and its plug-in value, (H,) each."""
    h, share = _bandwidths(config, d, n), config.release / config.train
    key = stream_key(seed, _stream(config, d, n, rho) + "/terms")
    terms = expected_terms(key, rho, h, d=d, n=n, draws=config.draws, population=config.population)
    normal = config.population == "normal"
    plug_in = plug_in_terms(rho, h, d=d, n=n) if normal else Terms(*[np.full(len(h), np.nan)] * 4)
    return share * terms.gap, share * terms.gap_se, share * plug_in.gap


def _replicate(
    config: OverfitConfig, seed: int, name: str, replication: int, d: int, n: int, rho: float, eps: float
) -> tuple[list[float], list[float]]:
    """Score gap and AUC of every attack on one data set."""
    key = jax.random.fold_in(stream_key(seed, name), replication)
    members, others, synthetic, reference = overfit_tables(
        key, eps, rho, d=d, n=n, train=config.train, release=config.release, scored=config.scored,
        population=config.population,
    )  # fmt: skip
    grid = GenLRAConfig(k=config.ks, multiplier=config.multiplier, rule=config.rule)
    attack_seed = int(host_rng(seed, name + "/attacks", replication).integers(2**32))
    targets = np.concatenate([members, others])
    settings = AttackSettings(gen_lra=grid)
    scores = score_attacks(config.attacks, targets, synthetic, reference, settings=settings, seed=attack_seed)
    member = np.arange(len(targets)) < len(members)
    gaps = [float(row[member].mean() - row[~member].mean()) for row in scores.values()]
    return gaps, [auc(merge_rounding(row), member) for row in scores.values()]


def _labels(config: OverfitConfig) -> list[Label]:
    """Attack, k and multiplier of every score, in the order of ``score_attacks``."""
    grid = [Label("gen_lra", k, float(h)) for k, h in product(config.ks, config.multiplier)]
    return [label for name in config.attacks for label in (grid if name == "gen_lra" else [Label(name)])]


def _table(config: OverfitConfig, cells: list[Cell], labels: list[Label]) -> pd.DataFrame:
    """One row per cell and score; see ``OverfitResult``."""
    rows = []
    for cell in cells:
        h = _bandwidths(config, cell.d, cell.n)
        for index, label in enumerate(labels):
            row = {
                "d": cell.d, "n": cell.n, "rho": float(cell.rho), "eps": float(cell.eps), "attack": label.attack,
                "k": label.k, "multiplier": label.multiplier, "bandwidth": np.nan, "replications": config.replications,
                "auc": cell.auc[index].mean(), "auc_se": float(standard_error(cell.auc[index])),
                "gap": cell.gap[index].mean(), "gap_se": float(standard_error(cell.gap[index])),
                "predicted": np.nan, "predicted_se": np.nan, "plug_in": np.nan,
            }  # fmt: skip
            if label.multiplier is not None:
                at = config.multiplier.index(label.multiplier)
                row["bandwidth"] = h[at]
                if label.k == config.release:
                    row["predicted"], row["predicted_se"] = cell.eps * cell.slope[at], cell.eps * cell.slope_se[at]
                    row["plug_in"] = cell.eps * cell.plug_in[at]
            rows.append(row)
    return pd.DataFrame(rows).astype({"k": "Int64", "multiplier": float})


def limit_errors(sizes: tuple[int, ...], seed: int = 0) -> list[dict[str, float]]:
    """How far ``1 + (n / m) score(x)`` at k = m is from ``limit_ratio(x)``, for ``LIMIT`` at n = m = each size.

    Args:
        sizes: n = m, each >= 4.
        seed: of the draws.

    Returns:
        Per size: "size"; "error", the root mean square of the differences over records and draws, divided by that of
        the limits; "error_se", its standard error over the draws.

    Example:
        >>> [(row["size"], row["error"] < 0.5) for row in limit_errors((60,))]
        [(60, True)]
    """
    d, eps, rho, bandwidth = int(LIMIT["d"]), LIMIT["eps"], LIMIT["rho"], LIMIT["bandwidth"]
    train, half = int(LIMIT["train"]), int(LIMIT["records"]) // 2
    found = []
    for size in sizes:
        relative = []
        for draw in range(int(LIMIT["draws"])):
            key = jax.random.fold_in(stream_key(seed, f"overfit/limit/{size}"), draw)
            tables = overfit_tables(key, eps, rho, d=d, n=size, train=train, release=size, scored=half)
            x = np.concatenate([tables.members, tables.non_members])
            settings = GenLRAConfig(k=size, rule=bandwidth)
            score = gen_lra_scores(x, tables.synthetic, tables.reference, settings).scores
            limit = limit_ratio(x, tables.members, eps=eps, rho=rho, bandwidth=bandwidth)
            relative.append(np.mean((1 + score - limit) ** 2) / np.mean(limit**2))
        error = float(np.sqrt(np.mean(relative)))
        found.append({"size": size, "error": error, "error_se": float(standard_error(relative)) / (2 * error)})
    return found


def _warnings(config: OverfitConfig) -> tuple[str, ...]:
    found = [
        (config.population != "normal",
         "the plug-in value and the limit have closed forms for the normal population only: the plug-in is left out, "
         "and the limit is shown for the normal one"),
        (config.replications < 8,
         f"intervals rest on {config.replications} replications per cell: few attacks can be told apart"),
    ]  # fmt: skip
    return tuple(text for condition, text in found if condition)


def format_overfit(result: OverfitResult) -> str:
    """The sweep as a few lines of text."""
    summary, used = result.summary, result.config["overfit"]
    agreement, claims = summary["agreement"], summary["claims"]
    lines = [
        f"overfit: {len(summary['map'])} cells of {used['replications']} data sets; {used['release']} rows released "
        f"after {used['train']} training rows, population {used['population']}",
        f"score gap at k = m: simulated and predicted agree in {agreement['within']} of {agreement['cells']} cases at "
        f"level {used['level']:g} (largest difference {agreement['largest_z']:.1f} standard errors, adjusted p "
        f"{agreement['p_adjusted']:.2g})",
    ]
    lines += [linearity_sentence(summary["linearity"], used["release"])]
    if summary["limit"]["sizes"]:
        errors = ", ".join(f"{row['error']:.3f} at {row['size']}" for row in summary["limit"]["sizes"])
        lines.append(f"limit theorem: relative error {errors} rows")
    lines += [*expectations(claims), *_claim_lines(claims), *_map_lines(summary["map"])]
    return "\n".join(lines)


def _claim_lines(claims: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Differences of AUC by rho, a line per pair of attacks."""
    lines: list[str] = []
    for name, rows in claims.items():
        heads = [f"rho {row['rho']:g}" for row in rows]
        texts = [f"{row['difference']:+.3f} ± {row['difference_se']:.3f}" for row in rows]
        if not lines:
            lines.append(f"{'AUC, mean over eps':<20}" + "".join(f"{head:>16}" for head in heads))
        lines.append(f"{name:<20}" + "".join(f"{text:>16}" for text in texts))
    return lines


def _map_lines(cells: list[dict[str, Any]]) -> list[str]:
    """The map as text: winner and its AUC, "~" where others are within error."""
    words = {(cell["d"], cell["n"], cell["rho"], cell["eps"]): _winner_words(cell) for cell in cells}
    width = max(map(len, words.values())) + 2
    lines = []
    for d, n in dict.fromkeys(place[:2] for place in words):
        rhos, shares = (list(dict.fromkeys(place[axis] for place in words)) for axis in (2, 3))
        lines.append(f"best attack, AUC (d = {d}, n = {n}; ~: others within error)")
        lines.append(f"{'':<10}" + "".join(f"{f'eps {eps:g}':>{width}}" for eps in shares))
        for rho in rhos:
            lines.append(f"{f'rho {rho:g}':<10}" + "".join(f"{words[d, n, rho, eps]:>{width}}" for eps in shares))
    return lines


def _winner_words(cell: dict[str, Any]) -> str:
    return "none" if cell["winner"] is None else f"{'~' * bool(cell['tied'])}{cell['winner']} {cell['auc']:.3f}"
