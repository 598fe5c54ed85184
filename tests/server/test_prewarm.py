"""`prompt_cache_options.prewarm`: prompts are computed for the prefix cache, none is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
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


def test_a_stream_has_its_end_and_usage(client: OpenAI) -> None:
    usage: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model=TARGET,
            messages=asked("Warm me.", "Short."),
            stream=True,
            stream_options=usage,
            extra_body=PREWARM,
        )
    )
    contents = [choice.delta.content for chunk in chunks for choice in chunk.choices]
    assert not any(contents)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 0


def test_a_message_without_content(server: Running) -> None:
    system = "An answer that was prepared. " * 20
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude:
        fields: dict[str, Any] = {
            "model": TARGET,
            "max_tokens": 4,
            "system": system,
            "messages": [{"role": "user", "content": "Go."}],
        }
        warmed = claude.messages.create(**fields, extra_body=PREWARM)
        assert (warmed.content, warmed.stop_reason) == ([], "max_tokens")
        assert warmed.usage.output_tokens == 0
        assert warmed.usage.input_tokens > 50  # the rest others have cached
        assert claude.messages.create(**fields).usage.input_tokens == 1


def test_a_response_without_output(client: OpenAI) -> None:
    words = "An answer that was prepared " * 20
    warmed = client.responses.create(model=TARGET, input=words, extra_body=PREWARM)
    assert (warmed.status, warmed.output) == ("completed", [])
    assert warmed.usage is not None
    assert warmed.usage.output_tokens == 0
    wanted: Any = {"model": TARGET, "input": words, "max_output_tokens": 2}
    usage = client.responses.create(**wanted).usage
    assert usage is not None
    assert usage.input_tokens_details.cached_tokens == usage.input_tokens - 1
    kinds = [
        event.type for event in client.responses.create(**wanted, extra_body=PREWARM, stream=True)
    ]
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
