"""A draft model: a smaller model that samples with the same position-keyed Gumbel noise.

Rows that draft in the same step share each pass. The cache is caught up lazily: what a row
committed since its last draft is read first. After a rejection each layer is rewound as far as it
can be; the remaining tokens stay pending. Prefixes are cached in a separate index.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import ClassVar, Final

import mlx.core as mx

from omlx.engine.device.batch_probe import shared_refusal
from omlx.engine.device.model import MakeCache, Model, id_limit
from omlx.engine.device.ragged import RowsCache
from omlx.engine.device.rewind import traits
from omlx.engine.device.sampling import RowSampler
from omlx.engine.disk.tier import DiskTier
from omlx.engine.speculation.drafter import Draft, Proposal
from omlx.engine.speculation.drafters.draft_rows import DraftCaches, DraftPrefixes, DraftRow
from omlx.engine.speculation.drafters.sampler import SampledDrafter, token_sampler
from omlx.engine.speculation.strategy import Clause
from omlx.engine.step.prefill import FitPass
from omlx.engine.step.row import Row
from omlx.errors import Reason, RewindError

CATCH_UP_CHUNK: Final = 512
"""Tokens per pass while catching up."""

LOOK_BACK: Final = 128
"""Tokens at the end of a prompt that are read at first: whether a model is good shows there, and to
read the rest may take longer than it saves."""

MAX_WINDOW: Final = 16
"""Tokens that the first pass of a round reads at most: it computes logits for all of them."""

MAX_SHARED_WINDOW: Final = 64
"""The same where rows share passes: a row that lags further leaves the shared cache, a copy,
and catches up on its own."""

LINGER_ROUNDS: Final = 16
"""Rounds that a row stays in the shared cache while only others draft."""

MAX_PADDING: Final = 2.0
"""Rows share a cache while it takes less than this multiple of what they hold: all are padded to
the longest."""


class DraftModel(SampledDrafter):
    """A `Drafter`. `vocab_size` is the target's, `prefix_bytes` bounds the prefix cache.

    `unshared` returns why rows cannot share passes; siblings have it in common. `disk` stores
    prefixes; a row whose prefix is on its way proposes nothing yet. `fit` bounds long passes.
    """

    kind: ClassVar[str] = "draft"
    name = "draft"

    def __init__(
        self,
        name: str,
        model: Model,
        vocab_size: int,
        make_cache: MakeCache,
        *,
        prefix_bytes: int | None = 128 << 20,
        block_tokens: int = 64,
        unshared: Callable[[], Reason | None] | None = None,
        disk: DiskTier | None = None,
        fit: FitPass = lambda start, wanted: min(wanted, CATCH_UP_CHUNK),
    ) -> None:
        self.name = name
        self._model, self._vocab_size = model, vocab_size
        self._make_cache = make_cache
        self._traits = traits(make_cache())
        self._id_limit = id_limit(model, make_cache)
        known = min(vocab_size, self._id_limit)
        probe = partial(shared_refusal, model, make_cache, known)
        self._unshared = unshared or lru_cache(maxsize=1)(probe)  # short passes, when first asked
        self._rows: dict[int, DraftRow] = {}
        self._caches = DraftCaches()
        self._prefixes = DraftPrefixes(model, make_cache, block_tokens, prefix_bytes, disk)
        self._fit = fit

    def sibling(self) -> DraftModel:
        """Return a drafter over the same model, without rows or a prefix cache."""
        same = self.name, self._model, self._vocab_size, self._make_cache
        return DraftModel(*same, prefix_bytes=None, unshared=self._unshared, fit=self._fit)

    def open(self, row: Row) -> None:
        self._prefixes.begin(row)

    def cache_bytes(self, tokens: int) -> int:
        return self._prefixes.cache_bytes(tokens)

    @property
    def held_bytes(self) -> int:
        return self._caches.nbytes

    def propose(self, row: Row, limit: int, clause: Clause) -> Proposal | None:
        if not self._prefixes.ready(row.id):
            return None
        own = self._row(row)
        if limit < 1 or own.has_id_from(self._id_limit):
            return None
        lag = own.lag
        if own.skipped and lag > LOOK_BACK and not self._caches.held(own.id):
            own.skip(lag - LOOK_BACK)  # nothing was read yet
            lag = LOOK_BACK
        return Proposal(self.name, limit, lag=lag, skipped=own.unread, clause=clause)

    def catch_up(self, row: Row, limit: int) -> int:
        own = self._row(row)
        self._rewind(own)
        self._read_ahead(own, limit)
        own.valid = self._caches.held(own.id)
        return own.lag

    def draft(self, row: Row, limit: int) -> Draft | None:
        return self._draft([(self._row(row), limit)]).get(row.id) if limit > 0 else None

    def draft_together(self, limits: Sequence[tuple[Row, int]]) -> dict[int, Draft]:
        rows = [(self._row(row), limit) for row, limit in limits]
        return self._draft(rows) if self._may_share([row for row, _ in rows]) else {}

    def _may_share(self, rows: Sequence[DraftRow]) -> bool:
        if any(row.target.mask is not None or row.size < 2 for row in rows):
            return False  # tokens are read back one by one; a row that holds nothing cannot join
        names = {*self._caches.members, *(row.id for row in rows)}
        sizes = [self._rows[name].size for name in names]
        fits = len(sizes) * max(sizes) < MAX_PADDING * sum(sizes)
        return fits and self._unshared() is None

    def _draft(self, limits: Sequence[tuple[DraftRow, int]]) -> dict[int, Draft]:
        """Draft in the same passes for all rows, by row, up to the limit of each."""
        started = time.perf_counter()
        rows = [row for row, _ in limits]
        cache = self._gather(rows)
        members = [self._rows[member] for member in cache.lengths]
        with self._caches.dropping_on_error(cache):
            drafted = self._draft_tokens(cache, members, max([limit for _, limit in limits]))
        drafted = [drafted[members.index(row)] for row in rows]
        return self._drafts([(row.target, limit) for row, limit in limits], drafted, started)

    def _gather(self, rows: Sequence[DraftRow]) -> RowsCache:
        """Return a cache of these rows, rolled back and caught up but for the first window.

        Other rows of the shared cache stay in it for a while, and are read along.
        """
        asked = [row.id for row in rows]
        members = self._caches.members
        together = len(rows) > 1 or asked[0] in members
        others = [member for member in members if member not in asked] if together else []
        for name in (*asked, *others):
            self._rewind(self._rows[name])
        for name in others:
            other = self._rows[name]
            other.idle += 1
            if other.idle > LINGER_ROUNDS or other.lag > MAX_SHARED_WINDOW:
                self._caches.separate(name)
        if len(asked) == 1 and self._caches.members == asked:  # the others have left
            self._caches.separate(asked[0])
            together = False
        for row in rows:
            row.idle = 0
            self._catch_up(row, together=together)
        return self._caches.gather(asked)

    def _draft_tokens(self, cache: RowsCache, rows: Sequence[DraftRow], n: int) -> list[mx.array]:
        """Draft `n` tokens [n] of each row; fewer at the end of an output with a mask."""
        known = [row.words(row.skipped + self._caches.held(row.id)) for row in rows]
        widths = [len(tokens) for tokens in known]
        window = mx.array([[*ids, *[0] * (max(widths) - len(ids))] for ids in known], mx.uint32)
        for row in rows:
            row.valid = row.size
        cache.forget_marks()
        sliding = self._traits.sliding_window is not None
        if sliding and not cache.shared:
            cache.mark(fresh=True)
        marks, ones = self._traits.recurrent and (cache.shared or not sliding), [1] * len(rows)

        def read(window: mx.array, widths: Sequence[int] = ones) -> mx.array:
            if marks:
                cache.mark()
            logits = self._read(cache, window, widths)
            if logits.shape[-1] == self._vocab_size:
                return logits
            return _known_ids(logits, self._vocab_size)

        with token_sampler([(row.target, row.sampler) for row in rows]) as sampler:
            first = read(window, widths)
            sampler.draft(n, first, sampler.sample, lambda chosen, _: read(chosen[:, None]))
            return sampler.drafts

    def _read(self, cache: RowsCache, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        """Read windows of `widths` tokens, padded at their ends in `tokens` [rows, widest].

        Return the logits behind each window, [rows, vocabulary].
        """
        logits: mx.array = cache.read(widths, lambda layers: self._model(tokens, cache=layers))
        if min(widths) == logits.shape[1]:
            return logits[:, -1]
        return mx.stack([logits[i, width - 1] for i, width in enumerate(widths)])

    def read_whole(self, row: Row) -> None:
        self._rows[row.id] = self._new_row(row, whole=True)

    def observe(self, row: Row, accepted: int) -> None:
        own = self._rows[row.id]
        # The last token of a draft was never read. The others are valid up to the first rejection.
        own.valid = min(own.valid + accepted, self._caches.held(own.id))

    def drop(self, row_id: int) -> None:
        self._rows.pop(row_id, None)
        self._caches.drop(row_id)
        self._prefixes.release(row_id)

    def store(self, row: Row) -> None:
        own = self._rows.get(row.id)
        if own is not None:
            self._rewind(own)
            self._prefixes.save(own, self._caches)

    def clear(self) -> None:
        self._prefixes.clear()

    def set_prefix_budget(self, max_bytes: int) -> None:
        self._prefixes.set_budget(max_bytes)

    @property
    def nbytes(self) -> int:
        return self._prefixes.nbytes + self._caches.nbytes

    def check(self) -> None:
        """Raise AssertionError if a cache holds more or fewer tokens than its record says."""
        self._prefixes.check()
        self._caches.check()
        for row in self._rows.values():
            assert row.valid <= self._caches.held(row.id)

    def _row(self, row: Row) -> DraftRow:
        own = self._rows.get(row.id)
        if own is None or row.id not in self._caches:
            own = self._rows[row.id] = self._new_row(row, whole=False)
        return own

    def _new_row(self, row: Row, *, whole: bool) -> DraftRow:
        """Return a row whose cache is restored from the longest cached prefix.

        Where that leaves more than twice `LOOK_BACK` tokens to read, the cache begins with the last
        `LOOK_BACK`, unless it is for the `whole` row.
        """
        own = DraftRow(row, RowSampler(row.request.sampling, self._vocab_size))
        words = own.words(0)
        own.unseen = len(row.tokens) - len(words)  # images
        known = self._prefixes.length(words)
        if not whole and len(words) - known > 2 * LOOK_BACK:
            self._caches.open(row.id, self._make_cache())
            own.skip(len(words) - LOOK_BACK)
            own.unread -= known
            return own
        layers, own.valid = self._prefixes.restore(row.id, words)
        self._caches.open(row.id, layers, own.valid)
        return own

    def _rewind(self, row: DraftRow) -> None:
        """Roll the cache back to the committed tokens but one, which is read next; to none if it
        cannot be.
        """
        row.valid = min(row.valid, row.size - 1)
        try:
            self._caches[row.id].rewind(row.id, row.valid)
        except RewindError:
            self._caches.open(row.id, self._make_cache())
        row.valid = min(row.valid, self._caches.held(row.id))

    def _catch_up(self, row: DraftRow, *, together: bool) -> None:
        """Read the committed tokens that the cache lacks, up to a round's first window.

        A cache that resumes only at saved positions stops at the prompt's stable end to be saved.
        """
        most = MAX_SHARED_WINDOW if together else MAX_WINDOW
        held, size = self._caches.held(row.id), row.size
        if size - held > most or held < self._prefixes.stable(row) or (together and not held):
            self._read_ahead(row, size)

    def _read_ahead(self, row: DraftRow, limit: int) -> None:
        """Read at most `limit` tokens into a cache of the row's own, and leave the newest one."""
        cache, stable = self._caches.separate(row.id), self._prefixes.stable(row)
        cache.forget_marks()
        held = self._caches.held(row.id)
        end = min(row.size - 1, held + limit)
        while held < end:
            stop = held + self._fit(held, min(stable if held < stable else end, end) - held)
            chunk = row.words(row.skipped + held, row.skipped + stop)
            self._read(cache, mx.array([chunk], mx.uint32), [len(chunk)])
            mx.eval([layer.state for layer in cache.layers])
            held = stop
            if held == stable:
                self._prefixes.save(row, self._caches)


def _known_ids(logits: mx.array, vocab_size: int) -> mx.array:
    """Return logits for the target's ids, [rows, vocab_size]."""
    missing = vocab_size - logits.shape[-1]
    if missing <= 0:
        return logits[:, :vocab_size]
    # Noise of another size would be unrelated to the target's.
    return mx.pad(logits, [(0, 0), (0, missing)], constant_values=-mx.inf)
