"""How one model is trained: a pure function of its key, its graph and its training nodes.

Everything random hangs on the model's own key and on the epoch, never on the ensemble. Nodes appended as padding
(out of ``use``, behind masked entries) change nothing: random numbers per node are drawn row by row.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxaudit.graph.models import Features, Model, Structure
from jaxaudit.graph.noise import noisy_params
from jaxaudit.runtime.checks import check_int, check_real, require

__all__ = ["TrainConfig", "hold_out", "make_fit", "step_key"]

_Step = Callable[[Any, Any, Any], tuple[Any, Any, jax.Array]]


@dataclass(frozen=True)
class TrainConfig:
    """Full-batch training with Adam; weight decay is added to the gradient, as in PyTorch's Adam.

    The published protocols, by their numbers: arXiv:2601.17130 is the default; arXiv:2505.24089 (MIA-audit-GNN) is
    ``TrainConfig(learning_rate=1e-3, weight_decay=1e-5, dropout=0.5)``.

    Attributes:
        epochs: >= 0.
        hidden: width of the hidden layer, >= 1.
        learning_rate: > 0.
        weight_decay: >= 0.
        dropout: share of hidden activations zeroed in each epoch, in [0, 1); see ``models.drop``.
        patience: training stops when the validation loss has not improved for so many epochs, and the parameters of
            its best epoch are kept; 0: all epochs are run. A model whose validation loss never was a number below
            infinity has the loss NaN.
        validation: with ``patience``, share of the sampled nodes held out from the loss, in (0, 1): rounded, but at
            least one node and not all. They keep their edges, and they stay *members*: membership is being sampled,
            and a held-out node still shapes the model, through the epoch that it picks.
        clip: largest l2 norm of the gradient of the mean loss, all parameters together, >= 0; 0 is off. Adam divides
            a constant scale out again, so clipping alone changes little; it gives the noise its unit.
        gradient_noise: standard deviation, in multiples of ``clip``, of the Gaussian noise added to each entry of
            each step's clipped gradient, >= 0. The recipe is that of DP-SGD (arXiv:1607.00133) except that the mean
            gradient is clipped, not each example's: through edges a node enters many examples' gradients. So it is
            a control that should leak less, and *no* differential privacy is claimed.

    Raises:
        InputError: a value out of its range; noise without a clip.
    """

    epochs: int = 200
    hidden: int = 64
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    dropout: float = 0.0
    patience: int = 0
    validation: float = 0.1
    clip: float = 0.0
    gradient_noise: float = 0.0

    def __post_init__(self) -> None:
        check_int("train.epochs", self.epochs, 0)
        check_int("train.hidden", self.hidden, 1)
        check_real("train.learning_rate", self.learning_rate, 0, open_low=True)
        check_real("train.weight_decay", self.weight_decay, 0)
        check_real("train.dropout", self.dropout, 0, 1, open_high=True)
        check_int("train.patience", self.patience, 0)
        check_real("train.validation", self.validation, 0, 1, open_low=True, open_high=True)
        check_real("train.clip", self.clip, 0)
        check_real("train.gradient_noise", self.gradient_noise, 0)
        alone = self.gradient_noise > 0 and self.clip == 0
        require(not alone, "train.gradient_noise", "be 0 where train.clip is 0", self.gradient_noise)


def step_key(key: jax.Array, stream: str, epoch: int | jax.Array = 0) -> jax.Array:
    """The key of one epoch in a model's stream: ``fold_in(fold_in(key, crc32(stream)), epoch)``.

    Args:
        key: of the model.
        stream: ``dropout``, ``gradient-noise`` or ``validation``.
        epoch: from 0.

    Example:
        >>> key = jax.random.key(0)
        >>> bool(step_key(key, "dropout", 0) == step_key(key, "dropout", 1))
        False
    """
    return jax.random.fold_in(jax.random.fold_in(key, np.uint32(zlib.crc32(stream.encode()))), epoch)


def hold_out(key: jax.Array, use: jax.Array, share: float) -> jax.Array:
    """Choose the validation nodes among the used ones, each set of their size equally likely.

    Args:
        key: of the choice.
        use: (n,) bool.
        share: in (0, 1).

    Returns:
        (n,) bool within ``use``; round(share · used) nodes, at least one and not all; none where fewer than two are
        used.

    Example:
        >>> held = hold_out(jax.random.key(0), jnp.arange(8) < 6, 0.3)
        >>> int(held.sum()), bool(held[6:].any())
        (2, False)
    """
    used = use.sum()
    count = jnp.minimum(jnp.maximum(jnp.round(share * used), 1), used - 1)
    order = jnp.argsort(jnp.where(use, jax.random.uniform(key, use.shape), jnp.inf))
    place = jnp.argsort(order)
    return use & (place < count)


def make_fit(model: Model, train: TrainConfig, *, report_epochs: bool = False) -> Callable[..., Any]:
    """The training of one model, to be mapped over an ensemble.

    Args:
        model: architecture.
        train: optimisation, closed over.
        report_epochs: whether ``fit`` also returns the number of epochs it ran, () int32.

    Returns:
        ``fit(key, features, structure, mask, labels, use) -> (params, loss)``, or ``(params, loss, epochs)``:
        ``mask`` is (m,) float32, the visible entries of ``structure``; ``labels`` (n,) int; ``use`` (n,) bool, the
        sampled nodes. The loss is the training loss (under dropout, if any) before the last update that is kept.

    Raises:
        InputError: ``train.dropout`` with a model whose ``apply`` does not name a parameter ``dropout``.
    """
    takes_dropout = "dropout" in inspect.signature(model.apply).parameters
    rule = "be 0 for a model whose apply has no parameter named dropout"
    require(takes_dropout or not train.dropout, "train.dropout", rule, train.dropout)
    optimiser = optax.chain(optax.add_decayed_weights(train.weight_decay), optax.adam(train.learning_rate))

    def fit(
        key: jax.Array, features: Features, structure: Structure, mask: jax.Array, labels: jax.Array, use: jax.Array
    ) -> tuple[Any, ...]:
        weights = model.prepare(structure, mask)
        held = hold_out(step_key(key, "validation"), use, train.validation) if train.patience else None
        taught = _shares(use if held is None else use & ~held)

        def loss(params: Any, shares: jax.Array, **options: Any) -> jax.Array:
            logits = model.apply(params, features, structure, weights, **options)
            return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(logits, labels) * shares)

        def step(params: Any, state: Any, epoch: Any) -> tuple[Any, Any, jax.Array]:
            options = {"dropout": (step_key(key, "dropout", epoch), train.dropout)} if train.dropout else {}
            value, gradient = jax.value_and_grad(loss)(params, taught, **options)
            if train.clip:
                gradient = _clipped(gradient, train.clip)
            if train.gradient_noise:
                noise_key = step_key(key, "gradient-noise", epoch)
                gradient = noisy_params(noise_key, gradient, train.gradient_noise * train.clip)
            updates, state = optimiser.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, value

        params = model.init(key)
        state = optimiser.init(params)
        if not train.epochs:
            result = params, loss(params, taught), jnp.int32(0)
        elif held is None:
            result = _run(step, params, state, train)
        else:
            unseen = _shares(held)
            result = _run_patiently(step, lambda params: loss(params, unseen), params, state, train)
        return result if report_epochs else result[:2]

    return fit


def _shares(nodes: jax.Array) -> jax.Array:
    """Weights of a mean over some nodes; all 0 where there are none: an empty Bernoulli draw teaches nothing."""
    return nodes.astype(jnp.float32) / jnp.maximum(nodes.sum(), 1)


def _clipped(gradient: Any, clip: float) -> Any:
    """The gradient, scaled down to the l2 norm ``clip`` where it is longer."""
    norm = jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(gradient)))
    return jax.tree.map(lambda leaf: leaf * (clip / jnp.maximum(norm, clip)), gradient)


def _run(step: _Step, params: Any, state: Any, train: TrainConfig) -> tuple[Any, jax.Array, jax.Array]:
    """All epochs; their numbers vanish from the program where no random stream needs them."""

    def body(carry: tuple[Any, Any], epoch: Any) -> tuple[Any, jax.Array]:
        params, state, value = step(*carry, epoch)
        return (params, state), value

    (params, _), values = jax.lax.scan(body, (params, state), jnp.arange(train.epochs))
    return params, values[-1], jnp.int32(train.epochs)


def _run_patiently(
    step: _Step, validate: Callable[[Any], jax.Array], params: Any, state: Any, train: TrainConfig
) -> tuple[Any, jax.Array, jax.Array]:
    """Epochs until the validation loss has stood still for ``patience`` of them; the best epoch's parameters."""

    def going(carry: Any) -> jax.Array:
        epoch, waited, *_ = carry
        return (epoch < train.epochs) & (waited < train.patience)

    def body(carry: Any) -> Any:
        epoch, waited, params, state, best = carry
        params, state, value = step(params, state, epoch)
        now = validate(params)
        better = now < best[0]  # never true of a NaN
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), (now, value, params), best)
        return epoch + 1, jnp.where(better, 0, waited + 1), params, state, best

    nothing = (jnp.float32(jnp.inf), jnp.float32(jnp.nan), params)
    start = (jnp.int32(0), jnp.int32(0), params, state, nothing)
    epochs, _, _, _, (_, value, params) = jax.lax.while_loop(going, body, start)
    return params, value, epochs
