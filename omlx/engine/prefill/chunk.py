"""The length of the next pass over a prompt: bounded by memory, by attention, by time. Pure Python.

Memory: the activations of a pass fit into what the memory budget has left. Attention: a GPU ends
command buffers that take too long, and one kernel computes a layer's scores. Time: passes over a
slow model are shorter, so that they can be interrupted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from math import isqrt
from typing import Final, TypeAlias

from omlx.engine.limits import Limits
from omlx.engine.prefill.activations import Activations

FitPass: TypeAlias = Callable[[int, int], int]
"""Returns how many tokens a pass reads behind a position, up to a number of them."""

Room: TypeAlias = Callable[[int], int | None]
"""Returns the bytes that a pass may take now, trying to have so many; None for no limit."""

FIRST: Final = 128
"""Tokens of the first pass of a model in stages, of one whose activations are unknown, and the
least to which slow passes are shortened."""

UNLEARNED: Final = 256
"""Tokens of a pass before a peak was measured, where memory is short."""

GROWTH: Final = 4
"""The next pass may be so many times as long as the longest whose peak is known."""

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
        self, limits: Limits, activations: Activations, room: Room = lambda wanted: None
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

    def least(self, context: int) -> int:
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
        """A short pass that took little time proves little."""
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
