"""Answers that clients can leave and return to, by an id or by a key of their own.

    POST with a key, or to be kept ─► new | joined | resumed | repeated ─► Answer or Kept ─► reply

An answer without clients stops, unless it is in the background. It continues from its record, in
this process or in the next.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from types import MappingProxyType
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from omlx.errors import BadRequest, Conflict, NotFound, Reason
from omlx.server.http.errors import field_error
from omlx.server.http.guard import Caller, caller_of, owner_of
from omlx.server.http.transport import EVENTS, EventStream, note, while_connected
from omlx.server.journal.answer import Answer, Replay
from omlx.server.journal.journal import AnswerFile, Entry, Header, Journal, Owned, booted_at
from omlx.server.request.dialect import Exchange, Wire
from omlx.server.request.opening import Recorded
from omlx.server.request.stream import GenerationStream
from omlx.server.tool_loop import ToolLoops

KEY: Final = "Idempotency-Key"
MAX_KEY: Final = 255
MAX_ATTEMPTS: Final = 5
LAST_EVENT: Final = "Last-Event-ID"
SOURCE: Final = "X-Omlx-Answer"
"""Header of a response: new, joined, resumed or repeated."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A finished answer from the journal."""

    owned: Owned
    content: bytes

    @property
    def id(self) -> str:
        return self.owned.name

    @property
    def streams(self) -> bool:
        return self.content.startswith(b"id: ")


class LastEvent(NamedTuple):
    """The number of the last event that a client has, as `field` of its request says; -1: none."""

    number: int
    field: str = LAST_EVENT


class Answers:
    """Answers: `running` are in progress, by id. `journal` None: none outlives the process."""

    def __init__(self, loops: ToolLoops, keep_alive_s: float, journal: Journal | None) -> None:
        self.journal = journal
        self.running: dict[Owned, Answer] = {}
        self._keyed: dict[Owned, Answer] = {}
        self._loops = loops
        self._keep_alive_s = keep_alive_s
        self._tasks: dict[Answer, asyncio.Task[None]] = {}
        self._spawned: set[asyncio.Task[None]] = set()
        self._locks: WeakValueDictionary[Owned, asyncio.Lock] = WeakValueDictionary()

    def takes(self, request: Request, exchange: Exchange) -> bool:
        """Whether a request's answer is generated apart from the client."""
        if exchange.wire.media_type != EVENTS:
            return False  # only these streams have ids of events
        recorded = exchange.kept and self.journal is not None
        return KEY in request.headers or exchange.background or recorded

    async def open(self, request: Request, exchange: Exchange) -> tuple[Answer | Kept, str]:
        """Begin an answer, or return to that of the request's key. Return answer and source.

        Raises OmlxError; ClientGone if the client disconnects before the answer has begun.
        """
        body = await request.body()
        owner, key = owner_of(request.scope), _key(request)
        if key is None:
            return await self._begin(request, exchange, owner, None, body), "new"
        owned = Owned(owner, key)
        async with self._locks.setdefault(owned, asyncio.Lock()):
            answer = self._keyed.get(owned)
            if answer is not None:
                _check_same(answer.body_hash, body)
                return answer, self._count("joined")
            entry = await self._find(owner, key=key)
            if entry is None:
                if last_event(request).number >= 0:  # the answer is gone; do not begin another
                    raise NotFound("answer.gone", param=KEY, field=LAST_EVENT)
                return await self._begin(request, exchange, owner, key, body), "new"
            _check_same(entry.header.body_hash, body)
            return await self._return_to(request, exchange, entry)

    async def reopen(
        self, request: Request | None, owned: Owned, read: Callable[[bytes], Exchange]
    ) -> Answer | Kept | None:
        """Return to an answer by its id; None if its owner has none. `read` reads its body again.

        Raises OmlxError if it cannot be continued, and without a request, if it was begun
        MAX_ATTEMPTS times: the answer itself may end the process.
        """
        async with self._locks.setdefault(owned, asyncio.Lock()):
            if owned in self.running:
                return self.running[owned]
            entry = await self._find(owned.owner, id=owned.name)
            if entry is None:
                return None
            if entry.header.finished:
                return _kept(entry)
            if request is None and entry.header.attempts >= MAX_ATTEMPTS:
                raise Conflict("answer.left", id=owned.name, attempts=entry.header.attempts)
            answer, _ = await self._return_to(request, read(entry.body), entry)
            return answer

    async def reply(
        self, request: Request, exchange: Exchange, answer: Answer | Kept, source: str
    ) -> Response:
        """Answer in the dialect. Raises the OmlxError that ended an answer that is no stream."""
        headers = {SOURCE: source}
        if exchange.stream:
            if isinstance(answer, Answer):
                headers |= answer.stream.headers
            return await self.stream(request, answer, exchange.wire, last_event(request), headers)
        if isinstance(answer, Kept):
            body = answer.content
        else:
            answer.readers += 1
            try:
                body = await while_connected(request.receive, answer.whole())
            finally:
                self._leave(answer)
            headers |= answer.stream.headers
        return Response(body, media_type="application/json", headers=headers)

    async def stream(
        self,
        request: Request,
        answer: Answer | Kept,
        wire: Wire,
        last: LastEvent,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        """A stream of the events that follow `last`, whose end does not end the answer.

        Raises Conflict if there is no such event.
        """
        if isinstance(answer, Kept):
            return self.follow(answer.id, Replay.of(wire, answer.content), last, headers)
        answer.readers += 1
        try:
            if last.number >= 0:
                await while_connected(request.receive, answer.caught_up.wait())
            start = _start(answer.id, answer.replay, last)
        except BaseException:
            self._leave(answer)
            raise
        stream = answer.stream
        frames = answer.replay.frames(start, self._keep_alive_s, lambda: stream.progress)
        return EventStream(frames, partial(self._leave, answer), more=headers)

    def follow(
        self,
        id: str,
        replay: Replay,
        last: LastEvent,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        """A stream of the events of a finished answer. Raises Conflict as `stream` does."""
        frames = replay.frames(_start(id, replay, last), self._keep_alive_s)
        return EventStream(frames, lambda: None, more=headers)

    async def flushed(self) -> None:
        """Wait until the records of ended answers are on disk."""
        if self.journal is not None:
            await self.journal.flushed()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` beside everything else."""
        task = asyncio.create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)

    async def drop(self, owned: Owned) -> bool:
        """Delete the record of an answer. Return whether there was one."""
        if self.journal is None:
            return False
        drop = partial(AnswerFile.drop, id=owned.name, owner=owned.owner)
        return bool(await self.journal.run(drop))

    async def _begin(
        self,
        request: Request | None,
        exchange: Exchange,
        owner: str,
        key: str | None,
        body: bytes,
        entry: Entry | None = None,
    ) -> Answer:
        """Start a new answer, or continue that of `entry`."""
        recorded = None if entry is None else _recorded(entry)
        opening = self._loops.open(
            exchange.generation,
            exchange.id_prefix,
            Caller(key=owner) if request is None else caller_of(request.scope),
            kept=self.journal is not None,
            recorded=recorded,
        )
        receive = _never if request is None else request.receive
        stream = await while_connected(receive, opening)
        if request is not None:
            note(request.scope, stream)
        body_hash = sha256(body).digest()
        try:
            if not exchange.background and recorded is None:
                await while_connected(receive, stream.started(self._keep_alive_s))
            journal = self.journal
            if entry is None and not await self._begin_record(stream, exchange, owner, key, body):
                journal = None
            answer = Answer(owner, exchange, stream, journal, body_hash, recorded)
        except BaseException:
            stream.close()
            raise
        self._start(answer, key)
        return answer

    async def _begin_record(
        self, stream: GenerationStream, exchange: Exchange, owner: str, key: str | None, body: bytes
    ) -> bool:
        """Begin to record an answer. It has a warning if that is not possible."""
        off = Reason("answer.off.setting")
        if stream.tool_loop is not None:
            if key is None and not exchange.background:
                return False
            off = Reason("answer.off.tools")
        elif self.journal is not None:
            header = Header(
                stream.id,
                owner,
                key,
                sha256(body).digest(),
                stream.digest,
                str(stream.seed),
                stream.created,
                exchange.background,
            )
            begin = partial(AnswerFile.begin, header=header, body=body, now=time.time())
            if await self.journal.run(begin):
                return True
            off = self.journal.off or Reason("answer.off.large", {"bytes": len(body)})
        if key is not None or self.journal is not None:
            stream.warnings = (*stream.warnings, off)
        return False

    def _start(self, answer: Answer, key: str | None) -> None:
        self.running[answer.owned] = answer
        if key is not None:
            self._keyed[Owned(answer.owned.owner, key)] = answer
        task = asyncio.create_task(answer.run())
        self._tasks[answer] = task
        task.add_done_callback(lambda _: self._forget(answer))

    def _forget(self, answer: Answer) -> None:
        """Drop an ended answer: a client that returns now finds its record."""
        self._tasks.pop(answer, None)
        self.running.pop(answer.owned, None)
        self._keyed = {key: other for key, other in self._keyed.items() if other is not answer}

    def _leave(self, answer: Answer) -> None:
        """Stop an answer that its last client has left, unless it is in the background."""
        answer.readers -= 1
        task = self._tasks.get(answer)
        if not answer.readers and not answer.exchange.background and task is not None:
            self._forget(answer)
            task.cancel()

    async def _return_to(
        self, request: Request | None, exchange: Exchange, entry: Entry
    ) -> tuple[Answer | Kept, str]:
        header = entry.header
        if header.finished:
            return _kept(entry), self._count("repeated")
        if header.owned in self.running:  # by its id, while this waited for its key
            return self.running[header.owned], self._count("joined")
        if self.journal is not None:  # before its model is loaded, which may end the process
            await self.journal.run(partial(AnswerFile.attempt, id=header.id))
        answer = await self._begin(request, exchange, header.owner, header.key, entry.body, entry)
        return answer, self._count("resumed")

    async def _find(
        self, owner: str, *, id: str | None = None, key: str | None = None
    ) -> Entry | None:
        if self.journal is None:
            return None
        find = partial(AnswerFile.find, now=time.time(), owner=owner, id=id, key=key)
        return await self.journal.run(find)

    def _count(self, source: str) -> str:
        if self.journal is not None:
            self.journal.counts[source] += 1
        return source


def last_event(request: Request) -> LastEvent:
    """Return the last event by the header of a request. Raises BadRequest."""
    number = request.headers.get(LAST_EVENT, "-1")
    try:
        return LastEvent(max(-1, int(number)))
    except ValueError as error:
        raise field_error("request.type", LAST_EVENT, expected="integer") from error


def _key(request: Request) -> str | None:
    """The key of a request with its path, if it has one. Raises BadRequest for one too long."""
    key = request.headers.get(KEY)
    if key is None:
        return None
    if not 0 < len(key) <= MAX_KEY:
        raise BadRequest("answer.key", param=KEY, high=MAX_KEY)
    return f"{request.scope['path']} {key}"


def _check_same(body_hash: bytes, body: bytes) -> None:
    """Raise Conflict if a key was used for another body."""
    if sha256(body).digest() != body_hash:
        raise Conflict("answer.other_body", param=KEY)


def _start(id: str, replay: Replay, last: LastEvent) -> int:
    """Return the index of the frame that follows `last`.

    Raises Conflict if answer `id` has no such event: it was never recorded, and what was generated
    since then may be cut at other places.
    """
    start = replay.after(last.number)
    if start is None:
        field = last.field
        raise Conflict("answer.lost", param=field, field=field, event=last.number, id=id)
    return start


def _recorded(entry: Entry) -> Recorded:
    header = entry.header
    return Recorded.read(
        header.id,
        header.attempts,
        int(header.seed),
        header.created,
        header.digest,
        entry.parts,
        torn=entry.used < booted_at(),
    )


def _kept(entry: Entry) -> Kept:
    return Kept(entry.header.owned, zlib.decompress(entry.parts[0]))


async def _never() -> Message:
    """Wait for ever, in place of a client that disconnects: there is no client."""
    never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await never
