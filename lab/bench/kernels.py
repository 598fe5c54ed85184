"""Parts of the machine's page: tables, each with its own time limit; here, of single kernels.

A failed part is reported with the rows before the failure; the other parts still run. mlx chooses a
kernel by the rows of a product and the queries of an attention, so time and rounding change in
steps: these parts show the steps of this machine, in the shapes of an 8B model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final, TypeAlias

import mlx.core as mx

from lab.bench.console import Progress, table
from lab.bench.subject import GROUP_SIZE
from omlx.engine.device_errors import isolate

Row: TypeAlias = tuple[str, ...]
Expired: TypeAlias = Callable[[], bool]
"""Whether the part's time is over. A started row is finished."""


@dataclass(frozen=True, slots=True)
class Part:
    """`measure(progress, expired)` yields rows below `head`, and ticks at most `units` times."""

    title: str
    head: Row
    seconds: float
    units: int
    measure: Callable[[Progress, Expired], Iterator[Row]]


def run_parts(
    parts: Sequence[Part], seconds: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[str]:
    """Measure each part and yield its text. `seconds` bound all parts together.

    An interrupt ends the measurement; finished parts have been yielded.
    """
    began, done = clock(), 0
    end = began + seconds
    with Progress(sum(part.units for part in parts), "step", end, clock) as progress:
        for part in parts:
            progress.start(part.title)
            deadline = min(end, clock() + part.seconds)
            yield _run(part, progress, partial(_is_over, clock, deadline))
            done += part.units
            progress.reach(done)


def _is_over(clock: Callable[[], float], deadline: float) -> bool:
    return clock() >= deadline


def _run(part: Part, progress: Progress, expired: Expired) -> str:
    if expired():
        return f"{part.title}\nNo time was left.\n"
    rows = [part.head]
    with isolate() as outcome:
        rows.extend(part.measure(progress, expired))
    lines = [part.title, table(rows)]
    if outcome.error is not None:
        lines.append(f"ERROR {type(outcome.error).__name__}: {outcome.error}")
    elif expired():
        lines.append("The time of this part was over: rows may be missing.")
    return "\n".join(lines) + "\n"


ROWS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 32)
"""Rows of a product — both sides of the known steps."""

SHAPE: Final = (4096, 12288)
"""Inputs and outputs of a layer."""

QUERIES: Final = (1, 4, 8, 9, 64, 512)
HEAD_DIMS: Final = (128, 256)
QUERY_HEADS: Final = 32
KEY_HEADS: Final = 4
CONTEXT: Final = 8192
"""Tokens that each query attends to."""

REPEATS: Final = 5
"""Timed evaluations per kernel, after an untimed one; the median counts."""

ENOUGH_S: Final = 0.5
"""Seconds of timed evaluations — a slow kernel is not evaluated again after them."""

PROBED_LIMIT: Final = 1 << 26
"""Bytes — each limit is set to this value for a moment."""

TYPE: Final = mx.bfloat16


def products(seconds: float) -> Part:
    """Return a part on products with 4-bit and bfloat16 weights.

    `differs`: largest difference of the first row from the same row alone; 0 means equal bits.
    """
    head = ("rows", "4 bit ms", "× one", "differs", "bfloat16 ms", "× one", "differs")
    title = f"Matrix product, {SHAPE[0]:,} → {SHAPE[1]:,}, bfloat16 activations"
    return Part(title, head, seconds, len(ROWS), _products)


def _products(progress: Progress, expired: Expired) -> Iterator[Row]:
    inputs, outputs = SHAPE
    mx.random.seed(0)
    weights = mx.random.normal((outputs, inputs), TYPE, scale=inputs**-0.5)
    packed = mx.quantize(weights, group_size=GROUP_SIZE, bits=4)
    x = mx.random.normal((max(ROWS), inputs), TYPE)
    mx.eval(weights, packed, x)

    def quantized(rows: mx.array) -> mx.array:
        return mx.quantized_matmul(rows, *packed, group_size=GROUP_SIZE, bits=4)

    kernels: tuple[Callable[[mx.array], mx.array], ...] = (quantized, lambda rows: rows @ weights.T)
    alone = [kernel(x[:1]) for kernel in kernels]
    singles = [0.0 for _ in kernels]
    for count in ROWS:
        cells = [str(count)]
        for i, kernel in enumerate(kernels):
            output, took = _timed(partial(kernel, x[:count]))
            # The first count is 1 row: the reference of all ratios.
            singles[i] = singles[i] or took
            difference = mx.abs(output[0] - alone[i][0]).max().item()
            cells += [f"{1e3 * took:.3f}", f"{took / singles[i]:.2f}", f"{difference:.2g}"]
        progress.tick()
        yield tuple(cells)
        if expired():
            return


def attention(seconds: float) -> Part:
    """Return a part on attention of a context's last queries.

    Without a fused kernel, peak memory grows with the scores [queries, context].
    """
    head = ["queries"]
    for size in HEAD_DIMS:
        head += [f"{size}: ms", "peak MB"]
    title = (
        f"Attention by head dimension: {QUERY_HEADS} query heads, {KEY_HEADS} key heads, "
        f"context {CONTEXT:,}"
    )
    return Part(title, tuple(head), seconds, len(QUERIES), _attention)


def _attention(progress: Progress, expired: Expired) -> Iterator[Row]:
    mx.random.seed(0)
    for count in QUERIES:
        cells = [str(count)]
        for size in HEAD_DIMS:
            queries = mx.random.normal((1, QUERY_HEADS, count, size), TYPE)
            keys = mx.random.normal((1, KEY_HEADS, CONTEXT, size), TYPE)
            mx.eval(queries, keys)
            attend = partial(_attend, queries, keys, "causal" if count > 1 else None)
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            _, took = _timed(attend)
            peak = mx.get_peak_memory() - before
            cells += [f"{1e3 * took:.2f}", f"{peak / 1e6:.0f}"]
        progress.tick()
        yield tuple(cells)
        if expired():
            return


def _attend(queries: mx.array, keys: mx.array, mask: str | None) -> mx.array:
    scale = queries.shape[-1] ** -0.5
    return mx.fast.scaled_dot_product_attention(queries, keys, keys, scale=scale, mask=mask)


def calls(seconds: float) -> Part:
    """Return a part on calls that bound or return memory: their effect here, or their error."""
    return Part("Calls of mlx", ("call", "result"), seconds, 1, _calls)


def _calls(progress: Progress, expired: Expired) -> Iterator[Row]:
    mx.synchronize()
    yield "synchronize", "ok"
    mx.clear_cache()
    yield "clear_cache", "ok"
    if expired():
        return
    changes: tuple[Callable[[int], int], ...] = (
        mx.set_cache_limit,
        mx.set_memory_limit,
        mx.set_wired_limit,
    )
    for change in changes:
        before = change(PROBED_LIMIT)
        result = "set and restored" if change(before) == PROBED_LIMIT else "ignored"
        yield change.__name__, f"{result}, was {before / 1e9:.2f} GB"
    info = mx.device_info()
    for name in ("max_recommended_working_set_size", "max_buffer_length", "resource_limit"):
        if name in info:
            yield name, f"{int(info[name]):,}"
    progress.tick()


def _timed(compute: Callable[[], mx.array]) -> tuple[mx.array, float]:
    """Return a result and the median seconds of its evaluations."""
    output, times = compute(), list[float]()
    # Not timed: compiles kernels.
    mx.eval(output)
    while len(times) < REPEATS and sum(times) < ENOUGH_S:
        began = time.perf_counter()
        mx.eval(compute())
        times.append(time.perf_counter() - began)
    return output, median(times)
