"""Forced and strict tool calls in each API with its official client: arguments are valid
whatever the model's logits, and speculation changes none of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import httpx
import jsonschema
import pytest
from anthropic import Anthropic
from anthropic import BadRequestError as AnthropicBadRequestError
from openai import BadRequestError, OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field

from tests.schemas import SMALL, listed, record
from tests.server.running import TARGET, Running

BOOK: Final[Any] = record(
    ["city", "nights"],
    city={"enum": ["Oslo", "Zürich", "Porto"]},
    nights={"type": "integer", "minimum": 1, "maximum": 14},
    guests=listed(record(name={"type": "string", "maxLength": 8}, age=SMALL), 0, 2),
)
LOOK: Final[Any] = record(at={"type": "string", "pattern": "^/[a-z]{1,6}$"})
SCHEMAS: Final = {"book": BOOK, "look": LOOK}
ASKED: Final[list[Any]] = [{"role": "user", "content": "Say something else."}]
CHAT: Final[list[Any]] = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
RESPONSES: Final[list[Any]] = [
    {"type": "function", "name": name, "parameters": schema, "strict": False}
    for name, schema in SCHEMAS.items()
]
MESSAGES: Final[list[Any]] = [
    {"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()
]
BAD: Final[Any] = {"type": "object", "properties": {"a": {"type": "strin"}}}


@pytest.fixture
def claude(server: Running) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def chat(client: OpenAI, **fields: Any) -> Any:
    fields = {
        "max_tokens": 300,
        "reasoning_effort": "none",
        "tools": CHAT,
        "tool_choice": "required",
        **fields,
    }
    return client.chat.completions.create(model=TARGET, messages=ASKED, **fields)


def calls(answer: Any, choice: int = 0) -> list[tuple[str, Any]]:
    """The calls of an answer: at least one, all of them valid."""
    message = answer.choices[choice].message
    assert not message.content
    assert answer.choices[choice].finish_reason == "tool_calls"
    return checked(
        [(each.function.name, json.loads(each.function.arguments)) for each in message.tool_calls]
    )


def checked(found: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    assert found
    for name, arguments in found:
        jsonschema.validate(arguments, SCHEMAS[name])
    return found


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_speculation_changes_no_forced_call(
    client: OpenAI, temperature: float, parallel: bool
) -> None:
    fields: Any = {
        "temperature": temperature,
        "seed": 4,
        "parallel_tool_calls": parallel,
        "max_tokens": 120,
    }

    def ask(speculation: str) -> Any:
        return chat(client, **fields, logprobs=True, extra_body={"speculation": speculation})

    def tokens(answer: Any) -> list[str]:
        return [entry.token for entry in answer.choices[0].logprobs.content]

    off = ask("off")
    assert off.timings["drafters"] == {}
    for speculation in ("draft", "ngram", "auto"):
        on = ask(speculation)
        assert tokens(on) == tokens(off)
        forced = on.timings["drafters"]["forced"]
        assert forced["proposed"] >= forced["accepted"] > 0
        assert forced["proposed"] == forced["accepted"] or not parallel, (
            "what is forced behind the only call is not said"
        )
    if not parallel:
        assert len(calls(off)) == 1


def test_chat_completions(client: OpenAI) -> None:
    calls(chat(client, parallel_tool_calls=False))
    named: Any = {"type": "function", "function": {"name": "look"}}
    assert [name for name, _ in calls(chat(client, tool_choice=named))] == ["look"]
    several = chat(client, tool_choice=named, n=3, temperature=1.0, seed=1)
    assert len({json.dumps(calls(several, i)) for i in range(3)}) > 1


def test_a_stream_of_chat_completions(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=TARGET, messages=ASKED, tools=CHAT, tool_choice="required", parallel_tool_calls=False,
        max_tokens=300, reasoning_effort="none",
    ) as stream:  # fmt: skip
        calls(stream.get_final_completion())


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"book", "look"}),
        ({"type": "function", "name": "look"}, {"look"}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "book"}],
            },
            {"book"},
        ),
    ],
)
def test_responses(client: OpenAI, choice: Any, names: set[str]) -> None:
    fields: Any = {
        "tools": RESPONSES,
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_output_tokens": 300,
    }
    answer = client.responses.create(
        model=TARGET, input="Say something.", reasoning={"effort": "none"}, **fields
    )
    found = [
        (each.name, json.loads(each.arguments))
        for each in answer.output
        if each.type == "function_call"
    ]
    assert len(found) == len(answer.output)
    assert {name for name, _ in checked(found)} <= names
    with client.responses.stream(
        model=TARGET, input="Say.", reasoning={"effort": "none"}, **fields
    ) as stream:
        final = stream.get_final_response()
    checked(
        [
            (each.name, json.loads(each.arguments))
            for each in final.output
            if each.type == "function_call"
        ]
    )


@pytest.mark.parametrize(
    ("choice", "names"),
    [({"type": "any"}, {"book", "look"}), ({"type": "tool", "name": "look"}, {"look"})],
)
def test_messages(claude: Anthropic, choice: Any, names: set[str]) -> None:
    fields: Any = {
        "tools": MESSAGES,
        "tool_choice": choice | {"disable_parallel_tool_use": True},
        "max_tokens": 300,
    }
    answer = claude.messages.create(model=TARGET, messages=ASKED, **fields)
    assert answer.stop_reason == "tool_use"
    found = [(each.name, each.input) for each in answer.content if each.type == "tool_use"]
    assert len(found) == len(answer.content)
    assert {name for name, _ in checked(found)} <= names
    with claude.messages.stream(model=TARGET, messages=ASKED, **fields) as stream:
        final = stream.get_final_message()
    checked([(each.name, each.input) for each in final.content if each.type == "tool_use"])


class Booking(BaseModel):
    nights: int = Field(ge=1, le=9)


def test_a_strict_call_is_constrained_in_a_free_answer(spelling: OpenAI) -> None:
    wish = '<tool_call>\n{"name": "%s", "arguments": {"nights": 70}}\n</tool_call>'
    loose = {
        "type": "function",
        "function": {"name": "loose", "parameters": Booking.model_json_schema()},
    }
    tools: list[Any] = [pydantic_function_tool(Booking, name="book"), loose]

    def ask(name: str) -> Any:
        says: list[Any] = [{"role": "user", "content": f"See. {wish % name}"}]
        fields: Any = {"reasoning_effort": "none", "max_tokens": 200}
        answer = spelling.chat.completions.create(
            model=TARGET, messages=says, tools=tools, **fields
        )
        message: Any = answer.choices[0].message
        (call,) = message.tool_calls
        return message.content, call.function.name, json.loads(call.function.arguments)

    assert ask("book") == ("See.", "book", {"nights": 7})
    assert ask("loose") == ("See.", "loose", {"nights": 70})


def test_strict_tools_of_the_other_apis(speller: Running) -> None:
    wish = '<tool_call>\n{"name": "book", "arguments": {"nights": 70}}\n</tool_call>'
    schema = Booking.model_json_schema() | {"additionalProperties": False}
    thinking_off: Any = {"effort": "none"}
    with OpenAI(base_url=f"{speller.url}/v1", api_key="none", max_retries=0) as openai:
        tool: Any = {"type": "function", "name": "book", "parameters": schema, "strict": True}
        answer: Any = openai.responses.create(
            model=TARGET, input=wish, tools=[tool], reasoning=thinking_off
        )
        assert json.loads(answer.output[0].arguments) == {"nights": 7}
    with Anthropic(base_url=speller.url, api_key="none", max_retries=0) as claude:
        messages: list[Any] = [{"role": "user", "content": wish}]
        tools: list[Any] = [{"name": "book", "input_schema": schema, "strict": True}]
        said: Any = claude.messages.create(
            model=TARGET, messages=messages, tools=tools, max_tokens=200
        )
        assert said.content[0].input == {"nights": 7}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("strict", "choice"), [(None, "required"), (True, "auto")])
def test_an_invalid_schema_is_refused_before_anything_runs(
    server: Running,
    client: OpenAI,
    claude: Anthropic,
    stream: bool,
    strict: bool | None,
    choice: Any,
) -> None:
    before = len(server.engine.submitted)
    function: dict[str, Any] = {"name": "worse", "parameters": BAD, "strict": strict}
    with pytest.raises(BadRequestError, match="'worse'") as of_chat:
        chat(
            client,
            tools=[*CHAT, {"type": "function", "function": function}],
            tool_choice=choice,
            stream=stream,
        )
    assert (of_chat.value.code, of_chat.value.param) == ("tools.schema", "tools")
    tools: Any = [*RESPONSES, {"type": "function", **function}]
    with pytest.raises(BadRequestError, match="'worse'"):
        client.responses.create(
            model=TARGET, input="x", tools=tools, tool_choice=choice, stream=stream
        )
    tools: Any = [*MESSAGES, {"name": "worse", "input_schema": BAD, "strict": strict}]
    kind: Any = {"type": "any" if choice == "required" else choice}
    with pytest.raises(AnthropicBadRequestError, match="'worse'"):
        claude.messages.create(
            model=TARGET,
            messages=ASKED,
            tools=tools,
            tool_choice=kind,
            max_tokens=9,
            extra_body={"stream": stream},
        )
    assert len(server.engine.submitted) == before


def test_a_schema_that_binds_nothing_may_be_wrong(server: Running) -> None:
    tools = [*CHAT, {"type": "function", "function": {"name": "worse", "parameters": BAD}}]
    body = {"model": TARGET, "messages": ASKED, "tools": tools, "max_tokens": 3}
    assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
