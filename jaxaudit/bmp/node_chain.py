"""One node's NUTS chain: the error rates are sampled, (l, r) are drawn given them.

Given (alpha, beta), the model of ``jaxaudit.bmp.posterior`` leaves for (l, r) the prior over the area on l >= l*,
r >= r*, the smallest parameters that admit the rates. With 1 / area = 1 + 1/(e^l - 1) + 1/(e^r - 1) this is a mixture
of three products of one-dimensional densities, prior or prior / (e^x - 1), with tail masses P and Q; so (derived)
    p(alpha, beta | counts) ~ Beta(fp+1, n_out-fp+1) Beta(fn+1, n_in-fn+1) [P(r*) P(l*) + P(r*) Q(l*) + Q(r*) P(l*)]
is all that is left to sample, and l and r follow by inverting P or Q. Two dimensions instead of four, almost Gaussian
in the logits divided by their Laplace scales: trajectories of three steps, draws that hardly correlate.

Slope. The density has a logarithmic cusp on alpha + beta = 1, where r* = l* = 0, and a step that lands near it would be
thrown far away. Leapfrog steps are reversible and keep volume under any force, so the force is softened there and the
density, which decides on acceptance, is not.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_ndtr

from jaxaudit.bmp.pairs import beta_points, beta_proposal, log_excess, split_position

__all__ = ["PriorTables", "node_chain", "parameters_given_rates", "prior_tables", "rate_target"]

_GRID, _BOTTOM, _REFINE = 4096, -14.0, 8
_SOFT = 0.3
"""Width of the softened force, in standard deviations of alpha + beta."""


class PriorTables(NamedTuple):
    """Logs of P and Q, (grid, 2) float32, on a grid of s = log(e^x - 1) from ``start`` in steps of ``spacing``."""

    values: Any
    start: Any
    spacing: Any


def prior_tables(prior_scale2: float) -> PriorTables:
    """Logs of P(x) = int_x^inf prior and Q(x) = int_x^inf prior / (e^y - 1) dy, finite however far out.

    Example:
        >>> tables = prior_tables(10.0)
        >>> tables.values.shape, round(float(tables.values[0, 0]), 3)
        ((4096, 2), -0.693)
    """
    sd = np.sqrt(prior_scale2)
    fine = np.linspace(_BOTTOM, max(8 * sd, 25.0), (_GRID - 1) * _REFINE + 1)
    x = np.logaddexp(0, fine)
    slope = -(x**2) / (2 * prior_scale2) - np.log(2 * np.pi * prior_scale2) / 2 - x  # dx/ds / (e^x - 1) = e^-x
    panels = np.logaddexp(slope[1:], slope[:-1]) + np.log((fine[1] - fine[0]) / 2)
    beyond = slope[-1] - np.log(1 + x[-1] / prior_scale2)  # the rest decays at the rate 1 + x / scale2 at least
    odds = np.append(np.logaddexp.accumulate(np.append(beyond, panels[::-1]))[:0:-1], beyond)
    values = np.stack([log_ndtr(-x / sd), odds], axis=1)[::_REFINE]
    spacing = (fine[1] - fine[0]) * _REFINE
    return PriorTables(values.astype(np.float32), np.float32(_BOTTOM), np.float32(spacing))


@jax.custom_jvp
def _soft_log_abs(gap: jax.Array, width: jax.Array) -> jax.Array:
    """log|gap|, with the derivative gap / (gap^2 + width^2)."""
    return jnp.log(jnp.abs(gap) + 1e-30)


@_soft_log_abs.defjvp
def _(primals: Any, tangents: Any) -> Any:
    gap, width = primals
    return _soft_log_abs(gap, width), gap / (gap**2 + width**2) * tangents[0]


def _look_up(tables: PriorTables, s: jax.Array) -> jax.Array:
    low, share = split_position((s - tables.start) / tables.spacing, tables.values.shape[0])
    return tables.values[low] * (1 - share) + tables.values[low + 1] * share


def rate_target(z: jax.Array, counts: jax.Array, tables: PriorTables) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Log density of the standardised logits z (2,), and what the rates leave for l and r.

    Args:
        z: logits of alpha and beta, from their Beta's mode in units of its Laplace scale.
        counts: (4,) float32: fp, n_out, fn, n_in.
        tables: of the prior.

    Returns:
        (log density, (s (2,): log(e^x - 1) of x = r*, l*; logs of the three mixture weights (3,))).
    """
    fp, n_out, fn, n_in = counts + 1
    shapes_a, shapes_b = (fp, n_out - fp + 1), (fn, n_in - fn + 1)
    *a, density_a = beta_points(z[0], *shapes_a, beta_proposal(*shapes_a))
    *b, density_b = beta_points(z[1], *shapes_b, beta_proposal(*shapes_b))
    variance = sum(up * down / (up + down) ** 3 for up, down in (shapes_a, shapes_b))
    s = jnp.stack(log_excess(a, b, partial(_soft_log_abs, width=_SOFT * jnp.sqrt(variance))))
    (p_r, q_r), (p_l, q_l) = _look_up(tables, s[0]), _look_up(tables, s[1])
    weights = jnp.stack([p_r + p_l, p_r + q_l, q_r + p_l])
    return density_a + density_b + jax.nn.logsumexp(weights), (s, weights)


def parameters_given_rates(
    key: jax.Array, s: jax.Array, weights: jax.Array, tables: PriorTables
) -> dict[str, jax.Array]:
    """One exact draw of r and l for the rates behind ``s`` (2,) and ``weights`` (3,) of ``rate_target``."""
    which_key, tail_key = jax.random.split(key)
    which = jax.random.categorical(which_key, weights)
    log_tail = jnp.log(jax.random.uniform(tail_key, (2,), minval=jnp.finfo(jnp.float32).tiny))

    def beyond(s: jax.Array, odds: jax.Array, log_tail: jax.Array) -> jax.Array:
        """Where the tail mass is exp(log_tail) times that at s, under the prior or under prior / (e^x - 1)."""
        column = odds.astype(jnp.int32)
        target = _look_up(tables, s)[column] + log_tail
        # Both columns are searched: a table chosen per draw would be copied per draw.
        right = jnp.stack([jnp.searchsorted(-x, -target) for x in tables.values.T])[column]
        right = jnp.clip(right, 1, tables.values.shape[0] - 1)
        above, below = tables.values[right - 1, column], tables.values[right, column]
        share = jnp.clip((above - target) / (above - below), 0, 1)
        return jax.nn.softplus(jnp.maximum(tables.start + tables.spacing * (right - 1 + share), s))

    return {"r": beyond(s[0], which == 2, log_tail[0]), "l": beyond(s[1], which == 1, log_tail[1])}


def node_chain(key: jax.Array, counts: jax.Array, tables: PriorTables, lengths: tuple[int, int, int, float]) -> Any:
    """One chain from an overdispersed start: draws name -> (draws,), divergences, mean acceptance.

    The scales are known beforehand, so the warm-up adapts the step size alone (dual averaging).

    Args:
        key: of this chain.
        counts: (4,) float32.
        tables: of the prior.
        lengths: warm-up steps, kept draws, transitions per kept draw, target acceptance; static.
    """
    import blackjax  # here: importing blackjax 1.7 starts the backend, and the device count is then fixed
    from blackjax.adaptation.step_size import dual_averaging_adaptation

    warmup, draws, thin, acceptance = lengths
    start_key, warmup_key, draw_key, given_key = jax.random.split(key, 4)
    target = partial(rate_target, counts=counts, tables=tables)
    kernel = partial(
        blackjax.nuts.build_kernel(),
        logdensity_fn=lambda z: target(z)[0],
        inverse_mass_matrix=jnp.ones(2),
        # 7 steps at most; chains in one block wait for the longest. A rerun (thin > 1) may turn further.
        max_num_doublings=3 if thin == 1 else 5,
    )
    init, update, final = dual_averaging_adaptation(acceptance)

    def adapt(carry: Any, key: jax.Array) -> tuple[Any, None]:
        state, step = carry
        state, info = kernel(key, state, step_size=jnp.exp(step.log_step_size))
        return (state, update(step, info.acceptance_rate)), None

    start = blackjax.nuts.init(1.5 * jax.random.normal(start_key, (2,)), lambda z: target(z)[0])
    (state, step), _ = jax.lax.scan(adapt, (start, init(0.8)), jax.random.split(warmup_key, warmup))

    def transition(state: Any, key: jax.Array) -> tuple[Any, Any]:
        state, info = kernel(key, state, step_size=final(step))
        return state, (info.is_divergent, info.acceptance_rate)

    def kept(state: Any, key: jax.Array) -> tuple[Any, Any]:
        state, (divergent, rate) = jax.lax.scan(transition, state, jax.random.split(key, thin))
        return state, (state.position, divergent.sum(), rate.mean())

    _, (z, divergent, rate) = jax.lax.scan(kept, state, jax.random.split(draw_key, draws))
    given = jax.vmap(target)(z)[1]
    keys = jax.random.split(given_key, draws)
    values = jax.vmap(parameters_given_rates, in_axes=(0, 0, 0, None))(keys, *given, tables)
    return values, divergent.sum(), rate.mean()
