"""Random finite channels, and the definitions applied to them word by word."""

import itertools

import numpy as np

from jaxaudit.bmp.channel import Channel, make_channel
from jaxaudit.bmp.joint import make_joint


def rows(rng, *shape, sharpness=1.0):
    """Random positive distributions over the last axis."""
    logits = sharpness * rng.normal(size=shape)
    values = np.exp(logits)
    return values / values.sum(-1, keepdims=True)


def channels(seed, count=1000, outputs=4, prior=None) -> Channel:
    """Channels of many strengths (log ratios from about .01 to 20) and priors from .001 to .999."""
    rng = np.random.default_rng(seed)
    strength = 10 ** rng.uniform(-2, 0.8, (count, 1))
    p_in, p_out = (rows(rng, count, outputs, sharpness=strength) for _ in range(2))
    drawn = 1 / (1 + np.exp(-rng.uniform(-6.9, 6.9, count)))
    return make_channel(drawn if prior is None else prior, p_in, p_out)


def joints(seed, sampler, count=1000, outputs=3, sharpness=1.0):
    size = sampler.shape[-1]
    return make_joint(sampler, rows(np.random.default_rng(seed), count, size, outputs, sharpness=sharpness))


def posteriors(channel: Channel):
    """P(member | w) and P(non-member | w), (..., W)."""
    inside = channel.prior[..., None] * channel.p_in
    outside = (1 - channel.prior[..., None]) * channel.p_out
    return inside / (inside + outside), outside / (inside + outside)


def epsilons_by_definition(channel: Channel, definition: str):
    """(eps_L, eps_R) from posteriors and priors alone."""
    one, zero = posteriors(channel)
    g = channel.prior[..., None]
    if definition == "posterior_odds":
        odds = one / zero
        return np.log(1 / odds).max(-1), np.log(odds).max(-1)
    if definition == "bayes_factor":
        factor = (one / zero) / (g / (1 - g))
        return np.log(1 / factor).max(-1), np.log(factor).max(-1)

    def li(up, prior_up, down, prior_down):
        return np.maximum(np.log(up / prior_up), np.log(prior_down / down)).max(-1)

    return li(zero, 1 - g, one, g), li(one, g, zero, 1 - g)


def dp_epsilon(table, adjacency):
    """(...) exact DP epsilon of rows (..., 2^n, W), over all neighbouring pairs of subsets."""
    size = table.shape[-2]
    worst = np.zeros(table.shape[:-2])
    for s, t in itertools.product(range(size), repeat=2):
        differ = bin(s ^ t).count("1")
        same_size = bin(s).count("1") == bin(t).count("1")
        if differ == 1 if adjacency == "add_remove" else (differ == 2 and same_size):
            worst = np.maximum(worst, np.log(table[..., s, :] / table[..., t, :]).max(-1))
    return worst
