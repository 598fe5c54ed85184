"""What a newer client puts into a conversation: left out with a warning, in every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omlx.errors import BadRequest
from omlx.server.dialects.anthropic.request import MessageRequest
from omlx.server.dialects.ollama import request as ollama_request
from omlx.server.dialects.openai.chat_request import ChatRequest
from omlx.server.dialects.openai.responses_items import Item
from omlx.server.dialects.openai.responses_request import ResponseRequest
from omlx.server.request.content import without_attribution
from omlx.server.request.generation_request import GenerationRequest
from tests.server.dialects import user

HELLO = {"role": "user", "content": "hello"}
LOOK = {"name": "look", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}}
CALL = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
ODD = {"content": {"a": 1}, "source": 5, "input": [1], "name": {}, "text": ["x"], "id": 7}
"""Fields of forms that no known type has."""


def messages(*given: Any, **fields: Any) -> GenerationRequest:
    body = {"max_tokens": 9, "messages": list(given), **fields}
    return MessageRequest.parse(json.dumps(body).encode()).generation_request()


def responses(*items: Any, **fields: Any) -> GenerationRequest:
    body = ResponseRequest.parse(json.dumps({"input": list(items), **fields}).encode())
    return body.generation_request(body.conversation(()))


def chat(*given: Any) -> GenerationRequest:
    return ChatRequest.parse(json.dumps({"messages": given}).encode()).generation_request()


def left_out(request: GenerationRequest) -> list[str]:
    """The places of what was left out; there are no other warnings."""
    assert {reason.code for reason in request.warnings} <= {"request.item_left_out"}
    return [str(reason.params["field"]) for reason in request.warnings]


def names(request: GenerationRequest) -> list[str]:
    tools = request.tools.functions if request.tools else ()
    return [tool["function"]["name"] for tool in tools]


ANSWERED = [
    *("server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "mcp_tool_use"),
    *("code_execution_tool_result", "bash_code_execution_tool_result", "mcp_tool_result"),
    *("text_editor_code_execution_tool_result", "tool_search_tool_result", "from_next_year"),
]


@pytest.mark.parametrize("kind", ANSWERED)
def test_blocks_without_a_text_are_left_out(kind: str) -> None:
    block = {"type": kind, **ODD}
    answer = {"role": "assistant", "content": [block, {"type": "text", "text": "a"}]}
    asked = {"role": "user", "content": [{"type": "text", "text": "b"}, block]}
    request = messages(HELLO, answer, asked, system=[{"type": "text", "text": "s"}, block])
    assert [message["content"] for message in request.messages] == ["s", "hello", "a", "b"]
    places = ["system[1]", "messages[1].content[0]", "messages[2].content[1]"]
    assert left_out(request) == places


def test_an_unknown_block_with_a_text_is_read() -> None:
    request = messages({"role": "user", "content": [{"type": "from_next_year", "text": "a"}]})
    assert [message["content"] for message in request.messages] == ["a"]
    assert left_out(request) == []


def test_a_message_of_nothing_else_is_no_message() -> None:
    removal = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "look"}}
    request = messages(HELLO, {"role": "system", "content": [removal]}, tools=[LOOK])
    assert request.messages == [HELLO]
    assert left_out(request) == ["messages[1].content[0]"]


def test_tools_that_a_message_adds_are_tools() -> None:
    def added(tool: Any) -> dict[str, Any]:
        block = {"type": "tool_addition", "tool": tool}
        return {"role": "system", "content": [block, {"type": "text", "text": "b"}]}

    named = messages(HELLO, added({"type": "tool_reference", "name": "look"}), tools=[LOOK])
    assert names(named) == ["look"]
    assert left_out(named) == ["messages[1].content[0]"]
    for definition, expected in ((LOOK, ["look"]), ({"name": "read"}, ["look", "read"])):
        addition = added({"type": "tool_definition", "definition": definition})
        request = messages(HELLO, addition, tools=[LOOK])
        assert names(request) == expected
        assert left_out(request) == []
        assert request.messages[1]["content"] == "b"


def test_a_result_that_only_names_tools_says_so() -> None:
    def result(*blocks: Any) -> GenerationRequest:
        answer = {"role": "assistant", "content": [CALL]}
        given = {"type": "tool_result", "tool_use_id": "c", "content": list(blocks)}
        return messages(HELLO, answer, {"role": "user", "content": [given]}, tools=[LOOK])

    references = [{"type": "tool_reference", "tool_name": name} for name in ("g", "h")]
    assert result(*references).messages[-1]["content"] == "Loaded: g, h"
    text = {"type": "text", "text": "two tools"}
    assert result(text, *references).messages[-1]["content"] == "two tools"


def test_texts_of_searches_and_summaries_are_read() -> None:
    found = {
        "type": "search_result",
        "source": "https://a",
        "title": "t",
        "content": [{"type": "text", "text": "b"}],
    }
    assert messages({"role": "user", "content": [found]}).messages[0]["content"] == (
        "t\n\nhttps://a\n\nb"
    )
    summary = {"type": "compaction", "content": "so far"}
    answered = messages(HELLO, {"role": "assistant", "content": [summary]}, HELLO)
    assert answered.messages[1]["content"] == "so far"


ITEMS = [
    *("tool_search_call", "compaction", "compaction_trigger", "ghost_snapshot", "web_search_call"),
    *("computer_call_output", "local_shell_call_output", "mcp_call", "from_next_year"),
]


@pytest.mark.parametrize("kind", ITEMS)
def test_items_without_a_text_are_left_out(kind: str) -> None:
    odd = {"arguments": [1], "output": {"a": 1}, "tools": "x", "id": "i", "status": 5}
    request = responses(HELLO, {"type": kind, **odd})
    assert request.messages == [HELLO]
    assert left_out(request) == ["input[1]"]


def test_an_unknown_item_that_is_a_message_is_read() -> None:
    request = responses({"type": "agent_message", "role": "developer", "content": "a"}, HELLO)
    assert [message["role"] for message in request.messages] == ["system", "user"]
    assert left_out(request) == []


@pytest.mark.parametrize("kind", ["additional_tools", "tool_search_output"])
def test_tools_within_items_are_tools(kind: str) -> None:
    space = {"type": "namespace", "name": "n", "tools": [FUNCTION, {**FUNCTION, "name": "read"}]}
    tools = [FUNCTION, {**FUNCTION, "name": "write"}, space]
    body = [HELLO, {"type": kind, "call_id": "c", "tools": tools}]
    known = {**space, "tools": [FUNCTION]}
    request = responses(*body, tools=[FUNCTION, known])
    assert names(request) == ["look", "n.look", "write", "n.read"]
    assert left_out(request) == []
    assert names(responses(*body)) == ["look", "write", "n.look", "n.read"]


def test_items_that_are_left_out_are_repeated_but_for_fields_of_another_form() -> None:
    item = Item.model_validate({"type": "ghost_snapshot", "id": "i", "arguments": [1], "new": 2})
    assert item.as_output() == {"type": "ghost_snapshot", "id": "i", "new": 2}


def test_a_message_of_the_user_is_a_turn_whatever_it_holds() -> None:
    upload = {"type": "container_upload", "file_id": "f"}
    for content in ([upload], []):
        asked = {"role": "user", "content": content}
        request = messages(HELLO, {"role": "assistant", "content": "a"}, asked)
        assert request.messages[-1] == {"role": "user", "content": ""}
        assert not request.continue_last
    result = {"type": "tool_result", "tool_use_id": "c", "content": "r"}
    called = [HELLO, {"role": "assistant", "content": [CALL]}]
    given = messages(*called, {"role": "user", "content": [result, upload]}, tools=[LOOK])
    assert given.messages[-1]["role"] == "tool"
    assert responses({"type": "compaction"}).messages == user("")


def test_the_result_of_a_call_that_is_left_out_goes_with_it() -> None:
    shell = {"type": "local_shell_call", "call_id": "s", "action": {"command": ["ls"]}}
    result = {"type": "function_call_output", "call_id": "s", "output": "a"}
    request = responses(HELLO, shell, result)
    assert request.messages == [HELLO]
    assert left_out(request) == ["input[1]", "input[2]"]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url"])
def test_media_of_earlier_answers_are_left_out(kind: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": kind}]
    answer = {"role": "assistant", "content": parts}
    for request in (chat(HELLO, answer), responses(HELLO, answer), messages(HELLO, answer)):
        assert [message["content"] for message in request.messages] == ["hello", "a"]
        assert [place.partition(".")[2] for place in left_out(request)] == ["content[1]"]


def test_calls_and_results_of_responses_may_have_no_ids() -> None:
    call = {"type": "function_call", "name": "look", "arguments": {"a": 1}}
    result = {"type": "function_call_output", "output": "r"}
    empty = {"id": "", "call_id": ""}
    conversation = [
        *(HELLO, call, {**call, **empty}, result, {**result, **empty}),
        *(call, {**call, "id": "fc_9"}, {**result, "call_id": "fc_9"}, result),
    ]
    both = [message for message in responses(*conversation).messages if message["role"] != "user"]
    calls = [[call["id"] for call in message.get("tool_calls", ())] for message in both]
    answered = [message["tool_call_id"] for message in both if message["role"] == "tool"]
    (first, second), (third, fourth) = filter(None, calls)
    assert len({first, second, third, fourth}) == 4
    assert answered == [first, second, fourth, third]
    with pytest.raises(BadRequest) as caught:
        responses(HELLO, result)
    assert caught.value.param == "input[1].call_id"


def test_null_is_the_type_that_is_the_default() -> None:
    function = {"name": "look", "parameters": {"type": "object"}}
    call = {"id": "c", "type": None, "function": {"name": "look", "arguments": None}}
    tools = [{"type": None, "function": function}]
    conversation = [HELLO, {"role": "assistant", "tool_calls": [call]}]
    body = {"messages": [*conversation, {"role": "tool", "content": "r"}], "tools": tools}
    assert names(ChatRequest.parse(json.dumps(body).encode()).generation_request()) == ["look"]
    ollama = ollama_request.OllamaChatRequest.parse(json.dumps(body).encode())
    assert names(ollama.generation_request()) == ["look"]
    for kind in ({}, {"type": None}):
        request = responses({"type": None, **HELLO}, tools=[{**function, **kind}])
        assert (request.messages, names(request)) == ([HELLO], ["look"])


def test_calls_of_custom_tools_are_read_in_chat() -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "look", "input": "up"}}
    rendered = chat(HELLO, {"role": "assistant", "tool_calls": [call]}).messages[1]
    function = {"name": "look", "arguments": {"input": "up"}}
    assert rendered["tool_calls"] == [{"id": "c", "type": "function", "function": function}]
    with pytest.raises(BadRequest) as caught:
        chat(HELLO, {"role": "assistant", "tool_calls": [{"id": "c", "type": "later"}]})
    assert caught.value.param == "messages[1].tool_calls[0].function"


def test_calls_of_responses_may_have_objects_as_arguments() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": {"a": 1}}
    request = responses(HELLO, call)
    assert request.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def test_parts_of_chat_without_a_text_are_left_out() -> None:
    part = {"type": "from_next_year", "file": 1, "text": [2]}
    parts = [{"type": "text", "text": "a"}, part]
    request = chat(*({"role": role, "content": parts} for role in ("system", "user", "assistant")))
    assert [message["content"] for message in request.messages] == ["a", "a", "a"]
    assert left_out(request) == [f"messages[{at}].content[1]" for at in range(3)]


BILLING = "x-anthropic-billing-header: cc_version=2; cch=1;"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["s"], ["s"]),
        ([BILLING, "s"], ["s"]),
        ([f"{BILLING}\n\ns"], ["s"]),
        ([f"{BILLING}\ns\nt"], ["s\nt"]),
        ([f"s\n{BILLING}"], [f"s\n{BILLING}"]),
    ],
)
def test_lines_that_change_with_every_request_are_left_out(
    texts: list[str], expected: list[str]
) -> None:
    given: list[Any] = [{"role": "system", "content": text} for text in texts]
    assert without_attribution([*given, HELLO]) == [
        *({"role": "system", "content": text} for text in expected),
        HELLO,
    ]
    assert without_attribution(user(BILLING))[0]["content"] == BILLING
