"""Seed-OSS.

<seed:tool_call>
<function=look>
<parameter=at>x</parameter>
</function>
</seed:tool_call>
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import NAME, CallFormat, Tags

FORMAT: Final = CallFormat(
    start="<seed:tool_call>",
    end="</seed:tool_call>",
    templates=(("<seed:tool_call>",),),
    begins=r"\s*<function=",
    bare=("<function=",),
    head=rf"\s*<function={NAME}>?\s*(?=<(?:parameter=|/function>|/seed:tool_call>)|\{{)",
    tags=Tags(
        opens=r"<parameter=(?P<name>[^<>\n]+)>",
        closes="</parameter>",
        ends="</function>",
    ),
    written="\n<function={name}>\n{arguments}</function>\n",
    parameter="<parameter={name}>{value}</parameter>\n",
    between="\n",
)
