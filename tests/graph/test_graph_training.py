"""Dropout, early stopping, clipped and noised gradients against loops written out in float64 NumPy."""

from functools import lru_cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxaudit.graph.attacks import node_statistic
from jaxaudit.graph.auc import attack_auc
from jaxaudit.graph.data import csbm, graph_from_arrays
from jaxaudit.graph.models import MODELS, Model, ModelConfig, build_model, drop, entry_mask, graph_arrays
from jaxaudit.graph.sampling import SamplerConfig, draw_samples
from jaxaudit.graph.shadow import train_and_query
from jaxaudit.graph.training import TrainConfig, hold_out, make_fit, step_key
from jaxaudit.runtime.checks import InputError

N, F, H, C = 40, 5, 6, 3
GRAPH = csbm(nodes=N, classes=C, features=F, mean_degree=4, signal=0.7, seed=2)
FEATURES, STRUCTURE = graph_arrays(GRAPH)
EDGES = np.random.default_rng(0).random(GRAPH.num_edges) < 0.7
USE = np.random.default_rng(1).random(N) < 0.6
LABELS = jnp.asarray(GRAPH.labels)
DATA = (FEATURES, STRUCTURE, entry_mask(STRUCTURE, jnp.asarray(EDGES)), LABELS, jnp.asarray(USE))
KEY = jax.random.key(7)
EVERYTHING = {"dropout": 0.5, "patience": 4, "validation": 0.3, "clip": 0.05, "gradient_noise": 0.02}
ENOUGH = 120  # epochs, of which early stopping leaves a part


def config(epochs=6, learning_rate=0.05, weight_decay=0.01, **options):
    return TrainConfig(epochs, H, learning_rate, weight_decay, **options)


@lru_cache  # compilation is what these tests cost
def compiled(train, name="gcn"):
    return jax.jit(make_fit(build_model(name, F, H, C), train, report_epochs=True))


def trained(train, name="gcn"):
    """Parameters, loss and epochs of one model."""
    return jax.device_get(compiled(train, name)(KEY, *DATA))


def close(ours, theirs, tolerance=2e-4):
    for a, b in zip(jax.tree.leaves(ours), theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


class Reference:
    """A two-layer graph convolutional network in float64: dense Â, gradients by hand."""

    def __init__(self):
        seen = np.eye(N)
        u, v = GRAPH.edges[:, EDGES]
        seen[u, v] = seen[v, u] = 1
        scale = 1 / np.sqrt(seen.sum(1))
        self.A, self.X = scale[:, None] * seen * scale, GRAPH.features.astype(np.float64)
        self.Y = np.eye(C)[GRAPH.labels]

    def hidden(self, params, factor):
        b1, W1, b2, W2 = params
        before = self.A @ self.X @ W1 + b1
        hidden = np.maximum(before, 0) * factor
        return before, hidden, self.A @ hidden @ W2 + b2

    def loss(self, params, nodes, factor=1.0):
        z = self.hidden(params, factor)[2]
        return -(self.Y * (z - np.log(np.exp(z).sum(1, keepdims=True)))).sum(1)[nodes].mean()

    def gradient(self, params, nodes, factor=1.0):
        before, hidden, z = self.hidden(params, factor)
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        to_z = (p - self.Y) * nodes[:, None] / nodes.sum()
        to_before = (self.A @ to_z @ params[3].T) * factor * (before > 0)
        return [to_before.sum(0), (self.A @ self.X).T @ to_before, to_z.sum(0), (self.A @ hidden).T @ to_z]

    def train(self, train, nodes, held=None):
        """Parameters, loss and epochs; the random numbers are those of the model's key."""
        params = [np.asarray(p, np.float64) for p in jax.tree.leaves(build_model("gcn", F, H, C).init(KEY))]
        m, v = [0 * p for p in params], [0 * p for p in params]
        best, waited, self.norms = (np.inf, np.nan, params), 0, []
        for t in range(train.epochs):
            if train.patience and waited == train.patience:
                return best[2], best[1], t
            kept = np.asarray(jax.random.bernoulli(step_key(KEY, "dropout", t), 1 - train.dropout, (N, H)))
            factor = kept / (1 - train.dropout) if train.dropout else 1.0
            loss, g = self.loss(params, nodes, factor), self.gradient(params, nodes, factor)
            norm = np.sqrt(sum((part**2).sum() for part in g))
            self.norms.append(norm)
            if train.clip and norm > train.clip:
                g = [part * train.clip / norm for part in g]
            for j, part in enumerate(g):
                key = jax.random.fold_in(step_key(KEY, "gradient-noise", t), j)
                g[j] = part + train.gradient_noise * train.clip * np.asarray(jax.random.normal(key, part.shape))
            g = [part + train.weight_decay * p for part, p in zip(g, params, strict=True)]
            m = [0.9 * a + 0.1 * part for a, part in zip(m, g, strict=True)]
            v = [0.999 * a + 0.001 * part**2 for a, part in zip(v, g, strict=True)]
            params = [
                p - train.learning_rate * a / (1 - 0.9 ** (t + 1)) / (np.sqrt(b / (1 - 0.999 ** (t + 1))) + 1e-8)
                for p, a, b in zip(params, m, v, strict=True)
            ]
            if train.patience:
                now, waited = self.loss(params, held), waited + 1
                if now < best[0]:
                    best, waited = (now, loss, params), 0
        return (best[2], best[1], train.epochs) if train.patience else (params, loss, train.epochs)


REFERENCE, CLIP = Reference(), 0.4


@pytest.mark.parametrize(
    "options",
    [{}, {"dropout": 0.4}, {"clip": CLIP}, {"clip": 0.05, "gradient_noise": 0.3}],
    ids=["plain", "dropout", "clip", "noise"],
)
def test_training_equals_the_loop_in_float64(options):
    train = config(**options)
    params, loss, epochs = trained(train)
    expected, last, _ = REFERENCE.train(train, USE)
    close(params, expected)
    np.testing.assert_allclose(loss, last, rtol=1e-4)
    assert epochs == 6
    if options.get("clip") == CLIP:
        assert min(REFERENCE.norms) < CLIP < max(REFERENCE.norms)  # some steps are clipped, some are not


def test_the_reference_gradient_is_one():
    params = [np.asarray(p, np.float64) + 0.1 for p in jax.tree.leaves(build_model("gcn", F, H, C).init(KEY))]
    for j, part in enumerate(REFERENCE.gradient(params, USE)):
        step = np.zeros_like(part)
        step.flat[-1] = 1e-6
        up, down = (REFERENCE.loss([p + a * step if i == j else p for i, p in enumerate(params)], USE) for a in (1, -1))
        np.testing.assert_allclose(part.flat[-1], (up - down) / 2e-6, rtol=1e-5, atol=1e-9)


def test_early_stopping_with_everything_else_equals_a_naive_loop():
    train = config(ENOUGH, **EVERYTHING)
    params, loss, epochs = trained(train)
    held = np.asarray(hold_out(step_key(KEY, "validation"), DATA[-1], 0.3))
    expected, kept_loss, ran = REFERENCE.train(train, USE & ~held, held)
    assert train.patience < epochs == ran < ENOUGH  # it stopped, and later than at once
    close(params, expected, 1e-3)
    np.testing.assert_allclose(loss, kept_loss, rtol=1e-3)


def test_patience_that_outlasts_the_epochs_keeps_the_best_of_all():
    train = config(epochs=60, patience=60, validation=0.3)
    params, _, epochs = trained(train)
    held = np.asarray(hold_out(step_key(KEY, "validation"), DATA[-1], 0.3))
    close(params, REFERENCE.train(train, USE & ~held, held)[0], 1e-3)
    assert epochs == 60
    last = REFERENCE.train(config(epochs=60), USE & ~held)[0]
    assert REFERENCE.loss(jax.tree.leaves(params), held) < REFERENCE.loss(last, held) - 1e-3


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_with_all_options_off_the_program_is_the_plain_one(name):
    """The same intermediate code, operation by operation, as training without any of them."""
    train, model = config(validation=0.5), build_model(name, F, H, C)
    optimiser = optax.chain(optax.add_decayed_weights(train.weight_decay), optax.adam(train.learning_rate))

    def fit(key, features, structure, mask, labels, use):
        weights = model.prepare(structure, mask)
        share = use.astype(jnp.float32) / jnp.maximum(use.sum(), 1)

        def loss(params):
            logits = model.apply(params, features, structure, weights)
            return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(logits, labels) * share)

        def step(carry, _):
            params, state = carry
            value, gradient = jax.value_and_grad(loss)(params)
            updates, state = optimiser.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), value

        params = model.init(key)
        (params, _), values = jax.lax.scan(step, (params, optimiser.init(params)), None, length=train.epochs)
        return params, values[-1]

    ours = jax.jit(make_fit(model, train)).lower(KEY, *DATA).as_text()
    assert ours == jax.jit(fit).lower(KEY, *DATA).as_text()
    assert ours != jax.jit(make_fit(model, config(clip=1.0))).lower(KEY, *DATA).as_text()


@pytest.mark.devices
@pytest.mark.parametrize("name", ["mlp", pytest.param("gcn", marks=pytest.mark.slow)])
def test_models_trained_side_by_side_are_the_ones_trained_alone(name):
    """Each stops at its own epoch."""
    train = config(ENOUGH, **EVERYTHING)
    fit = make_fit(build_model(name, F, H, C), train, report_epochs=True)
    keys = jax.random.split(KEY, 3)
    masks = jnp.stack([entry_mask(STRUCTURE, jnp.asarray(EDGES ^ flip)) for flip in (False, True, False)])
    uses = jnp.asarray(np.stack([USE, ~USE, ~USE]))
    together = jax.jit(jax.vmap(fit, in_axes=(0, None, None, 0, None, 0)))
    params, losses, epochs = together(keys, FEATURES, STRUCTURE, masks, LABELS, uses)
    assert len(set(np.asarray(epochs).tolist())) > 1
    alone = compiled(train, name)
    for k in range(3):
        own, loss, ran = alone(keys[k], FEATURES, STRUCTURE, masks[k], LABELS, uses[k])
        assert ran == epochs[k]
        np.testing.assert_allclose(losses[k], loss, rtol=1e-4)
        close(jax.tree.map(lambda p, k=k: p[k], params), jax.tree.leaves(own))


@pytest.mark.slow
def test_a_model_does_not_depend_on_how_many_there_are():
    sampler = SamplerConfig("uniform", 0.5)
    few, many = (draw_samples(GRAPH, sampler, 0, count) for count in (4, 6))
    settings = {"sampler": sampler, "train": config(**EVERYTHING), "model": ModelConfig("mlp")}
    first = train_and_query(GRAPH, few, **settings)
    assert first.finite.all()
    np.testing.assert_array_equal(train_and_query(GRAPH, many, **settings).logits[:4], first.logits)


def test_padding_changes_nothing():
    """Nodes appended outside the sample, with masked edges to it, draw no random number of anybody."""
    more = 9
    features = np.concatenate([GRAPH.features, np.full((more, F), 50.0, np.float32)])
    extra = np.stack([np.arange(more), N + np.arange(more)])
    edges = np.concatenate([GRAPH.edges, extra], axis=1)
    order = np.lexsort((edges[1], edges[0]))
    padded = graph_from_arrays(features, np.append(GRAPH.labels, np.zeros(more, int)), edges[:, order])
    x, structure = graph_arrays(padded)
    mask = entry_mask(structure, jnp.asarray(np.append(EDGES, np.zeros(more, bool))[order]))
    use = jnp.asarray(np.append(USE, np.zeros(more, bool)))
    train = config(ENOUGH, **EVERYTHING)
    params, loss, epochs = compiled(train)(KEY, x, structure, mask, jnp.asarray(padded.labels), use)
    own, own_loss, own_epochs = trained(train)
    assert epochs == own_epochs
    close(params, jax.tree.leaves(own))
    np.testing.assert_allclose(loss, own_loss, rtol=1e-4)


def test_hold_out_is_a_fair_choice_among_the_used():
    for share, count in ((0.1, 3), (0.3, 8), (0.99, 25), (0.001, 1)):
        held = np.asarray(hold_out(KEY, jnp.asarray(USE), share))
        assert held.sum() == count, (share, USE.sum())
        assert not held[~USE].any()
    for used in (0, 1):
        assert not hold_out(KEY, jnp.arange(N) < used, 0.5).any()
    draws = np.asarray(jax.vmap(lambda k: hold_out(k, jnp.asarray(USE), 0.3))(jax.random.split(KEY, 2000)))
    p = 8 / USE.sum()
    assert np.abs(draws[:, USE].mean(0) - p).max() < 4.5 * np.sqrt(p * (1 - p) / 2000)
    longer = hold_out(KEY, jnp.append(jnp.asarray(USE), jnp.zeros(5, bool)), 0.3)
    np.testing.assert_array_equal(longer[:N], hold_out(KEY, jnp.asarray(USE), 0.3))


def test_dropout_keeps_the_mean_and_its_rows():
    ones = drop(jnp.ones((400, 50)), (KEY, 0.3))
    zero = np.asarray(ones) == 0
    assert abs(zero.mean() - 0.3) < 4.5 * np.sqrt(0.21 / 20_000)
    np.testing.assert_allclose(np.asarray(ones)[~zero], 1 / 0.7, rtol=1e-6)
    np.testing.assert_array_equal(drop(jnp.ones((410, 50)), (KEY, 0.3))[:400], ones)


def test_every_epoch_has_its_own_dropout_and_noise():
    keys = [step_key(KEY, stream, epoch) for stream in ("dropout", "gradient-noise") for epoch in range(3)]
    bits = {tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}
    assert len(bits) == 6


def test_divergence_is_a_value():
    patient = compiled(config(epochs=20, patience=5), "mlp")
    _, loss, epochs = patient(KEY, FEATURES * jnp.inf, *DATA[1:])
    assert np.isnan(loss)  # no epoch had a validation loss
    assert epochs == 5


def test_samples_too_small_to_hold_anything_out_still_train():
    for used in (0, 1):
        params, loss, _ = compiled(config(epochs=20, patience=5), "mlp")(KEY, *DATA[:4], jnp.arange(N) < used)
        assert np.isfinite(loss)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


def test_no_epochs_give_the_initial_model():
    params, loss, epochs = trained(config(epochs=0, **EVERYTHING), "mlp")
    close(params, jax.tree.leaves(build_model("mlp", F, H, C).init(KEY)), 1e-6)
    assert np.isfinite(loss)
    assert epochs == 0


def test_settings():
    published = TrainConfig(learning_rate=1e-3, weight_decay=1e-5, epochs=200, dropout=0.5)
    assert hash(published) != hash(TrainConfig())
    for options, words in (
        ({"dropout": 1.0}, r"train\.dropout must be in \[0, 1\), got 1"),
        ({"dropout": -0.1}, r"train\.dropout must"),
        ({"patience": -1}, r"train\.patience must be 0 or more"),
        ({"patience": 1.5}, r"train\.patience must be an integer"),
        ({"validation": 0.0}, r"train\.validation must be in \(0, 1\)"),
        ({"validation": 1}, r"train\.validation must"),
        ({"clip": -1.0}, r"train\.clip must"),
        ({"clip": float("nan")}, r"train\.clip must be a finite number"),
        ({"clip": 1.0, "gradient_noise": -1.0}, r"train\.gradient_noise must"),
        ({"gradient_noise": 0.5}, r"train\.gradient_noise must be 0 where train\.clip is 0, got 0\.5"),
    ):
        with pytest.raises(InputError, match=words):
            TrainConfig(**options)


def test_a_model_without_dropout_refuses_it_before_tracing():
    def apply(params, features, structure, weights):
        raise AssertionError("traced")

    with pytest.raises(InputError, match=r"train\.dropout must be 0 for a model whose apply has no parameter"):
        make_fit(Model(dict, apply), config(dropout=0.5))
    make_fit(Model(dict, apply), config())
    for name in MODELS:
        make_fit(build_model(name, F, H, C), config(dropout=0.5))


@pytest.mark.slow
def test_noised_gradients_leak_less():
    """The within-node AUC falls, step by step, from clearly above .5 to .5 as the noise grows."""
    graph = csbm(nodes=300, classes=3, features=40, mean_degree=3, signal=0.8, seed=1)
    sampler = SamplerConfig("uniform", 0.5)
    samples = draw_samples(graph, sampler, 0, 32)
    member = np.ascontiguousarray(samples.nodes.T)
    means = []
    for sigma in (0.0, 0.1, 1.0, 10.0):
        train = TrainConfig(epochs=100, hidden=16, clip=0.05, gradient_noise=sigma)
        ensemble = train_and_query(graph, samples, sampler=sampler, model=ModelConfig("gcn"), train=train)
        statistic = node_statistic(ensemble.logits, graph.labels, "logit")
        auc = attack_auc(statistic, member, np.full(300, 0.5), 0)
        means.append(float(np.nanmean(auc.node_standardised)))
    assert means[0] > 0.65
    assert all(earlier > later for earlier, later in pairwise(means)), means
    assert abs(means[-1] - 0.5) < 0.03
