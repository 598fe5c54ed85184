"""A step in flight: the arrays of its passes, and how they are read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from typing import Any, cast

import mlx.core as mx

from omlx.engine.device.payloads import Payload
from omlx.engine.step.plan import Forward, LogprobRows, Plan, Read
from omlx.engine.types import TokenMask
from omlx.errors import NonFiniteLogits


@dataclass(slots=True)
class ForwardPass:
    """One forward in flight, with the masks of its rows.

    sampled: draft_n + 1 tokens of each window in turn; drafts: by row, [draft_n], where only the
    device knows them; logprobs as `logprobs_of` returns them, of the sampled tokens or of a
    prompt's; peaks: the largest logit of each sampled position; done: computed when a pass that
    samples nothing has ended. `error` ends all of its rows, `failed` single ones; `lost` was raised
    by the wait for it.
    """

    forward: Forward
    masks: Mapping[int, TokenMask] = field(default_factory=dict)
    failed: dict[int, Exception] = field(default_factory=dict)
    sampled: mx.array | None = None
    drafts: dict[int, mx.array] = field(default_factory=dict)
    peaks: mx.array | None = None
    done: mx.array | None = None
    logprobs: tuple[mx.array, mx.array, mx.array] | None = None
    error: Exception | None = None
    lost: Exception | None = None


@dataclass(slots=True)
class Launch:
    """A step in flight, launched at `at` (s) after `errors` device errors of the process.

    `failed` holds the errors of operations, by row. `looks` are computed when a tower has looked at
    an image for a row, `moved` when these pieces of the prefix cache have been copied, by id.
    `held` are the bytes before passes over prompts, `peak_bytes` what these added; `alone`: nothing
    else ran meanwhile.
    """

    plan: Plan
    errors: int
    at: float = field(default_factory=time.perf_counter)
    passes: list[ForwardPass] = field(default_factory=list)
    looks: list[tuple[int, mx.array]] = field(default_factory=list)
    moved: dict[int, Payload] = field(default_factory=dict)
    failed: dict[int, Exception] = field(default_factory=dict)
    alone: bool = False
    held: int | None = None
    peak_bytes: int | None = None


def read_pass(launched: ForwardPass) -> list[Read]:
    windows = launched.forward.windows
    logprobs: LogprobRows | None = None
    if launched.logprobs is not None:
        arrays = (cast(list[Any], array.tolist()) for array in launched.logprobs)
        rows = zip(*arrays, strict=True)
        logprobs = tuple((best, tuple(zip(ids, top, strict=True))) for best, ids, top in rows)
    if launched.sampled is None:
        mx.eval(launched.done)
        return [Read(logprobs=logprobs) for _ in windows]
    sampled = cast(list[int], launched.sampled.tolist())
    reads: list[Read] = []
    end = 0
    for window in windows:
        here = slice(end, end + window.draft_n + 1)
        end = here.stop
        draft = window.draft or ()
        if window.row in launched.drafts:
            draft = tuple(cast(list[int], launched.drafts[window.row].tolist()))
        scores = None if logprobs is None else logprobs[here]
        reads.append(Read(sampled=tuple(sampled[here]), draft=draft, logprobs=scores))
    return reads


def non_finite(launched: ForwardPass) -> dict[int, Exception]:
    """Return the errors of rows that have NaN or infinity in their logits."""
    peaks = [0.0] if launched.peaks is None else cast(list[float], launched.peaks.tolist())
    if all(map(isfinite, peaks)):
        return {}
    windows = launched.forward.windows
    rows = chain.from_iterable([window.row] * (window.draft_n + 1) for window in windows)
    error = NonFiniteLogits("engine.not_finite")
    return {row: error for row, peak in zip(rows, peaks, strict=True) if not isfinite(peak)}
