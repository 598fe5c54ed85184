"""JSON schemas for structured output, by name: common ones, and those that are hard to enforce.

Every text, list and number is bounded, so that an untrained model ends.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

WORD: Final[Schema] = {"type": "string", "maxLength": 8}
SMALL: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 99}


def record(
    required: list[str] | None = None, more: Schema | None = None, **properties: Any
) -> Schema:
    """Return an object of these properties only, all of them required by default."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **(more or {}),
    }


def listed(items: Any, least: int = 0, most: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def nested(depth: int) -> Schema:
    return (
        record(level=SMALL, inner=nested(depth - 1)) if depth else record(end={"type": "boolean"})
    )


PLAIN: Final[dict[str, Schema]] = {
    "text": WORD,
    "empty text": {"type": "string", "maxLength": 0},
    "integer": SMALL,
    "negative": {"type": "integer", "minimum": -20, "maximum": -10},
    "one integer": {"type": "integer", "minimum": 7, "maximum": 7},
    "exclusive bounds": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3},
    "multiple of": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 50},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "constant": {"const": "always this"},
    "constant object": {"const": {"a": [1, 2, {"b": None}]}},
    "several types": {"type": ["boolean", "null"]},
    "text or integer": {"type": ["string", "integer"], "maxLength": 4, "minimum": 0, "maximum": 9},
}
ENUMS: Final[dict[str, Schema]] = {
    "enum of words": {"enum": ["red", "green", "blue"]},
    "enum of prefixes": {"enum": ["a", "ab", "abc", "abcd"]},
    "enum of kinds": {"enum": [1, "1", None, True, [1], {"one": 1}]},
    "enum of one": {"enum": ["only"]},
    "enum beyond ascii": {
        "enum": ["größer", "日本語", "🙂", 'a "quote"', "back\\slash", "line\nbreak"]
    },
    "enum of many": {"enum": [f"choice-{i:03}" for i in range(300)]},
    "typed enum": {"type": "string", "enum": ["north", "south"]},
}
OBJECTS: Final[dict[str, Schema]] = {
    "no properties": record(),
    "one property": record(name=WORD),
    "all required": record(name=WORD, age=SMALL, member={"type": "boolean"}),
    "none required": record([], name=WORD, age=SMALL),
    "some required": record(["age"], name=WORD, age=SMALL, note=WORD),
    "long names": record(
        **{f"a_rather_long_name_of_a_property_{i}": {"type": "boolean"} for i in range(6)}
    ),
    "names beyond ascii": record(
        **{"naïve": SMALL, "キー": {"type": "boolean"}, 'say "hi"': {"type": "null"}}
    ),
    "names of prefixes": record(a=SMALL, ab=SMALL, abc=SMALL),
    "nested": nested(2),
    "deeply nested": nested(12),
    "address": record(
        street=WORD,
        city=WORD,
        zip={"type": "string", "pattern": "^[0-9]{5}$"},
        country={"enum": ["DE", "FR", "US"]},
    ),
    "annotated": record(
        value=SMALL,
        more={
            "title": "T",
            "description": "D",
            "$schema": "https://json-schema.org/draft/2020-12/schema",
        },
    ),
    "defaults": record(
        size=SMALL | {"default": 3, "examples": [1, 2]},
        deprecated={"type": "boolean", "default": False},
    ),
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^[a-c]$": SMALL},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    "additional properties": {
        "type": "object",
        "properties": {"kind": {"enum": ["x"]}},
        "required": ["kind"],
        "patternProperties": {"^k[0-9]$": {"type": "boolean"}},
        "additionalProperties": False,
        "maxProperties": 3,
    },
}
ARRAYS: Final[dict[str, Schema]] = {
    "array": listed(SMALL),
    "array of two": listed(WORD, 2, 2),
    "empty array": listed(SMALL, 0, 0),
    "array of arrays": listed(listed(SMALL, 1, 2), 1, 2),
    "array of objects": listed(record(id=SMALL, tag={"enum": ["a", "b"]}), 1, 3),
    "tuple": {
        "type": "array",
        "prefixItems": [SMALL, WORD, {"type": "boolean"}],
        "items": False,
        "minItems": 3,
    },
    "tuple with a rest": {
        "type": "array",
        "prefixItems": [{"const": "head"}],
        "items": SMALL,
        "minItems": 2,
        "maxItems": 4,
    },
    "matrix": listed(listed({"enum": [0, 1]}, 3, 3), 3, 3),
}
UNIONS: Final[dict[str, Schema]] = {
    "any of": {"anyOf": [WORD, SMALL, {"type": "null"}]},
    "any of objects": {"anyOf": [record(cat=WORD), record(dog=SMALL)]},
    "tagged": {
        "anyOf": [
            record(type={"const": "circle"}, radius=SMALL),
            record(type={"const": "square"}, side=SMALL),
            record(type={"const": "point"}),
        ]
    },
    "optional value": record(name=WORD, parent={"anyOf": [WORD, {"type": "null"}]}),
    "union in an array": listed({"anyOf": [{"type": "boolean"}, {"enum": ["both"]}]}, 2, 3),
    "one of kinds": {"oneOf": [{"type": "boolean"}, {"type": "null"}]},
    "all of": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    "all of objects": {
        "allOf": [
            {"type": "object", "properties": {"a": SMALL}, "required": ["a"]},
            {"type": "object", "properties": {"b": SMALL}, "required": ["b"]},
        ],
        "additionalProperties": False,
        "properties": {"a": SMALL, "b": SMALL},
    },
}
PATTERNS: Final[dict[str, Schema]] = {
    "pattern": {"type": "string", "pattern": "^[A-Z][a-z]{2,6}$"},
    "phone": {"type": "string", "pattern": r"^\+[1-9][0-9]{1,3} [0-9]{4,8}$"},
    "version": {"type": "string", "pattern": r"^[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{1,2}$"},
    "colour": record(colour={"type": "string", "pattern": "^#[0-9a-f]{6}$"}),
    "alternatives": {"type": "string", "pattern": "^(yes|no|maybe so)$"},
    "escapes": {"type": "string", "pattern": r'^["\\/]{2,4}$'},
    "lengths": {"type": "string", "minLength": 5, "maxLength": 6},
    "date": {"type": "string", "format": "date"},
    "time of day": {"type": "string", "format": "date-time", "maxLength": 20},
    "uuid": record(id={"type": "string", "format": "uuid"}),
    "address of a machine": {"type": "string", "format": "ipv4"},
}
_TREE: Final[Schema] = record(
    value={"enum": [0, 1]},
    children={"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
)
REFERENCES: Final[dict[str, Schema]] = {
    "reference": record(home={"$ref": "#/$defs/place"}, work={"$ref": "#/$defs/place"})
    | {"$defs": {"place": record(x=SMALL, y=SMALL)}},
    "definitions": record(a={"$ref": "#/definitions/flag"})
    | {"definitions": {"flag": {"type": "boolean"}}},
    "chain of references": {"$ref": "#/$defs/a"}
    | {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": record(v=SMALL)}},
    "list that ends": {
        "$ref": "#/$defs/link",
        "$defs": {
            "link": record(n=SMALL, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/link"}]})
        },
    },
    "tree": {"$ref": "#/$defs/node", "$defs": {"node": _TREE}},
    "two that need each other": {
        "$ref": "#/$defs/even",
        "$defs": {
            "even": record(["n"], n=SMALL, odd={"$ref": "#/$defs/odd"}),
            "odd": record(["word"], word=WORD, even={"$ref": "#/$defs/even"}),
        },
    },
}
LARGE: Final[dict[str, Schema]] = {
    "many properties": record(**{f"p{i}": {"type": "boolean"} for i in range(60)}),
    "many optional": record([], **{f"option_{i}": {"type": "boolean"} for i in range(40)}),
    "many alternatives": {"anyOf": [record(**{f"kind_{i}": {"const": i}}) for i in range(60)]},
    "many definitions": record(**{f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(30)})
    | {"$defs": {f"d{i}": {"enum": [f"v{i}-{j}" for j in range(10)]} for i in range(30)}},
    "a tool's call": record(
        tool={"enum": [f"tool_{i}" for i in range(20)]},
        arguments=record(
            ["path"],
            path={"type": "string", "pattern": "^[a-z]{1,8}(/[a-z]{1,8}){0,2}$"},
            recursive={"type": "boolean"},
            depth=SMALL,
            filters=listed(record(op={"enum": ["eq", "ne", "lt", "gt"]}, value=SMALL), 0, 2),
        ),
        reason={"anyOf": [WORD, {"type": "null"}]},
    ),
    "a report": record(
        title=WORD,
        sections=listed(
            record(
                heading=WORD,
                points=listed(
                    record(text=WORD, weight=SMALL, tags=listed({"enum": ["new", "old"]}, 0, 2)),
                    1,
                    2,
                ),
            ),
            1,
            2,
        ),
        status={"enum": ["draft", "final"]},
        authors=listed(record(["name"], name=WORD, id=SMALL), 1, 2),
    ),
}
SCHEMAS: Final[dict[str, Schema]] = (
    PLAIN | ENUMS | OBJECTS | ARRAYS | UNIONS | PATTERNS | REFERENCES | LARGE
)
