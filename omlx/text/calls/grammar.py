"""Grammars of tool calls in llguidance's dialect of Lark.

A call is the markup of the model's family around a function's name and arguments that follow its
schema. Markup that the tokenizer has as one token must be generated as that token, not as text that
looks like it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from omlx.errors import BadRequest
from omlx.text.calls import tag_grammar
from omlx.text.calls.format import CallFormat
from omlx.text.calls.markup import CallMarkup
from omlx.text.exact_integers import check_integers
from omlx.text.prune_nonterminating_schema import prune_nonterminating
from omlx.text.schema_depth import check_depth
from omlx.text.tools import ToolUse

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

Schema = Mapping[str, Any]

SPACING: Final[JsonCompileOptions] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""White space as in `json.dumps`: more tokens are forced, and a model cannot emit blanks for ever.
"""
LENIENT: Final[JsonCompileOptions] = {"lenient": True}
"""Keywords that llguidance does not enforce are ignored."""

ANY_ARGUMENTS: Final[Schema] = {"type": "object"}

_PLACES: Final = re.compile(r"(\{name\}|\{number\}|\{id\}|\{arguments\})")


def calls_grammar(markup: CallMarkup, use: ToolUse, added: Mapping[str, int]) -> str:
    """Return the grammar of an answer that consists of calls to the allowed functions: of one, or
    of one or more.

    `added` maps the tokens that the tokenizer does not compose of smaller ones to their ids. Raises
    BadRequest for a function whose arguments cannot be an object.
    """
    form = markup.form
    several = ""
    if not (use.single or form.together):
        several = f" ({_between(form, added)}one)*"
    marker = markup.start if form.marked else ""
    first = f"one: {_literal(marker, added)} inside"
    return "\n".join([f"start: one{several}", first, *_inside(markup, use, added)])


def call_grammar(markup: CallMarkup, use: ToolUse, added: Mapping[str, int]) -> str:
    """Return the grammar of what follows the opening marker of a call. Raises BadRequest like
    `calls_grammar`.
    """
    return "\n".join(["start: inside", *_inside(markup, use, added)])


def answer_grammar(markup: CallMarkup, use: ToolUse, added: Mapping[str, int]) -> str:
    """Return the grammar of an answer that is a call without a marker, or a text in which a call
    may follow the marker. Raises BadRequest like `calls_grammar`.
    """
    begins = markup.form.begins.replace("/", r"\/")
    prose = f"/(?s:.+)/ & ~/(?s:{begins}.*)/"
    rules = [f"start: inside | PROSE | PROSE? {_literal(markup.start, added)} inside"]
    if markup.start not in added:
        marker = re.escape(markup.start).replace("/", r"\/")
        rules = ["start: inside | PROSE | marked inside", "marked[lazy]: MARKED"]
        rules.append(f"MARKED: /(?s:.*){marker}/ & ~/(?s:{begins}.*)/")
        prose += f" & ~/(?s:.*){marker}(?s:.*)/"
    return "\n".join([*rules, f"PROSE: {prose}", *_inside(markup, use, added)])


def arguments_schema(function: Schema, use: ToolUse) -> Schema:
    """Return the schema that the arguments of a call must follow; without an obligation, any
    object.

    Keywords that are not enforced are ignored unless the function is strict. Raises BadRequest if
    the schema allows no object, or none that terminates.
    """
    name, strict = function["name"], function["name"] in use.strict
    schema = ANY_ARGUMENTS
    if strict or use.forced:
        schema = function.get("parameters", ANY_ARGUMENTS)
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        detail = f"type {kinds}, not object"
        raise BadRequest("tools.schema", param="tools", name=name, detail=detail)
    options = schema.get("x-guidance", {})
    if isinstance(options, Mapping):
        defaults = SPACING
        if not strict:
            defaults = {**SPACING, **LENIENT}
        options = {**defaults, **options}
    schema = {**schema, "type": "object", "x-guidance": options}
    try:
        text = json.dumps(schema)
        check_integers(text)
        if "$ref" in text:
            check_depth(schema)
            schema = prune_nonterminating(schema)
    except ValueError as error:
        raise BadRequest("tools.schema", param="tools", name=name, detail=str(error)) from error
    return schema


def _inside(markup: CallMarkup, use: ToolUse, added: Mapping[str, int]) -> Iterator[str]:
    """Yield the rules for the text between two markers, with the closing one."""
    form = markup.form
    several = ""
    if form.together and not use.single:
        several = f" ({_literal(form.separator, added)} call)*"
    before, behind = form.section
    ends = _literal(behind + markup.end, added)
    yield f"inside: {_literal(before, added)} call{several} {ends}"
    yield "call: " + " | ".join(f"call_{i}" for i in range(len(use.allowed)))
    for i, function in enumerate(use.allowed):
        yield f"call_{i}: {_call(form, function['name'], f'arguments_{i}', added)}"
        yield from _arguments(form, arguments_schema(function, use), f"arguments_{i}", added)
    if form.parameter is not None:
        yield from _syntax(form.parameter, added).texts()
    if form.syntax is not None and form.syntax.ender:
        yield from _syntax("{value}" + form.syntax.ender, added).texts()


def _call(form: CallFormat, name: str, rule: str, added: Mapping[str, int]) -> str:
    """Return the right side of the rule for a call of one function; `rule` is that of its
    arguments.
    """
    assert form.written is not None
    places = {"{number}": "/[0-9]{1,3}/", "{id}": f"/{form.id_pattern}/", "{arguments}": rule}
    terms, text = [], ""
    for part in _PLACES.split(form.written):
        if part in places:
            terms += [_literal(text, added), places[part]]
            text = ""
        else:
            text += part.replace("{name}", name)
    return " ".join([*terms, _literal(text, added)])


def _arguments(
    form: CallFormat, schema: Schema, rule: str, added: Mapping[str, int]
) -> Iterator[str]:
    if form.syntax is not None:
        yield from form.syntax.rules(schema, rule, added, lambda text: _literal(text, added))
        return
    if form.parameter is None:
        yield f"{rule}: %json {json.dumps(schema)}"
        return

    yield from tag_grammar.arguments(_syntax(form.parameter, added), schema, rule)


def _syntax(parameter: str, added: Mapping[str, int]) -> tag_grammar.Syntax:
    return tag_grammar.Syntax(parameter, added, lambda text: _literal(text, added))


def _between(form: CallFormat, added: Mapping[str, int]) -> str:
    """Return the optional text between two pairs of markers."""
    if not form.between:
        return ""
    return f"({_literal(form.between, added)})? "


def _literal(text: str, added: Mapping[str, int]) -> str:
    """Return a text in the grammar's form, with added tokens by their ids; longer tokens take
    precedence.
    """
    known = sorted((token for token in added if token and token in text), key=len, reverse=True)
    parts = [text]
    if known:
        parts = re.split(f"({'|'.join(map(re.escape, known))})", text)
    terms = []
    for part in filter(None, parts):
        if part in known:
            terms.append(f"<[{added[part]}]>")
        else:
            terms.append(json.dumps(part, ensure_ascii=False))
    return " ".join(terms) or '""'
