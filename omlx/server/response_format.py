"""The form that an answer is asked to have: `response_format`, `text.format`, `output_config.format`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omlx.errors import BadRequest

TEXT = "text"


def check(wanted: Mapping[str, Any] | None, param: str) -> None:
    """Raises BadRequest for anything but free text. This is where a grammar for the engine would be made."""
    kind = (wanted or {}).get("type", TEXT)
    if kind != TEXT:
        raise BadRequest("request.format", param=param, field=param, format=str(kind))
