"""Qwen 2.5 and 3, Hermes, Granite 4 and many others.

<tool_call>
{"name": "look", "arguments": {"at": "x"}}
</tool_call>
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls import json_calls
from omlx.text.calls.format import CallFormat

FORMAT: Final = CallFormat(
    start="<tool_call>",
    end="</tool_call>",
    templates=(("<tool_call>", "</tool_call>", "arguments"),),
    begins=r"\s*[\[{]",
    head=json_calls.head(),
    closes=json_calls.CLOSES,
    read=json_calls.read,
    written='\n{"name": "{name}", "arguments": {arguments}}\n',
    between="\n",
)
