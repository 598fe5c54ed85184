"""LFM2: `<|tool_call_start|>[look(at="x")]<|tool_call_end|>`."""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import CallFormat

FORMAT: Final = CallFormat(
    start="<|tool_call_start|>",
    end="<|tool_call_end|>",
    begins=r"\s*\[\s*[\w.]+\(",
    opening="[{name}(",
)
