"""Solar Open: JSON arguments after an id and a name, in a message of calls.

<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>look<|tool_call:args|>{"at": "x"}
<|tool_call:end|><|calls|>
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import NAME, CallFormat

FORMAT: Final = CallFormat(
    start="<|tool_calls|>",
    end="<|calls|>",
    templates=(("<|tool_call:begin|>", "<|tool_call:args|>"),),
    begins=r"\s*<\|tool_call:begin\|>",
    bare=("<|tool_call:begin|>",),
    head=rf"\s*<\|tool_call:begin\|>(?:(?P<id>[\w-]*)<\|tool_call:name\|>)?\s*{NAME}\s*"
    r"<\|tool_call:args\|>\s*(?=\{)",
    closes=r"\s*(?:<\|tool_call:end\|>)?",
    written="<|tool_call:begin|>{id}<|tool_call:name|>{name}"
    "<|tool_call:args|>{arguments}<|tool_call:end|>",
    id_pattern="[a-z0-9]{10}",
    together=True,
)
