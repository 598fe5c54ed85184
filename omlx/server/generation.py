"""From a `GenerationRequest` to a running stream: lease the model, tokenize, submit every choice
to the engine."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from omlx.engine.thread import EngineThread
from omlx.models.package.tokenizer import tokenizer_length
from omlx.models.pool.pool import Pool
from omlx.models.pool.resident import Lease
from omlx.server.activity import Activity
from omlx.server.engine_requests import (
    TokenizedRequest,
    check_ids,
    check_model,
    engine_requests,
    render_conversation,
    tokenize,
)
from omlx.server.event_dispatcher import EventDispatcher
from omlx.server.generation_request import GenerationRequest
from omlx.server.stream import GenerationStream

T = TypeVar("T")

SEED_BITS: Final = 53
"""Of a random seed: clients that keep numbers as doubles, as JavaScript does, can send it back
exactly."""


class GenerationService:
    """Opens streams, whose events `activity` observes.

    What a request leaves open is decided by the settings, then by the model's own files.
    `last_prompts` holds the ids of the last prompt of each model, in memory only.
    """

    def __init__(self, engine: EngineThread, pool: Pool, activity: Activity) -> None:
        self._engine = engine
        self._pool = pool
        self._activity = activity
        self._dispatcher = EventDispatcher()
        # Long prompts stay off the event loop. One thread: tokenizers take one caller at a time.
        self._text = ThreadPoolExecutor(1, "omlx-text")
        self.last_prompts: dict[str, tuple[int, ...]] = {}

    async def open(self, request: GenerationRequest, id_prefix: str) -> GenerationStream:
        """Start every choice. The caller must close the stream.

        Waits while the model is loaded. Raises OmlxError; then nothing runs.
        """
        arrived_at = self._activity.clock()
        if self._engine.failure is not None:
            raise self._engine.failure
        lease = await self._pool.lease(request.model, request.draft_model, request.speculation)
        try:
            variables = lease.served.speculation.settings.chat_template_kwargs or {}
            request = _with_defaults(request, variables)
            check_model(request, lease.served)
            tokenized = await self._off_loop(partial(tokenize, lease.served, request))
        except BaseException:
            lease.release()
            raise
        stream_id = f"{id_prefix}{uuid.uuid4().hex}"
        return self._start(lease, request, tokenized, stream_id, arrived_at)

    async def prompt_ids(self, request: GenerationRequest) -> list[int]:
        """Return the ids of a conversation's prompt, without loading a model. Raises OmlxError."""
        tokenizer = await self._pool.tokenizer(request.model)
        defaults = await asyncio.to_thread(self._pool.template_variables, request.model)
        request = _with_defaults(request, defaults)
        prompt = await self._off_loop(partial(render_conversation, tokenizer, request))
        return list(prompt.tokens)

    async def tokenize(self, model: str | None, text: str, *, special: bool) -> list[int]:
        """Return the ids of a text; `special` adds the model's leading tokens. Raises OmlxError."""
        tokenizer = await self._pool.tokenizer(model)

        def encode() -> list[int]:
            return [int(token) for token in tokenizer.encode(text, add_special_tokens=special)]

        return await self._off_loop(encode)

    async def detokenize(self, model: str | None, tokens: Sequence[int]) -> str:
        """Raises OmlxError, also for ids outside the vocabulary."""
        tokenizer = await self._pool.tokenizer(model)
        check_ids(tokens, tokenizer_length(tokenizer), "tokens")
        return await self._off_loop(lambda: str(tokenizer.decode(list(tokens))))

    def shut_down(self) -> None:
        self._text.shutdown(wait=False)

    def _start(
        self,
        lease: Lease,
        request: GenerationRequest,
        tokenized: TokenizedRequest,
        id: str,
        arrived_at: float,
    ) -> GenerationStream:
        """Submit every choice. From here on the stream releases the lease."""
        served = lease.served
        self.last_prompts[served.id] = tokenized.prompts[-1].tokens
        seed = secrets.randbits(SEED_BITS) if request.seed is None else request.seed
        stream = GenerationStream(
            self._engine, self._dispatcher, lease, id, seed, self._activity, arrived_at
        )
        stream.warnings = (*request.warnings, *tokenized.warnings)
        try:
            choices = engine_requests(served, request, tokenized, id, seed)
            for number, (choice, spec) in enumerate(choices):
                stream.submit(choice, spec, number)
        except BaseException:
            stream.close()
            raise
        return stream

    async def _off_loop(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._text, work)


def _with_defaults(request: GenerationRequest, variables: Mapping[str, Any]) -> GenerationRequest:
    """Add the model's template variables; those of the request win."""
    return replace(request, template_variables={**variables, **request.template_variables})
