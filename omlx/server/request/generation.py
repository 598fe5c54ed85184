"""From a `GenerationRequest` to a running stream: lease the model, tokenize, submit every choice
to the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from omlx.engine.thread import EngineThread
from omlx.errors import BadRequest, ModelError, NotFound, OmlxError, Stopped
from omlx.models.catalog.facts import fingerprint
from omlx.models.catalog.tokenizer import tokenizer_length
from omlx.models.pool.pool import Pool, find_vision
from omlx.models.pool.served import Lease, ServedModel
from omlx.models.vision.support import VisionSupport
from omlx.receipts.kept import AnswerStore, Recorder
from omlx.server.beginnings.next_turn import NextTurns
from omlx.server.beginnings.store import BeginningStore
from omlx.server.http.errors import field_error
from omlx.server.http.guard import Arrival, Caller
from omlx.server.request.activity import Activity
from omlx.server.request.content import shows_images
from omlx.server.request.engine_requests import (
    check_ids,
    check_model,
    render_conversation,
    tokenize,
)
from omlx.server.request.generation_request import (
    LONG_TEXT,
    GenerationRequest,
    applied_settings,
    priority_of,
    prompt_texts,
    with_profile,
    with_settings,
)
from omlx.server.request.media.files import FileText, FileTexts
from omlx.server.request.media.images import ImageLoader, Reader, UrlReader, attach
from omlx.server.request.opening import Opening, Recorded
from omlx.server.request.stream import EventDispatcher, GenerationStream
from omlx.server.workers import Workers
from omlx.text.template.render import Prompt
from omlx.text.tokens import MAX_TOKENS, encode

T = TypeVar("T")

SHOWN_ID: Final = 100
"""Characters of an unknown id that an error repeats."""


class GenerationService:
    """Opens streams, whose events `activity` observes.

    What a request leaves open is decided by the profile that it names, by the settings, then by the
    model's own files. `last_prompts` holds the ids of the last prompt of each model without its
    images, in memory only. `urls` reads images from addresses; None: addresses are refused.
    `answers` keeps answers with a receipt, `beginnings` the beginnings of prompts. `next_turns`
    prepares continuations.
    """

    def __init__(
        self,
        engine: EngineThread,
        pool: Pool,
        activity: Activity,
        answers: AnswerStore,
        urls: UrlReader | None = None,
        beginnings: BeginningStore | None = None,
        next_turns: NextTurns | None = None,
    ) -> None:
        self._engine = engine
        self._pool = pool
        self._activity = activity
        self._answers = answers
        self._dispatcher = EventDispatcher()
        self._workers = Workers()
        self._images = ImageLoader(self._workers, urls)
        self._files = FileTexts(self._workers)
        self._beginnings = beginnings
        self._next_turns = next_turns
        self.last_prompts: dict[str, tuple[int, ...]] = {}
        self._streams: WeakValueDictionary[str, GenerationStream] = WeakValueDictionary()
        self._weights: dict[str, tuple[ServedModel, str]] = {}

    async def open(
        self,
        request: GenerationRequest,
        id_prefix: str,
        caller: Caller | None = None,
        *,
        kept: bool = False,
        recorded: Recorded | None = None,
    ) -> GenerationStream:
        """Start every choice of a request of `caller`, or continue a `recorded` answer.

        The stream must be closed. That of a `kept` answer has a digest.

        Waits while the model is loaded; `timeout_s` is the caller's. Raises OmlxError; then nothing
        runs.
        """
        arrival = Arrival(self._activity.clock(), caller or Caller())
        if self._engine.failure is not None:
            raise self._engine.failure
        request, lease = await self._lease(self.with_fallback(request))
        if request.fallback in request.warnings:  # once: later generations of a tool loop have none
            self._pool.catalog.note_fallback(request.fallback)
        sent, profile = request, self._pool.catalog.profile(request.model)
        request = with_profile(request, profile)
        load_s = self._activity.clock() - arrival.at
        try:
            request = with_settings(request, lease.served.speculation.settings)
            check_model(request, lease.served)
            await self._check_no_output(request, lease.served)
            if request.has_parts:
                request = await self._files.attach(request)
                served = lease.served
                reader = Reader(served.id, served.vision, served.context_length)
                request = await attach(request, reader, self._images)
            lane = (lease.served.id, request.long)
            tokenized = await self._workers.run(lane, partial(tokenize, lease.served, request))
            await self._note_beginning(request, lease.served, arrival.caller, lane)
            priority, guess = priority_of(request, arrival.caller.subagent)
            arrival = replace(arrival, guess=guess)
            opening = Opening(lease, request, tokenized, id_prefix, priority, recorded)
            if kept or recorded is not None:
                weights = await self._weights_of(lease.served)
                await self._workers.run(lane, partial(opening.resume, weights))
        except BaseException:
            lease.release()
            raise
        settings = applied_settings(sent, profile, lease.served, opening.choices[0].request)
        arrival = replace(arrival, load_s=load_s, settings=settings)
        stream = self._start(opening, arrival)
        stream.load_ms = load_s * 1000
        return stream

    async def _lease(self, request: GenerationRequest) -> tuple[GenerationRequest, Lease]:
        """Lease the request's model, or the fallback model if that cannot be loaded.

        A request with a draft of its own, which may have failed, gets the error.
        """
        filled = with_profile(request, self._pool.catalog.profile(request.model))
        try:
            names = filled.model, filled.draft_model, filled.speculation
            return request, await self._pool.lease(*names)
        except ModelError as error:
            if request.draft_model is not None:
                raise
            return await self._lease(self.with_fallback(request, error))

    def with_fallback(
        self, request: GenerationRequest, error: OmlxError | None = None
    ) -> GenerationRequest:
        """Return the request, for the fallback model where the requested one is missing.

        `error` is that of loading the requested model. Raises the error without a fallback model.
        """
        try:
            if error is not None:
                raise error
            self._pool.resolve(request.model)
        except (NotFound, ModelError) as refused:
            if request.fallback is not None:
                raise
            name, reason = self._pool.catalog.fallback(request.model, refused)
            warned = (reason, *request.warnings)
            return replace(request, model=name, fallback=reason, warnings=warned)
        return request

    def caller(self, id: str) -> Caller | None:
        """Return the sender of a response in progress, None if there is none."""
        stream = self._streams.get(id)
        return None if stream is None else stream.caller

    def stop(self, id: str, error: OmlxError | None = None) -> None:
        """End a response in progress; the client gets `error`, by default of the dashboard.

        Raises NotFound if there is none.
        """
        stream = self._streams.get(id)
        if stream is None or not stream.stop(error or Stopped("request.stopped")):
            raise NotFound("request.gone", id=id[:SHOWN_ID])

    async def context_length(self, request: GenerationRequest) -> int:
        """Return the context of a request's model in tokens. Waits while the model is loaded."""
        _, lease = await self._lease(request)
        lease.release()
        return lease.served.context_length

    async def prompt_ids(self, request: GenerationRequest) -> list[int]:
        """Return the ids of a conversation's prompt, without loading a model. Raises OmlxError."""
        return list((await self.prompt(request)).tokens)

    async def prompt(self, request: GenerationRequest) -> Prompt:
        """Return a conversation's prompt, without loading a model. Raises OmlxError."""
        request = self.with_fallback(request)
        model = self._pool.resolve(request.model).id
        tokenizer = await self._pool.tokenizer(model)
        configured = await asyncio.to_thread(self._pool.speculation, request.model)
        request = with_profile(request, self._pool.catalog.profile(request.model))
        request = with_settings(request, configured.settings)
        support = VisionSupport()
        if request.has_parts:
            if any(map(shows_images, request.messages)):
                support = await find_vision(self._pool, model)
            request = await self._files.attach(request)
            request = await attach(request, Reader(model, support), self._images)
        work = partial(render_conversation, tokenizer, request, placer=support.family)
        return await self._workers.run((model, request.long), work)

    async def file_text(self, data: bytes) -> FileText:
        """Return the text of a file, as the model reads attached files. Raises nothing."""
        return await self._files.read(data)

    async def tokenize(
        self, name: str | None, text: str, *, special: bool, limit: int = MAX_TOKENS, param: str
    ) -> list[int]:
        """Return the ids of a text; `special` adds the model's leading tokens.

        Raises OmlxError, for a text that is far longer than `limit` tokens about the field `param`.
        """
        model = self._pool.resolve(name).id
        tokenizer = await self._pool.tokenizer(model)
        work = partial(encode, tokenizer, text, limit, special=special, param=param)
        return await self.run_text(model, work, len(text))

    async def run_text(self, model: str, work: Callable[[], T], length: int) -> T:
        """Run `work` on `length` characters or ids of a model, in the model's turn."""
        return await self._workers.run((model, length > LONG_TEXT), work)

    async def detokenize(self, name: str | None, tokens: Sequence[int]) -> str:
        """Raises OmlxError, also for ids outside the vocabulary."""
        model = self._pool.resolve(name).id
        tokenizer = await self._pool.tokenizer(model)

        def decode() -> str:
            check_ids(tokens, tokenizer_length(tokenizer), "tokens")
            return str(tokenizer.decode(list(tokens)))

        return await self.run_text(model, decode, len(tokens))

    def shut_down(self) -> None:
        if self._next_turns is not None:
            self._next_turns.shut_down()
        self._workers.shut_down()

    async def _check_no_output(self, request: GenerationRequest, served: ServedModel) -> None:
        """Raise BadRequest for a request without output that wants a receipt, or a stored prompt
        where the prefix cache is off.
        """
        if request.max_tokens == 0 and request.receipt:
            raise field_error("request.prewarm", "receipt")
        if request.prewarm:
            state = await asyncio.wrap_future(self._engine.snapshot(served.id))
            off = None if state is None else state.prefix.off
            if off is not None:
                raise BadRequest(off.code, param="prompt_cache_options", **off.params)

    async def _note_beginning(
        self, request: GenerationRequest, served: ServedModel, caller: Caller, lane: Hashable
    ) -> None:
        """Remember how a conversation begins, where prefixes are stored on disk."""
        stats = self._engine.prefix_of(served.id)
        if self._beginnings is None or stats is None or stats.disk.off is not None:
            return
        note = partial(self._beginnings.note_request, served.id, caller.client, request)
        await self._workers.run(lane, note)

    async def _weights_of(self, served: ServedModel) -> str:
        """Return what identifies the weights of a loaded model; empty if its files are gone."""
        model, weights = self._weights.get(served.id, (None, ""))
        if model is not served:
            path, dtype = self._pool.resolve(served.id).path, served.speculation.settings.dtype
            bits = served.kv_cache.bits
            computed = dtype if bits is None else f"{dtype} kv_bits={bits}"
            with suppress(OSError, ModelError):
                weights = f"{await asyncio.to_thread(fingerprint, path)} {computed}"
            self._weights[served.id] = served, weights
        return weights

    def _start(self, opening: Opening, arrival: Arrival) -> GenerationStream:
        """Submit every choice. From here on the stream releases the lease."""
        lease, tokenized = opening.lease, opening.tokenized
        self.last_prompts[lease.served.id] = tokenized.prompts[-1].words
        if lease.served.speculation.settings.record_prompts:
            arrival = replace(arrival, prompt=prompt_texts(opening.request))
        arrival = replace(arrival, after_tool=opening.request.after_tool)
        stream = GenerationStream(
            self._engine,
            self._dispatcher,
            lease,
            opening.id,
            opening.seed,
            self._activity,
            arrival,
            opening.recorded,
        )
        self._streams[opening.id] = stream
        stream.digest = opening.digest
        stream.model = opening.request.profile or lease.served.id
        if opening.wants_receipt:
            stream.receipts = Recorder(self._answers, lease.served)
        stream.warnings = (*opening.request.warnings, *tokenized.warnings)
        if self._next_turns is not None:
            self._next_turns.watch(stream, opening.request, arrival.caller.client)
        try:
            for number, choice in enumerate(opening.choices):
                request = choice.request
                stream.submit(choice, number, opening.continued.get(request.id, request))
        except BaseException:
            stream.close()
            raise
        return stream
