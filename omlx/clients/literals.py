"""Values as TOML writes them on one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def quoted(text: str) -> str:
    """Return a string literal of Python and of TOML, which both read JSON's escapes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml(value: Any) -> str:
    """Return a text, a number or a table as TOML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {toml(part)}" for name, part in value.items()) + "}"
    return quoted(value) if isinstance(value, str) else str(value)
