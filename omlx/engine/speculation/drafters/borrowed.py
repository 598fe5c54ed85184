"""Drafters whose modules come from mlx-vlm, in two shapes; rows, states and noise are ours.

    pairs    EAGLE-3, mtp heads    (state, next token) ─► own state ─► logits; own states go on
    blocks   DFlash, DSpark        states ─► context; [newest, mask, mask …] ─► all tokens

Pairs of committed tokens stay in the cache, those of a draft are trimmed. The context of blocks is
made of committed states alone, so nothing is rolled back. Modules keep cache and position of one
text, and call a sampler of their own choice: here both are given with each call.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, cast

import mlx.core as mx

from omlx.engine.device.model import Cache, Caller, MakeCache, SplitModel
from omlx.engine.device.rewind import length_of
from omlx.engine.speculation.drafter import Proposal
from omlx.engine.speculation.drafters.head import HeadDrafter, HeadRow, spread
from omlx.engine.speculation.drafters.sampler import TokenSampler
from omlx.engine.speculation.strategy import Clause
from omlx.engine.step.row import Row


@dataclass(frozen=True, slots=True)
class Adapter:
    """Module of mlx-vlm and a maker of translated caches.

    `ids` [n] are those that have logits; None: all. A layer of the target returns `streams` hidden
    states. `candidates` are the newest ids that a block's selector has ranked.
    """

    module: Any
    make_cache: MakeCache
    ids: mx.array | None = None
    streams: int = 1
    candidates: list[mx.array] = field(default_factory=list)

    @classmethod
    def of(cls, module: Any, make_cache: MakeCache, parts: SplitModel) -> Adapter:
        """Return the adapter of a module, which gets embedding and output of its target."""
        embed, score = partial(parts.embed), partial(parts.score)
        if getattr(module, "embed_tokens", module) is None:
            module.embed_tokens = embed
        if hasattr(module, "d2t"):  # EAGLE-3, with an output of its own
            ids = None if module.d2t is None else mx.arange(module.d2t.size) + module.d2t
            return cls(module, make_cache, ids)
        if hasattr(module, "_input_embed"):  # an mtp head
            module._input_embed, module._lm_head_fn = embed, score
            streams = int(module.args.hc_mult) if hasattr(module, "hc_head") else 1
            return cls(module, make_cache, streams=streams)
        module.lm_head = score
        made = cls(module, make_cache)
        if (selector := getattr(module, "candidate_selector", None)) is not None:
            selector.successor_codebook = Caller(selector.successor_codebook, made._note)
        return made

    def _note(self, codebook: Any, ids: mx.array) -> mx.array:
        """Note the candidates `ids`, which the module does not give to its sampler."""
        self.candidates[:] = [ids]
        return cast(mx.array, codebook(ids))


class PairsDrafter(HeadDrafter):
    """Drafts by an mtp head."""

    def _step(self, tokens: mx.array, states: mx.array, cache: Cache) -> mx.array:
        module, eagle = self._head.module, self.kind == EagleDrafter.kind
        # EAGLE-3 counts a pair by its token
        module._cache, module._next_position = cache, (length_of(cache) or 0) + eagle
        try:
            output = module._forward_tokens(tokens[None], states[None], mx.int32)
        finally:
            module._cache, module._next_position = [], 0
        return cast(mx.array, (output[-1] if isinstance(output, tuple) else output)[0])

    def _logits(self, hidden: mx.array) -> mx.array:
        module, states = self._head.module, hidden[None]
        if hasattr(module, "hc_head"):
            states = module.norm(module.hc_head(states))
        return cast(mx.array, module._lm_head_fn(states))[0, :, : self._vocab_size]

    @property
    def _state_parts(self) -> int:
        return super()._state_parts * cast(int, self._head.streams)


class EagleDrafter(PairsDrafter):
    """Drafts by EAGLE-3, which reads three inner layers of the target."""

    kind: ClassVar[str] = "eagle"

    def _logits(self, hidden: mx.array) -> mx.array:
        logits, ids = self._head.module._logits(hidden[None])[0], self._head.ids
        whole = ids is None
        return logits[:, : self._vocab_size] if whole else spread(logits, ids, self._vocab_size)


class BlocksDrafter(HeadDrafter):
    """Drafts by DFlash, DFlash 2 or DSpark: all tokens in one pass, which fills masks."""

    kind: ClassVar[str] = "block"

    def propose(self, row: Row, limit: int, clause: Clause) -> Proposal | None:
        longest = int(self._head.module.config.block_size) - 1
        proposal = super().propose(row, min(limit, longest), clause)
        return None if proposal is None else replace(proposal, one_pass=True)

    def check(self) -> None:
        """Compare nothing: sliding layers count states after dropping them."""

    def _draft_tokens(self, own: HeadRow, row: Row, limit: int) -> mx.array:
        self._begin(own)
        states, newest = self._take(own, len(row.tokens) - 1)[None], row.tokens[-1]
        with self._sampling(own, row) as sampler:
            sample = _BlockSampler(sampler, self._head.candidates, self._vocab_size)
            self._head.module.draft_block(newest, states, own.cache, limit + 1, sample)
            return sampler.drafts[0]

    def _step(self, tokens: mx.array, states: mx.array, cache: Cache) -> mx.array:
        """Append states to the context. The logits, of a context cut anyhow, are not evaluated."""
        logits: mx.array = self._head.module(mx.zeros((1, 1), mx.int32), states[None], cache)
        return logits[0]

    def _rewind(self, row: HeadRow) -> None:
        """Keep all: the context has committed states alone."""


DRAFTERS: Final = {drafter.kind: drafter for drafter in (PairsDrafter, EagleDrafter, BlocksDrafter)}


@dataclass(frozen=True, slots=True)
class _BlockSampler:
    """The sampler of a block: logits [..., V] of consecutive positions to ids [...]."""

    sampler: TokenSampler
    candidates: list[mx.array]
    size: int

    def __call__(self, logits: mx.array) -> mx.array:
        rows = logits.reshape(-1, logits.shape[-1])[:, : self.size]
        ids = [self.sampler.sample(row[None]) for row in rows]
        return mx.concatenate(ids).reshape(logits.shape[:-1]).astype(mx.int32)

    def sample_proposal(self, scores: mx.array) -> mx.array:
        """Return the sampled place [1] among the newest candidates, by scores [1, k]."""
        ids = self.candidates.pop()[0]
        token = self.sampler.sample(spread(scores.astype(mx.float32), ids, self.size))
        return mx.argmax(ids == token)[None]
