"""The bounds one loaded model works within, and what its caches can do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Rows are sequences; budgets are tokens; `*_bytes` are bytes of cache arrays.

    `prefill_chunk` bounds one forward pass over a prompt while nobody decodes, `prefill_slice` while somebody does:
    it is the longest stall a running stream may see. `prefix_bytes` bounds the prefixes that are kept, draft included,
    in blocks of `block_tokens`. `num_draft_tokens` fixes the window of requests that ask for none;
    None leaves it to the policy. Ids from `vocab_size` on are refused.
    """

    context_length: int
    vocab_size: int = 1 << 31
    max_rows: int = 8
    max_waiting: int = 512
    prefill_chunk: int = 2048
    prefill_slice: int = 256
    batch_bytes: int = 4 << 30
    prefix_bytes: int = 1 << 30
    block_tokens: int = 64
    num_draft_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Traits:
    """What a model's cache can do. `sliding_window` is the smallest one, in tokens, or None."""

    recurrent: bool
    sliding_window: int | None
    unsupported: tuple[str, ...]

    @property
    def trims(self) -> bool:
        """Whether going back any number of tokens moves a counter and no more."""
        return not self.recurrent and self.sliding_window is None and not self.unsupported

    @property
    def repair(self) -> str:
        """How rejected draft tokens leave the cache, as `DrafterStats.repairs` names it."""
        if self.recurrent:
            return "restore"
        return "slice" if self.sliding_window else "trim"
