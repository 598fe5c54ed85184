"""Prefill chunks: the length of the next pass over a prompt, and the activations that it takes.

Memory: the activations of a pass fit into what the memory budget has left; they are estimated from
the heads of a model, then learned from the peaks that passes had. Attention: a GPU ends command
buffers that take too long, and one kernel computes a layer's scores. Time: passes over a slow model
are shorter, so that they can be interrupted. Pure Python.

| queries | fused kernel on Metal          | head dimensions                        |
|---------|--------------------------------|----------------------------------------|
| ≤ 8     | if queries × group ≤ 32        | 64, 96, 128, 256, and 192 with 128     |
| > 8     | yes                            | 64, 72, 80, 96, 128                    |
| ≥ 1,024 | with matrix units (M5), causal | 256, too                               |

Without one a score is kept for each query, key and head. A CPU has none. Source: mlx's
scaled_dot_product_attention.cpp of 0.32.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, isqrt
from typing import Final, Literal, TypeAlias

from omlx.engine.types import Limits

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

    `window`: tokens that attention reaches back at most; None: some layers reach all.
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


FitPass: TypeAlias = Callable[[int, int], int]
"""Takes a position and a number of tokens; returns how many of these the next pass reads."""

PassRoom: TypeAlias = Callable[[int], int | None]
"""Takes the bytes that a pass wants; returns those that it may take now, None for no limit."""

FIRST: Final = 128
"""Tokens of the first pass of a model in stages, or with unknown activations, and of the shortest
slow pass."""

UNLEARNED: Final = 256
"""Tokens of a pass before a peak was measured, where memory is short."""

GROWTH: Final = 4
"""Ratio of the next pass to the longest pass whose peak is known, at most."""

FLOOR: Final = 32
"""Tokens to which memory shortens a pass: fewer would read all weights for little."""

GPU_PAIRS: Final = 64 << 20
"""Queries × context of a pass on a GPU: 2,048 tokens at a context of 32k. Command buffers were
ended from some 100k tokens of context on with passes of 2,048."""

STAGE_SECONDS: Final = (0.75, 1.5)
"""A pass of a model in stages grows below the first, shrinks above the second. Metal ends a command
buffer after about 5 s, and one that waits for another machine runs as long as that one computes. A
third of the time is left to a slower neighbour or a longer context."""

GPU_SECONDS: Final = (2.5, 5.0)
"""The same for a pass on a GPU of its own, which is many command buffers."""

RECOVERY: Final = 32
"""Passes of full length without an error, after which a length that memory halved is doubled."""


class PrefillChunk:
    """Bounds the passes of one model. `tokens` is what time allows now. `room` is asked before each
    pass, and may be asked for more than is there.

    One step may have passes over several prompts, which share what memory and attention allow:
    `begin` a step, then `fit` each.
    """

    def __init__(
        self, limits: Limits, activations: Activations, room: PassRoom = lambda wanted: None
    ) -> None:
        first, gpu = limits.prefill_first, activations.kernels != "none"
        self.activations = activations
        self.tokens = min(first or limits.prefill_chunk, limits.prefill_chunk)
        self._longest = self._most = limits.prefill_chunk  # `_most` is halved by errors
        self._seconds = STAGE_SECONDS if first is not None else GPU_SECONDS if gpu else None
        self._max_pairs = GPU_PAIRS if gpu else None
        self._room = room
        self._successes = 0
        self._newest = self.tokens
        self._taken = self._pairs = 0  # by the passes of this step

    def begin(self) -> None:
        """Begin a step: no pass has taken anything yet."""
        self._taken = self._pairs = 0

    def fit(self, start: int, wanted: int, token_bytes: int = 0) -> int:
        """Return how many tokens behind `start` the next pass of the step reads, up to `wanted`.

        `token_bytes` are activations of each token that a model's passes do not have otherwise. At
        least `FLOOR` tokens, but 0 where an earlier pass of the step has left too little.
        """
        most = min(wanted, self.tokens, self._most, self._within_pairs(start))
        if most >= 1:
            most = self._within_room(start, most, token_bytes)
        least = min(wanted, FLOOR)
        if most < least:
            if self._pairs:
                return 0
            most = least
        self._pairs += most * (start + most)
        self._taken += self._nbytes(start, most, token_bytes) or 0
        self._newest = most
        return most

    def fit_alone(self, start: int, wanted: int) -> int:
        """Return how many tokens to read in a pass that is no part of a step; at least one."""
        self.begin()
        return self.fit(start, wanted)

    def waits(self, start: int, wanted: int) -> bool:
        """Whether the pass over the next `wanted` tokens must not begin before the step in flight
        has ended: there may not be room for both, or its peak is to be learned.
        """
        self.begin()
        wanted = min(wanted, self.tokens, self._most, self._within_pairs(start))
        nbytes = self._nbytes(start, max(1, wanted), 0)
        room = self._room(2 * (nbytes or 0))
        if room is None:
            return False
        if nbytes is None or nbytes > room // 2:
            return True
        return nbytes > room // 8 and self._proven(wanted) < wanted

    def min_activations(self, context: int) -> int:
        """Return the activations of the shortest pass at the end of a context; 0 if unknown."""
        if not context:
            return 0
        return self.activations.estimate(min(FLOOR, context), context) or 0

    def observe(
        self, queries: int, context: int, seconds: float, nbytes: int | None = None
    ) -> None:
        """Learn from a step that read `queries` tokens of prompts, up to `context`.

        `nbytes` is the peak of its activations, None if it was not measured.
        """
        if nbytes is not None:
            self.activations.observe(queries, context, nbytes)
        if queries >= self._most and self._most < self._longest:
            self._successes += 1
            if self._successes >= RECOVERY:
                self._most, self._successes = min(self._longest, 2 * self._most), 0
        if self._seconds is not None:
            self._observe_seconds(queries, seconds, *self._seconds)

    def shrink(self) -> bool:
        """Halve the passes, because one has found no memory; return False if that is impossible.

        They grow again after `RECOVERY` passes without an error.
        """
        longest = min(self._newest, self._most)
        if longest <= FLOOR:
            return False
        self._most, self._successes = max(FLOOR, longest // 2), 0
        return True

    def _observe_seconds(self, queries: int, seconds: float, short: float, long: float) -> None:
        """Adapt `tokens` to the time of a pass: a short pass that took little proves little."""
        if seconds > long and queries > FIRST:
            self.tokens = max(FIRST, min(queries, self.tokens) // 2)
        elif seconds < short and queries > self.tokens // 2:
            self.tokens = min(self._longest, 2 * self.tokens)

    def _within_pairs(self, start: int) -> int:
        """Return the most tokens q with q × (start + q) in what attention has left."""
        if self._max_pairs is None:
            return self._longest
        left = max(0, self._max_pairs - self._pairs)
        return (isqrt(start * start + 4 * left) - start) // 2

    def _within_room(self, start: int, most: int, token_bytes: int) -> int:
        """Return the most tokens, up to `most`, whose activations fit; fewer than `FLOOR`: none."""
        wanted = self._nbytes(start, most, token_bytes)
        room = self._room(self._taken + (wanted or 0))
        if room is None:
            return most
        if wanted is None:
            return min(most, FIRST)
        room -= self._taken
        if wanted > room // 8:
            most = min(most, self._proven(most))
        if self._fits(start, most, token_bytes, room):
            return most
        lengths = range(FLOOR, most, FLOOR)  # in which the bytes grow
        fitting = bisect_left(
            lengths, True, key=lambda tokens: not self._fits(start, tokens, token_bytes, room)
        )
        return FLOOR * fitting

    def _proven(self, wanted: int) -> int:
        """Return the most tokens of a pass that is not much longer than a measured one."""
        return max(UNLEARNED, GROWTH * self.activations.longest_observed(wanted))

    def _fits(self, start: int, tokens: int, token_bytes: int, room: int) -> bool:
        return (self._nbytes(start, tokens, token_bytes) or 0) <= room

    def _nbytes(self, start: int, tokens: int, token_bytes: int) -> int | None:
        nbytes = self.activations.estimate(tokens, start + tokens)
        return None if nbytes is None else nbytes + tokens * token_bytes
