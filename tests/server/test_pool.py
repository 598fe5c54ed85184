"""Three models under a limit for two, and what they share: concurrent clients, exact answers."""

from __future__ import annotations

import gc
import itertools
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import pytest
from openai import OpenAI

from omlx.engine.device.facts import ModelFacts
from omlx.engine.device.model import Model
from omlx.engine.types import Steps
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.models.pool import load_weights, loader, opening
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.keys import KeyFile
from omlx.settings.layers import Layer, Source
from omlx.settings.schema import Settings
from omlx.settings.store import Store
from tests.server.dialects import user
from tests.server.running import DEMO, HYBRID, TARGET, Running, omlx

TWIN = "omlx-demo/twin"
MODELS = (TARGET, HYBRID, TWIN)
LIMIT = 42 << 20
"""Two of them take 34 MiB of it, all three 49."""

PROMPTS = 3
CHAT = "/v1/chat/completions"


def ask(model: str, number: int, **more: Any) -> dict[str, Any]:
    messages = user(f"Count to {number} and say hello.")
    return {
        "model": model,
        "messages": messages,
        "seed": number,
        "temperature": 0.7,
        "max_tokens": 12,
        **more,
    }


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Holds the vocabulary size of a model while it is probed."""
    probing: set[int] = set()

    def watched(model: Model, vocab_size: int, *more: int | None) -> Steps[ModelFacts]:
        """On the engine thread."""
        probing.add(vocab_size)
        try:
            return (yield from probe(model, vocab_size, *more))
        finally:
            probing.clear()

    probe = load_weights.probe
    monkeypatch.setattr(load_weights, "probe", watched)
    return probing


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Running]:
    """Memory use is what MLX allocates from here on: the models are small beside the test
    process."""
    twin = ModelEntry(TWIN, shutil.copytree(BUNDLED / TARGET, tmp_path / "twin"), "directory")
    registry = Registry((*DEMO.entries, twin))
    gc.collect()
    base = mx.get_active_memory()
    settings = Settings(memory_limit=LIMIT)
    with omlx(
        settings, registry=registry, default=None, used=lambda: mx.get_active_memory() - base
    ) as running:
        yield running


@pytest.fixture
def roomy() -> Iterator[Running]:
    with omlx(default=None) as running:
        yield running


def turns(running: Running, probed: set[int], seconds: float, at_least: int) -> int:
    """Let four clients use three models in turn, some of them streaming.

    Returns the highest memory use between two passes, in bytes; passes themselves, and the caches
    of a probe, need much beside such small models.
    """
    alone = {
        (model, number): answer(running.openai, model, number, stream=False)
        for model, number in itertools.product(MODELS, range(PROMPTS))
    }
    end = time.monotonic() + seconds

    def work(worker: int) -> int:
        done = 0
        while done < at_least or time.monotonic() < end:
            model, number = MODELS[(worker + done) % 3], (worker * 7 + done) % PROMPTS
            text = answer(running.openai, model, number, stream=done % 2 == 1)
            assert text == alone[model, number], (model, number)
            done += 1
        return done

    def used_bytes() -> int:
        mx.synchronize()
        return 0 if probed else running.pool.used_bytes

    with ThreadPoolExecutor(4) as workers:
        working = [workers.submit(work, number) for number in range(4)]
        most = 0
        while not all(worker.done() for worker in working):
            most = max(most, running.engine.call(used_bytes).result())
            time.sleep(0.002)  # each call holds up a step: leave time for the steps
        assert min(worker.result() for worker in working) >= at_least
    return most


def answer(client: OpenAI, model: str, number: int, *, stream: bool) -> str:
    if not stream:
        whole = client.chat.completions.create(**ask(model, number))
        assert whole.model == model
        return whole.choices[0].message.content or ""
    parts = list(client.chat.completions.create(**ask(model, number), stream=True))
    assert {part.model for part in parts} == {model}
    return "".join(part.choices[0].delta.content or "" for part in parts if part.choices)


def test_three_models_under_a_limit_for_two(crowded: Running, probed: set[int]) -> None:
    assert turns(crowded, probed, 0, at_least=2) <= LIMIT


@pytest.mark.slow
def test_three_models_under_a_limit_for_two_for_two_minutes(
    crowded: Running, probed: set[int]
) -> None:
    assert turns(crowded, probed, 120, at_least=6) <= LIMIT


def test_a_stream_finishes_on_its_model_while_others_come_and_go(crowded: Running) -> None:
    short = ask(TARGET, 1, max_tokens=300, temperature=0)
    crowded.http.post(f"/v1/models/{TARGET}/load")
    expected = crowded.http.post(CHAT, json={**short, "logit_bias": crowded.endless()})
    text, bias = expected.json()["choices"][0]["message"]["content"], crowded.endless()
    stream = crowded.openai.chat.completions.create(**short, logit_bias=bias, stream=True)
    parts = [next(stream)]
    for model in (TWIN, HYBRID, TWIN):
        answer = crowded.http.post(CHAT, json=ask(model, 2))
        assert answer.status_code == 200, answer.text
    parts += list(stream)
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == text


def test_a_stream_goes_on_between_the_portions_of_a_model_that_loads(
    roomy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []

    def portion(reading: Any) -> Any:
        """On the engine thread."""
        steps.append(roomy.engine.steps)
        return step(reading)

    step = loader.next_step
    monkeypatch.setattr(loader, "next_step", portion)
    monkeypatch.setattr(opening, "_STEP_BYTES", 1 << 20)
    roomy.http.post(f"/v1/models/{TARGET}/load")
    # With a step a turn of the engine: a drafting round takes two, for launch and read.
    short = ask(TARGET, 1, max_tokens=3000, extra_body={"speculation": "off"})
    stream = roomy.openai.chat.completions.create(**short, logit_bias=roomy.endless(), stream=True)
    next(iter(stream))
    steps.clear()
    assert roomy.http.post(f"/v1/models/{HYBRID}/load").json()["state"] == "ready"
    stream.close()
    assert len(steps) >= 10
    assert all(before < after for before, after in pairwise(steps))


def test_load_and_unload(http: httpx.Client) -> None:
    address = f"/v1/models/{HYBRID}"
    loaded = http.post(f"{address}/load").json()
    assert (loaded["state"], loaded["loaded"], loaded["active"]) == ("ready", True, 0)
    assert loaded["weights_bytes"] > 15e6
    assert http.post(f"{address}/load").json()["state"] == "ready"
    states = [
        http.post(f"/v1/models/{name}/unload").json()["state"]
        for name in (HYBRID, "omlx-demo%2Fhybrid")
    ]
    assert states == ["unloaded", "unloaded"]
    assert http.get(address).json()["loaded"] is False


def test_an_unload_waits_no_longer_than_its_timeout(crowded: Running) -> None:
    address = f"/v1/models/{TARGET}"
    crowded.http.post(f"{address}/load")
    endless = ask(TARGET, 1, logit_bias=crowded.endless(), max_tokens=3000, stream=True)
    with crowded.http.stream("POST", CHAT, json=endless) as stream:
        lines = stream.iter_lines()
        next(lines)
        waiting = crowded.http.post(f"{address}/unload", json={"timeout": 0.05})
        assert waiting.status_code == 202
        assert (waiting.json()["state"], waiting.json()["active"]) == ("leaving", 1)
        assert crowded.http.get(address).json()["state"] == "leaving"
    gone = crowded.http.post(f"{address}/unload", json={"timeout": 60})
    assert (gone.status_code, gone.json()["state"]) == (200, "unloaded")
    for timeout in (-1, "soon"):
        refusal = crowded.http.post(f"{address}/unload", json={"timeout": timeout})
        assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "timeout")


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "%2e%2e%2fetc", "org/none", "/etc", "~", "omlx-demo/target/.."]
)
@pytest.mark.parametrize("action", ["load", "unload"])
def test_a_name_is_never_a_path(http: httpx.Client, name: str, action: str) -> None:
    answer = http.post(f"/v1/models/{name}/{action}")
    assert answer.status_code in (404, 405)


def test_a_page_cannot_load_models(http: httpx.Client) -> None:
    own = {"Origin": str(http.base_url).rstrip("/")}
    for origin in (own, {"Origin": "http://evil.example"}):
        assert http.post(f"/v1/models/{TARGET}/unload", headers=origin).status_code == 403


def test_what_does_not_fit_is_refused_with_the_figures() -> None:
    with omlx(Settings(memory_limit=1 << 20)) as running:
        http = running.http
        answer = http.post(CHAT, json=ask(TARGET, 1))
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["code"], error["params"]["need_gb"]) == ("model.no_room", 0.02)


ONE = 21 << 20
"""Holds either model, but not both: they take 18 and 16 MB."""


def body(model: str, number: int) -> dict[str, object]:
    messages = user(f"Count to {number}.")
    return {"model": model, "messages": messages, "max_tokens": 4}


@pytest.mark.slow
def test_no_request_is_blamed_for_models_that_come_and_go() -> None:
    gc.collect()
    base = mx.get_active_memory()
    settings = Settings(memory_limit=ONE)
    over = threading.Event()
    with (
        omlx(settings, used=lambda: mx.get_active_memory() - base) as running,
        ThreadPoolExecutor(5) as threads,
    ):
        http = running.http

        def move(model: str) -> list[httpx.Response]:
            answers = []
            while not over.is_set():
                for action in ("unload", "load", "unload"):
                    answers.append(http.post(f"/v1/models/{model}/{action}"))
            return answers

        def ask(client: int) -> list[httpx.Response]:
            models = (TARGET, HYBRID)
            return [http.post(CHAT, json=body(models[(client + i) % 2], i)) for i in range(8)]

        moving = [threads.submit(move, model) for model in (TARGET, HYBRID)]
        asking = [threads.submit(ask, client) for client in range(3)]
        try:
            answers = [answer for client in asking for answer in client.result()]
        finally:
            over.set()
        answers += [answer for mover in moving for answer in mover.result()]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert {answer.status_code for answer in refused} <= {503}, [each.text for each in refused]
    assert all("retry-after" in answer.headers for answer in refused)


def test_a_fallback_model_answers_for_missing_models_and_says_so(tmp_path: Path) -> None:
    folder = shutil.copytree(BUNDLED / TARGET, tmp_path / "twin")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    registry = Registry((*DEMO.entries, ModelEntry(TWIN, folder, "directory")))
    asked = "gpt-nächste"
    settings = Settings(fallback_model=HYBRID, draft_model=None, api_key="main")
    key = {"Authorization": f"Bearer {KeyFile(tmp_path).add('laptop')}"}
    with omlx(settings, registry=registry, default=None, home=tmp_path) as running:
        running.http.headers["Authorization"] = "Bearer main"
        expected = running.http.post(CHAT, json=ask(HYBRID, 3)).json()
        assert "warnings" not in expected
        for model in (asked, TWIN):
            answer = running.http.post(CHAT, json=ask(model, 3))
            record = answer.json()
            (warning,) = record["warnings"]
            params = warning["params"]
            assert (warning["code"], params["asked"]) == ("model.fallback", model)
            assert record["model"] == params["model"] == HYBRID
            assert record["choices"] == expected["choices"]
            header = answer.headers["X-Omlx-Fallback"]
            assert header == f"{params['code']}; model={HYBRID}"
        body = {"model": asked, "messages": user("Hello"), "max_tokens": 9}
        assert running.http.post("/v1/messages/count_tokens", json=body).status_code == 200
        shown = running.http.get(f"/v1/models/{HYBRID}").json()["fallback_for"]
        assert [each["params"]["asked"] for each in shown] == [asked, TWIN]
        shown = running.http.get(f"/v1/models/{HYBRID}", headers=key).json()
        assert shown["fallback_for"] is None
        chat = {"model": asked, "messages": user("Hello"), "stream": False, "keep_alive": "10m"}
        answer = running.http.post("/api/chat", json=chat | {"options": {"num_predict": 1}})
        assert answer.json()["model"] == HYBRID
        (loaded,) = running.http.get("/api/ps").json()["models"]
        assert int(loaded["expires_at"][:4]) < 2300  # the model that answered keeps the time
        own = running.http.post(CHAT, json=ask(TWIN, 3, draft_model=TARGET))
        assert (own.status_code, "X-Omlx-Fallback" in own.headers) == (400, False)
        embedded = running.http.post("/v1/embeddings", json={"model": asked, "input": "a"})
        assert embedded.status_code == 404
    with omlx(Settings(fallback_model=TWIN), registry=registry, default=None) as running:
        refused = running.http.post(CHAT, json=ask(TWIN, 3)).json()["error"]
        assert refused["code"] == "model.truncated"


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


def asking(text: str, model: str = TARGET, **more: Any) -> dict[str, Any]:
    messages = user(text)
    return {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0, **more}


def state(http: httpx.Client, model: str) -> str:
    return str(http.get(f"/v1/models/{model}").json()["state"])


def kept(http: httpx.Client, model: str) -> dict[str, Any]:
    prefixes: dict[str, Any] = http.get(f"/v1/models/{model}").json()["prefixes"]
    return prefixes


def test_an_idle_model_is_evicted_for_a_long_prompt(tight: Running) -> None:
    http = tight.http
    alone = http.post(CHAT, json=asking(LONG)).json()["choices"][0]["message"]["content"]
    http.delete(f"/v1/models/{TARGET}/prefixes")
    for model in (TARGET, HYBRID):
        assert http.post(CHAT, json=asking("Hello.", model)).status_code == 200
    assert state(http, HYBRID) == "ready"
    answer = http.post(CHAT, json=asking(LONG))
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == alone
    assert state(http, HYBRID) == "unloaded"


def test_beside_a_pinned_model_it_is_told_what_would_fit(tight: Running) -> None:
    running, http = tight, tight.http
    assert running.pool.memory.limit == 40 << 20
    running.pool.catalog.live.patch({"pinned": True}, HYBRID)
    for model in (HYBRID, TARGET):
        assert http.post(CHAT, json=asking("Hello.", model)).status_code == 200
    answer = http.post(CHAT, json=asking(LONG))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["params"]["most"] >= 512) == ("memory.never", True)
    assert http.post(CHAT, json=asking("word " * 300)).status_code == 200
    assert state(http, HYBRID) == "ready"


def test_it_waits_for_a_model_that_is_busy(tight: Running) -> None:
    running, http = tight, tight.http
    for model in (TARGET, HYBRID):
        assert http.post(CHAT, json=asking("Hello.", model)).status_code == 200
    busy = asking("Go on.", HYBRID, max_tokens=300, stream=True, logit_bias=running.endless())
    with ThreadPoolExecutor(1) as pool, http.stream("POST", CHAT, json=busy) as stream:
        lines = stream.iter_lines()
        next(lines)
        before = len(running.engine.submitted)
        waits = pool.submit(http.post, CHAT, json=asking(LONG))
        name = running.engine.wait_for_submission(before)
        assert any('"finish_reason":"length"' in line for line in lines), "it was not disturbed"
        assert waits.result().status_code == 200
    assert name not in running.engine.cancelled


def test_cached_prefixes_are_evicted_before_models(tight: Running) -> None:
    http = tight.http
    for first in "abcd":
        assert http.post(CHAT, json=asking(f"{first} " + "word " * 200)).status_code == 200
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
