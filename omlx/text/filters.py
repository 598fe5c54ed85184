"""Stream filters of text: stop strings, dropped markers, reasoning apart from content.

Among several stop strings, the first to *end* wins; if two end together, the longer wins. This rule
can be decided character by character, so the result does not depend on how the text is cut into
pieces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum, auto
from itertools import repeat
from typing import Final, TypeAlias

from omlx.text.events import ReasoningDelta, TextDelta
from omlx.text.tokens import Detokenizer, Tokenizer


class StreamParser:
    """Parser of a text that comes in pieces (`feed`) and ends (`finish`).

    Results depend on the text alone, not on its pieces; undecided text is held back.
    """

    _held = ""

    @property
    def holds(self) -> bool:
        return bool(self._held)


class _Filter(StreamParser):
    """Stream filter that holds back a possible beginning of a pattern."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def _match(self, text: str) -> tuple[int, int, str] | None:
        """Return end, start and pattern of the match with the first end, longest on ties."""
        matches = []
        for pattern in self._patterns:
            start = text.find(pattern)
            if start >= 0:
                matches.append((start + len(pattern), start, pattern))
        return min(matches, default=None)

    def _certain(self, text: str) -> str:
        certain = len(text) - longest_overlap(text, self._patterns)
        self._held = text[certain:]
        return text[:certain]


class StopStringFilter(_Filter):
    """Filter that passes text up to the first stop string, then held in `matched`."""

    matched: str | None = None

    def feed(self, text: str) -> str:
        if self.matched is not None:
            return ""
        text = self._held + text
        match = self._match(text)
        if match is None:
            return self._certain(text)
        _, start, self.matched = match
        self._held = ""
        return text[:start]


class MarkerFilter(_Filter):
    """Filter that drops markers without meaning for a reader, such as markers around an answer."""

    def feed(self, text: str) -> str:
        text, passed = self._held + text, ""
        while (match := self._match(text)) is not None:
            end, start, _ = match
            passed, text = passed + text[:start], text[end:]
        return passed + self._certain(text)


class WrapperFilter(StreamParser):
    """Filter that drops a pair of markers around a whole text; elsewhere they are text."""

    def __init__(self, markers: tuple[str, str]) -> None:
        self._open, self._close = markers
        self._opened = not self._open
        self._plain = not self._open  # no marker: the whole text passes

    def feed(self, text: str) -> str:
        if self._plain:
            return text
        self._held += text
        if not self._opened:
            start = self._held.lstrip()
            if self._open.startswith(start) and start != self._open:
                return ""
            self._opened = start.startswith(self._open)
            self._plain = not self._opened or not self._close
            if self._opened:
                self._held = start.removeprefix(self._open)
        if self._plain:
            return self.finish()
        body = self._held.rstrip()
        if not body.endswith(self._close):
            body = body[: len(body) - overlap(body, self._close)]
        else:
            body = body.removesuffix(self._close)
        self._held = self._held[len(body) :]
        return body

    def finish(self) -> str:
        held, self._held = self._held, ""
        if self._plain or not self._opened:
            return held
        return held.rstrip().removesuffix(self._close)


class StopStringMatcher:
    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str], context: Iterable[int] = ()
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, context)
        self._filter = StopStringFilter(stops)

    def push(self, token: int) -> bool:
        self._filter.feed(self._detokenizer.feed(token))
        return self._filter.matched is not None


def overlap(text: str, marker: str) -> int:
    """Return the length of `text`'s longest suffix that is a proper prefix of `marker`."""
    start = text.find(marker[:1], max(0, len(text) - len(marker) + 1))
    while start >= 0:
        if marker.startswith(text[start:]):
            return len(text) - start
        start = text.find(marker[:1], start + 1)
    return 0


def longest_overlap(text: str, markers: Iterable[str]) -> int:
    return max(map(overlap, repeat(text), markers), default=0)


def before_marker(text: str, markers: Collection[str]) -> tuple[str, str]:
    """Return the text that certainly precedes any of the markers, and the marker after it."""
    found = [(at, marker) for marker in markers if (at := text.find(marker)) >= 0]
    if found:
        at, marker = min(found)
        return text[:at], marker
    return text[: len(text) - longest_overlap(text, markers)], ""


Piece: TypeAlias = TextDelta | ReasoningDelta

HEADER: Final = "header"
"""Prefix of the names of all states inside a header."""
REASONING: Final = "reasoning"
TOOL: Final = "tool"
CONTENT: Final = "normal"


class Splitter(StreamParser):
    """Stream parser that holds back text until its channel is certain."""

    _pieces: list[Piece]
    """Results of the current `feed` or `finish`."""

    @property
    def thinking(self) -> bool:
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        """Whether no reasoning can follow."""
        return False

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        self._pieces = []
        while self._held and self._step():
            pass
        return self._pieces

    def finish(self, *, complete: bool = True) -> list[Piece]:
        self._pieces = []
        self._emit(self._held)
        self._held = ""
        return self._pieces

    def _step(self) -> bool:
        """Consume all certain text; return whether the next state may decide more."""
        raise NotImplementedError

    def _emit(self, text: str) -> None:
        if not text:
            return
        if self.thinking:
            self._pieces.append(ReasoningDelta(text))
        else:
            self._pieces.append(TextDelta(text))


class _State(Enum):
    START = auto()  # only white space, or a part of the opening marker, has come
    THOUGHT_START = auto()  # after the opening marker, only white space has come
    THOUGHT = auto()
    THOUGHT_END = auto()  # after the closing marker, only white space has come
    CONTENT = auto()


class ReasoningSplitter(Splitter):
    """Splitter at a pair of markers; an opening marker that is not at the beginning is content.

    `markers` are the opening and closing marker, None for a model without reasoning. `thinking`:
    the prompt has opened the reasoning. Markers of `ends` end reasoning too and are content. With
    `repeats` reasoning may follow content, and a closing marker in content is dropped. White space
    around reasoning is dropped.
    """

    def __init__(
        self,
        markers: tuple[str, str] | None,
        *,
        thinking: bool = False,
        ends: tuple[str, ...] = (),
        repeats: bool = False,
    ) -> None:
        self._open, self._close = markers or ("", "")
        self._ends = (self._close, *ends)
        self._repeats = repeats
        self._state = _State.START
        if markers is None:
            self._state = _State.CONTENT
        elif thinking:
            self._state = _State.THOUGHT_START

    @property
    def thinking(self) -> bool:
        return self._state in (_State.THOUGHT_START, _State.THOUGHT)

    @property
    def settled(self) -> bool:
        return self._state is _State.CONTENT and not self._repeats

    def finish(self, *, complete: bool = True) -> list[Piece]:
        if self._state is _State.THOUGHT_END:
            self._held = ""
        return super().finish()

    def _step(self) -> bool:
        match self._state:
            case _State.START:
                return self._start()
            case _State.THOUGHT:
                return self._thought()
            case _State.CONTENT:
                return self._content()
            case _State.THOUGHT_START:
                following = _State.THOUGHT
            case _State.THOUGHT_END:
                following = _State.CONTENT
        self._held = self._held.lstrip()
        if self._held:
            self._state = following
        return bool(self._held)

    def _start(self) -> bool:
        # A closing marker at the beginning ends reasoning that has no text.
        text = self._held.lstrip()
        if text.startswith(self._open):
            self._held, self._state = text[len(self._open) :], _State.THOUGHT_START
        elif text.startswith(self._close):
            self._held, self._state = text[len(self._close) :], _State.THOUGHT_END
        elif self._open.startswith(text) or self._close.startswith(text):
            return False
        else:
            self._state = _State.CONTENT
        return True

    def _thought(self) -> bool:
        thought, marker = before_marker(self._held, self._ends)
        thought = thought.rstrip()
        self._emit(thought)
        self._held = self._held[len(thought) :]
        if not marker:
            return False
        self._held = self._held.lstrip()
        if marker == self._close:
            self._held = self._held[len(marker) :]
        self._state = _State.THOUGHT_END
        return True

    def _content(self) -> bool:
        if not self._repeats:
            self._emit(self._held)
            self._held = ""
            return False
        text, marker = before_marker(self._held, (self._open, self._close))
        self._emit(text)
        self._held = self._held[len(text) + len(marker) :]
        if marker == self._open:
            self._state = _State.THOUGHT_START
        return bool(marker)


class ChannelSplitter(Splitter):
    """Splitter by a table of transitions: by state, pairs of a marker and the state after it.

    The table is mlx-lm's `response_transitions` or one of ours. The text of a header is dropped.
    The marker of a tool call is kept as a part of the call. Output without any marker is content.
    """

    def __init__(self, initial: str, transitions: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        self._transitions = transitions
        self._state = initial
        self._matched = False

    @property
    def thinking(self) -> bool:
        return self._state == REASONING

    def finish(self, *, complete: bool = True) -> list[Piece]:
        if not self._matched:
            self._state = CONTENT
        return super().finish()

    def _step(self) -> bool:
        states = dict(self._transitions.get(self._state, ()))
        text, marker = before_marker(self._held, states)
        if not marker and self._in_header and not self._matched:
            return False
        self._emit(text)
        self._held = self._held[len(text) :]
        if not marker:
            return False
        self._matched, self._state = True, states[marker]
        if self._state == TOOL:
            self._state = CONTENT  # the marker belongs to the call
        else:
            self._held = self._held[len(marker) :]
        return True

    @property
    def _in_header(self) -> bool:
        return self._state.startswith(HEADER)

    def _emit(self, text: str) -> None:
        if not self._in_header:
            super()._emit(text)
