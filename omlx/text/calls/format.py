"""Formats of tool calls, as each family states its own.

    <start> <head> arguments <closes> <head> arguments <closes> <end>

`start` opens one call or a section of several. `head` is the text up to the arguments, with the
function's name. The arguments are a JSON object, which is streamed, or stand between tags (`Tags`).
A call in another form is parsed as a whole by `read`. Patterns are of the `regex` module, which can
match partially.

Arguments in other forms have an `ArgumentSyntax`: their grammar by the JSON schema of a function,
and their text. Members come in the order of the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from omlx.text.calls.values import ArgumentTypes
from omlx.text.schema import BOUNDS, map_schemas, references

Tools: TypeAlias = Sequence[Mapping[str, Any]]
"""Functions as chat templates take them: `{"type": "function", "function": {"name": …}}`."""
Read: TypeAlias = Callable[[str, Tools], Any]
"""Parser of the text between two markers, as mlx-lm's are: returns a call, or a list of calls, each
with "name", "arguments" and perhaps "id". Raises ValueError, or one of `parser.PARSE_ERRORS`."""


class Incomplete(ValueError):
    """A text ends inside of a call: a marker in it belongs to a value."""


NAME: Final = r"(?P<name>[\w.:/-]+)"
"""Pattern of a function's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """Arguments between tags, each value as plain text: `<parameter=city>\\nOslo\\n</parameter>`.

    Values are typed by the function's schema.
    """

    opens: str
    """Pattern of what precedes a value, with its `name`; a group `text` matches where the value is
    a string whatever the schema, a group `json` where it is not.
    """
    closes: str  # text that follows a value
    ends: str = ""
    """Pattern at the end of a call; empty where the closing marker of `CallFormat` ends it."""
    padding: str = ""  # text around a value that is no part of it
    cdata: bool = False  # a value may stand in `<![CDATA[…]]>`


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Messages of an answer, each behind a header, for a grammar that enforces the last one."""

    calls: tuple[str, ...]
    """Texts of a call with its header, with places for {name} and {arguments}."""
    thought: str  # header of reasoning
    preamble: str  # header of a text that precedes a call
    answer: str  # header of the answer, where no function is called
    between: str  # text between two messages
    markers: str  # pattern of what no text holds: it would be read as markup


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """Format of the calls of one family."""

    start: str  # marker before a call, or before a section of calls
    end: str  # marker after it; empty if there is none
    templates: tuple[tuple[str, ...], ...] = ()
    """Texts in a chat template by which the family is recognised: all of one group."""
    begins: str = ""
    """Pattern after the marker of every call; a marker followed by anything else is prose."""
    bare: tuple[str, ...] = ()
    """Texts that begin a call whose opening marker was forgotten. They are part of the call, which
    must be of a function of the request.
    """
    leading: str = ""
    """Pattern of what begins a call at the very start of an answer, without a marker."""
    head: str | None = None
    """Pattern of a call up to its arguments, with a group `name` and perhaps `id`."""
    follows: str | None = None
    """The same for a further call between the same markers, if `head` would match a text there."""
    tags: Tags | None = None  # form of the arguments that follow the head; None: a JSON object
    closes: str = ""  # pattern after the arguments, before the closing marker or the next head
    read: Read | None = None
    """Parser of calls that do not begin with `head`; None: mlx-lm's for this model, if any."""
    json: bool = True
    """A text for `read` that begins with a bracket is JSON, and ends where that does."""
    before: str = ""  # text before the marker of a call that is written
    written: str | None = None
    """Text of a call between the markers, for a grammar that enforces the schema of its function,
    with places for {name}, {arguments}, {number} and {id}.
    """
    parameter: str | None = None
    """Text of one argument in `written`, with {name} and {value}, where the arguments are no JSON
    object. {text} is "true" for a string, else "false"; {type} is the value's JSON type,
    "number" for integers too.
    """
    syntax: ArgumentSyntax | None = None
    """Syntax of {arguments} of `written`, if in neither of these forms."""
    messages: Messages | None = None
    """Form of an answer of several messages, where calls are messages of their own."""
    marked: bool = True  # a forced call is written behind the opening marker
    between: str = ""  # optional text between two pairs of markers
    together: bool = False  # several calls share one pair of markers
    section: tuple[str, str] = ("", "")  # texts around all calls of one pair of markers
    separator: str = ""  # text between two calls of one pair of markers
    id_pattern: str = "[a-zA-Z0-9]{9}"  # pattern of {id} in `written`
    short_ids: bool = False
    """Templates of this family refuse ids other than nine letters and digits."""


Literal: TypeAlias = Callable[[str], str]
"""Returns a text in the grammar's form."""

SHARED: Final = ("$defs", "definitions", "x-guidance")
"""Keys of a schema that the schema of one argument needs too."""
_DEFINITIONS: Final = ("#/$defs/", "#/definitions/")
NUMBER_BOUNDS: Final = (*BOUNDS, "multipleOf")


@dataclass(frozen=True, slots=True)
class Notation:
    """Facts of the whole grammar that a grammar of arguments needs.

    `added` are the tokens that the tokenizer does not compose of smaller ones; `literal` returns a
    text in the grammar's form; `unheld` takes a description of what is not enforced of a schema,
    and raises ValueError where all of it must be.
    """

    added: Collection[str]
    literal: Literal
    unheld: Callable[[str], None]


class ArgumentSyntax(Protocol):
    """Syntax of the arguments of a call."""

    @property
    def ender(self) -> str:
        """Text that ends a free text, for the rule `text`; empty if the syntax has none."""

    def rules(
        self, schema: Mapping[str, Any] | None, rule: str, notation: Notation
    ) -> Iterator[str]:
        """Yield the rule for the arguments of a schema, or for any arguments (None), and those that
        it needs. Raises ValueError for a schema that cannot be written.
        """

    def text(self, arguments: Mapping[str, Any]) -> str:
        """Return the text of given arguments."""


def embedded(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a schema as a schema of its own, with what its references lead to."""
    shared = {key: root[key] for key in SHARED if key in root}
    outside = [name for name in references([schema, shared]) if not name.startswith(_DEFINITIONS)]
    if not outside:
        return {**schema, **shared}

    def moved(part: dict[str, Any]) -> dict[str, Any]:
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            part["$ref"] = f"#/$defs/root{reference[1:]}"
        return part

    guidance = {key: root[key] for key in ("x-guidance",) if key in root}
    whole = {key: value for key, value in root.items() if key not in guidance}
    part = {key: value for key, value in schema.items() if key not in SHARED}
    defined = {"$defs": {"root": map_schemas(whole, moved)}}
    return {**map_schemas(part, moved), **defined, **guidance}


def members(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Yield name, schema and whether it is required of each member of an object."""
    required = schema.get("required", ())
    properties = {**schema.get("properties", {})}
    for name in required:
        properties.setdefault(name, True)
    for name, value in properties.items():
        if value is not False or name in required:
            yield name, value, name in required


def is_open(schema: Mapping[str, Any]) -> bool:
    return not any(members(schema)) and schema.get("additionalProperties") is not False


def unheld_of_object(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of an object's schema is not enforced where its members are written one by one."""
    count = len(list(members(schema)))
    if "patternProperties" in schema and (count or is_open(schema)):
        yield "patternProperties"
    if schema.get("minProperties", 0) > len(schema.get("required", ())):
        yield "minProperties"
    if "maxProperties" in schema and (schema["maxProperties"] < count or is_open(schema)):
        yield "maxProperties"


def alternatives_of(schema: Mapping[str, Any], notation: Notation) -> list[Mapping[str, Any]]:
    try:
        return object_alternatives(embedded(schema, schema))
    except ValueError as error:
        notation.unheld(str(error))
        return [schema]


def in_alternatives(
    alternatives: Sequence[Mapping[str, Any]],
    rule: str,
    rules: Callable[[Mapping[str, Any], str], Iterator[str]],
) -> Iterator[str]:
    """Yield the rule for one of several objects, and those that it needs; `rules` yields the rule
    for an object, and its needs.
    """
    if len(alternatives) == 1:
        yield from rules(alternatives[0], rule)
        return
    yield f"{rule}: " + " | ".join(f"{rule}_way{i}" for i in range(len(alternatives)))
    for i, alternative in enumerate(alternatives):
        yield from rules(alternative, f"{rule}_way{i}")


def in_order(parts: Sequence[tuple[str, bool]], separator: str, rule: str) -> Iterator[str]:
    """Yield the rule for a list of parts, and those that it needs; of each part it is given whether
    it must be there.
    """
    count = len(parts)
    yield f'{rule}_first{count}: ""'
    yield f'{rule}_rest{count}: ""'
    for number in reversed(range(count)):
        part, needed = parts[number]
        first = f"{part} {rule}_rest{number + 1}"
        rest = f"{separator} {first}"
        if not needed:
            first += f" | {rule}_first{number + 1}"
            rest += f" | {rule}_rest{number + 1}"
        yield f"{rule}_first{number}: {first}"
        yield f"{rule}_rest{number}: {rest}"
    yield f"{rule}: {rule}_first0"


def repeated(item: str, separator: str, schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if most == 0:
        return '""'
    more = ""
    if most != 1:
        end = "" if most is None else most - 1
        more = f" ({separator} {item}){{{max(least - 1, 0)},{end}}}"
    optional = "" if least else "?"
    return f"({item}{more}){optional}"


MAX_ALTERNATIVES: Final = 32
_MAX_DEPTH: Final = 16
_COMBINED: Final = ("$ref", "allOf", "anyOf", "oneOf")


def object_alternatives(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return schemas of objects, one of which the arguments must follow.

    Raises ValueError for too many alternatives, circular references, and if nothing is allowed.
    """
    if not any(key in schema for key in _COMBINED):
        return [schema]
    found = list(_alternatives(ArgumentTypes(schema), schema, 0))
    if not found:
        raise ValueError("nothing has this form")
    return found


def _alternatives(types: ArgumentTypes, schema: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    if not isinstance(schema, Mapping):
        if schema is not False:
            yield {}
        return
    if depth > _MAX_DEPTH:
        raise ValueError("a circular reference")
    parts: list[list[Mapping[str, Any]]]
    parts = [[{key: schema[key] for key in schema if key not in _COMBINED}]]
    if "$ref" in schema:
        parts.append(list(_alternatives(types, types.resolve(schema["$ref"]), depth + 1)))
    parts += [list(_alternatives(types, part, depth + 1)) for part in schema.get("allOf", ())]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            options = [option for option in schema[key] if "object" in types.kinds(option)]
            parts.append([])
            for option in options:
                parts[-1] += _alternatives(types, option, depth + 1)
    merged: list[Mapping[str, Any]] = [{}]
    for part in parts:
        pairs = (_both(first, option) for first in merged for option in part)
        merged = [both for both in pairs if both is not None]
        if len(merged) > MAX_ALTERNATIVES:
            raise ValueError(f"it has more than {MAX_ALTERNATIVES} alternatives")
    yield from merged


def _both(first: Mapping[str, Any], second: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a schema of the objects that both allow; None if there are none."""
    properties = dict(first.get("properties", {}))
    for name, value in second.get("properties", {}).items():
        if name in properties and properties[name] != value:
            value = {"allOf": [properties[name], value]}
        properties[name] = value
    required = list(dict.fromkeys([*first.get("required", ()), *second.get("required", ())]))
    for part in (first, second):
        if part.get("additionalProperties") is False:
            properties = {name: properties[name] for name in part.get("properties", {})}
            if not set(required) <= set(properties):
                return None
    both = {**first, **second, "properties": properties, "required": required}
    if first.get("additionalProperties") is False:
        both["additionalProperties"] = False
    return both
