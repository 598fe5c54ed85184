"""Whether rows of a model can share a batch: every layer's cache merges, and nothing is lost in merging."""

from __future__ import annotations

from omlx.engine.model import MakeCache, Model
from omlx.engine.rewind import leaves
from omlx.engine.types import Reason


def batchable(model: Model, make_cache: MakeCache, vocab_size: int) -> Reason | None:
    """Why rows of this model run one after another, or None if they can share a batch."""
    for leaf in leaves(make_cache()):
        if not hasattr(leaf, "merge"):
            return Reason("batch.off.no_merge", {"layer": type(leaf).__name__})
        if getattr(leaf, "keep", 0):
            return Reason("batch.off.keep", {"layer": type(leaf).__name__})
    return None
