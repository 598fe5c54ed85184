"""Grammars of arguments that stand between tags, each a text of its own: `<parameter=city>\\nOslo\\n</parameter>`.

They come in the order of the schema. Numbers, booleans, lists, objects and a choice of texts have their schema. Other
texts are free up to the tag that closes them: they are read as they stand, without escapes, so that bounds of lengths
and patterns would have to know that tag. So is what may be a text or something else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

_JSON: Final = ("integer", "number", "boolean", "array", "object")


def texts(parameter: str) -> Iterator[str]:
    """Terms for free texts, with the tag that closes them. The word "null" is read as no text, so a `word` is none."""
    behind = parameter.partition("{value}")[2].rstrip()
    end, tag = (each.replace("\n", r"\n").replace("/", r"\/") for each in (behind, behind.lstrip()))
    yield rf"TEXT: /(?s:.*){end}/ & ~/(?s:.*){tag}(?s:.+)/"
    yield f"WORD: TEXT & ~/(?i:null){end}/"
    yield "text[lazy]: TEXT"
    yield "word[lazy]: WORD"


def arguments(
    parameter: str, schema: Mapping[str, Any], rule: str, literal: Callable[[str], str]
) -> Iterator[str]:
    """The rule for arguments of a schema, and those it needs. `parameter` is how one is written, with places for its
    `{name}` and `{value}`.

    Raises ValueError for a parameter whose name cannot be written.
    """
    before, _, behind = parameter.partition("{value}")
    rest = behind[len(behind.rstrip()) :]
    needed = schema.get("required", ())
    every = {**schema.get("properties", {})}
    every |= {name: True for name in needed if name not in every}
    if not every and schema.get("additionalProperties") is not False:
        start, _, stop = before.partition("{name}")
        yield f"{rule}: ({literal(start)} /[^\\s<>]+/ {literal(stop)} text {literal(rest)})*"
        return
    for number, (name, value) in enumerate(every.items()):
        if any(each.isspace() or each in "<>" for each in name):
            raise ValueError(f"the parameter '{name}' cannot be written in a tag")
        start = literal(before.replace("{name}", name))
        yield f"{rule}_{number}: {start} {_value(value, schema, behind, literal)}"
    order = (
        f"{rule}_{number}" + ("" if name in needed else "?") for number, name in enumerate(every)
    )
    yield f"{rule}: {' '.join(order) or literal('')}"


def _value(
    value: Any, schema: Mapping[str, Any], behind: str, literal: Callable[[str], str]
) -> str:
    """A value, and what closes it."""
    value = value if isinstance(value, Mapping) else {}
    kind = value.get("type", "string")
    choice = [value["const"]] if "const" in value else value.get("enum", [])
    choice = [
        each
        for each in choice
        if isinstance(each, str) and each.lower() != "null" and behind.strip() not in each
    ]
    if kind == "string" and choice:
        return f"({' | '.join(map(literal, choice))}) {literal(behind)}"
    if kind in _JSON:
        shared = {
            key: schema[key] for key in ("$defs", "definitions", "x-guidance") if key in schema
        }
        return f"%json {json.dumps({**value, **shared})} {literal(behind)}"
    return f"{'word' if value.get('type') == 'string' else 'text'} {literal(behind[len(behind.rstrip()) :])}"
