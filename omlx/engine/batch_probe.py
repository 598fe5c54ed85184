"""Whether rows of a model can share a batch: all caches merge, and a probe finds no difference.

The probe prefills rows alone, merges, decodes, adds a row, filters and extracts, and compares the
logits with those of the rows alone: nine passes over at most eight tokens. It finds wrong masks,
positions and states, but not what only shows on long rows (tests/probe covers that, on tiny
models).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx

from omlx.engine.model import Cache, MakeCache, Model, merge_caches
from omlx.engine.rewind import leaves
from omlx.errors import Reason

_TOLERANCE = {mx.float32: 1e-3}
_TOLERANCE_16_BITS = 5e-2
"""Relative to the largest logit.

Kernels of other shapes round differently: about 1e-5 in float32, 1e-2 in bfloat16; TF32 products,
on by default on some GPUs, reach 1e-3.
"""

_LATE_FAULTS = {
    "mlx_lm.models.minimax_m3_vl": "it picks keys by blocks of cache columns, which padding shifts"
}
"""Models, by module, whose batches are wrong on long rows only, as tests/probe found."""

_PROBE_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What models raise that do not expect a batch."""


@runtime_checkable
class Mergeable(Protocol):
    def merge(self, caches: Sequence[Any], /) -> Any:
        """Return a batch cache with one row for each of `caches`, which are not modified."""
        ...


def batching_refusal(model: Model, make_cache: MakeCache, vocab_size: int) -> Reason | None:
    """Return why rows of this model cannot share a batch, or None if they can.

    `vocab_size` bounds the ids of the probe. The model is not modified.
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
    except _PROBE_ERRORS as failure:
        return Reason("batch.off.probe", {"error": f"{type(failure).__name__}: {failure}"})
    return None if error is None else Reason("batch.off.probe", {"error": error})


def _probe(model: Model, make_cache: MakeCache, vocab_size: int) -> str | None:
    """Return the first difference from the rows alone, or None."""
    text = mx.random.randint(0, vocab_size, (2, 8), key=mx.random.key(0))
    alone = [model(text[i : i + 1], cache=make_cache())[0] for i in (0, 1)]  # each [8, V]
    scale = mx.maximum(*(mx.abs(logits).max() for logits in alone)).astype(mx.float32)
    tolerance = scale * _TOLERANCE.get(alone[0].dtype, _TOLERANCE_16_BITS)
    texts = [0, 1, 0]  # by row; row 2 reads text 0 too, at other positions
    lengths = [5, 1, 4]  # one token is less history than some recurrent layers keep
    caches = [make_cache() for _ in texts]
    for row, cache in enumerate(caches):
        model(text[texts[row]][None, : lengths[row]], cache=cache)

    def differs(rows: list[int], cache: Cache) -> bool:
        """Decode one token of each of `rows`; return whether the logits differ from those alone."""
        window = mx.stack([text[texts[row], lengths[row]] for row in rows])[:, None]
        logits = model(window, cache=cache)[:, -1]  # [rows, V]
        wanted = mx.stack([alone[texts[row]][lengths[row]] for row in rows])
        for row in rows:
            lengths[row] += 1
        gap = mx.abs(logits.astype(mx.float32) - wanted.astype(mx.float32)).max()
        return not bool((gap <= tolerance).item())  # NaN differs

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
