"""Sessions: stored responses in files, with the prefix states of their conversations.

Files lie in `OMLX_HOME/sessions`; `omlx session` moves them from there and to there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from omlx.engine.disk.record import Damaged, Part, Record
from omlx.engine.disk.session import Session, read_head, read_states, write_session
from omlx.errors import BadRequest, NotFound, Overloaded, Reason, optional_reason, os_errors
from omlx.models.catalog.facts import versions
from omlx.models.pool.served import ServedModel
from omlx.server.beginnings.beginning import FIRST_WORDS, shared_prefix
from omlx.server.beginnings.prewarmer import BackgroundPrefill
from omlx.server.dialects.openai.responses_items import Item
from omlx.server.dialects.openai.responses_request import ResponseRequest
from omlx.server.dialects.openai.responses_store import SavedResponse, encoded
from omlx.server.endpoints.responses import ResponseEndpoints, owned_by
from omlx.server.http.guard import MAIN_KEY, Caller, check_main, owner_of
from omlx.server.http.transport import Json, read_body
from omlx.server.journal.journal import Owned
from omlx.server.request import tooling
from omlx.server.request.fields import Body, Text
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.services import Services

if TYPE_CHECKING:
    from omlx.engine.session import StateStore

FOLDER: Final = "sessions"
_ROOM_S: Final = 60.0
"""Seconds — longest wait for a full queue between two looks at the disk."""
_REPEATED: Final = ("model", "instructions", "tools", "tool_choice", "reasoning")
"""Fields of a response that the prompt of the next turn depends on."""
_WRONG: Final = (KeyError, TypeError, AttributeError, ValueError)


class SessionFile(Body):
    """Body with the name of a file in the folder of sessions."""

    file: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class SaveRequest(SessionFile):
    id: Text


class SessionEndpoints:
    def __init__(self, responses: ResponseEndpoints, services: Services) -> None:
        self._store, self._answers = responses.store, responses.answers
        self._engine, self._pool = services.engine, services.pool
        self._tools = services.tool_loops
        self._prefill = BackgroundPrefill(services.engine, services.pool)

    async def save(self, request: Request) -> Response:
        """Save a stored response to a file. Computes states that are no longer cached."""
        check_main(request.scope)
        body = await read_body(request, SaveRequest.parse)
        saved = self._store.saved(owned_by(request, body.id))
        following = continuing(saved)
        lease = await self._pool.lease(following.model)
        try:
            tokens = await self._tokens(following)
            states = await self._states(lease.served, tokens)
            session = Session(
                id=body.id,
                model=saved.response["model"],
                saved_at=time.time(),
                facts={} if isinstance(states, Reason) else _facts(states, lease.served),
                tokens=list(tokens),
                **saved._asdict(),
            )
            nbytes, session = await self._write(self._path(body), session, states)
            if await request.is_disconnected():  # the command that takes it was interrupted
                self._path(body).unlink(missing_ok=True)
        finally:
            lease.release()
        reason = states if isinstance(states, Reason) else None
        return _shown(session, restored=session.restored, bytes=nbytes, reason=reason)

    async def open(self, request: Request) -> Response:
        """Store the response of a file, and restore states or compute them."""
        check_main(request.scope)
        body = await read_body(request, SessionFile.parse)
        try:
            with os_errors(NotFound, "session.no_file"), self._path(body).open("rb") as file:
                session, restored, computed, reason = await self._read(file)
        except Damaged as error:
            raise BadRequest("session.damaged", detail=str(error)) from error
        id = self._adopt(owner_of(request.scope), session)
        await self._answers.flushed()
        return _shown(session, id=id, restored=restored, computed=computed, reason=reason)

    async def fork(self, request: Request, id: str) -> Response:
        """Copy a stored response to a new id, which is continued apart."""
        owned = owned_by(request, id)
        copy = self._store.saved(owned).renamed()
        self._store.put(owned.owner, copy)
        await self._answers.flushed()
        return JSONResponse(copy.response)

    def _path(self, body: SessionFile) -> Path:
        home: Path = self._pool.catalog.configuration.resolve().settings.home
        folder = home / FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / body.file

    async def _tokens(self, following: GenerationRequest) -> tuple[int, ...]:
        """Return the tokens with which every next turn of a conversation begins."""
        prompts = []
        for word in FIRST_WORDS:
            turns = [*map(dict, following.messages), *_next(following, word)]
            turn = replace(following, messages=tooling.with_names(turns))
            prompts.append(tuple(await self._tools.prompt_ids(turn, Caller(key=MAIN_KEY))))
        return shared_prefix(prompts)

    async def _states(self, served: ServedModel, tokens: Sequence[int]) -> StateStore | Reason:
        """Return the stored states of a leased model; the reason where it has none."""
        from omlx.engine.session import open_states  # noqa: PLC0415 — see `import_mlx_lm`

        if min(tokens, default=0) < 0:
            return Reason("session.images")
        resident = self._pool.residents.find(served.id)
        assert resident is not None
        return await asyncio.wrap_future(self._engine.call(partial(open_states, resident.loop)))

    async def _write(
        self, path: Path, session: Session, states: StateStore | Reason
    ) -> tuple[int, Session]:
        """Write a file with all stored states. Return bytes and head."""
        records: Iterable[Record] = ()
        if not isinstance(states, Reason):
            model, tokens = self._pool.resolve(session.model).id, tuple(session.tokens)
            await self._prefill.fill(model, tokens, beside=True)
            await asyncio.wrap_future(self._engine.call(partial(states.prefix.write, tokens)))
            while await asyncio.wrap_future(self._engine.call(states.tier.drain)):
                await asyncio.to_thread(states.worker.wait_for_room, _ROOM_S)
            found = await asyncio.wrap_future(states.find(tokens))
            restored, overlapping = found or (0, [])
            parts = list({part.id: part for part in overlapping}.values())
            spans = [(part.kind, part.id.start, part.id.stop) for part in parts]
            session = session.model_copy(update={"restored": restored, "states": spans})
            records = _stored(states, parts)

        with os_errors(NotFound, "session.no_file"):
            return await asyncio.to_thread(write_session, path, session, records), session

    async def _read(self, file: BinaryIO) -> tuple[Session, int, int, Reason | None]:
        """Return head, restored and computed tokens, and why any were computed."""
        session = await asyncio.to_thread(read_head, file)
        saved = SavedResponse(session.response, session.items, session.messages)
        if (saved.response.get("id"), saved.response.get("model")) != (session.id, session.model):
            raise Damaged("its response is another one")
        self._pool.resolve(session.model)
        try:
            for item in (*saved.items, *saved.response["output"]):
                Item.model_validate(item)  # later requests may reference it
            following = continuing(saved)
            tokens = await self._tokens(following)
        except ValidationError as error:
            detail = error.errors(include_url=False, include_input=False)[0]["msg"]
            raise Damaged(f"one of its items is none ({detail})") from error
        except (BadRequest, *_WRONG) as error:
            detail = error.message if isinstance(error, BadRequest) else repr(error)
            raise Damaged(f"its conversation is none ({detail})") from error
        lease = await self._pool.lease(session.model)
        try:
            states = await self._states(lease.served, tokens)
            restored, computed, reason = 0, 0, _obstacle(session, tokens, states, lease.served)
            if reason is None and not isinstance(states, Reason):
                await asyncio.to_thread(_load, file, session, states)
                found = await asyncio.wrap_future(states.find(tokens))
                restored, _ = found or (0, [])
                if restored < session.restored:
                    reason = states.worker.off or Reason("session.no_room")
            if restored < len(tokens) and min(tokens) >= 0:
                _, computed = await self._prefill.fill(lease.served.id, tokens, beside=True)
        finally:
            lease.release()
        return session, restored, computed, reason

    def _adopt(self, owner: str, session: Session) -> str:
        """Store the response, under a new id if the old one is taken. Return the id."""
        saved = SavedResponse(session.response, session.items, session.messages)
        try:
            with suppress(NotFound):
                if self._store.saved(Owned(owner, session.id)) == saved:
                    return session.id
                saved = saved.renamed()
            self._store.put(owner, saved)
            return str(saved.response["id"])
        except _WRONG as error:
            detail = f"its response is none ({error!r})"
            raise BadRequest("session.damaged", detail=detail) from error


def continuing(saved: SavedResponse) -> GenerationRequest:
    """Return the conversation as a request of the same settings. Raises BadRequest, KeyError."""
    response = saved.response
    fields = {name: response[name] for name in _REPEATED}
    fields["chat_template_kwargs"] = response.get("chat_template_kwargs")
    body = ResponseRequest.parse(encoded(fields | {"input": []}))
    return body.generation_request(body.conversation(saved.messages))


def _next(following: GenerationRequest, word: str) -> list[Json]:
    """Return messages behind the last answer: a user's, or results of its calls."""
    calls = following.messages[-1].get("tool_calls") or ()
    results = [{"role": "tool", "tool_call_id": one["id"], "content": word} for one in calls]
    return results or [{"role": "user", "content": word}]


def _facts(states: StateStore, served: ServedModel) -> dict[str, str]:
    identity = asdict(served.identity)
    named = {name: identity[name] for name in ("weights", "dtype", "library")}
    return {**states.facts, **named, **versions()}


def _obstacle(
    session: Session, tokens: Sequence[int], states: StateStore | Reason, served: ServedModel
) -> Reason | None:
    """Return the reason why the states of a file cannot be used, if any."""
    if isinstance(states, Reason):
        return states
    if not session.states:
        return Reason("session.no_states")
    facts = _facts(states, served)
    other = [name for name in facts if session.facts.get(name) != facts[name]]
    if other:
        return Reason("session.other_facts", {"facts": ", ".join(other)})
    return None if list(tokens) == session.tokens else Reason("session.other_tokens")


def _stored(states: StateStore, parts: Sequence[Part]) -> Iterator[Record]:
    """Yield the records of stored states. Raises Overloaded for one evicted meanwhile."""
    for part in parts:
        record = states.worker.read(part).result()
        if record is None:
            raise Overloaded("session.evicted")
        yield record


def _load(file: BinaryIO, session: Session, states: StateStore) -> None:
    """Write the states of a file into the store. Raises Damaged."""
    for record in read_states(file, session, states.block_tokens):
        if not states.fits(record):
            raise Damaged("its arrays are not those of the model")
        while not states.worker.wait_for_room(_ROOM_S):
            if states.worker.off is not None:
                return
        states.worker.write(record)


def _shown(session: Session, *, reason: Reason | None, **figures: object) -> Response:
    """Describe a saved or opened session, with the reason for missing states."""
    shown = {"object": "session", "id": session.id, "model": session.model}
    counts = {"tokens": len(session.tokens), "reason": optional_reason(reason)}
    return JSONResponse({**shown, **counts, **figures})
