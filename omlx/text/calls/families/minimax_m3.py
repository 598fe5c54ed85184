"""MiniMax-M3, which puts a special token before every tag and writes values as nested elements.

]<]minimax[>[<tool_call>
]<]minimax[>[<invoke name="look">]<]minimax[>[<at>x]<]minimax[>[</at>]<]minimax[>[</invoke>
]<]minimax[>[</tool_call>
"""

from __future__ import annotations

from typing import Any, Final

import regex as re

from omlx.text.calls.element_grammar import ElementArguments
from omlx.text.calls.elements import elements, property_of, value_of
from omlx.text.calls.format import NAME, CallFormat, Tools
from omlx.text.calls.values import argument_types, parse_json

TOKEN: Final = "]<]minimax[>["
_TOKEN: Final = re.escape(TOKEN)
_TAG: Final = re.compile(
    rf"{_TOKEN}<(?P<close>/?)(?P<name>[^<>\s/]+)(?:\s+name=[\"']?(?P<function>[^\"'<>]+)[\"']?)?>"
)


def read(text: str, tools: Tools) -> list[dict[str, Any]]:
    """Parse the calls of a section. Raises ValueError."""
    calls = []
    for invoke in elements(text, _TAG):
        opening = _TAG.match(text, text.rfind(TOKEN, 0, invoke.start))
        if invoke.name != "invoke" or opening is None or not opening["function"]:
            raise ValueError("no call")
        name = opening["function"]
        types = argument_types(tools, name)
        inside = text[invoke.start : invoke.end].strip()
        arguments = {}
        if not invoke.children and inside.startswith("{"):
            arguments = parse_json(inside)
        for element in invoke.children:
            schema = property_of(types, types.root, element.name)
            arguments[element.name] = value_of(element, text, schema, types)
        calls.append({"name": name, "arguments": arguments})
    if not calls:
        raise ValueError("no call")
    return calls


FORMAT: Final = CallFormat(
    start=f"{TOKEN}<tool_call>",
    end=f"{TOKEN}</tool_call>",
    templates=((TOKEN, "<tool_call>"),),
    begins=rf"\s*{_TOKEN}<invoke name=[\"']?{NAME}",
    read=read,
    written=f'{TOKEN}<invoke name="{{name}}">{{arguments}}{TOKEN}</invoke>\n',
    syntax=ElementArguments(TOKEN),
    together=True,
    section=("\n", ""),
)
