"""Whether rows of a model can share a batch: all caches merge, and a probe finds no difference.

The probe prefills rows alone, merges, decodes, adds a row, filters and extracts, and compares the
logits with those of the rows alone: nine passes over at most eight tokens. It finds wrong masks,
positions and states, but not what only shows on long rows (tests/probe covers that, on tiny
models).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx

from omlx.engine.model import Cache, MakeCache, Model, merge_caches
from omlx.engine.rewind import leaves
from omlx.engine.steps import Steps
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


def batching_refusal(model: Model, make_cache: MakeCache, vocab_size: int) -> Steps[Reason | None]:
    """Return why rows of this model cannot share a batch, or None if they can: a pass a step.

    `vocab_size` bounds the ids of the probe. The model is not modified.
    """
    refusal = merge_refusal(model, make_cache)
    if refusal is not None:
        return refusal
    try:
        for fault in batching_faults(model, make_cache, vocab_size):
            if fault is not None:
                return Reason("batch.off.probe", {"error": fault})
            yield
    except _PROBE_ERRORS as failure:
        return Reason("batch.off.probe", {"error": f"{type(failure).__name__}: {failure}"})
    return None


def merge_refusal(model: Model, make_cache: MakeCache) -> Reason | None:
    """Return why the caches of this model cannot be merged, or None. Runs nothing."""
    for leaf in leaves(make_cache()):
        if not isinstance(leaf, Mergeable):
            return Reason("batch.off.no_merge", {"layer": type(leaf).__name__})
        if getattr(leaf, "keep", 0):
            return Reason("batch.off.keep", {"layer": type(leaf).__name__})
    if (fault := _LATE_FAULTS.get(type(model).__module__)) is not None:
        return Reason("batch.off.probe", {"error": fault})
    return None


def batching_faults(model: Model, make_cache: MakeCache, vocab_size: int) -> Iterator[str | None]:
    """Yield the fault that each pass shows, None if it shows none: batched rows must give the
    logits of the rows alone.

    Each pass is evaluated before the next is built, and what passes there are depends on nothing
    that a model computes, so that the stages of one model stay in step. Raises what the model
    raises.
    """

    def run(ids: mx.array, cache: Cache) -> mx.array:
        logits = model(ids, cache=cache)
        mx.eval(logits)
        return logits

    text = mx.random.randint(0, vocab_size, (2, 8), key=mx.random.key(0))
    alone: list[mx.array] = []  # each [8, V]
    for i in (0, 1):
        alone.append(run(text[i : i + 1], make_cache())[0])
        yield None
    scale = mx.maximum(*(mx.abs(logits).max() for logits in alone)).astype(mx.float32)
    tolerance = scale * _TOLERANCE.get(alone[0].dtype, _TOLERANCE_16_BITS)
    texts = [0, 1, 0]  # by row; row 2 reads text 0 too, at other positions
    lengths = [5, 1, 4]  # one token is less history than some recurrent layers keep
    caches = [make_cache() for _ in texts]
    for row, cache in enumerate(caches):
        run(text[texts[row]][None, : lengths[row]], cache)
        yield None

    def differs(fault: str, rows: list[int], cache: Cache) -> str | None:
        """Decode one token of each of `rows`; return `fault` if logits differ from those alone."""
        window = mx.stack([text[texts[row], lengths[row]] for row in rows])[:, None]
        logits = run(window, cache)[:, -1]  # [rows, V]
        wanted = mx.stack([alone[texts[row]][lengths[row]] for row in rows])
        for row in rows:
            lengths[row] += 1
        gap = mx.abs(logits.astype(mx.float32) - wanted.astype(mx.float32)).max()
        if (gap <= tolerance).item():
            return None
        return fault  # NaN differs

    batch = merge_caches(caches[:2])
    yield differs("merged rows differ", [0, 1], batch)
    for layer, joining in zip(batch, merge_caches(caches[2:]), strict=True):
        layer.extend(joining)
    yield differs("rows differ after another joined", [0, 1, 2], batch)
    for layer in batch:
        layer.filter([1, 2])
    yield differs("rows differ after one left", [1, 2], batch)
    yield differs("an extracted row differs", [2], [layer.extract(1) for layer in batch])
