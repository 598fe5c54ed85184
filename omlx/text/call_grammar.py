"""Grammars of tool calls, in llguidance's form of Lark's.

A call is the markup of the model's family around the name of a function and arguments that have its schema. Markup that
the tokenizer has as one token must come as that token: a text that merely looks like it will not do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from omlx.errors import BadRequest
from omlx.text import tag_grammar
from omlx.text.call_markup import CallFormat, CallMarkup
from omlx.text.json_spelling import LENIENT, SPACING
from omlx.text.prune_nonterminating_schema import prune_nonterminating
from omlx.text.tools import ToolUse

Schema = Mapping[str, Any]

ANY_ARGUMENTS: Final[Schema] = {"type": "object"}

_PLACES: Final = re.compile(r"(\{name\}|\{number\}|\{id\}|\{arguments\})")


def answer(markup: CallMarkup, use: ToolUse, added: Mapping[str, int]) -> str:
    """The grammar of an answer that is calls and nothing else: of one, or of one or more, to the allowed functions.

    `added` are the tokens that the tokenizer does not make of smaller ones. Raises BadRequest as `call` does.
    """
    form = markup.form
    one = f"{_literal(markup.start, added)} inside"
    several = "" if use.single or form.together else f" ({_between(form, added)}one)*"
    return "\n".join([f"start: one{several}", f"one: {one}", *_inside(markup, use, added)])


def call(markup: CallMarkup, use: ToolUse, added: Mapping[str, int]) -> str:
    """The grammar of what follows the marker that opens a call.

    Raises BadRequest for a function whose arguments cannot be an object.
    """
    return "\n".join(["start: inside", *_inside(markup, use, added)])


def _inside(markup: CallMarkup, use: ToolUse, added: Mapping[str, int]) -> Iterator[str]:
    """Rules for what stands between two markers, the closing one with it."""
    form = markup.form
    several = f" ({_between(form, added)}call)*" if form.together and not use.single else ""
    yield f"inside: call{several} {_literal(markup.end, added)}"
    yield "call: " + " | ".join(f"call_{i}" for i in range(len(use.allowed)))
    for i, function in enumerate(use.allowed):
        yield f"call_{i}: {_written(form, function['name'], f'arguments_{i}', added)}"
        yield from _arguments(form, arguments(function, use), f"arguments_{i}", added)
    if form.parameter is not None:
        yield from tag_grammar.texts(form.parameter)


def _arguments(
    form: CallFormat, schema: Schema, rule: str, added: Mapping[str, int]
) -> Iterator[str]:
    if form.parameter is None:
        yield f"{rule}: %json {json.dumps(schema)}"
    else:
        yield from tag_grammar.arguments(
            form.parameter, schema, rule, lambda text: _literal(text, added)
        )


def _between(form: CallFormat, added: Mapping[str, int]) -> str:
    """Not every model writes it."""
    return f"({_literal(form.between, added)})? " if form.between else ""


def _written(form: CallFormat, name: str, rule: str, added: Mapping[str, int]) -> str:
    """A call of one function as a rule's right side."""
    assert form.written is not None
    given = {"{number}": "/[0-9]{1,3}/", "{id}": "/[a-zA-Z0-9]{9}/", "{arguments}": rule}
    found, text = [], ""
    for part in _PLACES.split(form.written):
        if part in given:
            found += [_literal(text, added), given[part]]
            text = ""
        else:
            text += name if part == "{name}" else part
    return " ".join([*found, _literal(text, added)])


def arguments(function: Schema, use: ToolUse) -> Schema:
    """The schema that the arguments of a call must have; any object will do where nobody asked for a certain one.

    Keywords that nobody enforces are passed over unless the function is strict. Raises BadRequest where the schema
    leaves no object, or none that ends.
    """
    strict = function["name"] in use.strict
    schema = function.get("parameters", ANY_ARGUMENTS) if strict or use.forced else ANY_ARGUMENTS
    kinds = schema.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise BadRequest(
            "tools.schema", param="tools", name=function["name"], detail=f"type {kinds}, not object"
        )
    options = schema.get("x-guidance", {})
    if isinstance(options, Mapping):
        options = {**SPACING, **({} if strict else LENIENT), **options}
    schema = {**schema, "type": "object", "x-guidance": options}
    try:
        if "$ref" in json.dumps(schema):
            schema = prune_nonterminating(schema)
    except ValueError as error:
        raise BadRequest(
            "tools.schema", param="tools", name=function["name"], detail=str(error)
        ) from error
    return schema


def _literal(text: str, added: Mapping[str, int]) -> str:
    """A text as a grammar says it, added tokens by their ids; the longest of them goes first."""
    known = sorted((each for each in added if each and each in text), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, known))})", text) if known else [text]
    told = (
        f"<[{added[part]}]>" if part in known else json.dumps(part, ensure_ascii=False)
        for part in parts
        if part
    )
    return " ".join(told) or '""'
