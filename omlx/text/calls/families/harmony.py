"""gpt-oss: a message whose header names a function as its recipient, with JSON as its text.

<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": "x"}<|call|>

`HarmonySplitter` brings every header of a call into one form: `to=functions.look<|message|>`.
"""

from __future__ import annotations

from typing import Final

from omlx.text import harmony
from omlx.text.calls.format import NAME, CallFormat, Messages

_NAMED: Final = f"{harmony.CALL}{{name}}"

FORMAT: Final = CallFormat(
    start=harmony.CALL,
    end=harmony.CALL_END,
    begins=r"[\w.:/-]+<\|message\|>",
    head=rf"{NAME}<\|message\|>\s*(?=\{{)",
    closes=r"(?s:(?:(?!<\|call\|>).)*)",
    before=" ",
    written="{name}<|channel|>commentary json<|message|>{arguments}",
    messages=Messages(
        calls=(
            f"<|channel|>commentary {_NAMED} <|constrain|>json<|message|>{{arguments}}",
            f" {_NAMED}<|channel|>commentary <|constrain|>json<|message|>{{arguments}}",
            f" {_NAMED}<|channel|>commentary json<|message|>{{arguments}}",
        ),
        thought="<|channel|>analysis<|message|>",
        preamble="<|channel|>commentary<|message|>",
        answer="<|channel|>final<|message|>",
        between="<|end|><|start|>assistant",
        markers=r"<\|(?:start|end|message|channel|constrain|call|return)\|>",
    ),
)
