"""Answers on disk: one SQLite file, for one process at a time, and the thread that writes it.

    answers     one row each: key, size, and facts needed to continue
    parts       -1: the request's body; 0, 1, …: batches; of a finished answer, the whole of it
    responses   stored responses, with the data URIs of their images in `images`

A disk that fails is a warning in the log: answers continue without a journal, and it is tried
again after a while.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from omlx.errors import Reason
from omlx.storage import Database, Failure, Locked, Schema, lock

T = TypeVar("T")

FILE: Final = "answers.sqlite"
MAX_ANSWERS: Final = 1024
WAIT_S: Final = 5.0
"""Longest time that an answer waits for the disk."""
RETRY_S: Final = 30.0
SYNC_S: Final = 1.0
"""Between two times that written data is made durable, against power cuts; the death of the process
loses no written data.
"""

SCHEMA: Final = Schema(
    "the file of answers",
    version=3,
    script="""
create table answers (
    id text primary key, owner text not null, key text, body_hash blob not null,
    digest blob not null, seed text not null, created integer not null,
    background integer not null, attempts integer not null, finished integer not null,
    nbytes integer not null, used real not null, unique (owner, key));
create table parts (
    answer text not null references answers (id) on delete cascade, number integer not null,
    content blob not null, primary key (answer, number)) without rowid;
create table responses (
    id text primary key, owner text not null, response blob not null, items blob not null,
    messages blob not null, kept real not null);
create table images (name text primary key, uri text not null)
""",
    pragmas=("auto_vacuum = full", "synchronous = normal"),
)

_BODY: Final = -1
_ADD: Final = "insert into parts select ?, ?, ? where exists (select 1 from answers where id = ?)"
_RECOUNT: Final = """
update answers set nbytes = (select sum(length(content)) from parts where answer = id)
where not finished
"""

log = logging.getLogger("omlx.server")


class Owned(NamedTuple):
    """A name that counts for one owner: an id, or a client's own name. `owner` is the name of the
    API key, empty for the server's own and for none."""

    owner: str
    name: str


@dataclass(frozen=True, slots=True)
class Header:
    """An answer without its batches. `key`: the client's name for it, with the path.

    `body_hash` is of the request's body. `seed`, `created` and `digest` are those of `Recorded`.
    `attempts` counts how often the answer was begun; `finished` says that its parts are the whole
    answer.
    """

    id: str
    owner: str
    key: str | None
    body_hash: bytes
    digest: bytes
    seed: str
    created: int
    background: bool
    attempts: int = 1
    finished: bool = False

    @property
    def owned(self) -> Owned:
        return Owned(self.owner, self.id)


_HEADER: Final = ", ".join(field.name for field in fields(Header))


class Part(NamedTuple):
    """Batch `number` of answer `id`, counted from 0."""

    id: str
    number: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded answer. `parts`: its batches in order, or the whole finished answer. `used`: not
    after the newest of them, in seconds since the epoch.
    """

    header: Header
    used: float
    body: bytes
    parts: tuple[bytes, ...]


class StoredRow(NamedTuple):
    """A stored response: JSON texts; `kept` in seconds since the epoch."""

    id: str
    owner: str
    response: bytes
    items: bytes
    messages: bytes
    kept: float


class AnswerFile(Database):
    """Answers are bounded by `max_bytes`, `max_age_s` and `MAX_ANSWERS`; the oldest leave first,
    finished ones before others. `count` and `nbytes` are those of answers as of the newest one that
    began or finished. What unfinished answers have grown by since then is in memory.

    Used by one thread. Every method may raise a `Failure`.
    """

    def __init__(self, folder: Path, max_bytes: int, max_age_s: float) -> None:
        """Create folder and file if need be. Raises Locked."""
        super().__init__(folder / FILE, SCHEMA)
        self._max_bytes, self._max_age_s = max_bytes, max_age_s
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = lock(folder)
        try:
            self.run(lambda: self.db)
        except BaseException:
            os.close(self._lock)
            raise

    def prepare(self) -> None:
        self._inode = self.path.stat().st_ino
        self._grown: dict[str, int] = {}
        with self.transaction():
            self.db.execute(_RECOUNT)
            self._evict(time.time())

    def close(self) -> None:
        self.disconnect()
        os.close(self._lock)

    def check(self) -> None:
        """Raise FileNotFoundError if the file was deleted: writes to it would be lost."""
        if self.path.stat().st_ino != self._inode:
            raise FileNotFoundError(str(self.path))

    def begin(self, header: Header, body: bytes, now: float) -> bool:
        """Enter an answer. Return whether there is room for it."""
        if len(body) > self._max_bytes // 2:
            return False
        row = (*astuple(header), len(body), now)
        marks = ", ".join("?" * len(row))
        with self.transaction():
            if header.key is not None:
                same = "delete from answers where owner = ? and key = ?"
                self.db.execute(same, (header.owner, header.key))
            self.db.execute(f"insert into answers ({_HEADER}, nbytes, used) values ({marks})", row)
            self.db.execute("insert into parts values (?, ?, ?)", (header.id, _BODY, body))
            self._evict(now)
        return True

    def append(self, parts: Sequence[Part]) -> set[str]:
        """Add batches. Return the ids of the answers that are still in the file."""
        here = set()
        with self.transaction():
            for part in parts:
                if self.db.execute(_ADD, (*part, part.id)).rowcount:
                    here.add(part.id)
                    self._grown[part.id] = self._grown.get(part.id, 0) + len(part.content)
        return here

    def finish(self, id: str, answer: bytes, now: float) -> None:
        """Replace the batches by the whole answer."""
        with self.transaction():
            self.db.execute("delete from parts where answer = ? and number > ?", (id, _BODY))
            total = "(select coalesce(sum(length(content)), 0) from parts where answer = ?) + ?"
            row = (id, len(answer), now, id)
            end = f"update answers set finished = 1, nbytes = {total}, used = ? where id = ?"
            if self.db.execute(end, row).rowcount:
                self.db.execute("insert into parts values (?, 0, ?)", (id, answer))
            self._evict(now)

    def drop(self, id: str, owner: str | None = None) -> bool:
        """Return whether there was such an answer, of any owner or this one."""
        query = "delete from answers where id = ? and owner = coalesce(?, owner)"
        return self.db.execute(query, (id, owner)).rowcount > 0

    def find(
        self, now: float, owner: str, *, id: str | None = None, key: str | None = None
    ) -> Entry | None:
        here = "owner = ? and (id = ? or key = ?) and used > ?"
        query = f"select used, {_HEADER} from answers where {here}"
        row = self.db.execute(query, (owner, id, key, now - self._max_age_s)).fetchone()
        if row is None:
            return None
        header = Header(*row[1:])
        content = "select content from parts where answer = ? order by number"
        body, *parts = (part for (part,) in self.db.execute(content, (header.id,)))
        return Entry(header, row[0], body, tuple(parts))

    def attempt(self, id: str) -> None:
        """Count that an answer is begun once more."""
        self.db.execute("update answers set attempts = attempts + 1 where id = ?", (id,))

    def background(self) -> list[Owned]:
        """Return the ids of answers in the background that have not finished, the oldest first."""
        query = "select owner, id from answers where background and not finished order by created"
        return [Owned(*row) for row in self.db.execute(query)]

    def keep(self, response: StoredRow, images: Mapping[str, str]) -> None:
        with self.transaction():
            row = "insert or replace into responses values (?, ?, ?, ?, ?, ?)"
            self.db.execute(row, response)
            self.db.executemany("insert or ignore into images values (?, ?)", images.items())

    def forget(self, id: str, images: Iterable[str]) -> None:
        """Delete a stored response, and these images, which no other has."""
        with self.transaction():
            self.db.execute("delete from responses where id = ?", (id,))
            self.db.executemany("delete from images where name = ?", [(name,) for name in images])

    def responses(self) -> tuple[list[StoredRow], dict[str, str]]:
        """Return the stored responses, the oldest first, and their images; drop other images."""
        query = "select * from responses order by rowid"
        rows = [StoredRow(*row) for row in self.db.execute(query)]
        images = dict(self.db.execute("select * from images"))
        texts = b" ".join(text for row in rows for text in (row.items, row.messages))
        unused = [(name,) for name in images if name.encode() not in texts]
        self.db.executemany("delete from images where name = ?", unused)
        return rows, images

    def _evict(self, now: float) -> None:
        grown = [(nbytes, now, id) for id, nbytes in self._grown.items()]
        grow = "update answers set nbytes = nbytes + ?, used = ? where id = ? and not finished"
        self.db.executemany(grow, grown)
        self._grown.clear()
        for table, field in (("answers", "used"), ("responses", "kept")):
            expired = f"delete from {table} where {field} <= ?"
            self.db.execute(expired, (now - self._max_age_s,))
        query = "select count(*), coalesce(sum(nbytes), 0) from answers"
        self.count, self.nbytes = self.db.execute(query).fetchone()
        oldest = "select id, nbytes from answers order by finished desc, used"
        for id, nbytes in self.db.execute(oldest).fetchall():
            if self.count <= MAX_ANSWERS and self.nbytes <= self._max_bytes:
                return
            self.drop(id)
            self.count, self.nbytes = self.count - 1, self.nbytes - nbytes


class Journal:
    """The file of answers, for the event loop. `off` says why nothing is written now. `counts` are
    since the start: clients that joined an answer, resumed one, or got a finished one."""

    def __init__(self, folder: Path, max_bytes: int, max_age_s: float) -> None:
        self.off: Reason | None = None
        self.counts = dict.fromkeys(("joined", "resumed", "repeated"), 0)
        self.max_bytes = max_bytes
        self._folder = folder
        self._open = partial(AnswerFile, folder, max_bytes, max_age_s)
        self._file: AnswerFile | None = None
        self._retry_at = 0.0
        self._thread = ThreadPoolExecutor(1, "omlx-journal")
        self._batch: tuple[list[Part], asyncio.Task[set[str] | None]] | None = None
        self._posted: set[asyncio.Task[object]] = set()
        self._sync: asyncio.TimerHandle | None = None

    async def run(self, work: Callable[[AnswerFile], T], wait_s: float = WAIT_S) -> T | None:
        """Return the result of `work` on the file; None if the disk fails, or takes too long."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._retry_at:
            return None
        future = loop.run_in_executor(self._thread, self._on_file, work)
        await asyncio.wait([future], timeout=wait_s)
        try:
            if not future.done():
                future.add_done_callback(lambda late: late.cancelled() or late.exception())
                raise TimeoutError(f"{wait_s} s")
            result = future.result()
        except Failure as error:
            self._retry_at = loop.time() + RETRY_S
            self._failed(error)
            return None
        self.off = None
        if self._sync is None:
            self._sync = loop.call_later(SYNC_S, self._start_sync)
        return result

    async def append(self, part: Part) -> bool | None:
        """Return whether `part` was written; None if the disk fails, or takes too long.

        The parts of one turn of the event loop are written together: a delivery of the engine
        brings tokens of every stream, and the way to the thread costs more than a write.
        """
        if self._batch is None:
            new: list[Part] = []
            self._batch = new, asyncio.create_task(self._write(new))
        parts, written = self._batch
        parts.append(part)
        here = await asyncio.shield(written)
        return None if here is None else part.id in here

    def post(self, work: Callable[[AnswerFile], object]) -> None:
        """Do `work` soon, after earlier posts; `flushed` waits for it."""
        task = asyncio.create_task(self.run(work))
        self._posted.add(task)
        task.add_done_callback(self._posted.discard)

    async def flushed(self) -> None:
        """Wait for all posts."""
        if self._posted:
            await asyncio.wait(self._posted)

    @property
    def size(self) -> tuple[int, int]:
        """Number of the answers on disk, and their bytes."""
        file = self._file
        return (0, 0) if file is None else (file.count, file.nbytes)

    def close(self) -> None:
        """Wait for running writes, and close the file."""
        if self._sync is not None:
            self._sync.cancel()
        self._thread.submit(self._close)
        self._thread.shutdown()

    async def _write(self, parts: Sequence[Part]) -> set[str] | None:
        self._batch = None  # later parts are for the next batch
        return await self.run(partial(AnswerFile.append, parts=parts))

    def _on_file(self, work: Callable[[AnswerFile], T]) -> T:
        """On the thread of the journal. Closes a file that fails; a damaged one is begun again."""
        try:
            if self._file is None:
                self._file = self._open()
            self._file.check()
            return self._file.run(partial(work, self._file))
        except Failure:
            self._close()
            raise

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _failed(self, error: Exception) -> None:
        reason = Reason("answer.off.failed", {"detail": str(error) or type(error).__name__})
        if isinstance(error, Locked):
            reason = Reason("answer.off.locked", {"folder": str(self._folder)})
        if self.off is None:
            log.warning(reason.message)
        self.off = reason

    def _start_sync(self) -> None:
        self._sync = None
        file = self._file
        if file is not None:
            asyncio.get_running_loop().run_in_executor(None, file.sync)


def booted_at() -> float:
    """Return when the machine was started, in seconds since the epoch: data written before may not
    have been durable.
    """
    # both count sleep, too
    clock = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC
    return time.time() - time.clock_gettime(clock)
