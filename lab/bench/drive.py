"""The engine driven step by step, timed as `omlx.measure.sample` describes.

Two aids of comparison. Kernels of different shapes round differently, so two nearly tied candidates
may swap: a divergence reports how close the tie was. If speculation does not pay, `auto` rightly
drafts nothing and leaves nothing to compare: `fixed_costs` is an imagined machine on which it pays,
whatever is measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, repeat
from math import inf
from typing import Final, Self

import mlx.core as mx
from mlx_lm.generate import generation_stream
from mlx_lm.models.cache import make_prompt_cache

from lab.bench.subject import Subject
from omlx.draft_length import DraftLength
from omlx.engine.device.sampling import noise_key
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.cost_model import PLAIN, CostModel, LatencyTable
from omlx.engine.speculation.strategy import DRAFT, OFF
from omlx.engine.types import Failed, Finished, Request, Sampling, Speculation, TokensCommitted
from omlx.errors import OmlxError
from omlx.measure.sample import Meter, Sample, first_difference
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
    """Return a request with a fixed `draft_length` in tokens; None disables speculation."""
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
    """Requests that ran together: the timed sample, and statistics or error by row.

    `batched` counts steps in which rows shared a pass.
    """

    sample: Sample
    stats: dict[int, RequestStats]
    errors: dict[int, OmlxError]
    batched: int = 0

    def proven(self) -> Self:
        """Return the same. Raises the error of a failed request."""
        for error in self.errors.values():
            raise error
        return self


class StepMeter(Meter):
    """A meter of an engine that is driven step by step."""

    def would_start(self, rows: Iterable[int]) -> bool:
        """Return whether tokens of `rows`, arriving now, would start the clock."""
        busy = {row for row, tokens in enumerate(self._tokens) if tokens}
        return self._start is None and len(busy.union(rows)) == len(self._tokens)


def run(loop: EngineLoop, requests: Sequence[Request]) -> Sample:
    """Run requests together to their end. Raises the error of a failed request."""
    return drive(loop, requests).proven().sample


def drive(loop: EngineLoop, requests: Sequence[Request], joins: Sequence[int] = ()) -> Driven:
    """Run requests together to their end; each joins so many steps after the one before.

    Errors are returned by row, not raised.
    """
    rows = {f"bench-{next(_ids)}": row for row in range(len(requests))}
    meter = StepMeter(len(requests))
    stats: dict[int, RequestStats] = {}
    errors: dict[int, OmlxError] = {}
    waiting = deque(zip(rows, requests, joins or repeat(0), strict=False))
    accepted = batched = steps = 0
    while waiting or loop.has_work:
        while waiting and waiting[0][2] <= steps:
            request_id, submitted, _ = waiting.popleft()
            loop.submit(replace(submitted, id=request_id))
            steps = 0
        events = loop.step()
        batched += len(loop.scheduler.batch.members) > 1
        steps += 1
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
    return Driven(meter.sample(proposed, accepted), stats, errors, batched)


def settle() -> None:
    """Wait for an idle device, and drop the other side's buffers from MLX's cache."""
    mx.synchronize()
    mx.synchronize(generation_stream)
    mx.clear_cache()


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first `token` at which an answer differs from its reference.

    Distances in logits of plain decoding at that position: `margin` between the best two
    candidates, `apart` between the two tokens. Both are infinite if one answer merely ended
    earlier.
    """

    token: int
    margin: float
    apart: float


def divergence(
    subject: Subject, request: Request, reference: Sequence[int], answer: Sequence[int]
) -> Divergence | None:
    """Return the divergence of `answer` from `reference`; None if equal."""
    place = first_difference(reference, answer)
    if place is None:
        return None
    if place >= min(len(reference), len(answer)):
        return Divergence(place, inf, inf)
    scores = plain_scores(subject, request, reference[:place])
    second, best = (float(score) for score in mx.sort(scores)[-2:])
    apart = abs(float(scores[reference[place]]) - float(scores[answer[place]]))
    return Divergence(place, best - second, apart)


def plain_scores(subject: Subject, request: Request, answer: Sequence[int]) -> mx.array:
    """Return plain decoding's float32 scores [V] for the token after `answer`.

    Logits, plus `temperature` times the position's Gumbel noise. Passes have the engine's shapes,
    so rounding agrees.
    """
    cache = make_prompt_cache(subject.model)
    *prompt, newest = request.tokens
    chunk = subject.loop.limits.prefill_chunk
    for start in range(0, len(prompt), chunk):
        subject.model(mx.array([prompt[start : start + chunk]], mx.uint32), cache=cache)
    for token in (newest, *answer):
        output = subject.model(mx.array([[token]], mx.uint32), cache=cache)
        logits = output[0, -1, : subject.vocab_size]
        mx.eval(logits)
    scores: mx.array = logits.astype(mx.float32)
    sampling = request.sampling
    if sampling.temperature == 0.0:
        return scores
    position = len(request.tokens) + len(answer)
    key = mx.array(noise_key(sampling.seed, sampling.choice, position), mx.uint32)
    return scores + sampling.temperature * mx.random.gumbel((1, scores.size), key=key)[0]


class FixedLatencyTable(LatencyTable):
    """A latency table that ignores measurements."""

    def learn(self, width: int, context: int, seconds: float) -> bool:
        return False


class FixedCostModel(CostModel):
    """Cost model that prices a batch as a single row's pass over as many tokens."""

    def plain_step(self, rows: int, context: int) -> float:
        return self.batch_pass(rows, PLAIN, context)

    def learn_batch(self, rows: int, width: int, context: int, seconds: float) -> None:
        return


def flat(width: int) -> float:
    """Return the seconds of a pass bound by reading the weights."""
    return 1.0 + 0.01 * width


def fixed_costs(
    pass_seconds: Callable[[int], float] = flat, draft: str = "draft", draft_seconds: float = 0.02
) -> CostModel:
    """Return costs: 1 s for a plain step, `pass_seconds(n)` for a pass over n rows.

    A pass of the draft model `draft` takes `draft_seconds`.
    """
    target = {PLAIN: 1.0}
    # Enough for 8 rows of the widest window.
    for width in range(1, 8 * CONFIG.widest_window + 1):
        target[width] = pass_seconds(width)
    return FixedCostModel(_fixed(target), {draft: _fixed({1: draft_seconds})})


def _fixed(seconds: Mapping[int, float]) -> LatencyTable:
    return FixedLatencyTable.from_json(
        [
            {"bucket": 0, "width": width, "seconds": [value] * CONFIG.samples}
            for width, value in seconds.items()
        ]
    )
