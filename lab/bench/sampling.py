"""Sampling of one window: filters without a sort against mlx-lm's filters, with the same noise.

Trials are interleaved and draw from logits of their own; a ratio above 1 says that ours are faster.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, apply_xtc

from omlx.engine.device.sampling import Draw, RowSampler, draw, noise
from omlx.engine.types import Sampling

FILTERS: Final = {
    "top_p": Sampling(temperature=1.0, top_p=0.95),
    "top_k": Sampling(temperature=0.7, top_k=20),
    "top_p, top_k": Sampling(temperature=0.7, top_p=0.9, top_k=20),
    "min_p": Sampling(temperature=1.0, min_p=0.05),
    "all": Sampling(temperature=0.7, top_p=0.8, top_k=40, min_p=0.05),
}
SPREAD: Final = 3.0
"""Standard deviation of the logits."""

Drawing = Callable[[mx.array, Sequence[Draw]], mx.array]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--rows", default="1,5", help="rows of a window, such as 1,5")
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true", help="measure processor time")


def run(args: argparse.Namespace) -> int:
    clock = time.process_time if args.cpu_time else time.perf_counter
    for name, sampling in FILTERS.items():
        for rows in map(int, args.rows.split(",")):
            theirs, ours = compare(sampling, args.vocabulary, rows, args.trials, clock)
            ratios = [their / our for their, our in zip(theirs, ours, strict=True)]
            record = {
                "filters": name,
                "rows": rows,
                "ms": {"mlx-lm": _ms(theirs), "omlx": _ms(ours)},
                "ratio": round(median(ratios), 2),
                "least": round(min(ratios), 2),
                "most": round(max(ratios), 2),
            }
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()
    return 0


def compare(
    sampling: Sampling, vocabulary: int, rows: int, trials: int, clock: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Return the seconds of a draw with mlx-lm's filters and with ours, one for each trial after
    the first."""
    draws = [Draw(RowSampler(sampling, vocabulary), position) for position in range(rows)]
    sides: tuple[Drawing, Drawing] = (mlx_lm_draw, draw)
    seconds: tuple[list[float], list[float]] = ([], [])
    for trial in range(trials + 1):
        logits = SPREAD * mx.random.normal((rows, vocabulary), key=mx.random.key(trial))
        logits = logits.astype(mx.bfloat16)
        mx.eval(logits)
        for side in (0, 1) if trial % 2 else (1, 0):
            started = clock()
            mx.eval(sides[side](logits, draws))
            seconds[side].append(clock() - started)
    return seconds[0][1:], seconds[1][1:]


def mlx_lm_draw(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Draw with the filters of mlx-lm, in the order of its `make_sampler`. All draws are alike."""
    temperature, top_p, min_p, top_k = draws[0].sampler.filters
    logprobs = logits.astype(mx.float32)
    logprobs = logprobs - mx.logsumexp(logprobs, axis=-1, keepdims=True)
    if top_p:
        logprobs = apply_top_p(logprobs, top_p)
    if min_p:
        logprobs = apply_min_p(logprobs, min_p)
    if draws[0].exclusion is not None:
        threshold, spared = draws[0].exclusion
        logprobs = apply_xtc(logprobs, 1.0, threshold, list(spared))
    if top_k:
        logprobs = apply_top_k(logprobs, top_k)
    return mx.argmax(logprobs * (1.0 / temperature) + noise(draws, logprobs.shape[-1]), axis=-1)


def _ms(seconds: Sequence[float]) -> float:
    return round(1e3 * median(seconds), 3)
