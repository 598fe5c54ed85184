"""Whether wide passes give the bits of single steps: measured on the loaded weights.

Behind each context, windows of every width and batches of every size read what single steps read,
and the largest difference of their logits is kept. Kernels are chosen by shape, so the result holds
for the shapes that were measured, on this machine, with these weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final, cast

import mlx.core as mx

from omlx.engine.inspection.batch_probe import merge_refusal
from omlx.engine.inspection.facts import ModelFacts
from omlx.engine.model import Cache, MakeCache, Model
from omlx.engine.ragged import merge_caches
from omlx.engine.rewind import mark, rewind, rewind_refusal
from omlx.engine.types import Limits, Steps
from omlx.errors import Param, Reason
from omlx.exactness import ROWS, WINDOWS, Bounds, Exactness


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


@dataclass(slots=True)
class _Row:
    """One context: its cache before the measured passes, and the ids and logits of single steps."""

    length: int
    cache: Cache
    ids: Sequence[int]
    logits: list[mx.array]


def measure_exactness(
    model: Model, make_cache: MakeCache, vocab_size: int, longest: int
) -> Steps[Exactness]:
    """Measure windows and batches behind contexts of at most `longest` tokens: a pass a step.

    Batches have rows of all contexts, as the engine merges them. Raises what the model raises, and
    ArithmeticError for logits that are not finite.
    """
    contexts = tuple(length for length in CONTEXTS if length + SINGLE <= longest)
    if not contexts:
        contexts = (max(1, longest - SINGLE),)
    probe = _Probe(model, make_cache, vocab_size)
    rows = []
    for length in contexts:
        rows.append((yield from probe.single_steps(length)))
    windows: dict[int, float] = {}
    if rewind_refusal(make_cache(), model) is None:
        for row in rows:
            for width in WINDOWS:
                found = probe.window(row, width)
                windows[width] = max(windows.get(width, 0.0), found)
                yield
    sizes: dict[int, float] = {}
    if merge_refusal(model, make_cache) is None:
        for size in ROWS:
            for alike in (True, False):  # rows of one length, and of several
                chosen = [rows[0 if alike else i % len(rows)] for i in range(size)]
                for found in probe.batch(chosen):
                    sizes[size] = max(sizes.get(size, 0.0), found)
                    yield
    return Exactness(contexts, windows, sizes)


class _Probe:
    def __init__(self, model: Model, make_cache: MakeCache, vocab_size: int) -> None:
        self._model = model
        self._make_cache = make_cache
        self._vocab_size = vocab_size

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

    def batch(self, rows: Sequence[_Row]) -> Iterator[float]:
        """Merge copies of these rows; yield the largest difference of each pass over all."""
        cache = merge_caches([row.cache for row in rows])
        for step in range(STEPS):
            logits = self._pass([[row.ids[step]] for row in rows], cache)
            yield max(_difference(logits[i, 0], row.logits[step]) for i, row in enumerate(rows))

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
