"""What every row reads in the next step. Pure Python; reads rows and writes none.

A step may be planned while the one before it is in flight, its token standing in as `LAST`, if that
one only samples plain tokens or reads prompts, and nothing about the rows changes. Everything else
is a barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final, Literal

from omlx.engine.batch import Batch
from omlx.engine.device_errors import isolate
from omlx.engine.image import spans_within, words_before
from omlx.engine.plan import LAST, CacheOp, Forward, Plan, Window
from omlx.engine.prefill import PrefillChunk
from omlx.engine.prefix.reuse import PrefixReuse
from omlx.engine.row import Interval, Row, Status
from omlx.engine.speculation.proposal import Draft
from omlx.engine.speculation.speculator import Speculator
from omlx.engine.types import Limits
from omlx.engine.vision.looks import Looks

SCORED_COPIES: Final = 3
"""Logits of a prompt in float32 that exist at once while they are scored."""


class Planner:
    """Windows of one model's rows.

    `drafts` holds the draft tokens of the newest plan that only the device knows, by row.
    `look_ops` are its operations on images. `caught_up` says that a draft model read a slice of
    what it lags while it was made.
    """

    def __init__(
        self,
        limits: Limits,
        batch: Batch,
        prefix: PrefixReuse,
        speculator: Speculator,
        looks: Looks,
        chunk: PrefillChunk,
    ) -> None:
        self.limits = limits
        self.speculator = speculator
        self.drafts: dict[int, object] = {}
        self.look_ops: list[CacheOp] = []
        self.caught_up = False
        self.looks = looks
        self._batch = batch
        self._prefix = prefix
        self.chunk = chunk
        # Rows that the newest plan samples; None: it verifies a draft.
        self._sampled: set[int] | None = None

    def open(self, row: Row) -> None:
        """Let the drafters of a row begin, before its prompt is read."""
        self.speculator.open(row)

    def must_commit_first(self, running: Sequence[Row], decoding: Sequence[Row]) -> bool:
        """Whether the newest plan must be committed before the next one is made."""
        if self._sampled is None or self._prefill_waits(running, decoding):
            return True
        if not decoding:
            return False
        # A row at its length limit ends with the token in flight; a mask depends on it.
        if any(s.remaining < 1 or s.mask is not None for s in decoding):
            return True
        if self._sampled != {s.id for s in decoding} or self._batch.changes(decoding):
            return True
        return self._would_draft(decoding)

    def plan(self, running: Sequence[Row], decoding: Sequence[Row]) -> list[Forward]:
        """Decode windows first, then prefill chunks."""
        self.drafts, self.look_ops = {}, []
        self.caught_up = self.speculator.catch_up(decoding, alone=len(running) == 1)
        forwards = self._decode(decoding)
        forwards += self._prefill(running, stall_matters=len(decoding) > 0)
        windows = list(chain.from_iterable(forward.windows for forward in forwards))
        self._sampled = {window.row for window in windows if window.sample}
        if any(window.draft_n for window in windows):
            self._sampled = None
        return forwards

    def observe(self, plan: Plan, seconds: float, activations: int | None = None) -> None:
        """Learn how long a step took, and what its pass over a prompt took of memory."""
        windows = [window for window in plan.windows if not window.sample]
        if not windows:
            return
        read, context = sum(w.width for w in windows), max(w.start + w.width for w in windows)
        if len(windows) > 1 or windows[0].end is not None:
            activations = None  # of several passes, or with logits
        if activations is not None:
            activations -= read * self._prefix.layout.row_bytes  # the KV cache, which stays
        self.chunk.observe(read, context, seconds, activations)

    def observe_pass(self, rows: Sequence[Row], interval: Interval | None) -> Interval | None:
        """Learn how long a pass over a batch took, and return it with the estimate of a plain step;
        a row's record learns that of a single row.
        """
        if interval is None or interval.rows == 1 or not rows:
            return interval
        return self.speculator.observe_pass(rows, interval)

    def _groups(self, decoding: Sequence[Row]) -> list[list[Row]]:
        """Return the rows of each pass: each row that is alone, then those of the batch."""
        by_row, members = {row.id: row for row in decoding}, self._batch.members
        groups = [[row] for row in decoding if row.id not in members]
        if members:
            groups.append([by_row[member] for member in members])
        return groups

    def _may_draft(self, rows: Sequence[Row], decoding: int) -> bool:
        """Whether the rows of a pass may draft: not one that joins the batch next."""
        if rows[0].id in self._batch.members:
            return self._batch.no_uneven is None
        return self._batch.drafts_alone(rows[0].id, decoding)

    def _would_draft(self, decoding: Sequence[Row]) -> bool:
        for rows in self._groups(decoding):
            if self._may_draft(rows, len(decoding)):
                wants = True  # where `would_draft` raises, `draft` raises too, and is isolated
                with isolate():
                    wants = self.speculator.would_draft(rows)
                if wants:
                    return True
        return False

    def _decode(self, decoding: Sequence[Row]) -> list[Forward]:
        forwards = []
        for rows in self._groups(decoding):
            drafts = self._draft(rows, len(decoding))
            windows = tuple(self._window(row, drafts.get(row.id)) for row in rows)
            forwards.append(Forward(windows, batched=rows[0].id in self._batch.members))
        return forwards

    def _draft(self, rows: Sequence[Row], decoding: int) -> dict[int, Draft]:
        if any(row.unread for row in rows):
            return {}  # nothing about the rows changes while steps overlap
        batched = rows[0].id in self._batch.members
        paused = self._batch.no_uneven if batched else None
        refused = [self.speculator.record_refusal(row, paused) for row in rows]
        drafts: dict[int, Draft] = {}
        if not all(refused) and self._may_draft(rows, decoding):
            with isolate() as outcome:  # the rows continue without their drafters
                drafts = self.speculator.draft(rows)
            if outcome.error is not None:
                for row in rows:
                    self.speculator.disable(row, outcome.error)
        return drafts

    def _window(self, row: Row, draft: Draft | None) -> Window:
        start, history = row.computed, row.request.sampling.history
        tokens: tuple[int, ...] | Literal["last"] = LAST
        if not row.unread:
            tokens = tuple(row.tokens[start:])
        seen = words_before(row.tokens, row.request.spans, start, history)
        if draft is None:
            return Window(row.id, start, tokens, history=seen)
        if draft.array is not None:
            self.drafts[row.id] = draft.array
        return Window(
            row=row.id,
            start=start,
            tokens=tokens,
            draft_n=draft.n,
            draft=draft.tokens,
            drafter=draft.drafter,
            history=seen,
        )

    def _prefill(self, running: Sequence[Row], *, stall_matters: bool) -> list[Forward]:
        """Chunks in order of admission, within one budget of tokens.

        The last token of a prompt is left for the first decode window.
        """
        limits = self.limits
        budget = self._budget(stall_matters=stall_matters)
        self.chunk.begin()
        forwards: list[Forward] = []
        for row in running:
            if row.status is not Status.PREFILL or row.restoring or budget < 1:
                continue
            scored = row.request.prompt_logprobs is not None
            # Logits of every prompt token are kept where they are scored: read less at once.
            most = min(budget, limits.prefill_slice) if scored else budget
            start, whole = row.computed, self._whole_chunk(row)
            if whole is not None:
                if whole > most and forwards:
                    continue  # a later step reads it as a whole
                most = whole
            ops, spent, ready = self.looks.plan(row, most)
            self.look_ops += ops
            budget -= spent
            chunk = whole if whole is not None else self._chunk(row, most - spent, ready)
            if not chunk or (whole is not None and start + chunk > ready):
                continue
            *tokens, end = row.tokens[start : start + chunk + 1]
            following = end if scored else None
            window = Window(row.id, start, tuple(tokens), sample=False, end=following)
            forwards.append(Forward((window,)))
            budget -= chunk
        return forwards

    def _budget(self, *, stall_matters: bool) -> int:
        """Return the tokens of prompts that a step reads at most."""
        budget = self.limits.prefill_slice if stall_matters else self.limits.prefill_chunk
        return min(budget, self.chunk.tokens)

    def _prefill_waits(self, running: Sequence[Row], decoding: Sequence[Row]) -> bool:
        """Whether memory is too short for the next pass over a prompt beside the step in flight."""
        for row in running:
            if row.status is Status.PREFILL and not row.restoring:
                budget = self._budget(stall_matters=len(decoding) > 0)
                return self.chunk.waits(row.computed, min(budget, row.pending - 1))
        return False

    def _chunk(self, row: Row, budget: int, ready: int) -> int:
        """Return how many tokens of a prompt to read next: none whose image is not computed."""
        start = row.computed
        most = min(budget, ready - start, row.pending - 1)
        if most < 1:
            return 0
        scored = row.request.prompt_logprobs is not None
        logits = SCORED_COPIES * 4 * self.limits.vocab_size if scored else 0
        most = self.chunk.fit(start, most, logits)
        if most < 1:
            return 0
        return self._outside_images(row, start + self._prefix.chunk(row, most)) - start

    def _whole_chunk(self, row: Row) -> int | None:
        """Return the only chunk that a strict model may read next, in tokens; None: any."""
        if self.limits.bounds is None:
            return None
        start, known = row.computed, len(row.tokens)
        end = self.limits.bounds.chunk_end(start, row.request.prompt_n, known)
        return self._outside_images(row, end) - start

    def _outside_images(self, row: Row, end: int) -> int:
        """Return the end of a chunk: never inside an image whose tokens attend to all of it."""
        if self.looks.tower is not None and self.looks.tower.whole:
            for span in spans_within(row.request.spans, end - 1, end):
                if span.stop > end:
                    end = span.start if span.start > row.computed else span.stop
        return end
