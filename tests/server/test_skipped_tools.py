"""Tools that the server cannot offer: left out with a warning, in every dialect."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.server.dialects import markup
from tests.server.running import TARGET, Running

LOOK: dict[str, Any] = {"type": "object", "properties": {}}
CALL = markup("look")
FUNCTION: dict[str, Any] = {"type": "function", "name": "look", "parameters": LOOK}
SKIPPED = [
    ("web_search", "tools.skipped.search"),
    ("file_search", "tools.skipped.provider"),
    ("code_interpreter", "tools.skipped.provider"),
    ("local_shell", "tools.skipped.client"),
    ("shell", "tools.skipped.client"),
    ("apply_patch", "tools.skipped.client"),
    ("from_next_year", "tools.skipped.unknown"),
]


def warned(answer: Any) -> list[tuple[str, str]]:
    """Code and field of each warning of an answer."""
    extra = answer if isinstance(answer, dict) else answer.model_extra
    return [(item["code"], item["params"]["field"]) for item in extra.get("warnings", [])]


@pytest.mark.parametrize(("kind", "code"), SKIPPED)
def test_responses_skip_a_tool_and_call_the_others(spelling: OpenAI, kind: str, code: str) -> None:
    tools: list[Any] = [{"type": kind}, FUNCTION]
    answer = spelling.responses.create(model=TARGET, input=CALL, tools=tools)
    assert [item.type for item in answer.output if item.type != "reasoning"] == ["function_call"]
    assert warned(answer) == [(code, "tools[0]")]
    (warning,) = (answer.model_extra or {})["warnings"]
    assert kind in warning["message"]


def test_a_stream_of_responses_warns_from_its_first_event(spelling: OpenAI) -> None:
    tools: list[Any] = [FUNCTION, {"type": "web_search"}]
    events = list(spelling.responses.create(model=TARGET, input="a", tools=tools, stream=True))
    for event in (events[0], events[-1]):
        assert event.type in ("response.created", "response.completed")
        assert warned(event.response) == [("tools.skipped.search", "tools[1]")]


def test_blocks_of_such_tools_are_left_out_of_messages(http: httpx.Client) -> None:
    blocks = [
        {"type": "server_tool_use", "id": "s_1", "name": "web_search", "input": {"query": "rain"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s_1",
            "content": [{"type": "web_search_result", "url": "https://example.org", "title": "x"}],
        },
        {"type": "text", "text": "It rains."},
    ]
    conversation = [
        {"role": "user", "content": "rain"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": "and now?"},
    ]
    body = {"model": TARGET, "max_tokens": 9, "messages": conversation}
    answer = http.post("/v1/messages", json=body).json()
    assert warned(answer) == [
        ("request.item_left_out", "messages[1].content[0]"),
        ("request.item_left_out", "messages[1].content[1]"),
    ]
    conversation[1]["content"] = "It rains."
    plain = http.post("/v1/messages", json=body).json()
    assert (plain["content"], warned(plain)) == (answer["content"], [])
    asked = [{"role": "user", "content": blocks[:1]}]
    alone = http.post("/v1/messages", json=body | {"messages": asked}).json()
    assert warned(alone) == [("request.item_left_out", "messages[0].content[0]")]


@pytest.mark.parametrize("kind", ["web_search_call", "local_shell_call", "mcp_call"])
def test_items_of_such_tools_are_left_out_of_a_conversation(spelling: OpenAI, kind: str) -> None:
    items: list[Any] = [
        {"role": "user", "content": "rain"},
        {"type": kind, "id": "i_1", "status": "completed"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "and now?"},
    ]
    answer = spelling.responses.create(model=TARGET, input=items)
    assert answer.output_text
    assert warned(answer) == [("request.item_left_out", "input[1]")]


def test_a_skipped_tool_in_a_namespace_leaves_the_others(spelling: OpenAI) -> None:
    inner = [{"type": "web_search"}, FUNCTION]
    tools: list[Any] = [{"type": "namespace", "name": "all", "tools": inner}]
    answer = spelling.responses.create(model=TARGET, input="a", tools=tools)
    assert warned(answer) == [("tools.skipped.provider", "tools[0].tools[0]")]


def test_allowed_tools_may_name_skipped_ones(spelling: OpenAI) -> None:
    choice: Any = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "web_search"}, {"type": "function", "name": "look"}],
    }
    tools: list[Any] = [{"type": "web_search"}, FUNCTION]
    answer = spelling.responses.create(model=TARGET, input=CALL, tools=tools, tool_choice=choice)
    assert "function_call" in [item.type for item in answer.output]


def test_a_choice_of_a_skipped_tool_is_refused(speller: Running) -> None:
    body = {"model": TARGET, "input": "a", "tools": [{"type": "web_search"}]}
    for choice in ("required", {"type": "web_search"}):
        asked = json.dumps(body | {"tool_choice": choice})
        answer = httpx.post(f"{speller.url}/v1/responses", content=asked)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("tool_choice")
