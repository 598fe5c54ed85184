"""Probe of batches: can rows of a model share one, and speculate in it?

The probe prefills rows alone, merges, decodes, adds a row, filters and extracts, and compares the
logits with those of the rows alone; then rows read windows of different lengths, and one is rolled
back: thirteen passes over at most eight tokens. It finds wrong masks, positions and states, but not
what only shows on long rows (lab/probe covers that, on tiny models).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, QuantizedKVCache

from omlx.engine.device.model import ATTENTION, Cache, MakeCache, Model, architecture_of, cache_kind
from omlx.engine.device.ragged import RowsCache
from omlx.engine.device.rewind import leaves
from omlx.engine.device_errors import kind_of
from omlx.engine.types import Steps, run_through
from omlx.errors import Reason

_TOLERANCE = {mx.float32: 1e-3}
_TOLERANCE_16_BITS = 5e-2
"""Relative to the largest logit.

Kernels of other shapes round differently: about 1e-5 in float32, 1e-2 in bfloat16; TF32 products,
on by default on some GPUs, reach 1e-3.
"""

_QUANTIZED_TOLERANCE = 0.2
"""As above, with quantized KV caches, whose rounding steps are wide."""

_LATE_FAULTS: Final = {
    "mlx_lm.models.minimax_m3_vl": "it picks keys by blocks of cache columns, which padding shifts",
    "mlx_vlm.models.longcat_flash_sparse": "its indexer cannot read rows of several lengths",
}
"""Models, by module, whose batches raise, or are wrong on long rows only, as lab/probe found."""

PROBE_ERRORS: Final = (
    *(ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
)
"""Errors of models that do not expect a batch, or quantized keys."""


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
    faults = batching_faults(model, make_cache, vocab_size)
    return (yield from _probe_refusal("batch.off.probe", faults))


def uneven_refusal(model: Model, make_cache: MakeCache, vocab_size: int) -> Steps[Reason | None]:
    """Return why rows that share a batch cannot read windows of different lengths, or None: a
    pass a step.

    Without that, rows cannot draft in a batch.
    """
    refusal = layer_refusal(make_cache)
    if refusal is not None:
        return refusal
    faults = uneven_faults(model, make_cache, vocab_size)
    return (yield from _probe_refusal("batch.off.uneven", faults))


def shared_refusal(model: Model, make_cache: MakeCache, vocab_size: int) -> Reason | None:
    """Return why rows cannot share passes over windows of different lengths, or None."""
    refusal = run_through(batching_refusal(model, make_cache, vocab_size))
    return refusal or run_through(uneven_refusal(model, make_cache, vocab_size))


def merge_refusal(model: Model, make_cache: MakeCache) -> Reason | None:
    """Return why the caches of this model cannot be merged, or None. Runs nothing."""
    if (fault := _LATE_FAULTS.get(architecture_of(model))) is not None:
        return Reason("batch.off.probe", {"error": fault})
    for leaf in leaves(make_cache()):
        kind = cache_kind(type(leaf))
        if not (kind in ATTENTION or isinstance(leaf, Mergeable)):
            return Reason("batch.off.no_merge", {"layer": type(leaf).__name__})
        if getattr(leaf, "keep", 0):
            return Reason("batch.off.keep", {"layer": type(leaf).__name__})
    return None


def layer_refusal(make_cache: MakeCache) -> Reason | None:
    """Return which layer's cache cannot roll back one row of a batch, or None. Runs nothing."""
    known = ATTENTION | {ArraysCache}
    for leaf in leaves(make_cache()):
        if cache_kind(type(leaf)) not in known:
            error = f"{type(leaf).__name__} cannot roll back one row"
            return Reason("batch.off.uneven", {"error": error})
    return None


def batching_faults(model: Model, make_cache: MakeCache, vocab_size: int) -> Iterator[str | None]:
    """Yield the fault that each pass shows, None if it shows none: batched rows must give the
    logits of the rows alone.

    Each pass is evaluated before the next is built, and what passes there are depends on nothing
    that a model computes, so that the stages of one model stay in step. Raises what the model
    raises.
    """
    probe = _Probe(model, make_cache, vocab_size)
    batch, *others = yield from probe.prefill()
    batch.join(others[:1])
    yield probe.decode("merged rows differ", batch)
    batch.join(others[1:])
    yield probe.decode("rows differ after another joined", batch)
    batch.filter([1, 2])
    yield probe.decode("rows differ after one left", batch)
    yield probe.decode("an extracted row differs", batch.extract(2))


def uneven_faults(model: Model, make_cache: MakeCache, vocab_size: int) -> Iterator[str | None]:
    """As `batching_faults`, where two rows read windows of different lengths.

    Row 0 drafts two wrong tokens and is rolled back to its window's start.
    """
    probe = _Probe(model, make_cache, vocab_size)
    batch, other, _ = yield from probe.prefill()
    batch.join([other])
    batch.mark()
    yield probe.read("rows with windows of different lengths differ", batch, (3, 1), (1, 1))
    batch.rewind(0, _LENGTHS[0])
    yield probe.read("rows differ after one was rolled back", batch, (2, 4), (2, 4))


def _probe_refusal(code: str, faults: Iterator[str | None]) -> Steps[Reason | None]:
    try:
        for fault in faults:
            if fault is not None:
                return Reason(code, {"error": fault})
            yield
    except PROBE_ERRORS as failure:
        if kind_of(failure) is not None:
            raise  # an error of the device, which may be that of a request's pass
        return Reason(code, {"error": f"{type(failure).__name__}: {failure}"})
    return None


_LENGTHS: Final = (5, 1, 4)
"""Tokens of each row: one token is less history than some recurrent layers keep."""


class _Probe:
    """Rows of random text, and their logits alone. Row 2 reads the text of row 0."""

    def __init__(self, model: Model, make_cache: MakeCache, vocab_size: int) -> None:
        self._model = model
        self._make_cache = make_cache
        texts = mx.random.randint(0, vocab_size, (2, 8), key=mx.random.key(0))
        self._texts = [texts[0], texts[1], texts[0]]
        self._alone: list[mx.array] = []
        kept = {cache_kind(type(leaf)) for leaf in leaves(make_cache())}
        self._quantized = QuantizedKVCache in kept

    def prefill(self) -> Generator[None, None, list[RowsCache]]:
        """Compute the logits of rows alone; return caches of their first tokens. A pass a step."""
        for text in self._texts[:2]:
            self._alone.append(self._run(text[None], self._make_cache())[0])
            yield
        self._alone.append(self._alone[0])
        caches: list[RowsCache] = []
        for row, length in enumerate(_LENGTHS):
            caches.append(RowsCache(row, self._make_cache(), length))
            self._run(self._texts[row][None, :length], caches[-1].layers)
            yield
        return caches

    def decode(self, fault: str, batch: RowsCache) -> str | None:
        """Decode one token of each row; return `fault` if logits differ from those alone."""
        ones = (1,) * len(batch.lengths)
        return self.read(fault, batch, ones, ones)

    def read(
        self, fault: str, batch: RowsCache, widths: tuple[int, ...], right: tuple[int, ...]
    ) -> str | None:
        """Read windows of all rows, of which the first `right` tokens are the text; compare
        these.
        """
        windows, wanted = [], []
        for (row, first), count in zip(batch.lengths.items(), right, strict=True):
            text = self._texts[row][first : first + count]
            windows.append(mx.pad(text, (0, max(widths) - count)))
            wanted.append(self._alone[row][first : first + count])
        logits = batch.read(widths, partial(self._run, mx.stack(windows)))
        read = mx.concatenate([logits[i, :count] for i, count in enumerate(right)])
        return self._fault(fault, read, mx.concatenate(wanted))

    def _run(self, ids: mx.array, cache: Cache) -> mx.array:
        logits = self._model(ids, cache=cache)
        mx.eval(logits)
        return logits

    def _fault(self, fault: str, logits: mx.array, wanted: mx.array) -> str | None:
        gap = mx.abs(logits.astype(mx.float32) - wanted.astype(mx.float32)).max()
        scale = mx.maximum(*(mx.abs(alone).max() for alone in self._alone[:2])).astype(mx.float32)
        rounding = _TOLERANCE.get(logits.dtype, _TOLERANCE_16_BITS)
        if (gap <= scale * (_QUANTIZED_TOLERANCE if self._quantized else rounding)).item():
            return None
        return fault  # NaN differs
