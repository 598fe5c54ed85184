"""Syntaxes of the arguments of a call: their grammar by a JSON schema, and their text.

An `ArgumentSyntax` is data of a family. `ArgumentRules` writes the rules of a function, member by
member in the order of the schema. The two common syntaxes are here: one JSON object, and texts
between tags, `<parameter=city>\\nOslo\\n</parameter>`. Text between tags is read as a value of the
schema's types (`values`): unenumerated strings end at the closing tag, which their bounds of length
and patterns include.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from omlx.text.schema import (
    NUMBER_BOUNDS,
    Schema,
    SchemaTypes,
    embedded,
    is_open,
    members,
    object_alternatives,
    type_of,
)
from omlx.text.text_bounds import NO_BOUNDS, TextBounds, text_bounds

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

SPACING: Final[JsonCompileOptions] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""White space as in `json.dumps`: more tokens are forced, and endless blanks are impossible."""
LENIENT: Final[JsonCompileOptions] = {"lenient": True}
"""Option to ignore keywords unsupported by llguidance."""
ANY_OBJECT: Final[Schema] = {"type": "object", "x-guidance": {**SPACING, **LENIENT}}

_NUMBER: Final = r"-?[0-9]+(\.[0-9]+)?([eE][+\-]?[0-9]+)?"
_PYTHON: Final[Mapping[str, Sequence[str]]] = {"boolean": ("True", "False"), "null": ("None",)}
_PLACES: Final = re.compile(r"\{(name|number|id|arguments|value|text|type)\}")


@dataclass(frozen=True, slots=True)
class Notation:
    """Facts of the whole grammar for a grammar of arguments."""

    added: Mapping[str, int]  # ids of tokens that are not composed of smaller ones
    # Takes the description of an unenforced part. Raises ValueError if all must be enforced.
    note_unenforced: Callable[[str], None]

    def literal(self, text: str) -> str:
        """Return a text in the grammar's form, with added tokens by their ids."""
        terms = []
        for part in split_added(text, self.added):
            if part in self.added:
                terms.append(f"<[{self.added[part]}]>")
            else:
                terms.append(json.dumps(part, ensure_ascii=False))
        return " ".join(terms) or '""'

    def texts(
        self,
        closing: str,
        name: str = "text",
        excluded: Sequence[str] = (),
        bounds: TextBounds = NO_BOUNDS,
    ) -> Iterator[str]:
        """Yield rules for texts with the tag `closing`, excluding texts that match `excluded`.

        A text cannot hold added tokens: a text ends before the first added token of the tag.
        """
        tag = closing.rstrip()
        tokens = [token for token in self.added if token and token in tag]
        start = min(map(tag.index, tokens), default=len(tag))
        before, rest = tag[:start], tag[start:]
        end = _regex(before)
        term = rf"/(?s:.*){end}/ & ~/(?s:.*){_regex(tag.strip())}(?s:.+)/"
        for pattern in excluded:
            term += rf" & ~/({pattern}){end}/"
        for regex in bounds.regexes():
            term += rf" & /({regex}){end}/"
        yield f"{name.upper()}: {term}"
        if rest:
            optional = "?" if bounds.allows_empty and not before else ""
            yield f"{name}: {name.upper()}{optional} {self.literal(rest)}"
        else:
            yield f"{name}[lazy]: {name.upper()}"

    def bounds_of(self, types: SchemaTypes, schema: Any) -> list[TextBounds]:
        """Return alternative bounds of free texts; no bounds if they cannot be enforced."""
        try:
            return text_bounds(types, schema)
        except ValueError as error:
            self.note_unenforced(str(error))
            return [NO_BOUNDS]

    def alternatives_of(self, schema: Schema) -> list[Schema]:
        """Return alternatives for the arguments' object; the schema alone if they cannot be
        enforced."""
        try:
            return object_alternatives(embedded(schema, schema))
        except ValueError as error:
            self.note_unenforced(str(error))
            return [schema]


def split_added(text: str, added: Collection[str]) -> list[str]:
    """Split a text at added tokens, keeping them; longer tokens take precedence."""
    known = sorted((token for token in added if token and token in text), key=len, reverse=True)
    if not known:
        return [text] if text else []
    return [part for part in re.split(f"({'|'.join(map(re.escape, known))})", text) if part]


def _regex(text: str) -> str:
    return re.escape(text).replace("\n", r"n").replace("/", r"\/")


class ArgumentSyntax(Protocol):
    """Notation of arguments: rules for a grammar, and text for past calls."""

    @property
    def ender(self) -> str:
        """Text that ends a free text, for the rule `text`; empty if the syntax has none."""

    def rules(self, schema: Schema | None, rule: str, notation: Notation) -> Iterator[str]:
        """Yield the rule for the arguments, with its subrules.

        `schema` None: any arguments. Raises ValueError for an inexpressible schema.
        """

    def text(self, arguments: Mapping[str, Any]) -> str:
        """Write the arguments of a call."""


class JsonArguments:
    ender = ""

    def rules(self, schema: Schema | None, rule: str, notation: Notation) -> Iterator[str]:
        yield f"{rule}: %json {json.dumps(ANY_OBJECT if schema is None else schema)}"

    def text(self, arguments: Mapping[str, Any]) -> str:
        return json.dumps(arguments, ensure_ascii=False)


JSON: Final = JsonArguments()


class ArgumentRules:
    """Rules for an object and its values, by a schema without combinations at its root.

    `rules` are those written so far. Raises ValueError for an inexpressible schema.
    """

    separator = ""  # text between two members

    def __init__(self, notation: Notation, root: Schema, rule: str) -> None:
        self.notation, self.literal = notation, notation.literal
        self.types = SchemaTypes(root)
        self.rules: list[str] = []
        self._rule = rule

    def member(self, name: str, schema: Any) -> str:
        """Return the term for a member of the object."""
        raise NotImplementedError

    def other(self, schema: Any) -> str:
        """Return the term for a member with any name."""
        raise NotImplementedError

    def members(self, schema: Schema) -> str:
        between = self.literal(self.separator)
        for detail in _unenforced(schema):
            self.notation.note_unenforced(detail)
        if is_open(schema):
            other = self.other(schema.get("additionalProperties", True))
            return f"({other} ({between} {other})*)?" if self.separator else f"({other})*"
        parts = [(self.member(name, part), needed) for name, part, needed in members(schema)]
        if not self.separator:
            terms = (part if needed else f"{part}?" for part, needed in parts)
            return " ".join(terms) or self.literal("")
        return self._in_order(parts, between)

    def add(self, kind: str, body: str) -> str:
        name = self.new_name(kind)
        self.rules.append(f"{name}: {body}")
        return name

    def new_name(self, kind: str) -> str:
        return f"{self._rule}_{kind}{len(self.rules)}"

    def _in_order(self, parts: Sequence[tuple[str, bool]], between: str) -> str:
        """Add two rules for each rest of the list: as the first members, and behind others.

        A part is a term with its obligation (True: required).
        """
        first = rest = self.add("end", '""')
        for part, needed in reversed(parts):
            begins, follows = f"{part} {rest}", f"{between} {part} {rest}"
            if not needed:
                begins, follows = f"{begins} | {first}", f"{follows} | {rest}"
            first, rest = self.add("first", begins), self.add("rest", follows)
        return first


def object_rules(
    alternatives: Sequence[Schema], rule: str, make: Callable[[Schema, str], ArgumentRules]
) -> Iterator[str]:
    """Yield the rule for any of several objects, with its subrules."""
    names = [rule]
    if len(alternatives) > 1:
        names = [f"{rule}_way{i}" for i in range(len(alternatives))]
        yield f"{rule}: {' | '.join(names)}"
    for name, alternative in zip(names, alternatives, strict=True):
        of = make(alternative, name)
        yield f"{name}: {of.members(alternative)}"
        yield from of.rules


def repeated(item: str, separator: str, schema: Schema) -> str:
    """Return the term for a list whose length a schema bounds."""
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if most == 0:
        return '""'
    more = ""
    if most != 1:
        end = "" if most is None else most - 1
        more = f" ({separator} {item}){{{max(least - 1, 0)},{end}}}"
    optional = "" if least else "?"
    return f"({item}{more}){optional}"


def _unenforced(schema: Schema) -> Iterator[str]:
    """Yield keywords of an object's schema that rules by member do not enforce."""
    count = len(list(members(schema)))
    if "patternProperties" in schema and (count or is_open(schema)):
        yield "patternProperties"
    if schema.get("minProperties", 0) > len(schema.get("required", ())):
        yield "minProperties"
    if "maxProperties" in schema and (schema["maxProperties"] < count or is_open(schema)):
        yield "maxProperties"


@dataclass(frozen=True, slots=True)
class TagArguments:
    """Arguments between tags, each value as plain text.

    `parameter` is the text of a single argument, with places for {name}, {value}, {text} ("true" if
    the value is a string, else "false") and {type} (the JSON type, "number" for integers too).
    """

    parameter: str

    @property
    def ender(self) -> str:
        return self.parameter.partition("{value}")[2]

    @property
    def typed(self) -> bool:
        """Whether a tag marks which values are strings."""
        return "{text}" in self.parameter or "{type}" in self.parameter

    def tag(self, name: str, kinds: Collection[str]) -> str:
        """Return the tag before a value, marked "string" if `kinds` has that type."""
        kind = min(kinds, key=lambda each: (each != "string", each == "null", each))
        values = {"name": name, "text": json.dumps(kind == "string")}
        opening = self.parameter.partition("{value}")[0]
        return filled(opening, values | {"type": "number" if kind == "integer" else kind})

    def rules(self, schema: Schema | None, rule: str, notation: Notation) -> Iterator[str]:
        schema = schema or {}
        alternatives = notation.alternatives_of(schema)
        if not self.typed:
            for name in _mistaken(schema, alternatives):
                notation.note_unenforced(f"'{name}' has other types in other alternatives")
        yield from object_rules(alternatives, rule, partial(TagRules, self, notation))

    def text(self, arguments: Mapping[str, Any]) -> str:
        written = ""
        for name, value in arguments.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            written += self.tag(name, {type_of(value)}) + text + self.ender
        return written


def filled(text: str, values: Mapping[str, str]) -> str:
    return str(_PLACES.sub(lambda place: values[place[1]], text))


def _mistaken(schema: Schema, alternatives: Sequence[Schema]) -> Iterator[str]:
    """Yield parameters whose texts would be read by another alternative's types."""
    types = SchemaTypes(schema)
    for alternative in alternatives:
        own = SchemaTypes(alternative)
        for name, value, _ in members(alternative):
            kinds = types.kinds(types.property(name))
            if "string" in kinds and kinds != own.kinds(value):
                yield name


class TagRules(ArgumentRules):
    def __init__(self, tags: TagArguments, notation: Notation, root: Schema, rule: str) -> None:
        super().__init__(notation, root, rule)
        self.tags = tags
        self._closing = self.literal(tags.ender)
        # Rules for texts include the closing tag, but not the white space after it.
        self._gap = self.literal(tags.ender[len(tags.ender.rstrip()) :])

    def member(self, name: str, schema: Any) -> str:
        if any(character.isspace() or character in "<>" for character in name):
            raise ValueError(f"the parameter '{name}' cannot be written in a tag")
        tag = self.literal(self.tags.tag(name, self.types.kinds(schema)))
        return self.add("member", f"{tag} {self.value(schema)}")

    def other(self, schema: Any) -> str:
        tag = self.tags.tag("{name}", self.types.kinds(schema))
        start, _, stop = tag.partition("{name}")
        name = f'{self.literal(start)} /[^\\s<>"]+/ {self.literal(stop)}'
        return f"{name} {self.value(schema)}"

    def value(self, schema: Any) -> str:
        """Return the rule for a value and the closing tag."""
        any_text = f"text {self._gap}"
        if not isinstance(schema, Mapping) or not schema:
            return self.add("value", any_text)
        kinds = self.types.kinds(schema)
        others = kinds - {"string"}
        if "string" in kinds and self.tags.typed:
            others = frozenset()
        forms: list[str] = []
        if "string" in kinds and self.types.free_text(schema):
            forms = self._free_texts(schema, list(_excluded(schema, others)))
        elif "string" in kinds:
            tag, words = self.tags.ender.strip(), self.types.enumerated(schema)
            forms = self._words(word for word in words if tag not in word)
        if others and forms != [any_text]:
            own = embedded(schema, self.types.root)
            if "string" in kinds:
                own["type"] = sorted(others)
            forms.append(f"%json {json.dumps(own)} {self._closing}")
            if "string" not in kinds and not self.tags.typed and not _enumerates(schema):
                # Words of Python, which templates write.
                forms += self._words(w for kind in sorted(others) for w in _PYTHON.get(kind, ()))
        return self.add("value", " | ".join(forms) or any_text)

    def _free_texts(self, schema: Schema, excluded: Sequence[str]) -> list[str]:
        alternatives = self.notation.bounds_of(self.types, schema)
        if not excluded and all(bounds.free for bounds in alternatives):
            return [f"text {self._gap}"]
        forms = []
        for bounds in alternatives:
            name = self.new_name("text")
            self.rules += self.notation.texts(self.tags.ender, name, excluded, bounds)
            forms.append(f"{name} {self._gap}")
        return forms

    def _words(self, words: Iterator[str]) -> list[str]:
        return [f"{self.literal(word)} {self._closing}" for word in words]


def _enumerates(schema: Schema) -> bool:
    text = json.dumps(schema)
    return any(f'"{key}"' in text for key in ("enum", "const", "$ref"))


def _excluded(schema: Schema, others: Collection[str]) -> Iterator[str]:
    """Yield patterns of texts that are read as bounded values of types other than string."""
    if {"array", "object"} & set(others):
        yield r"\s*[\[{](?s:.*)"
    enumerates = _enumerates(schema)
    bounded = enumerates or any(f'"{key}"' in json.dumps(schema) for key in NUMBER_BOUNDS)
    if {"integer", "number"} & set(others) and bounded:
        yield _NUMBER
    if "boolean" in others and enumerates:
        yield "true|false"
    if "null" in others and enumerates:
        yield "null"
