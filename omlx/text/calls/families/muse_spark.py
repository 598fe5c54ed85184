"""Muse Spark.

<atem:function_calls>
<atem:invoke name="look">
<atem:parameter name="at">x</atem:parameter>
</atem:invoke>
</atem:function_calls>
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import NAME, CallFormat, Tags

_ATTRIBUTES: Final = r'(?:\s+\w+="[^"<>]*")*'

FORMAT: Final = CallFormat(
    start="<atem:function_calls>",
    end="</atem:function_calls>",
    begins=r"\s*<atem:invoke",
    bare=("<atem:invoke",),
    head=rf'\s*<atem:invoke{_ATTRIBUTES}\s+name="{NAME}">',
    tags=Tags(
        opens=rf'<atem:parameter{_ATTRIBUTES}\s+name="(?P<name>[^"<>]+)"{_ATTRIBUTES}>',
        closes="</atem:parameter>",
        ends="</atem:invoke>",
    ),
    written='\n<atem:invoke name="{name}">\n{arguments}</atem:invoke>\n',
    parameter='<atem:parameter name="{name}">{value}</atem:parameter>\n',
    together=True,
)
