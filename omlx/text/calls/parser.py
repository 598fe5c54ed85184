"""Parser that splits the content of a choice into text and tool calls.

A call begins at a marker of the model's family. A marker without the beginning of a call behind it,
or with a call that does not parse, is prose, and the text after it is parsed again. JSON arguments
are streamed, and repaired on the way; other forms are emitted whole at their end. White space
around calls is dropped, and a line break separates texts around calls. The result depends on the
text alone, not on its pieces.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TypeAlias

import regex as re

from omlx.text.calls.format import CallFormat
from omlx.text.calls.markup import CallMarkup
from omlx.text.calls.readers import PARSE_ERRORS, Call, CallReader, TagReader, WholeReader
from omlx.text.calls.repair import JsonRepair
from omlx.text.events import TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

Piece: TypeAlias = TextDelta | ToolCallStart | ToolCallArguments | ToolCallEnd


class _State(Enum):
    TEXT = auto()
    OPENED = auto()  # after a marker; the text may be the beginning of a call
    CALL = auto()  # the text begins like a call
    READING = auto()  # inside a call that is parsed once complete
    ARGUMENTS = auto()  # inside arguments that are streamed
    AFTER = auto()  # after arguments, before the closing marker


class _Prose:
    """Text around calls, without white space beside a call, joined by line breaks."""

    def __init__(self) -> None:
        self.any = False  # some text has come
        self.gap = False  # a call has ended and only white space has come since
        self._break = False  # a line break precedes the next text

    def after_call(self) -> None:
        self.gap, self._break = True, self.any

    def strip(self, text: str) -> str:
        if self.gap:
            text = text.lstrip()
            self.gap = not text
        return text

    def add(self, text: str, pieces: list[Piece]) -> None:
        if not text:
            return
        if self._break:
            text = "\n" + text.lstrip()
        pieces.append(TextDelta(text))
        self.any, self._break = True, False


class ToolCallParser:
    """Stream parser of tool calls; `count` is the number of calls that have begun.

    Without `markup` all is text.
    """

    def __init__(self, markup: CallMarkup | None) -> None:
        self.count = 0
        self._plain = markup is None
        self._markup = markup or CallMarkup(CallFormat(start="", end=""))
        self._form, self._patterns = self._markup.form, self._markup.patterns
        self._state = _State.TEXT
        self._held = ""  # undecided text; after a marker, without the marker
        self._marker = ""  # marker before `_held`, or at its beginning (`_bare`)
        self._bare = False
        self._space = ""  # white space before the marker
        self._prose = _Prose()
        self._pieces: list[Piece] = []  # results of the current `feed` or `finish`
        self._json = JsonRepair()
        self._reader: CallReader | None = None

    @property
    def holds(self) -> bool:
        return bool(self._held) or self._state is not _State.TEXT

    def feed(self, text: str) -> list[Piece]:
        if self._plain:
            return [TextDelta(text)] if text else []
        self._held += text
        self._pieces = []
        while self._step():
            pass
        return self._pieces

    def finish(self, *, complete: bool = False) -> list[Piece]:
        """Return the held pieces: a call that is unclosed or cut off, or prose.

        `complete`: the model has ended its output.
        """
        self._pieces = []
        while self._state not in (_State.TEXT, _State.ARGUMENTS):
            self._finish_call()
            while self._step():
                pass
        held, self._held = self._held, ""
        if self._state is _State.ARGUMENTS:
            if arguments := self._json.finish(complete=complete):
                self._pieces.append(ToolCallArguments(self.count - 1, arguments))
            self._pieces.append(ToolCallEnd(self.count - 1, complete=self._json.ended))
        else:
            self._prose.add(held, self._pieces)
        return self._pieces

    def _finish_call(self) -> None:
        """Decide a call that the output's end has cut off.

        Parse the call, or return its marker to the prose.
        """
        match self._state:
            case _State.AFTER:
                self._leave()
            case _State.READING:
                if not self._read(final=True):
                    self._reject()
            case _:
                self._reader = WholeReader(self._markup)
                self._read(final=True)

    def _step(self) -> bool:
        """Consume all certain text; return whether the next state may decide more."""
        match self._state:
            case _State.TEXT:
                return self._text()
            case _State.OPENED:
                return self._opened()
            case _State.CALL:
                return self._call()
            case _State.READING:
                return self._read()
            case _State.ARGUMENTS:
                return self._arguments()
            case _State.AFTER:
                return self._after()

    def _text(self) -> bool:
        if self._prose.gap and self._form.end and _may_begin(self._held, self._form.end):
            text = self._held.lstrip()
            if text.startswith(self._form.end):  # closing marker written twice
                self._held = text[len(self._form.end) :]
            return text.startswith(self._form.end)
        self._held = self._prose.strip(self._held)
        if not self._prose.any and self._leads():
            return self._state is _State.OPENED
        start, self._marker = self._markup.find(self._held)
        before = self._held[:start]
        if not self._marker:
            before = before[: len(before) - self._markup.overlap(before)]
        text = before.rstrip()
        self._prose.add(text, self._pieces)
        if not self._marker:
            self._held = self._held[len(text) :]
            return False
        self._open(before[len(text) :], start, bare=self._marker != self._form.start)
        return True

    def _leads(self) -> bool:
        text = self._held.lstrip()
        begins = self._patterns.leading.match(text, partial=True)
        if begins is None:
            return False
        if not begins.partial:
            self._marker = begins[0]
            space = self._held[: len(self._held) - len(text)]
            self._open(space, len(space), bare=True)
        return True

    def _open(self, space: str, start: int, *, bare: bool) -> None:
        self._space, self._bare = space, bare
        if not bare:
            start += len(self._marker)
        self._held = self._held[start:]
        self._state = _State.OPENED

    def _opened(self) -> bool:
        begins = self._patterns.begins.match(self._held, partial=True)
        if begins is None and not self._bare and _may_begin(self._held, self._form.start):
            return self._reopen()
        if begins is None:
            self._reject()
            return True
        if begins.partial:
            return False
        self._state = _State.CALL
        return True

    def _reopen(self) -> bool:
        text = self._held.lstrip()
        if not text.startswith(self._marker):
            return False
        # The first marker is prose if no call follows.
        self._space += self._marker + self._held[: len(self._held) - len(text)]
        self._held = text[len(self._marker) :]
        return True

    def _reject(self) -> None:
        if self._bare:
            self._held = self._held[len(self._marker) :]
        self._prose.add(self._space + self._marker, self._pieces)
        self._state = _State.TEXT

    def _call(self) -> bool:
        head = self._patterns.head.match(self._held, partial=True)
        if head is None:
            self._state, self._reader = _State.READING, WholeReader(self._markup)
        elif head.partial:
            return False
        elif self._bare and not self._markup.may_call(head["name"]):
            self._reject()
        else:
            self._begin(head)
        return True

    def _begin(self, head: re.Match[str]) -> None:
        if self._form.tags is not None:
            self._reader = TagReader(self._form, self._markup.tools, head)
            self._state = _State.READING
            return
        call_id = head.groupdict().get("id") or self._markup.id_of(self.count)
        self._pieces.append(ToolCallStart(self.count, call_id, head["name"]))
        self.count += 1
        self._prose.after_call()
        self._held = self._held[head.end() :]
        self._state, self._json = _State.ARGUMENTS, JsonRepair(self._form.end)

    def _read(self, *, final: bool = False) -> bool:
        """Add a finished call, or reject it; return whether the call was finished."""
        assert self._reader is not None
        end = self._reader.find(self._held, final=final)
        if end is None:
            return False
        try:
            calls = self._reader.calls(self._held[:end])
        except PARSE_ERRORS:
            calls = []
        for call in calls:
            self._add(call)
        if calls:
            self._held, self._state = self._held[end:], _State.AFTER
        else:
            self._reject()
        return True

    def _arguments(self) -> bool:
        arguments = self._json.feed(self._held)
        self._held = self._json.rest
        if arguments:
            self._pieces.append(ToolCallArguments(self.count - 1, arguments))
        if not self._json.ended:
            return False
        self._pieces.append(ToolCallEnd(self.count - 1))
        self._state = _State.AFTER
        return True

    def _after(self) -> bool:
        patterns = self._patterns
        candidates = (patterns.follows, patterns.further, patterns.ends)
        follows, further, ends = (each.match(self._held, partial=True) for each in candidates)
        if follows is not None and not follows.partial:
            self._begin(follows)
        elif further is not None and not further.partial:
            self._held, self._marker, self._space = self._held[further.end() :], "", ""
            self._bare, self._state = False, _State.CALL
        elif follows is not None or further is not None or (ends is not None and ends.partial):
            return False
        else:
            self._leave()
        return True

    def _leave(self) -> None:
        ends = self._patterns.ends.match(self._held, partial=True)
        ends = ends or self._patterns.closes.match(self._held)
        if ends is not None:
            self._held = self._held[ends.end() :]
        self._state = _State.TEXT

    def _add(self, call: Call) -> None:
        call_id = call.id or self._markup.id_of(self.count)
        self._pieces.append(ToolCallStart(self.count, call_id, call.name))
        self._pieces.append(ToolCallArguments(self.count, call.arguments))
        self._pieces.append(ToolCallEnd(self.count))
        self.count += 1
        self._prose.after_call()


def _may_begin(text: str, marker: str) -> bool:
    text = text.lstrip()
    return bool(text) and (text.startswith(marker) or marker.startswith(text))
