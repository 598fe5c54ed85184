"""Times of JSON schemas without leap seconds and lower-case letters: RFC 3339 allows both, Pydantic
and JavaScript refuse them."""

from __future__ import annotations

from typing import Any, Final

from omlx.text.map_schemas import map_schemas

TIMES: Final = ('"date-time"', '"time"')
"""The formats as they stand in the text of a schema."""
_FORMATS: Final = ("date-time", "time")
_COMMON: Final = "^[^:t]*:[^:]*:[0-5][^z]*$"


def without_leap_seconds(schema: Any) -> Any:
    """Return the schema with a pattern for each time. Raises ValueError for one nested too deep."""

    def change(part: dict[str, Any]) -> dict[str, Any]:
        if part.get("format") not in _FORMATS:
            return part
        if "pattern" not in part:
            return part | {"pattern": _COMMON}
        also = part.get("allOf", [])
        if not isinstance(also, list):
            return part
        return part | {"allOf": [*also, {"pattern": _COMMON}]}

    try:
        return map_schemas(schema, change)
    except RecursionError as error:
        raise ValueError(str(error)) from error
