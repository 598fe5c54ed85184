"""The Responses API with the official client. The model spells the prompt; all else is real."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response, ResponseFunctionToolCall

from omlx.server.dialects.openai.responses_items import Conversation, Item
from tests.server.dialects import markup, user
from tests.server.running import PATIENCE_S, TARGET, Running

PLAIN: Any = {"effort": "none"}
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    },
    {"type": "function", "name": "look"},
]


def ask(client: OpenAI, says: Any, **fields: Any) -> Response:
    return client.responses.create(**{"model": TARGET, "input": says, "reasoning": PLAIN, **fields})


def test_a_tool_loop_over_previous_response_id(spelling: OpenAI) -> None:
    first = ask(spelling, markup("get_weather", city="Oslo"), tools=TOOLS, instructions="Be kind.")
    (found,) = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    result = {"type": "function_call_output", "call_id": found.call_id, "output": "4 degrees"}
    second = ask(
        spelling, [result], tools=TOOLS, instructions="Be kind.", previous_response_id=first.id
    )
    assert second.output_text == "<tool_response>\n4 degrees\n</tool_response>"
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens / 2
    third = ask(spelling, "And now?", tools=TOOLS, previous_response_id=second.id)
    assert third.output_text == "And now?"
    fourth = spelling.responses.create(model=TARGET, previous_response_id=third.id)
    assert fourth.status == "completed"
    assert spelling.responses.input_items.list(fourth.id).data == []


def test_a_tool_loop_without_a_store(spelling: OpenAI) -> None:
    history: list[Any] = user(f"<think>\nHm.\n</think>\n\n{markup('look')}")
    fields: Any = {
        "tools": TOOLS,
        "store": False,
        "reasoning": {},
        "include": ["reasoning.encrypted_content"],
    }
    first = ask(spelling, history, **fields)
    assert first.output[0].encrypted_content
    history += [item.model_dump(exclude_none=True) for item in first.output]
    history.append(
        {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "seen"}
    )
    second = ask(spelling, history, **{**fields, "reasoning": PLAIN})
    assert second.output_text == "<tool_response>\nseen\n</tool_response>"
    with pytest.raises(BadRequestError) as caught:
        ask(spelling, "x", previous_response_id=first.id)
    assert caught.value.param == "previous_response_id"


def test_stored_items_need_not_be_sent_again(spelling: OpenAI) -> None:
    first = ask(spelling, f"<think>\nHm.\n</think>\n\n{markup('look')}", tools=TOOLS, reasoning={})
    listed = spelling.responses.input_items.list(first.id, order="asc").data
    history: list[Any] = [
        {"type": "item_reference", "id": item.id} for item in [*listed, *first.output]
    ]
    history.append(
        {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "seen"}
    )
    second = ask(spelling, history, tools=TOOLS)
    assert second.output_text == "<tool_response>\nseen\n</tool_response>"
    whole = [item.model_dump(exclude_none=True) for item in [*listed, *first.output]]
    assert (
        ask(spelling, [*whole, history[-1]], tools=TOOLS).usage.input_tokens
        == second.usage.input_tokens
    )
    kept = spelling.responses.input_items.list(second.id, order="asc").data
    assert [item.id for item in kept[:-1]] == [each["id"] for each in history[:-1]]
    spelling.responses.delete(first.id)
    assert ask(spelling, history, tools=TOOLS).output_text == second.output_text
    with pytest.raises(BadRequestError, match="'msg_gone'") as caught:
        ask(spelling, [{"type": "item_reference", "id": "msg_gone"}])
    assert (caught.value.code, caught.value.param) == ("response.no_item", "input[0]")


def test_tools_of_a_namespace(spelling: OpenAI) -> None:
    inside = {
        "type": "function",
        "name": "look",
        "parameters": {"type": "object", "properties": {}},
    }
    tools: list[Any] = [
        {"type": "namespace", "name": "eyes", "description": "To see.", "tools": [inside]}
    ]
    answer = ask(spelling, markup("eyes.look"), tools=tools)
    (found,) = answer.output
    assert (found.type, found.name, found.namespace) == ("function_call", "look", "eyes")
    history: list[Any] = [{"role": "user", "content": "Look."}, found.model_dump(exclude_none=True)]
    history.append({"type": "function_call_output", "call_id": found.call_id, "output": "seen"})
    assert "seen" in ask(spelling, history, tools=tools).output_text
    named = {"type": "function", "name": "look", "namespace": "eyes"}
    for choice in (named, {"type": "allowed_tools", "mode": "required", "tools": [named]}):
        again = ask(spelling, markup("eyes.look"), tools=[*tools, TOOLS[0]], tool_choice=choice)
        assert [(item.name, item.namespace) for item in again.output] == [("look", "eyes")]
    bare = {"type": "function", "name": "look"}
    for choice in (bare, {"type": "allowed_tools", "mode": "auto", "tools": [named, bare]}):
        with pytest.raises(BadRequestError) as caught:
            ask(spelling, "x", tools=tools, tool_choice=choice)
        assert caught.value.code == "tools.not_there"


def test_a_call_that_was_cut_off_is_incomplete(spelling: OpenAI) -> None:
    says = markup("get_weather", city="Oslo and all of its surroundings") * 2
    whole = ask(spelling, says, tools=TOOLS)
    cut = ask(spelling, says, tools=TOOLS, max_output_tokens=whole.usage.output_tokens - 12)
    assert [item.status for item in cut.output] == ["completed", "incomplete"]
    assert cut.status == "incomplete"


def test_custom_tools_take_a_text(spelling: OpenAI) -> None:
    tools: list[Any] = [{"type": "custom", "name": "patch", "description": "Applies a patch."}]
    says = markup("patch", input='*** Begin\n+"x"')
    answer = ask(spelling, says, tools=tools)
    (found,) = answer.output
    assert (found.type, found.name, found.input) == ("custom_tool_call", "patch", '*** Begin\n+"x"')
    result = {"type": "custom_tool_call_output", "call_id": found.call_id, "output": "done"}
    assert (
        "done" in ask(spelling, [result], tools=tools, previous_response_id=answer.id).output_text
    )


def test_logprobs(spelling: OpenAI) -> None:
    answer = ask(spelling, "Hello.", include=["message.output_text.logprobs"], top_logprobs=2)
    part = answer.output[0].content[0]
    assert "".join(each.token for each in part.logprobs) == "Hello."
    assert all(len(each.top_logprobs) == 2 for each in part.logprobs)


def test_a_response_can_be_looked_at_and_forgotten(spelling: OpenAI) -> None:
    made = ask(spelling, "Hello.", instructions="Be kind.", metadata={"a": "b"})
    assert (made.instructions, made.metadata) == ("Be kind.", {"a": "b"})
    assert spelling.responses.retrieve(made.id) == made
    with pytest.raises(BadRequestError, match="events of this response are not stored") as caught:
        spelling.responses.retrieve(made.id, stream=True)
    assert (caught.value.code, caught.value.param) == ("response.no_stream", "stream")
    (item,) = spelling.responses.input_items.list(made.id).data
    assert item.content[0].text == "Hello."
    spelling.responses.delete(made.id)
    for fields in ({}, {"stream": True}):
        with pytest.raises(NotFoundError):
            spelling.responses.retrieve(made.id, **fields)


def test_input_items_come_in_pages_newest_first(spelling: OpenAI, speller: Running) -> None:
    says: list[Any] = [
        {"role": "user" if at % 2 == 0 else "assistant", "content": f"{at}"} for at in range(45)
    ]
    made = ask(spelling, says)
    listing = spelling.responses.input_items.list

    def texts(items: Any) -> list[str]:
        return [item.content[0].text for item in items]

    counted = [f"{at}" for at in range(45)]
    newest = listing(made.id)
    assert (texts(newest.data), newest.has_more) == (counted[:-21:-1], True)
    assert {item.content[0].type for item in newest.data} == {"input_text", "output_text"}
    assert texts(newest) == counted[::-1]
    assert texts(listing(made.id, order="asc", limit=7)) == counted
    assert (
        texts(listing(made.id, order="asc", limit=2, after=newest.data[-1].id).data)
        == counted[26:28]
    )
    for query, param in (
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("order=up", "order"),
        ("after=x", "after"),
    ):
        answer = speller.http.get(f"/v1/responses/{made.id}/input_items?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_response_in_the_background_ends_or_is_cancelled(
    spelling: OpenAI, speller: Running
) -> None:
    made = ask(spelling, "Hello.", background=True)
    assert made.status == "in_progress"
    speller.engine.wait_until_over(made.id)
    until = monotonic() + PATIENCE_S
    while (looked := spelling.responses.retrieve(made.id)).status == "in_progress":
        assert monotonic() < until  # the engine is done a moment before the response is
    assert (looked.status, looked.output_text) == ("completed", "Hello.")

    made = ask(spelling, "word " * 900, background=True)
    cancelled = spelling.responses.cancel(made.id)
    assert cancelled.status == "cancelled"
    assert speller.engine.wait_until_ended(made.id)
    assert spelling.responses.retrieve(made.id).status == "cancelled"


def test_a_stream_can_be_cancelled_from_elsewhere(spelling: OpenAI) -> None:
    stream = spelling.responses.create(
        model=TARGET, input="word " * 900, reasoning=PLAIN, stream=True
    )
    events = iter(stream)
    created = next(events)
    assert created.type == "response.created"
    assert any(event.type == "response.output_text.delta" for event in events)
    spelling.responses.cancel(created.response.id)
    *_, last = events
    assert last.type == "response.incomplete"
    assert last.response.status == "cancelled"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": None}, "request.empty", "input"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]},
            "tools.no_call",
            "input[0]",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "image.model",
            "input[0].content[0]",
        ),
        ({"previous_response_id": "resp_x"}, "response.not_kept", "previous_response_id"),
        ({"text": {"format": {"type": "xml"}}}, "request.format", "text.format"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x"}}},
            "request.missing",
            "text.format.schema",
        ),
        ({"background": True, "store": False}, "request.background_store", "background"),
        ({"max_output_tokens": 0}, "request.range", "max_output_tokens"),
        ({"conversation": "conv_1"}, "request.unsupported", "conversation"),
    ],
)
def test_what_is_wrong_is_named(
    speller: Running, fields: dict[str, Any], code: str, param: str
) -> None:
    body = {"model": TARGET, "input": "x", **fields}
    error = speller.http.post("/v1/responses", json=body).json()["error"]
    assert (error["code"], error["param"]) == (code, param)


def test_items_become_messages() -> None:
    found = Conversation()
    items: list[Any] = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "input_text", "text": "b"}]},
        {"type": "message", "role": "user", "content": "c"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "d"}]},
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "e"}, {"type": "refusal", "refusal": "!"}],
        },
        {"type": "function_call", "call_id": "f", "name": "look", "arguments": '{"at": 1}'},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "g"}]},
        {"type": "function_call", "call_id": "h", "name": "look", "arguments": ""},
        {"type": "function_call_output", "call_id": "f", "output": "i"},
        {
            "type": "function_call_output",
            "call_id": "h",
            "output": [{"type": "input_text", "text": "j"}],
        },
    ]
    for at, item in enumerate(items):
        found.add(Item.model_validate(item), f"input[{at}]")

    def look(id: str, **arguments: int) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}}

    assert found.messages == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "user", "content": "c"},
        {
            "role": "assistant",
            "reasoning_content": "d",
            "content": "e!",
            "tool_calls": [look("f", at=1)],
        },
        {"role": "assistant", "reasoning_content": "g", "content": "", "tool_calls": [look("h")]},
        {"role": "tool", "tool_call_id": "f", "content": "i"},
        {"role": "tool", "tool_call_id": "h", "content": "j"},
    ]


def test_an_empty_input_is_a_turn_without_text(client: OpenAI) -> None:
    for fields in ({}, {"instructions": "Count."}):
        made = client.responses.create(model=TARGET, input=[], max_output_tokens=2, **fields)
        assert made.usage is not None
        assert made.usage.output_tokens == 2


LONG: dict[str, Any] = {"model": TARGET, "input": "word " * 300, "background": True}


@pytest.fixture
def go_on(speller: Running, spelling: OpenAI) -> Iterator[threading.Event]:
    """The engine waits for it, with the model loaded."""
    spelling.responses.create(model=TARGET, input="a", max_output_tokens=1)
    with speller.engine.held() as event:
        yield event


def test_a_background_response_is_streamed(spelling: OpenAI) -> None:
    asked: dict[str, Any] = {"model": TARGET, "input": "Hello there.", "background": True}
    events = list(spelling.responses.create(**asked, stream=True))
    assert events[0].type == "response.created"
    assert events[0].response.background is True
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    stored = spelling.responses.retrieve(events[-1].response.id)
    assert stored.output_text == events[-1].response.output_text
    assert "Hello there." in stored.output_text


def test_another_client_follows_from_any_event(spelling: OpenAI, go_on: threading.Event) -> None:
    with spelling.responses.create(**LONG, stream=True) as stream:
        first = next(iter(stream))
        assert first.type == "response.created"
        name = first.response.id
    # The first client has left; the response continues.
    following = spelling.responses.retrieve(name, stream=True, starting_after=0)
    go_on.set()
    events = list(following)
    assert events[0].sequence_number == 1
    assert events[-1].type == "response.completed"
    assert spelling.responses.retrieve(name).status == events[-1].response.status
    again = list(spelling.responses.retrieve(name, stream=True, starting_after=0))
    assert again == events  # also after its end


def test_texts_say_whether_they_were_drafted(spelling: OpenAI) -> None:
    asked: dict[str, Any] = {"model": TARGET, "input": "word " * 40, "stream": True}
    extra = {"speculation": "ngram", "num_draft_tokens": 4}
    marked = list(spelling.responses.create(**asked, extra_body=extra | {"mark_drafted": True}))
    deltas = [event for event in marked if event.type == "response.output_text.delta"]
    drafted = [event.delta for event in deltas if event.model_dump().get("drafted")]
    timings = marked[-1].response.model_dump()["timings"]
    assert timings["draft_n_accepted"] > 0
    assert 0 < len("".join(drafted)) < len(marked[-1].response.output_text)
    assert "".join(event.delta for event in deltas) == marked[-1].response.output_text
    plain = spelling.responses.create(**asked, extra_body=extra)
    assert not any("drafted" in event.model_dump() for event in plain)


def test_a_background_stream_can_be_cancelled(spelling: OpenAI, go_on: threading.Event) -> None:
    with spelling.responses.create(**LONG, stream=True) as stream:
        events = iter(stream)
        name = next(events).response.id
        assert spelling.responses.cancel(name).status == "cancelled"
        go_on.set()
        last = list(events)[-1]
    assert last.response.status == "cancelled"
    assert spelling.responses.retrieve(name).status == "cancelled"


def test_an_error_is_the_last_event(spelling: OpenAI) -> None:
    events = list(
        spelling.responses.create(model=TARGET, input="word " * 9000, background=True, stream=True)
    )
    assert events[-1].type == "response.failed"
    error = events[-1].response.error
    assert error is not None
    assert error.model_dump()["params"]["limit"] > 0
