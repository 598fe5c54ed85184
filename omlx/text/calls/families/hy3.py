"""Hy3, whose markers all end in the name of its variant.

<tool_calls:opensource>
<tool_call:opensource>look<tool_sep:opensource>
<arg_key:opensource>at</arg_key:opensource>
<arg_value:opensource>x</arg_value:opensource>
</tool_call:opensource>
</tool_calls:opensource>
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import NAME, CallFormat, Tags


def _tag(name: str) -> str:
    return f"<{name}:opensource>"


FORMAT: Final = CallFormat(
    start=_tag("tool_calls"),
    end=_tag("/tool_calls"),
    templates=(("<tool_calls{}>", "':opensource'"),),
    begins=rf"\s*(?:{_tag('tool_call')}|[\w.:/-]+{_tag('tool_sep')})",
    bare=(_tag("tool_call"),),
    head=rf"\s*(?:{_tag('tool_call')})?\s*{NAME}{_tag('tool_sep')}",
    tags=Tags(
        opens=rf"{_tag('arg_key')}\s*(?P<name>[^<>]+?)\s*{_tag('/arg_key')}\s*{_tag('arg_value')}",
        closes=_tag("/arg_value"),
        ends=_tag("/tool_call"),
    ),
    written=f"{_tag('tool_call')}{{name}}{_tag('tool_sep')}\n{{arguments}}{_tag('/tool_call')}\n",
    parameter=f"{_tag('arg_key')}{{name}}{_tag('/arg_key')}\n"
    f"{_tag('arg_value')}{{value}}{_tag('/arg_value')}\n",
    together=True,
    section=("\n", ""),
)
