"""One loaded model at work: `step` is plan, launch, commit, publish.

    step t      plan t+1 ── launch t+1 ──┐            the device computes t+1 …
                commit t  ── publish t ──┘            … while the host takes in t

Everything here runs on the engine thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Final

from omlx.draft_length import DEFAULT_DRAFT_LENGTH, DraftLength
from omlx.engine.batch_probe import batching_refusal
from omlx.engine.isolation import isolate
from omlx.engine.limits import Limits
from omlx.engine.memory import MemoryGuard
from omlx.engine.model import MakeCache, Model, cache_maker, weight_bytes
from omlx.engine.piece import Layout
from omlx.engine.plan import Plan, Rewind
from omlx.engine.prefix.payload import layout_of, uncacheable
from omlx.engine.prefix.reuse import PrefixReuse
from omlx.engine.rewind import rewind_refusal
from omlx.engine.runner import Launch, Runner
from omlx.engine.scheduler import Scheduler
from omlx.engine.sequence import Interval, Status
from omlx.engine.speculation.cost_model import PLAIN, CostModel
from omlx.engine.speculation.drafter import Drafter
from omlx.engine.speculation.drafters.draft_model import DraftModel
from omlx.engine.speculation.drafters.ngram import NgramDrafter
from omlx.engine.speculation.speculator import Speculator
from omlx.engine.types import Event, Load, ModelSnapshot, Reason, Request
from omlx.records import PrefixStats

DRAFT_SHARE: Final = 8
"""An eighth of the bytes for prefixes is the draft model's."""


class EngineLoop:
    """Serves one target model. `vocab_size` is the length of its tokenizer.

    Lookups draft for it, and `draft` by the name `draft_name`, if it can; `no_draft` says why there is none. `cost_model` is
    what is known of its passes from earlier runs, and learns. `memory` bounds what requests may take, those of other
    models included. `make_cache` overrides the model's own kind of cache. Loading runs a short probe of whether rows
    can share a batch.
    """

    def __init__(
        self,
        model: Model,
        vocab_size: int,
        limits: Limits,
        *,
        draft: Model | None = None,
        draft_name: str | None = None,
        no_draft: Reason | None = None,
        cost_model: CostModel | None = None,
        make_cache: MakeCache | None = None,
        memory: MemoryGuard | None = None,
    ) -> None:
        self.limits = limits = replace(limits, vocab_size=vocab_size)
        self.make_cache = make_cache = make_cache or cache_maker(model)
        self.runner = Runner(model, vocab_size, make_cache)
        self.unbatchable = batching_refusal(model, make_cache, vocab_size)
        self.cost_model = cost_model or CostModel()
        off = uncacheable(make_cache())
        layout = layout_of(model, make_cache) if off is None else Layout(0)
        for_draft = limits.prefix_bytes // DRAFT_SHARE if draft is not None else 0
        prefix = PrefixReuse(layout, limits.block_tokens, limits.prefix_bytes - for_draft, off)
        self.scheduler = Scheduler(
            limits,
            self.runner.traits,
            Speculator([]),
            prefix,
            self.runner.caches,
            self.unbatchable,
            memory=memory,
        )
        self._flight: Launch | None = None
        self._steady: bool | None = None
        self._read_at = 0.0
        drafters: list[Drafter] = [NgramDrafter()]
        if draft is not None and (no_draft := rewind_refusal(cache_maker(draft)())) is None:
            named = (draft_name or "draft", draft, vocab_size, cache_maker(draft))
            with isolate() as outcome:  # the target serves without a draft model that cannot run
                drafters.append(
                    DraftModel(*named, prefix_bytes=for_draft, block_tokens=limits.block_tokens)
                )
            if (error := outcome.error) is not None:
                detail = f"{type(error).__name__}: {error}"
                no_draft = Reason("spec.off.draft_failed", {"detail": detail})
            else:
                if (own := weight_bytes(draft)) and (whole := weight_bytes(model)):
                    self.cost_model.draft_share = own / whole
        self.use_drafters(drafters, rewind_refusal(make_cache(), model), no_draft)

    def use_drafters(
        self, drafters: list[Drafter], off: Reason | None = None, no_draft: Reason | None = None
    ) -> None:
        """Replace who drafts, while no request runs. `off` says why nobody may, `no_draft` why no draft model does."""
        fixed = self.limits.num_draft_tokens
        self.scheduler.planner.speculator = Speculator(
            drafters,
            off=off,
            no_draft=no_draft or Reason("spec.off.no_draft_model"),
            draft_length=DEFAULT_DRAFT_LENGTH if fixed is None else DraftLength.exactly(fixed),
            recurrent=self.runner.traits.recurrent,
            trims=self.runner.traits.trims,
            cost_model=self.cost_model,
        )

    def register(self) -> None:
        """It serves from now on: the guard of memory counts its requests."""
        self.scheduler.memory.join(self.scheduler.memory_client)

    def unregister(self) -> None:
        """It serves no longer; it has no requests."""
        self.scheduler.memory.leave(self.scheduler.memory_client)

    def bound_memory(self, pinned_weights: int, prefix_bytes: int) -> None:
        """`pinned_weights` bytes of weights stay whichever other models are sent away; prefixes may take so many from now on."""
        drafted = any(
            drafter.kind == DraftModel.kind for drafter in self.scheduler.speculator.drafters
        )
        for_draft = prefix_bytes // DRAFT_SHARE if drafted else 0
        self.scheduler.queue.pinned_weights = pinned_weights
        self.scheduler.bound_prefixes(prefix_bytes - for_draft)
        self.scheduler.speculator.limit_bytes(for_draft)

    def reset_timing(self) -> None:
        """Something else ran on the device: the time since the last read says nothing about this model."""
        self._steady = None

    def submit(self, request: Request) -> None:
        """Queue a request. Raises Overloaded or BadRequest; nothing is kept then."""
        self.scheduler.submit(request)

    def cancel(self, request_id: str) -> None:
        self.scheduler.cancel(request_id)

    def probe_prefix(self, tokens: Sequence[int]) -> int:
        """How many tokens of a prompt are there already. Modifies nothing."""
        found = (
            self.scheduler.prefix.index.match(tokens) if self.scheduler.prefix.off is None else None
        )
        return found.length if found is not None else 0

    def clear_prefixes(self) -> None:
        """Forget every prefix that was kept; running requests have copies."""
        self.scheduler.clear_prefixes()

    @property
    def has_work(self) -> bool:
        return self._flight is not None or self.scheduler.has_work

    @property
    def load(self) -> Load:
        states = [s.status for s in self.scheduler.running]
        return Load(
            len(self.scheduler.queue.waiting),
            states.count(Status.PREFILL),
            states.count(Status.DECODE),
        )

    @property
    def prefix_report(self) -> PrefixStats:
        return self.scheduler.prefix.stats()

    def snapshot(self) -> ModelSnapshot:
        """What there is to say of this model now. Modifies nothing."""
        who = self.scheduler.speculator
        kinds = {drafter.name: drafter.kind for drafter in who.drafters}
        no_draft = None if DraftModel.kind in kinds.values() else who.no_draft
        return ModelSnapshot(
            kinds,
            who.off,
            no_draft,
            self.unbatchable,
            self.cost_model.to_json(),
            self.prefix_report,
        )

    def step(self) -> list[Event]:
        """Launch the next step and take in the one before. Returns the events to publish, in order."""
        events: list[Event] = []
        if self._flight is None:
            events += self.scheduler.reap()
        step = self.scheduler.plan()
        if step is None and self._flight is not None:
            events += self.drain()
            events += self.scheduler.reap()
            step = self.scheduler.plan()
        launched = None if step is None else self.runner.launch(step)
        if self._flight is not None:
            events += self._commit(self._flight, launched)
        self._flight = launched
        return events

    def drain(self) -> list[Event]:
        """Wait for the step in flight, with nothing behind it. Returns its events."""
        events = self._commit(self._flight) if self._flight is not None else []
        self._flight = None
        return events

    def scratch(self, drafter: Drafter | None = None) -> EngineLoop:
        """A loop beside this one, with the same model and costs and with caches of its own, that keeps no prefixes and
        asks nobody for memory. `drafter` drafts for it, or else a draft model as here. The model is not run for it."""
        beside = copy(self)
        beside.limits = limits = replace(self.limits, max_rows=1)
        beside.runner = Runner(self.runner.model, limits.vocab_size, self.make_cache)
        prefix = PrefixReuse(Layout(0), limits.block_tokens, 0)
        beside.scheduler = Scheduler(
            limits, beside.runner.traits, Speculator([]), prefix, beside.runner.caches
        )
        beside._flight = beside._steady = None
        models = (
            each for each in self.scheduler.speculator.drafters if isinstance(each, DraftModel)
        )
        beside.use_drafters([model.scratch() for model in models] if drafter is None else [drafter])
        return beside

    def check(self) -> None:
        """Raise AssertionError if scheduler and caches disagree. Called after every step in tests."""
        self.scheduler.check()
        self.runner.caches.check()
        if not self.scheduler.ops.next:
            for sequence in self.scheduler.running:
                held = self.runner.caches.lengths[sequence.row]
                assert held == sequence.computed, (sequence.row, held, sequence.computed)

    def _commit(self, launch: Launch, following: Launch | None = None) -> list[Event]:
        """Take in a step; `following` runs already. A launch may wait for the step before it, so the time between two
        reads is that of a pass only if both, or neither, came behind the launch of the next step."""
        reads = self.runner.read(launch)
        now = time.perf_counter()
        steady = None
        if _reads_one_row(launch.plan) and (following is None or _reads_one_row(following.plan)):
            steady = following is not None
        interval = None
        if steady is not None and steady == self._steady:
            width = launch.plan.forwards[0].windows[0].width
            interval = Interval(now - self._read_at, PLAIN if steady else width)
        self._read_at, self._steady = now, steady
        return self.scheduler.commit(launch.plan, reads, interval)


def _reads_one_row(plan: Plan) -> bool:
    """Whether a step is one pass that samples for one single row, with nothing done to caches but rewinds."""
    return (
        len(plan.forwards) == 1
        and not plan.forwards[0].batched
        and plan.forwards[0].windows[0].sample
        and all(isinstance(op, Rewind) for op in plan.ops)
    )
