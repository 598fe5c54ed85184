"""Families that write JSON objects one after another, without a list.

<tool_calls>
{"name": "look", "arguments": {"at": "x"}}
</tool_calls>
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls import json_calls
from omlx.text.calls.format import CallFormat

_CALL: Final = '{"name": "{name}", "arguments": {arguments}}'

MINIMAX_M1: Final = CallFormat(
    start="<tool_calls>",
    end="</tool_calls>",
    templates=(("<tool_calls>", "<beginning_of_sentence>"),),
    begins=r"\s*[\[{]",
    head=json_calls.head(),
    closes=json_calls.CLOSES,
    read=json_calls.read,
    written=f"{_CALL}\n",
    together=True,
    section=("\n", ""),
)
GIGACHAT_3: Final = CallFormat(
    start="<|message_sep|>\n\nfunction call<|role_sep|>",
    end="",
    templates=(("function call", "<|message_sep|>", "<|role_sep|>"),),
    begins=r"\s*[\[{]",
    head=json_calls.head(),
    closes=json_calls.CLOSES,
    read=json_calls.read,
    written=f"\n{_CALL}",
)
GIGACHAT_3_1: Final = CallFormat(
    start="<|function_call|>",
    end="",
    templates=(("<|function_call|>", "<|role_sep|>"),),
    begins=r"\s*[\[{]",
    head=json_calls.head(),
    closes=json_calls.CLOSES,
    read=json_calls.read,
    written=_CALL,
)
