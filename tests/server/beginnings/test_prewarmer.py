"""Beginnings that return are in the prefix cache before the first request of a new server."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.power import on_mains
from omlx.server.beginnings import prewarmer
from omlx.server.beginnings.beginning import Beginning
from omlx.server.beginnings.store import BeginningStore
from omlx.settings.schema import Settings
from tests.lanes import few
from tests.server.running import DRAFT, HYBRID, PATIENCE_S, TARGET, Running, omlx

SLIDING = "omlx-demo/sliding"
SYSTEM = "You edit small programs with care, and say what you changed. " * 36
CHAT = "/v1/chat/completions"


def entry(name: str, folder: Path) -> ModelEntry:
    return ModelEntry(name, folder, "bundled")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """The bundled models, and one with sliding windows made of the same weights."""
    sliding = tmp_path_factory.mktemp("models") / "sliding"
    shutil.copytree(BUNDLED / TARGET, sliding)
    config = json.loads((sliding / "config.json").read_text())
    config |= {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"] * 4}
    (sliding / "config.json").write_text(json.dumps(config))
    bundled = [entry(name, BUNDLED / name) for name in (TARGET, DRAFT, HYBRID)]
    return Registry((*bundled, entry(SLIDING, sliding)))


@contextmanager
def serving(
    registry: Registry, model: str, home: Path, prewarm: str = "always", **changed: Any
) -> Iterator[tuple[Running, httpx.Client]]:
    settings = Settings(draft_model=DRAFT, prewarm=prewarm, **changed)
    with omlx(
        settings, registry=registry, default=model, beginnings=BeginningStore(home)
    ) as running:
        yield running, running.http


def body(text: str, system: str = SYSTEM) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": 12, "temperature": 0.8, "seed": 3}


def ask(http: httpx.Client, text: str) -> tuple[int, int, str]:
    """Return prompt tokens, cached tokens and text."""
    answer = http.post(CHAT, json=body(text))
    assert answer.status_code == 200, answer.text
    record = answer.json()
    usage = record["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], cached, record["choices"][0]["message"]["content"]


def probe(http: httpx.Client, model: str, text: str) -> int:
    answer = http.post(f"/v1/models/{model}/prefixes/probe", json=body(text)).json()
    return int(answer["cached_tokens"] or 0)


def wait_until_cached(http: httpx.Client, model: str, tokens: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while probe(http, model, "Anything else.") < tokens:
        assert time.monotonic() < until, probe(http, model, "Anything else.")
        time.sleep(0.05)  # it is computed once the server has been idle for a while


def wait_for_metric(http: httpx.Client, name: str, value: float, **labels: str) -> None:
    until = time.monotonic() + PATIENCE_S
    listed = ",".join(f'{key}="{label}"' for key, label in sorted(labels.items()))
    line = f"{name}{{{listed}}} {value}\n"
    while line not in (text := http.get("/metrics").text):
        assert time.monotonic() < until, (line, text)
        time.sleep(0.05)  # it changes as the server becomes idle


def load(http: httpx.Client, model: str) -> None:
    assert http.post(f"/v1/models/{model}/load").status_code == 200


@pytest.mark.parametrize("model", few((TARGET, SLIDING, HYBRID), HYBRID))
def test_a_new_conversation_begins_warm(registry: Registry, model: str, tmp_path: Path) -> None:
    with serving(registry, model, tmp_path, "off") as (_, http):
        length, _, cold = ask(http, "Name a hill.")
        ask(http, "Name a river.")
    with serving(registry, model, tmp_path) as (_, http):
        load(http, model)
        wait_until_cached(http, model, length - 40)
        (known,) = http.get(f"/v1/models/{model}").json()["prefixes"]["beginnings"]
        assert known["cached_tokens"] == known["tokens"] >= length - 40
        assert known["conversations"] == 2
        assert known["client"].startswith("python-httpx")
        probed = http.post(f"/v1/models/{model}/prefixes/probe", json=body("Name a hill.")).json()
        assert probed["first_token_s"] > 0  # a prompt was measured: the beginning
        warm_length, cached, warm = ask(http, "Name a hill.")
        assert (warm_length, warm) == (length, cold)
        assert cached >= length - 40  # what the user has written, and the generation prompt
        wait_for_metric(http, "omlx_beginnings", 1.0, model=model, state="done")
        wait_for_metric(http, "omlx_beginnings", 0.0, model=model, state="waiting")
        computed = float(known["tokens"])
        wait_for_metric(http, "omlx_beginnings_computed_tokens_total", computed, model=model)
        prewarming = http.get(f"/v1/models/{model}").json()["prefixes"]["prewarming"]
        assert prewarming["computed_tokens"] == known["tokens"]
        assert 0 < prewarming["budget_left_s"] < prewarmer.BUDGET_S
        assert prewarming["paused"] is None
        assert http.delete(f"/v1/models/{model}/prefixes").status_code == 204
        assert all(b"small programs" not in file.read_bytes() for file in tmp_path.iterdir())


def test_the_next_day_begins_warm(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the new date and the newest status of each folder, none of which was sent so."""
    today = datetime(2026, 12, 1, 7).timestamp()
    monkeypatch.setattr(prewarmer, "IDLE_S", 0.0)
    monkeypatch.setattr(prewarmer.Prewarmer.__init__, "__defaults__", (on_mains, lambda: today))

    def system(day: str, folder: str, status: str) -> str:
        return f"{SYSTEM}\nDirectory: {folder}\nToday: {day}\nStatus: {status}\n{SYSTEM[:300]}"

    wall = [today - 20 * 3600]
    store = BeginningStore(tmp_path, wall=lambda: wall[0])
    for folder, status in (("/a", "old"), ("/b", "clean"), ("/a", "new")):
        wall[0] += 60
        messages = ({"role": "system", "content": system("Nov 30, 2026", folder, status)},)
        store.note(HYBRID, Beginning(messages, (), {}), "agent/1", 1)
    store.flush()
    with serving(registry, HYBRID, tmp_path) as (_, http):  # `always` asks for no power
        load(http, HYBRID)
        for folder, status in (("/a", "new"), ("/b", "clean")):
            body_today = body("Name a hill.", system("Dec 1, 2026", folder, status))
            until = time.monotonic() + PATIENCE_S
            probed = {"cached_tokens": 0, "prompt_tokens": 1000}
            while probed["cached_tokens"] < probed["prompt_tokens"] - 40:
                assert time.monotonic() < until, probed
                time.sleep(0.05)  # it is computed once the server has been idle for a while
                probed = http.post(f"/v1/models/{HYBRID}/prefixes/probe", json=body_today).json()
        listed = http.get(f"/v1/models/{HYBRID}").json()["prefixes"]["beginnings"]
        assert [known["foreseen"] for known in listed] == [True, True]
        assert [known["uncached_tokens"] for known in listed] == [0, 0]
        other = body("Name a hill.", system("Dec 1, 2026", "/a", "another one"))
        probed = http.post(f"/v1/models/{HYBRID}/prefixes/probe", json=other).json()
        behind = probed["prompt_tokens"] - probed["cached_tokens"]
        assert behind <= listed[0]["changing_tokens"] + 40  # an unforeseen status costs the rest


def test_what_came_once_or_on_battery_is_not_computed(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def on_battery() -> bool:
        asked.append(1)
        return False

    monkeypatch.setattr(prewarmer, "IDLE_S", 0.0)
    monkeypatch.setattr(prewarmer.Prewarmer.__init__, "__defaults__", (on_battery, time.time))
    with serving(registry, TARGET, tmp_path, "mains") as (running, http):
        ask(http, "Name a hill.")
        http.delete(f"/v1/models/{TARGET}/prefixes")
        ask(http, "Name a hill.")
        assert asked == []
        ask(http, "Name a river.")
        until = time.monotonic() + PATIENCE_S
        while not asked:
            assert time.monotonic() < until
            time.sleep(0.05)  # it looks once a second
        wait_for_metric(http, "omlx_beginnings", 1.0, model=TARGET, state="waiting")
        code = "prewarm.paused.battery"
        wait_for_metric(http, "omlx_beginnings_paused", 1.0, model=TARGET, code=code)
        prewarming = http.get(f"/v1/models/{TARGET}").json()["prefixes"]["prewarming"]
        assert prewarming["paused"]["code"] == code
        assert [id for id in running.engine.submitted if id.startswith("prewarm")] == []


def test_what_waits_says_why(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting, requests that came within the second, and the budget."""
    store = BeginningStore(tmp_path)
    store.note(TARGET, Beginning(({"role": "system", "content": SYSTEM},), (), {}), "agent/1", 2)
    store.flush()
    for mode, changed, reason in (
        ("off", {}, "setting"),
        ("always", {"IDLE_S": 1e9}, "requests"),
        ("always", {"BUDGET_S": 0.0}, "budget"),
    ):
        for name, value in changed.items():
            monkeypatch.setattr(prewarmer, name, value)
        with serving(registry, TARGET, tmp_path, mode) as (_, http):
            load(http, TARGET)
            code = f"prewarm.paused.{reason}"
            wait_for_metric(http, "omlx_beginnings_paused", 1.0, model=TARGET, code=code)
            wait_for_metric(http, "omlx_beginnings_computed_tokens_total", 0.0, model=TARGET)


def test_deleted_beginnings_are_not_computed(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, fill = BeginningStore(tmp_path), prewarmer.BackgroundPrefill.fill
    for kind in "abc":
        system = {"role": "system", "content": kind * 9 + SYSTEM}
        store.note(TARGET, Beginning((system,), (), {}), f"{kind}/1", 2)
    store.flush()
    filled, deleted = [], threading.Event()

    async def filling(self: Any, *arguments: Any, **named: Any) -> tuple[bool, int]:
        result = await fill(self, *arguments, **named)
        filled.append(result)
        await asyncio.to_thread(deleted.wait, PATIENCE_S)
        return result

    monkeypatch.setattr(prewarmer, "IDLE_S", 0.0)
    monkeypatch.setattr(prewarmer.BackgroundPrefill, "fill", filling)
    with serving(registry, TARGET, tmp_path) as (_, http):
        load(http, TARGET)
        wait_for_metric(http, "omlx_prefix_misses_total", 1.0, model=TARGET)
        assert http.delete(f"/v1/models/{TARGET}/prefixes").status_code == 204
        deleted.set()
        for _ in range(20):  # in which the next one would begin
            prefixes = http.get(f"/v1/models/{TARGET}").json()["prefixes"]
        assert (prefixes["tokens"], prefixes["beginnings"], len(filled)) == (0, [], 1)
