from __future__ import annotations

import json
from typing import Any

import pytest

from omlx.engine.speculation.strategy import DRAFT
from omlx.errors import BadRequest
from omlx.server.dialects.openai.chat_request import ChatRequest
from omlx.server.request.generation_request import GenerationRequest
from tests.server.dialects import user

HELLO = user("hello")


LOOK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "description": "", "parameters": {"type": "object"}},
}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": HELLO, **fields}).encode()


def read(**fields: Any) -> GenerationRequest:
    return ChatRequest.parse(body(**fields)).generation_request()


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b"", "request.json", None),
        (b"{", "request.json", None),
        (b'{"messages": "\xff"}', "request.json", None),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "request.json", None),
        (b"[" * 100_000, "request.json", None),
        (body(x=1).replace(b"1", b"1e999"), "request.json", None),
        *(
            (body(x={"y": [float(number)]}), "request.json", None)
            for number in ("inf", "-inf", "nan")
        ),
        (b"[]", "request.type", None),
        (b"{}", "request.missing", "messages"),
        (body(messages=[]), "request.empty", "messages"),
        (body(messages="hello"), "request.type", "messages"),
        (body(messages=[{"role": "king", "content": ""}]), "request.value", "messages[0].role"),
        (body(messages=[{"role": "user"}]), "request.missing", "messages[0].content"),
        (body(messages=user(5)), "request.type", "messages[0].content"),
        (
            body(messages=[*HELLO, {"role": "tool", "content": "x"}]),
            "request.missing",
            "messages[1].tool_call_id",
        ),
        (
            body(messages=[*HELLO, {"role": "function", "content": "x"}]),
            "request.unsupported",
            "messages[1]",
        ),
        (
            body(messages=[{"role": "assistant", "tool_calls": [{}]}]),
            "request.missing",
            "messages[0].tool_calls[0].function",
        ),
        (body(max_tokens=0), "request.range", "max_tokens"),
        (body(max_tokens=-5), "request.range", "max_tokens"),
        (body(max_tokens="5"), "request.type", "max_tokens"),
        (body(max_tokens=True), "request.type", "max_tokens"),
        (body(max_completion_tokens=0), "request.range", "max_completion_tokens"),
        (body(max_tokens=40, min_tokens=41), "request.range", "min_tokens"),
        *(
            (body(**fields), f"request.{code}", f"{place}thinking_budget")
            for value, code in ((-2, "range"), ("many", "type"))
            for fields, place in (
                ({"thinking_budget": value}, ""),
                (
                    {"chat_template_kwargs": {"thinking_budget": value}},
                    "chat_template_kwargs.",
                ),
            )
        ),
        (body(temperature=-0.1), "request.range", "temperature"),
        (body(temperature=101), "request.range", "temperature"),
        (body(temperature="hot"), "request.type", "temperature"),
        (
            b'{"messages": [{"role": "user", "content": ""}], "temperature": NaN}',
            None,
            "temperature",
        ),
        (body(top_p=1.5), "request.range", "top_p"),
        (body(n=0), "request.range", "n"),
        (body(stop=5), "request.type", "stop"),
        (body(stop=["a"] * 65), "request.invalid", "stop"),
        (body(seed=2**64), "request.range", "seed"),
        (body(seed=1.5), "request.type", "seed"),
        (body(top_logprobs=3), "request.top_logprobs", "top_logprobs"),
        (body(logprobs=True, top_logprobs=21), "request.range", "top_logprobs"),
        (body(logit_bias={"x": 1}), "request.type", "logit_bias"),
        (body(logit_bias={"1": 101}), "request.range", "logit_bias.1"),
        (body(num_draft_tokens=65), "request.range", "num_draft_tokens"),
        (body(num_draft_tokens=-1), "request.range", "num_draft_tokens"),
        (body(draft_min=0), "request.range", "draft_min"),
        (body(draft_max=65), "request.range", "draft_max"),
        (body(draft_min=5, draft_max=4), "request.draft_bounds", "draft_min"),
        (body(num_draft_tokens=5, draft_max=4), "request.draft_bounds", "num_draft_tokens"),
        (body(num_draft_tokens=3, draft_min=4), "request.draft_bounds", "draft_min"),
        (body(speculation="fast"), "strategy.name", "speculation"),
        (body(speculation="ngram:m=4;drft"), "strategy.name", "speculation"),
        (body(speculation="ngram:m=4,x=1"), "strategy.key", "speculation"),
        (body(speculation="ngram;off"), "strategy.alone", "speculation"),
        (body(speculation="draft:min=9,m=4"), "strategy.min_above_max", "speculation"),
        (body(speculation="draft:m=99"), "strategy.range", "speculation"),
        (body(speculation="medusa"), "strategy.refused", "speculation"),
        (body(speculation=""), "strategy.name", "speculation"),
        (body(prediction="text"), "request.type", "prediction"),
        (body(prediction={"type": "image", "content": ""}), "request.value", "prediction.type"),
        (body(prediction={"type": "content"}), "request.missing", "prediction.content"),
        (body(prediction={"type": "content", "content": 5}), "request.type", "prediction.content"),
        (
            body(prediction={"type": "content", "content": [{"type": "image_url"}]}),
            "image.role",
            "prediction.content[0]",
        ),
        (body(speculation="off", draft_model="x"), "request.draft_off", "draft_model"),
        (body(tools=[{"type": "function"}]), "request.missing", "tools[0].function"),
        (body(tools=[{"type": "function", "function": {"name": "a b"}}]), "tools.name", "tools"),
        (body(tools=[LOOK, LOOK]), "tools.twice", "tools"),
        (body(tools=[LOOK] * 2000), "request.too_many", "tools"),
        (body(tools=[LOOK], tool_choice="sometimes"), "request.value", "tool_choice"),
        (body(tools=[LOOK], tool_choice=named("jump")), "tools.not_there", "tool_choice"),
        (body(tool_choice="required"), "tools.none", "tool_choice"),
        (body(response_format={"type": "xml"}), "request.format", "response_format"),
        (
            body(response_format={"type": "json_schema", "json_schema": {}}),
            "request.missing",
            "response_format.json_schema.schema",
        ),
        (
            body(response_format={"type": "json_schema"}),
            "request.missing",
            "response_format.json_schema",
        ),
        (
            body(continue_final_message=True, add_generation_prompt=True),
            "request.value",
            "continue_final_message",
        ),
        (
            body(response_format={"type": "json_object"}, guided_regex="a"),
            "format.several",
            "guided_regex",
        ),
        (
            body(structured_outputs={"json": {"const": 1}, "json_object": True}),
            "format.several",
            "structured_outputs.json_object",
        ),
        (body(guided_choice=[]), "request.type", "guided_choice"),
        (body(guided_choice=["a", 1]), "request.type", "guided_choice"),
        (body(guided_json=[]), "request.type", "guided_json"),
        (body(structured_outputs="json"), "request.type", "structured_outputs"),
        (body(structured_outputs={"regex": 5}), "request.type", "structured_outputs.regex"),
        (
            body(structured_outputs={"structural_tag": "x"}),
            "request.unsupported",
            "structured_outputs",
        ),
        (body(guided_grammar="x" * 300_000), "request.too_large", "guided_grammar"),
        (body(stream_options=5), None, "stream_options"),
        (
            body(
                messages=[
                    {
                        "role": "system",
                        "content": [{"type": "image_url", "image_url": {"url": "x"}}],
                    }
                ]
            ),
            "image.role",
            "messages[0].content[0]",
        ),
    ],
)
def test_what_is_wrong_is_named(raw: bytes, code: str | None, param: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        ChatRequest.parse(raw).generation_request()
    error = caught.value
    assert (error.param, error.status) == (param, 400)
    assert error.code == code or code is None
    assert "{" not in error.message
    assert param is None or param in error.message or param in ("draft_model", "speculation")
    assert param != "speculation" or "Column" in error.message


def test_fields_that_ask_for_nothing_or_are_for_others_are_ignored() -> None:
    request = read(
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        temperature=None,
        stop=None,
        audio=None,
        wholly_unknown=[1],
    )
    assert (request.sampling, request.stop_strings, request.tools) == ({}, (), None)


@pytest.mark.parametrize("seed", [0, -1, 2**32, 2**63, 2**64 - 1, -(2**63)])
def test_any_64_bit_seed(seed: int) -> None:
    assert read(seed=seed).seed == seed


def test_everything_arrives() -> None:
    request = read(
        model="org/name",
        n=2,
        stop="END",
        max_tokens=9,
        max_completion_tokens=5,
        temperature=0,
        top_k=3,
        logit_bias={"7": -100},
        logprobs=True,
        reasoning_effort="low",
        chat_template_kwargs={"enable_thinking": False},
        speculation="draft",
        draft_model="org/small",
        num_draft_tokens=0,
    )
    assert (request.model, request.draft_model, request.n) == ("org/name", "org/small", 2)
    assert (request.stop_strings, request.max_tokens, request.top_logprobs) == (("END",), 5, 0)
    assert request.sampling == {"temperature": 0, "top_k": 3}
    assert request.logit_bias == {7: -100}
    assert request.template_variables == {"enable_thinking": False, "reasoning_effort": "low"}
    assert (request.speculation, request.draft_length.fixed) == (DRAFT, 0)


def test_messages_as_templates_know_them() -> None:
    messages = [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}],
        },
        {"role": "user", "content": "hi", "name": "ann"},
        {"role": "assistant", "content": None, "reasoning_content": "hm"},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": None, "refusal": "I will not."},
        {"role": "assistant", "content": "fine", "refusal": None},
    ]
    assert read(messages=messages).messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi", "name": "ann"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": "no"},
        {"role": "assistant", "content": "I will not."},
        {"role": "assistant", "content": "fine"},
    ]


@pytest.mark.parametrize(
    ("fields", "forced", "name", "single"),
    [
        ({}, False, None, False),
        ({"tool_choice": "auto"}, False, None, False),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, False, None, True),
        ({"tool_choice": "required"}, True, None, False),
        ({"tool_choice": named("look")}, True, "look", True),
    ],
)
def test_how_tools_may_be_used(
    fields: dict[str, Any], forced: bool, name: str | None, single: bool
) -> None:
    use = read(tools=[LOOK], **fields).tools
    assert use is not None
    assert (use.forced, use.name, use.single) == (forced, name, single)
    assert use.functions == (LOOK,)


def test_a_model_is_not_told_of_tools_that_it_may_not_use() -> None:
    assert read(tools=[LOOK], tool_choice="none").tools is None
    bare = {"type": "function", "function": {"name": "look"}}
    use = read(tools=[bare]).tools
    assert use is not None
    assert use.functions[0]["function"]["parameters"] == {"type": "object", "properties": {}}


def test_past_calls_are_objects_for_templates() -> None:
    def call(arguments: str) -> dict[str, Any]:
        return {
            "id": "c1",
            "type": "function",
            "function": {"name": "look", "arguments": arguments},
        }

    messages = [
        {"role": "assistant", "tool_calls": [call('{"a": 1}'), call(""), call("{"), call("[1]")]},
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
    ]
    asked, answered = read(messages=messages).messages
    arguments = [each["function"]["arguments"] for each in asked["tool_calls"]]
    assert arguments == [{"a": 1}, {}, "{", "[1]"]
    assert answered == {"role": "tool", "content": "seen", "tool_call_id": "c1", "name": "look"}


def test_reasoning_and_prefill() -> None:
    request = read(reasoning_effort="none")
    assert request.template_variables == {"enable_thinking": False}
    last = {"role": "assistant", "content": "One,"}
    assert not read(messages=[*HELLO, last]).continue_last
    assert read(messages=[*HELLO, {**last, "prefix": True}]).continue_last
    assert read(messages=[*HELLO, last], continue_final_message=True).continue_last


def test_calls_and_results_without_ids_are_matched_in_order() -> None:
    messages = [
        *HELLO,
        {
            "role": "assistant",
            "tool_calls": [
                {"function": {"name": "look", "arguments": {"at": 1}}},
                {"id": "", "function": {"name": "wait", "arguments": None}},
            ],
        },
        {"role": "tool", "content": "a"},
        {"role": "tool", "tool_call_id": "", "content": "b"},
    ]
    _, called, first, second = read(messages=messages).messages
    calls = [(call["id"], call["function"]["arguments"]) for call in called["tool_calls"]]
    assert calls == [("call_1_0", {"at": 1}), ("call_1_1", {})]
    assert (first["tool_call_id"], first["name"]) == ("call_1_0", "look")
    assert (second["tool_call_id"], second["name"]) == ("call_1_1", "wait")


def test_the_type_of_a_tool_may_be_left_out() -> None:
    look = {"function": {"name": "look"}}
    for choice in (
        look,
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [look]}},
    ):
        use = read(tools=[look], tool_choice=choice).tools
        assert use is not None
        assert [each["name"] for each in use.allowed] == ["look"]
