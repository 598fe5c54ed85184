"""One answer of a trial: an ordinary request, sent as users' are, that gives way as soon as anybody else sends one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from omlx.engine.strategy import parse
from omlx.engine.thread import EngineThread
from omlx.engine.types import (
    Event,
    Failed,
    Finished,
    Request,
    Sampling,
    Speculation,
    TokensCommitted,
)
from omlx.errors import BadRequest
from omlx.models.pool.pool import Pool
from omlx.models.pool.resident import Lease, ServedModel
from omlx.server.generation import GenerationRequest, Generations, sampling_of
from omlx.trial.configurations import TrialConfiguration
from omlx.trial.samples import Sample
from omlx.trial.texts import Question

CONTEXT_TOKENS: Final = 4096
"""Of a long conversation the newest tokens are taken."""

_UNLIKELY: Final = -100.0
_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be answered: the tokens of a prompt, greedily or as the settings say, to its own end or further."""

    prompt: tuple[int, ...]
    greedy: bool
    ends: bool
    seed: int


async def read(generations: Generations, model: str, question: Question, seed: int) -> Asked:
    """Through the model's template, or, where it has none, as it stands. Raises OmlxError."""
    try:
        request = GenerationRequest(
            messages=[{"role": "user", "content": question.text}], model=model
        )
        tokens = await generations.prompt_ids(request)
    except BadRequest as error:
        if error.code != "template.missing":
            raise
        tokens = await generations.tokenize(model, question.text, special=True)
    return Asked(tuple(tokens), question.greedy, question.ends, seed)


def continued(prompt: Sequence[int], seed: int) -> Asked:
    """The end of a conversation, to be answered once more."""
    return Asked(tuple(prompt[-CONTEXT_TOKENS:]), greedy=False, ends=True, seed=seed)


def request(
    asked: Asked, configuration: TrialConfiguration, tokens: int, served: ServedModel
) -> Request:
    """As it goes to the engine: what is set for the model counts, as it does for users."""
    sampling: Sampling = sampling_of(served, {"temperature": 0.0} if asked.greedy else {})
    bias = () if asked.ends else tuple((stop, _UNLIKELY) for stop in sorted(served.stop_ids))
    return Request(
        id=f"trial-{next(_ids)}",
        tokens=asked.prompt,
        sampling=replace(sampling, seed=asked.seed, logit_bias=bias),
        max_tokens=tokens,
        stop_ids=served.stop_ids,
        speculation=Speculation(parse(configuration.strategy), served.speculation.draft_length),
    )


class SampleRunner:
    """Sends one request at a time. On the event loop; the engine's events are brought there."""

    def __init__(self, engine: EngineThread, pool: Pool) -> None:
        self._engine = engine
        self._pool = pool

    @property
    def requests(self) -> int:
        """How many there are, ours among them, at work or waiting for their model; one that is being loaded counts."""
        return (
            sum(resident.leases for resident in self._pool.residents)
            + self._pool.load_queue.requests
        )

    async def answer(
        self, lease: Lease, asked: Request, told: Callable[[int], None]
    ) -> Sample | None:
        """The answer, or None if anybody else wanted anything meanwhile: then it was stopped and says nothing.

        Takes over the lease, and lets go of it when the engine has ended the request. `told` hears how many tokens
        there are. Raises what the request failed with.
        """
        under_way = _UnderWay(asyncio.get_running_loop(), lease)
        before = self._engine.submissions
        try:
            self._engine.submit(lease.served.id, asked, under_way)
        except BaseException:
            lease.release()
            raise
        try:
            while not under_way.over:
                await under_way.news()
                if self.requests > (0 if under_way.over else 1):
                    return None
                told(len(under_way.tokens))
            if (
                self._engine.submissions != before + 1
            ):  # one that came and went between two of our steps
                return None
        finally:
            self._engine.cancel(asked.id)
        return under_way.sample()


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A request and what has come of it; the engine's sink. Gives the lease back at the end, whoever still listens."""

    loop: asyncio.AbstractEventLoop
    lease: Lease
    tokens: list[int] = field(default_factory=list)
    end: Finished | Failed | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, events: Sequence[Event], /) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody is left to hear
            self.loop.call_soon_threadsafe(self._take, tuple(events))

    @property
    def over(self) -> bool:
        return self.end is not None

    async def news(self) -> None:
        await self.wake.wait()
        self.wake.clear()

    def sample(self) -> Sample:
        """Raises what the request failed with."""
        if isinstance(self.end, Failed):
            raise self.end.error
        assert self.end is not None
        stats = self.end.stats
        return Sample(tuple(self.tokens), stats.predicted_ms, stats.proposed, stats.accepted)

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, TokensCommitted):
                self.tokens += event.tokens
            elif isinstance(event, Finished | Failed):
                self.end = event
                self.lease.release()
        self.wake.set()
