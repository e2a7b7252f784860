"""The posterior of (l, r) by 1-D quadrature of P[(a, b) in R(l, r)], sharing no code with the package."""

import numpy as np
from scipy.special import betainc, betaincinv
from scipy.stats import beta

QUANTILES = (0.05, 0.5, 0.95)


def probability_in_region(l, r, fp, n_out, fn, n_in, order=16):
    """Panels over a, split at quantiles of a and at alpha*, 1 - alpha*; the exact Beta CDF in b. l, r (m,)."""
    shapes = fp + 1, n_out - fp + 1
    corner = np.exp(-r) * -np.expm1(-l) / -np.expm1(-(l + r))
    fixed = np.concatenate([[0], betaincinv(*shapes, [1e-9, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9]), [1]])
    edges = np.sort(
        np.column_stack([np.broadcast_to(fixed, (l.size, fixed.size)), np.minimum(corner, 1 - corner)[:, None],
                         np.maximum(corner, 1 - corner)[:, None]]), axis=1)  # fmt: skip
    x, w = np.polynomial.legendre.leggauss(order)
    low, high = edges[:, :-1, None], edges[:, 1:, None]
    a = (low + high) / 2 + (high - low) / 2 * x
    weight = (high - low) / 2 * w * np.exp(beta.logpdf(np.clip(a, 1e-300, 1 - 1e-16), *shapes))
    up, down = np.exp(r)[:, None, None], np.exp(-l)[:, None, None]
    bottom = np.maximum(np.maximum(1 - up * a, (1 - a) * down), 0)
    top = np.minimum(np.minimum(1 - a * down, up * (1 - a)), 1)
    inside = betainc(fn + 1, n_in - fn + 1, top) - betainc(fn + 1, n_in - fn + 1, np.minimum(bottom, top))
    return (weight * inside).sum(axis=(1, 2))


def _grid(sample, fine):
    """Nodes for one parameter: a global grid, denser where the pushed-forward Betas lie."""
    m = 2 if fine else 1
    s = np.concatenate([np.linspace(-10, -3, 10 * m), np.linspace(-3, 8, 80 * m), np.linspace(8, 20, 40 * m),
                        np.linspace(20, 60, 60 * m)])  # fmt: skip
    low, high = np.quantile(sample, [0.0005, 0.9995])
    margin = 0.3 * (high - low)
    return np.unique(np.concatenate([np.logaddexp(0, s), np.linspace(max(low - margin, 1e-5), high + margin, 35 * m)]))


def posterior_quantiles(counts, scales2, fine=False, power=1):
    """{scale2: (2, 3) 5/50/95 % quantiles of r and of l}; ``power`` equal nodes share (l, r)."""
    fp, n_out, fn, n_in = counts
    rng = np.random.default_rng(1)
    a, b = rng.beta(fp + 1, n_out - fp + 1, 8000), rng.beta(fn + 1, n_in - fn + 1, 8000)
    r_grid = _grid(np.log(np.maximum((1 - b) / a, b / (1 - a))), fine)
    l_grid = _grid(np.log(np.maximum(a / (1 - b), (1 - a) / b)), fine)
    l, r = np.meshgrid(l_grid, r_grid, indexing="ij")
    parts = zip(np.array_split(l.ravel(), 50), np.array_split(r.ravel(), 50), strict=True)
    inside = np.concatenate([probability_in_region(x, y, *counts) for x, y in parts]).reshape(l.shape)
    likelihood = inside * (-np.expm1(-(l + r))) / (np.expm1(-l) * np.expm1(-r))
    result = {}
    for scale2 in scales2:
        density = (likelihood / likelihood.max()) ** power * np.exp(-(l**2 + r**2) / (2 * scale2))
        rows = []
        for x, marginal in ((r_grid, np.trapezoid(density, l_grid, axis=0)), (l_grid, np.trapezoid(density, r_grid))):
            cdf = np.concatenate([[0], np.cumsum(np.diff(x) * (marginal[1:] + marginal[:-1]))])
            rows.append(np.interp(QUANTILES, cdf / cdf[-1], x))
        result[scale2] = np.array(rows)
    return result
