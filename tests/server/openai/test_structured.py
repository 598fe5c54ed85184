"""Structured outputs through the official client. The model spells the prompt; all else is real."""

from __future__ import annotations

import json
from enum import StrEnum
from itertools import product
from typing import Any, Literal

import jsonschema
import pytest
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, Field

from tests.lanes import few
from tests.schemas import SCHEMAS
from tests.server.dialects import markup, user
from tests.server.running import TARGET

PLAIN: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}


class Mood(StrEnum):
    GOOD = "good"
    BAD = "bad"


class Person(BaseModel, extra="forbid"):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=150)


class Report(BaseModel, extra="forbid"):
    mood: Mood
    people: list[Person] = Field(max_length=2)
    kind: Literal["short", "long"]
    parent: Person | None


def ask(client: OpenAI, says: str, **fields: Any) -> ChatCompletion:
    body = PLAIN | fields.pop("extra_body", {})
    return client.chat.completions.create(
        model=TARGET, messages=user(says), extra_body=body, **{"max_tokens": 300, **fields}
    )


def said(answer: ChatCompletion) -> str:
    return answer.choices[0].message.content or ""


def warned(answer: ChatCompletion) -> list[Any]:
    found: list[Any] = (answer.model_extra or {}).get("warnings", [])
    return found


def of_schema(schema: Any, **more: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("temperature", "speculation"),
    few(product([0.0, 0.9], ["off", "draft", "ngram", "auto"]), (0.9, "draft")),
)
def test_the_bundled_model_fills_a_pydantic_model(
    client: OpenAI, temperature: float, speculation: str
) -> None:
    answer = client.chat.completions.parse(
        model=TARGET,
        messages=user("Who is there?"),
        response_format=Report,
        temperature=temperature,
        seed=4,
        max_tokens=300,
        extra_body=PLAIN | {"speculation": speculation},
    )
    assert isinstance(answer.choices[0].message.parsed, Report)
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("body", "wish", "answer"),
    [
        ({"guided_regex": "[a-z]{3}"}, "abcdef", "abc"),
        ({"guided_choice": ["yes", "no"]}, "no way", "no"),
        ({"guided_json": {"type": "boolean"}}, "true story", "true"),
        ({"guided_json": '{"type": "boolean"}'}, "true story", "true"),
        ({"guided_grammar": 'root ::= "x" [0-9]'}, "x1y", "x1"),
        ({"structured_outputs": {"regex": "[a-z]{3}"}}, "abcdef", "abc"),
        ({"structured_outputs": {"choice": ["yes", "no"], "json": None}}, "no way", "no"),
        ({"structured_outputs": {"grammar": 'start: "x" /[0-9]/'}}, "x1y", "x1"),
        ({"structured_outputs": {"json": {"const": [1]}}}, "[1]", "[1]"),
        ({"structured_outputs": {"json_object": True}}, '{"a": 1}', '{"a": 1}'),
        ({"grammar": 'root ::= "x" [0-9]'}, "x1y", "x1"),
        ({"json_schema": {"type": "boolean"}}, "true story", "true"),
        (
            {"response_format": {"type": "json_object", "schema": {"const": {"a": 1}}}},
            '{"a": 1}',
            '{"a": 1}',
        ),
    ],
)
def test_the_fields_of_other_servers(
    spelling: OpenAI, body: dict[str, Any], wish: str, answer: str
) -> None:
    assert said(ask(spelling, wish, extra_body=body)) == answer
    plain = spelling.completions.create(
        model=TARGET,
        prompt=f"<|im_start|>user\n{wish}<|im_end|>\n<|im_start|>assistant\n",
        max_tokens=60,
        extra_body=body,
    )
    assert plain.choices[0].text == answer


def test_a_call_may_come_in_its_place(spelling: OpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "look"}}]
    form = of_schema(Person.model_json_schema())
    called = ask(spelling, markup("look"), tools=tools, response_format=form)
    assert called.choices[0].finish_reason == "tool_calls"
    answered = ask(spelling, '{"name": "Ada", "age": 36}', tools=tools, response_format=form)
    assert json.loads(said(answered)) == {"name": "Ada", "age": 36}
    forced = ask(
        spelling, markup("look"), tools=tools, response_format=form, tool_choice="required"
    )
    assert forced.choices[0].finish_reason == "tool_calls"


def test_an_answer_that_has_begun_goes_on_in_its_form(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=TARGET,
        messages=[
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": '{"name": "Ada",'},
        ],
        response_format=of_schema(Person.model_json_schema()),
        extra_body=PLAIN | {"continue_final_message": True},
        max_tokens=60,
    )
    assert said(answer).startswith(' "age": ')
    assert Person.model_validate_json('{"name": "Ada",' + said(answer)).name == "Ada"


def test_choices_have_forms_of_their_own(client: OpenAI) -> None:
    fields: Any = {
        "response_format": of_schema(Person.model_json_schema()),
        "temperature": 1.0,
        "seed": 5,
    }
    answer = ask(client, "Who?", n=4, **fields)
    texts = [choice.message.content or "" for choice in answer.choices]
    assert all(Person.model_validate_json(text) for text in texts)
    assert len(set(texts)) > 1
    assert said(ask(client, "Who?", **fields)) == texts[0]


def test_penalties_logprobs_and_stop_strings_work_with_a_form(client: OpenAI) -> None:
    form = of_schema(SCHEMAS["all required"])
    answer = ask(
        client,
        "Who?",
        response_format=form,
        frequency_penalty=1.0,
        presence_penalty=0.5,
        logprobs=True,
        top_logprobs=2,
    )
    jsonschema.validate(json.loads(said(answer)), SCHEMAS["all required"])
    entries = answer.choices[0].logprobs.content or []
    assert "".join(entry.token for entry in entries).endswith(said(answer))
    stopped = ask(client, "Who?", response_format=form, stop='"age"')
    assert said(stopped).endswith(", ")
    assert stopped.choices[0].finish_reason == "stop"


def test_prefixes_are_kept_and_shared(client: OpenAI) -> None:
    form = of_schema(Person.model_json_schema())
    long = "Who is there? " * 30
    first, second = (ask(client, long, response_format=form, temperature=0) for _ in range(2))
    assert said(first) == said(second)
    assert second.usage.prompt_tokens_details.cached_tokens > 64


def test_keywords_that_cannot_be_enforced_are_refused_of_strict_schemas_alone(
    client: OpenAI,
) -> None:
    schema = {"type": "array", "items": {"enum": [1]}, "maxItems": 2, "uniqueItems": True}
    with pytest.raises(BadRequestError, match="uniqueItems"):
        ask(client, "x", response_format=of_schema(schema, strict=True))
    for more in ({}, {"strict": False}):
        answer = ask(client, "x", response_format=of_schema(schema, **more))
        assert said(answer) in ("[]", "[1]", "[1, 1]")
        (warning,) = warned(answer)
        assert warning["code"] == "format.relaxed"
        assert "uniqueItems" in warning["message"]


def test_a_required_call_with_a_look_ahead_is_held_to_the_rest(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"code": {"type": "string", "pattern": "^(?=a)", "maxLength": 3}},
        "required": ["code"],
        "additionalProperties": False,
    }
    function: Any = {"name": "enter", "parameters": schema}
    tools: list[Any] = [{"type": "function", "function": function}]
    answer = ask(client, "x", tools=tools, tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert len(json.loads(call.function.arguments)["code"]) <= 3
    assert "enter: pattern '^(?=a)'" in warned(answer)[0]["message"]
    function["strict"] = True
    with pytest.raises(BadRequestError, match="look-ahead"):
        ask(client, "x", tools=tools)


def test_responses_are_parsed(client: OpenAI) -> None:
    answer = client.responses.parse(
        model=TARGET,
        input="Who is there?",
        text_format=Person,
        max_output_tokens=200,
        reasoning={"effort": "none"},
    )
    assert isinstance(answer.output_parsed, Person)
    with client.responses.stream(
        model=TARGET,
        input="Who?",
        text_format=Person,
        max_output_tokens=200,
        reasoning={"effort": "none"},
    ) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Person)
