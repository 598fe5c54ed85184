"""Stop strings, on both sides of the engine.

Of the stop strings that occur in a text, the one that *ends* first wins, of two that end together the longer one: that
rule can be decided character by character, so it does not depend on how the text is cut into pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from omlx.text.detokenize import Detokenizer

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class StopStringFilter:
    """Passes text through up to a stop string. Holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that is now certain to come before any stop string; nothing once one has matched."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.matched = min(found)
            self._held = ""
            return text[:at]
        keep = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    @property
    def holds(self) -> bool:
        """Whether something is not decided yet."""
        return bool(self._held)

    def finish(self) -> str:
        """What was held back and did not become a stop string."""
        held, self._held = self._held, ""
        return held


class MarkerFilter:
    """Leaves out markers that some models put around their answer and that mean nothing to a reader."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = tuple(markers)
        self._held = ""

    def feed(self, text: str) -> str:
        """The text that is certain, without markers."""
        if not self._markers:
            return text
        self._held += text
        said = ""
        while found := [
            (at + len(each), at) for each in self._markers if (at := self._held.find(each)) >= 0
        ]:
            end, at = min(found)
            said, self._held = said + self._held[:at], self._held[end:]
        keep = max(overlap(self._held, marker) for marker in self._markers)
        certain = len(self._held) - keep
        said, self._held = said + self._held[:certain], self._held[certain:]
        return said

    @property
    def holds(self) -> bool:
        """Whether something is not decided yet."""
        return bool(self._held)

    def finish(self) -> str:
        """What was held back and did not become a marker."""
        held, self._held = self._held, ""
        return held


class StopStringMatcher:
    """The engine's `StopMatcher`: says at which token a stop string is complete."""

    def __init__(
        self, tokenizer: TokenizerWrapper, stops: Sequence[str], context: Iterable[int] = ()
    ) -> None:
        self._text = Detokenizer(tokenizer, context)
        self._cutter = StopStringFilter(stops)

    def push(self, token: int) -> bool:
        self._cutter.feed(self._text.feed(token))
        return self._cutter.matched is not None


def overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that is a beginning of `marker`, but not all of it."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if marker.startswith(text[len(text) - n :])), 0)
