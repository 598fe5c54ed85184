"""Leases, loading and eviction, with a real engine and the bundled models."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import mlx.core as mx
import pytest

from omlx.engine.thread import EngineThread
from omlx.errors import BadRequest, ModelError, NotFound, Overloaded
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.models.pool.load_queue import ignore_progress
from omlx.models.pool.load_weights import Report
from omlx.models.pool.opening import LoadProgress
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import Lease, ServedModel, State
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.schema import Settings
from omlx.settings.store import Store
from tests.clock import Clock
from tests.models.pools import make_pool
from tests.refusals import refused
from tests.server.encoders.tiny import write

TARGET, DRAFT, HYBRID = "omlx-demo/target", "omlx-demo/draft", "omlx-demo/hybrid"
DEMO = Registry(
    tuple(ModelEntry(name, BUNDLED / name, "bundled") for name in (TARGET, DRAFT, HYBRID))
)
ONE, TWO = 21 << 20, 45 << 20
"""Limits that hold the target or the hybrid, and both but not the draft.

They take 17.9, 15.6 and 3.5 MB, and a seventh of the limit is for caches.
"""


@asynccontextmanager
async def pool(
    engine: EngineThread,
    home: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
    report: Report = ignore_progress,
    registry: Registry | None = None,
    **settings: object,
) -> AsyncIterator[Pool]:
    """A pool whose memory limit counts from what this process holds already.

    Its models are unloaded at the end.
    """
    gc.collect()
    base = mx.get_active_memory()
    configuration = LiveConfiguration((), Store(home)) if home is not None else None
    made = make_pool(
        engine,
        registry or DEMO,
        Settings(**settings),
        configuration=configuration,
        default=TARGET,
        used=lambda: mx.get_active_memory() - base,
        clock=clock,
        report=report,
    )
    yield made
    for served in made.loaded:
        await made.unload(served.id)
    assert made.used_bytes < 1 << 20


async def settled(task: asyncio.Task[Lease]) -> bool:
    """Return whether the task is done after all that can happen without the engine."""
    for _ in range(20):
        await asyncio.sleep(0)
    return task.done()


def ids(models: Pool) -> list[str]:
    return [served.id for served in models.loaded]


async def test_the_least_recently_used_model_is_evicted(engine: EngineThread) -> None:
    seen = []
    async with pool(engine, memory_limit=TWO) as models:
        for name in (TARGET, HYBRID, TARGET, DRAFT, HYBRID):
            (await models.lease(name)).release()
            assert models.used_bytes <= TWO
            seen.append(ids(models))
    pairs = ([TARGET, HYBRID], [HYBRID, TARGET], [TARGET, DRAFT], [DRAFT, HYBRID])
    assert seen == [[TARGET], *pairs]


async def test_eviction_waits_for_active_requests_in_order_of_arrival(engine: EngineThread) -> None:
    async with pool(engine, memory_limit=ONE) as models:
        first = await models.lease(TARGET)
        hybrid = asyncio.ensure_future(models.lease(HYBRID))
        await until(lambda: models.status(TARGET).state is State.DRAINING)
        late = asyncio.ensure_future(models.lease(TARGET))
        assert not await settled(hybrid)
        assert not await settled(late)
        first.release()
        first.release()
        second = await hybrid
        assert not await settled(late)
        second.release()
        third = await late
        third.release()
        served = [each.served.id for each in (first, second, third)]
        assert served == [TARGET, HYBRID, TARGET]


async def until(condition: Callable[[], object]) -> None:
    """Wait until other tasks have made `condition` true."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_request_that_gives_up_changes_nothing(engine: EngineThread) -> None:
    async with pool(engine, memory_limit=ONE) as models:
        first = await models.lease()
        hybrid = asyncio.ensure_future(models.lease(HYBRID))
        await until(lambda: models.status(TARGET).state is State.DRAINING)
        late = asyncio.ensure_future(models.lease())
        assert not await settled(late)
        hybrid.cancel()
        again = await late
        assert ids(models) == [TARGET]
        for lease in (first, again, await models.lease()):
            lease.release()
        assert again.served.id == TARGET


async def test_waiting_requests_share_one_load(engine: EngineThread) -> None:
    begun = []

    def count(entry: ModelEntry, progress: LoadProgress) -> None:
        if progress.done == 0:
            begun.append(entry.id)

    async with pool(engine, report=count) as models:
        leases = await asyncio.gather(*(models.lease(HYBRID) for _ in range(5)))
        assert models.status(HYBRID).active == 5
        for lease in leases:
            lease.release()
    assert len(begun) == 1


@pytest.mark.parametrize("turns", range(1, 5))
async def test_an_unload_is_told_to_whoever_began_to_wait_just_before(
    engine: EngineThread, turns: int
) -> None:
    """At the first of these turns of the event loop the load has no more than been asked for."""

    async with pool(engine) as models, asyncio.timeout(30):
        waiting = asyncio.ensure_future(models.lease(HYBRID))
        for _ in range(turns):
            await asyncio.sleep(0)
        await models.unload(HYBRID)
        with refused(Overloaded, "model.load_cancelled"):
            await waiting
        assert models.status(HYBRID).state is State.UNLOADED


class Held:
    """A report that holds up the engine at the first portion, until `resume` is set."""

    def __init__(self, engine: EngineThread) -> None:
        self.reading, self.resume = threading.Event(), threading.Event()
        self._engine = engine

    def __call__(self, entry: ModelEntry, progress: LoadProgress) -> None:
        if not self.reading.is_set():
            self.reading.set()
            self._engine.call(lambda: self.resume.wait(60))


async def test_loading_survives_its_caller_and_stops_on_unload(engine: EngineThread) -> None:
    held = Held(engine)
    async with pool(engine, report=held) as models:
        loading = asyncio.ensure_future(models.load(HYBRID))
        await until(held.reading.is_set)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert models.status(HYBRID).state is State.LOADING
        waiting = asyncio.ensure_future(models.load(HYBRID))
        unloading = asyncio.ensure_future(models.unload(HYBRID))
        assert not await settled(unloading)
        held.resume.set()
        await unloading
        with refused(Overloaded, "model.load_cancelled"):
            await waiting
        assert models.status(HYBRID).state is State.UNLOADED
        (await models.lease(HYBRID)).release()
        assert ids(models) == [HYBRID]


async def test_settings_that_change_during_a_load_take_effect(
    engine: EngineThread, tmp_path: Path
) -> None:
    def temperatures() -> list[float | None]:
        return [each.speculation.settings.temperature for each in models.loaded]

    held = Held(engine)
    async with pool(engine, tmp_path, report=held) as models:
        loading = asyncio.ensure_future(models.load(HYBRID))
        await until(held.reading.is_set)
        models.catalog.live.patch({"temperature": 0.5}, HYBRID)
        await models.reconfigure()
        held.resume.set()
        await loading
        await until(lambda: temperatures() == [0.5])


async def test_a_change_of_kv_bits_keeps_the_weights(engine: EngineThread, tmp_path: Path) -> None:
    def state(models: Pool) -> tuple[int, ServedModel]:
        resident = models.residents.find(TARGET)
        (loaded,) = resident.weights.values()
        return id(loaded.model), resident.served

    async with pool(engine, tmp_path) as models:
        await models.load(TARGET)
        model, plain = state(models)
        models.catalog.live.patch({"kv_bits": "8"}, TARGET)
        await models.reconfigure()
        await until(lambda: models.loaded[0].kv_cache.bits == 8)
        same, served = state(models)
        assert same == model
        # 32 numbers of 8 bits and two scales, against 32 numbers of 32 bits
        assert served.kv_cache.token_bytes * 128 == plain.kv_cache.token_bytes * (32 + 8)
        assert served.identity != plain.identity


async def test_which_draft_is_loaded(engine: EngineThread) -> None:
    async def drafts(settings: dict[str, object], *requests: tuple[str, ...]) -> list[str]:
        """The draft of each request, or why it has none."""
        seen: list[str] = []
        async with pool(engine, **settings) as models:
            for names in requests:
                lease = await models.lease(*names)
                lease.release()
                reason = lease.served.no_draft_reason
                assert (lease.served.draft is None) == (reason is not None)
                seen.append(lease.served.draft or reason.code)
        return seen

    none, same = "spec.off.no_draft_model", "draft.unfit.same_model"
    given = await drafts({"draft_model": DRAFT}, (TARGET,), (DRAFT,), (HYBRID,))
    assert given == [DRAFT, same, DRAFT]
    asked = await drafts({}, (TARGET,), (TARGET, DRAFT), (TARGET,), (HYBRID,))
    assert asked == [none, DRAFT, DRAFT, none]
    assert await drafts({"draft_model": "org/none"}, (TARGET,)) == ["draft.not_here"]
    banned = await drafts({"draft_model": DRAFT, "no_draft": True}, (TARGET,))
    assert banned == ["spec.off.no_draft"]


async def test_a_shared_draft_is_in_memory_once_until_its_last_user_is_evicted(
    engine: EngineThread,
) -> None:
    sizes, names = [], (TARGET, HYBRID, DRAFT)
    async with pool(engine, draft_model=DRAFT) as models:
        for name in names:
            (await models.lease(name)).release()
            sizes.append(models.used_bytes)
        for name in (HYBRID, DRAFT, TARGET):
            await models.unload(name)
            sizes.append(models.used_bytes)
    target, hybrid, draft = (
        2 * (BUNDLED / name / "model.safetensors").stat().st_size for name in names
    )
    two, three = target + draft, target + hybrid + draft
    assert sizes == pytest.approx([two, three, three, two, two, 0], abs=4e5)


async def test_a_pinned_model_stays_and_another_too_large_is_refused(
    engine: EngineThread, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    store.patch({"memory_limit": ONE})
    store.patch({"pinned": True}, TARGET)
    async with pool(engine, tmp_path) as models:
        (await models.lease(TARGET)).release()
        with refused(ModelError, "model.no_room"):
            await models.lease(HYBRID)
        assert ids(models) == [TARGET]
        models.catalog.live.patch({"pinned": None}, TARGET)
        assert await models.reconfigure() == []
        (await models.lease(HYBRID)).release()
        assert ids(models) == [HYBRID]


async def test_settings_without_effect_on_weights_leave_an_encoder(
    engine: EngineThread, tmp_path: Path
) -> None:
    store, entry = Store(tmp_path / "home"), write(tmp_path / "models/bert", "bert")
    store.patch({"library": "mlx-vlm"})
    async with pool(engine, tmp_path / "home", registry=Registry([entry])) as models:
        (await models.lease(entry.id)).release()
        models.catalog.live.patch({"temperature": 0.5})
        assert await models.reconfigure() == []


async def test_a_draft_without_room_is_left_out_unless_requested(engine: EngineThread) -> None:
    async with pool(engine, draft_model=DRAFT, memory_limit=19 << 20) as models:
        (lease := await models.lease(TARGET)).release()
        assert lease.served.draft is None
        assert lease.served.no_draft_reason.code == "spec.off.draft_failed"
        with pytest.raises(ModelError, match="memory"):
            await models.lease(TARGET, DRAFT)
        (await models.lease(TARGET)).release()


async def test_idle_models_are_evicted_after_their_timeout_unless_pinned(
    engine: EngineThread, tmp_path: Path
) -> None:
    everything, two = sorted((TARGET, HYBRID, DRAFT)), sorted((TARGET, HYBRID))

    store, clock, seen = Store(tmp_path), Clock(0.0), []
    store.patch({"ttl_seconds": 60})
    store.patch({"pinned": True}, TARGET)
    store.patch({"ttl_seconds": 10}, DRAFT)
    async with pool(engine, tmp_path, clock) as models:
        for name in (TARGET, HYBRID, DRAFT):
            (await models.lease(name)).release()
        busy = await models.lease(HYBRID)
        for clock.now in (9, 10, 60):
            await models.evictor.sweep()
            seen.append(sorted(ids(models)))
        busy.release()
        for clock.now in (119, 120):
            await models.evictor.sweep()
            seen.append(sorted(ids(models)))
    assert seen == [everything, two, two, two, [TARGET]]


async def test_lowering_the_limit_evicts_idle_models(engine: EngineThread, tmp_path: Path) -> None:
    async with pool(engine, tmp_path) as models:
        for name in (TARGET, HYBRID):
            (await models.lease(name)).release()
        models.catalog.live.patch({"memory_limit": ONE})
        await models.evictor.sweep()
        assert ids(models) == [HYBRID]


async def test_the_default_model_may_be_an_alias(engine: EngineThread, tmp_path: Path) -> None:
    Store(tmp_path).patch({"alias": "small"}, DRAFT)
    # Also a short name: the alias has precedence.
    Store(tmp_path).patch({"alias": "hybrid"}, TARGET)
    Store(tmp_path).patch({"default_model": "small"})
    async with pool(engine, tmp_path) as models:
        models.catalog._default = None
        names = ("small", "hybrid", TARGET, models.default or "")
        resolved = [models.resolve(name).id for name in names]
        assert resolved == [DRAFT, TARGET, TARGET, DRAFT]


async def test_unknown_names_are_refused_before_loading(engine: EngineThread) -> None:
    async with pool(engine) as models:
        with pytest.raises(NotFound):
            await models.lease("org/none")
        with pytest.raises(BadRequest, match="org/none"):
            await models.lease(TARGET, "org/none")
        with pytest.raises(BadRequest, match="names no model"):
            await make_pool(engine, DEMO, Settings()).lease()
        assert models.last_used is None
