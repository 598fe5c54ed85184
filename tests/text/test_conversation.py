"""Conversations that a template does not take, rewritten by what it takes."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import load

from omlx.errors import BadRequest
from omlx.models.catalog.discovery import BUNDLED
from omlx.text.calls.markup import write_calls
from omlx.text.template.abilities import TemplateAbilities, probe, template_abilities
from omlx.text.template.conversation import adapt
from omlx.text.template.render import render
from tests.text.tokenizers import decode_byte_level

EVERYTHING = TemplateAbilities()

TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
STRICT = (  # as Mistral's and Qwen3.5's are
    "{% set ns = namespace(user=true) %}{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != ns.user %}{{ raise_exception('not in turn') }}{% endif %}"
    "{% set ns.user = not ns.user %}"
    "{% if not m.content and m.role != 'user' %}{{ raise_exception('empty') }}{% endif %}"
    "{% endif %}{% for call in m.tool_calls or [] %}"
    "{% if call.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"
    "{% for name, value in call.function.arguments | items %}{{ name }}={{ value }}{% endfor %}"
    "{% endfor %}"
    f"{TURN}{{% endfor %}}"
)
SILENT = (  # renders the last system message, at the beginning, and no calls
    "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.system = m.content %}{% endif %}{% endfor %}{{ ns.system }}\n"
    "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}" + TURN + "{% endif %}"
    "{% endfor %}"
)
ONE_CALL = (
    "{% if messages[-1].role == 'system' %}{{ raise_exception('no user') }}{% endif %}"
    "{% for m in messages %}{% if m.tool_calls %}"
    "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{{ m.tool_calls[0].function.arguments | tojson }}\n{% endif %}" + TURN + "{% endfor %}"
)
AS_PYTHON = (
    "{% for m in messages %}{% for call in m.tool_calls or [] %}"
    "{{ call.function.arguments }}{% endfor %}" + TURN + "{% endfor %}"
)
LISTS_TOOLS = "{% for tool in tools %}{{ tool }}{% endfor %}{% for m in messages %}" + TURN
LISTS_TOOLS += "{% for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}{% endfor %}"
NO_ROOM = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}"
    "{{ raise_exception('who is ' + m.role) }}{% endif %}" + TURN + "{% endfor %}"
)
TEMPLATES = {
    "strict": STRICT,
    "silent": SILENT,
    "one_call": ONE_CALL,
    "as_python": AS_PYTHON,
    "lists_tools": LISTS_TOOLS,
    "no_room": NO_ROOM,
}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, *calls: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = list(calls)
    return message


def call(id: str, arguments: object) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def result(id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "name": "f", "content": text}


def lacking(*abilities: str) -> TemplateAbilities:
    return replace(EVERYTHING, **dict.fromkeys(abilities, False))


def as_json(calls: object) -> str:
    return json.dumps(calls)


LATE = [system("a"), user("b"), system("c"), user("d"), assistant("e"), system("f")]
CALLS = [user("a"), assistant("", call("call_1", {"x": 1})), result("call_1", "b"), user("c")]
TWO_CALLS = [
    user("a"),
    assistant("b", call("1", {}), call("2", {})),
    result("2", "d"),
    result("1", "c"),
]
SHORT = "BU2HUL5e5"
"""A hash of `call_1`."""

CASES: dict[str, tuple[TemplateAbilities, list[Any], list[Any], list[str]]] = {
    "late systems": (
        lacking("late_systems"),
        LATE,
        [system("a"), user("b\n\nc\n\nd"), assistant("e"), user("f")],
        ["conversation.system_moved"],
    ),
    "no system": (
        lacking("system", "late_systems"),
        [system("a"), system("b"), user("c")],
        [user("a\n\nb\n\nc")],
        ["conversation.system_moved"],
    ),
    "two systems": (
        lacking("systems"),
        [system("a"), system("b"), user("c"), system("d")],
        [system("a\n\nb"), user("c"), system("d")],
        ["conversation.joined"],
    ),
    "users": (
        lacking("users"),
        [user("a"), user("b"), assistant("c"), user("d")],
        [user("a\n\nb"), assistant("c"), user("d")],
        ["conversation.joined"],
    ),
    "assistants": (
        lacking("assistants"),
        [
            user("a"),
            assistant("b") | {"reasoning_content": "r"},
            assistant("", call("1", {})),
            assistant("c"),
        ],
        [user("a"), assistant("b\n\nc", call("1", {})) | {"reasoning_content": "r"}],
        ["conversation.joined"],
    ),
    "assistant first": (
        lacking("assistant_first"),
        [system("a"), assistant("b"), user("c")],
        [system("a"), user(""), assistant("b"), user("c")],
        ["conversation.added"],
    ),
    "nothing but a system message": (
        lacking("system_alone"),
        [system("a")],
        [system("a"), user("")],
        ["conversation.added"],
    ),
    "empty assistants": (
        lacking("empty_assistants", "users"),
        [user("a"), assistant(""), user("b")],
        [user("a\n\nb")],
        ["conversation.dropped", "conversation.joined"],
    ),
    "users after results": (
        lacking("users_after_results"),
        CALLS,
        [*CALLS[:2], result("call_1", "b\n\nc")],
        ["conversation.user_in_result"],
    ),
    "long ids": (
        lacking("long_ids"),
        CALLS,
        [CALLS[0], assistant("", call(SHORT, {"x": 1})), result(SHORT, "b"), CALLS[3]],
        ["conversation.ids"],
    ),
    "arguments that are text": (
        lacking("texts"),
        [user("a"), assistant("", call("1", "{"), call("2", {"x": 1}))],
        [user("a"), assistant("", call("1", {"arguments": "{"}), call("2", {"x": 1}))],
        ["conversation.arguments"],
    ),
    "arguments that are objects": (
        lacking("objects"),
        CALLS,
        [CALLS[0], assistant("", call("call_1", '{"x": 1}')), *CALLS[2:]],
        [],
    ),
    "several calls": (
        lacking("several_calls"),
        TWO_CALLS,
        [
            user("a"),
            assistant("b", call("1", {})),
            result("1", "c"),
            assistant("", call("2", {})),
            result("2", "d"),
        ],
        ["conversation.calls_split"],
    ),
    "calls without a result": (
        lacking("unanswered"),
        [*TWO_CALLS[:3], user("e")],
        [*TWO_CALLS[:3], result("1", ""), user("e")],
        ["conversation.added"],
    ),
    "results without a call": (
        lacking("orphans"),
        [user("a"), result("1", "b"), *TWO_CALLS[1:]],
        [user("a"), user("b"), *TWO_CALLS[1:]],
        ["conversation.tools_as_text"],
    ),
    "calls": (
        lacking("calls", "long_ids"),
        TWO_CALLS,
        [user("a"), assistant("b\n\n" + as_json(TWO_CALLS[1]["tool_calls"])), *TWO_CALLS[2:]],
        ["conversation.tools_as_text"],
    ),
    "results": (
        lacking("results"),
        CALLS,
        [*CALLS[:2], user("b"), user("c")],
        ["conversation.tools_as_text"],
    ),
    "texts beside calls": (
        lacking("texts_beside_calls", "reasoning_beside_calls"),
        TWO_CALLS,
        [user("a"), assistant("", *TWO_CALLS[1]["tool_calls"]), *TWO_CALLS[2:]],
        ["conversation.text_left_out"],
    ),
    "texts beside calls where reasoning is rendered": (
        lacking("texts_beside_calls"),
        TWO_CALLS,
        [
            user("a"),
            assistant("", *TWO_CALLS[1]["tool_calls"]) | {"reasoning_content": "b"},
            *TWO_CALLS[2:],
        ],
        ["conversation.text_in_reasoning"],
    ),
    "texts, reasoning and calls": (
        lacking("texts_beside_reasoning"),
        [*TWO_CALLS, TWO_CALLS[1] | {"reasoning_content": "e"}],
        [*TWO_CALLS, assistant("", *TWO_CALLS[1]["tool_calls"]) | {"reasoning_content": "e\n\nb"}],
        ["conversation.text_in_reasoning"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_template_does_not_take_is_rewritten(name: str) -> None:
    abilities, messages, expected, changes = CASES[name]
    before = deepcopy(messages)
    adapted, noted = adapt(messages, abilities, as_json)
    assert adapted == expected
    assert [reason.code for reason in noted] == changes
    assert messages == before


@pytest.mark.parametrize("name", CASES)
def test_what_a_template_takes_stays(name: str) -> None:
    _, messages, _, _ = CASES[name]
    assert adapt(messages, EVERYTHING, as_json) == (messages, ())


def test_an_empty_message_that_is_continued_stays() -> None:
    messages = [user("a"), assistant("")]
    adapted, _ = adapt(messages, lacking("empty_assistants"), as_json, continue_last=True)
    assert adapted == messages


def test_an_id_has_one_short_form_and_short_ones_stay() -> None:
    abilities = lacking("long_ids")
    messages = [user("a"), assistant("", call("abcDEF123", {}), call("toolu_é", {}))]
    (_, first), _ = adapt(messages, abilities, as_json)
    (_, second, answer), _ = adapt([*messages, result("toolu_é", "b")], abilities, as_json)
    ids = [made["id"] for made in first["tool_calls"]]
    assert first == second
    assert ids == ["abcDEF123", answer["tool_call_id"]]
    assert len(ids[1]) == 9


NOT_SHOWN = ("tools", "reasoning_beside_calls")
"""These templates show neither functions nor reasoning, but one that lists functions."""
ABILITIES = {
    "strict": lacking(
        *NOT_SHOWN,
        *("systems", "late_systems", "users", "assistants", "assistant_first", "long_ids"),
        *("empty_assistants", "texts", "unanswered", "users_after_results"),
    ),
    "silent": lacking(
        *NOT_SHOWN,
        *("systems", "late_systems", "objects", "calls", "texts"),
        *("several_calls", "long_ids", "results", "orphans", "users_after_results"),
    ),
    "one_call": lacking(*NOT_SHOWN, "system_alone", "late_systems", "several_calls"),
    "as_python": lacking(*NOT_SHOWN, "objects"),
    "lists_tools": replace(lacking("reasoning_beside_calls"), needs_tools=True),
    "no_room": lacking(
        *NOT_SHOWN,
        "texts_beside_reasoning",
        *("system", "system_alone", "systems", "late_systems", "objects", "calls", "texts"),
        *(
            "texts_beside_calls",
            "several_calls",
            "long_ids",
            "results",
            "orphans",
            "users_after_results",
        ),
    ),
}


@pytest.mark.parametrize("name", ABILITIES)
def test_trying_a_template_shows_its_abilities(tmp_path: Path, name: str) -> None:
    tokenizer = decode_byte_level(tmp_path, TEMPLATES[name])
    assert probe(tokenizer) == ABILITIES[name]
    assert template_abilities(tokenizer) is template_abilities(tokenizer)


def test_a_template_that_fails_at_everything_is_left_to_its_own_error(tmp_path: Path) -> None:
    tokenizer = decode_byte_level(tmp_path, "{{ raise_exception('never') }}")
    assert probe(tokenizer) == EVERYTHING
    with pytest.raises(BadRequest, match="never"):
        render(tokenizer, LATE)


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_text_is_in_the_prompt_and_turns_keep_the_prefix(tmp_path: Path, name: str) -> None:
    tokenizer = decode_byte_level(tmp_path, TEMPLATES[name])
    conversation: list[dict[str, Any]] = []
    texts: list[str] = []
    before = ""
    for turn in (LATE, CALLS, [assistant("g")], TWO_CALLS, [user("h"), user("i")]):
        conversation = [*conversation, *turn]
        texts += [message["content"] for message in turn]
        prompt = render(tokenizer, conversation)
        text = tokenizer.decode(prompt.tokens)
        assert [text.find(part) for part in texts if part not in text] == []
        assert text.startswith(before)
        before = text.rpartition("<|im_end|>")[0]


def test_calls_are_written_as_the_family_writes_them(tmp_path: Path) -> None:
    calls = [call("1", {"x": "é"}), call("2", "{")]
    plain = decode_byte_level(tmp_path)
    written = '{"name": "f", "arguments": {"x": "é"}}\n{"name": "f", "arguments": {}'
    assert write_calls(plain, calls) == written


def test_calls_have_the_markers_of_the_family() -> None:
    tokenizer = load(BUNDLED / "omlx-demo/target")
    written = '<tool_call>\n{"name": "f", "arguments": {"x": "{name}"}}\n</tool_call>'
    assert write_calls(tokenizer, [call("1", {"x": "{name}"})] * 2) == f"{written}\n{written}"
