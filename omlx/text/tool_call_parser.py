"""Split the content of one choice into text and tool calls.

A call stands between the model's two markers and is parsed by mlx-lm's parser for that model. A
marker followed by anything that does not begin like a call, or does not parse, is prose, and what
follows it is parsed again. JSON arguments are streamed; other formats come in one piece at the end.
White space between text and calls is dropped. The result depends on the text alone, not on how it
is cut into pieces.
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

# Errors of mlx-lm's parsers for a text that is no call.
_PARSE_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    SyntaxError,
    RecursionError,
    OverflowError,  # an infinite number where an integer is due
    MemoryError,  # of Python's own parser, for deep nesting
)
_IDENTIFIER = re.compile(r"[\w.:/-]{1,128}")
_STRUCTURE = re.compile(r"[{<\[(]")


class _State(Enum):
    TEXT = auto()
    OPENED = auto()  # after a marker; the text may be the beginning of a call
    CALL = auto()  # the text begins like a call
    ARGUMENTS = auto()  # inside arguments that are streamed
    AFTER = auto()  # after such arguments, before the closing marker


class ToolCallParser:
    """Stream parser of tool calls; `count` is the number of calls that have begun. Without `markup`
    all is text.
    """

    def __init__(self, markup: CallMarkup | None) -> None:
        self.count = 0
        self._markup = markup
        self._state = _State.TEXT
        self._held = ""  # undecided text; after a marker, without the marker
        self._space = ""  # white space before the marker
        self._gap = False  # a call has ended and only white space has come since
        self._searched = 0  # length of the call that was searched for its end
        self._json = JsonObjectEnd()

    @property
    def holds(self) -> bool:
        """Whether something is undecided."""
        return bool(self._held) or self._state is not _State.TEXT

    def feed(self, text: str) -> list[Piece]:
        if self._markup is None:
            return [TextDelta(text)] if text else []
        self._held += text
        pieces: list[Piece] = []
        self._parse(self._markup, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        """Return what was held back: a call without its closing marker, a call that was cut off, or
        prose.
        """
        pieces: list[Piece] = []
        while self._markup is not None and self._state not in (_State.TEXT, _State.ARGUMENTS):
            self._finish_call(self._markup, pieces)
            self._parse(self._markup, pieces)
        held, self._held = self._held, ""
        if self._state is _State.ARGUMENTS:
            pieces.append(ToolCallEnd(self.count - 1, complete=False))
        elif held:
            pieces.append(TextDelta(held))
        return pieces

    def _finish_call(self, markup: CallMarkup, pieces: list[Piece]) -> None:
        """Decide a call that the output's end has cut off: parse it, or return its marker to the
        prose.
        """
        if self._state is _State.AFTER:
            self._leave(markup)
            return
        text, closed, behind = self._held, "", ""
        if markup.end:
            text, closed, behind = self._held.partition(markup.end)
        # A closing marker at the very end: an inner tag was not closed, but the call was.
        forgotten_tag = bool(closed) and not behind.strip()
        complete = forgotten_tag or not _incomplete(markup, self._held)
        if complete and self._emit_calls(markup, text, pieces):
            self._held = behind
        else:
            self._reject(markup, pieces)

    def _parse(self, markup: CallMarkup, pieces: list[Piece]) -> None:
        while self._step(markup, pieces):
            pass

    def _step(self, markup: CallMarkup, pieces: list[Piece]) -> bool:
        """Consume what is certain; return whether the rest may be decidable in the new state."""
        match self._state:
            case _State.TEXT:
                return self._text(markup, pieces)
            case _State.OPENED:
                return self._opened(markup, pieces)
            case _State.CALL:
                return self._call(markup, pieces)
            case _State.ARGUMENTS:
                return self._arguments(pieces)
            case _State.AFTER:
                return self._after(markup, pieces)

    def _text(self, markup: CallMarkup, pieces: list[Piece]) -> bool:
        if self._gap:
            self._held = self._held.lstrip()
            self._gap = not self._held
        before, marker, behind = self._held.partition(markup.start)
        if not marker:
            before = before[: len(before) - overlap(before, markup.start)]
        text = before.rstrip()
        if text:
            pieces.append(TextDelta(text))
        if not marker:
            self._held = self._held[len(text) :]
            return False
        self._space, self._held = before[len(text) :], behind
        self._state = _State.OPENED
        return True

    def _opened(self, markup: CallMarkup, pieces: list[Piece]) -> bool:
        begins = markup.begins.match(self._held, partial=True)
        if begins is None:
            self._reject(markup, pieces)
            return True
        if begins.partial:
            return False
        self._state, self._searched = _State.CALL, 0
        return True

    def _reject(self, markup: CallMarkup, pieces: list[Piece]) -> None:
        """Return a marker to the prose; the text after it is parsed again."""
        pieces.append(TextDelta(self._space + markup.start))
        self._state = _State.TEXT

    def _call(self, markup: CallMarkup, pieces: list[Piece]) -> bool:
        head = None
        if markup.head is not None:
            head = markup.head.match(self._held, partial=True)
        if head is not None:
            if not head.partial:
                self._begin(markup, head, pieces)
            return not head.partial
        if not markup.end:
            return False
        end = self._held.find(markup.end, self._searched)
        if end < 0:
            self._searched = max(0, len(self._held) - len(markup.end) + 1)
            return False
        text, behind = self._held[:end], self._held[end + len(markup.end) :]
        if _incomplete(markup, text):
            # The marker stands in a value, unless a tag was not closed: then the next call follows.
            following = behind.lstrip()
            if markup.form.inner and markup.start.startswith(following):
                return False
            if not (markup.form.inner and following.startswith(markup.start)):
                self._searched = end + 1
                return True
        if self._emit_calls(markup, text, pieces):
            self._held = behind
        else:
            self._reject(markup, pieces)
        return True

    def _begin(self, markup: CallMarkup, head: re.Match[str], pieces: list[Piece]) -> None:
        """Begin a call whose arguments are streamed."""
        groups = head.groupdict()
        call_id = groups.get("id") or markup.new_id()
        pieces.append(ToolCallStart(self.count, call_id, groups["name"]))
        self.count += 1
        self._held = self._held[head.end() :]
        self._state, self._json = _State.ARGUMENTS, JsonObjectEnd()

    def _arguments(self, pieces: list[Piece]) -> bool:
        end = self._json.find(self._held)
        arguments = self._held[:end]
        self._held = self._held[len(arguments) :]
        if arguments:
            pieces.append(ToolCallArguments(self.count - 1, arguments))
        if end is None:
            return False
        pieces.append(ToolCallEnd(self.count - 1))
        self._state = _State.AFTER
        return True

    def _after(self, markup: CallMarkup, pieces: list[Piece]) -> bool:
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
        """Drop the markup after a call, or the part of it that the output's end has left."""
        ends = markup.ends.match(self._held, partial=True) or markup.closes.match(self._held)
        if ends is not None:
            self._held = self._held[ends.end() :]
        self._state, self._gap = _State.TEXT, True

    def _emit_calls(self, markup: CallMarkup, text: str, pieces: list[Piece]) -> bool:
        """Parse a text as calls and add them; return whether it holds any."""
        try:
            calls = list(_parsed(markup, text))
        except _PARSE_ERRORS:
            return False
        for call in calls:
            pieces.append(ToolCallStart(self.count, call.id or markup.new_id(), call.name))
            pieces.append(ToolCallArguments(self.count, call.arguments))
            pieces.append(ToolCallEnd(self.count))
            self.count += 1
        if calls:
            self._state, self._gap = _State.TEXT, True
        return bool(calls)


class JsonObjectEnd:
    """Search for the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """Return the index after the object's last bracket; None if it continues. Not to be called
        after its end.
        """
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


def _incomplete(markup: CallMarkup, text: str) -> bool:
    """Return whether a text is JSON without its end, or a call with an open tag."""
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
    """Yield the calls that mlx-lm's parser finds. Raises one of `_PARSE_ERRORS` unless all of them
    are valid.
    """
    calls = markup.parse(text, markup.tools)
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
        yield _Call(call_id if isinstance(call_id, str) else None, name, _json(arguments))


def _plausible(markup: CallMarkup, name: str, text: str) -> bool:
    """Return whether a name is a function of the request, or the text at least looks like a call.

    Some of mlx-lm's parsers accept any word.
    """
    if any(tool["function"]["name"] == name for tool in markup.tools):
        return True
    return _IDENTIFIER.fullmatch(name) is not None and _STRUCTURE.search(text) is not None


def _json(arguments: dict[str, Any]) -> str:
    """Return arguments as JSON. Raises ValueError or TypeError for values that JSON, or UTF-8,
    cannot hold.
    """
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()
    return text
