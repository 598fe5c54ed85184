"""One loaded model, step by step: plan, launch, commit, publish. On the engine thread.

step t      plan t+1 ── launch t+1 ──┐            the device computes t+1 …
            commit t  ── publish t ──┘            … while the host commits t
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from omlx.draft_length import DEFAULT_DRAFT_LENGTH, DraftLength
from omlx.engine.device.gpu import release_buffers
from omlx.engine.device.launch import Launch
from omlx.engine.device.model import MakeCache, Model
from omlx.engine.device.runner import Runner
from omlx.engine.device_errors import DEVICE, isolate
from omlx.engine.disk.tier import Disk, DiskTier
from omlx.engine.memory import MemoryGuard
from omlx.engine.piece import Layout, ModelRoom
from omlx.engine.prefix.reuse import PrefixReuse
from omlx.engine.speculation.cost_model import PLAIN, CostModel
from omlx.engine.speculation.drafter import Drafter
from omlx.engine.speculation.drafters.draft_model import DraftModel
from omlx.engine.speculation.drafters.head import HeadDrafter
from omlx.engine.speculation.speculator import MISSING, Speculator
from omlx.engine.step.model_memory import cache_need
from omlx.engine.step.plan import Load, Look, Restore
from omlx.engine.step.prefill import PrefillChunk
from omlx.engine.step.row import Interval, Status
from omlx.engine.step.scheduler import Scheduler
from omlx.engine.types import Event, Limits, ModelSnapshot, PromptForecast, Request, RequestCounts
from omlx.errors import Reason
from omlx.records import PrefixStats

DRAFT_SHARE: Final = 8
"""Divisor — share of the draft model in the bytes of the prefix cache."""

AHEAD_SHARE: Final = 8
"""Divisor — share of a full prefix cache evicted for a beginning, oldest first."""


@dataclass(frozen=True, slots=True)
class ModelForTexts:
    """A loaded model for texts that are no requests. For the engine thread, between two steps.

    `chunk` bounds the passes over a text, `memory` admits its KV cache of this `layout`.
    """

    model: Model
    make_cache: MakeCache
    limits: Limits
    layout: Layout
    chunk: PrefillChunk
    memory: MemoryGuard


class EngineLoop:
    """One model's scheduler and runner, stepped together. Made by `build_loop`.

    `disks` are the tiers below the prefix caches of the model and of its draft model.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler, disks: Sequence[Disk] = ()) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.disks = [disk for disk in disks if isinstance(disk, DiskTier)]
        if scheduler.prefix.disk is not None:
            scheduler.prefix.disk.dump = runner.caches.kept.to_record
        self._in_flight: Launch | None = None
        self._read_at = 0.0  # seconds, when the newest step was read
        self._overlapped: bool | None = None  # see _commit; None: the newest step cannot be timed
        self._prompt_ended = False  # since buffers for reuse were released

    @property
    def limits(self) -> Limits:
        return self.scheduler.queue.limits

    @property
    def cost_model(self) -> CostModel:
        return self.scheduler.speculator.cost_model

    @property
    def for_texts(self) -> ModelForTexts:
        runner, scheduler = self.runner, self.scheduler
        layout, chunk = scheduler.prefix.layout, scheduler.planner.chunk
        return ModelForTexts(
            runner.model, runner.make_cache, self.limits, layout, chunk, scheduler.memory
        )

    def room(self) -> ModelRoom:
        """Return what the memory budget has left. Cached prefixes count as free."""
        guard, limits = self.scheduler.memory, self.limits
        free_bytes = guard.headroom()
        if free_bytes is not None:
            free_bytes += sum(client.cached for client in guard.clients)
        layout = self.scheduler.prefix.layout
        return ModelRoom(limits.context_length, limits.max_rows, layout, free_bytes)

    @property
    def has_work(self) -> bool:
        work = self._in_flight is not None or self.scheduler.has_work
        return work or any(disk.can_pump for disk in self.disks)

    @property
    def urgency(self) -> int:
        """Priority of the most urgent request; 0 without any."""
        rows = (*self.scheduler.running, *self.scheduler.queue.waiting)
        return min((row.request.priority for row in rows), default=0)

    @property
    def frees_memory(self) -> bool:
        """Whether the next step may free memory."""
        return self.scheduler.memory_client.freeing

    @property
    def request_counts(self) -> RequestCounts:
        states = [row.status for row in self.scheduler.running]
        return RequestCounts(
            len(self.scheduler.queue.waiting),
            states.count(Status.PREFILL),
            states.count(Status.DECODE),
        )

    def submit(self, request: Request) -> None:
        """Queue a request. Raises Overloaded or BadRequest."""
        self.scheduler.submit(request)

    def cancel(self, request_id: str) -> None:
        """End a request at the next step; an unknown id is ignored."""
        self.scheduler.cancel(request_id)

    def step(self) -> list[Event]:
        """Launch the next step, then commit the one before. Return its events, in order.

        A step that needs those results first is launched by the next call. Where an error of the
        device was seen, nothing is launched on top of what is in flight.
        """
        events: list[Event] = []
        if self._in_flight is not None and self._in_flight.errors != DEVICE.seen:
            events += self.flush()
        if self._in_flight is None:
            events += self.scheduler.reap()
        drafts = self._in_flight is not None and self._in_flight.plan.drafts
        step = None if drafts else self.scheduler.plan()
        if step is None and self._in_flight is not None:
            return events + self.flush()  # delivered before the next launch, which may wait
        if self._prompt_ended and self._in_flight is None:
            self._prompt_ended = False
            with isolate():  # an error of the device condemns the steps of other loops
                release_buffers()
        if step is not None and step.caught_up:
            self.reset_timing()
        launched = None if step is None else self.runner.launch(step)
        if launched is not None:
            launched.alone = self._in_flight is None
        if self._in_flight is not None:
            events += self._commit(self._in_flight, launched)
        self._in_flight = launched
        if launched is not None and launched.errors != DEVICE.seen:
            events += self.flush()  # before a piece of a prefix that it saved is written to disk
        for disk in self.disks:
            if disk.can_pump:
                disk.pump(busy=self.scheduler.has_work)
        return events

    def flush(self) -> list[Event]:
        """Wait for the step in flight and launch no other. Return its events."""
        if self._in_flight is None:
            return []
        events = self._commit(self._in_flight)
        self._in_flight = None
        return events

    def end_cancelled(self) -> list[Event]:
        """End cancelled requests behind the step in flight. Return the events of both."""
        return self.flush() + self.scheduler.reap()

    def reset_timing(self) -> None:
        """Discard time and peak of the step in flight: other work ran on the device."""
        self._overlapped = None
        if self._in_flight is not None:
            self._in_flight.alone = False

    def use_drafters(
        self,
        drafters: Sequence[Drafter],
        off_reason: Reason | None = None,
        missing: Mapping[str, Reason] | None = None,
        cost_model: CostModel | None = None,
    ) -> None:
        """Replace the drafters. Requires that no request runs.

        `off_reason` says why none may draft for this model, `missing` why none of a kind does.
        `cost_model` None keeps the present one.
        """
        fixed, bounds = self.limits.num_draft_tokens, self.limits.bounds
        kinds, reasons = {d.kind for d in drafters}, {**MISSING, **(missing or {})}
        self.runner.listener = next((d for d in drafters if isinstance(d, HeadDrafter)), None)
        self.scheduler.planner.speculator = Speculator(
            drafters,
            off_reason=off_reason,
            missing={kind: why for kind, why in reasons.items() if kind not in kinds},
            draft_length=DEFAULT_DRAFT_LENGTH if fixed is None else DraftLength.exactly(fixed),
            traits=self.runner.traits,
            cost_model=cost_model or self.cost_model,
            widest=None if bounds is None else bounds.width,
        )

    def sibling(self, drafter: Drafter | None = None, rows: int = 1) -> EngineLoop:
        """Return an idle loop over the same model and cost model, with caches of its own.

        Has up to `rows` rows, no prefix cache and no memory limit. `drafter` drafts for them; None:
        siblings of this loop's draft model and head do. The model is not run.
        """
        limits = replace(self.limits, max_rows=rows, bounds=None, pause_s=None)
        runner = self.runner.sibling()
        prefix = PrefixReuse(Layout(0), limits.block_tokens, 0)
        speculator = Speculator([], cost_model=self.cost_model)
        scheduler = Scheduler(limits, runner.traits, speculator, prefix, runner.sizes)
        sibling = EngineLoop(runner, scheduler)
        models = self.scheduler.speculator.drafters
        own = [model.sibling() for model in models if isinstance(model, DraftModel | HeadDrafter)]
        sibling.use_drafters([drafter] if drafter is not None else own)
        return sibling

    def register(self) -> None:
        """Have the memory guard count this model's requests: it serves from now on."""
        self.scheduler.memory.join(self.scheduler.memory_client)

    def unregister(self) -> None:
        """Have the memory guard forget this model. Requires that no request runs."""
        self.scheduler.memory.leave(self.scheduler.memory_client)
        self.close_disks()

    def close_disks(self) -> None:
        """Give the disks back, with some of what waits to be written."""
        for disk in self.disks:
            disk.pump(busy=False)
            disk.close()

    def set_memory_budget(self, pinned_weights: int, prefix_bytes: int) -> None:
        """Set the bytes of weights that are never evicted, and those of the prefix caches."""
        speculator = self.scheduler.speculator
        drafts = any(drafter.kind == DraftModel.kind for drafter in speculator.drafters)
        draft_bytes = prefix_bytes // DRAFT_SHARE if drafts else 0
        self.scheduler.queue.pinned_weights = pinned_weights
        self.scheduler.set_prefix_budget(prefix_bytes - draft_bytes)
        speculator.set_prefix_budget(draft_bytes)

    def cached_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens of a prompt would be restored. Modifies nothing."""
        return self.scheduler.prefix.cached_length(tokens)

    def forecast(self, tokens: Sequence[int]) -> PromptForecast:
        """Estimate what a prompt would take now. Modifies nothing."""
        cached, table = self.cached_prefix(tokens), self.cost_model.target
        fresh = max(1, len(tokens) - cached)
        seconds = table.seconds(fresh, len(tokens)) if table.reaches(fresh) else None
        return PromptForecast(cached, seconds)

    def may_prefill(self, request: Request, least: int) -> bool:
        """Return whether a prompt's stable prefix lacks at least `least` tokens, and fits.

        All fits into free memory, new rows into the free half of the prefix cache, or in place of
        `1 / AHEAD_SHARE` of a full one.
        """
        prefix, headroom = self.scheduler.prefix, self.scheduler.memory.headroom()
        need, limit = cache_need(request, prefix.layout), prefix.index.max_bytes
        cached = self.cached_prefix(request.tokens)
        if request.stable - cached < least or (headroom is not None and need > headroom):
            return False
        new = need - cached * prefix.layout.row_bytes - prefix.layout.record_bytes
        return new <= max(limit // AHEAD_SHARE, limit // 2 - prefix.index.nbytes)

    def clear_prefixes(self) -> None:
        """Evict every cached prefix; running requests have copies."""
        self.scheduler.clear_prefixes()

    @property
    def prefix_stats(self) -> PrefixStats:
        return self.scheduler.prefix.stats()

    def snapshot(self) -> ModelSnapshot:
        """Return the state of this model. Modifies nothing."""
        speculator = self.scheduler.speculator
        kinds = {drafter.name: drafter.kind for drafter in speculator.drafters}
        return ModelSnapshot(
            drafters=kinds,
            off_reason=speculator.off_reason,
            missing=dict(speculator.missing),
            unbatchable=self.scheduler.batch.off_reason,
            costs=self.cost_model.to_json(),
            bounds=self.limits.bounds,
            prefix=self.prefix_stats,
        )

    def check(self) -> None:
        """Raise AssertionError if scheduler and caches disagree. For tests, after every step."""
        self.scheduler.check()
        self.runner.caches.check()
        if self.scheduler.ops.next:
            return  # caches and rows agree again after the next plan
        lengths = self.runner.caches.lengths
        for row in self.scheduler.running:
            assert lengths[row.id] == row.computed, (row.id, lengths[row.id], row.computed)

    def _commit(self, launch: Launch, following: Launch | None = None) -> list[Event]:
        """Commit a step; `following` is the step launched on top of it.

        The interval between two reads is that of one pass only if both steps were read after the
        next one was launched (overlapped), or neither was: a launch may wait for the one before."""
        reads = self.runner.read(launch, last=following is None)
        fault = DEVICE.outcome(launch.errors, computed=bool(launch.plan.forwards or launch.looks))
        if fault is not None:
            self.reset_timing()
            return self.scheduler.condemn(launch.plan, launch.moved, reads, fault)
        now = time.perf_counter()
        overlapped = None
        if launch.plan.one_pass and (following is None or following.plan.one_pass):
            overlapped = following is not None
        peak = _peak(launch, following) if launch.plan.prompts else None
        seconds = now - max(launch.at, self._read_at)
        self.scheduler.planner.observe(launch.plan, seconds, peak)
        interval = None
        if overlapped is not None and overlapped == self._overlapped:
            windows = launch.plan.forwards[0].windows
            width = PLAIN if overlapped else max([window.width for window in windows])
            interval = Interval(now - self._read_at, width, len(windows))
        self._read_at, self._overlapped = now, overlapped
        events = self.scheduler.commit(launch.plan, reads, interval)
        if launch.plan.prompts:
            running = self.scheduler.running
            reading = {row.id for row in running if row.status is Status.PREFILL}
            self._prompt_ended |= any(part.row not in reading for part in launch.plan.prompts)
        return events


def _peak(launch: Launch, following: Launch | None) -> int | None:
    """Return the bytes taken by a pass over a prompt; None if more was allocated meanwhile."""
    if not launch.alone or (following is not None and following.plan.prompts):
        return None
    allocates = any(isinstance(op, Load | Look | Restore) for op in launch.plan.ops)
    return None if allocates else launch.peak_bytes
