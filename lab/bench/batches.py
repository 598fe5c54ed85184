"""Plain decoding of a batch: our ragged caches against mlx-lm's left-padded ones.

The model is called without the engine, one step in flight, so that only the caches differ. Trials
are interleaved; a ratio above 1 says that the ragged caches are faster. Theirs are measured twice:
as they are merged, and *uneven*, as after drafts of which each row accepted another number.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import mlx.core as mx

from lab.bench.console import add
from lab.bench.inflate import add_arguments as add_growth
from lab.bench.inflate import growth
from lab.bench.subject import read_subject
from omlx.engine.device.model import cache_maker
from omlx.engine.device.ragged import merge_caches

PADDED: Final = "left-padded"
RAGGED: Final = "ragged"
UNEVEN: Final = "uneven"

STEPS: Final = 64
LAG: Final = 7
"""Tokens by which each prompt is longer than the one before."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path)
    add(parser, "--dtype")
    parser.add_argument("--bits", type=int, help="quantize the weights")
    parser.add_argument("--rows", default="1,2,4,8,16", help="rows of a batch, such as 1,2,4")
    parser.add_argument("--context", type=int, default=300, help="tokens of the shortest prompt")
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--cpu-time", action="store_true", help="measure processor time")
    add_growth(parser, draft=False)


def run(args: argparse.Namespace) -> int:
    subject = read_subject(args.model, None, dtype=args.dtype, grow=growth(args), bits=args.bits)
    clock = time.process_time if args.cpu_time else time.perf_counter
    for rows in map(int, args.rows.split(",")):
        seconds = compare(subject.model, rows, args.context, args.trials, clock)
        record = {
            "rows": rows,
            "ms": {name: round(1e3 * median(times), 3) for name, times in seconds.items()},
            "ragged": _ratio(seconds[PADDED], seconds[RAGGED]),
            "uneven": _ratio(seconds[PADDED], seconds[UNEVEN]),
        }
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()
    return 0


def compare(
    model: Any, rows: int, context: int, trials: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Return the seconds of a step, by kind of cache, one for each trial after the first."""
    merges = {PADDED: _merge_padded, RAGGED: merge_caches, UNEVEN: _merge_uneven}
    seconds: dict[str, list[float]] = {name: [] for name in merges}
    for trial in range(trials + 1):
        singles = [_prefilled(model, context + LAG * row, row) for row in range(rows)]
        order = list(merges) if trial % 2 else list(reversed(merges))
        for name in order:
            batch = merges[name](singles)
            gc.collect()
            step = _decode(model, batch, rows, clock)
            if trial:
                seconds[name].append(step)
    return seconds


def _prefilled(model: Any, tokens: int, seed: int) -> list[Any]:
    ids = mx.random.randint(0, 256, (1, tokens), key=mx.random.key(seed))
    cache = cache_maker(model)()
    model(ids, cache=cache)
    mx.eval([layer.state for layer in cache])
    return cache


def _merge_padded(caches: Sequence[Any]) -> list[Any]:
    return [type(layers[0]).merge(list(layers)) for layers in zip(*caches, strict=True)]


def _merge_uneven(caches: Sequence[Any]) -> list[Any]:
    batch = merge_caches(caches)
    for leaf in batch:
        for row, length in enumerate(leaf.lengths):
            leaf.rewind(row, length - row)
    return batch


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    ratios = [their / our for their, our in zip(theirs, ours, strict=True)]
    return {
        "ratio": round(median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }


def _decode(model: Any, batch: list[Any], rows: int, clock: Callable[[], float]) -> float:
    """Return the seconds of one of `STEPS` steps, each launched before the one before is read."""
    newest = mx.zeros(rows, mx.uint32)
    started = 0.0
    for step in range(STEPS + 8):
        if step == 8:
            mx.eval(newest)
            started = clock()
        following = mx.argmax(model(newest[:, None], cache=batch)[:, -1], axis=-1)
        mx.async_eval(following)
        mx.eval(newest)
        newest = following
    mx.eval(newest)
    return (clock() - started) / STEPS
