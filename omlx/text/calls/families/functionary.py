"""Functionary 3.1: `<function=look>{"at": "x"}</function>`.

Functionary 3.2 writes a recipient before every message, and the prompt ends in the first marker:

    >>>all
    I look.>>>look
    {"at": "x"}
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import NAME, CallFormat

V3_1: Final = CallFormat(
    start="<function=",
    end="</function>",
    templates=(("<function=example_function_name>{",),),
    begins=r"[\w.:/-]+>?\s*\{",
    head=rf"\s*{NAME}>?\s*(?=\{{)",
    follows=rf"\s*<function={NAME}>?\s*(?=\{{)",
    written="{name}>{arguments}",
)
V3_2: Final = CallFormat(
    start=">>>",
    end="",
    templates=((">>>${recipient}",),),
    begins=r"[\w.:/-]+\n\s*\{",
    leading=r"[\w.:/-]+\n",
    head=rf"\s*(?:>>>)?{NAME}\n\s*(?=\{{)",
    written="{name}\n{arguments}",
    together=True,
    separator=">>>",
    marked=False,
)
