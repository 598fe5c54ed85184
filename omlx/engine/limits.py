"""The bounds of one loaded model, and the abilities of its caches."""

from __future__ import annotations

from dataclasses import dataclass

from omlx.exactness import Bounds


@dataclass(frozen=True, slots=True)
class Limits:
    """`*_rows` and `max_waiting` count sequences, `*_bytes` bytes of cache arrays, all else tokens.

    `prefill_chunk` bounds one prefill pass while no row decodes, `prefill_slice` while some do: it
    is the longest stall of a stream. Passes grow from `prefill_first` while they are short; None:
    they do not grow. `prefix_bytes` bounds the prefix caches, the draft model's included, in blocks
    of `block_tokens`. `num_draft_tokens` fixes the draft length of requests
    that set none; None leaves it to the policy. A `strict` model keeps to `bounds`, made of
    measurements. Token ids from `vocab_size` on are refused;
    `missing_ids` counts those that the tokenizer has nevertheless. A model that does not `generate`
    reads texts that are no requests.
    """

    context_length: int
    vocab_size: int = 1 << 31
    missing_ids: int = 0
    max_rows: int = 8
    max_waiting: int = 512
    prefill_chunk: int = 2048
    prefill_first: int | None = None
    prefill_slice: int = 256
    batch_bytes: int = 4 << 30
    prefix_bytes: int = 1 << 30
    block_tokens: int = 64
    num_draft_tokens: int | None = None
    generates: bool = True
    strict: bool = False
    bounds: Bounds | None = None


@dataclass(frozen=True, slots=True)
class Traits:
    """What kinds of layers a cache has. `sliding_window` is the smallest one in tokens, or None.

    `unsupported` names the cache classes that cannot be rolled back.
    """

    recurrent: bool
    sliding_window: int | None
    unsupported: tuple[str, ...]

    @property
    def rollback(self) -> str:
        """How rejected draft tokens leave the cache, as `DrafterStats.repairs` names it."""
        if self.recurrent:
            return "restore"
        if self.sliding_window:
            return "slice"
        return "trim"
