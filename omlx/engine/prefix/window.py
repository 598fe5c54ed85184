"""The rows that sliding-window layers need to resume, and which of them are cached. Pure Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from omlx.engine.piece import Piece
from omlx.engine.prefix.block import Block


def windows_of(path: Iterable[Block], length: int, window: int | None) -> list[Piece]:
    """Return the cached pieces among the last `window` tokens before `length`, in order."""
    pieces: list[Piece] = []
    if window is None:
        return pieces
    first = max(0, length - window)
    for block in path:
        pieces += [piece for piece in block.windows if first < piece.stop and piece.start < length]
    return pieces


def gaps(
    pieces: Iterable[Piece], length: int, window: int | None, block_tokens: int
) -> Iterator[tuple[int, int]]:
    """Yield the spans of the last `window` tokens before `length` that `pieces` leave out."""
    if window is None:
        return
    at = max(0, length - window)
    for piece in pieces:
        yield from spans(at, min(piece.start, length), block_tokens)
        at = max(at, piece.stop)
    yield from spans(at, length, block_tokens)


def spans(start: int, stop: int, block_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield [start, stop), cut where blocks end."""
    while start < stop:
        end = min(stop, start - start % block_tokens + block_tokens)
        yield start, end
        start = end
