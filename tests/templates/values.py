"""Argument values that a call must bring through a chat template and back, each with its schema."""

from __future__ import annotations

from typing import Any, Final

_TEXT: Final = {"type": "string"}
_TEXTS: Final = (
    *("x", "", " ", "\n", "a b", " a ", "\ta", "a\n", "\na", "a\n\nb", "    return 1\n"),
    *("5", "5.0", "-1", "true", "null", "None", "[]", "{}", '{"a": 1}', "[1, 2]", '"x"', "'x'"),
    *(
        'say "x"',
        "it's",
        "a\\b",
        "C:\\new",
        "a/b",
        "a & b",
        "<b>x</b>",
        "a < b > c",
        "&lt;",
        "%s {}",
    ),
    *("größer", "日本語", "🏳️‍🌈", "e\u0301", "a;b", "- a\n- b", "# x", "```\ncode\n```", "a, b=c"),
)
_OBJECT: Final = {"type": "object"}
_LIST: Final = {"type": "array"}

VALUES: Final[tuple[tuple[dict[str, Any], Any], ...]] = (
    *((_TEXT, text) for text in _TEXTS),
    ({"type": "integer"}, 5),
    ({"type": "integer"}, -12),
    ({"type": "integer"}, 9007199254740993),
    ({"type": "number"}, 1.5),
    ({"type": "number"}, -0.25),
    ({"type": "boolean"}, True),
    ({"type": "boolean"}, False),
    ({"type": ["string", "null"]}, "123"),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
    ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, True),
    ({"enum": [5, 6]}, 5),
    ({"enum": ["red", "blue"]}, "red"),
    ({"$ref": "#/$defs/count"}, 7),
    ({**_LIST, "items": {"type": "integer"}}, [1, 2, 3]),
    ({**_LIST, "items": _TEXT}, ["a", "5", "b c"]),
    (_LIST, []),
    (_LIST, [[1], [2, 3]]),
    (_OBJECT, {}),
    ({**_OBJECT, "properties": {"a": {"type": "integer"}}}, {"a": 1}),
    ({**_OBJECT, "properties": {"a": _TEXT}}, {"a": "b < c"}),
    (_OBJECT, {"Content-Type": "text/html"}),
)
DEFINITIONS: Final = {"count": {"type": "integer"}}
"""What the schemas refer to, as `$defs` of the function."""
