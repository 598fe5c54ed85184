"""A text model of mlx-lm in two parts: its hidden states, and what turns them into logits.

    ids ── embed ──► layers ──► last norm ──► hidden states ── score ──► logits
           └────────────── body ─────────────────────────┘

Through public attributes alone. Models that do more behind their layers (soft caps, scales) are
refused by `split`, which compares both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import mlx.core as mx
import mlx.nn as nn

from omlx.engine.model import MakeCache, Model
from omlx.engine.plan import Window
from omlx.errors import Reason


@dataclass(frozen=True, slots=True)
class SplitModel:
    """`body` maps ids [rows, tokens] to hidden states [rows, tokens, D] and appends to the `cache`,
    `embed` maps them to embeddings of that shape; `score` maps hidden states to logits [rows,
    tokens, V], by the module `output`. `text` is the module that has the layers and their sizes.
    """

    text: Any
    body: Callable[..., mx.array]
    embed: Callable[[mx.array], mx.array]
    score: Callable[[mx.array], mx.array]
    output: nn.Module


class Listener(Protocol):
    """Reads hidden states of the target that has these `parts`."""

    parts: SplitModel

    def listen(self, windows: Sequence[Window], tokens: mx.array, hidden: mx.array) -> None:
        """Take in a pass: its ids [rows, widest] and hidden states [rows, widest, D]."""
        ...


def split(model: Model, make_cache: MakeCache, vocab_size: int) -> SplitModel | Reason:
    """Return the parts of a model, or a reason unless they compute just what the model does, which
    a pass of each shows.
    """
    refusal = Reason("spec.off.hidden", {"model": type(model).__module__.rpartition(".")[2]})
    parts = parts_of(model)
    if parts is None:
        return refusal
    tokens = mx.random.randint(0, vocab_size, (1, 4), key=mx.random.key(0))
    whole = model(tokens, cache=make_cache())
    hidden = parts.body(tokens, cache=make_cache())
    if not isinstance(hidden, mx.array) or hidden.ndim != 3:
        return refusal
    logits = parts.score(hidden)
    if logits.shape != whole.shape or not mx.array_equal(logits, whole):
        return refusal
    return parts


def parts_of(model: Model) -> SplitModel | None:
    """Return the parts that a model has by name; None for one that is made otherwise."""
    text: Any = getattr(model, "language_model", model)
    body = getattr(text, "model", None)
    embed = getattr(body, "embed_tokens", None)
    if not isinstance(body, nn.Module) or not isinstance(embed, nn.Module):
        return None
    head = getattr(text, "lm_head", None)
    score = cast(Any, embed).as_linear if head is None else head
    output = embed if head is None else head
    return SplitModel(text, cast(Any, body), cast(Any, embed), score, output)
