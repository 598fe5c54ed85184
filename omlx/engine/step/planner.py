"""The next step's windows. Pure Python; writes no row.

A step may be planned while another is in flight, whose token stands in as `LAST`, if the step in
flight only samples plain tokens or reads prompts, and the rows stay the same. Everything else is a
barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from omlx.engine.device_errors import isolate
from omlx.engine.prefix.reuse import PrefixReuse
from omlx.engine.speculation.drafter import Draft
from omlx.engine.speculation.speculator import Speculator
from omlx.engine.step.plan import LAST, CacheOp, Forward, Plan, Step, Window
from omlx.engine.step.prefill import PrefillChunk
from omlx.engine.step.priority import PrefillPacing, PromptOrder
from omlx.engine.step.row import Batch, Row
from omlx.engine.types import Limits, TokenMask
from omlx.engine.vision.features import Looks
from omlx.engine.vision.spans import spans_within, words_before

SCORED_COPIES: Final = 3
"""Logits of a prompt in float32 that exist at once while they are scored."""


class Planner:
    """Windows of one model's rows."""

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
        self.looks = looks
        self._batch = batch
        self._prefix = prefix
        self.chunk = chunk
        self.order = PromptOrder()
        self.pacing = PrefillPacing(limits, speculator.cost_model.target)

    def open(self, row: Row) -> None:
        """Let the drafters of a row begin, before its prompt is read."""
        self.speculator.open(row)

    def must_commit_first(
        self, in_flight: Plan, running: Sequence[Row], decoding: Sequence[Row]
    ) -> bool:
        """Whether a plan must be committed before the next one is made."""
        if in_flight.drafts:
            return True
        prompts = self._prompts(running, decoding)
        if prompts and self._prompt_waits(in_flight, prompts, decoding):
            return True
        if not decoding:
            return False
        for row in decoding:
            # A row that the step in flight does not decode, one at its length limit, a mask that
            # depends on the token in flight; and a first token is delivered before the next launch,
            # which waits for the device on a CPU.
            masked = row.request.mask is not None and row.mask is not None
            if masked or not row.unread or row.remaining < 1 or not row.clock.first_token:
                return True
        return self._batch.changes(decoding) or self._wants_draft(decoding)

    def _prompts(self, running: Sequence[Row], decoding: Sequence[Row]) -> list[Row]:
        """Return the rows whose prompts are next, in order."""
        return [] if len(decoding) == len(running) else self.order.first(running)

    def _prompt_waits(
        self, in_flight: Plan, prompts: Sequence[Row], decoding: Sequence[Row]
    ) -> bool:
        """Whether steps with prompts wait for each other.

        Memory may be too short for both. Beside decoding rows a launch may wait for the step
        before, as on a CPU: steps with slices are timed alone.
        """
        budget, row = self._budget(prompts, decoding), prompts[0]
        if decoding and self.pacing.timed and (budget or in_flight.prompts):
            return True
        return bool(budget) and self.chunk.waits(row.computed, min(budget, row.pending - 1))

    def turn(self, decoding: list[Row]) -> list[Row]:
        """Return the rows to decode next. Rows that wait for a prompt wait for its first token."""
        self.pacing.holding = False
        fresh = [row for row in decoding if not row.clock.first_token]
        if not fresh or len(decoding) < 2:
            return decoding
        begun = [row for row in decoding if row.clock.first_token]
        if begun and self.order.joint(fresh[0], begun):
            turn = fresh
        elif self.pacing.holds:
            urgent = min(row.request.priority for row in fresh)
            turn = [row for row in decoding if row.request.priority <= urgent]
        else:
            return decoding
        if any(row.id in self._batch.members for row in turn):  # the batch decodes as a whole
            return decoding
        self.pacing.holding = len(turn) < len(decoding)
        return turn

    def plan(
        self, running: Sequence[Row], decoding: Sequence[Row], ops: Sequence[CacheOp]
    ) -> Step | None:
        """Return a step behind `ops`: decode windows first, then prefill chunks; None for nothing.

        The rows are left as they are.
        """
        chunks: list[Forward] = []
        looks: list[CacheOp] = []
        prompts = self._prompts(running, decoding)
        if prompts:
            chunks, looks = self._prefill(prompts, decoding)
        beside = len(decoding)  # rows that decode or wait for a slice
        if chunks and self._decoding_waits(prompts, decoding):
            decoding, beside, self.pacing.holding = (), 0, True
        elif chunks and self.pacing.timed:
            decoding = ()
        caught_up = self.speculator.catch_up(decoding, alone=len(running) == 1)
        drafts: dict[int, object] = {}
        forwards = self._decode(decoding, drafts)
        plan = Plan((*ops, *looks), (*forwards, *chunks))
        if not plan.ops and not plan.forwards:
            return None
        self.pacing.planned(beside, plan.prompt_tokens if chunks else 0)
        if chunks:
            self.order.planned(running, {window.row for window in plan.prompts})
        masks: dict[int, TokenMask] = {}
        for row in decoding:
            if row.request.mask is not None and (mask := row.mask) is not None:
                masks[row.id] = mask
        images = self.looks.prepared(looks, running) if looks else {}
        return Step(plan, drafts, masks, images, caught_up=caught_up)

    def observe(self, plan: Plan, seconds: float, activations: int | None = None) -> None:
        """Learn how long a step took, and what its pass over a prompt took of memory."""
        windows = plan.prompts
        read = plan.prompt_tokens if windows else 0
        self.pacing.observe(read, seconds)
        if not windows:
            return
        context = max(window.start + window.width for window in windows)
        if len(windows) > 1 or windows[0].next_token is not None:
            activations = None  # of several passes, or with logits
        if activations is not None:
            activations -= read * self._prefix.layout.row_bytes  # the KV cache, which stays
        self.chunk.observe(read, context, seconds, activations)

    def _groups(self, decoding: Sequence[Row]) -> list[Sequence[Row]]:
        """Return the rows of each pass: each row that is alone, then those of the batch."""
        if len(decoding) == 1:
            return [decoding]
        by_row, members = {row.id: row for row in decoding}, self._batch.members
        if not members or members[0] not in by_row:
            return [[row] for row in decoding]
        groups = [[row] for row in decoding if row.id not in members]
        return [*groups, [by_row[member] for member in members]]

    def _wants_draft(self, decoding: Sequence[Row]) -> bool:
        for rows in self._groups(decoding):
            may = self._batch.may_draft(rows[0].id, len(decoding))
            if may and self.speculator.wants(rows):
                return True
        return False

    def _decode(self, decoding: Sequence[Row], arrays: dict[int, object]) -> list[Forward]:
        """Return the passes of decoding rows. Adds drafts that only the device knows, by row."""
        forwards = []
        for rows in self._groups(decoding):
            drafts = self._draft(rows, len(decoding))
            windows = []
            for row in rows:
                draft = drafts.get(row.id)
                windows.append(self._window(row, draft))
                if draft is not None and draft.array is not None:
                    arrays[row.id] = draft.array
            forwards.append(Forward(tuple(windows), batched=rows[0].id in self._batch.members))
        return forwards

    def _draft(self, rows: Sequence[Row], decoding: int) -> dict[int, Draft]:
        if rows[0].unread:  # as all of them are: nothing changes while steps overlap
            self.speculator.decode_plainly(rows)
            return {}
        batched = rows[0].id in self._batch.members
        batch_refusal = self._batch.no_uneven if batched else None
        refused = [self.speculator.record_refusal(row, batch_refusal) for row in rows]
        drafts: dict[int, Draft] = {}
        if not all(refused) and self._batch.may_draft(rows[0].id, decoding):
            with isolate() as outcome:  # the rows continue without their drafters
                drafts = self.speculator.draft(rows)
            if outcome.error is not None:
                for row in rows:
                    self.speculator.disable(row, outcome.error)
        return drafts

    def _window(self, row: Row, draft: Draft | None) -> Window:
        start, spans, penalties = row.computed, row.request.spans, row.request.sampling
        tokens: tuple[int, ...] | Literal["last"] = LAST
        if not row.unread:
            tokens = tuple(row.tokens[start:])
        seen: tuple[int, ...] = ()
        if penalties.penalised:
            seen = words_before(row.tokens, spans, start, penalties.history)
        if draft is None:
            return Window(row.id, start, tokens, history=seen)
        return Window(
            row=row.id,
            start=start,
            tokens=tokens,
            draft_n=draft.n,
            draft=draft.tokens,
            drafter=draft.drafter,
            history=seen,
        )

    def _decoding_waits(self, prompts: Sequence[Row], decoding: Sequence[Row]) -> bool:
        """Whether all decoding rows wait for a prompt: less urgent ones, and those that came with
        the prompt.
        """
        if not decoding:
            return False
        peers = _peers(prompts[0], decoding)
        return self.order.joint(prompts[0], peers) > 0 if peers else self.pacing.holds

    def _prefill(
        self, prompts: Sequence[Row], decoding: Sequence[Row]
    ) -> tuple[list[Forward], list[CacheOp]]:
        """Return chunks of the most urgent prompts within a budget, and looks at images.

        The last token of a prompt is left for the first decode window.
        """
        limits, budget = self.limits, self._budget(prompts, decoding)
        self.chunk.begin()
        forwards: list[Forward] = []
        looks: list[CacheOp] = []
        read = 0
        for row in prompts:
            if budget < 1:
                break
            scored = row.request.prompt_logprobs is not None
            # Logits of every prompt token are kept where they are scored: read less at once.
            most = min(budget, limits.prefill_slice) if scored else budget
            start, whole = row.computed, self._whole_chunk(row)
            if whole is not None:
                if whole > most and forwards:
                    continue  # a later step reads it as a whole
                most = whole
            ops, spent, ready = self.looks.plan(row, most)
            looks += ops
            budget -= spent
            chunk = whole if whole is not None else self._chunk(row, most - spent, ready)
            if not chunk or (whole is not None and start + chunk > ready):
                continue
            *tokens, end = row.tokens[start : start + chunk + 1]
            following = end if scored else None
            window = Window(row.id, start, tuple(tokens), sample=False, next_token=following)
            forwards.append(Forward((window,)))
            budget -= chunk
            read += chunk
            if row.pending == chunk + 1:  # the first token waits for a slice at most
                budget = min(budget, self._slice(row) - read)
        return forwards, looks

    def _budget(self, prompts: Sequence[Row], decoding: Sequence[Row]) -> int:
        """Return the most prompt tokens of a step. 0: decoding rows are due."""
        row, budget = prompts[0], self.limits.prefill_chunk
        if self.pacing.timed and row.request.priority > 0:
            budget = self._slice(row)  # more urgent requests wait little
        if peers := _peers(row, decoding):
            if not all(peer.clock.first_token for peer in peers):
                return 0
            together = min(budget, self.order.joint(row, peers))
            budget = together or (self._slice(row) if self.pacing.due else 0)
        return min(budget, self.chunk.tokens)

    def _slice(self, row: Row) -> int:
        if self.pacing.timed:
            return self.pacing.tokens(row.computed)
        return self.limits.prefill_slice

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


def _peers(prompt: Row, decoding: Sequence[Row]) -> list[Row]:
    """Return the decoding rows that are as urgent as a prompt."""
    return [row for row in decoding if row.request.priority <= prompt.request.priority]
