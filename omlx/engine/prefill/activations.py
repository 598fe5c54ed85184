"""Activations: bytes that a pass takes beside weights and KV cache, and frees at its end.

Estimated from the heads of a model, then learned from the peaks that passes had. Pure Python.

| queries | fused kernel on Metal          | head dimensions                        |
|---------|--------------------------------|----------------------------------------|
| ≤ 8     | if queries × group ≤ 32        | 64, 96, 128, 256, and 192 with 128     |
| > 8     | yes                            | 64, 72, 80, 96, 128                    |
| ≥ 1,024 | with matrix units (M5), causal | 256, too                               |

Without one a score is kept for each query, key and head. A CPU has none. Source: mlx's
scaled_dot_product_attention.cpp of 0.32.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Final, Literal, TypeAlias

Kernels: TypeAlias = Literal["none", "metal", "matrix units"]
"""Fused attention kernels that the device has."""

VECTOR_QUERIES: Final = 8
"""Queries up to which attention takes the vector kernel."""
VECTOR_ROWS: Final = 32
"""Queries × query heads of a key head that the vector kernel takes at most."""
VECTOR_DIMS: Final = frozenset({(64, 64), (96, 96), (128, 128), (256, 256), (192, 128)})
FULL_DIMS: Final = frozenset({64, 72, 80, 96, 128})
MATRIX_DIM: Final = 256
MATRIX_QUERIES: Final = 1024

SCORE_COPIES: Final = 2
"""Scores, and their softmax: a CPU was measured to write it in place (1.02 to 1.14 copies), and
Metal to take 1.4."""

LIVE_ARRAYS: Final = 4
"""Arrays of a layer's widest part that exist at once: gate, its activation, up, product."""

MIN_OBSERVED: Final = 64
"""Tokens of a pass whose peak is learned: buffers of a fixed size dominate shorter ones."""


@dataclass(frozen=True, slots=True)
class PassShape:
    """Attention of a model's widest layer, and the floats of one token in its widest part.

    `value_dim` is the head dimension of values, `itemsize` the bytes of a float.
    """

    query_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    token_floats: int
    itemsize: int


def has_fused_kernel(
    queries: int, group: int, head_dim: int, value_dim: int, kernels: Kernels
) -> bool:
    """Return whether attention runs without a matrix of scores. `group`: query heads a key head."""
    if kernels == "none":
        return False
    if queries <= VECTOR_QUERIES:
        return queries * group <= VECTOR_ROWS and (head_dim, value_dim) in VECTOR_DIMS
    if head_dim != value_dim:
        return False
    matrix = kernels == "matrix units" and queries >= MATRIX_QUERIES
    return head_dim in FULL_DIMS or (matrix and head_dim == MATRIX_DIM)


def attention_bytes(
    queries: int, context: int, query_heads: int, head_dim: int, itemsize: int, *, fused: bool
) -> int:
    """Return the bytes of one layer's attention: its output, and its scores unless `fused`."""
    scores = 0 if fused else SCORE_COPIES * context
    return queries * query_heads * (head_dim + scores) * itemsize


@dataclass(frozen=True, slots=True)
class _Peak:
    queries: int
    context: int
    nbytes: int
    fused: bool


@dataclass(slots=True)
class Activations:
    """Estimates for the passes of one model; `shape` None: its heads are unknown.

    `window`: all attention reaches back so many tokens at most; None: some layers reach all.
    """

    shape: PassShape | None = None
    kernels: Kernels = "none"
    window: int | None = None
    # By the powers of two that queries and context reach, the newest peak.
    _peaks: dict[tuple[int, int, bool], _Peak] = field(default_factory=dict)

    def estimate(self, queries: int, context: int) -> int | None:
        """Return the bytes of a pass over `queries` tokens that attend to `context`, themselves
        included; None as long as nothing is known.

        The least of upper bounds: a peak, in proportion to what is longer here; and what the shape
        says, times the largest factor by which a peak exceeded it.
        """
        context = self._keys(queries, context)
        fused = self._fused(queries)
        peaks = [peak for peak in self._peaks.values() if peak.fused == fused]
        bounds = [
            peak.nbytes * max(1.0, queries / peak.queries) * max(1.0, context / peak.context)
            for peak in peaks
        ]
        if self.shape is not None:
            factors = [peak.nbytes / self._expected(peak.queries, peak.context) for peak in peaks]
            bounds.append(self._expected(queries, context) * max(1.0, *factors, 1.0))
        return ceil(min(bounds)) if bounds else None

    def observe(self, queries: int, context: int, nbytes: int) -> None:
        """Learn the peak of a pass that ran alone."""
        if queries < MIN_OBSERVED or nbytes <= 0:
            return
        context, fused = self._keys(queries, context), self._fused(queries)
        bucket = (queries.bit_length(), context.bit_length(), fused)
        self._peaks[bucket] = _Peak(queries, context, nbytes, fused)

    def longest_observed(self, queries: int) -> int:
        """Return the tokens of the longest pass whose peak is known, of those with the attention
        kernel of a pass over `queries`.
        """
        fused = self._fused(queries)
        peaks = [peak.queries for peak in self._peaks.values() if peak.fused == fused]
        return max(peaks, default=0)

    def _keys(self, queries: int, context: int) -> int:
        return context if self.window is None else min(context, self.window + queries)

    def _fused(self, queries: int) -> bool:
        shape = self.shape
        if shape is None:
            return False
        group = max(1, shape.query_heads // max(1, shape.kv_heads))
        return has_fused_kernel(queries, group, shape.head_dim, shape.value_dim, self.kernels)

    def _expected(self, queries: int, context: int) -> int:
        """Bytes by the shape alone."""
        shape = self.shape
        assert shape is not None
        heads, dim, size = shape.query_heads, shape.head_dim, shape.itemsize
        attention = attention_bytes(queries, context, heads, dim, size, fused=self._fused(queries))
        # A KV cache that grows is copied, a layer at a time.
        copied = context * shape.kv_heads * (dim + shape.value_dim) * size
        return attention + copied + queries * LIVE_ARRAYS * shape.token_floats * size
