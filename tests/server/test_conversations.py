"""Conversations that the model's chat template does not take, in every dialect."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from tests.server.running import TARGET, Running, omlx
from tests.server.spelling import spelling_pool

MODEL = "t/strict"
TEMPLATE = (
    "{% set ns = namespace(before='') %}{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
    "{% if m.role == ns.before and m.role != 'tool' %}{{ raise_exception('twice') }}{% endif %}"
    "{% if m.role == 'user' and ns.before == 'tool' %}{{ raise_exception('user') }}{% endif %}"
    "{% set ns.before = m.role %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}"
    "{% if call.id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
    "<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MOVED, JOINED = "conversation.system_moved", "conversation.joined"
AFTER, IDS = "conversation.user_in_result", "conversation.ids"


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("strict") / "model"
    shutil.copytree(BUNDLED / TARGET, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    registry = Registry((ModelEntry(MODEL, folder, "model_dir"),))
    running: Running
    with omlx(registry=registry, default=MODEL, build=spelling_pool) as running:
        yield running.http


def warned(answer: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in answer.get("warnings", [])]


def ask(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.post(path, json={"model": MODEL} | body)
    assert answer.status_code == 200, answer.text
    parsed: dict[str, Any] = answer.json()
    return parsed


def test_a_chat(http: httpx.Client) -> None:
    call = {"id": "call_abc123def456", "type": "function"}
    messages: list[Any] = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "user", "content": "d"},
        {"role": "assistant", "tool_calls": [call | {"function": {"name": "f", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "call_abc123def456", "content": "e"},
        {"role": "system", "content": "f"},
        {"role": "user", "content": "g"},
    ]
    answer = ask(http, "/v1/chat/completions", {"messages": messages})
    assert answer["choices"][0]["message"]["content"] == "e\n\nf\n\ng"
    assert set(warned(answer)) == {MOVED, JOINED, AFTER, IDS}
    assert warned(ask(http, "/v1/chat/completions", {"messages": messages[2:3]})) == []


def test_a_message_with_a_reminder_after_a_result(http: httpx.Client) -> None:
    call = {"type": "tool_use", "id": "toolu_01ABC", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_01ABC", "content": "c"}
    body = {
        "max_tokens": 50,
        "system": "a",
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "system", "content": "b"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result, {"type": "text", "text": "d"}]},
        ],
    }
    answer = ask(http, "/v1/messages", body)
    assert answer["content"][0]["text"] == "c\n\nd"
    assert set(warned(answer)) == {MOVED, AFTER, IDS}
    count = ask(http, "/v1/messages/count_tokens", body)
    used = answer["usage"]
    assert count["input_tokens"] == used["input_tokens"] + used["cache_read_input_tokens"]


def test_a_response(http: httpx.Client) -> None:
    items = [
        {"role": "developer", "content": "a"},
        {"role": "developer", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "user", "content": "d"},
        {"role": "developer", "content": "e"},
    ]
    answer = ask(http, "/v1/responses", {"input": items})
    assert answer["output"][-1]["content"][0]["text"] == "c\n\nd\n\ne"
    assert set(warned(answer)) == {MOVED, JOINED}


def test_assistant_messages_at_the_end_are_all_read(http: httpx.Client) -> None:
    """Agents send them: after an interrupted answer, or a result that a sub-agent has written.

    The last one is continued in `/v1/messages`, as Anthropic does, and elsewhere on request; else
    an answer of its own follows, as with OpenAI.
    """
    messages = [
        {"role": "user", "content": "ab\n\ncdef"},
        {"role": "assistant", "content": "ab"},
        {"role": "assistant", "content": "cd"},
    ]
    chat = ask(http, "/v1/chat/completions", {"messages": messages})
    assert chat["choices"][0]["message"]["content"] == "ab\n\ncd"
    response = ask(http, "/v1/responses", {"input": messages})
    assert response["output"][-1]["content"][0]["text"] == "ab\n\ncd"
    continued = {"messages": messages, "continue_final_message": True}
    chat_continued = ask(http, "/v1/chat/completions", continued)
    assert chat_continued["choices"][0]["message"]["content"] == "ef"
    continued = {"input": messages, "continue_final_message": True}
    assert ask(http, "/v1/responses", continued)["output"][-1]["content"][0]["text"] == "ef"
    assert [warned(answer) for answer in (chat, response, chat_continued)] == [[JOINED]] * 3
    message = ask(http, "/v1/messages", {"messages": messages, "max_tokens": 50})
    assert [block["text"] for block in message["content"]] == ["ef"]
    assert warned(message) == []  # successive messages of a role are one, by the API's definition


def test_a_picture_in_a_result_becomes_a_note(http: httpx.Client) -> None:
    call = {"id": "abcdef123", "type": "function", "function": {"name": "f", "arguments": ""}}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    messages: list[Any] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": [picture]},
    ]
    body = {"messages": messages}
    answer = ask(http, "/v1/chat/completions", body)
    expected = {"field": "messages[2].content[0]", "type": "image_url"}
    assert answer["choices"][0]["message"]["content"].startswith("[image_url: left out")
    assert [warning["params"] for warning in answer["warnings"]] == [expected]
    messages[0]["content"] = [picture]
    assert http.post("/v1/chat/completions", json={"model": MODEL} | body).status_code == 400
    messages[:2] = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    messages[2]["content"] = None
    assert warned(ask(http, "/v1/chat/completions", body)) == []


def test_a_picture_in_a_result_of_a_message(http: httpx.Client) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    parts = [
        {"type": "text", "text": "b"},
        {"type": "image", "source": source},
        {"type": "document", "source": {"type": "text", "data": "c"}},
        {"type": "document", "source": source},
    ]
    body = {
        "max_tokens": 50,
        "messages": [
            {"role": "user", "content": "a"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "abcdef123", "name": "f", "input": {}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "abcdef123", "content": parts}],
            },
        ],
    }
    answer = ask(http, "/v1/messages", body)
    notes = [
        "[image: left out, only text can be read here]",
        "[file: document, left out: its text cannot be read here]",
    ]
    assert answer["content"][0]["text"] == "\n\n".join(["b", notes[0], "c", notes[1]])
    assert warned(answer) == ["file.unknown", "content.media_in_result"]


def test_a_picture_in_a_result_of_a_response(http: httpx.Client) -> None:
    items = [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "abcdef123", "name": "f", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "abcdef123",
            "output": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}],
        },
    ]
    answer = ask(http, "/v1/responses", {"input": items})
    assert answer["output"][-1]["content"][0]["text"].startswith("[input_image: left out")
    assert warned(answer) == ["content.media_in_result"]
