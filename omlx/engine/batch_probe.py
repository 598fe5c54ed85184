"""Whether rows of a model can share a batch: every layer's cache merges, and a short probe shows that nothing is lost.

The probe takes rows through a batch's life (prefilled alone, merged, decoded, joined by another, filtered, extracted)
and compares the logits with those of the rows alone: nine passes over at most eight tokens. It sees mistakes of masks,
positions and states; what only shows on long rows it cannot see (tests/probe looks there, on tiny models).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx

from omlx.engine.model import Cache, MakeCache, Model, merge_caches
from omlx.engine.rewind import leaves
from omlx.engine.types import Reason

_TOLERANCE = {mx.float32: 1e-3}
_TOLERANCE_16_BITS = 5e-2
"""Relative to the largest logit. Kernels of other shapes round otherwise: about 1e-5 in float32, 1e-2 in bfloat16;
TF32 products, on by default on some GPUs, reach 1e-3."""


_LATE_FAULTS = {
    "mlx_lm.models.minimax_m3_vl": "it picks keys by blocks of cache columns, which padding shifts"
}
"""Models, by module, that a few tokens cannot show to be wrong in a batch: found by the long probe of tests/probe."""


@runtime_checkable
class Mergeable(Protocol):
    def merge(self, caches: Sequence[Any], /) -> Any:
        """A batch cache with one row for each of `caches`. Does not modify them."""
        ...


def batching_refusal(model: Model, make_cache: MakeCache, vocab_size: int) -> Reason | None:
    """Why rows of this model run one after another, or None if they can share a batch.

    `vocab_size` bounds the ids of the probe. Nothing of the model is modified.
    """
    for leaf in leaves(make_cache()):
        if not isinstance(leaf, Mergeable):
            return Reason("batch.off.no_merge", {"layer": type(leaf).__name__})
        if getattr(leaf, "keep", 0):
            return Reason("batch.off.keep", {"layer": type(leaf).__name__})
    if (fault := _LATE_FAULTS.get(type(model).__module__)) is not None:
        return Reason("batch.off.probe", {"error": fault})
    try:
        error = _probe(model, make_cache, vocab_size)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as failure:
        return Reason("batch.off.probe", {"error": f"{type(failure).__name__}: {failure}"})
    return None if error is None else Reason("batch.off.probe", {"error": error})


def _probe(model: Model, make_cache: MakeCache, vocab_size: int) -> str | None:
    """What differs first from the rows alone, or None."""
    text = mx.random.randint(0, vocab_size, (2, 8), key=mx.random.key(0))
    alone = [model(text[i : i + 1], cache=make_cache())[0] for i in (0, 1)]  # each [8, V]
    scale = mx.maximum(*(mx.abs(logits).max() for logits in alone)).astype(mx.float32)
    tolerance = scale * _TOLERANCE.get(alone[0].dtype, _TOLERANCE_16_BITS)
    texts = [
        0,
        1,
        0,
    ]  # which text a row reads; the third one reads the first text from its start, later
    lengths = [5, 1, 4]  # a single token has less history than some recurrent layers keep
    caches = [make_cache() for _ in texts]
    for row, cache in enumerate(caches):
        model(text[texts[row]][None, : lengths[row]], cache=cache)

    def differs(rows: list[int], cache: Cache) -> bool:
        """Decode one token of each of `rows` and compare."""
        window = mx.stack([text[texts[row], lengths[row]] for row in rows])[:, None]
        logits = model(window, cache=cache)[:, -1]  # [rows, V]
        wanted = mx.stack([alone[texts[row]][lengths[row]] for row in rows])
        for row in rows:
            lengths[row] += 1
        gap = mx.abs(logits.astype(mx.float32) - wanted.astype(mx.float32)).max()
        return not bool((gap <= tolerance).item())  # so that a NaN differs

    batch = merge_caches(caches[:2])
    if differs([0, 1], batch):
        return "merged rows differ"
    for layer, joining in zip(batch, merge_caches(caches[2:]), strict=True):
        layer.extend(joining)
    if differs([0, 1, 2], batch):
        return "rows differ after another joined"
    for layer in batch:
        layer.filter([1, 2])
    if differs([1, 2], batch):
        return "rows differ after one left"
    if differs([2], [layer.extract(1) for layer in batch]):
        return "an extracted row differs"
    return None
