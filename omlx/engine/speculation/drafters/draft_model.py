"""A draft model: a smaller model that samples with the same position-keyed Gumbel noise.

Noise (see sampling.py), filters and penalties are the target's, so verification is equality. Under
a mask each token is read back, because the next mask depends on it. The cache is caught up lazily:
what the row committed since the last draft is read first. After a rejection each layer is rewound
as far as it can be; the remaining tokens stay pending. Prefixes are cached in a separate index.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar, Final, cast

import mlx.core as mx

from omlx.engine.image.span import words_before, words_between
from omlx.engine.masking import Lookahead
from omlx.engine.model import Cache, MakeCache, Model, id_limit
from omlx.engine.prefix.index import PrefixIndex
from omlx.engine.prefix.payload import Payloads, layout_of, uncacheable
from omlx.engine.rewind import Mark, leaves, mark, rewind, traits
from omlx.engine.sampling import Draw, RowSampler, draw, permit, process
from omlx.engine.sequence import Sequence
from omlx.engine.speculation.drafter import Drafter
from omlx.engine.speculation.proposal import Draft, Proposal
from omlx.engine.strategy import Clause
from omlx.errors import RewindError

CATCH_UP_CHUNK: Final = 512
"""Tokens per pass while catching up."""

FIRST_TIMED: Final = 4
TIMED_EVERY: Final = 16
"""Rounds timed on their own, before verification is launched: the first, then one in sixteen."""

LOOK_BACK: Final = 128
"""Tokens at the end of a prompt that are read at first: whether a model is good shows there, and to
read the rest may take longer than it saves."""

MAX_WINDOW: Final = 16
"""Tokens that the first pass of a round reads at most: it computes logits for all of them."""


@dataclass(slots=True)
class _RowCache:
    """`held` tokens are in the cache, of which the first `valid` are committed.

    `marks` are rollback points between the two. `unreadable`: the sequence has an id outside the
    model's embedding; the first `scanned` tokens were checked. `unseen` tokens of the prompt are
    images, of which the draft model reads nothing, or words that it skipped: `held` and `valid`
    count the words behind the first `skipped`, of which no cached prefix has `unread`.
    """

    cache: Cache
    held: int = 0
    valid: int = 0
    marks: list[Mark] = field(default_factory=list)
    sampler: RowSampler | None = None
    scanned: int = 0
    unreadable: bool = False
    unseen: int = 0
    skipped: int = 0
    unread: int = 0


class DraftModel(Drafter):
    """A `Drafter`. `vocab_size` is the target's, `prefix_bytes` bounds the prefix cache."""

    kind: ClassVar[str] = "draft"
    name = "draft"

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
        self._id_limit = id_limit(model, make_cache)
        self._rows: dict[int, _RowCache] = {}
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

    def propose(self, sequence: Sequence, limit: int, clause: Clause) -> Proposal | None:
        row = self._row(sequence)
        if limit < 1 or self._is_unreadable(row, sequence):
            return None
        lag = len(sequence.tokens) - row.unseen - row.valid
        more = lag - LOOK_BACK
        if row.skipped and not row.held and more > 0:  # nothing was read yet
            row.skipped += more
            row.unseen += more
            row.unread += more
            lag = LOOK_BACK
        return Proposal(self.name, limit, lag=lag, skipped=row.unread, clause=clause)

    def draft(self, sequence: Sequence, limit: int) -> Draft | None:
        if limit < 1:
            return None
        started = time.perf_counter()
        row = self._row(sequence)
        if row.sampler is None:
            row.sampler = RowSampler(sequence.request.sampling, self._vocab_size)
        self._rewind(row, min(row.valid, len(sequence.tokens) - row.unseen - 1))
        window = self._catch_up(row, sequence)
        draft = mx.concatenate(self._draft_tokens(row, sequence, window, limit))
        self._rounds += 1
        if sequence.request.mask is not None:
            tokens = tuple(cast(list[int], draft.tolist()))
            return Draft(self.name, len(tokens), tokens, seconds=time.perf_counter() - started)
        if self._rounds > FIRST_TIMED and self._rounds % TIMED_EVERY:
            return Draft(self.name, limit, array=draft)
        mx.eval(draft)
        return Draft(self.name, limit, array=draft, seconds=time.perf_counter() - started)

    def _draft_tokens(
        self, row: _RowCache, sequence: Sequence, window: mx.array, limit: int
    ) -> list[mx.array]:
        """Draft up to `limit` tokens, [1] each, behind `window` [n]; fewer at the output's end."""
        assert row.sampler is not None
        sampling, mask = sequence.request.sampling, sequence.request.mask
        history = None
        if sampling.penalised:
            spans, stop = sequence.request.spans, len(sequence.tokens)
            known = words_before(sequence.tokens, spans, stop, sampling.history)
            history = mx.array(known, mx.uint32)
        proposed: list[mx.array] = []
        row.valid = len(sequence.tokens) - row.unseen
        if self._traits.sliding_window is not None:
            row.marks = [mark(row.cache, row.held, fresh=True)]
        with nullcontext() if mask is None else Lookahead(mask) as ahead:
            for i in range(limit):
                if self._traits.recurrent and self._traits.sliding_window is None:
                    row.marks.append(mark(row.cache, row.held))
                logits = self._read(row, window)
                if mask is not None:
                    logits = permit(logits, [mask.bits()])
                window = self._sample(logits, Draw(row.sampler, len(sequence.tokens) + i, history))
                if history is not None:
                    history = mx.concatenate([history, window])[-sampling.history :]
                mx.async_eval(window)
                proposed.append(window)
                if ahead is not None and not ahead.advance(cast(int, window.item())):
                    break
        return proposed

    def read_whole(self, sequence: Sequence) -> None:
        self._rows[sequence.row] = self._new_row(sequence, whole=True)

    def observe(self, sequence: Sequence, accepted: int) -> None:
        row = self._rows[sequence.row]
        # The last token of a draft was never read. The others are valid up to the first rejection.
        row.valid = min(row.valid + accepted, row.held)

    def drop(self, row: int) -> None:
        self._rows.pop(row, None)
        if self._index is not None:
            self._index.release(row)

    def store(self, sequence: Sequence) -> None:
        row = self._rows.get(sequence.row)
        if row is not None:
            self._rewind(row, row.valid)
            self._save(row, sequence)

    def clear(self) -> None:
        if self._index is not None:
            self._kept.evict(self._index.clear())

    def set_prefix_budget(self, max_bytes: int) -> None:
        if self._index is not None:
            self._kept.evict(self._index.evict(max_bytes))
            self._index.max_bytes = max_bytes

    @property
    def nbytes(self) -> int:
        layers = chain.from_iterable(row.cache for row in self._rows.values())
        return self._kept.nbytes + sum(layer.nbytes for layer in layers)

    def check(self) -> None:
        """Raise AssertionError if a cache holds more or fewer tokens than its record says."""
        if self._index is not None:
            self._index.check()
            assert self._index.nbytes >= self._kept.nbytes
        for row in self._rows.values():
            for leaf in leaves(row.cache):
                offset = getattr(leaf, "offset", None)
                assert offset is None or offset == row.held, (offset, row.held)

    def _row(self, sequence: Sequence) -> _RowCache:
        row = self._rows.get(sequence.row)
        if row is None:
            row = self._rows[sequence.row] = self._new_row(sequence, whole=False)
        return row

    def _new_row(self, sequence: Sequence, *, whole: bool) -> _RowCache:
        """Return a cache restored from the longest cached prefix.

        Where that leaves more than `LOOK_BACK` tokens to read, the cache begins with these, unless
        it is for the `whole` sequence.
        """
        match, held, read = None, 0, _words(sequence, 0)
        images = len(sequence.tokens) - len(read)
        if self._index is not None:
            match = self._index.match(read)
        if match is not None:
            held = match.length
        if not whole and len(read) - held > LOOK_BACK:
            skipped = len(read) - LOOK_BACK
            unseen = images + skipped
            return _RowCache(
                self._make_cache(), unseen=unseen, skipped=skipped, unread=skipped - held
            )
        if self._index is not None:
            self._index.use(sequence.row, match)
        if match is None:
            return _RowCache(self._make_cache(), unseen=images)
        return _RowCache(self._kept.build(match.pieces, held, len(read)), held, held, unseen=images)

    def _save(self, row: _RowCache, sequence: Sequence) -> None:
        if self._index is not None and row.held and not row.skipped:
            pieces, evicted = self._index.insert(sequence.row, _words(sequence, 0, row.held))
            self._kept.evict(evicted)
            self._kept.keep(row.cache, pieces)

    def _is_unreadable(self, row: _RowCache, sequence: Sequence) -> bool:
        """Whether the sequence has an id that this model has no row for; looks at new tokens."""
        if self._id_limit < self._vocab_size and not row.unreadable:
            new = sequence.tokens[row.scanned :]
            row.scanned = len(sequence.tokens)
            row.unreadable = any(token >= self._id_limit for token in new)
        return row.unreadable

    def _rewind(self, row: _RowCache, target: int) -> None:
        """Roll the cache back to at most `target` tokens; to none if it cannot be."""
        if target < row.held:
            try:
                row.held = rewind(row.cache, row.held, target, row.marks)
            except RewindError:
                row.cache, row.held = self._make_cache(), 0
        row.valid = min(row.valid, row.held)
        row.marks = []

    def _catch_up(self, row: _RowCache, sequence: Sequence) -> mx.array:
        """Read what the row has committed, but for the round's first window, which is returned.

        A cache that resumes only at saved positions stops at the prompt's stable end to be saved.
        """
        size, stable = len(sequence.tokens) - row.unseen, 0
        if self._index is not None and not row.skipped and not self._index.layout.resumes_anywhere:
            stable = min(_words_before(sequence, sequence.request.stable), size - 1)
        while size - row.held > MAX_WINDOW or row.held < stable:
            stop = stable if row.held < stable else size - 1
            first, last = row.held, min(stop, row.held + CATCH_UP_CHUNK)
            chunk = _words(sequence, row.skipped + first, row.skipped + last)
            self._read(row, mx.array(chunk, mx.uint32))
            mx.eval([layer.state for layer in row.cache])
            mx.clear_cache()
            if row.held == stable:
                self._save(row, sequence)
        return mx.array(_words(sequence, row.skipped + row.held), mx.uint32)

    def _read(self, row: _RowCache, window: mx.array) -> mx.array:
        """Read `window` [n] in one pass. Return the logits behind it, [1, vocab_size]."""
        row.held += window.shape[0]
        logits: mx.array = self._model(window[None], cache=row.cache)[:, -1]
        missing = self._vocab_size - logits.shape[-1]
        if missing < 0:
            return logits[:, : self._vocab_size]
        if missing:  # noise of another size would be unrelated to the target's
            return mx.pad(logits, [(0, 0), (0, missing)], constant_values=-mx.inf)
        return logits

    def _sample(self, logits: mx.array, place: Draw) -> mx.array:
        """Sample the draft token, [1]."""
        return draw(process(logits, [place]), [place])


def _words(sequence: Sequence, start: int, stop: int | None = None) -> list[int]:
    """Return words [start, stop) of a row, counted without image tokens."""
    last = len(sequence.tokens) if stop is None else stop
    return words_between(sequence.tokens, sequence.request.spans, start, last)


def _words_before(sequence: Sequence, at: int) -> int:
    """Return how many of the first `at` tokens, which end in no image, are words."""
    spans = sequence.request.spans
    return at - sum(span.stop - span.start for span in spans if span.stop <= at)
