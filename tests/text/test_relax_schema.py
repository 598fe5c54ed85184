from __future__ import annotations

import copy
from typing import Any

import pytest

from omlx.text.schema import MAX_PATTERNS, relax

AHEAD = "^(?!a)"


def error(pattern: str) -> str | None:
    return "look-ahead" if "(?!" in pattern else None


@pytest.mark.parametrize(
    ("schema", "relaxed", "removed"),
    [
        (
            {"type": "string", "pattern": AHEAD, "minLength": 2},
            {"type": "string", "minLength": 2},
            [f"pattern '{AHEAD}' (look-ahead)"],
        ),
        ({"pattern": "^a"}, {"pattern": "^a"}, []),
        (
            {"patternProperties": {AHEAD: {"type": "string"}, "^a": {"pattern": AHEAD}}},
            {"patternProperties": {"^a": {}}},
            [f"pattern '{AHEAD}' (look-ahead)"],
        ),
        # Names of properties and data that look like keywords stay.
        (
            {"properties": {"pattern": {"const": {"pattern": AHEAD}}}},
            {"properties": {"pattern": {"const": {"pattern": AHEAD}}}},
            [],
        ),
        (
            {"items": {"$ref": "https://example.org/a.json", "minLength": 1}},
            {"items": {"minLength": 1}},
            ["$ref 'https://example.org/a.json'"],
        ),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": {"items": {"$ref": "#/$defs/A", "title": "x"}}}},
            {"$ref": "#/$defs/A", "$defs": {"A": {"items": {"$ref": "#/$defs/A"}}}},
            ["keywords beside $ref '#/$defs/A'"],
        ),
        (
            {"items": {"$ref": "#/$defs/A", "minLength": 1}, "$defs": {"A": {"type": "string"}}},
            {"items": {"$ref": "#/$defs/A", "minLength": 1}, "$defs": {"A": {"type": "string"}}},
            [],
        ),
        (
            {"items": {"enum": [1, -(2**53) - 1]}, "const": {"a": [2**53]}},
            {"items": {}, "const": {"a": [2**53]}},
            ["enum -9007199254740993 (would be rounded)"],
        ),
        (
            {"minimum": 2**53 + 1, "maximum": 2**53 + 4, "exclusiveMaximum": 2**53 + 6},
            {"maximum": 2**53 + 4},
            [
                "minimum 9007199254740993 (would be rounded)",
                "exclusiveMaximum 9007199254740998 (would be rounded)",
            ],
        ),
        (
            {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
            {"type": "integer", "maximum": 2**63 - 1},
            ["minimum -9223372036854775808 (would be rounded)"],
        ),
        (
            {"type": "number", "minimum": -3.4e38, "maximum": 2**63 - 1},
            {"type": "number"},
            [
                "minimum -3.4e+38 (would be rounded)",
                "maximum 9223372036854775807 (would be rounded)",
            ],
        ),
        ({"minimum": "1" * 20, "maximum": True}, {"minimum": "1" * 20, "maximum": True}, []),
        (True, True, []),
    ],
)
def test_what_cannot_be_enforced_is_removed_and_named(
    schema: Any, relaxed: Any, removed: list[str]
) -> None:
    given = copy.deepcopy(schema)
    assert relax(schema, error) == (relaxed, removed)
    assert schema == given


def test_patterns_are_tried_once_each_and_only_so_many() -> None:
    tried: list[str] = []

    def count(pattern: str) -> None:
        tried.append(pattern)

    many = {"anyOf": [{"pattern": f"^{number}"} for number in range(MAX_PATTERNS)] * 2}
    assert relax(many, count) == (many, [])
    assert len(tried) == MAX_PATTERNS
    with pytest.raises(ValueError, match="patterns"):
        relax({"anyOf": [*many["anyOf"], {"pattern": "one more"}]}, count)
