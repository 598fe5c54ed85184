"""Facts of a loaded model: vocabulary, abilities and sizes of its caches, bits of wide passes.

`facts_of` looks at classes and shapes and runs nothing, so that a model in stages can be judged as
a whole before it is cut. `probed` adds facts that only passes show. `measure_exactness` compares
wide passes with single steps on the loaded weights: kernels are chosen by shape, so the result
holds for the measured shapes, on this machine, with these weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final, cast

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from omlx.engine.device.batch_probe import (
    PROBE_ERRORS,
    batching_faults,
    batching_refusal,
    layer_refusal,
    merge_refusal,
    uneven_faults,
    uneven_refusal,
)
from omlx.engine.device.model import (
    GROUP,
    Cache,
    MakeCache,
    Model,
    id_limit,
    quantizing,
    weight_bytes,
)
from omlx.engine.device.payloads import layout_of, uncacheable
from omlx.engine.device.ragged import merge_caches
from omlx.engine.device.rewind import leaves, mark, rewind, rewind_refusal, traits
from omlx.engine.piece import Layout
from omlx.engine.step.prefill import Activations, Kernels, PassShape
from omlx.engine.types import Limits, Steps, Traits
from omlx.errors import Param, Reason
from omlx.exactness import ROWS, WINDOWS, Bounds, Exactness


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a loaded model. `vocab_size` counts the ids that tokenizer and model both have;
    `weight_bytes` are the bytes that a pass reads at most. In stages `own_layout` is that of this
    rank's layers, `layout` that of all. Reasons say what the model cannot do: `unbatchable`, share
    passes between rows; `no_uneven`, read windows of different lengths in such a pass;
    `uncacheable`, keep prefixes; `no_rewind`, roll back, and so verify drafts; `no_kv_bits`,
    quantize KV caches. `kv_bits` are those of a number in quantized caches. `shape` tells
    activations; None: the config does not.
    """

    vocab_size: int
    weight_bytes: int
    traits: Traits
    layout: Layout
    unbatchable: Reason | None
    no_uneven: Reason | None
    uncacheable: Reason | None
    no_rewind: Reason | None
    own_layout: Layout | None = None
    shape: PassShape | None = None
    kv_bits: int | None = None
    no_kv_bits: Reason | None = None

    def activations(self, kernels: Kernels) -> Activations:
        """Return the estimates for passes on a device with these attention kernels."""
        window = None if self.layout.row_bytes else self.layout.window
        # mlx has no fused attention over quantized keys
        return Activations(self.shape, "none" if self.kv_bits else kernels, window)


def facts_of(
    model: Model, vocab_size: int, make_cache: MakeCache, kv_bits: int | None = None
) -> ModelFacts:
    """Return the facts of a model whose tokenizer has `vocab_size` tokens. Runs nothing.

    KV caches are to be quantized to `kv_bits`; None: as `make_cache` makes them.
    """
    no_kv_bits = None if kv_bits is None else kv_refusal(model, make_cache, kv_bits)
    kv_bits = kv_bits if no_kv_bits is None else None
    make_cache = quantizing(make_cache, kv_bits)
    cache = make_cache()
    return ModelFacts(
        vocab_size=min(vocab_size, id_limit(model, make_cache)),
        weight_bytes=weight_bytes(model),
        traits=traits(cache),
        layout=Layout(0),
        unbatchable=merge_refusal(model, make_cache),
        no_uneven=layer_refusal(make_cache),
        uncacheable=uncacheable(cache),
        no_rewind=rewind_refusal(cache, model),
        kv_bits=kv_bits,
        no_kv_bits=no_kv_bits,
    )


def kv_refusal(model: Model, make_cache: MakeCache, bits: int) -> Reason | None:
    """Return why KV caches of a model cannot be quantized to `bits`, or None.

    Builds passes of the model, whose shapes and types tell; evaluates nothing.
    """
    ids = mx.zeros((1, 2), mx.uint32)
    plain = make_cache()
    model(ids, cache=plain)
    full = [leaf for leaf in leaves(plain) if type(leaf) is KVCache]
    if not full:
        layers = sorted({type(leaf).__name__ for leaf in leaves(plain)})
        return Reason("kv.off.layers", {"layers": ", ".join(layers)})
    arrays: list[Any] = [array for leaf in full for array in (leaf.keys, leaf.values)]
    widths = {array.shape[-1] for array in arrays if array is not None}
    odd = sorted(width for width in widths if width % GROUP)
    if odd:
        return Reason("kv.off.width", {"width": odd[0], "group": GROUP})
    try:
        cache = quantizing(make_cache, bits)()
        for width in (2, 1):
            model(ids[:, :width], cache=cache)
    except PROBE_ERRORS as error:
        detail = f"{type(error).__name__}: {error}"
        return Reason("kv.off.attention", {"error": detail[:200]})
    return None


def probed(facts: ModelFacts, model: Model, make_cache: MakeCache) -> Steps[ModelFacts]:
    """Add the layout of the caches and how rows can share a batch: a short pass a step."""
    unbatchable = yield from batching_refusal(model, make_cache, facts.vocab_size)
    no_uneven = unbatchable
    if unbatchable is None:
        no_uneven = yield from uneven_refusal(model, make_cache, facts.vocab_size)
    layout = _layout(facts, model, make_cache)
    return replace(facts, layout=layout, unbatchable=unbatchable, no_uneven=no_uneven)


def probed_in_stages(facts: ModelFacts, stage: Model, make_cache: MakeCache) -> ModelFacts:
    """As `probed`, on every rank of a staged model at once: the layout is that of own layers.

    The passes depend on `facts` alone, which are those of the whole model. Raises what they raise.
    """
    layout = _layout(facts, stage, make_cache)
    unbatchable, no_uneven = facts.unbatchable, facts.no_uneven
    if unbatchable is None:
        faults = [*batching_faults(stage, make_cache, facts.vocab_size)]
        unbatchable = _first("batch.off.probe", faults)
    if no_uneven is None:
        faults = [*uneven_faults(stage, make_cache, facts.vocab_size)]
        no_uneven = _first("batch.off.uneven", faults)
    return replace(
        facts, layout=layout, own_layout=layout, unbatchable=unbatchable, no_uneven=no_uneven
    )


def _first(code: str, faults: Iterable[str | None]) -> Reason | None:
    fault = next(filter(None, faults), None)
    return None if fault is None else Reason(code, {"error": fault})


def _layout(facts: ModelFacts, model: Model, make_cache: MakeCache) -> Layout:
    if facts.uncacheable is not None:
        return Layout(0)
    return layout_of(model, make_cache)


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


def strict_facts(
    facts: ModelFacts, limits: Limits, measured: Exactness
) -> tuple[ModelFacts, Limits]:
    """Return facts that refuse what changes bits, and limits with bounds."""
    longest, window = limits.context_length, facts.traits.sliding_window
    bounds = Bounds(measured.width, measured.batch, min(limits.prefill_chunk, limits.prefill_slice))
    params: dict[str, Param] = {"difference": float(f"{measured.difference:.2g}")}
    no_rows, no_windows = Reason("exact.off.rows", params), Reason("exact.off.windows", params)
    if window is not None and window < longest:
        # A ring is added up from its oldest row on or not, as the passes before have left it.
        bounds = replace(bounds, width=1, rows=1)
        no_rows = no_windows = Reason("exact.off.sliding")
    unbatchable, no_rewind = facts.unbatchable, facts.no_rewind
    if bounds.rows < ROWS[0]:
        unbatchable = unbatchable or no_rows
    if bounds.width < WINDOWS[0]:
        no_rewind = no_rewind or no_windows
    no_uneven = facts.no_uneven or Reason("exact.off.shared", {"rows": bounds.rows})
    facts = replace(facts, unbatchable=unbatchable, no_uneven=no_uneven, no_rewind=no_rewind)
    return facts, replace(limits, bounds=bounds)


CONTEXTS: Final = (60, 1100)
"""Tokens before the measured passes. Some attention kernels are others from 1,024 on."""

CHUNK: Final = 64
"""Tokens of the context that one pass reads: requests wait for it."""

STEPS: Final = 3
"""Passes over each batch."""

SINGLE: Final = WINDOWS[-1]
"""Single steps behind a context: as many as the widest window has tokens."""

STRIDE: Final = 7919
"""Between ids: equal ones would all use the same experts."""


Differences = dict[tuple[bool, int, int], float]
"""Largest differences of logits by piece: a window or a batch, the number of contexts, the size."""


@dataclass(slots=True)
class _Row:
    """One context: its cache before the measured passes, and the ids and logits of single steps."""

    length: int
    cache: Cache
    ids: Sequence[int]
    logits: list[mx.array]


def measure_exactness(
    model: Model,
    make_cache: MakeCache,
    vocab_size: int,
    longest: int,
    known: Differences | None = None,
) -> Steps[Exactness]:
    """Measure windows and batches behind contexts of at most `longest` tokens: a pass a step.

    Batches have rows of all contexts so far, as the engine merges them. Differences are added to
    `known`, from which another call continues. Raises what the model raises, and ArithmeticError
    for logits that are not finite.
    """
    known = {} if known is None else known
    contexts = tuple(length for length in CONTEXTS if length + SINGLE <= longest)
    if not contexts:
        contexts = (max(1, longest - SINGLE),)
    probe = _Probe(model, make_cache, vocab_size)
    widths = WINDOWS if rewind_refusal(make_cache(), model) is None else ()
    sizes = ROWS if merge_refusal(model, make_cache) is None else ()
    rows: list[_Row] = []
    for number in range(1, len(contexts) + 1):
        pieces = [(True, number, width) for width in widths]
        pieces += [(False, number, size) for size in sizes]
        for piece in pieces:
            if piece in known:
                continue
            while len(rows) < number:
                rows.append((yield from probe.single_steps(contexts[len(rows)])))
            window, _, size = piece
            if window:
                known[piece] = probe.window(rows[-1], size)
                yield
            else:
                chosen = [rows[i % number] for i in range(size)]
                known[piece] = yield from probe.batch(chosen)
    windows, batches = _largest(known, window=True), _largest(known, window=False)
    return Exactness(contexts, windows, batches)


def _largest(known: Differences, *, window: bool) -> dict[int, float]:
    """Return the largest difference by size, in ascending order."""
    largest: dict[int, float] = {}
    for (kind, _, size), found in sorted(known.items()):
        if kind == window:
            largest[size] = max(largest.get(size, 0.0), found)
    return largest


@dataclass(frozen=True, slots=True)
class _Probe:
    _model: Model
    _make_cache: MakeCache
    _vocab_size: int

    def single_steps(self, length: int) -> Steps[_Row]:
        """Read a context and single tokens behind it, then the context again, without them."""
        ids = [STRIDE * (i + 1) % self._vocab_size for i in range(length + SINGLE)]
        cache = yield from self._read(ids[:length])
        logits = []
        for token in ids[length:]:
            logits.append(self._pass([[token]], cache)[0, 0])
            yield
        # Read again: a sliding window that was full cannot return.
        cache = yield from self._read(ids[:length])
        return _Row(length, cache, ids[length:], logits)

    def window(self, row: _Row, width: int) -> float:
        """Read a window, and roll it back. Return the largest difference."""
        before = mark(row.cache, row.length)
        logits = self._pass([row.ids[:width]], row.cache)[0]
        rewind(row.cache, row.length + width, row.length, [before])
        return max(_difference(logits[i], row.logits[i]) for i in range(width))

    def batch(self, rows: Sequence[_Row]) -> Steps[float]:
        """Merge copies of these rows. Return the largest difference of some passes over all."""
        cache, largest = merge_caches([row.cache for row in rows]), 0.0
        for step in range(STEPS):
            logits = self._pass([[row.ids[step]] for row in rows], cache)
            for i, row in enumerate(rows):
                largest = max(largest, _difference(logits[i, 0], row.logits[step]))
            yield
        return largest

    def _read(self, ids: Sequence[int]) -> Steps[Cache]:
        cache = self._make_cache()
        for start in range(0, len(ids), CHUNK):
            self._pass([ids[start : start + CHUNK]], cache)
            yield
        return cache

    def _pass(self, ids: Sequence[Sequence[int]], cache: Any) -> mx.array:
        """Return the logits [rows, tokens, V] of ids, computed."""
        logits = self._model(mx.array([list(row) for row in ids], mx.uint32), cache=cache)[
            ..., : self._vocab_size
        ]
        mx.eval(logits, [layer.state for layer in cache])
        return logits


def _difference(logits: mx.array, reference: mx.array) -> float:
    """Return the largest absolute difference of two arrays [V]."""
    gap = mx.abs(logits.astype(mx.float32) - reference.astype(mx.float32)).max()
    found = cast(float, gap.item())
    if not isfinite(found):
        raise ArithmeticError("logits are not finite")
    return found
