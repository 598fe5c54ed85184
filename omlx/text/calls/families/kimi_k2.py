"""Kimi K2: JSON arguments after a name with a number, in a section of calls.

<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>
{"at": "x"}<|tool_call_end|><|tool_calls_section_end|>
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import CallFormat

FORMAT: Final = CallFormat(
    start="<|tool_calls_section_begin|>",
    end="<|tool_calls_section_end|>",
    templates=(("<|tool_calls_section_begin|>",),),
    begins=r"\s*(?:<\|tool_call_begin\|>|(?:functions\.)?[\w.-]+:\d)",
    bare=("<|tool_call_begin|>",),
    head=r"\s*(?:<\|tool_call_begin\|>)?\s*(?:(?P<id>(?:functions\.)?(?P<name>[\w.-]+):\d+)|"
    r"(?:functions\.)?(?P<name>[\w.-]+))\s*"
    r"<\|tool_call_argument_begin\|>\s*(?=\{)",
    closes=r"\s*<\|tool_call_end\|>",
    written="<|tool_call_begin|>functions.{name}:{number}"
    "<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
    together=True,
)
