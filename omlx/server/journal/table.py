"""Answers on disk: one SQLite file in a folder that one process uses at a time.

    answers     one row each: what is needed to continue it, its key, its size
    parts       -1: the request's body; 0, 1, …: what was generated; of a finished answer, all of it
    responses   stored responses, with the data URIs of their images in `images`

Used by one thread. Every method may raise sqlite3.Error and OSError.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = "answers.sqlite"
MAX_ANSWERS: Final = 1024

_FORMAT: Final = 3
_BODY: Final = -1
_SCHEMA: Final = """
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
create table images (name text primary key, uri text not null);
"""
_ADD: Final = "insert into parts select ?, ?, ? where exists (select 1 from answers where id = ?)"
_RECOUNT: Final = """
update answers set nbytes = (select sum(length(content)) from parts where answer = id)
where not finished
"""


class Owned(NamedTuple):
    """A name that counts for one owner: an id, or a client's own name. `owner` is the name of the
    API key, empty for the server's own and for none."""

    owner: str
    name: str


@dataclass(frozen=True, slots=True)
class Header:
    """An answer but for what was generated. `key`: the client's name for it, with the path.

    `body_hash` is of the request's body. `seed`, `created` and `digest` are those of `Recorded`.
    `attempts` counts how often it was begun; `finished` says that its parts are the whole answer.
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


@dataclass(frozen=True, slots=True)
class Part:
    """What was generated of answer `id`: its batch `number`, counted from 0."""

    id: str
    number: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """`parts`: batches in order, or of a finished answer, all of it. `used`: not after the newest
    of them, in seconds since the epoch.
    """

    header: Header
    used: float
    body: bytes
    parts: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A stored response: JSON texts; `kept` in seconds since the epoch."""

    id: str
    owner: str
    response: bytes
    items: bytes
    messages: bytes
    kept: float


class Locked(OSError):
    """Another process uses the folder."""


class Table:
    """Answers are bounded by `max_bytes`, `max_age_s` and `MAX_ANSWERS`; the oldest leave first,
    finished ones before others. `count` and `nbytes` are those of answers as of the newest one that
    began or finished. What unfinished answers have grown by since then is in memory.
    """

    def __init__(self, folder: Path, max_bytes: int, max_age_s: float) -> None:
        """Create folder and file if need be. Raises Locked."""
        self._max_bytes, self._max_age_s = max_bytes, max_age_s
        self.path = folder / FILE
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _lock(folder)
        try:
            self._db = _open(self.path)
            self._inode = self.path.stat().st_ino
            self._grown: dict[str, int] = {}
            with self._change():
                self._db.execute(_RECOUNT)
                self._evict(time.time())
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def check(self) -> None:
        """Raise FileNotFoundError if the file is not there any more: writes to it would be lost."""
        if self.path.stat().st_ino != self._inode:
            raise FileNotFoundError(str(self.path))

    def begin(self, header: Header, body: bytes, now: float) -> bool:
        """Enter an answer. Return whether there is room for it."""
        if len(body) > self._max_bytes // 2:
            return False
        marks = ", ".join("?" * (len(astuple(header)) + 2))
        with self._change():
            if header.key is not None:
                same = "delete from answers where owner = ? and key = ?"
                self._db.execute(same, (header.owner, header.key))
            row = (*astuple(header), len(body), now)
            self._db.execute(f"insert into answers ({_HEADER}, nbytes, used) values ({marks})", row)
            self._db.execute("insert into parts values (?, ?, ?)", (header.id, _BODY, body))
            self._evict(now)
        return True

    def append(self, parts: Sequence[Part]) -> set[str]:
        """Add what was generated. Return the ids of the answers that are still here."""
        here = set()
        with self._change():
            for part in parts:
                if self._db.execute(_ADD, (*astuple(part), part.id)).rowcount:
                    here.add(part.id)
                    self._grown[part.id] = self._grown.get(part.id, 0) + len(part.content)
        return here

    def finish(self, id: str, answer: bytes, now: float) -> None:
        """Replace what was generated by the whole answer."""
        with self._change():
            self._db.execute("delete from parts where answer = ? and number > ?", (id, _BODY))
            total = "(select coalesce(sum(length(content)), 0) from parts where answer = ?) + ?"
            row = (id, len(answer), now, id)
            end = f"update answers set finished = 1, nbytes = {total}, used = ? where id = ?"
            if self._db.execute(end, row).rowcount:
                self._db.execute("insert into parts values (?, 0, ?)", (id, answer))
            self._evict(now)

    def drop(self, id: str, owner: str | None = None) -> bool:
        """Return whether there was such an answer, of any owner or this one."""
        query = "delete from answers where id = ? and owner = coalesce(?, owner)"
        return self._db.execute(query, (id, owner)).rowcount > 0

    def find(
        self, now: float, owner: str, *, id: str | None = None, key: str | None = None
    ) -> Entry | None:
        here = "owner = ? and (id = ? or key = ?) and used > ?"
        query = f"select {_HEADER}, used from answers where {here}"
        row = self._db.execute(query, (owner, id, key, now - self._max_age_s)).fetchone()
        if row is None:
            return None
        *fields, used = row
        header = Header(*fields)
        content = "select content from parts where answer = ? order by number"
        body, *parts = (part for (part,) in self._db.execute(content, (header.id,)))
        return Entry(header, used, body, tuple(parts))

    def attempt(self, id: str) -> None:
        """Count that an answer is begun once more."""
        self._db.execute("update answers set attempts = attempts + 1 where id = ?", (id,))

    def background(self) -> list[Owned]:
        """Return the ids of answers in the background that have not finished, the oldest first."""
        query = "select owner, id from answers where background and not finished order by created"
        return [Owned(*row) for row in self._db.execute(query)]

    def keep(self, response: StoredRow, images: Mapping[str, str]) -> None:
        with self._change():
            row = astuple(response)
            self._db.execute("insert or replace into responses values (?, ?, ?, ?, ?, ?)", row)
            self._db.executemany("insert or ignore into images values (?, ?)", images.items())

    def forget(self, id: str, images: Iterable[str]) -> None:
        """Delete a stored response, and these images, which no other has."""
        with self._change():
            self._db.execute("delete from responses where id = ?", (id,))
            self._db.executemany("delete from images where name = ?", [(name,) for name in images])

    def responses(self) -> tuple[list[StoredRow], dict[str, str]]:
        """Return the stored responses, the oldest first, and their images; drop other images."""
        rows = [
            StoredRow(*row) for row in self._db.execute("select * from responses order by rowid")
        ]
        images = dict(self._db.execute("select * from images"))
        texts = b" ".join(text for row in rows for text in (row.items, row.messages))
        unused = [(name,) for name in images if name.encode() not in texts]
        self._db.executemany("delete from images where name = ?", unused)
        return rows, images

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._db:
            self._db.execute("begin immediate")
            yield

    def _evict(self, now: float) -> None:
        grown = [(nbytes, now, id) for id, nbytes in self._grown.items()]
        grow = "update answers set nbytes = nbytes + ?, used = ? where id = ? and not finished"
        self._db.executemany(grow, grown)
        self._grown.clear()
        for table, field in (("answers", "used"), ("responses", "kept")):
            expired = f"delete from {table} where {field} <= ?"
            self._db.execute(expired, (now - self._max_age_s,))
        query = "select count(*), coalesce(sum(nbytes), 0) from answers"
        self.count, self.nbytes = self._db.execute(query).fetchone()
        oldest = "select id, nbytes from answers order by finished desc, used"
        for id, nbytes in self._db.execute(oldest).fetchall():
            if self.count <= MAX_ANSWERS and self.nbytes <= self._max_bytes:
                return
            self.drop(id)
            self.count, self.nbytes = self.count - 1, self.nbytes - nbytes


def remove(folder: Path) -> None:
    """Delete a file that cannot be read."""
    for file in folder.glob(f"{FILE}*"):
        file.unlink()


def sync(path: Path) -> None:
    """Make what was written to the file at `path` durable. Any thread may call."""
    with suppress(FileNotFoundError):
        file = os.open(f"{path}-wal", os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _lock(folder: Path) -> int:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise Locked(str(folder)) from error
    return lock


def _open(path: Path) -> sqlite3.Connection:
    """Raises sqlite3.DatabaseError, and nothing derived from it, for a file of another format."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite's further files have its mode
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        version = db.execute("pragma user_version").fetchone()[0]
        if version not in (0, _FORMAT):
            raise sqlite3.DatabaseError(f"format {version}")
        db.execute("pragma auto_vacuum = full")
        db.execute("pragma journal_mode = wal")
        db.execute("pragma synchronous = normal")
        db.execute("pragma foreign_keys = on")
        if version == 0:
            db.executescript(f"begin; {_SCHEMA} pragma user_version = {_FORMAT}; commit;")
    except BaseException:
        db.close()
        raise
    return db
