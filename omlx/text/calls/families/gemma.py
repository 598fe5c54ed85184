"""Gemma 4 and FunctionGemma, which write objects without quotes around their keys.

<|tool_call>call:look{at:<|"|>x<|"|>}<tool_call|>
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import CallFormat

GEMMA_4: Final = CallFormat(
    start="<|tool_call>",
    end="<tool_call|>",
    begins=r"\s*call:",
    opening="call:{name}{",
)
FUNCTION_GEMMA: Final = CallFormat(
    start="<start_function_call>",
    end="<end_function_call>",
    begins=r"\s*call:",
    opening="call:{name}{",
)
