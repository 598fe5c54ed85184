"""Command-R, Command R7B and later models of Cohere: a list of actions.

    <|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "look", "parameters": {"at": "x"}}
    ]<|END_ACTION|>

Command-R and R+ write it as a block of code after the word "Action:". The ids begin at 0 in every
answer, so they are not used.
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls import json_calls
from omlx.text.calls.format import CallFormat

_ID: Final = r'(?:"tool_call_id"\s*:\s*"[^"]*"\s*,\s*)?'

COMMAND_R7B: Final = CallFormat(
    start="<|START_ACTION|>",
    end="<|END_ACTION|>",
    templates=(("<|START_ACTION|>",),),
    begins=r"\s*[\[{]",
    head=json_calls.head("tool_name|name", members=_ID),
    closes=json_calls.CLOSES,
    read=json_calls.read,
    written='{"tool_call_id": "{number}", "tool_name": "{name}", "parameters": {arguments}}',
    together=True,
    section=("[\n    ", "\n]"),
    separator=",\n    ",
)
COMMAND_R: Final = CallFormat(
    start="Action:",
    end="",
    templates=(("Action:\\n```json", "<|CHATBOT_TOKEN|>"),),
    begins=r"\s*```json\s*\[",
    head=json_calls.head("tool_name|name"),
    closes=json_calls.CLOSES,
    read=json_calls.read,
    written='{\n        "tool_name": "{name}",\n        "parameters": {arguments}\n    }',
    together=True,
    section=("\n```json\n[\n    ", "\n]```"),
    separator=",\n    ",
)
