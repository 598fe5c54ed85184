"""The product of call formats and ways of writing: `python -m tests.text.call_matrix` prints it.

Every output calls `get_weather` with `ARGUMENTS`, or first `look` without arguments.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

import regex as re

from omlx.text.calls import elements, gemma, json_formats, lfm2, markup, tag_formats
from omlx.text.calls.format import CallFormat
from omlx.text.calls.json_formats import HARMONY
from omlx.text.calls.markup import CallMarkup
from omlx.text.calls.parser import Piece, ToolCallParser
from omlx.text.events import ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart
from omlx.text.harmony import HarmonySplitter
from tests.text.call_writings import WRITINGS

Read: TypeAlias = tuple[str, list[tuple[str, Any]]]
"""The text, and calls as name and arguments; arguments that are no JSON as text."""

ARGUMENTS: Final = {"city": "Zürich", "days": 3}
WEATHER: Final = ("get_weather", ARGUMENTS)
LOOK: Final[tuple[str, dict[str, Any]]] = ("look", {})
JSON: Final = json.dumps({"name": WEATHER[0], "arguments": ARGUMENTS}, ensure_ascii=False)
TOOLS: Final = tuple(
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in (
        ("look", {"type": "object", "properties": {}}),
        (
            "get_weather",
            {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        ),
    )
)
_NEXT: Final = "<|start|>assistant"
_TOKENS: Final = re.compile(r"<[^<>\s]*>|\[[A-Z_]+\]|\w+|\s+|.", re.DOTALL)


def _formats() -> Iterator[tuple[str, CallFormat]]:
    for module in (elements, gemma, json_formats, lfm2, tag_formats):
        for name, value in vars(module).items():
            if isinstance(value, CallFormat) and not name.startswith("_"):
                yield name.lower(), value


FORMATS: Final[Mapping[str, CallFormat]] = dict(_formats())


def written(form: CallFormat, *calls: tuple[str, Mapping[str, Any]]) -> str:
    """Return calls as a model of the family writes them in one output."""
    bodies = [
        markup.write_call(
            form, {"id": "a1b2c3d4e", "function": {"name": name, "arguments": arguments}}, at
        )
        for at, (name, arguments) in enumerate(calls)
    ]
    if form.together:
        bodies = [form.separator.join(bodies)]
    before, behind = form.section
    start = form.before + form.start if form.marked else ""
    between = _NEXT if form is HARMONY else form.between or "\n"
    return between.join(f"{start}{before}{body}{behind}{form.end}" for body in bodies)


def cases(form: CallFormat) -> dict[str, tuple[str, Read]]:
    """Return by name the outputs, and what they mean."""
    one, marker = written(form, WEATHER), "" if form.marked else form.start
    preamble, between = f"I look.\n\n{marker}", f"\n{marker}"
    if form is HARMONY:
        preamble = f"<|channel|>commentary<|message|>I look.<|end|>{_NEXT}"
        between = _NEXT
    found: dict[str, tuple[str, Read]] = {
        "call": (one, ("", [WEATHER])),
        "no arguments": (written(form, LOOK), ("", [LOOK])),
        "two calls": (written(form, LOOK, WEATHER), ("", [LOOK, WEATHER])),
        "two apart": (one + between + written(form, LOOK), ("", [WEATHER, LOOK])),
        "after text": (preamble + one, ("I look.", [WEATHER])),
        "no end": (one.removesuffix(form.end), ("", [WEATHER])),
    }
    if form is not HARMONY:
        for name, body in (("JSON", JSON), ("JSON list", f"[{JSON}]"), ("JSON cut", JSON[:-2])):
            found[name] = (f"{form.start}{body}{form.end}", ("", [WEATHER]))
        behind = json.dumps({"arguments": ARGUMENTS, "name": WEATHER[0]}, ensure_ascii=False)
        found["name last"] = (f"{form.start}{' ' * 40}{behind}{form.end}", ("", [WEATHER]))
        apart = f"{form.start}{JSON}\n{JSON}{form.end}"
        found["two JSON"] = (apart, ("", [WEATHER, WEATHER]))
    return found


def other_writings(name: str) -> Sequence[str]:
    """Return further outputs of a family that mean one call of `get_weather`."""
    return WRITINGS.get(name, ())


def pieces_of(text: str) -> list[list[str]]:
    """Return a text whole, token by token, and character by character."""
    return [[text], _TOKENS.findall(text), list(text)]


def read(form: CallFormat, pieces: Iterable[str]) -> Read:
    """Parse an output that the model has ended."""
    parser = ToolCallParser(CallMarkup(form, TOOLS))
    parsed: list[Piece | ReasoningDelta] = []
    if form is HARMONY:
        splitter = HarmonySplitter(TOOLS)
        messages = [message for piece in pieces for message in splitter.feed(piece)]
        for message in (*messages, *splitter.finish()):
            if isinstance(message, TextDelta):
                parsed += parser.feed(message.text)
            else:
                parsed.append(message)
    else:
        for piece in pieces:
            parsed += parser.feed(piece)
    return _outcome([*parsed, *parser.finish(complete=True)])


def _outcome(parsed: Iterable[Piece | ReasoningDelta]) -> Read:
    text, calls = "", list[list[str]]()
    for piece in parsed:
        if isinstance(piece, TextDelta):
            text += piece.text
        elif isinstance(piece, ToolCallStart):
            calls.append([piece.name, ""])
        elif isinstance(piece, ToolCallArguments):
            calls[-1][1] += piece.text
    return text, [(name, _parsed(arguments)) for name, arguments in calls]


def _parsed(arguments: str) -> Any:
    with suppress(ValueError):
        return json.loads(arguments)
    return arguments


def table() -> Iterator[str]:
    """Yield the lines of the table: a family in each, a case in each column."""
    names = list(cases(next(iter(FORMATS.values()))))
    yield f"| family | {' | '.join(names)} | others |"
    yield f"|---|{'---|' * (len(names) + 1)}"
    for family, form in FORMATS.items():
        found = cases(form)
        cells = [_cell(form, *found[name]) if name in found else "" for name in names]
        others = [_cell(form, text, ("", [WEATHER])) for text in other_writings(family)]
        cells.append(f"{others.count('yes')} of {len(others)}" if others else "")
        yield f"| {family} | {' | '.join(cells)} |"


def _cell(form: CallFormat, text: str, expected: Read) -> str:
    return "yes" if all(read(form, pieces) == expected for pieces in pieces_of(text)) else "no"


if __name__ == "__main__":
    sys.stdout.write("\n".join(table()) + "\n")
