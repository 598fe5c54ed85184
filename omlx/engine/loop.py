"""One loaded model at work: `step` is plan, launch, commit, publish.

    step t      plan t+1 ── launch t+1 ──┐            the device computes t+1 …
                commit t  ── publish t ──┘            … while the host takes in t

Everything here runs on the engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from omlx.engine.batchable import batchable
from omlx.engine.limits import Limits
from omlx.engine.model import MakeCache, Model, cache_maker
from omlx.engine.rewind import unsupported
from omlx.engine.runner import Launch, Runner
from omlx.engine.scheduler import Scheduler
from omlx.engine.sequence import Status
from omlx.engine.spec.draft_model import DraftModel
from omlx.engine.spec.drafter import Drafter
from omlx.engine.spec.speculator import FixedWindow, Speculator
from omlx.engine.store import ConversationStore
from omlx.engine.types import Event, Reason, Request


@dataclass(frozen=True, slots=True)
class Load:
    """How many requests of one model are where."""

    waiting: int
    prefilling: int
    decoding: int


class EngineLoop:
    """Serves one target model. `vocab_size` is the length of its tokenizer.

    `draft` drafts for it, by the name `draft_name`; `no_draft` says why there is none. `make_cache` overrides the
    model's own kind of cache. Loading runs a short probe of whether rows can share a batch.
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
        make_cache: MakeCache | None = None,
    ) -> None:
        self.limits = limits
        self.vocab_size = vocab_size
        make_cache = make_cache or cache_maker(model)
        self.runner = Runner(model, vocab_size, make_cache)
        self.unbatchable = batchable(model, make_cache, vocab_size)
        store = ConversationStore(self.runner.traits, limits.store_entries, limits.store_bytes)
        self.scheduler = Scheduler(
            limits, self.runner.traits, Speculator([], FixedWindow(0)), store, self.runner.caches, self.unbatchable
        )
        self._flight: Launch | None = None
        drafters: list[Drafter] = []
        if draft is not None:
            drafters.append(DraftModel(draft_name or "draft", draft, vocab_size, cache_maker(draft)))
            no_draft = self._cannot_speculate(draft)
        self.use_drafters(drafters, no_draft)

    def use_drafters(self, drafters: list[Drafter], off: Reason | None = None) -> None:
        """Replace who drafts, while no request runs. `off` says why nobody may."""
        self.scheduler.speculator = Speculator(drafters, FixedWindow(self.limits.num_draft_tokens), off)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises Overloaded or BadRequest; nothing is kept then."""
        self.scheduler.submit(request)

    def cancel(self, request_id: str) -> None:
        self.scheduler.cancel(request_id)

    @property
    def has_work(self) -> bool:
        return self._flight is not None or self.scheduler.has_work

    @property
    def load(self) -> Load:
        states = [s.status for s in self.scheduler.running]
        return Load(len(self.scheduler.waiting), states.count(Status.PREFILL), states.count(Status.DECODE))

    def step(self) -> list[Event]:
        """Launch the next step and take in the one before. Returns the events to publish, in order."""
        events: list[Event] = []
        if self._flight is None:
            events += self.scheduler.reap()
        plan = self.scheduler.plan()
        if plan is None and self._flight is not None:
            events += self._commit(self._flight)
            self._flight = None
            events += self.scheduler.reap()
            plan = self.scheduler.plan()
        launched = None
        if plan is not None:
            launched = self.runner.launch(plan, cast(dict[int, mx.array], self.scheduler.drafts))
        if self._flight is not None:
            events += self._commit(self._flight)
        self._flight = launched
        return events

    def check(self) -> None:
        """Raise AssertionError if scheduler and caches disagree. Called after every step in tests."""
        self.scheduler.check()
        self.runner.caches.check()
        if not self.scheduler.pending_ops:
            for sequence in self.scheduler.running:
                held = self.runner.caches.lengths[sequence.row]
                assert held == sequence.computed, (sequence.row, held, sequence.computed)

    def _commit(self, launch: Launch) -> list[Event]:
        return self.scheduler.commit(launch.plan, self.runner.read(launch))

    def _cannot_speculate(self, draft: Model) -> Reason | None:
        """Why no draft can be verified here, or None: a cache of the target or the draft that cannot go back."""
        for layers in (self.runner.traits.unsupported, unsupported(cache_maker(draft)())):
            if layers:
                return Reason("spec.off.cache", {"layers": ", ".join(layers)})
        return None
