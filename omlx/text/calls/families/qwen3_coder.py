"""Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5.

    <tool_call>
    <function=look>
    <parameter=at>
    x
    </parameter>
    </function>
    </tool_call>

Models of this family forget the first line, or write several functions between one pair of
markers.
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import NAME, CallFormat, Tags

FORMAT: Final = CallFormat(
    start="<tool_call>",
    end="</tool_call>",
    templates=(("<tool_call>\\n<function=",), ("<tool_call>\n<function=",)),
    begins=r"\s*<function=",
    bare=("<function=",),
    head=rf"\s*<function={NAME}>?\s*(?=<(?:parameter=|/function>|/tool_call>)|\{{)",
    tags=Tags(
        opens=r"<parameter=(?P<name>[^<>\n]+)(?:>|(?=\n))",
        closes="</parameter>",
        ends="</function>",
        padding="\n",
    ),
    written="\n<function={name}>\n{arguments}</function>\n",
    parameter="<parameter={name}>\n{value}\n</parameter>\n",
    between="\n",
)
