"""Splits the text of one choice that comes as several messages, each behind a header that says for whom it is.

    to=self<|message|>reasoning<|eom|><|start|>assistant to=user<|message|>answer

A table says which markers preamble from which state to which: mlx-lm's `response_transitions`, or one of ours. What stands
in a header is dropped. An output in which no marker ever comes is all content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from omlx.text.channels import Piece, Splitter
from omlx.text.events import ReasoningDelta, TextDelta
from omlx.text.stop_strings import overlap

HEADER: Final = "header"
"""Also the beginning of a state's name that is one."""
REASONING: Final = "reasoning"
TOOL: Final = "tool"
CONTENT: Final = "normal"


class ChannelSplitter(Splitter):
    """`transitions`: by state, (marker, state behind it). The marker of a tool's call stays: it belongs to the call."""

    def __init__(self, initial: str, transitions: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        self._transitions = transitions
        self._at = initial
        self._found = False

    @property
    def thinking(self) -> bool:
        return self._at == REASONING

    @property
    def _in_header(self) -> bool:
        return self._at.startswith(HEADER)

    def finish(self) -> list[Piece]:
        """What was held back: a part of a marker, or all of an output that has no headers."""
        held, self._held = self._held, ""
        if not self._found:
            self._at = CONTENT
        return self._told(held)

    def _step(self, pieces: list[Piece]) -> bool:
        markers = self._transitions.get(self._at, ())
        places = [
            (at, marker, state) for marker, state in markers if (at := self._held.find(marker)) >= 0
        ]
        if not places:
            if self._found or not self._in_header:
                kept = max((overlap(self._held, marker) for marker, _ in markers), default=0)
                certain = self._held[: len(self._held) - kept]
                pieces += self._told(certain)
                self._held = self._held[len(certain) :]
            return False
        at, marker, state = min(places)
        pieces += self._told(self._held[:at])
        self._held = self._held[at + (0 if state == TOOL else len(marker)) :]
        self._at, self._found = CONTENT if state == TOOL else state, True
        return True

    def _told(self, text: str) -> list[Piece]:
        if not text or self._in_header:
            return []
        return [ReasoningDelta(text) if self.thinking else TextDelta(text)]
