"""Kimi K3: a section of calls whose arguments are typed by their tags.

<|open|>tools<|sep|><|open|>call tool="look" index="1"<|sep|>
<|open|>argument key="at" type="string"<|sep|>x<|close|>argument<|sep|>
<|close|>call<|sep|><|close|>tools<|sep|>
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import NAME, CallFormat, Tags

FORMAT: Final = CallFormat(
    start="<|open|>tools<|sep|>",
    end="<|close|>tools<|sep|>",
    begins=r"\s*<\|open\|>call",
    bare=("<|open|>call",),
    head=rf'\s*<\|open\|>call\s+tool="{NAME}"(?:(?!<\|sep\|>).)*<\|sep\|>\s*'
    r"(?=<\|open\|>argument|<\|close\|>|\{)",
    tags=Tags(
        opens=r'<\|open\|>argument\s+key="(?P<name>[^"<>]+)"'
        r'(?:\s+type="(?:(?P<text>string)|(?P<json>\w+))")?\s*<\|sep\|>',
        closes="<|close|>argument<|sep|>",
        ends=r"<\|close\|>call<\|sep\|>",
    ),
    written='<|open|>call tool="{name}" index="{number}"<|sep|>{arguments}<|close|>call<|sep|>',
    parameter='<|open|>argument key="{name}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>',
    together=True,
)
