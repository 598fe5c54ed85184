"""Checks that answers have the form that a request requires: tool calls, JSON schemas."""

from __future__ import annotations

import json
from typing import Final

from omlx.conformance.answer import Answer, check_equal
from omlx.conformance.client import Client, Json
from omlx.conformance.outcome import Failed
from omlx.conformance.questions import LONG, SAMPLED, SEED, SHOWN, ask, ask_stream, json_object

NAME: Final = "set_alarm"
ARGUMENTS: Final[Json] = {
    "type": "object",
    "properties": {"day": {"enum": ["today", "tomorrow"]}, "loud": {"type": "boolean"}},
    "required": ["day", "loud"],
    "additionalProperties": False,
}
SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "bright": {"type": "boolean"}},
    "required": ["colour", "bright"],
    "additionalProperties": False,
}
CALLING: Final[Json] = {
    "messages": [{"role": "user", "content": "Wake me up tomorrow, and be loud, please."}],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": NAME,
                "description": "Set an alarm.",
                "parameters": ARGUMENTS,
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": NAME}},
    "temperature": 0,
    "seed": SEED,
    "max_tokens": LONG,
}
FORMAT: Final[Json] = {
    "type": "json_schema",
    "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True},
}
SEEDS: Final = 3


def tool_call(client: Client) -> str:
    return _check_call(ask(client, **CALLING))


def tool_stream(client: Client) -> str:
    streamed = ask_stream(client, **CALLING)
    _check_call(streamed)
    check_equal(ask(client, **CALLING), streamed)
    return "as in the body"


def schema_holds(client: Client) -> str:
    """The question asks for prose, so that no model follows the schema by itself."""
    fields = {**SAMPLED, "max_tokens": LONG, "response_format": FORMAT}
    answers = [ask(client, **{**fields, "seed": seed}) for seed in range(SEEDS)]
    answers.append(ask_stream(client, **fields))
    for answer in answers:
        _check_form(json_object(answer.content), SCHEMA)
        if answer.finish != "stop":
            raise Failed(f"finish_reason {answer.finish}")
    return f"{len(answers)} objects such as {answers[0].content[:SHOWN]}"


def _check_call(answer: Answer) -> str:
    if len(answer.calls) != 1:
        text = answer.written[:SHOWN]
        raise Failed(f"{len(answer.calls)} calls where one is required: {text!r}")
    (call,) = answer.calls
    if call.name != NAME or not call.id:
        raise Failed(f"a call of {call.name!r} with the id {call.id!r}")
    _check_form(json_object(call.arguments), ARGUMENTS)
    if answer.finish not in ("tool_calls", "stop"):  # OpenAI's ends with "stop" if a name is forced
        raise Failed(f"finish_reason {answer.finish}")
    return f"{call.name}({call.arguments[:SHOWN]}), finish_reason {answer.finish}"


def _check_form(record: Json, schema: Json) -> None:
    """Raise Failed unless an object has the properties of one of these two schemas."""
    if set(record) != set(schema["required"]):
        raise Failed(f"properties {sorted(record)} where {schema['required']} are required")
    for name, form in schema["properties"].items():
        allowed = [json.dumps(value) for value in form.get("enum", (True, False))]
        if json.dumps(record[name]) not in allowed:
            raise Failed(f"{name} is {record[name]!r}")
