"""The host's share of a step: with a model that costs nothing, and the building of graphs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from lab.bench.drive import request, run
from lab.bench.engine.suites import EngineCase, Side, run_batch, run_plain
from lab.bench.series import Series
from omlx.engine.build import build_loop
from omlx.engine.loop import EngineLoop
from omlx.engine.types import Limits
from omlx.measure.sample import Sample

VOCABULARY: Final = 32_000
PROMPT: Final = (1, 2, 3)
ROWS: Final = (1, 4, 16)
STEPS: Final = 100
CALLS: Final = 50


class FreeModel(nn.Module):
    """Returns the same logits for every token, computed once per shape; has no cache."""

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx's own is not annotated
        self.layers: list[nn.Module] = []
        self._row = mx.random.normal((vocabulary,), key=mx.random.key(0))
        self._logits: dict[tuple[int, ...], mx.array] = {}

    def __call__(self, inputs: mx.array, cache: object = None) -> mx.array:
        """Logits [rows, tokens, V] for ids [rows, tokens]."""
        if inputs.shape not in self._logits:
            logits = mx.contiguous(mx.broadcast_to(self._row, (*inputs.shape, self._row.size)))
            mx.eval(logits)
            self._logits[inputs.shape] = logits
        return self._logits[inputs.shape]

    def make_cache(self) -> list[object]:
        return []


def host(steps: int = STEPS) -> Iterator[EngineCase]:
    """Processor time of the calling thread per step, ours and mlx-lm's, at 1, 4 and 16 rows."""
    model = FreeModel()
    limits = Limits(context_length=1 << 20, max_rows=max(ROWS), prefix_bytes=0)
    loop = build_loop(model, VOCABULARY, limits)
    for rows in ROWS:
        yield EngineCase(
            "host",
            f"{rows} row{'s' * (rows > 1)}, free model",
            "generate_step" if rows == 1 else "BatchGenerator",
            [(_ours(loop, rows, steps), _theirs(model, rows, steps))],
            {"rows": rows},
            unit="µs/step",
            metric=cpu_us_per_step,
            smaller_is_better=True,
        )


def cpu_us_per_step(sample: Sample) -> float:
    return 1e6 * sample.cpu_s * len(sample.tokens) / max(1, sample.counted)


def graphs(
    model: Any, draft: Any | None, widths: tuple[int, ...] = (1, 4, 16), calls: int = CALLS
) -> dict[str, dict[str, Series]]:
    """Return the µs that building the graph of a pass takes, by model and tokens in the pass."""
    models = {"model": model} if draft is None else {"model": model, "draft": draft}
    built: dict[str, dict[str, Series]] = {}
    for role, network in models.items():
        built[role] = {}
        for width in widths:
            built[role][str(width)] = _graph_us(network, width, calls)
    return built


def _graph_us(model: Any, width: int, calls: int) -> Series:
    cache = make_prompt_cache(model)
    tokens = mx.zeros((1, width), mx.uint32)
    mx.eval(model(tokens, cache=cache))
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        logits = model(tokens, cache=cache)
        times.append(1e6 * (time.perf_counter() - start))
        mx.eval(logits, [layer.state for layer in cache])
    return Series(tuple(times))


def _ours(loop: EngineLoop, rows: int, steps: int) -> Side:
    requests = [request(PROMPT, steps) for _ in range(rows)]
    return lambda seed: run(loop, requests)


def _theirs(model: FreeModel, rows: int, steps: int) -> Side:
    if rows == 1:
        return lambda seed: run_plain(model, PROMPT, steps, frozenset(), 0.0)
    return lambda seed: run_batch(model, [PROMPT] * rows, steps)
