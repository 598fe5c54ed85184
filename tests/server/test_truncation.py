"""Conversations longer than the context lose their oldest turns, where the request allows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import load as load_tokenizer

from omlx.models.catalog.discovery import BUNDLED
from omlx.server.request.engine_requests import render_conversation, truncate
from omlx.server.request.generation_request import GenerationRequest
from omlx.settings.schema import Settings
from omlx.text.template.render import Prompt
from tests.server.running import TARGET, Running, omlx

CONTEXT = 400
TOKENIZER = load_tokenizer(BUNDLED / TARGET)


def conversation(turns: int, words: int = 12) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": "Be brief."}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn}: {'why ' * words}?"})
        messages.append({"role": "assistant", "content": f"Answer {turn}."})
    return messages[:-1]


def render(request: GenerationRequest) -> Prompt:
    return render_conversation(TOKENIZER, request)


def cut(messages: list[dict[str, Any]], max_tokens: int | None = None) -> tuple[Prompt, str]:
    request = GenerationRequest(messages=messages, max_tokens=max_tokens)
    prompt = truncate(request, CONTEXT, render)
    return prompt, str(TOKENIZER.decode(list(prompt.tokens)))


def test_a_conversation_that_fits_is_whole() -> None:
    prompt, text = cut(conversation(3))
    assert prompt.changes == ()
    assert "Question 0" in text


@pytest.mark.parametrize("max_tokens", [None, 1, 10_000])
def test_the_oldest_turns_are_left_out(max_tokens: int | None) -> None:
    messages = conversation(20)
    prompt, text = cut(messages, max_tokens)
    room = CONTEXT - (1 if max_tokens == 1 else CONTEXT // 4)
    assert len(prompt.tokens) <= room
    (change,) = prompt.changes
    assert change.code == "conversation.truncated"
    kept = [turn for turn in range(20) if f"Question {turn}:" in text]
    assert kept == list(range(kept[0], 20))
    assert change.params["messages"] == 2 * kept[0]
    assert "Be brief." in text


def test_the_next_turns_share_a_prefix() -> None:
    starts = []
    for turns in range(24, 40):
        _, text = cut(conversation(turns, words=2))
        starts.append(next(turn for turn in range(turns) if f"Question {turn}:" in text))
    assert starts == sorted(starts)
    assert len(set(starts)) <= len(starts) / 2


def test_a_last_turn_that_is_too_long_stays_so() -> None:
    messages = [*conversation(5), {"role": "user", "content": "why " * 1_000}]
    prompt, _ = cut(messages)
    assert len(prompt.tokens) > CONTEXT
    assert cut(messages[-1:])[0].changes == ()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with omlx(Settings(max_context=CONTEXT, speculation="off")) as running:
        yield running


def test_responses_truncate_if_asked_to(server: Running) -> None:
    body = {"input": conversation(20), "max_output_tokens": 16, "store": False}
    refused = server.http.post("/v1/responses", json=body)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    answer = server.http.post("/v1/responses", json=body | {"truncation": "auto"})
    record = answer.json()
    assert answer.status_code == 200, record
    assert record["truncation"] == "auto"
    assert [warning["code"] for warning in record["warnings"]] == ["conversation.truncated"]
    usage = record["usage"]
    assert usage["context_left"] == CONTEXT - usage["total_tokens"] > 0
    assert int(answer.headers["X-Omlx-Context-Left"]) == usage["context_left"]


def test_ollama_truncates_unless_told_not_to(server: Running) -> None:
    body = {"messages": conversation(20), "stream": False, "options": {"num_predict": 8}}
    record = server.http.post("/api/chat", json=body).json()
    assert [warning["code"] for warning in record["warnings"]] == ["conversation.truncated"]
    assert record["context_left"] > 0
    refused = server.http.post("/api/chat", json=body | {"truncate": False})
    assert refused.status_code == 400, refused.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat", {"messages": [{"role": "user", "content": "why " * 1_000 + "end"}]}),
        ("generate", {"prompt": "why " * 1_000 + "end", "system": "Be brief."}),
        ("generate", {"prompt": "why " * 1_000 + "end", "raw": True}),
    ],
)
def test_ollama_cuts_a_text_that_is_too_long_alone(
    server: Running, path: str, body: dict[str, Any]
) -> None:
    body |= {"stream": False, "options": {"num_predict": 8}}
    record = server.http.post(f"/api/{path}", json=body).json()
    (warning,) = record["warnings"]
    kept = warning["params"]["kept"]
    assert (warning["code"], record["prompt_eval_count"]) == ("text.truncated", kept)
    assert CONTEXT // 2 < kept <= CONTEXT - 8
    refused = server.http.post(f"/api/{path}", json=body | {"truncate": False})
    assert refused.status_code == 400, refused.text
