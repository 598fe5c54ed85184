"""Append-only files of records, and the table in SQLite that finds a record in them.

A record is entered after it was written, so after the death of the process the table may lack
records, but has none that does not exist.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

from omlx.engine.disk.record import FORMAT, RecordId, TokenChain
from omlx.engine.piece import Kind

SEGMENT_BYTES: Final = 64 << 20
"""At this size a file is closed and the next one begun. Files are evicted as a whole."""

_SUFFIX: Final = ".records"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies."""

    segment: int
    offset: int
    nbytes: int


class Segments:
    """The files of one folder, numbered from 1. `sizes` are their bytes, by number.

    A new process begins a new file: the end of the last one may be torn. Every method may raise
    OSError.
    """

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self.sizes: dict[int, int] = {}
        for path in folder.glob(f"*{_SUFFIX}"):
            if path.stem.isdecimal():
                self.sizes[int(path.stem)] = path.stat().st_size
        self._newest = max(self.sizes, default=0)
        self._file: int | None = None

    @property
    def nbytes(self) -> int:
        return sum(self.sizes.values())

    def append(self, parts: Sequence[bytes | memoryview]) -> Place:
        """Write a record behind the newest one; after an error the next one gets a new file."""
        if self._file is None or self.sizes[self._newest] >= self._segment_bytes:
            self._begin()
        assert self._file is not None
        offset = self.sizes[self._newest]
        try:
            for part in parts:
                self._write(self._file, part)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, offset)
                self.sizes[self._newest] = offset
            self.close()
            raise
        return Place(self._newest, offset, self.sizes[self._newest] - offset)

    def read(self, place: Place) -> bytes:
        """Return the bytes at a place; fewer where the file is shorter."""
        with self._path(place.segment).open("rb") as file:
            there = os.fstat(file.fileno()).st_size - place.offset
            if there <= 0:
                return b""
            file.seek(place.offset)
            return file.read(min(place.nbytes, there))

    def remove(self, segment: int) -> None:
        """Delete a file, if it is still there."""
        if segment == self._newest:
            self.close()
        self.sizes.pop(segment, None)
        self._path(segment).unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _begin(self) -> None:
        self.close()
        newest = self._newest + 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._file = os.open(self._path(newest), flags, 0o600)
        self._newest, self.sizes[newest] = newest, 0

    def _write(self, file: int, part: bytes | memoryview) -> None:
        view = memoryview(part)
        while len(view):
            count = os.write(file, view)
            self.sizes[self._newest] += count
            view = view[count:]

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:08d}{_SUFFIX}"


FILE: Final = "index.sqlite"

_BATCH: Final = 256
"""Keys in one query."""

_FIELDS: Final = "kind, start, stop, key, node, segment, offset, nbytes"
_MARKS: Final = ",".join("?" * 8)

_SCHEMA: Final = """
create table if not exists records (
    key blob not null, kind text not null, start integer not null, stop integer not null,
    node blob not null, segment integer not null, offset integer not null, nbytes integer not null,
    primary key (key, kind, start)) without rowid;
create index if not exists by_node on records (node, stop);
create index if not exists by_segment on records (segment);
create table if not exists segments (id integer primary key, used real not null);
create table if not exists days (day text primary key, written integer not null);
"""

_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""The last one: our queries are correct, unless what the file says of its tables is not."""


class AnotherFormat(Exception):
    """The file is a table of another version."""


TableFailure: Final = (sqlite3.Error, AnotherFormat, UnicodeDecodeError)
"""What a table raises; the last one where SQLite's message quotes damaged bytes."""


def is_damaged(error: Exception) -> bool:
    """Whether an error says that only a new table helps."""
    if isinstance(error, sqlite3.Error):
        return error.sqlite_errorcode & 0xFF in _DAMAGED
    return isinstance(error, TableFailure)


class Table:
    """Records by key. Every method may raise a `TableFailure`, the constructor OSError, too.

    SQLite does not notice every flipped bit: a query may return rows that were not asked for, and
    those that no record can have, which are dropped.
    """

    def __init__(self, folder: Path) -> None:
        file = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.fchmod(file, 0o600)  # earlier versions left it readable
        finally:
            os.close(file)
        self._db = sqlite3.connect(folder / FILE, isolation_level=None)  # -wal, -shm as the file
        self._db.text_factory = partial(str, encoding="utf-8", errors="replace")
        try:
            self._prepare()
        except TableFailure:
            self.close()
            raise

    def _prepare(self) -> None:
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = normal")
        version = self._db.execute("pragma user_version").fetchone()[0]
        if version not in (0, FORMAT):
            raise AnotherFormat(f"format {version}")
        if version == 0:
            self._db.executescript(f"begin; {_SCHEMA} pragma user_version = {FORMAT}; commit;")

    def close(self) -> None:
        self._db.close()

    @property
    def count(self) -> int:
        """How many records there are."""
        return int(self._db.execute("select count(*) from records").fetchone()[0])

    @property
    def segments(self) -> set[int]:
        """The segments that have records."""
        return {row[0] for row in self._db.execute("select distinct segment from records")}

    def add(self, id: RecordId, place: Place, now: float, day: str) -> None:
        """Enter a record that was written at `now`, a wall-clock time in seconds."""
        row = (*astuple(id), *astuple(place))
        with self._db:
            self._db.execute("begin")
            self._db.execute(f"insert or replace into records ({_FIELDS}) values ({_MARKS})", row)
            self._db.execute("insert or replace into segments values (?, ?)", (place.segment, now))
            self._db.execute("delete from days where day <> ?", (day,))
            self._db.execute(
                "insert into days values (?, ?) on conflict do update set written = written + ?",
                (day, place.nbytes, place.nbytes),
            )

    def has(self, id: RecordId) -> bool:
        query = "select stop, node from records where key = ? and kind = ? and start = ?"
        row = self._db.execute(query, (id.key, id.kind, id.start)).fetchone()
        return bool(row == (id.stop, id.node))

    def drop(self, id: RecordId) -> None:
        query = "delete from records where key = ? and kind = ? and start = ?"
        self._db.execute(query, (id.key, id.kind, id.start))

    def drop_segment(self, segment: int) -> None:
        with self._db:
            self._db.execute("begin")
            self._db.execute("delete from records where segment = ?", (segment,))
            self._db.execute("delete from segments where id = ?", (segment,))

    def along(self, chain: TokenChain, block_tokens: int) -> Iterator[tuple[RecordId, Place]]:
        """Yield the records of prefixes of `chain`, in no order; ends where none continues."""
        for first in range(1, len(chain) + 1, block_tokens * _BATCH):
            last = min(len(chain) + 1, first + block_tokens * _BATCH)
            starts = {chain.node(end): end - 1 for end in range(first, last, block_tokens)}
            ends = self._query("select distinct node, stop from records where node in", starts)
            keys = [
                chain.key(stop)
                for node, stop in ends
                if node in starts and type(stop) is int and starts[node] < stop <= len(chain)
            ]
            if not keys:
                return
            for at in range(0, len(keys), _BATCH):
                yield from self._records(keys[at : at + _BATCH])

    def _records(self, keys: Sequence[bytes]) -> Iterator[tuple[RecordId, Place]]:
        asked = set(keys)
        for row in self._query(f"select {_FIELDS} from records where key in", asked):
            id, place = RecordId(*row[:5]), Place(*row[5:])
            if not _is_possible(id, place):
                self.drop(id)
            elif id.key in asked:
                yield id, place

    def _query(self, query: str, keys: Collection[bytes]) -> list[tuple[Any, ...]]:
        marks = ",".join("?" * len(keys))
        return self._db.execute(f"{query} ({marks})", list(keys)).fetchall()

    def use(self, segments: Iterable[int], now: float) -> None:
        """Note that segments were read at `now`, a wall-clock time in seconds."""
        query = "update segments set used = ? where id = ?"
        with self._db:
            self._db.execute("begin")
            self._db.executemany(query, [(now, segment) for segment in segments])

    def least_used(self) -> int | None:
        """Return the segment that was used least recently; of several, the newest: what it holds
        continues what the others hold.
        """
        query = "select id from segments order by used, id desc limit 1"
        row = self._db.execute(query).fetchone()
        return None if row is None else int(row[0])

    def written(self, day: str) -> int:
        """Return the bytes written on a day."""
        query = "select coalesce(sum(cast(written as integer)), 0) from days where day = ?"
        return int(self._db.execute(query, (day,)).fetchone()[0])


def _is_possible(id: RecordId, place: Place) -> bool:
    """Whether these are values of a record."""
    numbers = (id.start, id.stop, place.segment, place.offset, place.nbytes)
    if id.kind not in get_args(Kind) or type(id.key) is not bytes:
        return False
    if not all(type(number) is int for number in numbers):
        return False
    return 0 <= id.start < id.stop and min(place.segment, place.offset, place.nbytes) >= 0
