"""The bundled model calls a tool and repeats its result, greedily, in each API with its official
client."""

from __future__ import annotations

import json
from typing import Any, Final

from anthropic import Anthropic
from openai import OpenAI

from tests.server.running import TARGET, Running

NAME: Final = "get_weather"
ABOUT: Final = "Current weather"
PARAMETERS: Final[Any] = {
    "type": "object",
    "properties": {"location": {"type": "string"}},
    "required": ["location"],
}
ASKED: Final = "How is the weather in London today?"
FOUND: Final = "data total 12"
ARGUMENTS: Final = {"location": "London"}
SAID: Final = f"{NAME} says: {FOUND}"


def test_chat_completions(client: OpenAI) -> None:
    tools: Any = [
        {
            "type": "function",
            "function": {"name": NAME, "description": ABOUT, "parameters": PARAMETERS},
        }
    ]
    messages: list[Any] = [{"role": "user", "content": ASKED}]

    def ask() -> Any:
        fields: Any = {"temperature": 0, "reasoning_effort": "none", "max_tokens": 60}
        return client.chat.completions.create(
            model=TARGET, messages=messages, tools=tools, **fields
        ).choices[0]

    first = ask()
    (call,) = first.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (NAME, ARGUMENTS)
    assert first.finish_reason == "tool_calls"
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": FOUND}]
    assert ask().message.content == SAID


def test_responses(client: OpenAI) -> None:
    tools: Any = [
        {
            "type": "function",
            "name": NAME,
            "description": ABOUT,
            "parameters": PARAMETERS,
            "strict": False,
        }
    ]
    fields: Any = {"temperature": 0, "reasoning": {"effort": "none"}, "max_output_tokens": 60}
    first = client.responses.create(model=TARGET, input=ASKED, tools=tools, **fields)
    (call,) = first.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == (NAME, ARGUMENTS)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": FOUND}
    second = client.responses.create(
        model=TARGET, input=[result], tools=tools, previous_response_id=first.id, **fields
    )
    assert second.output_text == SAID


def test_messages(server: Running) -> None:
    tools: Any = [{"name": NAME, "description": ABOUT, "input_schema": PARAMETERS}]
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:

        def ask() -> Any:
            fields: Any = {"max_tokens": 60, "extra_body": {"temperature": 0}}
            return client.messages.create(model=TARGET, messages=messages, tools=tools, **fields)

        first = ask()
        (use,) = first.content
        assert (use.name, use.input, first.stop_reason) == (NAME, ARGUMENTS, "tool_use")
        result = {"type": "tool_result", "tool_use_id": use.id, "content": FOUND}
        messages += [
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        second = ask()
        assert second.content[0].text == SAID
        assert second.usage.cache_read_input_tokens > 0
