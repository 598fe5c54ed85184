"""Every shape of function that OpenAI's, Anthropic's and MCP's schemas allow, and every shape of
assistant turn that this server gives, through every fetched template.

`python -m tests.templates.shapes` prints both tables. Texts that begin with `zqx` must be in the
prompt.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

from omlx.errors import BadRequest
from omlx.server.request import tooling
from omlx.text.calls.markup import call_format
from omlx.text.template.render import render
from omlx.text.tools import ToolUse
from tests.templates.fetched import TEMPLATES, tokenizer

OK: Final = "ok"
TEXT: Final[dict[str, Any]] = {"type": "string"}
_WORD: Final = re.compile(r"zqx\w*")


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _one(schema: Any) -> dict[str, Any]:
    return _object(zqxa=schema)


INNER: Final = _object(zqxb=TEXT)
PARAMETERS: Final[Mapping[str, Any]] = {
    "absent": None,
    "empty": {},
    "object alone": {"type": "object"},
    "no properties": _object(),
    "properties null": {"type": "object", "properties": None},
    "described": _one({"type": "string", "description": "A."}),
    "bare": _one(TEXT),
    "required null": _one(TEXT) | {"required": None},
    "required empty": _one(TEXT) | {"required": []},
    "required unknown": _one(TEXT) | {"required": ["other"]},
    "closed": _one(TEXT) | {"additionalProperties": False},
    "open": _one(TEXT) | {"additionalProperties": TEXT},
    "draft named": _one(TEXT) | {"$schema": "http://json-schema.org/draft-07/schema#"},
    "any": _one({}),
    "true": _one(True),
    "false": _one(False),
    "null": _one(None),
    "nulls": _one({"type": "string", "description": None, "title": None, "enum": None}),
    "items absent": _one({"type": "array"}),
    "items null": _one({"type": "array", "items": None}),
    "items true": _one({"type": "array", "items": True}),
    "items false": _one({"type": "array", "items": False}),
    "items any": _one({"type": "array", "items": {}}),
    "items listed": _one({"type": "array", "items": [TEXT, {"type": "integer"}]}),
    "tuple": _one({"type": "array", "prefixItems": [TEXT], "items": False}),
    "items nullable": _one({"type": "array", "items": {"type": ["string", "null"]}}),
    "lists": _one({"type": "array", "items": {"type": "array", "items": TEXT}}),
    "type null": _one({"type": "null"}),
    "nullable": _one({"type": ["string", "null"]}),
    "two types": _one({"type": ["string", "integer"], "description": "A."}),
    "nullable list": _one({"type": ["array", "null"], "items": TEXT}),
    "nullable object": _one({"type": ["object", "null"], "properties": {"b": TEXT}}),
    "anyOf": _one({"anyOf": [TEXT, {"type": "integer"}]}),
    "optional": _one({"anyOf": [TEXT, {"type": "null"}], "default": None}),
    "oneOf": _one({"oneOf": [TEXT, {"type": "object", "properties": {"b": TEXT}}]}),
    "allOf": _one({"allOf": [{"$ref": "#/$defs/D"}]}) | {"$defs": {"D": TEXT}},
    "$ref": _one({"$ref": "#/$defs/D"}) | {"$defs": {"D": INNER}},
    "$ref described": _one({"$ref": "#/definitions/D", "description": "A."})
    | {"definitions": {"D": {"enum": ["u"]}}},
    "$ref recursive": _one({"$ref": "#/$defs/D"})
    | {"$defs": {"D": {"type": "object", "properties": {"next": {"$ref": "#/$defs/D"}}}}},
    "$ref to all": _one({"$ref": "#"}),
    "enum": _one({"type": "string", "enum": ["x", "y"]}),
    "enum untyped": _one({"enum": ["x", 1, None, True]}),
    "enum empty": _one({"type": "string", "enum": []}),
    "const": _one({"const": 5}),
    "not": _one({"not": TEXT}),
    "root anyOf": {"anyOf": [_one(TEXT), INNER]},
    "root anyOf typed": {"type": "object", "anyOf": [_one(TEXT), INNER]},
    "root oneOf": {"type": "object", "oneOf": [_one(TEXT) | {"required": ["zqxa"]}, INNER]},
    "root allOf": {"allOf": [_one(TEXT), INNER]},
    "root $ref": {"$ref": "#/$defs/D", "$defs": {"D": _one(TEXT)}},
    "root requires any": _object(zqxa=TEXT, zqxb=TEXT)
    | {"anyOf": [{"required": ["zqxa"]}, {"required": ["zqxb"]}]},
    "root untyped": {"properties": {"zqxa": TEXT}},
    "root types": {"type": ["object"], "properties": {"zqxa": TEXT}},
    "if": _one(TEXT) | {"if": _one({"const": "x"}), "then": {"required": ["b"]}},
    "nested": _one(_object(zqxb=_object(zqxc=TEXT))),
    "nested alone": _one({"type": "object"}),
    "objects": _one({"type": "array", "items": INNER | {"required": ["zqxb"]}}),
    "map": _one({"type": "object", "additionalProperties": TEXT}),
    "map of any": _one({"type": "object", "additionalProperties": True}),
    "patterns": _one({"type": "object", "patternProperties": {"^x": TEXT}}),
    "defaults": _one({"type": "object", "default": {"b": [1, None]}, "examples": [{"b": 1}]}),
    "bounds": _one({"type": "string", "minLength": 1, "pattern": "^a", "format": "date-time"}),
    "named like keywords": _object(
        type=TEXT, properties=TEXT, items=TEXT, required=TEXT, description=TEXT, enum=TEXT
    ),
    "odd names": _object(**{"$ref": TEXT, "a-b": TEXT, "ü": TEXT, "a b": TEXT, "": TEXT}),
    "quotes": _one({"type": "string", "description": "a \"b\" 'c' {{d}} {% e %} <f>\n\\"}),
}
"""Parameters of a function, by name of the shape."""
_DESCRIPTIONS: Final = {"": "Do it.", ", not described": None}


def tool_shapes() -> Iterator[tuple[str, ToolUse]]:
    for (suffix, text), (name, parameters) in product(_DESCRIPTIONS.items(), PARAMETERS.items()):
        use = tooling.tool_use([tooling.function("zqxf", text, parameters)])
        assert use is not None
        yield name + suffix, use


def turn_shapes() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield conversations by what the assistant's message has, and what follows it."""
    parts = product(("", "zqxthought"), ("", "zqxtext"), (0, 1, 2), ({"a": "zqxv"}, {}))
    for reasoning, text, count, arguments in parts:
        if not count and not arguments:
            continue
        named = {"reasoning": reasoning, "text": text, f"{count} calls": count}
        name = " + ".join(part for part, given in named.items() if given) or "nothing"
        name += "" if arguments or not count else " without arguments"
        first = _answer(reasoning, text, count, arguments, "a")
        turn = [_user("zqxask"), first, *_results(count, "a", "zqxr")]
        again = [_answer(reasoning, text, count, arguments, "b"), *_results(count, "b", "zqxs")]
        yield f"{name}, user", [*turn, _user("zqxmore")]
        if count:
            yield name, turn
            yield f"{name}, again", [*turn, *again]
            yield f"{name}, answer, user", [*turn, _answer("", "zqxans"), _user("zqxmore")]
            yield f"{name}, no result", [*turn[:2], _user("zqxmore")]
            yield f"{name}, empty result", [*turn[:2], *_results(count, "a", "")]


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _answer(
    reasoning: str, text: str, count: int = 0, arguments: Any = None, ids: str = ""
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if count:
        calls = [tooling.call(f"{ids}1b2c3d4{i}", "look", arguments) for i in range(count)]
        message["tool_calls"] = calls
    return message


def _results(count: int, ids: str, text: str) -> list[dict[str, Any]]:
    return [
        {"role": "tool", "tool_call_id": f"{ids}1b2c3d4{i}", "name": "look", "content": text}
        for i in range(count)
    ]


def tool_cells(name: str) -> dict[str, str]:
    """Return what became of each shape of function; nothing for a template without functions."""
    model = tokenizer(name)
    if call_format(model) is None:
        return {}
    messages = [_user("hi")]
    return {
        shape: _cell(
            lambda use=use: render(model, messages, tools=use), model, _words(use.functions)
        )  # type: ignore[misc]
        for shape, use in tool_shapes()
    }


def turn_cells(name: str) -> dict[str, str]:
    """Return what became of each shape of turn, with functions where the template lists some."""
    model = tokenizer(name)
    look = tooling.tool_use([tooling.function("look", "Look.", PARAMETERS["bare"])])
    tools = look if call_format(model) is not None else None
    cells = {}
    for shape, messages in turn_shapes():
        words = _words(messages) - {"zqxthought"}  # which thoughts return is the template's choice
        cells[shape] = _cell(
            lambda messages=messages: render(model, messages, tools=tools),
            model,
            words,  # type: ignore[misc]
        )
    return cells


def _cell(attempt: Callable[[], Any], model: Any, words: set[str]) -> str:
    """Return `ok`; the warning about a text that is not in the prompt; or what is wrong."""
    try:
        prompt = attempt()
    except BadRequest as error:
        return f"refused: {error}"
    text = model.decode(prompt.tokens)
    lost = sorted(word for word in words if word not in text)
    codes = [change.code for change in prompt.changes]
    if lost == ["zqxtext"]:
        for code in ("conversation.text_left_out", "conversation.text_in_reasoning"):
            if code in codes:
                return code
    return f"lost: {', '.join(lost)}" if lost else OK


def _words(value: Any) -> set[str]:
    return set(_WORD.findall(json.dumps(value)))


def table(cells: Mapping[str, Mapping[str, str]]) -> str:
    """Return a row for each template: how many cells are `ok`, and the others."""
    lines = []
    for name, row in cells.items():
        good = sum(cell == OK for cell in row.values())
        others = [f"{shape}: {cell}" for shape, cell in row.items() if cell != OK]
        kinds: Sequence[str] = sorted({cell for cell in row.values() if cell != OK})
        shown = "; ".join(others) if len(others) < 4 else f"{len(others)}: {', '.join(kinds)}"
        lines.append(f"| {name} | {good} of {len(row)} | {shown} |")
    return "\n".join(["| template | ok | others |", "|---|---|---|", *lines])


if __name__ == "__main__":
    for of in (tool_cells, turn_cells):
        sys.stdout.write(table({name: of(name) for name in TEMPLATES}) + "\n\n")
