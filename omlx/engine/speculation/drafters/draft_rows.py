"""The rows of a draft model: the tokens that their caches hold and lack, and stored prefixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from omlx.engine.device.model import Cache, MakeCache, Model
from omlx.engine.device.payloads import (
    Payload,
    Payloads,
    assemble,
    layout_of,
    read_payloads,
    uncacheable,
)
from omlx.engine.device.ragged import RowsCache
from omlx.engine.device.sampling import RowSampler
from omlx.engine.disk.tier import LOAD_BYTES, DiskTier
from omlx.engine.piece import Layout
from omlx.engine.prefix.index import PrefixIndex
from omlx.engine.step.row import Row
from omlx.engine.vision.spans import words_between


@dataclass(slots=True)
class DraftRow:
    """The first `valid` tokens of the row's cache are committed.

    `unreadable`: the row has an id outside the model's embedding; the first `scanned` tokens were
    checked. The cache begins behind the first `skipped` words, `unread` of which no cached prefix
    has; `unseen` counts these and image tokens, of which a draft model reads nothing. `idle` counts
    rounds in which only others drafted.
    """

    target: Row
    sampler: RowSampler
    valid: int = 0
    scanned: int = 0
    unreadable: bool = False
    unseen: int = 0
    skipped: int = 0
    unread: int = 0
    idle: int = 0
    id: int = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.target.id

    @property
    def size(self) -> int:
        """Tokens of the row that the cache is to hold."""
        return len(self.target.tokens) - self.unseen

    @property
    def lag(self) -> int:
        """Tokens to read before the next draft."""
        return self.size - self.valid

    def skip(self, words: int) -> None:
        """Begin the cache, which must be empty, `words` words later."""
        self.skipped += words
        self.unseen += words
        self.unread += words

    def has_id_from(self, limit: int) -> bool:
        """Return whether an id is not below `limit`. Looks at new tokens only."""
        if not self.unreadable:
            new = self.target.tokens[self.scanned :]
            self.scanned = len(self.target.tokens)
            self.unreadable = max(new, default=0) >= limit
        return self.unreadable

    def words(self, start: int, stop: int | None = None) -> list[int]:
        """Return words [start, stop) of the row, counted without image tokens."""
        last = len(self.target.tokens) if stop is None else stop
        return words_between(self.target.tokens, self.target.request.spans, start, last)

    def words_before(self, at: int) -> int:
        """Return how many of the first `at` tokens, which end in no image, are words."""
        spans = self.target.request.spans
        return at - sum(span.stop - span.start for span in spans if span.stop <= at)


class DraftCaches:
    """The cache of each row, by row; `shared` is the cache of several rows."""

    def __init__(self) -> None:
        self.shared: RowsCache | None = None
        self._by_row: dict[int, RowsCache] = {}

    def __contains__(self, row: int) -> bool:
        return row in self._by_row

    def __getitem__(self, row: int) -> RowsCache:
        return self._by_row[row]

    @property
    def members(self) -> list[int]:
        return [] if self.shared is None else list(self.shared.lengths)

    def held(self, row: int) -> int:
        """Return how many tokens the cache of a row holds."""
        return self._by_row[row].lengths[row]

    def open(self, row: int, layers: Cache, length: int = 0) -> None:
        """Give a row a cache of its own that holds `length` tokens."""
        self.drop(row)
        self._by_row[row] = RowsCache(row, layers, length)

    def separate(self, row: int) -> RowsCache:
        """Return the row's own cache, copied out of the shared one."""
        if row in self.members:
            assert self.shared is not None
            own = self.shared.extract(row)
            self.drop(row)
            self._by_row[row] = own
        return self._by_row[row]

    def gather(self, rows: Sequence[int]) -> RowsCache:
        """Return a cache that holds these rows, and maybe others."""
        first = self._by_row[rows[0]]
        if len(rows) == 1 and first is not self.shared:
            return first
        cache = self.shared or first
        joining = [self._by_row[row] for row in rows if self._by_row[row] is not cache]
        if joining:
            cache.join(joining)
        self._by_row |= dict.fromkeys(rows, cache)
        self.shared = cache
        return cache

    def drop(self, row: int) -> None:
        """Delete the cache of a row. An unknown one is ignored."""
        cache = self._by_row.pop(row, None)
        if cache is None or cache is not self.shared:
            return
        if len(cache.lengths) > 1:
            cache.filter([member for member in cache.lengths if member != row])
        else:
            self.shared = None

    @contextmanager
    def dropping_on_error(self, cache: RowsCache) -> Iterator[None]:
        """Delete a cache, with all of its rows, if the block raises: it is unproven then."""
        proven = False
        try:
            yield
            proven = True
        finally:
            if not proven:
                for row in cache.lengths:
                    del self._by_row[row]
                if cache is self.shared:
                    self.shared = None

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in {*self._by_row.values()})

    def check(self) -> None:
        """Raise AssertionError if a cache contradicts its record."""
        for row, cache in self._by_row.items():
            assert row in cache.lengths
            assert (cache is self.shared) == cache.shared
            cache.check()


class DraftPrefixes:
    """At most `max_bytes` of prefixes; None, or a cache that cannot be cut into blocks: none.

    Below them are those on `disk`, which are stored here before they are restored.
    """

    def __init__(
        self,
        model: Model,
        make_cache: MakeCache,
        block_tokens: int,
        max_bytes: int | None,
        disk: DiskTier | None,
    ) -> None:
        self._make_cache = make_cache
        self._kept = Payloads(make_cache)
        self._off = max_bytes is None or uncacheable(make_cache()) is not None
        layout = Layout(0) if self._off else layout_of(model, make_cache)
        self._index = PrefixIndex(layout, block_tokens, max_bytes or 0)
        self._disk = None if self._off else disk
        self._fetching: dict[int, tuple[list[int], list[Payload]]] = {}
        if self._disk is not None:
            self._disk.dump = self._kept.to_record

    def begin(self, row: Row) -> None:
        """Look for a longer prefix on disk for a new row."""
        if self._disk is None:
            return
        tokens = row.tokens
        words = words_between(tokens, row.request.spans, 0, len(tokens))
        if self._disk.begin(row.id, words, self.length(words)):
            self._fetching[row.id] = words, []

    def ready(self, row: int) -> bool:
        """Take what has come from disk for a row. Return whether nothing more comes."""
        if row not in self._fetching:
            return True
        assert self._disk is not None
        words, payloads = self._fetching[row]
        records, length = self._disk.take(row, LOAD_BYTES)
        payloads += read_payloads(records)
        if length is None:
            return False
        del self._fetching[row]
        if length > self.length(words):
            self._take(row, words[:length], payloads)
        return True

    def _take(self, row: int, words: list[int], payloads: list[Payload]) -> None:
        """Store a prefix that came from disk."""
        assert self._disk is not None
        pieces, evicted = self._index.insert(row, words)
        self._evict(evicted)
        cache = assemble(self._make_cache(), payloads, len(words), len(words))
        self._kept.keep(cache, pieces, payloads)
        self._disk.mark_stored(pieces)
        self._disk.count_hit(len(words))

    def _evict(self, pieces: tuple[int, ...]) -> None:
        self._kept.evict(pieces)
        if self._disk is not None:
            self._disk.evicted(pieces)

    def length(self, words: list[int]) -> int:
        match = self._index.match(words)
        return 0 if match is None else match.length

    def restore(self, row: int, words: list[int]) -> tuple[Cache, int]:
        """Return a cache of the longest prefix of `words`, with room for all, and its length."""
        match = self._index.match(words)
        self._index.use(row, match)
        if match is None:
            return self._make_cache(), 0
        if self._disk is not None:
            self._disk.offer(match.tokens, match.parts, hit=True)
        return self._kept.build(match.pieces, match.length, len(words)), match.length

    def stable(self, row: DraftRow) -> int:
        """Return at how many tokens a catch-up stops to be saved, 0 for nowhere: at the prompt's
        stable end, where a cache resumes only at saved positions.
        """
        if row.skipped or self._index.layout.resumes_anywhere:
            return 0
        return min(row.words_before(row.target.request.stable), row.size - 1)

    def save(self, row: DraftRow, caches: DraftCaches) -> None:
        """Store what the row's cache holds; it leaves a shared one."""
        name = row.target.id
        held = caches.held(name)
        if held and not (self._off or row.skipped):
            words = row.words(0, held)
            pieces, evicted = self._index.insert(name, words)
            self._evict(evicted)
            self._kept.keep(caches.separate(name).layers, pieces)
            match = self._index.match([*words, 0]) if self._disk is not None else None
            if self._disk is not None and match is not None and match.length == held:
                self._disk.offer(match.tokens, match.parts)

    def release(self, row: int) -> None:
        """Forget a row."""
        self._index.release(row)
        if self._disk is not None:
            self._disk.drop(row)
            self._fetching.pop(row, None)

    def clear(self) -> None:
        """Evict all prefixes, on disk too."""
        if self._disk is not None:
            self._disk.clear()
        self._evict(self._index.clear())

    def set_budget(self, max_bytes: int) -> None:
        """Store at most `max_bytes` from now on."""
        self._evict(self._index.evict(max_bytes))
        self._index.max_bytes = max_bytes

    def cache_bytes(self, tokens: int) -> int:
        """Return the bytes of a KV cache of `tokens` tokens; 0 where its layout is unknown."""
        return self._index.layout.cache_bytes(tokens)

    @property
    def nbytes(self) -> int:
        return self._kept.nbytes

    def check(self) -> None:
        """Raise AssertionError if the index counts fewer bytes than are stored."""
        self._index.check()
        assert self._index.nbytes >= self._kept.nbytes
