"""Shortlists of a draft head: frequent tokens, drafted from the rows of their ids alone.

FR-Spec (Zhao et al. 2025): a small head spends most of its time in the target's output layer, and
the other tokens are only missed drafts.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Final, cast

import mlx.core as mx
import mlx.nn as nn

from omlx.errors import Reason

_TABLES: Final = (nn.Embedding, nn.QuantizedEmbedding)
_LAYERS: Final = (nn.Linear, nn.QuantizedLinear)


class Shortlist:
    """Distinct token `ids` [n], and the rows of the target's `output` layer for them.

    Rows are copied as they are, packed ones too.
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
        """Return a shortlist, or why these ids are none for a target of `vocab_size` ids."""
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
