"""Families that write a list of JSON objects between markers of their own.

<TOOLCALL>[{"name": "look", "arguments": {"at": "x"}}]</TOOLCALL>
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from omlx.text.calls import json_calls
from omlx.text.calls.format import NAME, CallFormat

_CALL: Final = '{"name": "{name}", "arguments": {arguments}}'


def _format(start: str, end: str, templates: tuple[tuple[str, ...], ...]) -> CallFormat:
    return CallFormat(
        start=start,
        end=end,
        templates=templates,
        begins=r"\s*[\[{]",
        head=json_calls.head(),
        closes=json_calls.CLOSES,
        read=json_calls.read,
        written=_CALL,
        together=True,
        section=("[", "]"),
        separator=", ",
    )


NEMOTRON_NANO_2: Final = _format("<TOOLCALL>", "</TOOLCALL>", (("<TOOLCALL>",),))
APRIEL: Final = _format("<tool_calls>", "</tool_calls>", (("<tool_calls>[",),))
GRANITE_3: Final = replace(
    _format("<|tool_call|>", "", (("<|tool_call|>",),)),
    bare=("<tool_call>",),
    begins=r"\s*(?:<tool_call>)?\s*[\[{]",
    head=rf"\s*(?:<tool_call>)?{json_calls.head()}",
)
"""Granite 3 writes the marker as plain text, too."""
FIREFUNCTION: Final = _format("functools", "", (("functools[",),))

APERTUS: Final = CallFormat(
    start="<|tools_prefix|>",
    end="<|tools_suffix|>",
    templates=(("<|tools_prefix|>",),),
    begins=r"\s*\[",
    head=rf'\s*\[?\s*\{{\s*"(?!(?:arguments|parameters)"){NAME}"\s*:\s*(?=\{{)',
    closes=r"\s*\}[\s}\]]*",
    written='{"{name}": {arguments}}',
    together=True,
    section=("[", "]"),
    separator=", ",
)
"""Apertus: the name is the only key, `[{"look": {"at": "x"}}]`."""
