"""Tool calls as a model may write them, and tools that are left out, in each API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI

from omlx.engine.types import FinishReason
from omlx.server.dialects.anthropic import blocks
from omlx.server.dialects.anthropic.blocks import AnthropicMessage, Block
from omlx.server.dialects.openai.responses_encoder import ResponseEncoder
from omlx.server.dialects.openai.responses_tools import ToolName
from omlx.server.request import tooling
from omlx.server.request.content import ContentReader
from omlx.server.request.dialect import Encoder
from omlx.server.request.stream import ChoiceEvent
from omlx.text.events import (
    Finish,
    OutputEvent,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from tests.server.dialects import markup
from tests.server.running import TARGET, Running
from tests.server.transcripts import ENCODERS, HEAD, STATS

DEEP = '{"a": ' * 600 + "1" + "}" * 600


def called(arguments: str, *, stop: str | None = None) -> list[ChoiceEvent]:
    events: list[OutputEvent] = [
        TextDelta("See."),
        ToolCallStart(0, "call_0a", "look"),
        ToolCallArguments(0, arguments),
        ToolCallEnd(0, complete=stop is None),
        Finish(FinishReason.STOP, STATS, tool_calls=1, stop=stop),
    ]
    return [ChoiceEvent(0, event) for event in events]


def custom() -> Encoder:
    return ResponseEncoder(HEAD, {}, tools={"look": ToolName("look", custom=True)})


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        ('{"a": 1e999, "b": 1}', {"a": None, "b": 1}),
        (r'{"a": "\ud83d x", "b": 1}', {"a": "\ufffd x", "b": 1}),
        (DEEP, {"arguments": DEEP}),
    ],
)
def test_a_message_has_all_arguments_and_goes_on_from_them(arguments: str, known: object) -> None:
    block = ENCODERS["messages"]().body(called(arguments))["content"][1]
    assert block["input"] == known
    ((past,),) = (
        each["tool_calls"]
        for each in blocks.rendered(
            [AnthropicMessage(role="assistant", content=[Block(**block)])], ContentReader()
        )
    )
    assert past["function"] == {"name": "look", "arguments": known}
    json.dumps(block, ensure_ascii=False, allow_nan=False).encode()


def test_the_input_of_a_custom_tool_can_be_sent() -> None:
    events = called(r'{"input": "\ud83d x"}')
    assert custom().body(events)["output"][1]["input"] == "\ufffd x"
    stream = custom().feed(events)
    assert [payload["sequence_number"] for payload in stream] == list(range(len(stream)))
    for payload in stream:
        json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()
    assert custom().body(called("no call"))["output"][1]["input"] == "no call"


def test_a_call_that_a_stop_string_cut_is_not_told_as_finished() -> None:
    cut, whole = called('{"city": "', stop="Paris"), called('{"city": "Paris"}')
    chat = [ENCODERS["chat"]().body(events)["choices"][0] for events in (cut, whole)]
    assert [choice["finish_reason"] for choice in chat] == ["stop", "tool_calls"]
    assert chat[0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "'
    messages = [ENCODERS["messages"]().body(events) for events in (cut, whole)]
    assert [(each["stop_reason"], each["stop_sequence"]) for each in messages] == [
        ("stop_sequence", "Paris"),
        ("tool_use", None),
    ]
    items = [ENCODERS["responses"]().body(events)["output"][1]["status"] for events in (cut, whole)]
    assert items == ["incomplete", "completed"]


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        ('{"a": [1, "é"]}', {"a": [1, "é"]}),
        ("", {}),
        (" ", {}),
        ("[1]", "[1]"),
        ('{"a": 1', '{"a": 1'),
        (r'{"a": "\ud83d"}', r'{"a": "\ud83d"}'),
        (DEEP, DEEP),
    ],
)
def test_arguments_are_an_object_where_they_are_one_that_can_be_rendered(
    arguments: str, known: object
) -> None:
    assert tooling.call("c", "look", arguments)["function"] == {"name": "look", "arguments": known}


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ('{"a": 1, "b": "é"}', {"a": 1, "b": "é"}),
        (
            '{"a": [1e999, {"b": NaN}], "c": -Infinity, "d": 1.5}',
            {"a": [None, {"b": None}], "c": None, "d": 1.5},
        ),
        (r'{"a": "\ud83d x", "b": 1}', {"a": "\ufffd x", "b": 1}),
        (r'{"a": "\uDE00\ud83d"}', {"a": "\ufffd\ufffd"}),
        (r'{"a": "\ud83d\ude00 \\ud83d \n"}', {"a": "😀 \\ud83d \n"}),
        (r'{"a": "x\ud83d', {"a": "x\ufffd"}),
        ('{"a": "cut', {"a": "cut"}),
        ("", {}),
        (" ", {}),
        ("[1]", "[1]"),
        ("no", "no"),
        ("{'a': 1}", "{'a': 1}"),
        (DEEP, DEEP),
    ],
)
def test_arguments_of_a_model_arrive_as_json_that_can_be_sent(said: str, known: object) -> None:
    assert tooling.parse_arguments(said) == known
    json.dumps(tooling.parse_arguments(said), ensure_ascii=False, allow_nan=False).encode()


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
        answer = speller.http.post("/v1/responses", content=asked)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("tool_choice")
