"""Calls inside reasoning that the model never closes.

Some models write a call without closing their reasoning first, and stop. Such a call counts. While
the reasoning may still be closed, text from the first call on is held back; once closed, it is
reasoning, whatever it says.
"""

from __future__ import annotations

from omlx.text.calls.markup import CallMarkup
from omlx.text.calls.parser import Piece, ToolCallParser
from omlx.text.events import ReasoningDelta, TextDelta, ToolCallEnd, ToolCallStart


class OpenReasoning:
    """Filter of reasoning; `count` is the number of calls in it. Without `markup` all passes."""

    def __init__(self, markup: CallMarkup | None) -> None:
        self.count = 0
        self._markup = markup
        self._probe = ToolCallParser(markup)
        self._held = ""
        self._call = False  # the held text begins with a call
        self._said = False  # some reasoning precedes it

    @property
    def holds(self) -> bool:
        """Whether text is held back."""
        return bool(self._held)

    def feed(self, text: str) -> str:
        """Return the reasoning that certainly precedes any call."""
        if self._markup is None:
            return text
        self._held += text
        if self._call:
            return ""
        certain = 0
        for piece in self._probe.feed(text):
            if isinstance(piece, TextDelta):
                certain += len(piece.text)
            else:
                self._call = True
                break
        passed, self._held = self._held[:certain], self._held[certain:]
        self._said = self._said or bool(passed)
        return passed

    def close(self) -> str:
        """Return the held text, which is reasoning: the model has closed it. All passes then."""
        self._markup = None
        held, self._held = self._held, ""
        return held

    def finish(self) -> list[Piece | ReasoningDelta]:
        """Parse what is held, as the output has ended: complete calls, and reasoning around them.

        A function whose arguments a grammar enforces is not called: it did not enforce these.
        """
        markup, held = self._markup, self.close()
        parser = ToolCallParser(markup)
        pieces: list[Piece] = []
        if self._call and markup is not None:
            pieces = [*parser.feed(held.lstrip()), *parser.finish(complete=True)]
            if not all(_counts(piece, markup) for piece in pieces):
                pieces = []
        if not pieces:
            return [ReasoningDelta(held)] if held else []
        self.count = parser.count
        gap = "\n" if self._said else ""
        rest: list[Piece | ReasoningDelta] = []
        for piece in pieces:
            if isinstance(piece, TextDelta):
                rest.append(ReasoningDelta(gap + piece.text))
                gap = ""
            else:
                rest.append(piece)
        return rest


def _counts(piece: Piece, markup: CallMarkup) -> bool:
    match piece:
        case ToolCallStart(name=name):
            return name not in markup.enforced
        case ToolCallEnd(complete=complete):
            return complete
    return True
