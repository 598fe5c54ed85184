"""Decides every step: who joins, who is read how far, what happens to the caches. Pure Python; never waits.

`plan` makes the next step, `commit` takes in what a step brought back. One step may be in flight while the next is
planned, if nothing but plain tokens and prefill chunks is in it and nothing about the rows changes; everything else
is a barrier: `plan` returns None until the step in flight is committed.

Decoding rows share one batch where the model allows it; a row alone keeps a cache of its own and may speculate.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial

from omlx.engine import admission, finish
from omlx.engine.batch import Batch, CacheSizes
from omlx.engine.isolation import isolate
from omlx.engine.limits import Limits, Traits
from omlx.engine.memory import MemoryGuard, Verdict
from omlx.engine.plan import LAST, CacheOp, Drop, Evict, Forward, Plan, Read, Rewind, Save, Window
from omlx.engine.prefix.reuse import PrefixReuse
from omlx.engine.sequence import Clock, Interval, Sequence, Status
from omlx.engine.speculation.drafter import Draft
from omlx.engine.speculation.speculator import Speculator, span_class
from omlx.engine.types import (
    Event,
    Failed,
    Finished,
    FinishReason,
    PrefillProgress,
    Reason,
    Request,
    TokenMask,
    TokensCommitted,
)
from omlx.errors import Overloaded


class Scheduler:
    """The one writer of sequences. `unbatchable` says why rows of this model cannot share a batch, if they cannot.

    It is a `MemoryClient` of the guard: `pinned_weights` are bytes of weights that stay whichever other models are sent away.
    """

    def __init__(
        self,
        limits: Limits,
        traits: Traits,
        speculator: Speculator,
        prefix: PrefixReuse,
        sizes: CacheSizes,
        unbatchable: Reason | None = None,
        clock: Callable[[], float] = time.monotonic,
        memory: MemoryGuard | None = None,
    ) -> None:
        self.limits = limits
        self.traits = traits
        self.speculator = speculator
        self.prefix = prefix
        self.memory = memory or MemoryGuard()
        self.pinned_weights: int | None = None
        self.used_at = clock()
        self.batch = Batch(limits, sizes, unbatchable)
        self._sizes = sizes
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.drafts: dict[int, object] = {}
        self.masks: dict[int, TokenMask] = {}
        self._clock = clock
        self._ops: list[CacheOp] = []
        self._after: list[CacheOp] = []  # what the step being planned leaves to do
        self._flying: Plan | None = None
        self._sampled: set[int] | None = (
            None  # the rows that the step in flight samples, None if it verifies a draft
        )
        self._cancelled: set[str] = set()
        self._blocked_at: int | None = (
            None  # the guard's version when the first in the queue did not fit into memory
        )
        self._refused: list[Event] = []
        self._next_row = 0

    # -- requests ------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request. Raises Overloaded when the queue is full, BadRequest when it cannot be served."""
        admission.validate(request, self.limits)
        self.memory.check_fits(request, self.prefix.layout, self.pinned_weights)
        if len(self.waiting) >= self.limits.max_waiting:
            raise Overloaded(
                "engine.queue_full", waiting=len(self.waiting), limit=self.limits.max_waiting
            )
        self._next_row += 1
        end = self.limits.context_length
        if request.max_tokens is not None:
            end = min(end, len(request.tokens) + request.max_tokens)
        self.used_at = self._clock()
        clock = Clock(submitted=self.used_at)
        self.waiting.append(Sequence(self._next_row, request, list(request.tokens), end, clock))

    def cancel(self, request_id: str) -> None:
        """End a request at the next step; its row is free then. An unknown id is one that has just ended."""
        self._cancelled.add(request_id)

    def clear_prefixes(self) -> None:
        """Forget every prefix, with the next step."""
        self._ops += self.prefix.clear()
        self.speculator.clear()

    def bound_prefixes(self, max_bytes: int) -> None:
        """Keep at most so much of prefixes from now on."""
        self._ops += self.prefix.set_max_bytes(max_bytes)

    @property
    def has_work(self) -> bool:
        return (
            bool(self.running or self._ops or self._flying or self._cancelled or self._refused)
            or self._may_admit
        )

    @property
    def decoding(self) -> list[Sequence]:
        return [s for s in self.running if s.status is Status.DECODE]

    @property
    def pending_ops(self) -> bool:
        """Whether cache operations wait for the next plan: caches and records agree again after it."""
        return bool(self._ops)

    # -- as the guard of memory sees it ---------------------------------------------------------------------------

    @property
    def reserved(self) -> int:
        layout, going_on = (
            self.prefix.layout,
            [s for s in self.running if s.status is not Status.DONE],
        )
        needs = ((s.row, self.memory.need(s.request, layout)) for s in going_on)
        kept = (
            piece
            for op in (*self._ops, *self._after)
            if isinstance(op, Save)
            for piece in op.pieces
        )
        return sum(map(layout.nbytes, kept)) + sum(
            max(0, need - self._sizes.row_bytes(row)) for row, need in needs
        )

    @property
    def cached(self) -> int:
        return self.prefix.index.nbytes

    @property
    def busy(self) -> bool:
        return bool(self.running)

    @property
    def freeing(self) -> bool:
        return bool(self._ops)

    @property
    def blocked_since(self) -> float | None:
        return (
            self.waiting[0].clock.submitted
            if self.waiting and self._blocked_at is not None
            else None
        )

    def shrink(self, nbytes: int) -> int:
        before = self.prefix.index.nbytes
        self._ops += self.prefix.shrink(max(0, before - nbytes))
        if before < nbytes:
            self.speculator.clear()
        return before - self.prefix.index.nbytes

    def _unblock(self) -> None:
        """The first in the queue does not wait for memory any more: it is others' turn."""
        if self._blocked_at is not None:
            self._blocked_at = None
            self.memory.changed()

    # -- plan ----------------------------------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        """The next step, or None if there is nothing to do or the step in flight must be committed first.

        Device drafts of the plan's windows are left in `drafts`, what its rows may say in `masks`, by row.
        """
        self.drafts = {}
        if self._flying is not None and self._must_commit_first():
            return None
        self._admit()
        decoding = self.decoding
        self.masks = {s.row: s.request.mask for s in decoding if s.request.mask is not None}
        self._ops += self.batch.arrange(decoding) if decoding else []
        forwards = self._decode(decoding)
        forwards += self._prefill(len(decoding) > 0)
        if not forwards and not self._ops:
            return None
        plan = Plan(tuple(self._ops), tuple(forwards))
        self._ops, self._after = self._after, []
        self._flying = plan
        windows = [w for f in forwards for w in f.windows]
        self._sampled = (
            None if any(w.draft_n for w in windows) else {w.row for w in windows if w.sample}
        )
        return plan

    def _must_commit_first(self) -> bool:
        if self._ops or self._cancelled or self._may_admit:
            return True
        if self._sampled is None:
            return True
        decoding = self.decoding
        if not decoding:
            return False
        if any(s.remaining < 1 or s.request.mask is not None for s in decoding):
            return True  # full, or what may come next depends on what has come
        if self._sampled != {s.row for s in decoding}:
            return True
        return self.batch.changes(decoding) or (
            len(decoding) == 1 and self._drafts_alone(decoding[0])
        )

    def _drafts_alone(self, sequence: Sequence) -> bool:
        if sequence.row in self.batch.members or self.speculator.refusal(sequence, 1) is not None:
            return False
        wants = True  # where this raises, `propose` raises too and disables the drafter
        with isolate():
            wants = self.speculator.would_draft(sequence)
        return wants

    @property
    def _may_admit(self) -> bool:
        """Whether somebody waits for whom there is a row, and memory unless nothing has changed."""
        changed = self._blocked_at is None or self._blocked_at != self.memory.version
        if not self.waiting or not changed or len(self.running) >= self.limits.max_rows:
            return False
        return self.prefix.off is not None or not admission.finds_soon(
            self.waiting[0].request, self.running
        )

    def _admit(self) -> None:
        while self._may_admit:
            need = self.memory.need(self.waiting[0].request, self.prefix.layout)
            verdict = self.memory.admit(
                self, self.waiting[0].request, need, self.waiting[0].clock.submitted
            )
            if verdict is Verdict.RETRY:
                return
            if verdict is Verdict.WAIT:
                self._blocked_at = self.memory.version
                return
            self._unblock()
            sequence = self.waiting.popleft()
            if verdict is Verdict.REFUSE:
                self._refused.append(Failed(sequence.request.id, self.memory.refusal(need)))
                continue
            sequence.clock.admitted = self._clock()
            ops, sequence.cached = self.prefix.open(sequence)
            self._ops += ops
            sequence.computed = sequence.cached
            sequence.move(Status.PREFILL)
            if sequence.pending == 1:
                sequence.move(Status.DECODE)
            self.running.append(sequence)

    def _decode(self, decoding: list[Sequence]) -> list[Forward]:
        by_row = {s.row: s for s in decoding}
        forwards = []
        for sequence in decoding:
            if sequence.row not in self.batch.members:
                forwards.append(
                    Forward((self._window(sequence, self._draft(sequence, len(decoding))),))
                )
        if self.batch.members:
            for row in self.batch.members:
                if not by_row[
                    row
                ].unread:  # while steps overlap, nothing about the rows has changed
                    self.speculator.refuses(by_row[row], max(2, len(decoding)))
            forwards.append(
                Forward(
                    tuple(self._window(by_row[row], None) for row in self.batch.members),
                    batched=True,
                )
            )
        return forwards

    def _draft(self, sequence: Sequence, decoding: int) -> Draft | None:
        if self.speculator.refuses(sequence, decoding) or sequence.unread:
            return None
        draft = None
        with isolate() as outcome:
            draft = self.speculator.draft(sequence)
        if outcome.error is not None:  # the request continues without the drafter that failed
            self.speculator.disable(sequence, outcome.error)
        return draft

    def _window(self, sequence: Sequence, draft: Draft | None) -> Window:
        start, history = sequence.computed, sequence.request.sampling.history
        window = Window(
            row=sequence.row,
            start=start,
            tokens=LAST if sequence.unread else tuple(sequence.tokens[start:]),
            draft_n=draft.n if draft else 0,
            pad=draft.pad if draft else 0,
            draft=draft.tokens if draft else None,
            drafter=draft.drafter if draft else None,
            history=tuple(sequence.tokens[max(0, start - history) : start]) if history else (),
        )
        if draft and draft.array is not None:
            self.drafts[sequence.row] = draft.array
        sequence.computed += window.width
        sequence.unread += 1
        sequence.unverified = window.draft_n + window.pad
        return window

    def _prefill(self, others_decode: bool) -> list[Forward]:
        """Chunks for the rows that came first, leaving one token for the first decode step."""
        budget = self.limits.prefill_slice if others_decode else self.limits.prefill_chunk
        forwards = []
        for sequence in self.running:
            if sequence.status is not Status.PREFILL or budget < 1:
                continue
            scored, start = sequence.request.prompt_logprobs is not None, sequence.computed
            # Logits of a whole chunk are large: a slice at a time where they are wanted.
            n = self.prefix.chunk(
                sequence, min(budget, self.limits.prefill_slice) if scored else budget
            )
            *tokens, end = sequence.tokens[start : start + n + 1]
            window = Window(
                sequence.row, start, tuple(tokens), sample=False, end=end if scored else None
            )
            forwards.append(Forward((window,)))
            sequence.computed += n
            budget -= n
            self._after += self.prefix.after_chunk(sequence, self.memory.headroom)
            if sequence.pending == 1:
                sequence.move(Status.DECODE)
        return forwards

    # -- commit --------------------------------------------------------------------------------------------------

    def commit(
        self, plan: Plan, reads: Mapping[int, Read], interval: Interval | None = None
    ) -> list[Event]:
        """Take in what a step brought back. Returns what the requests are to hear, in order.

        `interval` since the commit before, if this step and that one read a single row each and nothing else ran.
        """
        if self._flying is plan:
            self._flying = None
        if any(isinstance(op, Drop | Evict) for op in plan.ops):
            self.memory.changed()
        events: list[Event] = []
        by_row = {s.row: s for s in self.running}
        for forward in plan.forwards:
            for window in forward.windows:
                sequence = by_row.get(window.row)
                if sequence is None or sequence.status is Status.DONE:
                    continue  # it ended while this step was in flight; its sample is discarded
                events += self._commit_window(sequence, window, reads[window.row], interval)
        failed = {row: read.error for row, read in reads.items() if read.error is not None}
        self._ops += self.prefix.forget(
            [p.id for op in _keeps(plan.ops, failed) for p in op.pieces]
        )
        for row, error in failed.items():
            sequence = by_row.get(row)
            if sequence is not None and sequence.status is not Status.DONE:
                events.append(self._fail(sequence, error))
        self.running = [s for s in self.running if s.status is not Status.DONE]
        return events

    def reap(self) -> list[Event]:
        """End what was cancelled, or refused. With nothing in flight."""
        events, self._refused = self._refused, []
        for sequence in [*self.waiting, *self.running]:
            if sequence.request.id in self._cancelled:
                self._unblock()
                events.append(self._finish(sequence, FinishReason.CANCELLED, None))
        self._cancelled.clear()
        self.waiting = deque(s for s in self.waiting if s.status is not Status.DONE)
        self.running = [s for s in self.running if s.status is not Status.DONE]
        return events

    def _commit_window(
        self, sequence: Sequence, window: Window, read: Read, interval: Interval | None
    ) -> list[Event]:
        if read.error is not None:
            return [self._fail(sequence, read.error)]
        if not window.sample:
            done, scored = window.start + window.width, sequence.tokens[window.start + 1 :]
            told = read.token_logprobs(scored, sequence.request.prompt_logprobs) or ()
            return [PrefillProgress(sequence.request.id, done, sequence.prompt_len, told)]
        now = self._clock()
        if not sequence.clock.first_token and len(self.running) == 1:
            self.speculator.observe_prefill(
                sequence.prompt_len - sequence.cached, now - sequence.clock.admitted
            )
        sequence.clock.first_token = sequence.clock.first_token or now
        sequence.clock.last_token = now
        sequence.unread -= 1
        sequence.unverified = 0
        accepted = read.accepted
        with isolate() as outcome:
            new, ended = finish.truncate_at_stop(sequence.request, read.sampled[: accepted + 1])
        if outcome.error is not None:
            return [self._fail(sequence, outcome.error)]
        sequence.tokens += new
        if window.draft_n:
            self._apply_verification(
                sequence, window, min(accepted, len(new)), stopped=len(new) < accepted + 1
            )
        with isolate() as outcome:
            self.speculator.observe_commit(sequence, new, interval)
        if outcome.error is not None:
            self.speculator.disable(sequence, outcome.error)
        drafted = tuple(i < accepted for i in range(len(new)))
        logprobs = read.token_logprobs(new, sequence.request.top_logprobs)
        events: list[Event] = [TokensCommitted(sequence.request.id, new, drafted, logprobs)]
        if ended is not None:
            events.append(self._finish(sequence, FinishReason.STOP, ended.stop_id))
        elif len(sequence.tokens) >= sequence.end:
            events.append(self._finish(sequence, FinishReason.LENGTH, None))
        return events

    def _apply_verification(
        self, sequence: Sequence, window: Window, accepted: int, stopped: bool
    ) -> None:
        """After a verified window: count it, and take the cache back to what was committed."""
        before = window.start + window.pending
        target = min(before + accepted, len(sequence.tokens))
        repair = "none"
        if target < sequence.computed:
            repair = (
                "restore"
                if self.traits.recurrent
                else "slice"
                if self.traits.sliding_window
                else "trim"
            )
            # Recurrent state returns to where the window began; the accepted tokens stay pending.
            sequence.computed = window.start if self.traits.recurrent else target
            self._ops.append(Rewind(sequence.row, sequence.computed))
        assert window.drafter is not None
        span = span_class(window.draft_n, accepted, stopped)
        with isolate() as outcome:
            self.speculator.observe_verification(
                sequence, window.drafter, window.draft_n, accepted, span, repair
            )
        if outcome.error is not None:
            self.speculator.disable(sequence, outcome.error)

    # -- endings -------------------------------------------------------------------------------------------------

    def _finish(self, sequence: Sequence, reason: FinishReason, stop_id: int | None) -> Finished:
        admitted = sequence.status is not Status.WAITING
        stats = finish.request_stats(sequence, self.speculator)
        sequence.move(Status.DONE)
        if admitted:
            self._leave(sequence)
        return Finished(sequence.request.id, reason, stats, stop_id)

    def _leave(self, sequence: Sequence) -> None:
        """Keep what the row's cache holds, if it holds anything, and give its place in the batch away."""
        room = partial(self.memory.headroom, self._sizes.row_bytes(sequence.row))
        self._ops += self.batch.remove(sequence.row, keep_cache=True)
        self._ops += self.prefix.close(sequence, room)
        self.speculator.store(sequence)
        self.speculator.drop(sequence.row)
        self._ops.append(Drop(sequence.row))

    def _fail(self, sequence: Sequence, error: Exception) -> Failed:
        """End a request with an error. Its cache is unproven: dropped, never kept."""
        sequence.move(Status.DONE)
        row = sequence.row
        self._ops += self.batch.remove(row, keep_cache=False)
        self.speculator.drop(row)
        lost = [piece.id for op in _keeps(self._ops, {row}) for piece in op.pieces]
        self._ops = [
            op for op in self._ops if not (isinstance(op, Rewind | Save) and op.row == row)
        ]
        self._ops += self.prefix.forget(lost) + self.prefix.close(sequence)
        self._ops.append(Drop(row))
        return finish.failed(sequence.request, error)

    def check(self) -> None:
        """Raise AssertionError if the records contradict each other. Called after every step in tests."""
        self.prefix.index.check()
        for sequence in self.running:
            sequence.check()
        rows = [s.row for s in self.running]
        assert len(set(rows)) == len(rows) <= self.limits.max_rows
        assert set(self.batch.members) <= {s.row for s in self.decoding}, (self.batch.members, rows)


def _keeps(ops: Iterable[CacheOp], rows: Container[int]) -> list[Save]:
    return [op for op in ops if isinstance(op, Save) and op.row in rows]
