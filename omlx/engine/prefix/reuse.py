"""When prefixes are kept and taken up again, said in cache operations. Pure Python.

    a prompt        0 ─────── interval ─────── … ─────── stable ── end         kept at the end; where a cache only
    its answer                                                     └──── …      resumes where something was kept, at
                                                                                the stable end and every interval too

`stable` is where the template's generation suffix begins: what the next turn repeats for sure. What a request leaves
behind is kept when it ends: what its cache holds, all tokens but the newest, or but those still pending.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from omlx.engine.piece import Layout
from omlx.engine.plan import CacheOp, Evict, Open, Restore, Save
from omlx.engine.prefix.index import PrefixIndex
from omlx.engine.sequence import Sequence
from omlx.errors import Reason
from omlx.records import PrefixStats

Room: TypeAlias = Callable[[], int | None]
"""How many bytes memory has for more; None for any number."""


class PrefixReuse:
    """`never` says why nothing can be kept, if so. Rows own what they read from the index until `close`."""

    def __init__(
        self, layout: Layout, block_tokens: int, max_bytes: int, never: Reason | None = None
    ) -> None:
        self.layout = layout
        self._never = never
        self.index = PrefixIndex(layout, block_tokens, max_bytes)
        self._kept: dict[int, int] = {}

    @property
    def off(self) -> Reason | None:
        """Why nothing is kept now."""
        return self._never or (None if self.index.max_bytes else Reason("prefix.off.no_room"))

    def open(self, sequence: Sequence) -> tuple[list[CacheOp], int]:
        """Start a row from the longest cached prefix. Return the operations and its length in tokens.

        Where the logprobs of a prompt are wanted, nothing is taken up: kept prefixes have no logits.
        """
        request = sequence.request
        ops: list[CacheOp] = [
            Open(sequence.row, request.sampling, request.top_logprobs, request.prompt_logprobs)
        ]
        if self.off is not None or request.prompt_logprobs is not None:
            return ops, 0
        found = self.index.match(sequence.tokens)
        self.index.use(sequence.row, found)
        if found is None:
            return ops, 0
        ops.append(Restore(sequence.row, found.pieces, found.length, len(sequence.tokens)))
        self._kept[sequence.row] = found.length
        return ops, found.length

    def chunk(self, sequence: Sequence, budget: int) -> int:
        """How many tokens of the prompt to read next: all but the last, or up to where something is to be kept."""
        start, stop = sequence.computed, self._end(sequence)
        end = start + min(budget, sequence.pending - 1)
        return (stop if start < stop < end else end) - start

    def after_chunk(self, sequence: Sequence, room: Room) -> list[CacheOp]:
        """A chunk of the prompt was read; what is there to be kept is, within `room`."""
        at, end = sequence.computed, self._end(sequence)
        since = at - self._kept.get(sequence.row, 0)
        between = at < end and not self.layout.resumes_anywhere and since >= self.layout.interval
        if at == end or between:
            return self._keep(sequence, room)
        return []

    def close(self, sequence: Sequence, room: Room | None = None) -> list[CacheOp]:
        """A row ends; what its cache holds is kept within `room`, or nothing of it, without one."""
        known = sequence.computed <= len(sequence.tokens)
        ops = self._keep(sequence, room) if room is not None and known else []
        self.index.release(sequence.row)
        self._kept.pop(sequence.row, None)
        return ops

    def forget(self, pieces: list[int]) -> list[CacheOp]:
        """Pieces that could not be kept after all."""
        return _evict(self.index.forget(pieces))

    def clear(self) -> list[CacheOp]:
        """Forget everything. Rows that were restored have copies."""
        return _evict(self.index.clear())

    def shrink(self, max_bytes: int) -> list[CacheOp]:
        return _evict(self.index.evict(max_bytes))

    def set_max_bytes(self, max_bytes: int) -> list[CacheOp]:
        """Keep at most so much from now on."""
        ops = self.shrink(max_bytes)
        self.index.max_bytes = max_bytes
        return ops

    def stats(self) -> PrefixStats:
        index, counts = self.index, self.index.counts
        return PrefixStats(
            off=self.off,
            nbytes=index.nbytes,
            max_bytes=index.max_bytes,
            tokens=index.tokens,
            hits=counts.hits,
            misses=counts.misses,
            hit_tokens=counts.hit_tokens,
            states_used=counts.states_used,
            stored=dict(counts.stored),
            evicted=dict(counts.evicted),
            asked=counts.asked,
            refused=counts.refused,
        )

    def _end(self, sequence: Sequence) -> int:
        """Where a prompt is kept: before its last token, or where it is stable if it resumes only where it was kept."""
        last, stable = sequence.prompt_len - 1, sequence.request.stable
        return last if self.layout.resumes_anywhere else min(stable or last, last)

    def _keep(self, sequence: Sequence, room: Room) -> list[CacheOp]:
        if self.off is not None or not sequence.computed:
            return []
        self._kept[sequence.row] = sequence.computed
        pieces, gone = self.index.insert(sequence.row, sequence.tokens[: sequence.computed], room())
        ops = _evict(gone)
        return [*ops, Save(sequence.row, pieces)] if pieces else ops


def _evict(pieces: tuple[int, ...]) -> list[CacheOp]:
    return [Evict(pieces)] if pieces else []
