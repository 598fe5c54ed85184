"""What a token takes by now, by the place where it stands: behind a match of some length, or where nothing matches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from omlx.engine.speculation.acceptance import slot

DECAY: Final = 0.94
NOWHERE: Final = -1
"""The place of a token where nothing matches."""


@dataclass(slots=True)
class Pace:
    """Of one row. `match` is how long the match is behind which the next tokens stand, 0 for none."""

    match: int = 0
    _spent: dict[int, tuple[float, float]] = field(default_factory=dict)

    def learn(self, tokens: int, seconds: float) -> None:
        """A step brought so many. Nobody knows yet where the next one begins."""
        place, self.match = self._place(0), 0
        before = self._spent.get(place, (0.0, 0.0))
        self._spent[place] = before[0] * DECAY + tokens, before[1] * DECAY + seconds

    def worth(self, plain: float, speedup: float, n: int) -> list[float]:
        """The seconds that each of the next n tokens takes by now, if those before it go on as matched; at most what
        they take with the fastest window at hand."""
        here = plain / max(1.0, speedup)
        places = [self._place(i) for i in range(n)]
        worth = {
            place: min(plain, seconds / tokens) for place, (tokens, seconds) in self._spent.items()
        }
        worth[places[0]] = here
        return [worth.get(place, here) for place in places]

    def _place(self, i: int) -> int:
        return slot(self.match, i) if self.match else NOWHERE
