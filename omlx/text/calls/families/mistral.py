"""Mistral and Magistral: `[TOOL_CALLS]look[ARGS]{"at": "x"}`, perhaps with an id after the name.

Older models write a list of objects after the marker.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from omlx.text.calls import json_calls
from omlx.text.calls.format import NAME, CallFormat

_NAMED: Final = rf"\s*{NAME}\s*(?:\[CALL_ID\]\s*(?P<id>\w+)\s*)?\[ARGS\]\s*(?=\{{)"
_ALONE: Final = rf"\s*{NAME}\s*(?=\{{)"
"""A call whose `[ARGS]` was forgotten: behind the marker only."""

FORMAT: Final = CallFormat(
    start="[TOOL_CALLS]",
    end="",
    begins=r"\s*(?:\[\s*\{|[\w.:/-]+\s*(?:\[(?:CALL_ID|ARGS)\]|\{))",
    head=rf"(?:{_NAMED}|{_ALONE}|{json_calls.head()})",
    follows=rf"(?:{_NAMED}|{json_calls.head()})",
    closes=rf"(?:{json_calls.CLOSES})?",
    read=json_calls.read,
    written="{name}[ARGS]{arguments}",
    short_ids=True,
)
NUMBERED: Final = replace(FORMAT, written="{name}[CALL_ID]{id}[ARGS]{arguments}")
LISTING: Final = replace(
    FORMAT,
    written='{"name": "{name}", "arguments": {arguments}, "id": "{id}"}',
    together=True,
    section=("[", "]"),
    separator=", ",
)
