"""gpt-oss: a message whose header names a function as its recipient, with JSON as its text.

<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": "x"}<|call|>
"""

from __future__ import annotations

from typing import Final

from omlx.text import harmony
from omlx.text.calls.format import NAME, CallFormat

FORMAT: Final = CallFormat(
    start=harmony.CALL,
    end="",
    begins=r"[\w.:/-]+(?:\s+\w+)?\s*<\|",
    head=rf"{NAME}[^<{{]*(?:<\|(?:channel|constrain)\|>[^<{{]*)*<\|message\|>\s*(?=\{{)",
    opening="{name}<|channel|>commentary json<|message|>",
    before=" ",
)
