"""The layers of a head, made of the target's own decoder layer in mlx-lm.

    embedding of a token ─ norm ─┐
                                 fc ─ layers ─ norm ─► the target's output layer
    hidden state before it ─ norm ┘

Names are those of Qwen's checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama, qwen3_5, qwen3_next
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache

from omlx.engine.device.model import Cache


def _full_attention(args: Any) -> int:
    """The index of the first layer with full attention, and with experts where there are any."""
    step = args.full_attention_interval * max(1, getattr(args, "decoder_sparse_step", 1))
    return int(step) - 1


LAYERS: Final[dict[str, Callable[[Any], nn.Module]]] = {
    "llama": lambda args: llama.TransformerBlock(args),
    "qwen3_5": lambda args: qwen3_5.DecoderLayer(args, _full_attention(args)),
    "qwen3_5_moe": lambda args: qwen3_5.DecoderLayer(args, _full_attention(args)),
    "qwen3_next": lambda args: qwen3_next.Qwen3NextDecoderLayer(args, _full_attention(args)),
}
"""What makes a layer of a head, by the target's module in mlx-lm."""


class HeadModule(nn.Module):
    """A `Head` of `count` decoder layers for a target of the architecture with these `args`.

    `draft_token_ids` [n] are those that it drafts; None: all.
    """

    def __init__(self, architecture: str, args: Any, count: int = 1) -> None:
        nn.Module.__init__(cast(Any, self))  # mlx has no types for its own
        width, eps = args.hidden_size, args.rms_norm_eps
        self.pre_fc_norm_embedding = nn.RMSNorm(width, eps=eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(width, eps=eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layers = [LAYERS[architecture](args) for _ in range(count)]
        self.norm = nn.RMSNorm(width, eps=eps)
        self.draft_token_ids: mx.array | None = None

    def __call__(self, embedded: mx.array, hidden: mx.array, cache: Cache) -> mx.array:
        """Return hidden states [1, tokens, D] of the pairs; appends to the cache."""
        pair = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(mx.concatenate(pair, axis=-1))
        mask = create_attention_mask(x, cast(Any, cache[0]))
        for layer, held in zip(self.layers, cache, strict=True):
            x = cast(Any, layer)(x, mask=mask, cache=held)
        normed: mx.array = self.norm(x)
        return normed

    def make_cache(self) -> Cache:
        """Return one empty cache for each layer."""
        return [KVCache() for _ in self.layers]
