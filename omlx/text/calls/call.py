"""Calls that are parsed at their end: what readers of them share, and the reader of calls in any
form, by the format's own parser or by mlx-lm's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import regex as re

from omlx.text.calls.format import Incomplete
from omlx.text.calls.json_repair import JsonRepair
from omlx.text.calls.markup import CallMarkup
from omlx.text.calls.values import is_function

PARSE_ERRORS: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    SyntaxError,
    RecursionError,
    OverflowError,  # an infinite number where an integer is due
    MemoryError,  # of Python's own parser, for deep nesting
)
"""Errors of mlx-lm's parsers for a text that is no call."""
_IDENTIFIER = re.compile(r"[\w.:/-]{1,128}")
_STRUCTURE = re.compile(r"[{<\[(]")


@dataclass(frozen=True, slots=True)
class Call:
    """A call; `arguments` is JSON text."""

    id: str | None
    name: str
    arguments: str


class CallReader(Protocol):
    """Parser of one call that is emitted at its end."""

    def find(self, text: str, *, final: bool = False) -> int | None:
        """Return the index after the call; None if it continues. `text` is all of it each time.

        `final`: nothing follows.
        """
        ...

    def calls(self, text: str) -> list[Call]:
        """Return the calls in a text whose end was found. Raises one of `PARSE_ERRORS`."""
        ...


class WholeReader:
    """Reader of a call without its format's head: up to the end of its JSON, or to the closing
    marker.
    """

    def __init__(self, markup: CallMarkup) -> None:
        self._markup = markup
        self._searched = 0  # length of the text that was searched for its end
        self._fed = 0  # length of the text that was parsed as JSON
        self._json = JsonRepair(markup.end)

    def find(self, text: str, *, final: bool = False) -> int | None:
        start, marker = self._searched, self._markup.end
        form = self._markup.form
        bracket = form.json and form.read and text.lstrip().startswith(("{", "["))
        if bracket or self._markup.patterns.json.match(text):
            fed, self._fed = self._fed, len(text)
            self._json.feed(text[fed:])
            if self._json.ended:
                return len(text) - len(self._json.rest)
        elif marker:
            while (end := text.find(marker, start)) >= 0:
                if self._complete(text[:end]):
                    return end
                start = end + 1
            self._searched = max(0, len(text) - len(marker) + 1)
        return len(text) if final else None

    def _complete(self, text: str) -> bool:
        """Return whether a marker at the end of a text closes the call, and is no part of it."""
        if self._markup.form.read is None:
            return True
        try:
            self._markup.form.read(text, self._markup.tools)
        except Incomplete:
            return False
        except PARSE_ERRORS:
            return True
        return True

    def calls(self, text: str) -> list[Call]:
        return list(_parse(self._markup, text))


def _parse(markup: CallMarkup, text: str) -> Iterator[Call]:
    """Yield the calls that the format's parser finds. Raises one of `PARSE_ERRORS` unless all of
    them are valid.
    """
    calls = markup.parse(text)
    if not isinstance(calls, list):
        calls = [calls]
    for call in calls:
        name, arguments = call["name"], call["arguments"]
        if not isinstance(name, str) or not _plausible(markup, name, text):
            raise ValueError("no name of a function")
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        if not isinstance(arguments, dict):
            raise TypeError("arguments are an object")
        call_id = call.get("id")
        yield Call(call_id if isinstance(call_id, str) else None, name, arguments_json(arguments))


def _plausible(markup: CallMarkup, name: str, text: str) -> bool:
    """Return whether a name is a function of the request, or the text at least looks like a call.

    Some of mlx-lm's parsers accept any word.
    """
    if is_function(markup.tools, name):
        return True
    return _IDENTIFIER.fullmatch(name) is not None and _STRUCTURE.search(text) is not None


def arguments_json(arguments: dict[str, Any]) -> str:
    """Return arguments as JSON. Raises ValueError or TypeError for values that JSON, or UTF-8,
    cannot hold.
    """
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()
    return text
