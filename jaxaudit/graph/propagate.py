"""Neighbour sums: the one place where values travel along edges.

A ``Pattern`` is the sparsity pattern of a matrix, sorted by row, together with its transpose. The
adjacency of a graph is one (row = receiver, column = sender), a sparse feature matrix another, so
aggregation and the first layer X·W are both ``neighbour_sum``. On CPUs it is a BCSR product of A forward and of Aᵀ
backward, tied by a ``custom_vjp`` (BCSR's own gradient falls back to a slow path); elsewhere a sorted segment sum.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import jraph
import numpy as np

try:  # experimental in jax: absent or moved, the segment path still works
    from jax.experimental import sparse
except ImportError:  # pragma: no cover
    sparse = None  # type: ignore[assignment]

__all__ = [
    "Pattern", "adjacency", "csr_pattern", "default_method", "gcn_weights", "mean_weights", "neighbour_softmax",
    "neighbour_sum",
]  # fmt: skip

Method = Literal["bcsr", "segment"]


class Pattern(NamedTuple):
    """Where a sparse (rows, columns) matrix has entries, sorted by row; int32 arrays, of NumPy on the host.

    ``transpose_order[j]`` is the position, in row order, of the j-th entry in column order. Entries behind the last
    row start are spare: they pad the arrays, lie in the last row and column, and must have weight 0.
    """

    rows: jax.Array
    columns: jax.Array
    row_starts: jax.Array  # (rows + 1,)
    transpose_rows: jax.Array  # the same four of the transpose
    transpose_columns: jax.Array
    transpose_starts: jax.Array  # (columns + 1,)
    transpose_order: jax.Array

    def transpose(self) -> Pattern:
        """The pattern of the transpose; its values are ``values[transpose_order]``."""
        inverse = (
            jnp.zeros_like(self.transpose_order)
            .at[self.transpose_order]
            .set(jnp.arange(self.transpose_order.shape[0], dtype=self.transpose_order.dtype))
        )
        return Pattern(
            self.transpose_rows, self.transpose_columns, self.transpose_starts,
            self.rows, self.columns, self.row_starts, inverse,
        )  # fmt: skip


def csr_pattern(indices: np.ndarray, starts: np.ndarray, columns: int) -> Pattern:
    """The pattern of a CSR matrix, as NumPy arrays.

    Args:
        indices: (nnz,) column of each entry, ascending within a row.
        starts: (rows + 1,) first entry of each row.
        columns: number of columns.

    Example:
        >>> csr_pattern(np.array([1, 0, 1]), np.array([0, 1, 3]), 2).transpose_rows.tolist()
        [0, 1, 1]
    """
    rows = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    order = np.lexsort((rows, indices))
    transpose_starts = np.searchsorted(indices[order], np.arange(columns + 1))
    parts: Any = (rows, indices, starts, indices[order], rows[order], transpose_starts, order)
    return Pattern(*(part.astype(np.int32) for part in parts))


def adjacency(edges: np.ndarray, num_nodes: int) -> tuple[Pattern, Any]:
    """Both directions of every edge and one self-loop per node, sorted by receiver; NumPy arrays.

    Args:
        edges: (2, E) undirected edges, each once.
        num_nodes: n.

    Returns:
        the (n, n) pattern with 2E + n entries, and ``edge``, (2E + n,) int32: the number of the
        undirected edge behind an entry, E for a self-loop.
    """
    loops, number = np.arange(num_nodes), np.arange(edges.shape[1])
    senders = np.concatenate([edges[0], edges[1], loops])
    receivers = np.concatenate([edges[1], edges[0], loops])
    edge = np.concatenate([number, number, np.full(num_nodes, edges.shape[1])])
    order = np.lexsort((senders, receivers))
    starts = np.searchsorted(receivers[order], np.arange(num_nodes + 1))
    return csr_pattern(senders[order], starts, num_nodes), edge[order].astype(np.int32)


def default_method() -> Method:
    """``bcsr`` on CPUs where jax has it, else ``segment``."""
    return "bcsr" if hasattr(sparse, "BCSR") and jax.default_backend() == "cpu" else "segment"


def neighbour_sum(pattern: Pattern, weights: jax.Array, values: jax.Array, method: Method | None = None) -> jax.Array:
    """out[r] = Σ over entries (r, c) of weights · values[c]; differentiable in ``weights`` and ``values``.

    Cotangents (derived, d⟨g, out⟩): values get Aᵀ g, entry (r, c) gets ⟨g[r], values[c]⟩. The latter is dead code,
    which XLA removes, unless a gradient in the weights is asked for.

    Args:
        pattern: R rows, C columns, m entries.
        weights: (m,) float.
        values: (C, d) float.
        method: ``bcsr`` or ``segment``; None takes ``default_method()``.

    Returns:
        (R, d) float.

    Example:
        >>> pattern, _ = adjacency(np.array([[0], [1]]), 2)
        >>> neighbour_sum(pattern, jnp.ones(4), jnp.array([[1.0], [10.0]])).tolist()
        [[11.0], [11.0]]
    """
    bcsr = (method or default_method()) == "bcsr"
    product, dots = (_product_bcsr, _entry_dots_in_turn) if bcsr else (_product_segment, _entry_dots)

    @jax.custom_vjp
    def apply(weights: jax.Array, values: jax.Array, pattern: Pattern) -> jax.Array:
        return product(pattern.rows, pattern.columns, pattern.row_starts, pattern.transpose_starts, weights, values)

    def forward(weights: jax.Array, values: jax.Array, pattern: Pattern) -> tuple[jax.Array, Any]:
        return apply(weights, values, pattern), (weights, values, pattern)

    def backward(residuals: Any, g: jax.Array) -> tuple[jax.Array, jax.Array, None]:
        weights, values, p = residuals
        transposed = weights[p.transpose_order]
        to_values = product(p.transpose_rows, p.transpose_columns, p.transpose_starts, p.row_starts, transposed, g)
        return dots(p.rows, p.columns, g, values), to_values, None

    apply.defvjp(forward, backward)
    return apply(weights, values, pattern)


@jax.custom_batching.sequential_vmap  # a batched BCSR product leaves the fast path; one after another keeps it
def _product_bcsr(
    rows: jax.Array, columns: jax.Array, starts: jax.Array, other: jax.Array, weights: jax.Array, values: jax.Array
) -> jax.Array:
    matrix = sparse.BCSR((weights, columns, starts), shape=(starts.shape[0] - 1, other.shape[0] - 1))
    return matrix @ values


def _product_segment(
    rows: jax.Array, columns: jax.Array, starts: jax.Array, other: jax.Array, weights: jax.Array, values: jax.Array
) -> jax.Array:
    messages = weights[:, None] * values[columns]
    return jraph.segment_sum(messages, rows, starts.shape[0] - 1, indices_are_sorted=True)


def _entry_dots(rows: jax.Array, columns: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
    """⟨left[r], right[c]⟩ of every entry (r, c)."""
    return jnp.einsum("ed,ed->e", left[rows], right[columns], precision=jax.lax.Precision.HIGHEST)


_entry_dots_in_turn = jax.custom_batching.sequential_vmap(_entry_dots)  # batched gathers are 14 times slower on CPUs


def gcn_weights(pattern: Pattern, mask: jax.Array) -> jax.Array:
    """Symmetric normalisation D^-1/2 (A + I) D^-1/2 over the edges a model may see.

    Degrees count the masked edges and the self-loop, as in Kipf & Welling 2017 (arXiv:1609.02907).

    Args:
        pattern: from ``adjacency``.
        mask: (m,) float weight of each entry, 1 on self-loops; differentiable.

    Returns:
        (m,) float weights.
    """
    degree = neighbour_sum(pattern, mask, jnp.ones((pattern.row_starts.shape[0] - 1, 1), mask.dtype))[:, 0]
    scale = jax.lax.rsqrt(degree)
    return mask * scale[pattern.rows] * scale[pattern.columns]


def mean_weights(pattern: Pattern, mask: jax.Array) -> jax.Array:
    """Weights of the mean over a node's visible neighbours, itself left out; all 0 where it has none.

    Args:
        pattern: from ``adjacency``.
        mask: (m,) float weight of each entry; self-loops are ignored.

    Returns:
        (m,) float weights.
    """
    mask = jnp.where(pattern.rows == pattern.columns, 0, mask)
    degree = neighbour_sum(pattern, mask, jnp.ones((pattern.row_starts.shape[0] - 1, 1), mask.dtype))[:, 0]
    return mask / jnp.where(degree > 0, degree, 1)[pattern.rows]


def neighbour_softmax(pattern: Pattern, mask: jax.Array, scores: jax.Array) -> jax.Array:
    """mask·exp(score) over its sum in the same row: attention that gives masked entries exactly 0.

    The largest visible score of a row is subtracted first, so nothing overflows and no row of visible entries
    vanishes; masked scores have no influence, whatever their size.

    Args:
        pattern: m entries; every row has an entry with a positive mask (in a graph, its self-loop).
        mask: (m,) float >= 0.
        scores: (m, H) float.

    Returns:
        (m, H) float, summing to 1 in every row.

    Example:
        >>> pattern, _ = adjacency(np.array([[0], [1]]), 2)
        >>> neighbour_softmax(pattern, jnp.array([1.0, 0.0, 1.0, 1.0]), jnp.zeros((4, 1)))[:, 0].tolist()
        [1.0, 0.0, 0.5, 0.5]
    """
    rows, count = pattern.rows, pattern.row_starts.shape[0] - 1
    seen = (mask > 0)[:, None]
    largest = jraph.segment_max(jnp.where(seen, scores, -jnp.inf), rows, count, indices_are_sorted=True)
    shifted = jnp.where(seen, scores - jax.lax.stop_gradient(largest)[rows], 0)
    raised = mask[:, None] * jnp.exp(shifted)
    total = jraph.segment_sum(raised, rows, count, indices_are_sorted=True)
    return raised / total[rows]
