"""Apply a function to every schema within a JSON schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

_DATA: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose content is data, not schemas."""
_BY_NAME: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})


def map_schemas(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Return a copy in which each schema is what `change` returns for it, the inner ones first.

    `change` may modify the mapping that it gets. Raises RecursionError for a schema that is nested
    too deep.
    """
    if isinstance(schema, list):
        return [map_schemas(part, change) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    mapped = {}
    for key, value in schema.items():
        if key in _BY_NAME and isinstance(value, Mapping):
            mapped[key] = {name: map_schemas(part, change) for name, part in value.items()}
        elif key in _DATA:
            mapped[key] = value
        else:
            mapped[key] = map_schemas(value, change)
    return change(mapped)
