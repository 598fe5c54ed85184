"""Grammars of arguments between tags, each a text of its own:
`<parameter=city>\\nOslo\\n</parameter>`.

Arguments come in the order of the schema, and what is written is read as a value of the schema's
types (`values`). Texts that the schema does not enumerate are free up to the closing tag: they are
not escaped, so bounds of length and patterns would have to know that tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omlx.text.calls.argument_syntax import Notation, embedded
from omlx.text.calls.values import ArgumentTypes

_NUMBER: Final = r"-?[0-9]+(\.[0-9]+)?([eE][+\-]?[0-9]+)?"
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


@dataclass(frozen=True, slots=True)
class Syntax:
    """How arguments are written: `parameter` is the text of one, with places for its {name} and
    {value}, {text} for whether the value is a string, and {type} for its JSON type.
    """

    parameter: str
    notation: Notation

    def literal(self, text: str) -> str:
        """Return a text in the grammar's form."""
        return self.notation.literal(text)

    @property
    def behind(self) -> str:
        """Text after a value."""
        return self.parameter.partition("{value}")[2]

    @property
    def gap(self) -> str:
        """White space after the closing tag, which the terms for texts do not include."""
        return self.literal(self.behind[len(self.behind.rstrip()) :])

    def texts(self, name: str = "text", excluded: Sequence[str] = ()) -> Iterator[str]:
        """Yield terms for free texts with the closing tag, without those that match a pattern.

        A text cannot hold added tokens: where the tag has one, the text ends before it.
        """
        tag = self.behind.rstrip()
        tokens = [token for token in self.notation.added if token and token in tag]
        before, rest = tag, ""
        if tokens:
            start = min(map(tag.index, tokens))
            before, rest = tag[:start], tag[start:]
        end = _regex(before)
        term = rf"/(?s:.*){end}/"
        if not rest:
            term += rf" & ~/(?s:.*){_regex(tag.strip())}(?s:.+)/"
        for pattern in excluded:
            term += rf" & ~/({pattern}){end}/"
        upper = name.upper()
        yield f"{upper}: {term}"
        if rest:
            optional = "" if before else "?"
            yield f"{name}: {upper}{optional} {self.literal(rest)}"
        else:
            yield f"{name}[lazy]: {upper}"


def _regex(text: str) -> str:
    """Return a text as a part of a regular expression between slashes."""
    return re.escape(text).replace("\n", r"n").replace("/", r"\/")


def arguments(syntax: Syntax, schema: Mapping[str, Any], rule: str) -> Iterator[str]:
    """Yield the rule for the arguments of a schema, and the rules that it needs.

    Raises ValueError for a parameter whose name cannot stand in a tag.
    """
    before = syntax.parameter.partition("{value}")[0]
    types = ArgumentTypes(schema)
    needed = schema.get("required", ())
    properties = {**schema.get("properties", {})}
    for name in needed:
        properties.setdefault(name, True)
    if not properties and schema.get("additionalProperties") is not False:
        start, _, stop = before.partition("{name}")
        stop = stop.replace("{text}", "true").replace("{type}", "string")
        any_name = f"{syntax.literal(start)} /[^\\s<>]+/ {syntax.literal(stop)}"
        yield f"{rule}: ({any_name} text {syntax.gap})*"
        return
    order = []
    for number, (name, value) in enumerate(properties.items()):
        if any(character.isspace() or character in "<>" for character in name):
            raise ValueError(f"the parameter '{name}' cannot be written in a tag")
        start = syntax.literal(_filled(before, name, types.kinds(value)))
        yield f"{rule}_{number}: {start} {rule}_{number}_value"
        yield from value_rule(syntax, schema, value, f"{rule}_{number}_value")
        if name in needed:
            order.append(f"{rule}_{number}")
        else:
            order.append(f"{rule}_{number}?")
    yield f"{rule}: {' '.join(order) or syntax.literal('')}"


def _filled(before: str, name: str, kinds: Collection[str]) -> str:
    """Return the tag before a value of some types; one that may be a string is one."""
    kind = min(kinds, key=lambda each: (each != "string", each == "null", each))
    text = json.dumps(kind == "string")
    return before.replace("{name}", name).replace("{text}", text).replace("{type}", kind)


def value_rule(syntax: Syntax, schema: Mapping[str, Any], value: Any, rule: str) -> Iterator[str]:
    """Yield the rule for a value with what closes it."""
    types = ArgumentTypes(schema)
    kinds = types.kinds(value)
    if not isinstance(value, Mapping) or not value:
        yield f"{rule}: text {syntax.gap}"
        return
    others = kinds - {"string"}
    if "string" in kinds and ("{text}" in syntax.parameter or "{type}" in syntax.parameter):
        others = frozenset()
    forms = []
    if "string" in kinds and types.free_text(value):
        excluded = list(_excluded(value, others))
        forms.append(f"{rule}_text {syntax.gap}" if excluded else f"text {syntax.gap}")
        if excluded:
            yield from syntax.texts(f"{rule}_text", excluded)
        others &= {"array", "object"}
    elif "string" in kinds:
        tag = syntax.behind.strip()
        words = [word for word in types.choices(value) if tag not in word]
        forms += [f"{syntax.literal(word)} {syntax.literal(syntax.behind)}" for word in words]
    if others:
        json_schema = embedded(value, schema)
        if "string" in kinds:
            json_schema["type"] = sorted(others)
        forms.append(f"%json {json.dumps(json_schema)} {syntax.literal(syntax.behind)}")
    yield f"{rule}: {' | '.join(forms) or 'text ' + syntax.gap}"


def _excluded(value: Mapping[str, Any], others: Collection[str]) -> Iterator[str]:
    """Yield patterns of texts that are read as values of other types than string, which the
    schema bounds.
    """
    if {"array", "object"} & set(others):
        yield r"\s*[\[{](?s:.*)"
    text = json.dumps(value)
    if {"integer", "number"} & set(others) and any(f'"{key}"' in text for key in _BOUNDS):
        yield _NUMBER
