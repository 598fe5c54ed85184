"""DeepSeek R1 and V3.1, whose calls are JSON in a section of calls.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{"at": "x"}<｜tool▁call▁end｜>
    <｜tool▁calls▁end｜>

R1 and V3 write the word "function" for the name, and the name with a block of code behind it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from omlx.text.calls.format import NAME, CallFormat

_BEGIN: Final = "<｜tool▁call▁begin｜>"
_END: Final = "<｜tool▁call▁end｜>"
_SEPARATOR: Final = "<｜tool▁sep｜>"

V3_1: Final = CallFormat(
    start="<｜tool▁calls▁begin｜>",
    end="<｜tool▁calls▁end｜>",
    templates=((_BEGIN, _SEPARATOR),),
    begins=rf"\s*(?:{_BEGIN}|[\w.:/-]+{_SEPARATOR})",
    bare=(_BEGIN,),
    head=rf"\s*(?:{_BEGIN})?\s*(?:function\s*{_SEPARATOR})?\s*{NAME}\s*"
    rf"(?:{_SEPARATOR}\s*(?:```json\s*)?|```json\s*)(?=\{{)",
    closes=rf"\s*(?:```)?\s*(?:{_END})?",
    written=f"{_BEGIN}{{name}}{_SEPARATOR}{{arguments}}{_END}",
    together=True,
)
R1: Final = replace(
    V3_1,
    templates=((_BEGIN, _SEPARATOR, "```json"),),
    written=f"{_BEGIN}function{_SEPARATOR}{{name}}\n```json\n{{arguments}}\n```{_END}",
    separator="\n",
)
