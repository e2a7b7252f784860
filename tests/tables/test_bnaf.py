"""Block neural autoregressive flows: exact densities, what they learn, and the attacks that use them."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm, spearmanr

from jaxaudit.evaluate.roc import auc
from jaxaudit.runtime.checks import InputError
from jaxaudit.tables import bnaf as flows
from jaxaudit.tables import bnaf_network as network
from jaxaudit.tables import bnaf_training as training
from jaxaudit.tables.attacks import bnaf_attacks as attacks
from jaxaudit.tables.attacks.bnaf_attacks import density_bnaf, domias_bnaf, gen_lra_bnaf
from jaxaudit.tables.attacks.neighbours import nearest_pairs, tie_weights
from jaxaudit.tables.basis import fit_basis
from jaxaudit.tables.bnaf import BNAF, BNAFConfig, Learner, Shape, bnaf_log_density, fit_bnaf
from jaxaudit.tables.density import distinct_rows

ATTACKS = {"density": density_bnaf, "domias": domias_bnaf, "gen_lra": gen_lra_bnaf}
QUICK = BNAFConfig(hidden=4, steps=150, batch=32, ensemble=2, finetune_steps=5, k=3)
learn = jax.jit(flows.learn, static_argnames="shape")


def parameters(config: BNAFConfig, columns: int = 8, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    """(ensemble, p) float64: as training starts, and away from there by ``scale``."""
    start = flows.start(jax.random.key(seed), columns, config, np.float64).parameters
    return start + scale * np.random.default_rng(seed).normal(size=start.shape)


def named(vector: np.ndarray, shape: Shape, columns: int) -> dict[str, np.ndarray]:
    found, used = {}, 0
    for name, size in network.template(columns, shape).items():
        found[name] = vector[used : used + np.prod(size)].reshape(size)
        used += np.prod(size)
    assert used == len(vector)
    return found


def by_hand(vector: np.ndarray, row: np.ndarray, shape: Shape, columns: int) -> np.ndarray:
    """The map of one row with explicit weight matrices (paper, eqs. 6 to 8); z alone."""
    parts, z = named(vector, shape, columns), np.pad(row, (0, columns - len(row)))
    for f in range(shape.flows):
        h = z
        for layer in range(shape.layers + 1):
            own, other, size, shift = (parts[f"{name}{layer}"][f] for name in ("own", "other", "size", "shift"))
            _, outside, inside = own.shape
            w = np.zeros((columns * outside, columns * inside))
            for i in range(columns):
                for j in range(i + 1):
                    block = np.exp(own[i]) if i == j else other[i, :, j]
                    w[i * outside : (i + 1) * outside, j * inside : (j + 1) * inside] = block
            w = np.exp(size).reshape(-1, 1) * w / np.linalg.norm(w, axis=1, keepdims=True)
            h = w @ (np.tanh(h) if layer else h) + shift.ravel()
        gate = 1 / (1 + np.exp(-parts["gate"][f]))
        z = gate * h + (1 - gate) * z
        z = np.concatenate([z[: len(row)][::-1], z[len(row) :]])
    return z[: len(row)]


# ---------------------------------------------------------------- the map


def test_transform_matches_weight_matrices_and_its_jacobian() -> None:
    config = BNAFConfig(layers=2, hidden=3, flows=2, ensemble=1)
    rows = np.random.default_rng(1).normal(size=(4, 3))
    with jax.enable_x64(True):
        (vector,) = parameters(config, columns=5, scale=0.5)

        @jax.jit
        @jax.vmap
        def everything(row):  # padded to five columns, three of which count
            def z_of(row):
                z, slopes = flows.transform(vector, jax.numpy.pad(row, (0, 2))[None], np.int32(3), config.shape)
                return z[0, :3], (z[0, :3], slopes[0, :3])

            density = flows.log_p(vector, jax.numpy.pad(row, (0, 2))[None], np.int32(3), config.shape)[0]
            jacobian, values = jax.jacfwd(z_of, has_aux=True)(row)
            return *values, jacobian, density

        z, slopes, jacobian, density = map(np.asarray, everything(rows))
    expected = np.array([by_hand(vector, row, config.shape, 5) for row in rows])
    assert np.allclose(z, expected, rtol=1e-12, atol=1e-12)
    sign, log_determinant = np.linalg.slogdet(jacobian)
    assert (sign > 0).all()  # two reversals of three coordinates
    assert np.allclose(np.sum(slopes, axis=1), log_determinant, rtol=1e-10)
    assert np.allclose(density, norm.logpdf(expected).sum(axis=1) + log_determinant, rtol=1e-10)


def test_one_flow_is_triangular_and_increasing() -> None:
    config = BNAFConfig(layers=2, hidden=3, flows=1, ensemble=1)
    with jax.enable_x64(True):
        (vector,) = parameters(config, columns=4, scale=0.5, seed=1)
        row = np.random.default_rng(2).normal(size=4)
        whole = jax.jit(jax.jacfwd(lambda x: flows.transform(vector, x[None], np.int32(4), config.shape)[0][0]))(row)
    jacobian = np.asarray(whole)[::-1]  # the order is reversed after the flow
    assert np.array_equal(np.triu(jacobian, 1), np.zeros((4, 4)))
    assert (np.diag(jacobian) > 0).all()
    assert (np.abs(jacobian[np.tril_indices(4, -1)]) > 1e-4).all()


def raw_flow(dimension: int, log_volume: float = 0.0, members: int = 3) -> BNAF:
    vectors = parameters(replace(QUICK, ensemble=members), scale=0.7, seed=3)
    return BNAF(Learner(vectors, None), dimension, log_volume, np.zeros(members), np.zeros(members), QUICK.shape)


def test_densities_integrate_to_one() -> None:
    """Far from a normal one, with padding, as a mean over three members; the volume divides it."""
    line = np.linspace(-60, 60, 12_001)
    one = np.exp(bnaf_log_density(raw_flow(1), line[:, None]))
    assert np.isclose(np.trapezoid(one, line), 1.0, atol=1e-6)
    halved = np.exp(bnaf_log_density(raw_flow(1, np.log(2.0)), line[:, None]))
    assert np.allclose(2 * halved, one)
    side = np.linspace(-20, 20, 401)
    grid = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    parts = np.array_split(grid, 14)  # each of the size of the line above: one program
    plane = np.exp(np.concatenate([bnaf_log_density(raw_flow(2), part) for part in parts])).reshape(401, 401)
    assert np.isclose(np.trapezoid(np.trapezoid(plane, side), side), 1.0, atol=1e-5)


def test_far_points_have_finite_log_densities() -> None:
    far = bnaf_log_density(raw_flow(2, members=2), np.array([[1e8, -1e8], [30.0, 0.0]]))
    assert np.isfinite(far).all()


# ---------------------------------------------------------------- training


def test_steps_match_adam_by_hand() -> None:
    """A record of weight w joins a batch; without weight it changes nothing at all."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        rows, extra, key = rng.normal(size=(32, 8)), rng.normal(size=8), jax.random.key(5)
        first = parameters(QUICK, scale=0.0)[0]
        memory = flows.optax.ScaleByAdamState(np.int32(0), 0 * first, 0 * first)
        got, without, other = (
            learn(
                Learner(first, memory), (np.int32(0), np.int32(3)), key, rows, (np.int32(2), np.int32(7)), record,
                np.float64(weight), np.int32(2), np.float64(0.1), np.float64(0.01), shape=QUICK.shape,
            ).parameters
            for record, weight in ((extra, 0.2), (extra, 0.0), (-extra, 0.0))
        )  # fmt: skip
        slope = jax.jit(jax.grad(lambda p, b, w: -w @ flows.log_p(p, b, np.int32(2), QUICK.shape)))
        vector, m, v = first, 0 * first, 0 * first
        for t in range(3):
            drawn = jax.random.fold_in(key, t)
            places = 2 + np.floor(5 * np.asarray(jax.random.uniform(drawn, (32,), np.float64))).astype(int)
            batch = np.concatenate([rows[places], extra[None]])
            batch = batch + 0.1 * np.asarray(jax.random.normal(jax.random.fold_in(drawn, 1), (33, 8), np.float64))
            weights = np.array([0.8 / 32] * 32 + [0.2])
            g = np.asarray(slope(vector, batch, weights))
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            vector = vector - 0.01 * (m / (1 - 0.9 ** (t + 1))) / (np.sqrt(v / (1 - 0.999 ** (t + 1))) + 1e-8)
    assert np.allclose(got, vector, rtol=1e-9, atol=1e-12)
    assert np.array_equal(without, other)
    assert np.abs(got - without).max() > 1e-3


@pytest.fixture(scope="module")
def tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """12 targets, the first half copied five times with little noise; all tables fit one bucket."""
    rng = np.random.default_rng(0)
    x, r = rng.normal(size=(12, 2)), rng.normal(size=(30, 2))
    return x, np.repeat(x[:6], 5, axis=0) + 0.05 * rng.normal(size=(30, 2)), r


@pytest.fixture(scope="module")
def scores(tables) -> dict[str, np.ndarray]:
    return {name: attack(*tables, QUICK, key=jax.random.key(1)) for name, attack in ATTACKS.items()}


def test_same_key_same_flow_in_any_order(tables) -> None:
    rows = tables[2]
    first, again, other = (
        fit_bnaf(table, jax.random.key(seed), QUICK) for table, seed in ((rows, 0), (rows[::-1], 0), (rows, 1))
    )
    assert np.array_equal(first.learner.parameters, again.learner.parameters)
    assert np.array_equal(first.loss, again.loss)
    assert not np.array_equal(first.learner.parameters, other.learner.parameters)
    assert (first.best_step > 0).all()
    assert (first.best_step <= 150).all()
    points = tables[0]
    assert np.array_equal(bnaf_log_density(first, points), bnaf_log_density(again, points))


def test_the_best_step_is_chosen_on_held_out_rows(tables) -> None:
    """One step too many is not taken back: as many steps as the best alone give the same parameters."""
    flow = fit_bnaf(tables[2], jax.random.key(0), replace(QUICK, steps=400, patience=100))
    short = fit_bnaf(tables[2], jax.random.key(0), replace(QUICK, steps=int(flow.best_step.max())))
    assert (flow.best_step < 400).any()
    assert np.allclose(short.learner.parameters, flow.learner.parameters)
    assert np.array_equal(short.learner.memory.count, flow.best_step)


def test_a_second_table_compiles_nothing(scores) -> None:
    kernels = training.train_members, network.log_mean, attacks._changes
    before = [kernel._cache_size() for kernel in kernels]
    rng = np.random.default_rng(9)
    for attack in ATTACKS.values():
        attack(*(rng.normal(size=(n, 3)) for n in (9, 31, 29)), replace(QUICK, learning_rate=0.01, noise=0.2))
    assert [kernel._cache_size() for kernel in kernels] == before


# ---------------------------------------------------------------- attacks


@pytest.mark.parametrize("name", ATTACKS)
def test_row_order_and_other_targets_do_not_matter(name: str, tables, scores) -> None:
    x, s, r = tables
    rng = np.random.default_rng(3)
    moved = ATTACKS[name](x, rng.permutation(s), rng.permutation(r), QUICK, key=jax.random.key(1))
    assert np.array_equal(moved, scores[name])
    some = ATTACKS[name](x[[7, 2, 9]], s, r, QUICK, key=jax.random.key(1))
    assert np.allclose(some, scores[name][[7, 2, 9]], rtol=1e-9, atol=1e-12)
    assert np.ptp(scores[name]) > 0


@pytest.mark.parametrize("name", ATTACKS)
def test_copied_records_score_higher(name: str, tables, scores) -> None:
    assert auc(scores[name], np.arange(12) < 6) > 0.6


def test_densities_are_in_the_units_of_the_table(tables, scores) -> None:
    x, s, r = tables
    wide = density_bnaf(4 * x + 8, 4 * s + 8, r, QUICK, key=jax.random.key(1))
    assert np.allclose(wide, scores["density"] - 2 * np.log(4.0), atol=1e-3)  # trained in float32
    assert np.allclose(
        domias_bnaf(*(4 * t + 8 for t in tables), QUICK, key=jax.random.key(1)), scores["domias"], atol=1e-3
    )
    # one density: minus the other way round
    back = domias_bnaf(x, s, s, QUICK, key=jax.random.key(1))
    assert abs(np.mean(back)) < 0.7


def influence_loop(x, s, r, config: BNAFConfig, key: jax.Array) -> np.ndarray:
    """One target at a time: train with it, train without it, add up log mean densities of its neighbours."""
    rows, counts = distinct_rows(r)
    basis = fit_basis(rows, counts)
    table = np.repeat(*distinct_rows(np.repeat(basis.whiten(rows), counts, axis=0)), axis=0)
    flow = fit_bnaf(table, jax.random.fold_in(key, 0), config)
    keys = jax.random.split(jax.random.fold_in(key, 1), config.ensemble)
    released, s_counts = distinct_rows(s)
    pairs = nearest_pairs(x, released, s_counts, config.k)
    weights = tie_weights(pairs, s_counts, config.k)
    shape = config.shape._replace(batch=config.finetune_batch)
    pad = ((0, 32 - len(table)), (0, 8 - table.shape[1]))
    padded, extras, points = np.pad(table, pad), np.pad(basis.whiten(x), ((0, 0), pad[1])), basis.whiten(released)
    sizes = (np.int32(0), np.int32(len(table))), np.int32(table.shape[1])

    def log_density(extra: np.ndarray, weight: float) -> np.ndarray:
        """At the released rows, (p,), after more steps of every member."""
        members = []
        for e in range(config.ensemble):
            learner = jax.tree.map(lambda leaf, e=e: attacks._double(leaf)[e], flow.learner)
            with jax.enable_x64(True):
                after = learn(
                    learner, (np.int32(0), np.int32(config.finetune_steps)), keys[e], padded, sizes[0], extra,
                    np.float64(weight), sizes[1], np.float64(config.noise), np.float64(config.finetune_rate),
                    shape=shape,
                )  # fmt: skip
            members.append(np.asarray(after.parameters))
        return bnaf_log_density(replace(flow, learner=Learner(np.stack(members), None)), points)

    found = np.zeros(len(x))
    for i in range(len(x)):
        mine = pairs.target == i
        change = log_density(extras[i], 1 / (len(table) + 1)) - log_density(extras[i], 0.0)
        found[i] = weights[mine] @ change[pairs.row[mine]]
    return found


def test_gen_lra_matches_a_loop(tables, scores) -> None:
    x, s, r = tables
    assert np.allclose(scores["gen_lra"], influence_loop(x, s, r, QUICK, jax.random.key(1)), rtol=1e-7, atol=1e-10)
    # categories: more neighbours than k for every target, other widths for other targets
    rng = np.random.default_rng(4)
    x, s, r = (np.eye(3)[rng.integers(3, size=n)][:, :2] for n in (5, 30, 30))
    s = np.concatenate([s[:-8], rng.normal(size=(8, 2))])
    expected = influence_loop(x, s, r, QUICK, jax.random.key(1))
    assert np.allclose(gen_lra_bnaf(x, s, r, QUICK, key=jax.random.key(1)), expected, rtol=1e-7, atol=1e-10)


def test_a_record_raises_the_density_around_itself(tables) -> None:
    x, _, r = tables
    near = gen_lra_bnaf(x, x, r, replace(QUICK, k=1))
    assert (near > 0).mean() > 0.8


def test_awkward_tables(tables) -> None:
    x, s, r = tables
    for odd in (
        [np.column_stack([t, np.full(len(t), 7.0), t[:, 0] - t[:, 1]]) for t in tables],
        [np.round(t) for t in tables],  # few distinct rows, ties
        [np.concatenate([x, [[1e6, 0.0]]]), s, r],
        [x, s[:3], r[:2]],
    ):
        for attack in ATTACKS.values():
            assert np.isfinite(attack(*odd, QUICK)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 0}, r"bnaf.hidden must be in \[1, 4096\], got 0"),
        ({"finetune_batch": 0}, r"bnaf.finetune_batch must be in \[1, 65536\], got 0"),
        ({"learning_rate": 0.0}, "bnaf.learning_rate must be in"),
        ({"validation": 1.0}, "bnaf.validation must be in"),
        ({"noise": -1.0}, "bnaf.noise must be in"),
        ({"precision": "float16"}, "bnaf.precision must be one of"),
        ({"influence": "none"}, "bnaf.influence must be one of finetune, refit"),
        ({"neighbours": "near"}, "bnaf.neighbours must be one of"),
    ],
)
def test_bad_settings(settings, message: str) -> None:
    with pytest.raises(InputError, match=message):
        BNAFConfig(**settings)


def test_bad_tables(tables) -> None:
    x, s, r = tables
    with pytest.raises(InputError, match=r"bnaf.k must be in \[1, 30\], got 31"):
        gen_lra_bnaf(x, s, r, replace(QUICK, k=31))
    for attack in ATTACKS.values():
        with pytest.raises(InputError, match="synthetic must have 2 columns"):
            attack(x, s[:, :1], r, QUICK)
    with pytest.raises(InputError, match="rows must have at least 2 rows"):
        fit_bnaf(np.ones((1, 2)), jax.random.key(0))


def test_kernels_lower_for_accelerators(tables, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def lowering(name, function):
        def call(*args, **kwargs):
            if name not in seen:
                trace = function.trace(*args, **kwargs)
                texts = [trace.lower(lowering_platforms=(platform,)).as_text() for platform in ("cuda", "tpu")]
                assert all("func.func public @main" in text for text in texts)
                seen[name] = texts[0]
            return function(*args, **kwargs)

        return call

    for module, name in ((flows, "train_members"), (flows, "log_mean"), (attacks, "_changes")):
        monkeypatch.setattr(module, name, lowering(name, getattr(module, name)))
    domias_bnaf(*tables, QUICK)
    gen_lra_bnaf(*tables, QUICK)
    assert set(seen) == {"train_members", "log_mean", "_changes"}
    assert "xf64>" not in seen["train_members"]  # trained in float32
    assert "xf64>" in seen["_changes"]  # a small difference


# ---------------------------------------------------------------- what is learned


@pytest.mark.slow
def test_known_densities_are_recovered() -> None:
    """Kullback-Leibler divergence from the truth, by quadrature or 20,000 draws: 1,000 rows leave less than .05."""
    rng = np.random.default_rng(0)
    line = np.linspace(-9, 9, 4001)
    means = np.array([-1.5, 1.5])
    bimodal = rng.choice(means, 1000) + 0.5 * rng.normal(size=1000)
    flow = fit_bnaf(bimodal[:, None], jax.random.key(0))
    truth = np.mean([norm.pdf(line, m, 0.5) for m in means], axis=0)
    got = bnaf_log_density(flow, line[:, None])
    gap = np.trapezoid(truth * (np.log(truth + 1e-300) - got), line)
    assert 0 <= gap < 0.05
    entropy = -np.trapezoid(truth * np.log(truth + 1e-300), line)
    assert abs(-np.trapezoid(np.exp(got) * got, line) - entropy) < 0.1
    covariance = np.array([[1.0, 0.6], [0.6, 1.0]])
    rows, fresh = (rng.multivariate_normal([0, 0], covariance, n) for n in (1000, 20_000))
    flow = fit_bnaf(rows, jax.random.key(0))
    normal = multivariate_normal([0, 0], covariance)
    assert -0.01 < np.mean(normal.logpdf(fresh) - bnaf_log_density(flow, fresh)) < 0.05
    assert abs(-np.mean(bnaf_log_density(flow, fresh)) - normal.entropy()) < 0.06


@pytest.mark.slow
def test_a_banana_is_no_gaussian() -> None:
    rng = np.random.default_rng(1)
    first = rng.normal(size=6000)
    table = np.column_stack([first, first**2 + 0.3 * rng.normal(size=6000)])
    rows, fresh = table[:1000], table[1000:]
    basis = fit_basis(rows)
    flow = fit_bnaf(basis.whiten(rows), jax.random.key(0), log_volume=basis.log_volume)
    gaussian = multivariate_normal(rows.mean(axis=0), np.cov(rows.T)).logpdf(fresh)
    truth = norm.logpdf(fresh[:, 0]) + norm.logpdf(fresh[:, 1], fresh[:, 0] ** 2, 0.3)
    ours = bnaf_log_density(flow, basis.whiten(fresh)).mean()
    assert ours > gaussian.mean() + 0.8
    assert ours > truth.mean() - 0.2


@pytest.mark.slow
def test_refit_and_finetune_agree() -> None:
    """A record near the release gains, one away from it loses, however it enters the reference."""
    rng = np.random.default_rng(2)
    x, s, r = np.linspace(-2.5, 2.5, 9)[:, None], 1.0 + 0.2 * rng.normal(size=(30, 1)), rng.normal(size=(30, 1))
    config = replace(QUICK, ensemble=4, k=30)
    tuned, refitted = (
        gen_lra_bnaf(x, s, r, replace(config, influence=how), key=jax.random.key(0)) for how in ("finetune", "refit")
    )
    assert spearmanr(tuned, refitted).statistic > 0.7
    best, worst = np.argmin(np.abs(x[:, 0] - 1.0)), 0
    for score in (tuned, refitted):
        assert score[best] > 0 > score[worst]
