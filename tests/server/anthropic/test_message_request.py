from __future__ import annotations

import json
import time
from typing import Any

import pytest

from omlx.errors import BadRequest
from omlx.server.dialects.anthropic.blocks import AnthropicMessage, rendered
from omlx.server.dialects.anthropic.request import MessageRequest
from omlx.server.request.content import ContentReader, decode_reasoning, encode_reasoning

HELLO = {"role": "user", "content": "hello"}


def neutral(*messages: Any, **fields: Any) -> Any:
    return MessageRequest.parse(
        json.dumps({"messages": messages, "max_tokens": 5, **fields}).encode()
    ).generation_request()


def use(id: str, **arguments: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "look", "input": arguments}


def test_blocks_become_messages() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "c", "signature": "x"},
                {"type": "redacted_thinking", "data": "?"},
                {"type": "text", "text": "d"},
                use("t1", at=1),
                use("t2"),
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": "e",
                    "cache_control": {"type": "ephemeral"},
                },
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [{"type": "text", "text": "f"}],
                },
                {"type": "text", "text": "g"},
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "h"},
                },
            ],
        },
    ]

    def look(id: str, **arguments: int) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}}

    assert neutral(
        *messages, system=[{"type": "text", "text": "s"}, {"type": "text", "text": "t"}]
    ).messages == [
        {"role": "system", "content": "s\n\nt"},
        {"role": "user", "content": "a\n\nb"},
        {
            "role": "assistant",
            "content": "d",
            "reasoning_content": "c",
            "tool_calls": [look("t1", at=1), look("t2")],
        },
        {"role": "tool", "tool_call_id": "t1", "name": "look", "content": "e"},
        {"role": "tool", "tool_call_id": "t2", "name": "look", "content": "f"},
        {"role": "user", "content": "g\n\nh"},
    ]


def test_answers_in_a_row_are_one() -> None:
    parts = [
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "a", "signature": ""}, use("t1")],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "b"}, use("t2")]},
    ]
    results = [{"type": "tool_result", "tool_use_id": id} for id in ("t1", "t2")]
    _, both, one, two = neutral(HELLO, *parts, {"role": "user", "content": results}).messages
    assert (both["content"], both["reasoning_content"]) == ("b", "a")
    assert [call["id"] for call in both["tool_calls"]] == ["t1", "t2"]
    assert (one["content"], two["content"]) == ("", "")


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, {}),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            {"reasoning_effort": "max"},
        ),
        ({"chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True}),
    ],
)
def test_what_the_template_is_told_of_thinking(fields: Any, variables: Any) -> None:
    request = neutral(HELLO, **fields)
    assert {**request.defaults.template_variables, **request.template_variables} == variables


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({}, None),
        ({"thinking": {"type": "disabled"}}, 0),
        ({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": 1}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, 2000),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}, "thinking_budget": 9}, 9),
    ],
)
def test_the_thinking_budget(fields: Any, budget: int | None) -> None:
    assert neutral(HELLO, **fields).thinking_budget == budget


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([HELLO, {"role": "assistant", "content": [use("t1")]}], "tools.no_result"),
        ([HELLO, {"role": "assistant", "content": "x "}], "request.trailing"),
        (
            [HELLO, {"role": "assistant", "content": [{"type": "tool_use", "name": "look"}]}],
            "request.missing",
        ),
        ([{"role": "system", "content": [{"type": "server_tool_use"}]}], "request.empty"),
        ([{"role": "user", "content": [{"type": "text"}]}], "request.missing"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "request.media"),
        ([{"role": "king", "content": "x"}], "request.value"),
    ],
)
def test_what_cannot_be_is_refused(messages: Any, code: str) -> None:
    with pytest.raises(BadRequest) as caught:
        neutral(*messages)
    assert caught.value.code == code
    assert caught.value.param is not None
    assert caught.value.param.startswith("messages")


def test_a_count_needs_no_bound_and_a_message_does() -> None:
    body = MessageRequest.parse(json.dumps({"messages": [HELLO]}).encode())
    assert body.generation_request().max_tokens is None
    with pytest.raises(BadRequest) as caught:
        body.exchange()
    assert (caught.value.code, caught.value.param) == ("request.missing", "max_tokens")


@pytest.mark.parametrize("thinking", ["", "Hm. é日本"])
def test_opaque_reasoning_is_decoded_again(thinking: str) -> None:
    assert decode_reasoning("", encode_reasoning(thinking)) == thinking
    assert decode_reasoning("shown", encode_reasoning(thinking)) == "shown"
    assert decode_reasoning("", "of another server") == ""
    assert decode_reasoning("", "omlx.&&&") == ""


def test_a_tool_that_failed_is_told_in_words() -> None:
    def result(content: str) -> str:
        block = {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": content}
        called = {"role": "assistant", "content": [use("t1")]}
        return str(
            neutral(HELLO, called, {"role": "user", "content": [block]}).messages[-1]["content"]
        )

    assert result("no such file") == "Error: no such file"
    assert result("Error: no such file") == "Error: no such file"


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_merging_thousands_of_neighbours_takes_linear_time(role: str) -> None:
    message, count = {"role": role, "content": "x" * 2000}, 8000
    messages = [AnthropicMessage.model_validate(message)] * count
    began = time.process_time()
    (merged,) = rendered(messages, ContentReader())
    assert time.process_time() - began < 3, "copying what was merged before takes over ten"
    assert merged["content"].count("x") == count * 2000
