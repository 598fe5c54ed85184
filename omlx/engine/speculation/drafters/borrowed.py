"""Drafters whose modules come from mlx-vlm, in two shapes; rows, states and noise are ours.

    pairs    EAGLE-3, mtp heads    (state, next token) ─► own state ─► logits; own states go on
    blocks   DFlash, DSpark        states ─► context; [newest, mask, mask …] ─► all tokens

Pairs of committed tokens stay in the cache, those of a draft are trimmed. The context of blocks is
made of committed states alone, so nothing is rolled back. Modules keep cache and position of one
text, and call a sampler of their own choice: here both are given with each call.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import mlx.core as mx

from omlx.engine.device.model import Cache, Caller, MakeCache, SplitModel
from omlx.engine.device.rewind import length_of
from omlx.engine.speculation.drafter import Proposal
from omlx.engine.speculation.drafters.head import HeadDrafter, HeadRow, spread
from omlx.engine.speculation.drafters.sampler import TokenSampler
from omlx.engine.speculation.strategy import Clause
from omlx.engine.step.row import Row


class Adapter:
    """Module of mlx-vlm for a target with these `parts`, and a maker of translated caches."""

    def __init__(self, module: Any, make_cache: MakeCache, parts: SplitModel) -> None:
        self.module = module
        self.make_cache = make_cache
        if getattr(module, "embed_tokens", module) is None:
            module.embed_tokens = partial(parts.embed)


class Pairs(Adapter):
    """Mtp head or EAGLE-3.

    A layer of the target returns `streams` hidden states. `ids` [n] are those that have logits.
    """

    def __init__(self, module: Any, make_cache: MakeCache, parts: SplitModel) -> None:
        super().__init__(module, make_cache, parts)
        self._eagle = hasattr(module, "d2t")
        self._streamed = hasattr(module, "hc_head")
        self.streams = int(module.args.hc_mult) if self._streamed else 1
        self.ids: mx.array | None = None
        if not self._eagle:
            module._input_embed, module._lm_head_fn = partial(parts.embed), partial(parts.score)
        elif module.d2t is not None:
            self.ids = mx.arange(module.d2t.size) + module.d2t

    def step(self, tokens: mx.array, states: mx.array, cache: Cache) -> mx.array:
        """Return own states [1, n, D] of tokens [1, n] and the states before them; appends."""
        module = self.module
        # EAGLE-3 counts a pair by its token
        module._cache, module._next_position = cache, (length_of(cache) or 0) + self._eagle
        try:
            output = module._forward_tokens(tokens, states, mx.int32)
        finally:
            module._cache, module._next_position = [], 0
        return cast(mx.array, output[-1] if isinstance(output, tuple) else output)

    def logits(self, hidden: mx.array, vocab_size: int) -> mx.array:
        """Return logits [n, vocab_size] of own states [n, D]."""
        module, states = self.module, hidden[None]
        if self._streamed:
            states = module.norm(module.hc_head(states))
        logits: mx.array = (module._logits if self._eagle else module._lm_head_fn)(states)[0]
        return logits[:, :vocab_size] if self.ids is None else spread(logits, self.ids, vocab_size)


class PairsDrafter(HeadDrafter):
    """Drafts by `Pairs`; the kind of an mtp head."""

    _head: Pairs

    def _step(self, tokens: mx.array, states: mx.array, cache: Cache) -> mx.array:
        return self._head.step(tokens[None], states[None], cache)[0]

    def _logits(self, hidden: mx.array) -> mx.array:
        return self._head.logits(hidden, self._vocab_size)

    @property
    def _state_parts(self) -> int:
        return super()._state_parts * self._head.streams


class EagleDrafter(PairsDrafter):
    """Drafts by EAGLE-3, which reads three inner layers of the target."""

    kind: ClassVar[str] = "eagle"


class Blocks(Adapter):
    """Drafter of blocks: DFlash, DFlash 2, DSpark. A pass fills `longest` masks at most."""

    def __init__(self, module: Any, make_cache: MakeCache, parts: SplitModel) -> None:
        super().__init__(module, make_cache, parts)
        self.longest = int(module.config.block_size) - 1
        module.lm_head = partial(parts.score)
        self._candidates: list[mx.array] = []
        if (selector := getattr(module, "candidate_selector", None)) is not None:
            selector.successor_codebook = Caller(selector.successor_codebook, self._rank)

    def draft(
        self, newest: int, states: mx.array, cache: Cache, n: int, sampler: TokenSampler
    ) -> None:
        """Append states [1, m, D], the last before the `newest` token; sample n tokens."""
        sample = _BlockSampler(sampler, self._candidates)
        self.module.draft_block(newest, states, cache, n + 1, sample)

    def _rank(self, codebook: Any, ids: mx.array) -> mx.array:
        """Note the candidates `ids`, which the module does not give to its sampler."""
        self._candidates[:] = [ids]
        return cast(mx.array, codebook(ids))


class BlocksDrafter(HeadDrafter):
    """Drafts by `Blocks`, all tokens in one pass."""

    kind: ClassVar[str] = "block"
    _head: Blocks

    def propose(self, row: Row, limit: int, clause: Clause) -> Proposal | None:
        proposal = super().propose(row, min(limit, self._head.longest), clause)
        return None if proposal is None else replace(proposal, one_pass=True)

    def check(self) -> None:
        """Compare nothing: sliding layers count states after dropping them."""

    def _draft_tokens(self, own: HeadRow, row: Row, limit: int) -> mx.array:
        self._begin(own)
        states = self._take(own, len(row.tokens) - 1)
        with self._sampling(own, row) as sampler:
            self._head.draft(row.tokens[-1], states[None], own.cache, limit, sampler)
            return sampler.drafts[0]

    def _step(self, tokens: mx.array, states: mx.array, cache: Cache) -> mx.array:
        """Append states to the context. The logits, of a context cut anyhow, are not evaluated."""
        logits: mx.array = self._head.module(mx.zeros((1, 1), mx.int32), states[None], cache)
        return logits[0]

    def _rewind(self, row: HeadRow) -> None:
        """Keep all: the context has committed states alone."""


class _BlockSampler:
    """The sampler of a block: logits [..., V] of consecutive positions to ids [...]."""

    def __init__(self, sampler: TokenSampler, candidates: list[mx.array]) -> None:
        self._sampler = sampler
        self._candidates = candidates
        self._size = sampler.places[0].sampler.vocab_size

    def __call__(self, logits: mx.array) -> mx.array:
        rows = logits.reshape(-1, logits.shape[-1])[:, : self._size]
        ids = [self._sampler.sample(row[None]) for row in rows]
        return mx.concatenate(ids).reshape(logits.shape[:-1]).astype(mx.int32)

    def sample_proposal(self, scores: mx.array) -> mx.array:
        """Return the sampled place [1] among the newest candidates, by scores [1, k]."""
        ids = self._candidates.pop()[0]
        token = self._sampler.sample(spread(scores.astype(mx.float32), ids, self._size))
        return mx.argmax(ids == token)[None]
