"""A model in memory, one on its way there, and what is told of either. All of it lives on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from omlx.engine.limits import Limits
from omlx.engine.types import Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.cost_file import CostKeeper
from omlx.models.pool.load_weights import Dtype, LoadedWeights, LoadProgress
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.settings.schema import Settings
from omlx.text.grammar import GrammarCompiler

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from omlx.engine.loop import EngineLoop
    from omlx.text.detokenize import TokenBytes


class State(StrEnum):
    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "leaving"
    """Whoever is there finishes; whoever comes waits for what is next."""


@dataclass(frozen=True, slots=True)
class ModelStatus:
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


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is ready for requests. `no_draft` says why no model drafts for it, if none does; `off` why nobody
    may, where its cache cannot take tokens back.

    `speculation` is what was configured when it was loaded.
    """

    id: str
    tokenizer: TokenizerWrapper
    token_bytes: TokenBytes
    vocab_size: int
    context_length: int
    stop_ids: frozenset[int]
    sampling: Mapping[str, float]
    draft: str | None
    no_draft: Reason | None
    off: Reason | None = None
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    grammars: GrammarCompiler = field(init=False)

    @property
    def draft_failed(self) -> bool:
        """Whether its draft fits as far as its files tell, and could not be used."""
        return self.no_draft is not None and self.no_draft.code == "spec.off.draft_failed"

    def __post_init__(self) -> None:
        object.__setattr__(self, "grammars", GrammarCompiler(self.tokenizer, self.stop_ids))


class Lease:
    """The right to send requests to a model until `release`, which may be called again."""

    def __init__(self, served: ServedModel, give_back: Callable[[], None]) -> None:
        self.served = served
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()


@dataclass(slots=True, eq=False)
class ResidentModel:
    """One model in memory with what drafts for it. `weights` are by directory: others may hold the same ones.

    `limits` and `dtype` are what it was opened with.
    """

    entry: ModelEntry
    served: ServedModel
    loop: EngineLoop
    limits: Limits
    dtype: Dtype
    weights: dict[Path, LoadedWeights]
    cost_keeper: CostKeeper
    used_at: float
    leases: int = 0
    closed: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def settings(self) -> Settings:
        return self.served.speculation.settings

    @property
    def pinned(self) -> bool:
        return self.settings.pinned

    @property
    def draining(self) -> bool:
        return self.closed > 0

    def has(self, draft: ModelEntry | None) -> bool:
        """Whether it is what a request wants that wants this draft, or has no opinion."""
        return draft is None or draft.id == self.served.draft

    def serves(self, draft: ModelEntry | None) -> bool:
        """Whether such a request may begin now."""
        return not self.draining and self.has(draft)

    def lease(self, clock: Callable[[], float]) -> Lease:
        self.leases += 1
        self.used_at = clock()
        self.idle.clear()

        def give_back() -> None:
            self.leases -= 1
            self.used_at = clock()
            if self.leases == 0:
                self.idle.set()

        return Lease(self.served, give_back)

    async def wait_idle(self) -> None:
        """Wait for a moment without requests. Nobody is kept away for it."""
        while self.leases:
            await self.idle.wait()

    @contextmanager
    def drained(self) -> Iterator[None]:
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

    def outlives(self, configured: SpeculationConfig, limits: Limits) -> bool:
        """Whether it can take up these settings as it is. Otherwise its loop has to be made again.

        The window may differ: requests bring it along. A draft that could not be used gets another try.
        """
        now = self.served.speculation
        return (
            not self.served.draft_failed
            and limits == self.limits
            and configured.settings.dtype == self.dtype
            and configured.active_draft == now.active_draft
            and configured.no_draft_reason == now.no_draft_reason
        )


@dataclass(slots=True, eq=False)
class LoadJob:
    """Somebody wants a model, perhaps with a draft of their own choice; `waiters` get a lease each.

    `kept` says that it goes on without waiters, `again` that a model in memory is to take up new settings. `begun`
    says that memory is being filled: from then on giving up waiting does not stop it. `outdated`: settings have
    changed since it read them.
    """

    entry: ModelEntry
    requested_draft: ModelEntry | None = None
    kept: bool = False
    again: bool = False
    begun: bool = False
    outdated: bool = False
    progress: LoadProgress | None = None
    waiters: list[asyncio.Future[Lease]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    @property
    def key(self) -> tuple[str, str | None, bool]:
        return (
            self.entry.id,
            self.requested_draft.id if self.requested_draft is not None else None,
            self.again,
        )

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

    def grant(self, resident: ResidentModel, clock: Callable[[], float]) -> None:
        """Give everybody their lease, before anybody else can want the memory."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(resident.lease(clock))

    def fail(self, error: BaseException) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
