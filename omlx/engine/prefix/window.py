"""What sliding layers look back at, and what of it is there. Pure Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from omlx.engine.piece import Piece
from omlx.engine.prefix.block import Block


def windows_of(path: Iterable[Block], length: int, window: int | None) -> list[Piece]:
    """The pieces among the last `window` tokens before `length`, in order."""
    if window is None:
        return []
    first = max(0, length - window)
    return [
        piece
        for block in path
        for piece in block.windows
        if piece.stop > first and piece.start < length
    ]


def gaps(
    pieces: Iterable[Piece], length: int, window: int | None, block_tokens: int
) -> Iterator[tuple[int, int]]:
    """What of the last `window` tokens before `length` is not there, cut where blocks end."""
    if window is None:
        return
    at = max(0, length - window)
    for piece in pieces:
        yield from spans(at, min(piece.start, length), block_tokens)
        at = max(at, piece.stop)
    yield from spans(at, length, block_tokens)


def spans(start: int, stop: int, block_tokens: int) -> Iterator[tuple[int, int]]:
    """[start, stop) cut where blocks end."""
    while start < stop:
        end = min(stop, start - start % block_tokens + block_tokens)
        yield start, end
        start = end
