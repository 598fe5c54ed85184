"""A smaller model as the drafter.

It samples with the target's noise, filters and penalties, so it proposes what the target would draw if the two agreed.
Under a mask each token is read back, since what may follow depends on it; the mask is taken back behind the round.
Its cache is caught up lazily: whatever the row has committed since the last proposal is read first. After a rejection
it steps back, layer by layer, as far as its cache can; the rest stays pending for it. It keeps prefixes as the target
does, in an index of its own: what one of the two evicts, the other may still have.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import ClassVar, Final, cast

import mlx.core as mx

from omlx.engine.masking import Lookahead
from omlx.engine.model import Cache, MakeCache, Model
from omlx.engine.prefix.index import PrefixIndex
from omlx.engine.prefix.payload import Payloads, layout_of, uncacheable
from omlx.engine.rewind import Mark, leaves, mark, rewind, traits
from omlx.engine.sampling import Draw, RowSampler, draw, permit, process
from omlx.engine.sequence import Sequence
from omlx.engine.speculation.proposal import Draft, Proposal
from omlx.engine.strategy import Step
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
    """Implements `Drafter`. `vocab_size` is the target tokenizer's length, `prefix_bytes` bounds what is kept."""

    kind: ClassVar[str] = "draft"

    def __init__(
        self,
        name: str,
        model: Model,
        vocab_size: int,
        make_cache: MakeCache,
        *,
        prefix_bytes: int | None = 128 << 20,
        block_tokens: int = 64,
    ) -> None:
        self.name = name
        self._model = model
        self._vocab_size = vocab_size
        self._make_cache = make_cache
        self._traits = traits(make_cache())
        self._rows: dict[int, _Row] = {}
        self._kept = Payloads(make_cache)
        self._index: PrefixIndex | None = None
        if prefix_bytes is not None and uncacheable(make_cache()) is None:
            self._index = PrefixIndex(layout_of(model, make_cache), block_tokens, prefix_bytes)
        self._rounds = 0

    def sibling(self) -> DraftModel:
        """Return a drafter over the same model, without rows or a prefix cache."""
        return DraftModel(
            self.name, self._model, self._vocab_size, self._make_cache, prefix_bytes=None
        )

    def propose(self, sequence: Sequence, limit: int, step: Step) -> Proposal | None:
        if limit < 1:
            return None
        return Proposal(
            self.name, limit, lag=len(sequence.tokens) - self._row(sequence).valid, step=step
        )

    def draft(self, sequence: Sequence, limit: int) -> Draft | None:
        if limit < 1:
            return None
        started = time.perf_counter()
        row = self._row(sequence)
        if row.sampler is None:
            row.sampler = RowSampler(sequence.request.sampling, self._vocab_size)
        self._step_back(row, min(row.valid, len(sequence.tokens) - 1))
        window = self._catch_up(row, sequence)
        draft = mx.concatenate(self._propose(row, sequence, window, limit))
        self._rounds += 1
        if sequence.request.mask is not None:
            tokens = tuple(cast(list[int], draft.tolist()))
            return Draft(self.name, len(tokens), tokens, seconds=time.perf_counter() - started)
        if self._rounds > FIRST_TIMED and self._rounds % TIMED_EVERY:
            return Draft(self.name, limit, array=draft)
        mx.eval(draft)
        return Draft(self.name, limit, array=draft, seconds=time.perf_counter() - started)

    def _propose(
        self, row: _Row, sequence: Sequence, window: mx.array, limit: int
    ) -> list[mx.array]:
        """The tokens of a round, [1] each, behind its first `window`; fewer than `limit` where the output must end."""
        assert row.sampler is not None
        sampling, mask = sequence.request.sampling, sequence.request.mask
        history = (
            mx.array(sequence.tokens[-sampling.history :], mx.uint32)
            if sampling.penalised
            else None
        )
        proposed: list[mx.array] = []
        row.valid = len(sequence.tokens)
        if self._traits.sliding_window is not None:
            row.marks = [mark(row.cache, row.held, fresh=True)]
        with nullcontext() if mask is None else Lookahead(mask) as ahead:
            for i in range(limit):
                if self._traits.recurrent and self._traits.sliding_window is None:
                    row.marks.append(mark(row.cache, row.held))
                logits = self._read(row, window)
                if mask is not None:
                    logits = permit(logits, [mask.bits()])
                window = self._choose(logits, Draw(row.sampler, len(sequence.tokens) + i, history))
                if history is not None:
                    history = mx.concatenate([history, window])[-sampling.history :]
                mx.async_eval(window)
                proposed.append(window)
                if ahead is not None and not ahead.advance(cast(int, window.item())):
                    break
        return proposed

    def observe(self, sequence: Sequence, accepted: int) -> None:
        row = self._rows[sequence.row]
        # The last proposed token was never read; what was read is the row's own up to the first rejected one.
        row.valid = min(row.valid + accepted, row.held)

    def drop(self, row: int) -> None:
        self._rows.pop(row, None)
        if self._index is not None:
            self._index.release(row)

    def store(self, sequence: Sequence) -> None:
        if (row := self._rows.get(sequence.row)) is not None:
            self._step_back(row, row.valid)
            self._keep(row, sequence)

    def clear(self) -> None:
        if self._index is not None:
            self._kept.evict(self._index.clear())

    def limit_bytes(self, max_bytes: int) -> None:
        if self._index is not None:
            self._kept.evict(self._index.evict(max_bytes))
            self._index.max_bytes = max_bytes

    @property
    def nbytes(self) -> int:
        return self._kept.nbytes + sum(
            layer.nbytes for row in self._rows.values() for layer in row.cache
        )

    def check(self) -> None:
        """Raise AssertionError if a cache holds another number of tokens than is counted here."""
        if self._index is not None:
            self._index.check()
            assert self._index.nbytes >= self._kept.nbytes
        for row in self._rows.values():
            for leaf in leaves(row.cache):
                offset = getattr(leaf, "offset", None)
                assert offset is None or offset == row.held, (offset, row.held)

    def _row(self, sequence: Sequence) -> _Row:
        """What is held for a row; a new one begins with what was kept of its prompt."""
        if (row := self._rows.get(sequence.row)) is None:
            found = self._index.match(sequence.tokens) if self._index is not None else None
            if self._index is not None:
                self._index.use(sequence.row, found)
            if found is None:
                row = _Row(self._make_cache())
            else:
                cache = self._kept.build(found.pieces, found.length, len(sequence.tokens))
                row = _Row(cache, found.length, found.length)
            self._rows[sequence.row] = row
        return row

    def _keep(self, row: _Row, sequence: Sequence) -> None:
        if self._index is not None and row.held:
            pieces, gone = self._index.insert(sequence.row, sequence.tokens[: row.held])
            self._kept.evict(gone)
            self._kept.keep(row.cache, pieces)

    def _step_back(self, row: _Row, target: int) -> None:
        """Bring the cache to at most `target` tokens; an unreachable one costs a fresh start, never a wrong draft."""
        if target < row.held:
            try:
                row.held = rewind(row.cache, row.held, target, row.marks)
            except RewindError:
                row.cache, row.held = self._make_cache(), 0
        row.valid = min(row.valid, row.held)
        row.marks = []

    def _catch_up(self, row: _Row, sequence: Sequence) -> mx.array:
        """Read what the row has committed, but for a short rest, which is the first window of the round.

        A cache that resumes only where something was kept stops at the stable end of the prompt, to be kept there.
        """
        tokens, anywhere = (
            sequence.tokens,
            self._index is None or self._index.layout.resumes_anywhere,
        )
        stable = 0 if anywhere else min(sequence.request.stable, len(tokens) - 1)
        while (lag := len(tokens) - row.held) > MAX_WINDOW or row.held < stable:
            chunk = min(CATCH_UP_CHUNK, lag - 1, stable - row.held if row.held < stable else lag)
            self._read(row, mx.array(tokens[row.held : row.held + chunk], mx.uint32))
            mx.eval([layer.state for layer in row.cache])
            mx.clear_cache()
            if row.held == stable:
                self._keep(row, sequence)
        return mx.array(tokens[row.held :], mx.uint32)

    def _read(self, row: _Row, window: mx.array) -> mx.array:
        """One pass over `window` [n]; the logits behind it, [1, V0]."""
        row.held += window.shape[0]
        logits: mx.array = self._model(window[None], cache=row.cache)[:, -1]
        return logits[:, : self._vocab_size] if logits.shape[-1] > self._vocab_size else logits

    def _choose(self, logits: mx.array, place: Draw) -> mx.array:
        """The token proposed there, [1]."""
        return draw(process(logits, [place]), [place])
