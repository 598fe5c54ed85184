"""The prefix cache of a draft model, with an index of its own."""

from __future__ import annotations

from omlx.engine.model import Cache, MakeCache, Model
from omlx.engine.prefix.index import PrefixIndex
from omlx.engine.prefix.payload import Payloads, layout_of, uncacheable
from omlx.engine.speculation.drafters.draft_cache import DraftCaches
from omlx.engine.speculation.drafters.draft_row import DraftRow


class DraftPrefixes:
    """At most `max_bytes` of prefixes; None, or a cache that cannot be cut into blocks: none."""

    def __init__(
        self, model: Model, make_cache: MakeCache, block_tokens: int, max_bytes: int | None
    ) -> None:
        self._make_cache = make_cache
        self._kept = Payloads(make_cache)
        self._index: PrefixIndex | None = None
        if max_bytes is not None and uncacheable(make_cache()) is None:
            self._index = PrefixIndex(layout_of(model, make_cache), block_tokens, max_bytes)

    def length(self, words: list[int]) -> int:
        """Return how many leading words would be restored."""
        match = None if self._index is None else self._index.match(words)
        return 0 if match is None else match.length

    def restore(self, row: int, words: list[int]) -> tuple[Cache, int]:
        """Return a cache of the longest prefix of `words`, with room for all, and its length."""
        if self._index is None:
            return self._make_cache(), 0
        match = self._index.match(words)
        self._index.use(row, match)
        if match is None:
            return self._make_cache(), 0
        return self._kept.build(match.pieces, match.length, len(words)), match.length

    def stable(self, row: DraftRow) -> int:
        """Return at how many tokens a catch-up stops to be saved, 0 for nowhere: at the prompt's
        stable end, where a cache resumes only at saved positions.
        """
        if self._index is None or row.skipped or self._index.layout.resumes_anywhere:
            return 0
        return min(row.words_before(row.sequence.request.stable), row.size - 1)

    def save(self, row: DraftRow, caches: DraftCaches) -> None:
        """Store what the row's cache holds; it leaves a shared one."""
        name = row.sequence.row
        held = caches.held(name)
        if self._index is not None and held and not row.skipped:
            pieces, evicted = self._index.insert(name, row.words(0, held))
            self._kept.evict(evicted)
            self._kept.keep(caches.separate(name).layers, pieces)

    def release(self, row: int) -> None:
        """Forget a row."""
        if self._index is not None:
            self._index.release(row)

    def clear(self) -> None:
        """Evict all prefixes."""
        if self._index is not None:
            self._kept.evict(self._index.clear())

    def set_budget(self, max_bytes: int) -> None:
        """Store at most `max_bytes` from now on."""
        if self._index is not None:
            self._kept.evict(self._index.evict(max_bytes))
            self._index.max_bytes = max_bytes

    @property
    def nbytes(self) -> int:
        return self._kept.nbytes

    def check(self) -> None:
        """Raise AssertionError if the index counts fewer bytes than are stored."""
        if self._index is not None:
            self._index.check()
            assert self._index.nbytes >= self._kept.nbytes
