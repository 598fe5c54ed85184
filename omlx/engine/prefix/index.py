"""The prefix cache's index: which prefixes are cached, found by their tokens. Pure Python.

Matching counts tokens, not blocks: a partial hit may end inside a block. The size never exceeds the
limit in bytes. Evicted is what has the largest age · bytes / tokens: what was not used for long,
takes many bytes and is computed again quickly costs least to lose. Blocks are evicted from the ends
of branches; windows and states, which only decide where a prefix can be restored, from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, count
from math import inf
from typing import Final

from omlx.engine.piece import Kind, Layout, Piece
from omlx.engine.prefix.tree import Block, PrefixTree


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


class EvictionQueue:
    """Candidates for eviction: the last block of a branch (as None), a window or a state.

    `pinned` pieces are left out, and so are locked blocks unless `include_locked`. A last block
    that no window or state lets a prefix be restored from is of no use, and comes first.
    """

    def __init__(self, tree: PrefixTree, pinned: set[int], *, include_locked: bool) -> None:
        self._tree = tree
        self._include_locked = include_locked
        self._heap: list[tuple[float, int, Block, Piece | None]] = []
        self._order = count()
        for block in tree.blocks:
            self.add(block)
            for piece in block.extras:
                if piece.id not in pinned:
                    weight = tree.layout.nbytes(piece) / piece.tokens
                    self._push(self._age(tree.used[piece.id]) * weight, block, piece)

    def add(self, block: Block | None) -> None:
        """Add a block if it is the last of a branch now."""
        if block is None or block.parent is None or block.children:
            return
        if block.locks and not self._include_locked:
            return
        if not self._tree.layout.resumes_anywhere and not block.extras:
            self._push(inf, block, None)
            return
        weight = self._tree.bytes_of(block.pieces) / len(block.tokens)
        self._push(self._age(block.used) * weight, block, None)

    def pop(self) -> tuple[Block, Piece | None] | None:
        if not self._heap:
            return None
        return heappop(self._heap)[2:]

    def _age(self, used: int) -> int:
        return self._tree.clock - used + 1

    def _push(self, score: float, block: Block, piece: Piece | None) -> None:
        heappush(self._heap, (-score, next(self._order), block, piece))


SLACK: Final = 50
"""Eviction frees a fiftieth of the limit more than needed: building its queue reads all blocks."""


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The pieces that restore the first `length` tokens, which end in `block`."""

    length: int
    parts: tuple[Piece, ...]
    block: Block

    @property
    def pieces(self) -> tuple[int, ...]:
        """Their ids."""
        return tuple(piece.id for piece in self.parts)

    @property
    def tokens(self) -> list[int]:
        """All tokens that its blocks hold: pieces of the last one may end behind `length`, where a
        prompt that matches them so far may continue otherwise.
        """
        path = [block.tokens for block in self.block.upwards()]
        return list(chain.from_iterable(reversed(path)))


class PrefixIndex(PrefixTree):
    """Index of cached prefixes: `insert` returns pieces to copy, `match` pieces to restore.

    An owner (a row) holds the blocks it read or inserted until it releases them: they are locked
    against eviction for room.
    """

    def __init__(self, layout: Layout, block_tokens: int, max_bytes: int) -> None:
        super().__init__(layout, block_tokens)
        self.max_bytes = max_bytes
        self._held: dict[int, Block] = {}
        self._newest_id = 0

    def match(self, tokens: Sequence[int]) -> PrefixMatch | None:
        """Return the longest prefix that can be restored, leaving at least one token to compute.

        Modifies nothing.
        """
        path, longest = self.descend(tokens), len(tokens) - 1
        # Blocks that differ further on may hold different states of what they share: try them all.
        for depth in range(len(path), -1, -1):
            best: PrefixMatch | None = None
            for block, n in self.continuations(path[:depth], tokens):
                stop = min(block.start + n, longest)
                match = self._restorable([*path[:depth], block], stop)
                if match is not None and (best is None or match.length > best.length):
                    best = match
            if best is not None:
                return best
        return None

    def shared(self, tokens: Sequence[int]) -> int:
        """Return the longest cached run of leading tokens, restorable or not. Modifies nothing."""
        path = self.descend(tokens)
        behind = self.continuations(path, tokens)
        return (path[-1].stop if path else 0) + (behind[0][1] if behind else 0)

    def use(self, owner: int, match: PrefixMatch | None) -> None:
        """Count a hit or a miss. The blocks of a hit are held until `release(owner)`."""
        self.clock += 1
        if match is None:
            self.counts.misses += 1
            return
        self.counts.hits += 1
        self.counts.hit_tokens += match.length
        self.counts.states_used += self.layout.recurrent
        self.touch(match.pieces)
        self._hold(owner, match.block)

    def release(self, owner: int) -> None:
        held = self._held.pop(owner, None)
        if held is not None:
            for block in held.upwards():
                block.locks -= 1

    def insert(
        self, owner: int, tokens: Sequence[int], room: int | None = None
    ) -> tuple[tuple[Piece, ...], tuple[int, ...]]:
        """Insert the prefix `tokens`, all of which a cache holds.

        Returns the pieces to copy out of that cache, and the ids of those to evict before. Inserts
        nothing that could not be restored or does not fit. `room` is by how many bytes the index
        may grow, or has to shrink if negative; None for up to the limit. `owner` holds the blocks.
        """
        self.clock += 1
        self.counts.asked += 1
        path = self.descend(tokens)
        # The last block may grow, or reach beyond the tokens. One that differs needs a sibling.
        for block, same in self.continuations(path, tokens):
            if same == min(len(block.tokens), len(tokens) - block.start):
                path.append(block)
                break
        if path:
            self._hold(owner, path[-1])
        pinned = {piece.id for piece in windows_of(path, len(tokens), self.layout.window)}
        self.touch(pinned)
        missing = self._missing(path, len(tokens))
        limit = self.max_bytes
        if room is not None:
            limit = max(0, min(limit, self.nbytes + room))
        evicted = self._make_room(self.bytes_of(missing), pinned, limit)
        pieces = self._fitting(missing, limit)
        self.counts.refused += bool(missing) and not pieces
        self.attach(path, pieces, tokens)
        if path:
            self._hold(owner, path[-1])
        return tuple(pieces), tuple(evicted)

    def evict(self, max_bytes: int) -> tuple[int, ...]:
        """Shrink to `max_bytes`, locked blocks too. Return the ids of the evicted pieces."""
        return tuple(self._shrink(max_bytes, set(), include_locked=True))

    def clear(self) -> tuple[int, ...]:
        """Evict everything. Return the ids of the pieces."""
        self._held.clear()
        removed: list[int] = []
        for block in list(self.root.children):
            removed += self.cut(block)
        return tuple(removed)

    def forget(self, pieces: Iterable[int]) -> tuple[int, ...]:
        """Remove pieces that were not copied after all, and those of no use without them.

        Returns the ids of all.
        """
        lost, removed = set(pieces), list[int]()
        blocks = self.blocks
        for block in list(blocks):
            if block in blocks and any(piece.id in lost for piece in block.rows):
                removed += self.cut(block)
        for block in blocks:
            for piece in block.extras:
                if piece.id in lost:
                    removed.append(self.remove(block, piece))
        return tuple(removed)

    def check(self) -> None:
        """Raise AssertionError if the index is inconsistent. Tests call it after every request."""
        super().check()
        assert self.nbytes <= self.max_bytes, self.nbytes
        for held in self._held.values():
            for block in held.upwards():
                assert block.locks

    def _restorable(self, path: Sequence[Block], stop: int) -> PrefixMatch | None:
        """Return the longest prefix up to `stop` that ends in the last block of `path`."""
        block, window = path[-1], self.layout.window
        ends = {stop} if stop > block.start else set()
        if self.layout.recurrent:
            ends = {end for end in block.states if end <= stop}
        elif window is not None:
            ends |= {piece.stop for piece in block.windows if piece.stop <= stop}
        for length in sorted(ends, reverse=True):
            windows = windows_of(path, length, window)
            if any(gaps(windows, length, window, self.block_tokens)):
                continue
            pieces: list[Piece] = []
            for part in path:
                pieces += [piece for piece in part.rows if piece.start < length]
            pieces += windows
            if self.layout.recurrent:
                pieces.append(block.states[length])
            return PrefixMatch(length, tuple(pieces), block)
        return None

    def _missing(self, path: Sequence[Block], length: int) -> list[Piece]:
        """Return the pieces to add so that `length` tokens can be restored, rows first."""
        n, window = self.block_tokens, self.layout.window
        rows = spans(path[-1].stop if path else 0, length, n)
        missing = [self._piece("rows", start, stop) for start, stop in rows]
        rest = gaps(windows_of(path, length, window), length, window, n)
        missing += [self._piece("window", start, stop) for start, stop in rest]
        if self.layout.recurrent and not (path and length in path[-1].states):
            earlier = [0]
            for block in path:
                earlier += [end for end in block.states if end < length]
            missing.append(self._piece("state", max(earlier), length))
        return missing

    def _piece(self, kind: Kind, start: int, stop: int) -> Piece:
        self._newest_id += 1
        return Piece(self._newest_id, kind, start, stop)

    def _fitting(self, pieces: list[Piece], limit: int) -> list[Piece]:
        """Return as many pieces as fit; all or none where a part could not be restored."""
        room, total = limit - self.nbytes, self.bytes_of(pieces)
        while pieces and total > room and self.layout.resumes_anywhere:
            total -= self.layout.nbytes(pieces[-1])
            pieces = pieces[:-1]
        if total > room:
            return []
        return pieces

    def _hold(self, owner: int, block: Block) -> None:
        for held in block.upwards():
            held.locks += 1
            held.used = self.clock
        self.release(owner)
        self._held[owner] = block

    def _make_room(self, need: int, pinned: set[int], limit: int) -> list[int]:
        if need > limit and not self.layout.resumes_anywhere:
            need = 0  # never fits: evict nothing for it
        if self.nbytes + need <= limit:
            return []
        return self._shrink(max(0, limit - need - limit // SLACK), pinned)

    def _shrink(self, target: int, pinned: set[int], *, include_locked: bool = False) -> list[int]:
        evicted: list[int] = []
        if self.nbytes <= target:
            return evicted
        queue = EvictionQueue(self, pinned, include_locked=include_locked)
        while self.nbytes > target:
            candidate = queue.pop()
            if candidate is None:
                break
            block, piece = candidate
            if piece is None and block in self.blocks and not block.children:
                evicted += self.cut(block)
                queue.add(block.parent)
            elif piece is not None and piece.id in self.used:  # the block may be gone
                evicted.append(self.remove(block, piece))
                queue.add(block)
        return evicted
