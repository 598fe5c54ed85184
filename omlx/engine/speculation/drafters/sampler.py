"""Drafts token by token, for draft models and heads.

    output ──► sample ──► token ──► step ──► output ──► …        until the limit or the output's end

Noise (see sampling.py), filters, penalties and mask are the target's, so verification is equality.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeAlias, cast

import mlx.core as mx

from omlx.engine.device.sampling import Draw, RowSampler, draw, permit, process
from omlx.engine.speculation.drafter import Draft, Drafter, is_timed
from omlx.engine.step.masking import lookahead
from omlx.engine.step.row import Row
from omlx.engine.types import TokenMask
from omlx.engine.vision.spans import words_before

Sample: TypeAlias = Callable[[mx.array], mx.array]
"""Takes the tokens [rows] of a model's output."""

Step: TypeAlias = Callable[[mx.array, mx.array], mx.array]
"""Reads these tokens behind that output; returns the next output."""


@dataclass(slots=True)
class TokenSampler:
    """Samples the drafts of rows, as the target would.

    `places` are those of the next tokens, `tokens` [rows] each the drafts so far. The `mask` of a
    row alone is advanced on trial; its draft has `ended` behind the last token of the output.
    """

    places: list[Draw]
    mask: TokenMask | None = None
    advance: Callable[[int], bool] | None = None
    tokens: list[mx.array] = field(default_factory=list)
    ended: bool = False
    bare: bool = field(init=False)

    def __post_init__(self) -> None:
        bare = all(map(attrgetter("sampler.bare"), self.places))
        self.bare = bare and self.mask is None

    def sample(self, logits: mx.array) -> mx.array:
        """Sample tokens [rows] of logits [rows, vocab_size]; dispatched, not awaited."""
        if self.bare:
            return self.take(mx.argmax(logits, axis=-1))
        if self.mask is not None and not self.ended:
            logits = permit(logits, [self.mask.bits()])
        return self.take(draw(process(logits, self.places), self.places))

    def take(self, chosen: mx.array) -> mx.array:
        """Take the tokens [rows] of these places, and advance to the next."""
        mx.async_eval(chosen)
        for i, place in enumerate(self.places):
            place.position += 1
            if place.history is not None:
                history = mx.concatenate([place.history, chosen[i : i + 1]])
                place.history = history[-place.sampler.sampling.history :]
        if not self.ended:
            self.tokens.append(chosen)
            if self.advance is not None:
                self.ended = not self.advance(cast(int, chosen.item()))
        return chosen

    def draft(self, limit: int, output: mx.array, sample: Sample, step: Step) -> None:
        """Draft up to `limit` tokens of each row, behind the newest `output` of a model."""
        tokens = sample(output)
        for _ in range(limit - 1):
            if self.ended:
                return
            output = step(tokens, output)
            tokens = sample(output)

    @property
    def drafts(self) -> list[mx.array]:
        """The draft [n] of each row."""
        if len(self.places) == 1:
            return [mx.concatenate(self.tokens)]
        return [*mx.stack(self.tokens, axis=1)]


@contextmanager
def token_sampler(rows: Sequence[tuple[Row, RowSampler]]) -> Iterator[TokenSampler]:
    """Sample behind the tokens of rows; the mask of the first is advanced on trial."""
    places, mask = [], rows[0][0].mask
    for row, sampler in rows:
        at, history = len(row.tokens), None
        if sampler.penalised:
            known = words_before(row.tokens, row.request.spans, at, sampler.sampling.history)
            history = mx.array(known, mx.uint32)
        places.append(Draw(sampler, at, history))
    with nullcontext() if mask is None else lookahead(mask) as advance:
        yield TokenSampler(places, mask, advance)


class SampledDrafter(Drafter):
    """A `Drafter` that runs a model for each draft; some of its rounds are timed."""

    _rounds = 0

    def _drafts(
        self, limits: Sequence[tuple[Row, int]], drafted: Sequence[mx.array], started: float
    ) -> dict[int, Draft]:
        """Return the drafts of rows, by row: each at most as long as its limit.

        `drafted` [n] were begun at `started`; the time is shared in proportion to the limits.
        """
        self._rounds += 1
        first, seconds, made = limits[0][0], None, dict[int, Draft]()
        if first.mask is not None:  # a row alone, whose tokens were read back
            ids = tuple(cast(list[int], drafted[0].tolist()))
            seconds = time.perf_counter() - started
            return {first.id: Draft(self.name, len(ids), ids, seconds=seconds)}
        if is_timed(self._rounds):
            mx.eval(drafted)
            seconds = time.perf_counter() - started
        total = sum([limit for _, limit in limits])
        for (row, limit), tokens in zip(limits, drafted, strict=True):
            share = None if seconds is None else seconds * limit / total
            array = tokens if len(tokens) == limit else tokens[:limit]
            made[row.id] = Draft(self.name, limit, array=array, seconds=share, rows=len(limits))
        return made
