"""Whether a model computes at all: one short pass whose logits must be finite."""

from __future__ import annotations

from math import isfinite
from typing import Final, cast

import mlx.core as mx

from omlx.engine.model import MakeCache, Model
from omlx.errors import Reason

_TOKENS: Final = 8


def forward_failure(model: Model, make_cache: MakeCache, vocab_size: int) -> Reason | None:
    """Return a reason if a pass over ids below `vocab_size` gives numbers that are not finite.

    One pass, as every rank of a model in stages must run it. Finds damage that reaches the logits
    of the probe, not weights whose damage gives finite numbers or belongs to other tokens. The
    model is not modified. Raises what it raises.
    """
    tokens = mx.random.randint(0, vocab_size, (1, _TOKENS), key=mx.random.key(0))
    logits = model(tokens, cache=make_cache())[0]  # [_TOKENS, V]
    peaks = cast(list[float], logits.max(axis=-1).tolist())  # NaN is the largest
    return None if all(map(isfinite, peaks)) else Reason("model.not_finite")
