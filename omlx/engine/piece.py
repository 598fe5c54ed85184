"""Pieces: the units of the prefix cache. Pure Python.

| kind   | of layers that                     | holds                 | a hit at length n needs |
|--------|------------------------------------|-----------------------|-------------------------|
| rows   | attend to everything               | rows of [start, stop) | all of [0, n)           |
| window | attend to the last `window` tokens | rows of [start, stop) | all of [n - window, n)  |
| state  | are recurrent                      | the state at `stop`   | the one whose stop is n |

Rows depend only on the tokens up to them, so windows that overlap, as those of a conversation's
turns do, share pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias, TypeVar

Kind: TypeAlias = Literal["rows", "window", "state"]

RUN_BYTES: Final = 4 << 20
"""Bytes of adjacent pieces that are copied together and share arrays. A block of a large model has
more; of a small one it has many arrays of a few KB.
"""

MIN_INTERVAL: Final = 512
MAX_INTERVAL: Final = 1 << 14
"""Bounds of `Layout.interval`, in tokens."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A payload by its id, for the tokens [start, stop); a state starts at the state before it."""

    id: int
    kind: Kind
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Layout:
    """Bytes of one model's cache: per token and kind of layer, and of all recurrent states.

    `window` are the tokens that a sliding layer attends to, None without such a layer. `row_bytes`
    may be 0. `growth_bytes` is what a token adds to states that grow, `record_bytes` what a pass
    that records its states adds at most.
    """

    row_bytes: int
    window_bytes: int = 0
    window: int | None = None
    state_bytes: int = 0
    recurrent: bool = False
    growth_bytes: int = 0
    record_bytes: int = field(default=0, repr=False)  # of no stored piece

    @property
    def resumes_anywhere(self) -> bool:
        """Whether a cache can be restored at any matched length, or only where pieces end."""
        return self.window is None and not self.recurrent

    @property
    def interval(self) -> int:
        """Tokens between two states of a prompt, so that a state takes no more than the rows
        between.
        """
        if not self.recurrent:
            return self.window or MAX_INTERVAL
        if not self.row_bytes or self.growth_bytes:
            return MAX_INTERVAL
        return min(MAX_INTERVAL, max(MIN_INTERVAL, self.state_bytes // self.row_bytes))

    def nbytes(self, piece: Piece) -> int:
        if piece.kind == "state":
            return self.state_bytes + piece.stop * self.growth_bytes
        return piece.tokens * (self.row_bytes if piece.kind == "rows" else self.window_bytes)

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of a KV cache of `tokens` tokens."""
        sliding = tokens if self.window is None else min(tokens, self.window)
        held = tokens * (self.row_bytes + self.growth_bytes) + sliding * self.window_bytes
        return held + self.state_bytes + self.record_bytes


@dataclass(frozen=True, slots=True)
class ModelRoom:
    """Room of a loaded model: tokens of context, rows, bytes of KV caches (None: any)."""

    context: int
    rows: int
    layout: Layout
    free_bytes: int | None


class Span(Protocol):
    """Tokens [start, stop) of a kind of layer."""

    @property
    def kind(self) -> Kind: ...

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...


S = TypeVar("S", bound=Span)


def runs(spans: Iterable[S], nbytes: Callable[[S], int]) -> Iterator[list[S]]:
    """Yield spans in their order, adjacent ones together up to `RUN_BYTES`; a state is alone."""
    run: list[S] = []
    size = 0
    for span in spans:
        size += nbytes(span)
        follows = run and span.kind == run[-1].kind != "state" and span.start == run[-1].stop
        if run and (not follows or size > RUN_BYTES):
            yield run
            run, size = [], nbytes(span)
        run.append(span)
    if run:
        yield run
