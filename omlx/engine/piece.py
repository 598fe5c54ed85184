"""What of a cache is kept apart: rows that a span of tokens left behind, or a state at its end. Pure Python.

| kind   | of layers that                         | holds                     | a hit at length n needs |
|--------|----------------------------------------|---------------------------|-------------------------|
| rows   | attend to everything                   | the rows of [start, stop) | all of [0, n)           |
| window | attend to the last `window` tokens     | the rows of [start, stop) | all of [n - window, n)  |
| state  | are recurrent                          | the state behind `stop`   | the one whose stop is n |

A row depends on nothing but the tokens up to it, so rows of a sliding layer are kept by span like those of any other:
windows that overlap, as those of a conversation's turns do, share them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["rows", "window", "state"]

LEAST_INTERVAL: Final = 512
MANY: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Piece:
    """A payload, by its id. `stop - start` tokens need not be read again where it is there; a state's `start` is the
    end of the state before it."""

    id: int
    kind: Kind
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Layout:
    """What one model's cache takes, in bytes: a token's rows, by kind of layer, and its recurrent states.

    `window` is how many rows back a sliding layer looks, None where there is none. `row_bytes` may be 0.
    """

    row_bytes: int
    window_bytes: int = 0
    window: int | None = None
    state_bytes: int = 0
    recurrent: bool = False

    @property
    def resumes_anywhere(self) -> bool:
        """Whether any matched length can be continued, or only those at which something was kept."""
        return self.window is None and not self.recurrent

    @property
    def interval(self) -> int:
        """Tokens between two states of a long prompt: what a state takes is then at most what the rows between take,
        so that being able to resume anywhere costs no more than resuming does."""
        if not self.recurrent:
            return self.window or MANY
        return min(
            MANY,
            max(LEAST_INTERVAL, self.state_bytes // self.row_bytes if self.row_bytes else MANY),
        )

    def nbytes(self, piece: Piece) -> int:
        if piece.kind == "state":
            return self.state_bytes
        return piece.tokens * (self.row_bytes if piece.kind == "rows" else self.window_bytes)

    def cache_bytes(self, tokens: int) -> int:
        """A live cache of so many tokens."""
        sliding = tokens if self.window is None else min(tokens, self.window)
        return tokens * self.row_bytes + sliding * self.window_bytes + self.state_bytes
