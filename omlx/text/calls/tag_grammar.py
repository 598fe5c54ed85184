"""Grammars of arguments between tags, each a text of its own:
`<parameter=city>\\nOslo\\n</parameter>`.

Arguments come in the order of the schema. Numbers, booleans, lists, objects and enumerated texts
follow their schema. Other texts, and values of several types, are free up to the closing tag: they
are not escaped, so bounds of length and patterns would have to know that tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

_JSON: Final = ("integer", "number", "boolean", "array", "object")
_SHARED: Final = ("$defs", "definitions", "x-guidance")
"""Keys of a schema that the schema of one argument needs too."""


def texts(parameter: str, added: Iterable[str], literal: Callable[[str], str]) -> Iterator[str]:
    """Yield terms for free texts with the closing tag. `word` excludes "null", which is parsed as
    no text.

    `added` are the tokens that the tokenizer does not compose of smaller ones. A text cannot hold
    them: where the tag has one, the text ends before it.
    """
    tag = parameter.partition("{value}")[2].rstrip()
    tokens = [token for token in added if token and token in tag]
    if tokens:
        start = min(map(tag.index, tokens))
        before, rest = _regex(tag[:start]), literal(tag[start:])
        yield f"TEXT: /(?s:.*){before}/"
        yield f"WORD: TEXT & ~/(?i:null){before}/"
        optional = "" if before else "?"
        yield f"text: TEXT{optional} {rest}"
        yield f"word: WORD{optional} {rest}"
        return
    yield rf"TEXT: /(?s:.*){_regex(tag)}/ & ~/(?s:.*){_regex(tag.strip())}(?s:.+)/"
    yield f"WORD: TEXT & ~/(?i:null){_regex(tag)}/"
    yield "text[lazy]: TEXT"
    yield "word[lazy]: WORD"


def _regex(text: str) -> str:
    """Return a text as a part of a regular expression between slashes."""
    return re.escape(text).replace("\n", r"n").replace("/", r"\/")


def arguments(
    parameter: str, schema: Mapping[str, Any], rule: str, literal: Callable[[str], str]
) -> Iterator[str]:
    """Yield the rule for the arguments of a schema, and the rules that it needs.

    `parameter` is the text of one argument, with places for its {name} and {value}, and {text} for
    whether the value is a string. `literal` returns a text in the grammar's form. Raises ValueError
    for a parameter whose name cannot stand in a tag.
    """
    before, _, behind = parameter.partition("{value}")
    needed = schema.get("required", ())
    properties = {**schema.get("properties", {})}
    for name in needed:
        properties.setdefault(name, True)
    if not properties and schema.get("additionalProperties") is not False:
        start, _, stop = before.partition("{name}")
        stop = stop.replace("{text}", "true")
        any_name = f"{literal(start)} /[^\\s<>]+/ {literal(stop)}"
        yield f"{rule}: ({any_name} text {_gap(behind, literal)})*"
        return
    order = []
    for number, (name, value) in enumerate(properties.items()):
        if any(character.isspace() or character in "<>" for character in name):
            raise ValueError(f"the parameter '{name}' cannot be written in a tag")
        text = "false" if _is_json(value) else "true"
        start = literal(before.replace("{name}", name).replace("{text}", text))
        yield f"{rule}_{number}: {start} {_value(value, schema, behind, literal)}"
        if name in needed:
            order.append(f"{rule}_{number}")
        else:
            order.append(f"{rule}_{number}?")
    yield f"{rule}: {' '.join(order) or literal('')}"


def _is_json(value: Any) -> bool:
    """Return whether a value of this schema is written as JSON."""
    return isinstance(value, Mapping) and value.get("type") in _JSON


def _value(
    value: Any, schema: Mapping[str, Any], behind: str, literal: Callable[[str], str]
) -> str:
    """Return the expression for a value with what closes it."""
    if not isinstance(value, Mapping):
        value = {}
    kind = value.get("type", "string")
    choices = value.get("enum", [])
    if "const" in value:
        choices = [value["const"]]
    words = []
    for choice in choices:
        if isinstance(choice, str) and choice.lower() != "null" and behind.strip() not in choice:
            words.append(choice)
    if kind == "string" and words:
        return f"({' | '.join(map(literal, words))}) {literal(behind)}"
    if _is_json(value):
        shared = {key: schema[key] for key in _SHARED if key in schema}
        return f"%json {json.dumps({**value, **shared})} {literal(behind)}"
    text = "word" if value.get("type") == "string" else "text"
    return f"{text} {_gap(behind, literal)}"


def _gap(behind: str, literal: Callable[[str], str]) -> str:
    """Return the white space after the closing tag, which the terms for texts do not include."""
    return literal(behind[len(behind.rstrip()) :])
