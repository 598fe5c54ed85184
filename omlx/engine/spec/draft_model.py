"""A smaller model as the drafter.

It samples with the target's noise, filters and penalties, so it proposes what the target would draw if the two agreed.
Its cache is caught up lazily: whatever the row has committed since the last proposal is read first. After a rejection
it steps back, layer by layer, as far as its cache can; the rest stays pending for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import ClassVar, Final

import mlx.core as mx

from omlx.engine.model import Cache, MakeCache, Model
from omlx.engine.rewind import Mark, leaves, mark, rewind, traits
from omlx.engine.sampling import Draw, RowSampler, draw, process
from omlx.engine.sequence import Sequence
from omlx.engine.spec.drafter import Draft
from omlx.engine.spec.policy import Offer
from omlx.engine.spec.strategy import Step
from omlx.errors import RewindError

CATCH_UP_CHUNK: Final = 512
FIRST_TIMED: Final = 4
TIMED_EVERY: Final = 16
"""Rounds that are computed apart from the verification, so that what drafting costs is known."""

MAX_WINDOW: Final = 16
"""Longest first window of a round: its logits are computed for every token in it."""


@dataclass(slots=True)
class _Row:
    """`held` tokens are in the cache, the first `valid` of them are the row's own; marks lie between the two."""

    cache: Cache
    held: int = 0
    valid: int = 0
    marks: list[Mark] = field(default_factory=list)
    sampler: RowSampler | None = None


class DraftModel:
    """Implements `Drafter`. `vocab_size` is the target tokenizer's length."""

    kind: ClassVar[str] = "draft"

    def __init__(self, name: str, model: Model, vocab_size: int, make_cache: MakeCache) -> None:
        self.name = name
        self._model = model
        self._vocab_size = vocab_size
        self._make_cache = make_cache
        self._traits = traits(make_cache())
        self._rows: dict[int, _Row] = {}
        self._stored: dict[int, _Row] = {}
        self._rounds = 0

    def offer(self, sequence: Sequence, limit: int, step: Step) -> Offer | None:
        row = self._rows.get(sequence.row)
        return Offer(self.name, limit, lag=len(sequence.tokens) - (row.valid if row else 0)) if limit > 0 else None

    def propose(self, sequence: Sequence, limit: int) -> Draft | None:
        if limit < 1:
            return None
        started = time.perf_counter()
        row = self._rows.setdefault(sequence.row, _Row(self._make_cache()))
        if row.sampler is None:
            row.sampler = RowSampler(sequence.request.sampling, self._vocab_size)
        self._step_back(row, min(row.valid, len(sequence.tokens) - 1))
        window = self._catch_up(row, sequence.tokens)
        sampling = sequence.request.sampling
        history = mx.array(sequence.tokens[-sampling.history :], mx.uint32) if sampling.penalised else None
        proposed: list[mx.array] = []
        row.valid = len(sequence.tokens)
        if self._traits.sliding_window is not None:
            row.marks = [mark(row.cache, row.held, fresh=True)]
        for i in range(limit):
            if self._traits.recurrent and self._traits.sliding_window is None:
                row.marks.append(mark(row.cache, row.held))
            logits = self._read(row, window)
            window = self._choose(logits, Draw(row.sampler, len(sequence.tokens) + i, history), i)
            if history is not None:
                history = mx.concatenate([history, window])[-sampling.history :]
            mx.async_eval(window)
            proposed.append(window)
        draft = mx.concatenate(proposed)
        self._rounds += 1
        if self._rounds > FIRST_TIMED and self._rounds % TIMED_EVERY:
            return Draft(self.name, limit, array=draft)
        mx.eval(draft)
        return Draft(self.name, limit, array=draft, seconds=time.perf_counter() - started)

    def observe(self, sequence: Sequence, accepted: int) -> None:
        row = self._rows[sequence.row]
        # The last proposed token was never read; what was read is the row's own up to the first rejected one.
        row.valid = min(row.valid + accepted, row.held)

    def drop(self, row: int) -> None:
        self._rows.pop(row, None)

    def held(self, row: int) -> int:
        return sum(layer.nbytes for layer in self._rows[row].cache) if row in self._rows else 0

    def store(self, row: int, entry: int) -> None:
        if (kept := self._rows.pop(row, None)) is not None:
            self._step_back(kept, kept.valid)
            kept.sampler = None
            self._stored[entry] = kept

    def restore(self, entry: int, row: int, length: int) -> None:
        if (kept := self._stored.pop(entry, None)) is not None:
            kept.valid = min(kept.valid, length)
            self._rows[row] = kept

    def evict(self, entry: int) -> None:
        self._stored.pop(entry, None)

    @property
    def nbytes(self) -> int:
        rows = [*self._rows.values(), *self._stored.values()]
        return sum(layer.nbytes for row in rows for layer in row.cache)

    def check(self) -> None:
        """Raise AssertionError if a cache holds another number of tokens than is counted here."""
        for row in self._rows.values():
            for leaf in leaves(row.cache):
                offset = getattr(leaf, "offset", None)
                assert offset is None or offset == row.held, (offset, row.held)

    def _step_back(self, row: _Row, target: int) -> None:
        """Bring the cache to at most `target` tokens; an unreachable one costs a fresh start, never a wrong draft."""
        if target < row.held:
            try:
                row.held = rewind(row.cache, row.held, target, row.marks)
            except RewindError:
                row.cache, row.held = self._make_cache(), 0
        row.valid = min(row.valid, row.held)
        row.marks = []

    def _catch_up(self, row: _Row, tokens: list[int]) -> mx.array:
        """Read what the row has committed, but for a short rest, which is the first window of the round."""
        while (lag := len(tokens) - row.held) > MAX_WINDOW:
            chunk = min(CATCH_UP_CHUNK, lag - 1)
            self._read(row, mx.array(tokens[row.held : row.held + chunk], mx.uint32))
            mx.eval([layer.state for layer in row.cache])
            mx.clear_cache()
        return mx.array(tokens[row.held :], mx.uint32)

    def _read(self, row: _Row, window: mx.array) -> mx.array:
        """One pass over `window` [n]; the logits behind it, [1, V0]."""
        row.held += window.shape[0]
        logits: mx.array = self._model(window[None], cache=row.cache)[:, -1]
        return logits[:, : self._vocab_size] if logits.shape[-1] > self._vocab_size else logits

    def _choose(self, logits: mx.array, place: Draw, step: int) -> mx.array:
        """The token proposed at `step` of this round, [1]."""
        return draw(process(logits, [place]), [place])
