"""mlx-lm's generators, called as its users call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, generate_step, speculative_generate_step
from mlx_lm.sample_utils import make_sampler

from omlx.measure.sample import Meter, Sample


def run_plain(
    model: Any,
    prompt: tuple[int, ...],
    max_tokens: int,
    stop_ids: frozenset[int],
    temperature: float,
) -> Sample:
    meter = Meter(1)
    steps = generate_step(
        mx.array(prompt, mx.uint32),
        model,
        max_tokens=max_tokens,
        sampler=make_sampler(temp=temperature),
    )
    token: int  # mlx-lm's annotation says array
    for token, _ in steps:  # type: ignore[assignment]
        meter.add({0: (token,)}, ended=token in stop_ids)
        if token in stop_ids:
            break
    return meter.sample()


def run_speculative(
    model: Any,
    draft: Any,
    prompt: tuple[int, ...],
    max_tokens: int,
    stop_ids: frozenset[int],
    temperature: float,
    draft_length: int,
) -> Sample:
    """mlx-lm yields a round's tokens one by one; they count as arrived with the last of them."""
    meter = Meter(1)
    steps = speculative_generate_step(
        mx.array(prompt, mx.uint32),
        model,
        draft,
        num_draft_tokens=draft_length,
        max_tokens=max_tokens,
        sampler=make_sampler(temp=temperature),
    )
    burst: list[int] = []
    done = proposed = accepted = 0
    token: int  # mlx-lm's annotation says array
    for token, _, drafted in steps:  # type: ignore[assignment]
        burst.append(token)
        accepted += drafted
        stopped = token in stop_ids
        if stopped or not drafted or done + len(burst) == max_tokens:
            meter.add({0: burst}, ended=stopped)
            proposed += min(draft_length, max_tokens - done)
            done += len(burst)
            burst = []
        if stopped:
            break
    return meter.sample(proposed, accepted)


def run_batch(model: Any, prompts: Sequence[Sequence[int]], max_tokens: int) -> Sample:
    """All prompts are prefilled together, mlx-lm's best case."""
    meter = Meter(len(prompts))
    generator: Any = BatchGenerator(
        model,
        max_tokens=max_tokens,
        prefill_batch_size=len(prompts),
        completion_batch_size=len(prompts),
    )
    uids = generator.insert([list(prompt) for prompt in prompts])
    rows = {uid: row for row, uid in enumerate(uids)}
    while responses := generator.next_generated():
        ended = any(response.finish_reason is not None for response in responses)
        arrived = {rows[response.uid]: (response.token,) for response in responses}
        meter.add(arrived, ended=ended)
    generator.close()
    return meter.sample()
