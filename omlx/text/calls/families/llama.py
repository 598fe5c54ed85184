"""Llama 3.1, 3.2 and 3.3: `{"name": "look", "parameters": {"at": "x"}}` as the whole answer.

The marker `<|python_tag|>` may stand before it; further calls may follow a semicolon. Llama 3.1
knows `<function=look>{"at": "x"}</function>` too.
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls import json_calls
from omlx.text.calls.format import NAME, CallFormat

_TAG: Final = "<function="
_TYPE: Final = r'(?:"type"\s*:\s*"function"\s*,\s*)?'

FORMAT: Final = CallFormat(
    start="<|python_tag|>",
    end="",
    templates=(('{"name": function name, "parameters":', "<|start_header_id|>"),),
    begins=rf'(?:\s*\[?\s*\{{\s*{_TYPE}"(?:name|function)"\s*:|\s*{_TAG}[\w.:/-]+>)',
    bare=(_TAG,),
    leading=r"\{",
    head=rf"(?:\s*;?{json_calls.head(members=_TYPE)}|\s*{_TAG}{NAME}>\s*(?=\{{))",
    closes=rf"(?:{json_calls.CLOSES}|\s*</function>)",
    read=json_calls.read,
    written='{"name": "{name}", "parameters": {arguments}}',
    together=True,
    separator="; ",
    marked=False,
)
