"""One sample of a trial: an ordinary request, stopped as soon as a user's request arrives."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from omlx.engine.image.prepared import PreparedImage
from omlx.engine.image.span import ImageSpan
from omlx.engine.strategy import parse
from omlx.engine.thread import EngineThread
from omlx.engine.types import Event, Failed, Finished, Request, Speculation, TokensCommitted
from omlx.errors import BadRequest
from omlx.measure.sample import Sample
from omlx.models.pool.pool import Pool
from omlx.models.pool.resident import Lease, ServedModel
from omlx.server.dialect import Json
from omlx.server.engine_requests import sampling_of
from omlx.server.generation import GenerationService
from omlx.server.generation_request import GenerationRequest
from omlx.server.media.parts import image_part, text_part
from omlx.trial.configurations import TrialConfiguration
from omlx.trial.texts import Question

CONTEXT_TOKENS: Final = 4096
"""Longest prompt taken from a conversation: its newest tokens."""

PICTURE_FIELD: Final = "picture"
"""The field of a trial that holds an image."""

STOP_BIAS: Final = -100.0
"""Logit bias on stop tokens where an answer is to reach its full length."""

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


class SampleRunner:
    """Runs one request at a time. Lives on the event loop; engine events are brought there."""

    def __init__(self, engine: EngineThread, pool: Pool) -> None:
        self._engine = engine
        self._pool = pool

    @property
    def active_requests(self) -> int:
        """Requests that run or wait for their model, ours among them, and pending loads."""
        leases = sum(resident.leases for resident in self._pool.residents)
        return leases + self._pool.load_queue.requests

    async def run(
        self, lease: Lease, request: Request, on_tokens: Callable[[int], None]
    ) -> Sample | None:
        """Run a request alone. Returns None if another request arrived meanwhile: it is stopped.

        Takes over the lease and releases it when the engine has ended the request. `on_tokens` is
        called with the number of tokens so far. Raises the error that the request failed with.
        """
        events = _RequestEvents(asyncio.get_running_loop(), lease)
        before = self._engine.submissions
        try:
            self._engine.submit(lease.served.id, request, events)
        except BaseException:
            lease.release()
            raise
        try:
            while not events.over:
                await events.changed()
                if self.active_requests > (0 if events.over else 1):
                    return None
                on_tokens(len(events.tokens))
            # Another request may have come and gone between two looks.
            if self._engine.submissions != before + 1:
                return None
        finally:
            self._engine.cancel(request.id)
        return events.sample()


@dataclass(slots=True, eq=False)
class _RequestEvents:
    """The engine's sink of one request. Releases the lease when the request ends."""

    loop: asyncio.AbstractEventLoop
    lease: Lease
    tokens: list[int] = field(default_factory=list)
    end: Finished | Failed | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, events: Sequence[Event], /) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self.loop.call_soon_threadsafe(self._take, tuple(events))

    @property
    def over(self) -> bool:
        return self.end is not None

    async def changed(self) -> None:
        """Wait for the next events."""
        await self.wake.wait()
        self.wake.clear()

    def sample(self) -> Sample:
        """Raises the error that the request failed with."""
        if isinstance(self.end, Failed):
            raise self.end.error
        assert self.end is not None
        stats = self.end.stats
        return Sample(
            tokens=(tuple(self.tokens),),
            counted=len(self.tokens) - 1,  # the clock starts with the first token
            seconds=stats.predicted_ms / 1000,
            proposed=stats.proposed,
            accepted=stats.accepted,
        )

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, TokensCommitted):
                self.tokens += event.tokens
            elif isinstance(event, Finished | Failed):
                self.end = event
                self.lease.release()
        self.wake.set()
