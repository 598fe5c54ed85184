"""The engine driven step by step, timed as `omlx.measure.sample` describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

import mlx.core as mx
from mlx_lm.generate import generation_stream

from omlx.draft_length import DraftLength
from omlx.engine.loop import EngineLoop
from omlx.engine.strategy import DRAFT, OFF
from omlx.engine.types import Failed, Finished, Request, Sampling, Speculation, TokensCommitted
from omlx.errors import OmlxError
from omlx.measure.sample import Meter, Sample
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
    draft_length: int | None = None,
) -> Request:
    """Return a request with a fixed `draft_length` in tokens; None for no speculation."""
    speculation = NO_SPECULATION
    if draft_length is not None:
        speculation = Speculation(DRAFT, DraftLength.exactly(draft_length))
    return Request(
        id="",
        tokens=prompt,
        sampling=Sampling(temperature=temperature, seed=seed),
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        speculation=speculation,
    )


@dataclass(frozen=True, slots=True)
class Driven:
    """Requests that ran together: the timed sample, and statistics or error by row."""

    sample: Sample
    stats: dict[int, RequestStats]
    errors: dict[int, OmlxError]


def run(loop: EngineLoop, requests: Sequence[Request]) -> Sample:
    """Run requests together to their end. Raises the error that one failed with."""
    driven = drive(loop, requests)
    for error in driven.errors.values():
        raise error
    return driven.sample


def drive(loop: EngineLoop, requests: Sequence[Request]) -> Driven:
    """Run requests together to their end, and return statistics and errors too."""
    rows = {f"bench-{next(_ids)}": row for row in range(len(requests))}
    meter = Meter(len(requests))
    stats: dict[int, RequestStats] = {}
    errors: dict[int, OmlxError] = {}
    for request_id, submitted in zip(rows, requests, strict=True):
        loop.submit(replace(submitted, id=request_id))
    accepted = 0
    while loop.has_work:
        events = loop.step()
        committed = [event for event in events if isinstance(event, TokensCommitted)]
        if meter.would_start(rows[event.request_id] for event in committed):
            # A step's tokens are published when the next step is launched, which on some devices
            # takes as long as that step: the first would be free. So the clock starts with
            # nothing in flight.
            events += loop.flush()
        arrived: dict[int, tuple[int, ...]] = {}
        ended = False
        for event in events:
            row = rows[event.request_id]
            match event:
                case TokensCommitted(tokens=tokens, drafted=drafted):
                    arrived[row] = (*arrived.get(row, ()), *tokens)
                    accepted += sum(drafted)
                case Finished():
                    ended = True
                    stats[row] = event.stats
                case Failed():
                    ended = True
                    errors[row] = event.error
        if arrived:
            meter.add(arrived, ended=ended)
    proposed = sum(record.proposed for record in stats.values())
    return Driven(meter.sample(proposed, accepted), stats, errors)


def settle() -> None:
    """Wait until the device is idle, and empty MLX's buffer cache of the other side's buffers."""
    mx.synchronize()
    mx.synchronize(generation_stream)
    mx.clear_cache()
