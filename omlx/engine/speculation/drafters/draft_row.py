"""One row of a draft model: which of the target row's tokens its cache holds and lacks."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from omlx.engine.image import words_before, words_between
from omlx.engine.row import Row
from omlx.engine.sampling import Draw, RowSampler


@dataclass(slots=True)
class DraftRow:
    """The first `valid` tokens of the row's cache are committed.

    `unreadable`: the row has an id outside the model's embedding; the first `scanned` tokens
    were checked. `unseen` tokens of the prompt are images, of which a draft model reads nothing, or
    words that it skipped: the cache holds words behind the first `skipped`, of which no cached
    prefix has `unread`. `idle` counts rounds in which only others drafted.
    """

    target: Row
    sampler: RowSampler
    valid: int = 0
    scanned: int = 0
    unreadable: bool = False
    unseen: int = 0
    skipped: int = 0
    unread: int = 0
    idle: int = 0

    @property
    def id(self) -> int:
        """The id of the row."""
        return self.target.id

    @property
    def size(self) -> int:
        """Tokens of the row that the cache is to hold."""
        return len(self.target.tokens) - self.unseen

    @property
    def lag(self) -> int:
        """Tokens to read before the next draft."""
        return self.size - self.valid

    def skip(self, words: int) -> None:
        """Begin so many words later. The cache must be empty."""
        self.skipped += words
        self.unseen += words
        self.unread += words

    def has_id_from(self, limit: int) -> bool:
        """Return whether an id is not below `limit`. Looks at new tokens only."""
        if not self.unreadable:
            new = self.target.tokens[self.scanned :]
            self.scanned = len(self.target.tokens)
            self.unreadable = any(token >= limit for token in new)
        return self.unreadable

    def words(self, start: int, stop: int | None = None) -> list[int]:
        """Return words [start, stop) of the row, counted without image tokens."""
        last = len(self.target.tokens) if stop is None else stop
        return words_between(self.target.tokens, self.target.request.spans, start, last)

    def words_before(self, at: int) -> int:
        """Return how many of the first `at` tokens, which end in no image, are words."""
        spans = self.target.request.spans
        return at - sum(span.stop - span.start for span in spans if span.stop <= at)

    @property
    def first_place(self) -> Draw:
        """Where the first token of a draft is sampled."""
        at, sampling, history = len(self.target.tokens), self.sampler.sampling, None
        if sampling.penalised:
            spans = self.target.request.spans
            known = words_before(self.target.tokens, spans, at, sampling.history)
            history = mx.array(known, mx.uint32)
        return Draw(self.sampler, at, history)


def next_place(place: Draw, chosen: mx.array) -> Draw:
    """Return where the token behind `chosen` [1] is sampled."""
    history = place.history
    if history is not None:
        history = mx.concatenate([history, chosen])[-place.sampler.sampling.history :]
    return Draw(place.sampler, place.position + 1, history)
