"""Functions as chat templates read them."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from omlx.server.request import tooling
from omlx.text.template.render import render
from omlx.text.tools import MAX_INLINED, ToolUse, template_tools
from tests.text.tokenizers import decode_byte_level

TEXT = {"type": "string"}


def shown(parameters: Any, **forms: bool) -> Any:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    before = deepcopy(tool)
    (copy,) = template_tools([tool], **forms)
    assert tool == before
    return copy["function"]["parameters"]


def properties(parameters: Any, **forms: bool) -> Any:
    return shown(parameters, **forms)["properties"]


def test_description_and_parameters_are_always_there() -> None:
    nothing = {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}
    for function in ({}, {"description": None, "parameters": None}, {"parameters": {}}):
        (copy,) = template_tools([{"function": {"name": "f", **function}}])
        assert copy == {"type": "function", "function": nothing}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, {}),
        (False, {"not": {}}),
        (None, {}),
        ({"type": "array", "items": True}, {"type": "array", "items": {}}),
        ({"items": [TEXT, True]}, {"prefixItems": [TEXT, {}]}),
        ({"description": None, "default": None, "enum": None}, {"default": None}),
        ({"required": True, "anyOf": [True, None]}, {"anyOf": [{}, {}]}),
        ({"default": {"a": None}, "enum": [None]}, {"default": {"a": None}, "enum": [None]}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"additionalProperties": False}, {"additionalProperties": False}),
    ],
)
def test_nulls_and_booleans_become_schemas(schema: Any, expected: Any) -> None:
    assert properties({"properties": {"a": schema}}) == {"a": expected}


def test_nulls_are_absent_for_grammars_too() -> None:
    given = {"required": None, "properties": {"a": None, "b": {"enum": None, "default": None}}}
    declared = tooling.function("f", None, given)["function"]["parameters"]
    assert declared == {"properties": {"a": {}, "b": {"default": None}}}


def test_properties_of_alternatives_at_the_root_are_listed() -> None:
    first, second = {"properties": {"a": TEXT}, "required": ["a"]}, {"properties": {"b": {}}}
    both = {"a": TEXT, "b": {}}
    assert properties({"anyOf": [first, second]}) == both
    assert "required" not in shown({"anyOf": [first, second]})
    assert shown({"allOf": [first, second]})["required"] == ["a"]
    referring = {"$ref": "#/$defs/D", "$defs": {"D": first}}
    assert shown(referring) == {**referring, "type": "object", **first}


def test_a_plain_parameter_has_one_type_and_a_description() -> None:
    given = {"properties": {"a": {"type": ["integer", "null"]}, "b": {"type": "object"}}}
    assert properties(given, schemas=False) == {
        "a": {"type": "integer", "description": ""},
        "b": {"type": "object", "description": "", "additionalProperties": {}},
    }


def test_references_are_replaced_but_circular_ones() -> None:
    item = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Item"}}}
    given = {
        "properties": {"a": {"$ref": "#/$defs/Item", "description": "A."}},
        "$defs": {"Item": item},
    }
    assert properties(given)["a"] == {"$ref": "#/$defs/Item", "description": "A."}
    assert shown(given, definitions=False) == {
        "type": "object",
        "properties": {"a": {**item, "description": "A."}},
    }


def test_references_that_multiply_are_bounded() -> None:
    size = 18
    named = {
        f"d{i}": {"properties": {key: {"$ref": f"#/$defs/d{i + 1}"} for key in "ab"}}
        for i in range(size)
    }
    given = {"$ref": "#/$defs/d0", "$defs": {**named, f"d{size}": TEXT}}
    copy = shown(given, definitions=False)
    assert set(copy["properties"]) == {"a", "b"}
    assert len(json.dumps(copy)) < 4 * MAX_INLINED


def test_references_nested_beyond_recursion_stay() -> None:
    named = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(2_000)}
    given = {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": named}
    assert shown(given, definitions=False)["properties"] == given["properties"]


def test_a_template_that_lists_functions_in_its_system_message_gets_one(tmp_path: Path) -> None:
    tokenizer = decode_byte_level(
        tmp_path,
        "{# <tool_call>{'arguments': {}}</tool_call> #}{% for m in messages %}{{ m.content }}\n"
        "{% if m.role == 'system' %}{{ tools | tojson }}{% endif %}{% endfor %}",
    )
    use = tooling.tool_use([tooling.function("look", None, {"properties": {"key": TEXT}})])
    ask = {"role": "user", "content": "a"}
    prompt = render(tokenizer, [ask], tools=use)
    assert '"name": "look"' in tokenizer.decode(prompt.tokens)
    assert [change.code for change in prompt.changes] == ["conversation.added"]
    prompt = render(tokenizer, [{"role": "system", "content": "b"}, ask], tools=use)
    assert tokenizer.decode(prompt.tokens).startswith("b\n[{")
    assert prompt.changes == ()


def test_functions_are_listed_for_a_template_that_lists_none(tmp_path: Path) -> None:
    tokenizer = decode_byte_level(
        tmp_path,
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{# <tool_call>{'arguments': {}}</tool_call> #}",
    )
    use = tooling.tool_use([tooling.function("look", None, {"properties": {"key": TEXT}})])
    assert isinstance(use, ToolUse)
    for messages in ([], [{"role": "system", "content": "Be brief."}]):
        prompt = render(tokenizer, [*messages, {"role": "user", "content": "a"}], tools=use)
        text = tokenizer.decode(prompt.tokens)
        assert [change.code for change in prompt.changes] == ["conversation.tools_in_system"]
        system = text.partition("<|im_end|>")[0]
        assert '"name": "look"' in system
        assert '"key"' in system
        assert text.count("<|im_start|>system") == 1
        assert ("Be brief." in system) == bool(messages)
