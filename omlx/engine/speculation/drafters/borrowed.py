"""Drafters whose modules come from mlx-vlm, in two shapes; rows, states and noise are ours.

    pairs    EAGLE-3, mtp heads    (state, next token) ─► own state ─► logits; own states go on
    blocks   DFlash, DSpark        states ─► context; [newest, mask, mask …] ─► all tokens

Pairs of committed tokens stay in the cache, those of a draft are trimmed. The context of blocks is
made of committed states alone, so nothing is rolled back. The modules sample with `TokenSampler`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Protocol, cast

import mlx.core as mx

from omlx.engine.device.model import Cache
from omlx.engine.speculation.drafter import Proposal
from omlx.engine.speculation.drafters.head import HeadDrafter, HeadRow, TokenSampler
from omlx.engine.speculation.strategy import Clause
from omlx.engine.step.row import Row


class PairsHead(Protocol):
    """A drafter of pairs, stateless: caches are given with each call.

    A layer of the target returns `streams` hidden states.
    """

    streams: int

    def make_cache(self) -> Cache: ...

    def step(self, tokens: mx.array, states: mx.array, cache: Cache) -> mx.array:
        """Return own states [1, n, D] of tokens [1, n] and the states before them; appends."""
        ...

    def logits(self, hidden: mx.array, vocab_size: int) -> mx.array:
        """Return logits [n, vocab_size] of own states [n, D]."""
        ...


class BlocksHead(Protocol):
    """A drafter of blocks: fills `longest` masks at most in one pass."""

    longest: int

    def make_cache(self) -> Cache: ...

    def enter(self, states: mx.array, cache: Cache) -> mx.array:
        """Append committed states [1, n, D] to the context; return an array made of it."""
        ...

    def draft(
        self, newest: int, states: mx.array, cache: Cache, n: int, sampler: TokenSampler
    ) -> None:
        """Append states [1, m, D], the last before the `newest` token; sample n tokens."""
        ...


class PairsDrafter(HeadDrafter):
    """Drafts by a `PairsHead`; the kind of an mtp head."""

    def _step(self, tokens: mx.array, states: mx.array, cache: Cache) -> mx.array:
        return cast(PairsHead, self._head).step(tokens[None], states[None], cache)[0]

    def _logits(self, hidden: mx.array) -> mx.array:
        return cast(PairsHead, self._head).logits(hidden, self._vocab_size)

    @property
    def _state_parts(self) -> int:
        return super()._state_parts * cast(PairsHead, self._head).streams


class EagleDrafter(PairsDrafter):
    """Drafts by EAGLE-3, which reads three inner layers of the target."""

    kind: ClassVar[str] = "eagle"


class BlocksDrafter(HeadDrafter):
    """Drafts by a `BlocksHead`, all tokens in one pass."""

    kind: ClassVar[str] = "block"

    @property
    def _block(self) -> BlocksHead:
        return cast(BlocksHead, self._head)

    def propose(self, row: Row, limit: int, clause: Clause) -> Proposal | None:
        proposal = super().propose(row, min(limit, self._block.longest), clause)
        return None if proposal is None else replace(proposal, one_pass=True)

    def check(self) -> None:
        """Compare nothing: sliding layers count states after dropping them."""

    def _draft_tokens(self, own: HeadRow, row: Row, limit: int) -> list[mx.array]:
        self._begin(own)
        states = self._take(own, len(row.tokens) - 1)
        with self._sampling(own, row) as sampler:
            self._block.draft(row.tokens[-1], states[None], own.cache, limit, sampler)
            return sampler.tokens

    def _step(self, tokens: mx.array, states: mx.array, cache: Cache) -> mx.array:
        return self._block.enter(states[None], cache)[0]

    def _rewind(self, row: HeadRow) -> None:
        """Keep all: the context has committed states alone."""
