"""Who may use which model, with a real engine and the bundled models."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from omlx.engine.thread import EngineThread
from omlx.errors import BadRequest, NotFound
from omlx.models.discovery import BUNDLED, Registry
from omlx.models.entry import ModelEntry
from omlx.models.pool import Lease, Pool
from omlx.settings.schema import Settings

TARGET, DRAFT, HYBRID = "omlx-demo/target", "omlx-demo/draft", "omlx-demo/hybrid"
DEMO = Registry(tuple(ModelEntry(name, BUNDLED / name, "bundled") for name in (TARGET, DRAFT, HYBRID)))


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineThread]:
    engine = EngineThread()
    engine.start()
    yield engine
    engine.stop()


def pool(engine: EngineThread, **settings: object) -> Pool:
    return Pool(engine, DEMO, Settings(**settings), default=TARGET)  # type: ignore[arg-type]


async def settled(task: asyncio.Task[Lease]) -> bool:
    """Whether a lease is there after everything that can happen without the engine has happened."""
    for _ in range(10):
        await asyncio.sleep(0)
    return task.done()


async def unload(engine: EngineThread, pool: Pool) -> None:
    if pool.served is not None:
        await asyncio.wrap_future(engine.call(lambda: engine.detach(pool.served.id)))  # type: ignore[union-attr]


def test_a_change_waits_for_those_who_are_there_and_nobody_overtakes(engine: EngineThread) -> None:
    async def run() -> list[str]:
        models = pool(engine)
        first = await models.lease(TARGET)
        hybrid = asyncio.ensure_future(models.lease(HYBRID))
        assert not await settled(hybrid)
        late = asyncio.ensure_future(models.lease(TARGET))
        assert not await settled(late)
        first.release()
        first.release()
        second = await hybrid
        assert not await settled(late)
        second.release()
        third = await late
        third.release()
        await unload(engine, models)
        return [first.served.id, second.served.id, third.served.id]

    assert asyncio.run(run()) == [TARGET, HYBRID, TARGET]


def test_who_gives_up_waiting_changes_nothing(engine: EngineThread) -> None:
    async def run() -> str:
        models = pool(engine)
        first = await models.lease()
        hybrid = asyncio.ensure_future(models.lease(HYBRID))
        assert not await settled(hybrid)
        hybrid.cancel()
        again = await models.lease()
        for lease in (first, again):
            lease.release()
        await unload(engine, models)
        return again.served.id

    assert asyncio.run(run()) == TARGET


def test_who_gives_up_while_it_loads_leaves_a_working_pool(engine: EngineThread) -> None:
    async def run() -> tuple[str, str]:
        models = pool(engine)
        go_on = threading.Event()
        engine.call(lambda: go_on.wait(60))
        loading = asyncio.ensure_future(models.lease(HYBRID))
        assert not await settled(loading)
        loading.cancel()
        assert not await settled(loading)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert models.served is not None
        loaded = models.served.id
        lease = await models.lease(TARGET)
        lease.release()
        await unload(engine, models)
        return loaded, lease.served.id

    assert asyncio.run(run()) == (HYBRID, TARGET)


def test_which_draft_serves(engine: EngineThread) -> None:
    async def drafts(models: Pool, *wishes: tuple[str, str | None]) -> list[tuple[str | None, str | None]]:
        seen = []
        for model, draft in wishes:
            lease = await models.lease(model, draft)
            lease.release()
            reason = lease.served.no_draft
            seen.append((lease.served.draft, reason.code if reason else None))
        await unload(engine, models)
        return seen

    given = asyncio.run(drafts(pool(engine, draft_model=DRAFT), (TARGET, None), (DRAFT, None), (HYBRID, None)))
    assert given == [(DRAFT, None), (None, "draft.unfit.same_model"), (DRAFT, None)]
    asked = asyncio.run(drafts(pool(engine), (TARGET, None), (TARGET, DRAFT), (TARGET, None), (HYBRID, None)))
    assert asked == [(None, "spec.off.no_draft_model"), (DRAFT, None), (DRAFT, None), (None, "spec.off.no_draft_model")]
    missing = asyncio.run(drafts(pool(engine, draft_model="org/none"), (TARGET, None)))
    assert missing == [(None, "draft.not_here")]
    banned = asyncio.run(drafts(pool(engine, draft_model=DRAFT, no_draft=True), (TARGET, None)))
    assert banned == [(None, "spec.off.no_draft")]


def test_names_that_are_wrong_are_refused_before_anything_is_loaded(engine: EngineThread) -> None:
    async def run() -> None:
        models = pool(engine)
        with pytest.raises(NotFound):
            await models.lease("org/none")
        with pytest.raises(BadRequest, match="org/none"):
            await models.lease(TARGET, "org/none")
        with pytest.raises(BadRequest, match="names no model"):
            await Pool(engine, DEMO, Settings()).lease()
        assert models.served is None

    asyncio.run(run())
