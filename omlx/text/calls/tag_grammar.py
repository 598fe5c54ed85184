"""Grammars of arguments between tags, each a text of its own:
`<parameter=city>\\nOslo\\n</parameter>`.

Arguments come in the order of the schema, and what is written is read as a value of the schema's
types (`values`). Texts that the schema does not enumerate go up to the closing tag, which their
bounds of length and patterns include.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from omlx.text.calls.format import (
    NUMBER_BOUNDS,
    Notation,
    alternatives_of,
    embedded,
    in_alternatives,
    is_open,
    members,
    unheld_of_object,
)
from omlx.text.calls.values import ArgumentTypes

_NUMBER: Final = r"-?[0-9]+(\.[0-9]+)?([eE][+\-]?[0-9]+)?"
_PYTHON: Final[Mapping[str, Sequence[str]]] = {"boolean": ("True", "False"), "null": ("None",)}
MAX_LENGTH: Final = 1000
"""Characters up to which lengths are enforced: the lexer counts them."""
_MAX_ALTERNATIVES: Final = 8
_DAY: Final = (
    r"((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_CLOCK: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_DATE: Final = f"[0-9]{{3}}[1-9]-{_DAY}"
_TIME: Final = rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+\-]{_CLOCK})"
_LABEL: Final = r"[a-z0-9]([a-z0-9\-]{0,61}[a-z0-9])?"
_BYTE: Final = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
FORMATS: Final[Mapping[str, str]] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "email": rf"[a-zA-Z0-9_+\-]+(\.[a-zA-Z0-9_+\-]+)*@{_LABEL}(\.{_LABEL})*\.[a-z]{{2,}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,3}}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
"""By format, a pattern of texts that have it; not of all such texts."""


@dataclass(frozen=True, slots=True)
class TextBounds:
    """Bounds of a text: length in characters, and regular expressions of the whole."""

    least: int = 0
    most: int | None = None
    patterns: tuple[str, ...] = ()
    empty: bool = True  # whether the patterns allow the empty text

    @property
    def free(self) -> bool:
        return self == TextBounds()

    @property
    def allows_empty(self) -> bool:
        return self.empty and not self.least

    def regexes(self) -> Iterator[str]:
        if self.least or self.most is not None:
            most = "" if self.most is None else self.most
            yield f"(?s:.{{{self.least},{most}}})"
        yield from self.patterns

    def both(self, other: TextBounds) -> TextBounds:
        most = [each for each in (self.most, other.most) if each is not None]
        return TextBounds(
            max(self.least, other.least),
            min(most, default=None),
            (*self.patterns, *other.patterns),
            self.empty and other.empty,
        )


NO_BOUNDS: Final = TextBounds()


@dataclass(frozen=True, slots=True)
class Syntax:
    """Notation of arguments: `parameter` is the text of one, with places for its {name} and
    {value}, {text} for whether the value is a string, and {type} for its JSON type.
    """

    parameter: str
    notation: Notation

    def literal(self, text: str) -> str:
        return self.notation.literal(text)

    @property
    def typed(self) -> bool:
        """Whether a tag says which values are strings."""
        return "{text}" in self.parameter or "{type}" in self.parameter

    @property
    def behind(self) -> str:
        return self.parameter.partition("{value}")[2]

    @property
    def gap(self) -> str:
        """White space after the closing tag, which the terms for texts do not include."""
        return self.literal(self.behind[len(self.behind.rstrip()) :])

    def texts(
        self,
        name: str = "text",
        excluded: Sequence[str] = (),
        bounds: TextBounds = NO_BOUNDS,
    ) -> Iterator[str]:
        """Yield terms for texts with the closing tag, without those that match a pattern.

        A text cannot hold added tokens: where the tag has one, the text ends before it.
        """
        tag = self.behind.rstrip()
        tokens = [token for token in self.notation.added if token and token in tag]
        before, rest = tag, ""
        if tokens:
            start = min(map(tag.index, tokens))
            before, rest = tag[:start], tag[start:]
        end = _regex(before)
        term = rf"/(?s:.*){end}/ & ~/(?s:.*){_regex(tag.strip())}(?s:.+)/"
        for pattern in excluded:
            term += rf" & ~/({pattern}){end}/"
        for regex in bounds.regexes():
            term += rf" & /({regex}){end}/"
        upper = name.upper()
        yield f"{upper}: {term}"
        if rest:
            optional = "?" if bounds.allows_empty and not before else ""
            yield f"{name}: {upper}{optional} {self.literal(rest)}"
        else:
            yield f"{name}[lazy]: {upper}"


def _regex(text: str) -> str:
    return re.escape(text).replace("\n", r"n").replace("/", r"\/")


def arguments(syntax: Syntax, schema: Mapping[str, Any], rule: str) -> Iterator[str]:
    """Yield the rule for the arguments of a schema, and the rules that it needs.

    Raises ValueError for a parameter whose name cannot stand in a tag.
    """
    alternatives = alternatives_of(schema, syntax.notation)
    if not syntax.typed:
        for detail in _mistaken(ArgumentTypes(schema), alternatives):
            syntax.notation.unheld(detail)
    yield from in_alternatives(alternatives, rule, partial(_object, syntax))


def _mistaken(types: ArgumentTypes, alternatives: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield parameters whose texts would be read by another alternative's types."""
    for alternative in alternatives:
        own = ArgumentTypes(alternative)
        for name, value, _ in members(alternative):
            kinds = types.kinds(types.property(name))
            if "string" in kinds and kinds != own.kinds(value):
                yield f"'{name}' has other types in other alternatives"


def _object(syntax: Syntax, schema: Mapping[str, Any], rule: str) -> Iterator[str]:
    before = syntax.parameter.partition("{value}")[0]
    types = ArgumentTypes(schema)
    for detail in unheld_of_object(schema):
        syntax.notation.unheld(detail)
    if is_open(schema):
        other = schema.get("additionalProperties", True)
        start, _, stop = _filled(before, "{name}", types.kinds(other)).partition("{name}")
        any_name = f'{syntax.literal(start)} /[^\\s<>"]+/ {syntax.literal(stop)}'
        yield f"{rule}: ({any_name} {rule}_other)*"
        yield from value_rule(syntax, schema, other, f"{rule}_other")
        return
    order = []
    for number, (name, value, needed) in enumerate(members(schema)):
        if any(character.isspace() or character in "<>" for character in name):
            raise ValueError(f"the parameter '{name}' cannot be written in a tag")
        start = syntax.literal(_filled(before, name, types.kinds(value)))
        yield f"{rule}_{number}: {start} {rule}_{number}_value"
        yield from value_rule(syntax, schema, value, f"{rule}_{number}_value")
        if needed:
            order.append(f"{rule}_{number}")
        else:
            order.append(f"{rule}_{number}?")
    yield f"{rule}: {' '.join(order) or syntax.literal('')}"


def _filled(before: str, name: str, kinds: Collection[str]) -> str:
    """Return the tag before a value of some types; one that may be a string is one."""
    kind = min(kinds, key=lambda each: (each != "string", each == "null", each))
    text = json.dumps(kind == "string")
    kind = "number" if kind == "integer" else kind
    return before.replace("{name}", name).replace("{text}", text).replace("{type}", kind)


def value_rule(syntax: Syntax, schema: Mapping[str, Any], value: Any, rule: str) -> Iterator[str]:
    """Yield the rule for a value with what closes it."""
    types = ArgumentTypes(schema)
    kinds = types.kinds(value)
    if not isinstance(value, Mapping) or not value:
        yield f"{rule}: text {syntax.gap}"
        return
    others = kinds - {"string"}
    if "string" in kinds and syntax.typed:
        others = frozenset()
    forms = []
    if "string" in kinds and types.free_text(value):
        excluded = list(_excluded(value, others))
        alternatives = bounds_of(syntax.notation, types, value)
        free = not excluded and all(bounds.free for bounds in alternatives)
        if free:
            forms.append(f"text {syntax.gap}")
            others &= {"array", "object"}
        else:
            for number, bounds in enumerate(alternatives):
                forms.append(f"{rule}_text{number} {syntax.gap}")
                yield from syntax.texts(f"{rule}_text{number}", excluded, bounds)
    elif "string" in kinds:
        tag = syntax.behind.strip()
        words = [word for word in types.choices(value) if tag not in word]
        words = [word for word in words if types.lists(value, word)]
        forms += [f"{syntax.literal(word)} {syntax.literal(syntax.behind)}" for word in words]
    if others:
        json_schema = embedded(value, schema)
        if "string" in kinds:
            json_schema["type"] = sorted(others)
        forms.append(f"%json {json.dumps(json_schema)} {syntax.literal(syntax.behind)}")
        if "string" not in kinds and not syntax.typed and not _listed(value):
            # Words of Python, which templates write.
            words = [word for kind in sorted(others) for word in _PYTHON.get(kind, ())]
            forms += [f"{syntax.literal(word)} {syntax.literal(syntax.behind)}" for word in words]
    yield f"{rule}: {' | '.join(forms) or 'text ' + syntax.gap}"


def bounds_of(notation: Notation, types: ArgumentTypes, value: Any) -> list[TextBounds]:
    """Return the alternatives of bounds of free texts; no bounds if they cannot be enforced."""
    try:
        return text_bounds(types, value)
    except ValueError as error:
        notation.unheld(str(error))
        return [NO_BOUNDS]


def _listed(value: Mapping[str, Any]) -> bool:
    text = json.dumps(value)
    return any(f'"{key}"' in text for key in ("enum", "const", "$ref"))


def _excluded(value: Mapping[str, Any], others: Collection[str]) -> Iterator[str]:
    """Yield patterns of texts that are read as values of other types than string, which the
    schema bounds.
    """
    if {"array", "object"} & set(others):
        yield r"\s*[\[{](?s:.*)"
    listed = _listed(value)
    bounded = listed or any(f'"{key}"' in json.dumps(value) for key in NUMBER_BOUNDS)
    if {"integer", "number"} & set(others) and bounded:
        yield _NUMBER
    if "boolean" in others and listed:
        yield "true|false"
    if "null" in others and listed:
        yield "null"


def text_bounds(types: ArgumentTypes, schema: Any) -> list[TextBounds]:
    """Return the alternatives of bounds of a schema's free texts, one that allows any text alone.

    Raises ValueError for bounds that cannot be expressed.
    """
    alternatives = list(dict.fromkeys(_alternatives(types, schema, 8)))
    if any(bounds.free for bounds in alternatives):
        return [TextBounds()]
    if len(alternatives) > _MAX_ALTERNATIVES:
        raise ValueError(f"it has more than {_MAX_ALTERNATIVES} alternatives")
    return alternatives


def _alternatives(types: ArgumentTypes, schema: Any, depth: int) -> list[TextBounds]:
    if not isinstance(schema, Mapping):
        return [] if schema is False else [TextBounds()]
    if not depth:
        raise ValueError("references are nested too deep")
    if "enum" in schema or "const" in schema or "string" not in types.kinds(schema):
        return []
    alternatives = [_own(schema)]
    parts = [_alternatives(types, part, depth - 1) for part in schema.get("allOf", ())]
    if "$ref" in schema:
        parts.append(_alternatives(types, types.resolve(schema["$ref"]), depth - 1))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            options = [_alternatives(types, option, depth // 2) for option in schema[key]]
            texts = [option for option in options if option]
            if key == "oneOf" and len(texts) > 1:
                raise ValueError("oneOf of several texts")
            parts.append([bounds for option in texts for bounds in option])
    for part in parts:
        alternatives = [first.both(second) for first in alternatives for second in part]
    return alternatives


def _own(schema: Mapping[str, Any]) -> TextBounds:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if max(least, most or 0) > MAX_LENGTH:
        raise ValueError(f"a length of more than {MAX_LENGTH} characters")
    patterns, empty = [], True
    pattern, form = schema.get("pattern"), schema.get("format")
    if isinstance(pattern, str):
        patterns.append(whole_pattern(pattern))
        empty = _matches_empty(pattern)
    if isinstance(form, str):
        if form not in FORMATS:
            raise ValueError(f"format '{form[:80]}'")
        patterns.append(FORMATS[form])
        empty = False
    return TextBounds(least, most, tuple(patterns), empty)


def whole_pattern(pattern: str) -> str:
    """Return a regular expression of the whole texts in which a JSON schema's pattern is found.

    Raises ValueError for anchors in the middle, which llguidance lacks.
    """
    return "|".join(map(_whole, _top_alternatives(pattern)))


def _whole(alternative: list[str]) -> str:
    before = after = "(?s:.*)"
    if alternative[:1] == ["^"]:
        before, alternative = "", alternative[1:]
    if alternative[-1:] == ["$"]:
        after, alternative = "", alternative[:-1]
    if "^" in alternative or "$" in alternative:
        raise ValueError("a pattern with an anchor in the middle")
    return f"{before}{''.join(alternative)}{after}"


_PART: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
"""An escape, a class of characters, or a character."""


def _top_alternatives(pattern: str) -> list[list[str]]:
    """Split a pattern at each `|` outside of groups, and each alternative into its parts."""
    alternatives: list[list[str]] = [[]]
    depth = 0
    for part in _PART.findall(pattern):
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            alternatives.append([])
        else:
            alternatives[-1].append(_slashed(part))
    return alternatives


def _slashed(part: str) -> str:
    if part.startswith("["):
        part = re.sub(r"(?<!\\)/", r"\\/", part)
    elif part == "/":
        part = r"\/"
    return part.replace("\n", r"\n")


def _matches_empty(pattern: str) -> bool:
    try:
        return re.search(pattern, "") is not None
    except re.error:
        return False
