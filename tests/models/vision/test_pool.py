"""A vision-language model in the pool: requests with images, the setting, the same weights as a
draft."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from omlx.engine.thread import EngineThread
from omlx.engine.types import Event, Failed, Finished, Request, Sampling
from omlx.models.catalog.registry import Registry
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import ServedModel
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.store import Store
from tests.models.pools import make_pool
from tests.models.trees import inspected
from tests.models.vision.folders import MARKERS, save_vlm
from tests.models.vision.loaded import picture

pytestmark = pytest.mark.needs_extra
FAMILIES = {"a": "qwen3_vl", "b": "qwen2_5_vl"}
"""By the names of models; the second is the smaller one."""


@asynccontextmanager
async def pool_of(engine: EngineThread, home: Path, *names: str) -> AsyncIterator[Pool]:
    """A pool of tiny models, one directory for each name."""
    for name in names:
        save_vlm(FAMILIES[name], home / name)
    registry = Registry(tuple(inspected(home / name) for name in names))
    live = LiveConfiguration((), Store(home))
    pool = make_pool(engine, registry, configuration=live, default=names[0])
    yield pool
    for served in pool.loaded:
        await pool.unload(served.id)


async def leased(pool: Pool, name: str) -> ServedModel:
    lease = await pool.lease(name)
    lease.release()
    return lease.served


def ask(engine: EngineThread, served: ServedModel) -> Event:
    """Send a request with an image, and return its last event."""
    eye = served.vision.family
    assert eye is not None, served.vision.off_reason
    image = eye.patches(picture(40, 60), eye.image_name(b"file"))
    text = eye.expand(f"A {MARKERS['qwen3_vl']} so", [image])
    ids = served.tokenizer.encode(text, add_special_tokens=False)
    tokens, spans = eye.place(ids, [image])
    ended, last = threading.Event(), list[Event]()

    def sink(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Finished | Failed):
                last.append(event)
                ended.set()

    request = Request(
        "a", tokens, Sampling(temperature=0.0), max_tokens=4, spans=spans, images=(image,)
    )
    engine.submit(served.id, request, sink)
    assert ended.wait(60)
    return last[0]


async def test_a_request_with_an_image_is_answered(engine: EngineThread, tmp_path: Path) -> None:
    async with pool_of(engine, tmp_path, "a") as pool:
        served = await leased(pool, "a")
        event = ask(engine, served)
        assert isinstance(event, Finished), event
        assert event.stats.predicted_n == 4
        assert served.vision.tower_bytes > 0


async def test_the_setting_loads_a_tower_or_not(engine: EngineThread, tmp_path: Path) -> None:
    codes = []
    async with pool_of(engine, tmp_path, "a") as pool:
        for value in (False, True, False):
            pool.catalog.live.patch({"vision": value}, "a")
            jobs = await pool.reconfigure()
            await asyncio.gather(*(job.task for job in jobs if job.task is not None))
            served = await leased(pool, "a")
            reason = served.vision.off_reason
            codes.append(None if reason is None else reason.code)
    assert codes == ["vision.off.setting", None, "vision.off.setting"]


async def test_a_draft_has_no_tower_until_it_is_a_target(
    engine: EngineThread, tmp_path: Path
) -> None:
    async with pool_of(engine, tmp_path, "a", "b") as pool:
        pool.catalog.live.patch({"draft_model": "b"}, "a")
        target = await leased(pool, "a")
        assert target.draft == "b", target.no_draft_reason
        assert isinstance(ask(engine, target), Finished)
        alone = await leased(pool, "b")
        assert isinstance(ask(engine, alone), Finished)
