"""A draft head (multi-token prediction): drafts from the target's own hidden states.

    target    t0   t1   t2  …  tn          hidden states  h0  h1  h2 …   of the passes that ran
    head      (h0, t1)  (h1, t2)  …  (h n-1, tn) ──► t n+1,  (own output, t n+1) ──► t n+2 …

The runner reports every pass. Entries made of the target's states stay in the head's cache; those
made of its own output are cut off before the next draft.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, Protocol, cast

import mlx.core as mx
import mlx.nn as nn

from omlx.engine.device.model import Cache, MakeCache, Model, SplitModel, Taps, split
from omlx.engine.device.payloads import layout_of, uncacheable
from omlx.engine.device.rewind import Mark, length_of, mark, rewind
from omlx.engine.device.sampling import RowSampler
from omlx.engine.device_errors import isolate
from omlx.engine.piece import Layout
from omlx.engine.speculation.drafter import Draft, Proposal
from omlx.engine.speculation.drafters.sampler import SampledDrafter, TokenSampler, token_sampler
from omlx.engine.speculation.strategy import Clause
from omlx.engine.step.plan import Window
from omlx.engine.step.row import Row
from omlx.errors import Reason

MAX_STATES: Final = 256
"""Hidden states kept for a row that does not draft; of more the oldest are dropped, and the head
begins with those that are left."""

MAX_WINDOW: Final = 16
"""Entries that a round makes in about the time of one: more is a lag."""

_TABLES: Final = (nn.Embedding, nn.QuantizedEmbedding)
_LAYERS: Final = (nn.Linear, nn.QuantizedLinear)


class Head(Protocol):
    """The layers of a head, between the target's hidden states and its output layer."""

    def __call__(self, embedded: mx.array, hidden: mx.array, cache: Cache, /) -> mx.array:
        """Return hidden states for the target's output layer. Appends to the cache. `embedded` are
        tokens, `hidden` the target's states before them; all are [1, tokens, D]."""
        ...

    def make_cache(self) -> Cache:
        """Return empty caches, which can be rolled back by trimming."""
        ...


@dataclass(slots=True)
class HeadRow:
    """The cache has entries for the positions [first, entered), and those of the latest draft.

    `states` are hidden states [n, D] of the positions [start, end), one pass behind the other.
    `mark` is that of the cache before the entries of the latest draft.
    """

    cache: Cache
    first: int
    entered: int
    start: int
    end: int
    states: deque[mx.array] = field(default_factory=deque)
    sampler: RowSampler | None = None
    error: Exception | None = None
    mark: Mark | None = None


class HeadDrafter(SampledDrafter):
    """Drafts by `head` for the target with these `parts`, whose ids are below `vocab_size`.

    Base class of every drafter that reads the target's hidden states (borrowed.py has others).
    `layout` is that of the head's caches; None: it is measured. With a `shortlist` it drafts these
    ids alone.
    """

    kind: ClassVar[str] = "mtp"
    name = "mtp"

    def __init__(
        self,
        name: str,
        head: Any,
        parts: SplitModel,
        vocab_size: int,
        layout: Layout | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        self.name = name
        self._head: Any = head  # in subclasses an `Adapter`
        self.parts = parts
        self._vocab_size = vocab_size
        self._shortlist = shortlist
        self._layout = layout or self._measure()
        self._rows: dict[int, HeadRow] = {}

    @classmethod
    def of(
        cls,
        name: str,
        head: Head,
        model: Model,
        make_cache: MakeCache,
        vocab_size: int,
        draft_ids: mx.array | None = None,
    ) -> HeadDrafter | Reason:
        """Return a drafter for `model`, or why it can have none. Runs two short passes.

        `draft_ids` [n] are those of the head's shortlist; None: it drafts all.
        """
        parts = split(model, make_cache, vocab_size)
        if isinstance(parts, Reason):
            return parts
        if draft_ids is None:
            return cls(name, head, parts, vocab_size)
        shortlist = Shortlist.of(draft_ids, parts.output, vocab_size)
        if isinstance(shortlist, Reason):
            return shortlist
        return cls(name, head, parts, vocab_size, shortlist=shortlist)

    def sibling(self) -> HeadDrafter:
        same = self.name, self._head, self.parts, self._vocab_size
        return type(self)(*same, self._layout, self._shortlist)

    def refusal(self, row: Row) -> Reason | None:
        return Reason("spec.off.images") if row.request.spans else None

    def open(self, row: Row) -> None:
        start = row.computed
        self._rows[row.id] = HeadRow(self._head.make_cache(), start, start, start, start)

    def cache_bytes(self, tokens: int) -> int:
        return self._layout.cache_bytes(tokens)

    @property
    def held_bytes(self) -> int:
        rows = [row for row in self._rows.values() if row.entered > row.first]
        return sum(int(layer.nbytes) for row in rows for layer in row.cache)

    def listen(self, windows: Sequence[Window], tokens: mx.array, hidden: mx.array) -> None:
        """Take in a pass of the target: ids [rows, widest] and hidden states [rows, widest, D].

        Where the target is tapped, the states are those of its inner layers. Entries of prompts are
        made at once, along with the pass. An error is kept for the row that it belongs to.
        """
        if isinstance(self.parts.body, Taps):
            hidden = self.parts.body.take()
        for i, window in enumerate(windows):
            row = self._rows.get(window.row)
            if row is None or row.error is not None:
                continue
            with isolate() as outcome:
                _add(row, window.start, hidden[i, : window.width])
                if not window.sample:
                    self._begin(row)
                    behind = window.width - (row.end - 1 - row.entered)
                    self._enter(row, tokens[i, behind:], row.end - 1)
                    mx.async_eval([layer.state for layer in row.cache])
            row.error = outcome.error

    def propose(self, row: Row, limit: int, clause: Clause) -> Proposal | None:
        own = self._rows.get(row.id)
        if own is None or limit < 1:
            return None
        if own.error is not None:
            raise own.error
        lag = len(row.tokens) - 1 - max(own.start, own.entered)
        unread = own.end < len(row.tokens) - 1  # of a prompt: its tail has no states yet
        if not own.states or lag < 1 or unread:  # or it was restored, and nothing was read since
            return None
        return Proposal(self.name, limit, lag=lag if lag > MAX_WINDOW else 1, clause=clause)

    def draft(self, row: Row, limit: int) -> Draft | None:
        if limit < 1:
            return None
        started = time.perf_counter()
        drafted = self._draft_tokens(self._rows[row.id], row, limit)
        return self._drafts([(row, limit)], [drafted], started)[row.id]

    def drop(self, row_id: int) -> None:
        self._rows.pop(row_id, None)

    def check(self) -> None:
        """Raise AssertionError if a cache holds fewer entries than its record says."""
        for row in self._rows.values():
            held = length_of(row.cache)
            assert held is None or held >= row.entered - row.first, (held, row.first, row.entered)

    def _draft_tokens(self, own: HeadRow, row: Row, limit: int) -> mx.array:
        """Draft up to `limit` tokens [n]; fewer at the end of an output with a mask."""
        self._begin(own)
        known = mx.array(row.tokens[own.entered + 1 :], mx.uint32)
        hidden = self._enter(own, known, len(row.tokens) - 1)[-1:]
        own.mark = mark(own.cache, own.entered - own.first, fresh=True)
        with self._sampling(own, row) as sampler:
            sample, step = partial(self._sample, sampler), partial(self._step, cache=own.cache)
            sampler.draft(limit, hidden, sample, step)
            return sampler.drafts[0]

    def _sampling(self, own: HeadRow, row: Row) -> AbstractContextManager[TokenSampler]:
        """Sample the tokens behind those of a row."""
        if own.sampler is None:
            own.sampler = RowSampler(row.request.sampling, self._vocab_size)
        return token_sampler([(row, own.sampler)])

    def _sample(self, sampler: TokenSampler, hidden: mx.array) -> mx.array:
        """Sample a token [1] of a hidden state [1, D]."""
        if self._shortlist is None:
            return sampler.sample(self._logits(hidden))
        if sampler.bare:
            return sampler.take(self._shortlist.best(hidden))
        return sampler.sample(self._shortlist.logits(hidden, self._vocab_size))

    def _step(self, tokens: mx.array, states: mx.array, cache: Cache) -> mx.array:
        """Return the head's output [n, D] for tokens [n] and the states before them; appends."""
        hidden: mx.array = self._head(self.parts.embed(tokens[None]), states[None], cache)
        return hidden[0]

    def _logits(self, hidden: mx.array) -> mx.array:
        """Return the logits [n, vocab_size] of the head's output [n, D]."""
        return self.parts.score(hidden[None])[0, :, : self._vocab_size]

    def _begin(self, row: HeadRow) -> None:
        """Cut off what the latest draft has entered; all, if states behind it are missing."""
        if row.entered < row.start:
            row.cache, row.first, row.entered = self._head.make_cache(), row.start, row.start
        self._rewind(row)

    def _rewind(self, row: HeadRow) -> None:
        marks = () if row.mark is None else (row.mark,)
        rewind(row.cache, length_of(row.cache) or 0, row.entered - row.first, marks)

    def _enter(self, row: HeadRow, tokens: mx.array, end: int) -> mx.array:
        """Make the entries of the positions [row.entered, end), whose next tokens [n] are `tokens`.

        Return the head's output for them, [n, D].
        """
        states = self._take(row, end)
        return self._step(tokens, states, row.cache) if states.shape[0] else states

    def _take(self, row: HeadRow, end: int) -> mx.array:
        """Return the states [n, D] of the positions [row.entered, end), which count as entered."""
        states = mx.concatenate([*row.states])
        known = states[row.entered - row.start : end - row.start]
        row.states, row.start = deque([states[end - row.start :]]), end
        if known.shape[0]:
            row.entered = end
        return known

    @property
    def _state_parts(self) -> int:
        """Number of hidden states that make a state of the head."""
        return len(self.parts.body.ids) if isinstance(self.parts.body, Taps) else 1

    def _measure(self) -> Layout:
        """Measure the bytes of the caches by a short pass; none where they are unknown."""

        def enter(tokens: mx.array, cache: Cache) -> mx.array:
            states = mx.concatenate([self.parts.embed(tokens[0])] * self._state_parts, axis=-1)
            return self._step(tokens[0], states, cache)

        if uncacheable(self._head.make_cache()) is None:
            with isolate():  # a head that raises does so when it is asked to draft
                return layout_of(enter, self._head.make_cache)
        return Layout(0)


def _add(row: HeadRow, start: int, states: mx.array) -> None:
    """Append the states of a pass from `start` on, in place of earlier ones of these positions."""
    while row.states and start < row.end:
        newest = row.states.pop()
        row.end -= newest.shape[0]
        if row.end < start:
            row.states.append(newest[: start - row.end])
            row.end = start
    if start != row.end or not row.states:
        row.states, row.start = deque(), start
    row.states.append(states)
    row.end = start + states.shape[0]
    while len(row.states) > 1 and row.end - row.start > MAX_STATES:
        row.start += row.states.popleft().shape[0]


class Shortlist:
    """Distinct token `ids` [n], and the rows of the target's `output` layer for them.

    FR-Spec (Zhao et al. 2025): a small head spends most of its time in the target's output layer,
    and the other tokens are only missed drafts. Rows are copied as they are, packed ones too.
    """

    def __init__(self, ids: mx.array, output: nn.Module) -> None:
        self.ids = ids
        rows = copy(output)
        # Rows are the first axis of weights, scales and biases alike.
        rows.update({name: value[ids] for name, value in _tensors(output).items()})
        mx.eval(ids, rows.parameters())
        self._score = cast(Any, rows.as_linear if isinstance(rows, _TABLES) else rows)

    @classmethod
    def of(cls, ids: mx.array, output: nn.Module, vocab_size: int) -> Shortlist | Reason:
        """Return a shortlist, or why these ids do not suit a target of `vocab_size` ids."""
        if not isinstance(output, (*_TABLES, *_LAYERS)):
            return _refused(f"the output layer is a {type(output).__name__}")
        if ids.dtype != mx.int32 or ids.ndim != 1 or not ids.size:
            kind = str(ids.dtype).removeprefix("mlx.core.")
            return _refused(f"expected int32 [n], found {kind} {[*ids.shape]}")
        known = cast(list[int], ids.tolist())
        strange = next((token for token in known if not 0 <= token < vocab_size), None)
        if strange is not None:
            return _refused(f"{strange} is no id of a vocabulary of {vocab_size}")
        if len(set(known)) < len(known):
            return _refused("an id occurs twice")
        return cls(ids, output)

    def best(self, hidden: mx.array) -> mx.array:
        """Return the ids of the largest logits of hidden states [rows, D], [rows]."""
        return self.ids[mx.argmax(self._score(hidden), axis=-1)].astype(mx.uint32)

    def logits(self, hidden: mx.array, vocab_size: int) -> mx.array:
        """Return logits [rows, vocab_size] of hidden states [rows, D]; -inf for all other ids.

        Masks, penalties and the target's noise then apply by id, as to the target's own logits.
        """
        return spread(self._score(hidden), self.ids, vocab_size)


def spread(scores: mx.array, ids: mx.array, size: int) -> mx.array:
    """Return logits [n, size]: `scores` [n, k] at `ids` [k], -inf elsewhere."""
    logits = mx.full((scores.shape[0], size), -mx.inf, scores.dtype)
    logits[:, ids] = scores
    return logits


def shortlist_bytes(n: int, output: nn.Module) -> int:
    """Return the bytes of `n` rows of an output layer."""
    tensors = _tensors(output).values()
    return sum(tensor.nbytes // tensor.shape[0] * n for tensor in tensors)


def _tensors(layer: nn.Module) -> dict[str, mx.array]:
    return cast(dict[str, mx.array], layer.parameters())


def _refused(detail: str) -> Reason:
    return Reason("spec.off.head_weights", {"detail": f"draft_token_ids: {detail}"})
