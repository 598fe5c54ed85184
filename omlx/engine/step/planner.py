"""The next step's windows, and the rows that share a batch. Pure Python; writes no row.

Rows join when a second one decodes. A row that is left alone stays for LINGER_STEPS, so that a
second row that comes and goes does not cause copies back and forth, and is then split off.

A step may be planned while the one before it is in flight, its token standing in as `LAST`, if that
one only samples plain tokens or reads prompts, and nothing about the rows changes. Everything else
is a barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

from omlx.engine.device_errors import isolate
from omlx.engine.prefix.reuse import PrefixReuse
from omlx.engine.speculation.drafter import Draft
from omlx.engine.speculation.speculator import Speculator
from omlx.engine.step.plan import LAST, CacheOp, Extract, Filter, Forward, Merge, Plan, Step, Window
from omlx.engine.step.prefill import PrefillChunk
from omlx.engine.step.row import Row, Status
from omlx.engine.types import Limits
from omlx.engine.vision.features import Looks
from omlx.engine.vision.spans import spans_within, words_before
from omlx.errors import Reason

LINGER_STEPS: Final = 16


class CacheSizes(Protocol):
    """`unseen` is the share of the caches' bytes that other processes hold: 0 but in stages."""

    unseen: float

    def row_bytes(self, row: int) -> int:
        """Bytes of a row's cache now."""
        ...


class Batch:
    """The rows that share a cache, in its order.

    `off_reason` says why rows of this model cannot, `no_uneven` why they cannot read windows of
    different lengths, and so not draft; or None.
    """

    def __init__(
        self,
        limits: Limits,
        sizes: CacheSizes,
        off_reason: Reason | None,
        no_uneven: Reason | None = None,
    ) -> None:
        self.members: list[int] = []
        self.excluded: set[int] = set()  # rows for which there was no room
        self.off_reason = off_reason
        self.no_uneven = no_uneven
        self._limits = limits
        self._most = limits.max_rows if limits.bounds is None else limits.bounds.rows
        self._sizes = sizes
        self._alone: int | None = None  # the only row that decodes, since so many steps
        self._alone_steps = 0

    def changes(self, decoding: Sequence[Row]) -> bool:
        """Whether `arrange` might return operations."""
        if len(decoding) == 1:
            return self._splits_off(decoding[0].id)
        return self.off_reason is None and any(s.id not in self.members for s in decoding)

    def arrange(self, decoding: Sequence[Row]) -> list[CacheOp]:
        """Merge or split rows to fit those that decode. Called once per step."""
        if len(decoding) == 1:
            return self._arrange_alone(decoding[0].id)
        self._alone = None
        if self.off_reason is not None:
            return []
        # A row with several pending tokens commits them in a window of its own first. So does one
        # that has computed nothing yet: some recurrent layers treat the first token differently,
        # and a merge would give them a state of zeros.
        ready = [
            s
            for s in decoding
            if s.id not in self.members and s.pending == 1 and s.computed and not s.unread
        ]
        joining = self._within_memory(ready, {s.id: s.computed for s in decoding})
        self.excluded = {s.id for s in ready}.difference(joining)
        if not joining or len(joining) + len(self.members) < 2:
            return []
        self.members.extend(joining)
        return [Merge(joining)]

    def drafts_alone(self, row: int, decoding: int) -> bool:
        """Whether a row has a pass of its own while `decoding` rows decode, and stays out of the
        batch.
        """
        if row in self.members:
            return False
        return decoding == 1 or self.off_reason is not None or row in self.excluded

    def remove(self, row: int, *, keep_cache: bool) -> list[CacheOp]:
        """Take out a row that has ended, with its cache or without it."""
        if row not in self.members:
            return []
        self.members.remove(row)
        others = Filter(tuple(self.members))
        if keep_cache:
            return [Extract(row), others]
        return [others]

    def _arrange_alone(self, row: int) -> list[CacheOp]:
        splits_off = self._splits_off(row)
        if row != self._alone:
            self._alone, self._alone_steps = row, 0
        self._alone_steps += 1
        if not splits_off:
            return []
        self.members = []
        return [Extract(row), Filter(())]

    def _splits_off(self, row: int) -> bool:
        lingered = row == self._alone and self._alone_steps >= LINGER_STEPS
        return lingered and row in self.members

    def _within_memory(self, ready: Sequence[Row], lengths: dict[int, int]) -> tuple[int, ...]:
        """The ready rows that fit into the batch's memory, where every row is padded to the
        longest, and into the largest batch of a strict model.
        """
        members = list(self.members)
        joined: list[int] = []
        for row in ready:
            candidates = [*members, row.id]
            if len(candidates) > self._most:
                break
            longest = max(lengths[member] for member in candidates)
            per_token = self._sizes.row_bytes(row.id) / max(1, row.computed)
            if len(candidates) * longest * per_token <= self._limits.batch_bytes:
                members = candidates
                joined.append(row.id)
        return tuple(joined)


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

    def open(self, row: Row) -> None:
        """Let the drafters of a row begin, before its prompt is read."""
        self.speculator.open(row)

    def must_commit_first(
        self, in_flight: Plan, running: Sequence[Row], decoding: Sequence[Row]
    ) -> bool:
        """Whether a plan must be committed before the next one is made."""
        windows = in_flight.windows
        if any(window.draft_n for window in windows) or self._prefill_waits(running, decoding):
            return True
        if not decoding:
            return False
        # A row at its length limit ends with the token in flight; a mask depends on it.
        for row in decoding:
            if row.remaining < 1 or row.mask is not None:
                return True
        sampled = {window.row for window in windows if window.sample}
        if sampled != {row.id for row in decoding} or self._batch.changes(decoding):
            return True
        return self._wants_draft(decoding)

    def plan(
        self, running: Sequence[Row], decoding: Sequence[Row], ops: Sequence[CacheOp]
    ) -> Step | None:
        """Return a step behind `ops`: decode windows first, then prefill chunks; None for nothing.

        The rows are left as they are.
        """
        caught_up = self.speculator.catch_up(decoding, alone=len(running) == 1)
        drafts: dict[int, object] = {}
        forwards = self._decode(decoding, drafts)
        chunks, looks = self._prefill(running, stall_matters=len(decoding) > 0)
        plan = Plan((*ops, *looks), (*forwards, *chunks))
        if not plan.ops and not plan.forwards:
            return None
        masks = {row.id: mask for row in decoding if (mask := row.mask) is not None}
        images = self.looks.prepared(looks, running) if looks else {}
        return Step(plan, drafts, masks, images, caught_up=caught_up)

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

    def _groups(self, decoding: Sequence[Row]) -> list[list[Row]]:
        """Return the rows of each pass: each row that is alone, then those of the batch."""
        if not self._batch.members:
            return [[row] for row in decoding]
        by_row, members = {row.id: row for row in decoding}, self._batch.members
        groups = [[row] for row in decoding if row.id not in members]
        return [*groups, [by_row[member] for member in members]]

    def _may_draft(self, rows: Sequence[Row], decoding: int) -> bool:
        """Whether the rows of a pass may draft: not one that joins the batch next."""
        if rows[0].id in self._batch.members:
            return self._batch.no_uneven is None
        return self._batch.drafts_alone(rows[0].id, decoding)

    def _wants_draft(self, decoding: Sequence[Row]) -> bool:
        for rows in self._groups(decoding):
            if self._may_draft(rows, len(decoding)):
                wants = True  # where `wants` raises, `draft` raises too, and is isolated
                with isolate():
                    wants = self.speculator.wants(rows)
                if wants:
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
        if any(row.unread for row in rows):  # nothing about them changes while steps overlap
            self.speculator.decode_plainly(rows)
            return {}
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

    def _prefill(
        self, running: Sequence[Row], *, stall_matters: bool
    ) -> tuple[list[Forward], list[CacheOp]]:
        """Return chunks in order of admission, within one budget of tokens, and looks at images.

        The last token of a prompt is left for the first decode window.
        """
        limits = self.limits
        budget = self._budget(stall_matters=stall_matters)
        self.chunk.begin()
        forwards: list[Forward] = []
        looks: list[CacheOp] = []
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
            looks += ops
            budget -= spent
            chunk = whole if whole is not None else self._chunk(row, most - spent, ready)
            if not chunk or (whole is not None and start + chunk > ready):
                continue
            *tokens, end = row.tokens[start : start + chunk + 1]
            following = end if scored else None
            window = Window(row.id, start, tuple(tokens), sample=False, end=following)
            forwards.append(Forward((window,)))
            budget -= chunk
        return forwards, looks

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
