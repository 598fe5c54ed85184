"""Requests of loaded models continue while another model is loaded and probed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import lfm2

from omlx.engine.speculation.strategy import OFF
from omlx.engine.thread import EngineThread
from omlx.engine.types import Event, Speculation, TokensCommitted
from omlx.errors import Overloaded
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.models.pool.served import State
from tests.engine.harness import request
from tests.models.pools import make_pool
from tests.refusals import refused

TARGET, HYBRID = "omlx-demo/target", "omlx-demo/hybrid"
DEMO = Registry(tuple(ModelEntry(name, BUNDLED / name, "bundled") for name in (TARGET, HYBRID)))
PATIENCE_S = 60
PROBES = 10
"""Passes of a probe, at least."""


def on_each_pass(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Call `call` on the engine thread before each pass of the hybrid model."""
    forward = lfm2.Model.__call__

    def called(self: Any, *args: Any, **more: Any) -> mx.array:
        call()
        return forward(self, *args, **more)

    monkeypatch.setattr(lfm2.Model, "__call__", called)


async def test_a_stream_continues_between_any_two_passes_of_a_probe(
    engine: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[int] = []
    seen_at_pass: list[int] = []
    on_each_pass(monkeypatch, lambda: seen_at_pass.append(len(tokens)))
    begun, loop = asyncio.Event(), asyncio.get_running_loop()

    def receive(events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, TokensCommitted):
                tokens.extend(event.tokens)
        loop.call_soon_threadsafe(begun.set)

    async with asyncio.timeout(PATIENCE_S):
        pool = make_pool(engine, DEMO, default=TARGET)
        (await pool.lease()).release()
        plain = Speculation(OFF)
        engine.submit(TARGET, request("a", max_tokens=4000, speculation=plain), receive)
        await begun.wait()
        (await pool.lease(HYBRID)).release()
        loaded = await asyncio.wrap_future(engine.snapshot(HYBRID))
        engine.cancel("a")
    assert loaded.unbatchable is None
    assert len(seen_at_pass) > PROBES
    assert sorted(set(seen_at_pass)) == seen_at_pass


async def test_a_load_can_be_cancelled_while_its_model_is_probed(
    engine: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[None] = []
    probing, loop = asyncio.Event(), asyncio.get_running_loop()

    def count() -> None:
        passes.append(None)
        if len(passes) == PROBES // 2:
            loop.call_soon_threadsafe(probing.set)
            # The next step waits until this one's event has been seen.
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE_S)

    on_each_pass(monkeypatch, count)
    async with asyncio.timeout(PATIENCE_S):
        gc.collect()
        before = mx.get_active_memory()
        pool = make_pool(engine, DEMO, default=TARGET)
        waiting = asyncio.ensure_future(pool.lease(HYBRID))
        await probing.wait()
        await pool.unload(HYBRID)
        with refused(Overloaded, "model.load_cancelled"):
            await waiting
        assert pool.status(HYBRID).state is State.UNLOADED
        assert len(passes) < PROBES
        assert mx.get_active_memory() - before < 1 << 20
        (await pool.lease(HYBRID)).release()
        assert len(passes) > PROBES
