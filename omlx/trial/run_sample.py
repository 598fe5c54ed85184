"""One sample: ordinary requests, stopped as soon as a user's request arrives."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from omlx.engine.image import ImageSpan, PreparedImage
from omlx.engine.strategy import parse
from omlx.engine.thread import EngineThread
from omlx.engine.types import Event, Failed, Finished, Request, Speculation, TokensCommitted
from omlx.errors import BadRequest
from omlx.measure.sample import Meter, Sample
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import Lease, ServedModel
from omlx.records import DRAFTER_FAILED, RequestStats
from omlx.server.request.dialect import Json
from omlx.server.request.engine_requests import sampling_of
from omlx.server.request.generation import GenerationService
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.media.parts import image_part, text_part
from omlx.trial.configurations import TrialConfiguration
from omlx.trial.texts import Question

CONTEXT_TOKENS: Final = 4096
"""Longest prompt taken from a conversation: its newest tokens."""

PICTURE_FIELD: Final = "picture"
"""The field of a trial that holds an image."""

STOP_BIAS: Final = -100.0
"""Logit bias on stop tokens where an answer is to reach its full length."""

IDLE_S: Final = 1.0
"""Seconds without a user's request before a paused trial or benchmark resumes."""

POLL_S: Final = 0.05

_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids to answer, with the images that `spans` of them show. `greedy` and `ends` as in
    `Question`.
    """

    tokens: tuple[int, ...]
    greedy: bool
    ends: bool
    seed: int
    spans: tuple[ImageSpan, ...] = ()
    images: tuple[PreparedImage, ...] = ()


async def read_prompt(
    generations: GenerationService, model: str, question: Question, seed: int, picture: str = ""
) -> Prompt:
    """Tokenize a question through the chat template, or as plain text if the model has none.

    `picture` is the data URI of an image that it is about. Raises OmlxError.
    """
    content: str | list[Json] = question.text
    if picture:
        content = [image_part("image_url", picture, None, PICTURE_FIELD), text_part(question.text)]
    messages = [{"role": "user", "content": content}]
    try:
        prompt = await generations.prompt(GenerationRequest(messages=messages, model=model))
    except BadRequest as error:
        if picture or error.code != "template.missing":
            raise
        tokens = await generations.tokenize(model, question.text, special=True, param="prompt")
        return Prompt(tuple(tokens), question.greedy, question.ends, seed)
    return Prompt(prompt.tokens, question.greedy, question.ends, seed, prompt.spans, prompt.images)


def conversation_prompt(tokens: Sequence[int], seed: int) -> Prompt:
    """Return the end of a conversation as a prompt."""
    return Prompt(tuple(tokens[-CONTEXT_TOKENS:]), greedy=False, ends=True, seed=seed)


def build_request(
    prompt: Prompt, configuration: TrialConfiguration, tokens: int, served: ServedModel
) -> Request:
    """Return the engine's request for at most `tokens` tokens, with the model's own settings."""
    sampling = sampling_of(served, {"temperature": 0.0} if prompt.greedy else {})
    bias: tuple[tuple[int, float], ...] = ()
    if not prompt.ends:
        bias = tuple((stop, STOP_BIAS) for stop in sorted(served.stop_ids))
    return Request(
        id=f"trial-{next(_ids)}",
        tokens=prompt.tokens,
        sampling=replace(sampling, seed=prompt.seed, logit_bias=bias),
        max_tokens=tokens,
        stop_ids=served.stop_ids,
        speculation=Speculation(parse(configuration.strategy), served.speculation.draft_length),
        spans=prompt.spans,
        images=prompt.images,
    )


@dataclass(frozen=True, slots=True)
class Streams:
    """Requests that ran together: tokens and statistics by row, and their timed sample."""

    tokens: tuple[tuple[int, ...], ...]
    stats: tuple[RequestStats, ...]
    sample: Sample


class SampleRunner:
    """Runs one sample at a time. Lives on the event loop; engine events are brought there.

    `idle_s`: seconds without a user's request before a paused measurement resumes.
    """

    def __init__(self, engine: EngineThread, pool: Pool, idle_s: float = IDLE_S) -> None:
        self._engine = engine
        self._pool = pool
        self._idle_s = idle_s

    @property
    def active_requests(self) -> int:
        """Requests that run or wait for their model, ours among them, and pending loads."""
        leases = sum(resident.leases for resident in self._pool.residents)
        return leases + self._pool.load_queue.requests

    async def wait_until_idle(self, on_pause: Callable[[], None]) -> None:
        """Return once no user needs the engine; calls `on_pause` first if one does now."""
        if not self.active_requests:
            return
        on_pause()
        since = time.perf_counter()
        while time.perf_counter() - since < self._idle_s:
            await asyncio.sleep(POLL_S)
            if self.active_requests:
                since = time.perf_counter()

    async def run(
        self, lease: Lease, request: Request, on_tokens: Callable[[int], None]
    ) -> Sample | None:
        """Run one request as `run_together` does; the engine's clock times it."""
        streams = await self.run_together(lease, [request], on_tokens)
        if streams is None:
            return None
        (tokens,), (stats,) = streams.tokens, streams.stats
        return Sample(
            tokens=(tokens,),
            counted=len(tokens) - 1,  # the clock starts with the first token
            seconds=stats.predicted_ms / 1000,
            proposed=stats.proposed,
            accepted=stats.accepted,
            draft_error=_draft_error(stats),
        )

    async def run_together(
        self, lease: Lease, requests: Sequence[Request], on_tokens: Callable[[int], None]
    ) -> Streams | None:
        """Run requests at once. Returns None if another one arrived meanwhile: they are stopped.

        Takes over the lease and releases it when the engine has ended the requests. `on_tokens` is
        called with the number of tokens so far. Raises the error that one of them failed with.
        """
        ids = [request.id for request in requests]
        events = _StreamEvents(asyncio.get_running_loop(), lease, ids)
        before = self._engine.submissions
        try:
            for request in requests:
                self._engine.submit(lease.served.id, request, events)
        except BaseException:
            lease.release()
            raise
        try:
            while not events.over:
                await events.changed()
                if self.active_requests > (0 if events.over else 1):
                    return None
                on_tokens(events.count)
            # Another request may have come and gone between two looks.
            if self._engine.submissions != before + len(requests):
                return None
        finally:
            for request_id in ids:
                self._engine.cancel(request_id)
        return events.streams()


def _draft_error(stats: RequestStats) -> str | None:
    """Return the error of a drafter that was disabled for a request."""
    for gate in stats.gates.values():
        if gate.reason is not None and gate.reason.code == DRAFTER_FAILED:
            return str(gate.reason.params["detail"])
    return None


class _StreamEvents:
    """The engine's sink of requests that run together. Releases the lease when all have ended.

    The meter is fed on the engine's thread, everything else changes on the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, lease: Lease, ids: Sequence[str]) -> None:
        self._loop = loop
        self._lease = lease
        self._rows = {request_id: row for row, request_id in enumerate(ids)}
        self._meter = Meter(len(ids))
        self._tokens: list[list[int]] = [[] for _ in ids]
        self._ends: dict[int, Finished | Failed] = {}
        self._wake = asyncio.Event()

    def __call__(self, events: Sequence[Event], /) -> None:
        arrived: dict[int, tuple[int, ...]] = {}
        for event in events:
            if isinstance(event, TokensCommitted):
                row = self._rows[event.request_id]
                arrived[row] = (*arrived.get(row, ()), *event.tokens)
        ended = any(isinstance(event, Finished | Failed) for event in events)
        if arrived:
            self._meter.add(arrived, ended=ended)
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._take, tuple(events))

    @property
    def over(self) -> bool:
        return len(self._ends) == len(self._rows)

    @property
    def count(self) -> int:
        """Tokens so far, of all rows."""
        return sum(map(len, self._tokens))

    async def changed(self) -> None:
        """Wait for the next events."""
        await self._wake.wait()
        self._wake.clear()

    def streams(self) -> Streams:
        """Raises the error that a request failed with."""
        stats = []
        for _, end in sorted(self._ends.items()):
            if isinstance(end, Failed):
                raise end.error
            stats.append(end.stats)
        proposed = sum(record.proposed for record in stats)
        accepted = sum(record.accepted for record in stats)
        sample = self._meter.sample(proposed, accepted)
        return Streams(sample.tokens, tuple(stats), sample)

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            row = self._rows[event.request_id]
            if isinstance(event, TokensCommitted):
                self._tokens[row] += event.tokens
            elif isinstance(event, Finished | Failed):
                self._ends[row] = event
        if self.over:
            self._lease.release()
        self._wake.set()
