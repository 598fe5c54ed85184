"""Prewarming: computes expected beginnings of prompts while the server is idle.

    idle, on mains power, budget left ─► an expected beginning ─► requests in the background
    any other request ─► cancelled at the next chunk; computed tokens stay in the prefix cache

Requests end before each changing span as well, for caches restored at saved lengths only. A
beginning on disk is restored from there, in a fraction of the time.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from math import inf
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from omlx.engine.prefix.tree import shared_length
from omlx.engine.thread import EngineThread
from omlx.engine.types import Event, Failed, Finished, FinishReason, PrefillProgress, Request
from omlx.errors import BadRequest, OmlxError, Overloaded, Reason
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import ResidentModel, ServedModel, State
from omlx.power import on_mains
from omlx.records import BeginningStats
from omlx.server.beginnings.foresight import Expected, foresee
from omlx.server.beginnings.store import BeginningStore
from omlx.settings.schema import Settings

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from omlx.engine.loop import EngineLoop

LOWEST: Final = 1 << 31
"""Number — priority of background work, below the requests of clients."""


class BackgroundPrefill:
    """Prefill requests below those of clients. On the event loop."""

    def __init__(self, engine: EngineThread, pool: Pool) -> None:
        self._engine = engine
        self._pool = pool

    def on_disk(self, model: str) -> bool:
        """Whether prefixes of a model are stored on disk, and with them what prompts begin with."""
        stats = self._engine.prefix_of(model)
        return stats is not None and stats.disk.off is None

    async def fill(
        self,
        model: str,
        tokens: tuple[int, ...],
        deadline: float = inf,
        *,
        beside: bool = False,
        least: int = 1,
    ) -> tuple[bool, int]:
        """Compute the tokens that the prefix cache of a leased model lacks, if at least `least`.

        Any request cancels the work; with `beside`, requests only go first.

        Return whether the work ended before `deadline`, in seconds of the event loop, and the
        number of computed tokens. Does nothing where memory has no room. Raises OmlxError.
        """
        if not tokens:
            return True, 0
        request = Request(
            id=f"prewarm-{uuid.uuid4().hex}",
            tokens=(*tokens, tokens[-1]),  # the last token of a prompt is not computed
            max_tokens=0,
            stable=len(tokens),
            background=not beside,
            priority=LOWEST,
        )
        if not await asyncio.wrap_future(self._engine.may_prefill(model, request, least)):
            return True, 0
        return await self._run(model, request, deadline)

    async def _run(self, model: str, request: Request, deadline: float) -> tuple[bool, int]:
        loop, events, reached = asyncio.get_running_loop(), asyncio.Queue[Event](), 0

        def receive(batch: Sequence[Event], /) -> None:
            for event in batch:
                loop.call_soon_threadsafe(events.put_nowait, event)

        self._engine.submit(model, request, receive)
        try:
            while True:
                event = await events.get()
                if isinstance(event, Failed):
                    if isinstance(event.error, Overloaded):
                        return False, 0
                    raise event.error
                if isinstance(event, PrefillProgress):
                    reached = event.done
                if isinstance(event, Finished):
                    computed = max(0, reached - event.stats.cached_n)
                    return event.reason is FinishReason.LENGTH, computed
                given_up = request.background and not self._alone()
                if given_up or loop.time() > deadline:
                    self._engine.cancel(request.id)
        finally:
            self._engine.cancel(request.id)

    def _alone(self) -> bool:
        """Whether no request runs beside this work."""
        residents = [*self._pool.residents]
        changes = self._pool.load_queue.requests or any(resident.draining for resident in residents)
        return not changes and sum(resident.leases for resident in residents) <= 1


IDLE_S: Final = 1.0
"""Seconds without any request before a beginning is computed."""

MAX_BEGINNINGS: Final = 16
"""Per model, the most recently used first."""

BUDGET_S: Final = 120.0
"""Seconds of computing per load of a model and day."""

POWER_S: Final = 30.0
"""Seconds until a machine on battery is checked for mains power again."""

BUDGET: Final = Reason("prewarm.paused.budget", {"seconds": int(BUDGET_S)})

log = logging.getLogger("omlx.prefix")


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Tokens of a beginning; `spans` are positions in them: starts of changing spans, in order."""

    tokens: tuple[int, ...]
    spans: tuple[int, ...] = ()


@dataclass(slots=True)
class Work:
    """Progress for a loaded model and day, by keys of beginnings.

    `expected` was foreseen at `version` of the store. done: cached, or without room. failed:
    refused by the template or the engine. spent_s: time used. computed: tokens computed.
    forgotten: deleted, with nothing left to do.
    """

    day: date | None = None
    version: int = -1
    expected: Sequence[Expected] = ()
    tokens: dict[str, Tokenized] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    spent_s: float = 0.0
    computed: int = 0
    forgotten: bool = False

    @property
    def left_s(self) -> float:
        return 0.0 if self.forgotten else max(0.0, BUDGET_S - self.spent_s)

    def expect(self, day: date, version: int, expected: Sequence[Expected]) -> None:
        """Replace the expected beginnings. On another day templates may write other tokens."""
        if day != self.day:
            self.tokens, self.spent_s, self.failed = {}, 0.0, set()
        self.day, self.version, self.expected = day, version, expected
        keys = {one.beginning.key for one in expected}
        self.tokens = {key: tokens for key, tokens in self.tokens.items() if key in keys}
        self.done = self.failed & keys  # requests since then may have evicted the others

    async def tokens_of(self, served: ServedModel, one: Expected) -> Tokenized:
        """Return the tokens of an expected beginning. Raises BadRequest."""
        tokens, key = self.tokens, one.beginning.key  # of this day, also if it ends meanwhile
        if key not in tokens:
            model = served.tokenizer, served.context_length
            tokens[key] = await asyncio.to_thread(tokenize, *model, one)
        return tokens[key]


class Prewarmer:
    """Computes expected beginnings while the server is idle. On the event loop.

    `power` returns whether the machine is on mains (blocking). `wall`: the time of day in seconds.
    """

    def __init__(
        self,
        prefill: BackgroundPrefill,
        pool: Pool,
        store: BeginningStore,
        settings: Callable[[], Settings],
        power: Callable[[], bool] = on_mains,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self._prefill = prefill
        self._pool = pool
        self._settings = settings
        self._power = power
        self._wall = wall
        self._on_battery_until = 0.0
        self._obstacle: Reason | None = None
        """Reason why nothing was computed at the last attempt."""
        self._work: WeakKeyDictionary[EngineLoop, Work] = WeakKeyDictionary()

    async def run(self) -> None:
        """Compute beginnings until all are done or the server is not idle. Raises EngineDead."""
        for resident in self._pool.residents:
            work = await self._expect(resident)
            for one in work.expected:
                if one.beginning.key in work.done or not work.left_s:
                    continue
                self._obstacle = await self._find_obstacle()
                if self._obstacle is not None:
                    return
                await self._compute(resident, work, one)

    async def _expect(self, resident: ResidentModel) -> Work:
        """Foresee the beginnings of a model's prompts, unless nothing has changed since."""
        work = self._work.setdefault(resident.loop, Work())
        now, version = self._wall(), self.store.version
        if (day := date.fromtimestamp(now)) != work.day or version != work.version:
            known = self.store.known(resident.entry.id)
            expected = await asyncio.to_thread(foresee, known, now)
            work.expect(day, version, expected[:MAX_BEGINNINGS])
        return work

    def stats(self) -> dict[str, BeginningStats]:
        return {resident.entry.id: self._stats(resident) for resident in self._pool.residents}

    def _stats(self, resident: ResidentModel) -> BeginningStats:
        work = self._work.get(resident.loop, Work())
        done = sum(one.beginning.key in work.done for one in work.expected)
        paused = None
        if done < len(work.expected):
            paused = self._obstacle if work.left_s else BUDGET
        return BeginningStats(done, len(work.expected) - done, work.computed, work.left_s, paused)

    async def expected(self, model: str) -> list[tuple[Expected, Tokenized]]:
        """Return the beginnings to expect of a loaded model's prompts.

        Leaves out beginnings rejected by the chat template.
        """
        resident, found = self._pool.residents.find(model), []
        if resident is not None:
            work = await self._expect(resident)
            for one in work.expected:
                with suppress(BadRequest):
                    found.append((one, await work.tokens_of(resident.served, one)))
        return found

    async def forget(self, model: str) -> None:
        """Delete a model's beginnings, in memory and on disk; none of them is begun any more."""
        resident = self._pool.residents.find(model)
        if resident is not None and (work := self._work.pop(resident.loop, None)) is not None:
            work.forgotten = True
        await asyncio.to_thread(self.store.forget, model)

    async def _find_obstacle(self) -> Reason | None:
        """Return the reason against prewarming now; None if there is none."""
        mode = self._settings().prewarm
        if mode == "off":
            return Reason("prewarm.paused.setting")
        if mode == "mains" and await self._on_battery():
            return Reason("prewarm.paused.battery")
        return None if self._idle() else Reason("prewarm.paused.requests")

    async def _on_battery(self) -> bool:
        clock = asyncio.get_running_loop().time
        if clock() >= self._on_battery_until and not await asyncio.to_thread(self._power):
            self._on_battery_until = clock() + POWER_S  # ask rarely: a process is started for it
        return clock() < self._on_battery_until

    def _idle(self) -> bool:
        """Whether no request came and no model was loaded for `IDLE_S`."""
        statuses = [self._pool.status(resident.entry.id) for resident in self._pool.residents]
        return not self._pool.load_queue.requests and all(
            status.state is State.READY and status.idle_s is not None and status.idle_s >= IDLE_S
            for status in statuses
        )

    async def _compute(self, resident: ResidentModel, work: Work, one: Expected) -> None:
        """Compute a beginning into the prefix cache; an interrupted one is retried later."""
        key, served = one.beginning.key, resident.served
        clock = asyncio.get_running_loop().time
        started, lease = clock(), self._pool.lease_loaded(served.id)
        if lease is None:  # unloaded since the last beginning
            return
        try:
            tokenized = await work.tokens_of(served, one)
            for stop in (*tokenized.spans, len(tokenized.tokens)):
                if not work.left_s:
                    return
                ids, deadline = tokenized.tokens[:stop], started + work.left_s
                ended, computed = await self._prefill.fill(served.id, ids, deadline)
                work.computed += computed
                if not ended:
                    return
            work.done.add(key)
        except OmlxError as error:  # no other attempt can do better
            work.failed.add(key)
            work.done.add(key)
            fields = {"model": served.id, "detail": error.message}
            log.warning("a beginning of prompts was not computed", extra={"fields": fields})
        finally:
            work.spent_s += clock() - started
            lease.release()


def tokenize(tokenizer: TokenizerWrapper, context_length: int, one: Expected) -> Tokenized:
    """Return the tokens of an expected beginning and the starts of spans. Raises BadRequest."""
    tokens = one.beginning.tokens(tokenizer, context_length)
    spans = set[int]()
    for at in one.spans:
        before = one.beginning.tokens_before(at, tokenizer, context_length)
        spans.add(shared_length(before, tokens))
    return Tokenized(tokens, tuple(sorted(spans - {0, len(tokens)})))
