"""What the host does in a step: with a model that costs nothing, and how long building a real model's graph takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from omlx.bench.measure import Case, Run, Side
from omlx.bench.result import Json, Samples
from omlx.bench.sides import engine, mlx_lm_batch, mlx_lm_plain, request
from omlx.engine.build import build_loop
from omlx.engine.limits import Limits
from omlx.engine.loop import EngineLoop

VOCABULARY: Final = 32_000
ROWS: Final = (1, 4, 16)
STEPS: Final = 100
CALLS: Final = 50


class FreeModel(nn.Module):
    """Answers every token with the same logits, made once per shape, and keeps no cache.

    Whatever a step costs, it is not the model.
    """

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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


def host(steps: int = STEPS) -> Iterator[Case]:
    """Processor time of the calling thread per step, ours and mlx-lm's, at 1, 4 and 16 rows."""
    model = FreeModel()
    loop = build_loop(
        model, VOCABULARY, Limits(context_length=1 << 20, max_rows=max(ROWS), prefix_bytes=0)
    )
    for rows in ROWS:
        baseline = "generate_step" if rows == 1 else "BatchGenerator"
        pair = (_ours(loop, rows, steps), _theirs(model, rows, steps))
        yield Case(
            "host",
            f"{rows} row{'s' * (rows > 1)}, free model",
            baseline,
            [pair],
            {"rows": rows},
            unit="µs/step",
            metric=cpu_us_per_step,
            smaller_is_better=True,
        )


def cpu_us_per_step(run: Run) -> float:
    return 1e6 * run.cpu_s * len(run.tokens) / max(1, run.counted)


def graph(
    model: Any, widths: tuple[int, ...] = (1, 4, 16), calls: int = CALLS
) -> dict[int, Samples]:
    """µs that a model call takes to build its graph, evaluation apart, by number of tokens in the window."""
    built: dict[int, Samples] = {}
    for width in widths:
        cache = make_prompt_cache(model)
        tokens = mx.zeros((1, width), mx.uint32)
        mx.eval(model(tokens, cache=cache))
        times = []
        for _ in range(calls):
            start = time.perf_counter()
            logits = model(tokens, cache=cache)
            times.append(1e6 * (time.perf_counter() - start))
            mx.eval(logits, [layer.state for layer in cache])
        built[width] = Samples(tuple(times))
    return built


def graphs(model: Any, draft: Any | None) -> dict[str, Json]:
    """`graph` of the target and, if there is one, the draft; by role, then width."""
    models = {"model": model, "draft": draft}
    return {
        role: {str(width): samples.to_json() for width, samples in graph(each).items()}
        for role, each in models.items()
        if each is not None
    }


def _ours(loop: EngineLoop, rows: int, steps: int) -> Side:
    asked = [request((1, 2, 3), steps) for _ in range(rows)]
    return lambda seed: engine(loop, asked)


def _theirs(model: FreeModel, rows: int, steps: int) -> Side:
    prompt = (1, 2, 3)
    if rows == 1:
        return lambda seed: mlx_lm_plain(model, prompt, steps, frozenset(), 0.0)
    return lambda seed: mlx_lm_batch(model, [prompt] * rows, steps)
