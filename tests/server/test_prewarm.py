"""`prompt_cache_options.prewarm`: prompts are computed for the prefix cache, none is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from omlx.settings.schema import Settings
from tests.server.running import DRAFT, HYBRID, TARGET, Running, omlx

PREWARM: Any = {"prompt_cache_options": {"prewarm": True}}
CHAT = "/v1/chat/completions"


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


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("model", [TARGET, HYBRID])
def test_a_prewarmed_chat_answers_as_a_cold_one(http: httpx.Client, model: str) -> None:
    system = "You edit small programs with care. " * 20
    body = {"model": model, "messages": asked("Name a river.", system)}
    cold = post(http, body)
    http.delete(f"/v1/models/{model}/prefixes")
    warmed = post(http, body | PREWARM)
    (choice,) = warmed["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert (cached(warmed), warmed["usage"]["completion_tokens"]) == (0, 0)
    again = post(http, body | PREWARM)
    assert cached(again) == again["usage"]["prompt_tokens"] - 1
    warm = post(http, body)
    assert cached(warm) == cached(again)
    assert warm["choices"] == cold["choices"]


@pytest.mark.parametrize("model", [TARGET, HYBRID])
def test_a_beginning_serves_every_conversation_behind_it(http: httpx.Client, model: str) -> None:
    system = "You are a careful friend of rivers. " * 20
    body = {"model": model, "messages": asked("Name a hill.", system)}
    cold = post(http, body)
    http.delete(f"/v1/models/{model}/prefixes")
    beginning = post(http, body | {"messages": body["messages"][:1]} | PREWARM)
    warm = post(http, body)
    assert cached(warm) >= beginning["usage"]["prompt_tokens"] - 12  # the generation prompt
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
    answer = httpx.post(f"{server.url}{path}", json={**body, **PREWARM, field: value}, timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "request.prewarm", field)


def test_a_model_that_stores_no_prefixes_says_so() -> None:
    with omlx(Settings(prefix_bytes=0)) as running:
        http = running.http
        body = {"messages": asked("a", "b"), **PREWARM}
        error = http.post(CHAT, json=body).json()["error"]
    assert (error["code"], error["param"]) == ("prefix.off.no_room", "prompt_cache_options")
