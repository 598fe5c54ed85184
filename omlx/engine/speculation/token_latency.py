"""Seconds per token of one request, by how predictable the text is where the token stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from omlx.engine.speculation.acceptance import bin_of

DECAY: Final = 0.94
"""Weight of the earlier steps of a bin after each step."""

NO_MATCH: Final = -1
"""The bin of a token before which nothing matches."""


@dataclass(slots=True)
class TokenLatency:
    """Decaying seconds and tokens by bin.

    `match` is the length in tokens of the match behind which the next tokens stand, 0 for none.
    """

    match: int = 0
    _spent: dict[int, tuple[float, float]] = field(default_factory=dict)

    def learn(self, tokens: int, seconds: float) -> None:
        """Record a step that committed `tokens`. Resets `match`, which it made invalid."""
        index, self.match = self._bin(0), 0
        known_tokens, known_seconds = self._spent.get(index, (0.0, 0.0))
        self._spent[index] = known_tokens * DECAY + tokens, known_seconds * DECAY + seconds

    def seconds_per_token(self, plain: float, speedup: float, n: int) -> list[float]:
        """Return the seconds that each of the next n tokens takes if all before it match.

        `plain` seconds are the upper bound. The first token, and bins without a record, are
        estimated as `plain / speedup`, of the fastest draft at hand.
        """
        first = plain / max(1.0, speedup)
        bins = [self._bin(i) for i in range(n)]
        by_bin = {
            index: min(plain, seconds / tokens) for index, (tokens, seconds) in self._spent.items()
        }
        by_bin[bins[0]] = first
        return [by_bin.get(index, first) for index in bins]

    def _bin(self, i: int) -> int:
        return bin_of(self.match, i) if self.match else NO_MATCH
