"""Limits of llguidance for JSON schemas: unsupported parts are refused or changed.

`prune_nonterminating` removes references that no generated value could complete: a definition may
require another value of its own kind, so that a model can begin such a value and never end. `relax`
is for requests that do not insist on every keyword. Numbers count as rounded if llguidance would
lose digits: constants are 64-bit floats there, bounds of integers 64-bit integers read from floats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final, TypeAlias

from omlx.text.schema import (
    BOUNDS,
    DEFINITIONS,
    Schema,
    holds,
    listed,
    map_schemas,
    properties_of,
    references,
    resolve,
)

MAX_DEPTH: Final = 500
"""Levels — llguidance compiles by recursion, and its stack overflows at some 2,000: that would end
the process."""
MAX_PATTERNS: Final = 64
"""Patterns per schema — each costs up to 0.1 CPU seconds."""
MAX_REFERENCES: Final = 256
"""Different references — finding the circular ones takes time by the square of their number."""
LARGEST: Final = 2**53
"""Integer — up to here, every integer is a 64-bit float of its own."""
TIMES: Final = ('"date-time"', '"time"')
"""Formats as written in the text of a schema."""
_LARGEST_BOUND: Final = 2**63 - 1
_MAYBE_LARGE: Final = re.compile(r"\d{16}")
_COMMON_TIME: Final = "^[^:t]*:[^:]*:[0-5][^z]*$"
_SHOWN: Final = 80  # characters of a pattern or reference in a description

Terminates: TypeAlias = Callable[[str], bool]
"""Decision whether the target of a reference has a value that terminates."""


def check_depth(schema: Any) -> None:
    """Raise ValueError if objects, lists and references are nested deeper than `MAX_DEPTH`."""
    heights: dict[int, int] = {}

    def parts(node: Mapping[str, Any] | list[Any]) -> Iterator[Any]:
        if isinstance(node, list):
            yield from node
            return
        for name, part in node.items():
            if name == "$ref" and isinstance(part, str):
                yield resolve(schema, part)
            elif name not in DEFINITIONS:
                yield part

    def height(node: Any, depth: int) -> int:
        if not isinstance(node, Mapping | list):
            return 0
        below = heights.get(id(node))
        if below is None:
            heights[id(node)] = below = 0  # ends cycles through this node
            if depth < MAX_DEPTH:
                for part in parts(node):
                    below = max(below, height(part, depth + 1))
            heights[id(node)] = below = below + 1
        if depth + below > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
        return below

    height(schema, 0)


def prune_nonterminating(schema: Any) -> Any:
    """Replace references to definitions that never terminate by `false`, in a copy.

    Alternatives, optional properties and items disappear. Only references by JSON pointers within
    the schema are followed. Returns the schema itself if all terminate. Raises ValueError if no
    value terminates.
    """

    def change(part: dict[str, Any]) -> Any:
        reference = part.get("$ref")
        return False if isinstance(reference, str) and reference in nonterminating else part

    try:
        known = {"#", *references(schema)}
        terminating: set[str] = set()
        while len(more := _iterate(schema, known, terminating)) > len(terminating):
            terminating = more  # up to the least fixed point
        if "#" not in terminating:
            raise ValueError("its values would never end")
        nonterminating = known - terminating
        return map_schemas(schema, change) if nonterminating else schema
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _iterate(root: Any, references: set[str], known: set[str]) -> set[str]:
    """Evaluate each reference once; beyond `known`, circular references do not terminate."""
    terminating, evaluated = set(known), set(known)

    def terminates(reference: str) -> bool:
        if reference not in evaluated:
            evaluated.add(reference)
            if _has_value(resolve(root, reference), terminates):
                terminating.add(reference)
        return reference in terminating

    return {reference for reference in sorted(references) if terminates(reference)}


def _has_value(schema: Any, terminates: Terminates) -> bool:
    """Return whether a value terminates, by the keywords that lead to other schemas."""
    having = {"object": _has_object, "array": _has_array}

    def any_kind(part: Schema) -> bool:
        if "type" not in part or "const" in part or "enum" in part:
            return True
        return any(
            not isinstance(kind, str) or kind not in having or having[kind](part, terminates)
            for kind in listed(part["type"]) or [part["type"]]
        )

    return holds(schema, any_kind, terminates)


def _has_object(schema: Schema, terminates: Terminates) -> bool:
    named = properties_of(schema)
    other = "patternProperties" in schema or schema.get("additionalProperties", True)
    required = [name for name in listed(schema.get("required")) if isinstance(name, str)]
    if not required and schema.get("minProperties"):
        return any(_has_value(value, terminates) for value in (*named.values(), other))
    return all(_has_value(named.get(name, other), terminates) for name in required)


def _has_array(schema: Schema, terminates: Terminates) -> bool:
    items, length = schema.get("items", True), schema.get("minItems", 0)
    first = listed(schema.get("prefixItems")) or listed(items)
    rest = schema.get("additionalItems", True) if isinstance(items, list) else items
    if not isinstance(length, int):
        return True
    return all(_has_value(item, terminates) for item in [*first, rest][:length])


def without_leap_seconds(schema: Any) -> Any:
    """Add a pattern for each time to the schema.

    RFC 3339 allows leap seconds and lower-case letters, Pydantic and JavaScript refuse them. Raises
    ValueError for a schema nested too deep.
    """

    def change(part: dict[str, Any]) -> dict[str, Any]:
        if part.get("format") not in ("date-time", "time"):
            return part
        if "pattern" not in part:
            return part | {"pattern": _COMMON_TIME}
        also = part.get("allOf", [])
        if not isinstance(also, list):
            return part
        return part | {"allOf": [*also, {"pattern": _COMMON_TIME}]}

    try:
        return map_schemas(schema, change)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def check_integers(text: str) -> None:
    """Raise ValueError, naming the number, if a constant or bound would be rounded."""
    if _MAYBE_LARGE.search(text) is None:
        return

    def check(part: dict[str, Any]) -> dict[str, Any]:
        for numbers in _rounded(part).values():
            raise ValueError(f"{numbers[0]} would be rounded")
        return part

    map_schemas(json.loads(text), check)


def _rounded(part: Schema) -> dict[str, list[int | float]]:
    lost: dict[str, list[int | float]] = {
        key: [number for number in _integers(part.get(key)) if abs(number) > LARGEST]
        for key in ("const", "enum")
    }
    for key in BOUNDS:
        bound = part.get(key)
        if isinstance(bound, int | float) and not _is_exact(part, key, bound):
            lost[key] = [bound]
    return {key: numbers for key, numbers in lost.items() if numbers}


def _is_exact(part: Schema, key: str, bound: float) -> bool:
    """Whether the compiler enforces the bound exactly; never beyond 64 bits."""
    if part.get("type") == "integer" and key == "maximum" and bound >= _LARGEST_BOUND:
        return True
    if key.startswith("exclusive") and isinstance(bound, int):
        return abs(bound) < LARGEST  # the next integer is the bound
    return abs(bound) < _LARGEST_BOUND and bound == float(bound)


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _integers(part)
    elif isinstance(value, int):
        yield value


def relax(schema: Any, pattern_error: Callable[[str], str | None]) -> tuple[Any, list[str]]:
    """Return the schema without unenforceable parts, and a description of each removed part.

    Removed are patterns with look-ahead, references to other documents, keywords beside a circular
    reference, and numbers that would be rounded. `pattern_error` returns the error of a pattern, if
    any. Raises ValueError for too many patterns or references, and for a schema nested too deep.
    """
    removed: list[str] = []
    count = 0

    @cache
    def tried(pattern: str) -> str | None:
        nonlocal count
        count += 1
        if count > MAX_PATTERNS:
            raise ValueError(f"it has more than {MAX_PATTERNS} patterns")
        return pattern_error(pattern)

    def fails(pattern: str) -> bool:
        if (error := tried(pattern)) is not None:
            removed.append(f"pattern '{pattern[:_SHOWN]}' ({error})")
        return error is not None

    def change(part: dict[str, Any]) -> dict[str, Any]:
        if isinstance(part.get("pattern"), str) and fails(part["pattern"]):
            del part["pattern"]
        named = part.get("patternProperties")
        if isinstance(named, dict):
            kept = {name: value for name, value in named.items() if not fails(name)}
            part["patternProperties"] = kept
        for key, numbers in _rounded(part).items():
            del part[key]
            removed.extend(f"{key} {str(each)[:_SHOWN]} (would be rounded)" for each in numbers)
        reference = part.get("$ref")
        if not isinstance(reference, str):
            return part
        if not reference.startswith("#"):
            removed.append(f"$ref '{reference[:_SHOWN]}'")
            del part["$ref"]
        elif reference in circular and len(part) > 1 and "$defs" not in part:
            removed.append(f"keywords beside $ref '{reference[:_SHOWN]}'")
            return {"$ref": reference}
        return part

    try:
        circular = _circular(schema)
        relaxed = map_schemas(schema, change)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    return relaxed, list(dict.fromkeys(removed))


def _circular(schema: Any) -> set[str]:
    names = set(references(schema))
    if len(names) > MAX_REFERENCES:
        raise ValueError(f"it has more than {MAX_REFERENCES} references")
    steps = {name: set(references(resolve(schema, name))) for name in names}
    circular = set()
    for name in steps:
        reached, waiting = set[str](), [name]
        while waiting:
            new = steps.get(waiting.pop(), set()) - reached
            reached |= new
            waiting += new
        if name in reached:
            circular.add(name)
    return circular
