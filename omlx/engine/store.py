"""What finished requests leave behind: a few conversations, found again by their tokens. Pure Python.

Says which entry a new request may take over and up to which token; the caches themselves are the runner's. Taking
over removes the entry: its cache moves. To be replaced by a prefix cache behind the same protocol.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Protocol

from omlx.engine.limits import Traits

WHOLE_PROMPT: Final = 32
"""A prompt of fewer tokens is cheaper to read again than a conversation that it happens to begin."""


@dataclass(frozen=True, slots=True)
class Match:
    """Entry `entry` serves the first `length` tokens."""

    entry: int
    length: int


class PrefixStore(Protocol):
    def match(self, tokens: list[int]) -> Match | None:
        """The best entry for a prompt, leaving at least one token to compute. Does not modify the store."""
        ...

    def take(self, entry: int) -> None:
        """Forget an entry whose cache moves to a row."""
        ...

    def put(self, tokens: list[int], nbytes: int) -> tuple[int, list[int]]:
        """Keep a cache that holds exactly `tokens`. Returns its entry and the entries to evict for it."""
        ...


class ConversationStore:
    """Least recently used entries go first, by count and by bytes."""

    def __init__(self, traits: Traits, max_entries: int, max_bytes: int) -> None:
        self._traits = traits
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[int, tuple[list[int], int]] = OrderedDict()
        self._next = 0

    def match(self, tokens: list[int]) -> Match | None:
        best: Match | None = None
        for entry, (held, _) in self._entries.items():
            length = self._usable(held, tokens)
            # A short common part is not worth taking a long conversation from whoever continues it,
            # but a prompt that is all there (asked once more) is.
            enough = 2 * length >= len(held) or length == len(tokens) - 1 >= WHOLE_PROMPT
            if enough and length > 0 and (best is None or length > best.length):
                best = Match(entry, length)
        return best

    def take(self, entry: int) -> None:
        self._entries.pop(entry, None)

    def put(self, tokens: list[int], nbytes: int) -> tuple[int, list[int]]:
        self._next += 1
        self._entries[self._next] = (tokens, nbytes)
        evicted = []
        while len(self._entries) > self._max_entries or self.nbytes > self._max_bytes:
            entry, _ = self._entries.popitem(last=False)
            evicted.append(entry)
        return self._next, evicted

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self._entries.values())

    def _usable(self, held: list[int], tokens: list[int]) -> int:
        """How many tokens of an entry a prompt can use: all of them, or fewer where the cache can step back."""
        common = min(_common(held, tokens), len(tokens) - 1)
        if common == len(held):
            return common
        window = self._traits.sliding_window
        stuck = self._traits.recurrent or self._traits.unsupported or (window is not None and len(held) >= window)
        return 0 if stuck else common


def _common(a: list[int], b: list[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
