"""A model in memory, one on its way there, and what is told of either. All of it lives on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from omlx.engine.limits import Limits
from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.cost_file import CostKeeper
from omlx.models.pool.lease import Lease, Served
from omlx.models.pool.loader import Dtype, LoadedWeights, LoadProgress
from omlx.models.pool.speculative import Speculative
from omlx.settings.schema import Settings

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop


class State(StrEnum):
    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    LEAVING = "leaving"
    """Whoever is there finishes; whoever comes waits for what is next."""


@dataclass(frozen=True, slots=True)
class Told:
    """What there is to say of a model's place in memory. `active` counts its requests, `waiting` those for which it is
    being loaded; `weights_bytes` are the target's and the draft's.
    """

    state: State
    progress: LoadProgress | None = None
    active: int = 0
    waiting: int = 0
    pinned: bool = False
    weights_bytes: int = 0
    draft: str | None = None
    idle_s: float | None = None


@dataclass(slots=True, eq=False)
class Resident:
    """One model in memory with what drafts for it. `weights` are by directory: others may hold the same ones.

    `limits` and `dtype` are what it was opened with.
    """

    entry: ModelEntry
    served: Served
    loop: EngineLoop
    limits: Limits
    dtype: Dtype
    weights: dict[Path, LoadedWeights]
    keeper: CostKeeper
    used_at: float
    leases: int = 0
    closed: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def settings(self) -> Settings:
        return self.served.speculative.settings

    @property
    def pinned(self) -> bool:
        return self.settings.pinned

    @property
    def leaving(self) -> bool:
        return self.closed > 0

    def has(self, draft: ModelEntry | None) -> bool:
        """Whether it is what a request wants that wants this draft, or has no opinion."""
        return draft is None or draft.id == self.served.draft

    def serves(self, draft: ModelEntry | None) -> bool:
        """Whether such a request may begin now."""
        return not self.leaving and self.has(draft)

    def lend(self, clock: Callable[[], float]) -> Lease:
        self.leases += 1
        self.used_at = clock()
        self.idle.clear()

        def give_back() -> None:
            self.leases -= 1
            self.used_at = clock()
            if self.leases == 0:
                self.idle.set()

        return Lease(self.served, give_back)

    async def idle_moment(self) -> None:
        """Wait for a moment without requests. Nobody is kept away for it."""
        while self.leases:
            await self.idle.wait()

    @contextmanager
    def door_closed(self) -> Iterator[None]:
        """Nobody comes in meanwhile, except by whoever's turn it is in line. Several may keep the door closed."""
        self.closed += 1
        try:
            yield
        finally:
            self.closed -= 1

    def expired(self, now: float) -> bool:
        """Whether nobody has used it for as long as its settings allow."""
        ttl = self.settings.ttl_seconds
        return ttl is not None and not self.pinned and not self.leases and now - self.used_at >= ttl

    def outlives(self, configured: Speculative, limits: Limits) -> bool:
        """Whether it can take up these settings as it is. Otherwise its loop has to be made again.

        The window may differ: requests bring it along. A draft that could not be used gets another try.
        """
        now = self.served.speculative
        return (
            not self.served.draft_failed
            and limits == self.limits
            and configured.settings.dtype == self.dtype
            and configured.drafting == now.drafting
            and configured.undrafted == now.undrafted
        )


@dataclass(slots=True, eq=False)
class Loading:
    """Somebody wants a model, perhaps with a draft of their own choice; `waiters` get a lease each.

    `kept` says that it goes on without waiters, `again` that a model in memory is to take up new settings. `begun`
    says that memory is being filled: from then on giving up waiting does not stop it. `outdated`: settings have
    changed since it read them.
    """

    entry: ModelEntry
    wanted: ModelEntry | None = None
    kept: bool = False
    again: bool = False
    begun: bool = False
    outdated: bool = False
    progress: LoadProgress | None = None
    waiters: list[asyncio.Future[Lease]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    @property
    def key(self) -> tuple[str, str | None, bool]:
        return self.entry.id, self.wanted.id if self.wanted is not None else None, self.again

    async def lease(self) -> Lease:
        """Wait for one. If the last one stops waiting before anything was read, so does the loading."""
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                waiter.result().release()
            self.waiters.remove(waiter)
            if (
                not (self.waiters or self.begun or self.kept or self.again)
                and self.task is not None
            ):
                self.task.cancel()
            raise

    def grant(self, resident: Resident, clock: Callable[[], float]) -> None:
        """Give everybody their lease, before anybody else can want the memory."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(resident.lend(clock))

    def fail(self, error: BaseException) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
