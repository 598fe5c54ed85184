"""The scheduler: which rows run, what each step does, what its results change. Pure Python.

`plan` makes the next step, `commit` applies what a step brought back. One step may be in flight
while the next one is planned (see planner.py). Decoding rows share one batch where the model allows
it; a row alone has a cache of its own and may speculate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain

from omlx.engine.device_errors import DeviceFault, isolate, kind_of
from omlx.engine.memory import MemoryGuard
from omlx.engine.prefix.reuse import PrefixReuse, RowStarter
from omlx.engine.speculation.speculator import Speculator
from omlx.engine.step.model_memory import ModelMemory
from omlx.engine.step.plan import (
    Drop,
    Evict,
    PendingOps,
    Plan,
    Read,
    Rewind,
    Step,
    Window,
    restores,
    rows_of,
    saved_pieces,
)
from omlx.engine.step.planner import Planner
from omlx.engine.step.prefill import Activations, PrefillChunk
from omlx.engine.step.requests import (
    AdmissionQueue,
    device_error,
    failed,
    request_stats,
    truncate_at_stop,
)
from omlx.engine.step.row import Batch, CacheSizes, Interval, Row, Status
from omlx.engine.types import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Limits,
    PrefillProgress,
    Request,
    TokensCommitted,
    Traits,
)
from omlx.engine.vision.features import Looks
from omlx.engine.vision.spans import TowerFacts
from omlx.errors import NonFiniteLogits, Reason
from omlx.records import verification_outcome


class Scheduler:
    """The one writer of one model's rows.

    `sizes` measures caches, `activations` passes; reasons and `tower` are of the model's facts.
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
        no_uneven: Reason | None = None,
        tower: TowerFacts | None = None,
        activations: Activations | None = None,
    ) -> None:
        self.prefix = prefix
        self.memory = memory or MemoryGuard()
        self.batch = Batch(limits, sizes, unbatchable, no_uneven)
        self.looks = Looks(tower)
        chunk = PrefillChunk(limits, activations or Activations(), self.memory.pass_room)
        self.queue = AdmissionQueue(limits, prefix, self.looks, self.memory, clock, chunk)
        self.planner = Planner(limits, self.batch, prefix, speculator, self.looks, chunk)
        self.starter = RowStarter(prefix, self.planner.open)
        self.running: list[Row] = []
        self._traits, self._sizes, self._clock = traits, sizes, clock
        self.ops = PendingOps()
        self._in_flight: Plan | None = None
        parts = self.queue, self.running, self.ops, prefix, self.planner, sizes
        self.memory_client = ModelMemory(*parts)
        self._cancelled: set[str] = set()
        self._ended = False  # whether `running` has a row that is done

    def submit(self, request: Request) -> None:
        """Queue a request. Raises Overloaded or BadRequest."""
        self.queue.submit(request)

    def cancel(self, request_id: str) -> None:
        """End a request with the next `reap`. An unknown id is ignored."""
        self._cancelled.add(request_id)

    def clear_prefixes(self) -> None:
        """Evict every cached prefix with the next step."""
        self.ops.next += self.prefix.clear()
        self.ops.next += self.looks.clear()
        self.speculator.clear()

    def set_prefix_budget(self, max_bytes: int) -> None:
        """Set the size of the prefix cache; evict the excess with the next step."""
        self.ops.next += self.prefix.set_prefix_budget(max_bytes)

    @property
    def speculator(self) -> Speculator:
        return self.planner.speculator

    @property
    def has_work(self) -> bool:
        if self.starter.active(self.running) or self.ops.next or self._in_flight or self._cancelled:
            return True
        return bool(self.queue.refused) or self.queue.may_admit(self.running)

    @property
    def decoding(self) -> list[Row]:
        return [row for row in self.running if row.status is Status.DECODE]

    def plan(self) -> Step | None:
        """Return the next step; None: nothing to do, or the step in flight must be committed."""
        decoding = self.decoding
        if self._in_flight is not None and self._must_commit_first(self._in_flight, decoding):
            return None
        if self.queue.waiting:
            self._admit()
            decoding = self.decoding
        # Runs from disk start a row: only where no row has a token in flight.
        waits = self._in_flight is None and len(decoding) < len(self.running)
        loads = self.starter.take(self.running, self.ops, self.memory.headroom) if waits else {}
        turn = self.planner.turn(self.decoding if loads else decoding)
        self.ops.next += self.batch.arrange(turn) if turn else []
        step = self.planner.plan(self.running, turn, self.ops.next)
        if step is None:
            return None
        self._launched(step.plan)
        self.ops.advance()
        self._in_flight = step.plan
        return replace(step, loads=loads) if loads else step

    def _must_commit_first(self, in_flight: Plan, decoding: list[Row]) -> bool:
        if self.ops.next or self._cancelled or self.queue.changes(self.running):
            return True
        if len(decoding) < len(self.running):
            done = any(row.prefill_done for row in self.running)
            if done or self.starter.arrived(self.running):
                return True
        return self.planner.must_commit_first(in_flight, self.running, decoding)

    def _admit(self) -> None:
        """Give rows to waiting requests, those of less urgent ones too."""
        queue, client = self.queue, self.memory_client
        while True:
            for row in queue.admissions(client, self.running, client.need):
                self._open(row)
            displaced = queue.displaceable(self.running, freeing=bool(self.ops.next))
            if displaced is None:
                return
            queue.displace(displaced, self.speculator)
            self._free(displaced)
            self._remove_done()

    def _open(self, row: Row) -> None:
        row.clock.admitted = row.clock.admitted or self._clock()
        self.ops.next += self.starter.open(row)
        row.finish_tag = self.planner.order.enter(row, self.running)
        self.running.append(row)

    def _launched(self, plan: Plan) -> None:
        """Advance every row that the plan reads, and save what its prefill chunks complete."""
        by_row = {row.id: row for row in self.running}
        prompts = len(self.running) - len(self.decoding) if plan.prompts else 0
        for window in plan.windows:
            row = by_row[window.row]
            row.computed += window.width
            if window.sample:
                row.unread += 1
                row.unverified = window.draft_n
                continue
            self.planner.order.read(window.width, prompts)
            self.ops.later += self.prefix.after_chunk(row, self.memory.headroom)
            row.begin_decode()
            if row.pending == 1 or row.status is Status.DECODE:
                self.ops.later += self.looks.release(row.id)

    def commit(
        self, plan: Plan, reads: Mapping[int, Read], interval: Interval | None = None
    ) -> list[Event]:
        """Apply the results of a step, by row. Return its events, in order.

        `interval` is the time since the commit before, if each step was one pass and no more."""
        if self._in_flight is plan:
            self._in_flight = None
        if {Drop, Evict} & {*map(type, plan.ops)}:
            self.memory.changed()
        events: list[Event] = []
        by_row = {row.id: row for row in self.running}
        windows = plan.windows
        if interval is not None and interval.rows > 1:
            rows = [by_row[window.row] for window in windows if window.row in by_row]
            interval = self.speculator.observe_pass(rows, interval) if rows else interval
        errors = {row_id: read.error for row_id, read in reads.items() if read.error is not None}
        for row_id in errors:
            if restores(plan, row_id) and row_id in by_row and by_row[row_id].may_restart:
                self._restart(by_row.pop(row_id), cold=True)  # computed, as restoring failed
        for window in windows:
            row = by_row.get(window.row)
            if row is not None:  # else it ended while this step was in flight
                events += self._commit_window(row, window, reads[window.row], interval)
        if errors:
            self.ops.next += self.prefix.forget(saved_pieces(plan.ops, errors))
            for row_id, error in errors.items():
                row = by_row.get(row_id)
                if row is not None and row.status is not Status.DONE:
                    events.append(self._fail(row, error))
        self._remove_done()
        return events

    def condemn(
        self, plan: Plan, moved: Iterable[int], reads: Mapping[int, Read], fault: DeviceFault
    ) -> list[Event]:
        """Take back a step in which an error of the device was seen. Return its events.

        Nothing that it computed is used: pieces of prefixes that it saved or `moved` are forgotten,
        and its rows are computed again from their tokens; rows that fail for a reason of their own,
        or may not restart, end.
        """
        if self._in_flight is plan:
            self._in_flight = None
        self.planner.pacing.discard()
        self.memory.changed()
        row_ids = {window.row for window in plan.windows}
        row_ids.update(chain.from_iterable(map(rows_of, plan.ops)))
        unproven = [*saved_pieces(plan.ops), *moved]
        for row_id in row_ids:
            unproven += self.ops.discard(row_id)
        self.ops.next += self.prefix.forget(unproven)
        self.speculator.clear()  # without drafts' prefixes only slower
        self.memory_client.relieve(fault)
        others = any(c.busy for c in self.memory.clients if c is not self.memory_client)
        alone = len(self.running) + len(self.queue.waiting) == 1 and not others
        events: list[Event] = []
        live = [s for s in self.running if s.id in row_ids and s.status is not Status.DONE]
        for row in reversed(live):  # each is put before those that wait
            error = reads[row.id].error if row.id in reads else None
            own = error is not None and kind_of(error) is None
            if error is not None and own and not isinstance(error, NonFiniteLogits):
                events.append(self._fail(row, error))
            elif row.may_restart:
                self._restart(row, cold=error is not None and restores(plan, row.id))
            else:
                events.append(self._fail(row, device_error(row, fault, alone)))
        self._remove_done()
        return events

    def reap(self) -> list[Event]:
        """End cancelled, refused and prefilled requests. Requires that no step is in flight."""
        events, self.queue.refused = self.queue.refused, []
        cancelled, self._cancelled = self._cancelled, set()
        removed = self.queue.remove(cancelled) if cancelled else ()
        for row in (*removed, *self.running):
            if row.request.id in cancelled:
                self.queue.unblock()
                events.append(self._finish(row, FinishReason.CANCELLED, None))
            elif row.prefill_done:
                row.clock.tick(self._clock())
                self.speculator.observe_prefill(row, alone=len(self.running) == 1)
                events.append(self._finish(row, FinishReason.LENGTH, None))
        self._remove_done()
        return events

    def _remove_done(self) -> None:
        if self._ended:
            self.running[:] = [row for row in self.running if row.status is not Status.DONE]
            self._ended = False

    def _commit_window(
        self, row: Row, window: Window, read: Read, interval: Interval | None
    ) -> list[Event]:
        request = row.request
        if read.error is not None:
            return [self._fail(row, read.error)]
        if not window.sample:
            if row.clock.first_token:  # a displaced row, which has generated before
                return []
            scored = row.tokens[window.start + 1 :]
            scores = read.token_logprobs(scored, request.prompt_logprobs) or ()
            done = min(window.start + window.width, row.prompt_len)
            return [PrefillProgress(request.id, done, row.prompt_len, scores)]
        if row.clock.tick(self._clock()):
            row.joint_until = self.planner.order.joint_until(row, self.running)
            self.speculator.observe_prefill(row, alone=len(self.running) == 1)
        row.unread -= 1
        row.unverified = 0
        accepted = read.accepted
        with isolate() as outcome:
            new, stop = truncate_at_stop(request, read.sampled[: accepted + 1])
        if outcome.error is not None:
            return [self._fail(row, outcome.error)]
        row.tokens += new
        if window.draft_n:
            stopped = len(new) < accepted + 1
            self._apply_verification(row, window, min(accepted, len(new)), stopped=stopped)
        self.speculator.observe_commit(row, new, interval)
        accepted = min(accepted, len(new))
        drafted = (True,) * accepted + (False,) * (len(new) - accepted)
        logprobs = read.token_logprobs(new, request.top_logprobs)
        events: list[Event] = [TokensCommitted(request.id, new, drafted, logprobs)]
        if stop is not None:
            events.append(self._finish(row, FinishReason.STOP, stop.token))
        elif len(row.tokens) >= row.end:
            events.append(self._finish(row, FinishReason.LENGTH, None))
        return events

    def _apply_verification(
        self, row: Row, window: Window, accepted: int, *, stopped: bool
    ) -> None:
        """Count a verified window, and roll the cache back to the tokens that were committed."""
        drafter = window.drafter
        assert drafter is not None
        verified = min(window.start + window.pending + accepted, len(row.tokens))
        rollback = "none"
        if verified < row.computed:
            rollback = self._traits.rollback(window.width)
            # Recurrent state returns to the window's start; the accepted tokens are pending again.
            row.computed = window.start if self._traits.replays(window.width) else verified
            self.ops.next.append(Rewind(row.id, row.computed))
        outcome = verification_outcome(window.draft_n, accepted, stopped)
        counts, speculator = (window.draft_n, accepted), self.speculator
        with isolate(speculator.disable, row):
            speculator.observe_verification(row, drafter, *counts, outcome, rollback)

    def _finish(self, row: Row, reason: FinishReason, stop_token: int | None) -> Finished:
        """End a request, and free the row."""
        stats = request_stats(row, self.speculator, self.queue.limits.context_length)
        self._free(row)
        return Finished(row.request.id, reason, stats, stop_token)

    def _free(self, row: Row, *, proven: bool = True) -> None:
        """Free a row, if it was admitted; if its cache is `proven`, save that as a prefix."""
        row_id, admitted = row.id, row.status is not Status.WAITING
        row.move(Status.DONE)
        self._ended = True
        if not admitted:
            return
        self.starter.drop(row_id)
        client, freed = self.memory_client, self._sizes.row_bytes(row_id)
        keep = proven and (row_id not in self.batch.members or client.may_copy(row_id))
        self.ops.next += self.batch.remove(row_id, keep_cache=keep)
        room = partial(self.memory.headroom, freed, client.copied) if keep else None
        if not proven:
            unsaved = self.ops.discard(row_id)
            self.ops.next += self.prefix.forget(unsaved)
        self.ops.next += self.prefix.close(row, room)
        if proven:
            self.speculator.store(row)
        self.speculator.drop(row_id)
        forget = self.looks.release if proven else self.looks.fail
        self.ops.next += [*forget(row_id), Drop(row_id)]

    def _fail(self, row: Row, error: Exception) -> Failed:
        """End a request with an error."""
        self._free(row, proven=False)
        if isinstance(error, NonFiniteLogits):
            self.clear_prefixes()  # any cached prefix may hold what the fault left
        return failed(row.request, error)

    def _restart(self, row: Row, *, cold: bool) -> None:
        """Compute a row's tokens again, in a new row that continues the same answer."""
        self._free(row, proven=False)
        self.queue.requeue(row, cold=cold)

    def check(self) -> None:
        """Raise AssertionError if records contradict each other. For tests, after every step."""
        self.prefix.index.check()
        self.looks.check()
        for row in self.running:
            row.check()
        row_ids = {row.id for row in self.running}
        assert len(row_ids) == len(self.running) <= self.queue.limits.max_rows
        members = set(self.batch.members)
        assert members <= {s.id for s in self.decoding}, (members, row_ids)
