"""The two sides of every pair: the engine, driven step by step, and mlx-lm's generators as their users call them."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, generate_step, speculative_generate_step
from mlx_lm.sample_utils import make_sampler

from omlx.bench.measure import Meter, Run
from omlx.draft_length import DraftLength
from omlx.engine.loop import EngineLoop
from omlx.engine.strategy import DRAFT, OFF
from omlx.engine.types import Failed, Finished, Request, Sampling, Speculation, TokensCommitted
from omlx.errors import OmlxError
from omlx.records import RequestStats

NO_SPECULATION: Final = Speculation(OFF)
_ids = count()


def request(
    prompt: tuple[int, ...],
    max_tokens: int,
    *,
    stop_ids: frozenset[int] = frozenset(),
    temperature: float = 0.0,
    seed: int = 0,
    window: int | None = None,
) -> Request:
    """A request to the engine. `window` draft tokens a round, or None for no speculation."""
    return Request(
        id="",
        tokens=prompt,
        sampling=Sampling(temperature=temperature, seed=seed),
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        speculation=NO_SPECULATION
        if window is None
        else Speculation(DRAFT, DraftLength.exactly(window)),
    )


@dataclass(frozen=True, slots=True)
class Driven:
    """What became of requests that ran together: the run, and by row its statistics or its error."""

    run: Run
    stats: dict[int, RequestStats]
    errors: dict[int, OmlxError]


def engine(loop: EngineLoop, requests: Seq[Request]) -> Run:
    """Run requests together through the engine, stepping until all have ended. Raises what a request failed with."""
    driven = drive(loop, requests)
    for error in driven.errors.values():
        raise error
    return driven.run


def drive(loop: EngineLoop, requests: Seq[Request]) -> Driven:
    """The same, telling of each request what the engine told."""
    rows = {f"bench-{next(_ids)}": row for row in range(len(requests))}
    meter = Meter(len(requests))
    stats: dict[int, RequestStats] = {}
    errors: dict[int, OmlxError] = {}
    for request_id, asked in zip(rows, requests, strict=True):
        loop.submit(replace(asked, id=request_id))
    accepted = 0
    while loop.has_work:
        happened = loop.step()
        if meter.starts_with(
            rows[event.request_id] for event in happened if isinstance(event, TokensCommitted)
        ):
            # A step is told when the next is launched, which on some devices takes as long as that step: the first
            # would be free. So the clock starts with nothing in flight.
            happened += loop.drain()
        new: dict[int, tuple[int, ...]] = {}
        ended = False
        for event in happened:
            row = rows[event.request_id]
            match event:
                case TokensCommitted(tokens=tokens, drafted=drafted):
                    new[row] = (*new.get(row, ()), *tokens)
                    accepted += sum(drafted)
                case Finished():
                    ended = True
                    stats[row] = event.stats
                case Failed():
                    ended = True
                    errors[row] = event.error
        if new:
            meter.arrived(new, ended=ended)
    return Driven(meter.run(sum(told.proposed for told in stats.values()), accepted), stats, errors)


def mlx_lm_plain(
    model: Any,
    prompt: tuple[int, ...],
    max_tokens: int,
    stop_ids: frozenset[int],
    temperature: float,
) -> Run:
    meter = Meter(1)
    steps = generate_step(
        mx.array(prompt, mx.uint32),
        model,
        max_tokens=max_tokens,
        sampler=make_sampler(temp=temperature),
    )
    token: int  # mlx-lm's annotation says array
    for token, _ in steps:  # type: ignore[assignment]
        meter.arrived({0: (token,)}, ended=token in stop_ids)
        if token in stop_ids:
            break
    return meter.run()


def mlx_lm_speculative(
    model: Any,
    draft: Any,
    prompt: tuple[int, ...],
    max_tokens: int,
    stop_ids: frozenset[int],
    temperature: float,
    window: int,
) -> Run:
    """mlx-lm hands out a round's tokens one by one; they count as having arrived when the last of them is out."""
    meter = Meter(1)
    steps = speculative_generate_step(
        mx.array(prompt, mx.uint32),
        model,
        draft,
        num_draft_tokens=window,
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
            meter.arrived({0: burst}, ended=stopped)
            proposed += min(window, max_tokens - done)
            done += len(burst)
            burst = []
        if stopped:
            break
    return meter.run(proposed, accepted)


def mlx_lm_batch(model: Any, prompts: Seq[Seq[int]], max_tokens: int) -> Run:
    """All prompts are prefilled together, mlx-lm's best case."""
    meter = Meter(len(prompts))
    generator: Any = BatchGenerator(
        model,
        max_tokens=max_tokens,
        prefill_batch_size=len(prompts),
        completion_batch_size=len(prompts),
    )
    rows = {
        uid: row for row, uid in enumerate(generator.insert([list(prompt) for prompt in prompts]))
    }
    while responses := generator.next_generated():
        ended = any(response.finish_reason is not None for response in responses)
        meter.arrived(
            {rows[response.uid]: (response.token,) for response in responses}, ended=ended
        )
    generator.close()
    return meter.run()
