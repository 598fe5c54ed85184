"""Prefix cache and memory as a client sees them: hits, size, what does not fit, prewarming."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import mlx.core as mx
import pytest
from openai import OpenAI

from omlx.settings.schema import Settings
from tests.lanes import few
from tests.server.dialects import user
from tests.server.running import DRAFT, HYBRID, TARGET, Running, omlx

CHAT = "/v1/chat/completions"
SYSTEM = {
    "role": "system",
    "content": "You are a careful assistant that edits small programs. " * 12,
}


@pytest.fixture(scope="module")
def own() -> Iterator[Running]:
    with omlx(Settings(speculation="off")) as running:
        yield running


def ask(text: str, model: str = TARGET, **more: Any) -> dict[str, Any]:
    messages = [SYSTEM, {"role": "user", "content": text}]
    return {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0, **more}


def cached(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["timings"]["cache_n"] == body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return int(body["timings"]["cache_n"])


@pytest.mark.parametrize("model", few((TARGET, HYBRID), HYBRID))
def test_the_next_turn_computes_what_is_new(own: Running, model: str) -> None:
    http = own.http
    first = http.post(CHAT, json=ask("Name a river.", model))
    body = ask("Name a river.", model)
    said = first.json()["choices"][0]["message"]["content"]
    body["messages"] += [
        {"role": "assistant", "content": said},
        {"role": "user", "content": "Another."},
    ]
    second = http.post(CHAT, json=body)
    length = first.json()["usage"]["prompt_tokens"]
    assert cached(second) >= length - 12  # all but what the template puts before an answer


def test_a_prefix_cache_is_reported_probed_and_cleared(own: Running) -> None:
    http = own.http
    body = ask("What is kept of this?")
    http.post(CHAT, json=body)
    probe = f"/v1/models/{TARGET}/prefixes/probe"
    probed = http.post(probe, json=body).json()
    assert probed["cached_tokens"] == probed["prompt_tokens"] - 1
    kept = http.get(f"/v1/models/{TARGET}").json()["prefixes"]
    assert 0 < kept["bytes"] <= kept["max_bytes"]
    assert kept["tokens"] >= probed["cached_tokens"]
    assert kept["stored"]["rows"] > 0
    assert (kept["off"], kept["warning"], kept["refused"]) == (None, None, 0)
    text = http.get("/metrics").text
    assert f'omlx_prefix_bytes{{model="{TARGET}"}}' in text
    assert f'omlx_prefix_stored_total{{kind="rows",model="{TARGET}"}}' in text
    for what in ("used", "limit", "mlx_active", "mlx_cache"):
        assert f'omlx_memory_bytes{{what="{what}"}}' in text
    assert http.delete(f"/v1/models/{TARGET}/prefixes").status_code == 204
    assert http.post(probe, json=body).json()["cached_tokens"] == 0
    assert cached(http.post(CHAT, json=body)) == 0


def test_nothing_is_known_of_a_model_that_is_not_loaded(own: Running) -> None:
    http = own.http
    http.post(f"/v1/models/{HYBRID}/unload")
    probed = http.post(f"/v1/models/{HYBRID}/prefixes/probe", json=ask("Hello.")).json()
    assert probed["prompt_tokens"] > 0
    assert probed["cached_tokens"] is None
    assert http.get(f"/v1/models/{HYBRID}").json()["prefixes"] is None
    assert http.delete(f"/v1/models/{HYBRID}/prefixes").status_code == 204
    assert http.delete("/v1/models/no/such/prefixes").status_code == 404
    assert (
        http.post(f"/v1/models/{TARGET}/prefixes/probe", json={"messages": []}).status_code == 400
    )


def test_where_nothing_fits_the_status_warns() -> None:
    with omlx(Settings(prefix_bytes=1000)) as running:
        http = running.http
        http.post(CHAT, json=ask("Hello.", HYBRID))
        warning = http.get(f"/v1/models/{HYBRID}").json()["prefixes"]["warning"]
        assert warning["code"] == "prefix.stored_none"
        assert warning["params"]["asked"] > 0


@pytest.fixture
def tight() -> Iterator[Running]:
    """A server whose limit leaves room for about 1,200 tokens beside the weights."""
    with omlx(Settings(speculation="off")) as running:
        http = running.http
        http.post(CHAT, json=ask("Load."))
        memory, idle = running.pool.memory, mx.get_active_memory()
        memory.used = lambda: memory.weights + mx.get_active_memory() - idle
        memory.own = lambda: 0
        memory.limit = int((memory.weights + 1500 * 8 * 2 * 2 * 64 * 4) / 0.95)
        yield running


def test_a_prompt_that_can_never_fit_gets_400_and_what_would(tight: Running) -> None:
    http = tight.http
    answer = http.post(CHAT, json=ask("word " * 2500))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "memory.never"
    assert str(error["params"]["most"]) in error["message"]


def test_three_at_once_that_fit_only_in_turn_are_all_answered(tight: Running) -> None:
    running, http = tight, tight.http
    answers: dict[int, httpx.Response] = {}
    ours, together = running.pool.memory.used, set[int]()

    def used() -> int:
        """Memory use, which is read at admission and when a prefix is stored."""
        load = running.engine.request_counts(TARGET)
        together.add(load.prefilling + load.decoding)
        return ours()

    running.pool.memory.used = used

    def post(i: int) -> None:
        answers[i] = http.post(CHAT, json=ask(f"{i} " + "word " * 400))

    threads = [threading.Thread(target=post, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[i].status_code for i in range(3)] == [200] * 3
    assert together == {0, 1}


def test_a_limit_lowered_while_serving_refuses_with_the_figures_and_serves_again(
    tight: Running,
) -> None:
    running, http = tight, tight.http
    memory = running.pool.memory
    limit, memory.limit = memory.limit, None
    assert http.post(CHAT, json=ask("word " * 400)).status_code == 200
    memory.limit, memory.used = limit, lambda: limit or 0
    refused = http.post(CHAT, json=ask("word " * 400))
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    error = refused.json()["error"]
    assert error["code"] == "memory.full"
    assert {"need", "used", "limit"} <= set(error["params"])
    small = ask("") | {"messages": user("Hi.")}
    assert http.post(CHAT, json=small).status_code == 200
    memory.used = lambda: memory.weights
    assert http.post(CHAT, json=ask("word " * 400)).status_code == 200
    assert http.get("/health").status_code == 200


PREWARM: Any = {"prompt_cache_options": {"prewarm": True}}


def asked(text: str, system: str) -> list[Any]:
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    settings = Settings(draft_model=DRAFT)
    with omlx(settings) as running:
        yield running.http


def post(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.post(CHAT, json={"temperature": 0.8, "seed": 5, "max_tokens": 24} | body)
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()
    return record


def cached_of(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("model", few((TARGET, HYBRID), HYBRID))
def test_a_prewarmed_chat_answers_as_a_cold_one(http: httpx.Client, model: str) -> None:
    system = "You edit small programs with care. " * 20
    body = {"model": model, "messages": asked("Name a river.", system)}
    cold = post(http, body)
    http.delete(f"/v1/models/{model}/prefixes")
    warmed = post(http, body | PREWARM)
    (choice,) = warmed["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert (cached_of(warmed), warmed["usage"]["completion_tokens"]) == (0, 0)
    again = post(http, body | PREWARM)
    assert cached_of(again) == again["usage"]["prompt_tokens"] - 1
    warm = post(http, body)
    assert cached_of(warm) == cached_of(again)
    assert warm["choices"] == cold["choices"]


@pytest.mark.parametrize("model", few((TARGET, HYBRID), HYBRID))
def test_a_beginning_serves_every_conversation_behind_it(http: httpx.Client, model: str) -> None:
    system = "You are a careful friend of rivers. " * 20
    body = {"model": model, "messages": asked("Name a hill.", system)}
    cold = post(http, body)
    http.delete(f"/v1/models/{model}/prefixes")
    beginning = post(http, body | {"messages": body["messages"][:1]} | PREWARM)
    warm = post(http, body)
    assert cached_of(warm) >= beginning["usage"]["prompt_tokens"] - 12  # the generation prompt
    assert warm["choices"] == cold["choices"]


def test_the_events_of_a_response_without_output(client: OpenAI) -> None:
    wanted: Any = {"model": TARGET, "input": "Warm me.", "extra_body": PREWARM, "stream": True}
    kinds = [event.type for event in client.responses.create(**wanted)]
    assert kinds == ["response.created", "response.in_progress", "response.completed"]


@pytest.mark.parametrize(
    ("field", "value"), [("n", 2), ("min_tokens", 1), ("background", True), ("receipt", True)]
)
def test_fields_about_an_answer_are_refused(server: Running, field: str, value: object) -> None:
    path, body = CHAT, {"messages": asked("a", "b")}
    if field == "background":
        path, body = "/v1/responses", {"input": "a"}
    answer = server.http.post(path, json={**body, **PREWARM, field: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "request.prewarm", field)


def test_a_model_that_stores_no_prefixes_says_so() -> None:
    with omlx(Settings(prefix_bytes=0)) as running:
        http = running.http
        body = {"messages": asked("a", "b"), **PREWARM}
        error = http.post(CHAT, json=body).json()["error"]
    assert (error["code"], error["param"]) == ("prefix.off.no_room", "prompt_cache_options")
