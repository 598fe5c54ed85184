"""Several models under one memory limit: what is evicted for a prompt and for a model, and in
which order."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import pytest

from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layers import Layer, Source
from omlx.settings.store import Store
from tests.server.dialects import user
from tests.server.running import HYBRID, TARGET, Running, omlx

CHAT = "/v1/chat/completions"
LONG = "word " * 750
"""About 780 tokens with the template, whose KV cache takes 8 MB."""


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[Running]:
    """Room for the target, the hybrid (32 MB together) and small prompts, not for a long one
    beside both."""
    gc.collect()
    base = mx.get_active_memory()
    flags = Layer(Source.CLI, {"speculation": "off"})
    configuration = LiveConfiguration((flags,), Store(tmp_path))
    configuration.patch({"memory_limit": 40 << 20})
    headless = Path(shutil.copytree(BUNDLED / TARGET, tmp_path / "target"))
    (headless / "mtp.safetensors").unlink()
    registry = Registry(
        (ModelEntry(TARGET, headless, "bundled"), ModelEntry(HYBRID, BUNDLED / HYBRID, "bundled"))
    )

    def used() -> int:
        return mx.get_active_memory() - base

    with omlx(configuration=configuration, registry=registry, used=used) as running:
        yield running


def ask(text: str, model: str = TARGET, **more: Any) -> dict[str, Any]:
    messages = user(text)
    return {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0, **more}


def state(http: httpx.Client, model: str) -> str:
    return str(http.get(f"/v1/models/{model}").json()["state"])


def kept(http: httpx.Client, model: str) -> dict[str, Any]:
    prefixes: dict[str, Any] = http.get(f"/v1/models/{model}").json()["prefixes"]
    return prefixes


def test_an_idle_model_is_evicted_for_a_long_prompt(tight: Running) -> None:
    http = tight.http
    alone = http.post(CHAT, json=ask(LONG)).json()["choices"][0]["message"]["content"]
    http.delete(f"/v1/models/{TARGET}/prefixes")
    for model in (TARGET, HYBRID):
        assert http.post(CHAT, json=ask("Hello.", model)).status_code == 200
    assert state(http, HYBRID) == "ready"
    answer = http.post(CHAT, json=ask(LONG))
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == alone
    assert state(http, HYBRID) == "unloaded"


def test_beside_a_pinned_model_it_is_told_what_would_fit(tight: Running) -> None:
    running, http = tight, tight.http
    assert running.pool.memory.limit == 40 << 20
    running.pool.catalog.live.patch({"pinned": True}, HYBRID)
    for model in (HYBRID, TARGET):
        assert http.post(CHAT, json=ask("Hello.", model)).status_code == 200
    answer = http.post(CHAT, json=ask(LONG))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["params"]["most"] >= 512) == ("memory.never", True)
    assert http.post(CHAT, json=ask("word " * 300)).status_code == 200
    assert state(http, HYBRID) == "ready"


def test_it_waits_for_a_model_that_is_busy(tight: Running) -> None:
    running, http = tight, tight.http
    for model in (TARGET, HYBRID):
        assert http.post(CHAT, json=ask("Hello.", model)).status_code == 200
    busy = ask("Go on.", HYBRID, max_tokens=300, stream=True, logit_bias=running.endless())
    with ThreadPoolExecutor(1) as pool, http.stream("POST", CHAT, json=busy) as stream:
        lines = stream.iter_lines()
        next(lines)
        before = len(running.engine.submitted)
        waits = pool.submit(http.post, CHAT, json=ask(LONG))
        name = running.engine.wait_for_submission(before)
        assert any('"finish_reason":"length"' in line for line in lines), "it was not disturbed"
        assert waits.result().status_code == 200
    assert name not in running.engine.cancelled


def test_cached_prefixes_are_evicted_before_models(tight: Running) -> None:
    http = tight.http
    for first in "abcd":
        assert http.post(CHAT, json=ask(f"{first} " + "word " * 200)).status_code == 200
    before = kept(http, TARGET)["bytes"]
    assert before > 4 << 20
    assert http.post(f"/v1/models/{HYBRID}/load").json()["state"] == "ready"
    assert state(http, TARGET) == "ready"
    assert kept(http, TARGET)["bytes"] < before


def test_models_share_what_prefixes_may_take(tight: Running) -> None:
    running, http = tight, tight.http
    http.post(f"/v1/models/{TARGET}/load")
    alone = kept(http, TARGET)["max_bytes"]
    assert alone == (running.pool.memory.soft - running.pool.memory.weights) // 2
    http.post(f"/v1/models/{HYBRID}/load")
    shares = [kept(http, model)["max_bytes"] for model in (TARGET, HYBRID)]
    assert shares == [(running.pool.memory.soft - running.pool.memory.weights) // 4] * 2
    http.post(f"/v1/models/{HYBRID}/unload")
    assert kept(http, TARGET)["max_bytes"] == alone
