"""Splits the content of one choice into text and tool calls.

A call stands between the model's two markers and is what mlx-lm's parser for that model makes of it. A marker that
turns out to be prose, because what follows is not how a call begins or does not parse, is given back as prose, and
what follows it is read again. Arguments that the model writes as JSON are sent on as they come; of other formats, in
one piece at the end. White space between text and calls belongs to neither and is dropped.

What comes out depends on the text alone, not on how it is cut into pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeAlias

import regex as re

from omlx.text.call_markup import CallMarkup
from omlx.text.events import TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from omlx.text.stop_strings import overlap

Piece: TypeAlias = TextDelta | ToolCallStart | ToolCallArguments | ToolCallEnd

# What mlx-lm's parsers raise for text that is no call.
_PARSE_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    SyntaxError,
    RecursionError,
    OverflowError,  # a number without end where an integer is due
    MemoryError,  # of Python's own parser, for what is nested deeply
)
_IDENTIFIER = re.compile(r"[\w.:/-]{1,128}")
_STRUCTURE = re.compile(r"[{<\[(]")


class _At(Enum):
    TEXT = auto()
    OPENED = auto()  # behind a marker; what has come may be the beginning of a call
    CALL = auto()  # it begins as calls do
    ARGUMENTS = auto()  # inside of arguments that are sent on as they come
    BEHIND = auto()  # behind such arguments, before the closing marker


class ToolCallParser:
    """`count` is the number of calls that have begun. Without a `markup` everything is text."""

    def __init__(self, markup: CallMarkup | None) -> None:
        self.count = 0
        self._markup = markup
        self._at = _At.TEXT
        self._held = ""  # what is not decided; behind a marker, without it
        self._lead = ""  # white space before the marker
        self._gap = False  # a call has ended and only white space has come since
        self._looked = 0  # how much of a call was searched for its end
        self._json = JsonObjectEnd()

    @property
    def holds(self) -> bool:
        """Whether something is not decided yet."""
        return bool(self._held) or self._at is not _At.TEXT

    def feed(self, text: str) -> list[Piece]:
        if self._markup is None:
            return [TextDelta(text)] if text else []
        self._held += text
        pieces: list[Piece] = []
        while self._step(self._markup, pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back: a call that lacks only its closing marker, a call that was cut off, or prose."""
        pieces: list[Piece] = []
        while self._markup is not None and self._at not in (_At.TEXT, _At.ARGUMENTS):
            self._end(self._markup, pieces)
            while self._step(self._markup, pieces):
                pass
        held, self._held = self._held, ""
        if self._at is _At.ARGUMENTS:
            pieces.append(ToolCallEnd(self.count - 1, complete=False))
        elif held:
            pieces.append(TextDelta(held))
        return pieces

    def _end(self, markup: CallMarkup, pieces: list[Piece]) -> None:
        if self._at is _At.BEHIND:
            self._leave(markup)
            return
        text, closed, behind = (
            self._held.partition(markup.end) if markup.end else (self._held, "", "")
        )
        forgotten = bool(closed) and not behind.strip()  # to close a tag, not the call
        if (forgotten or not _unfinished(markup, self._held)) and self._whole(markup, text, pieces):
            self._held = behind
        else:
            self._give_back(markup, pieces)

    def _step(self, markup: CallMarkup, pieces: list[Piece]) -> bool:
        """Take what can be decided from the held text; True if the rest may be decidable in the new state."""
        match self._at:
            case _At.TEXT:
                return self._text(markup, pieces)
            case _At.OPENED:
                begins = markup.begins.match(self._held, partial=True)
                if begins is None:
                    self._give_back(markup, pieces)
                    return True
                if begins.partial:
                    return False
                self._at, self._looked = _At.CALL, 0
                return True
            case _At.CALL:
                return self._call(markup, pieces)
            case _At.ARGUMENTS:
                return self._arguments(pieces)
            case _At.BEHIND:
                return self._behind(markup, pieces)

    def _text(self, markup: CallMarkup, pieces: list[Piece]) -> bool:
        if self._gap:
            self._held = self._held.lstrip()
            self._gap = not self._held
        at = self._held.find(markup.start)
        certain = self._held[
            : at if at >= 0 else len(self._held) - overlap(self._held, markup.start)
        ]
        text = certain.rstrip()
        if text:
            pieces.append(TextDelta(text))
        if at < 0:
            self._held = self._held[len(text) :]
            return False
        self._lead, self._held = certain[len(text) :], self._held[at + len(markup.start) :]
        self._at = _At.OPENED
        return True

    def _give_back(self, markup: CallMarkup, pieces: list[Piece]) -> None:
        pieces.append(TextDelta(self._lead + markup.start))
        self._at = _At.TEXT

    def _call(self, markup: CallMarkup, pieces: list[Piece]) -> bool:
        if (
            markup.head is not None
            and (head := markup.head.match(self._held, partial=True)) is not None
        ):
            if head.partial:
                return False
            self._begin(markup, head, pieces)
            return True
        if not markup.end:
            return False
        at = self._held.find(markup.end, self._looked)
        if at < 0:
            self._looked = max(0, len(self._held) - len(markup.end) + 1)
            return False
        behind = self._held[at + len(markup.end) :].lstrip()
        inside = _unfinished(
            markup, self._held[:at]
        )  # of a value, unless a tag was forgotten: the next call follows
        if inside and markup.form.inner and markup.start.startswith(behind):
            return False
        if inside and not (markup.form.inner and behind.startswith(markup.start)):
            self._looked = at + 1
        elif self._whole(markup, self._held[:at], pieces):
            self._held = self._held[at + len(markup.end) :]
        else:
            self._give_back(markup, pieces)
        return True

    def _begin(self, markup: CallMarkup, head: re.Match[str], pieces: list[Piece]) -> None:
        named = head.groupdict()
        pieces.append(ToolCallStart(self.count, named.get("id") or markup.new_id(), named["name"]))
        self.count += 1
        self._held, self._at, self._json = self._held[head.end() :], _At.ARGUMENTS, JsonObjectEnd()

    def _arguments(self, pieces: list[Piece]) -> bool:
        end = self._json.find(self._held)
        taken = self._held if end is None else self._held[:end]
        self._held = self._held[len(taken) :]
        if taken:
            pieces.append(ToolCallArguments(self.count - 1, taken))
        if end is None:
            return False
        pieces.append(ToolCallEnd(self.count - 1))
        self._at = _At.BEHIND
        return True

    def _behind(self, markup: CallMarkup, pieces: list[Piece]) -> bool:
        """Another call may follow inside the same markers; models forget the closing one."""
        assert markup.follows is not None
        following = markup.follows.match(self._held, partial=True)
        if following is not None and not following.partial:
            self._begin(markup, following, pieces)
            return True
        ends = markup.ends.match(self._held, partial=True)
        if following is not None or (ends is not None and ends.partial):
            return False
        self._leave(markup)
        return True

    def _leave(self, markup: CallMarkup) -> None:
        """Drop the markup behind a call, of which the output's end may have left a part."""
        ends = markup.ends.match(self._held, partial=True) or markup.closes.match(self._held)
        self._held = self._held[ends.end() :] if ends is not None else self._held
        self._at, self._gap = _At.TEXT, True

    def _whole(self, markup: CallMarkup, text: str, pieces: list[Piece]) -> bool:
        """Add the calls that a text is, if it is any."""
        try:
            found = list(_parsed(markup, text))
        except _PARSE_ERRORS:
            return False
        for call in found:
            index, self.count = self.count, self.count + 1
            pieces.append(ToolCallStart(index, call.id or markup.new_id(), call.name))
            pieces.append(ToolCallArguments(index, call.arguments))
            pieces.append(ToolCallEnd(index))
        if found:
            self._at, self._gap = _At.TEXT, True
        return bool(found)


class JsonObjectEnd:
    """Finds where a JSON object ends that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """The place behind the object's last bracket; None if it goes on. Not to be asked again after it has ended."""
        for at, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = character == "\\"
                self._quoted = character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return at + 1
        return None


def _unfinished(markup: CallMarkup, text: str) -> bool:
    """Whether this is the beginning of JSON that goes on, or of a call with an open tag."""
    text = text.lstrip()
    if text.startswith(("{", "[")):
        return JsonObjectEnd().find(text) is None
    return any(text.rfind(opens) > text.rfind(closes) for opens, closes in markup.form.inner)


@dataclass(frozen=True, slots=True)
class _Call:
    id: str | None
    name: str
    arguments: str


def _parsed(markup: CallMarkup, text: str) -> Iterator[_Call]:
    """The calls that mlx-lm's parser finds. Raises one of `_PARSE_ERRORS` unless all of them make sense."""
    found = markup.parse(text, markup.tools)
    for call in found if isinstance(found, list) else [found]:
        name, arguments = call["name"], call["arguments"]
        if not isinstance(name, str) or not _plausible(markup, name, text):
            raise ValueError("no name of a function")
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        if not isinstance(arguments, dict):
            raise TypeError("arguments are an object")
        given = call.get("id")
        yield _Call(given if isinstance(given, str) else None, name, _json(arguments))


def _plausible(markup: CallMarkup, name: str, text: str) -> bool:
    """A function of the request, or at least something that was clearly meant as a call: some parsers take any word."""
    if any(tool["function"]["name"] == name for tool in markup.tools):
        return True
    return _IDENTIFIER.fullmatch(name) is not None and _STRUCTURE.search(text) is not None


def _json(arguments: dict[str, Any]) -> str:
    """Raises ValueError or TypeError for values that JSON, or UTF-8, does not have."""
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()
    return text
