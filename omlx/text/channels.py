"""Splits the text of one choice into reasoning and content.

Reasoning stands at the very beginning, between the model's two markers, or the prompt has already opened it. A marker
anywhere else is prose and passes through. White space around reasoning belongs to neither side and is dropped.
"""

from __future__ import annotations

from enum import Enum, auto

from omlx.text.events import ReasoningDelta, TextDelta
from omlx.text.stop_strings import overlap

Piece = TextDelta | ReasoningDelta


class _At(Enum):
    START = auto()  # nothing but white space, or a part of the opening marker, has come
    THOUGHT_START = auto()  # behind the opening marker, only white space has come
    THOUGHT = auto()
    THOUGHT_END = auto()  # behind the closing marker, only white space has come
    CONTENT = auto()


class Splitter:
    """Text comes in pieces; what is not decided yet is held back."""

    _held = ""

    @property
    def holds(self) -> bool:
        """Whether something is not decided yet."""
        return bool(self._held)

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while self._held and self._step(pieces):
            pass
        return pieces

    def _step(self, pieces: list[Piece]) -> bool:
        """Take what can be decided from the held text; True if the rest may be decidable in the new state."""
        raise NotImplementedError  # each kind of splitter has its own


class ReasoningSplitter(Splitter):
    """`markers` are the opening and closing one, None where the model has none; `thinking`: the prompt opened it."""

    def __init__(self, markers: tuple[str, str] | None, *, thinking: bool = False) -> None:
        self._open, self._close = markers or ("", "")
        self._at = _At.CONTENT if markers is None else _At.THOUGHT_START if thinking else _At.START

    @property
    def thinking(self) -> bool:
        return self._at in (_At.THOUGHT_START, _At.THOUGHT)

    def finish(self) -> list[Piece]:
        """What was held back: a marker that never became whole is prose."""
        held, self._held = self._held, ""
        if not held or self._at is _At.THOUGHT_END:
            return []
        return [ReasoningDelta(held) if self.thinking else TextDelta(held)]

    def _step(self, pieces: list[Piece]) -> bool:
        match self._at:
            case _At.START:
                return self._start()
            case _At.THOUGHT:
                return self._thought(pieces)
            case _At.CONTENT:
                pieces.append(TextDelta(self._held))
                self._held = ""
                return False
            case _At.THOUGHT_START | _At.THOUGHT_END as at:
                self._held = self._held.lstrip()
                if self._held:
                    self._at = _At.THOUGHT if at is _At.THOUGHT_START else _At.CONTENT
                return bool(self._held)

    def _start(self) -> bool:
        text = self._held.lstrip()
        if text.startswith(self._open):
            self._held, self._at = text[len(self._open) :], _At.THOUGHT_START
        elif self._open.startswith(text):
            return False
        else:
            self._at = _At.CONTENT
        return True

    def _thought(self, pieces: list[Piece]) -> bool:
        end = self._held.find(self._close)
        if end >= 0:
            thought, rest = self._held[:end].rstrip(), self._held[end + len(self._close) :]
            self._at = _At.THOUGHT_END
        else:
            certain = self._held[: len(self._held) - overlap(self._held, self._close)].rstrip()
            thought, rest = certain, self._held[len(certain) :]
        if thought:
            pieces.append(ReasoningDelta(thought))
        self._held = rest
        return end >= 0
