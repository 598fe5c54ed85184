"""Stop strings and dropped markers in a stream of text.

Of several stop strings the one that *ends* first wins; of two that end together, the longer one.
That rule can be decided character by character, so the result does not depend on how the text is
cut into pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from omlx.text.detokenize import Detokenizer

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class _Filter:
    """Stream filter that holds back what may be the beginning of a pattern."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._held = ""

    @property
    def holds(self) -> bool:
        """Whether text is held back."""
        return bool(self._held)

    def finish(self) -> str:
        """Return what was held back and did not become a pattern."""
        held, self._held = self._held, ""
        return held

    def _match(self, text: str) -> tuple[int, int, str] | None:
        """Return end, start and pattern of the match that ends first; the longer one of two that
        end together.
        """
        matches = []
        for pattern in self._patterns:
            start = text.find(pattern)
            if start >= 0:
                matches.append((start + len(pattern), start, pattern))
        return min(matches, default=None)

    def _certain(self, text: str) -> str:
        """Hold back the end of a text without matches; return the rest."""
        held = max((overlap(text, pattern) for pattern in self._patterns), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


class StopStringFilter(_Filter):
    """Filter that passes text up to the first stop string; `matched` is that string."""

    matched: str | None = None

    def feed(self, text: str) -> str:
        """Return the text that certainly precedes any stop string; nothing after a match."""
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
    """Filter that drops markers without meaning for a reader, as some models put around their
    answers.
    """

    def feed(self, text: str) -> str:
        """Return the text that is certain, without markers."""
        text, passed = self._held + text, ""
        while (match := self._match(text)) is not None:
            end, start, _ = match
            passed, text = passed + text[:start], text[end:]
        return passed + self._certain(text)


class WrapperFilter:
    """Filter that drops a pair of markers around a whole text; elsewhere they are text."""

    def __init__(self, markers: tuple[str, str]) -> None:
        self._open, self._close = markers
        self._opened = not self._open
        self._plain = not self._open  # there is no marker to look for
        self._held = ""

    @property
    def holds(self) -> bool:
        """Whether text is held back."""
        return bool(self._held)

    def feed(self, text: str) -> str:
        """Return the text that is certain."""
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
        """Return what was held back, without the closing marker."""
        held, self._held = self._held, ""
        if self._plain or not self._opened:
            return held
        return held.rstrip().removesuffix(self._close)


class StopStringMatcher:
    """The engine's `StopMatcher` for stop strings."""

    def __init__(
        self, tokenizer: TokenizerWrapper, stops: Sequence[str], context: Iterable[int] = ()
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, context)
        self._filter = StopStringFilter(stops)

    def push(self, token: int) -> bool:
        """Return whether a stop string is complete with this token."""
        self._filter.feed(self._detokenizer.feed(token))
        return self._filter.matched is not None


def overlap(text: str, marker: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if marker.startswith(text[len(text) - n :])), 0)
