"""The records of one model in one folder: append-only files, and a table in SQLite that finds them.

put      append to the newest segment, then enter into the table
evict    whole segments, the least recently used one first
open     segments without an entry and entries without a segment are deleted

A record is entered after it was written, so after the death of the process the table may lack
records, but has none that does not exist. Every method may raise a `Failure`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, Final, get_args

from omlx.engine.disk.record import (
    FORMAT,
    Buffer,
    Damaged,
    Part,
    Place,
    Record,
    RecordId,
    TokenChain,
    decode,
    longest_cover,
)
from omlx.engine.piece import Kind, Layout
from omlx.storage import Database, Schema

SEGMENT_BYTES: Final = 64 << 20
"""At this size a file is closed and the next one begun. Files are evicted as a whole."""

_SUFFIX: Final = ".records"

FILE: Final = "index.sqlite"

SCHEMA: Final = Schema(
    "the index of prefixes on disk",
    version=FORMAT,
    script="""
create table records (
    key blob not null, kind text not null, start integer not null, stop integer not null,
    node blob not null, segment integer not null, offset integer not null, nbytes integer not null,
    primary key (key, kind, start)) without rowid;
create index by_node on records (node, stop);
create index by_segment on records (segment);
create table segments (id integer primary key, used real not null);
create table days (day text primary key, written integer not null)
""",
)

_FIELDS: Final = "kind, start, stop, key, node, segment, offset, nbytes"
_RECORD: Final = "key = ? and kind = ? and start = ?"
_BATCH: Final = 256
"""Keys in one query."""

log = logging.getLogger("omlx.prefix")


class Segments:
    """The files of one folder, numbered from 1. `sizes` are their bytes, by number.

    A new process begins a new file: the end of the last one may be torn.
    """

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self.sizes: dict[int, int] = {}
        for path in folder.glob(f"*{_SUFFIX}"):
            if path.stem.isdecimal():
                self.sizes[int(path.stem)] = path.stat().st_size
        self._newest = max(self.sizes, default=0)
        self._file: int | None = None

    def append(self, parts: Sequence[Buffer]) -> Place:
        """Write a record behind the newest one; after an error the next one gets a new file."""
        if self._file is None or self.sizes[self._newest] >= self._segment_bytes:
            self._begin()
        assert self._file is not None
        offset = self.sizes[self._newest]
        try:
            for part in parts:
                view = memoryview(part)
                while len(view):
                    count = os.write(self._file, view)
                    self.sizes[self._newest] += count
                    view = view[count:]
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

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:08d}{_SUFFIX}"


class DiskStore(Database):
    """Records in segments, and their table. `records` counts those of the table; `damaged` those
    dropped for their checksum.

    SQLite does not notice every flipped bit: a query may return rows that were not asked for, and
    those that no record can have, which are dropped.
    """

    def __init__(self, folder: Path, block_tokens: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        super().__init__(folder / FILE, SCHEMA)
        self._block_tokens = block_tokens
        self._segments = Segments(folder, segment_bytes)
        self.damaged = 0
        self.run(lambda: self.db)

    def prepare(self) -> None:
        """Delete the remains of a killed process: segments without records in the table, and
        records without a segment.
        """
        there = set(self._segments.sizes)
        entered = {row[0] for row in self.db.execute("select distinct segment from records")}
        for segment in there - entered:
            self._segments.remove(segment)
        for segment in entered - there:
            self._forget(segment)
        self._count()

    @property
    def nbytes(self) -> int:
        return sum(self._segments.sizes.values())

    @property
    def written_today(self) -> int:
        query = "select coalesce(sum(cast(written as integer)), 0) from days where day = ?"
        return int(self.db.execute(query, (_today(),)).fetchone()[0])

    def close(self) -> None:
        self._segments.close()
        self.disconnect()

    def has(self, id: RecordId) -> bool:
        query = f"select stop, node from records where {_RECORD}"
        row = self.db.execute(query, (id.key, id.kind, id.start)).fetchone()
        return bool(row == (id.stop, id.node))

    def put(self, record: Record) -> None:
        place, now, day = self._segments.append(record.encode()), time.time(), _today()
        enter = f"insert or replace into records ({_FIELDS}) values (?, ?, ?, ?, ?, ?, ?, ?)"
        count = "insert into days values (?, ?) on conflict do update set written = written + ?"
        with self.transaction() as db:
            db.execute(enter, (*record.id, *place))
            db.execute("insert or replace into segments values (?, ?)", (place.segment, now))
            db.execute("delete from days where day <> ?", (day,))
            db.execute(count, (day, place.nbytes, place.nbytes))
        self.records += 1

    def find(self, chain: TokenChain, layout: Layout, longest: int) -> tuple[int, list[Part]]:
        """Return the longest prefix of at most `longest` tokens that can be read, and its parts."""
        return longest_cover([*self._along(chain)], layout, longest)

    def touch(self, parts: Iterable[Part]) -> None:
        """Note that these parts are in use."""
        used = {part.place.segment for part in parts}
        with self.transaction() as db:
            query = "update segments set used = ? where id = ?"
            db.executemany(query, [(time.time(), segment) for segment in used])

    def read(self, part: Part) -> Record | None:
        """Return a record; None, once it has been dropped, if it is damaged or missing."""
        try:
            return decode(self._segments.read(part.place), part.id)
        except (Damaged, FileNotFoundError, ValueError) as error:
            self._drop(part.id)
            self.records -= 1
            self.damaged += 1
            place = {"segment": part.place.segment, "at": part.place.offset}
            if self.damaged == 1:
                fields = {**place, "detail": str(error)}
                log.warning("a damaged prefix on disk was dropped", extra={"fields": fields})
            return None

    def shrink(self, nbytes: int) -> None:
        """Evict segments until `nbytes` are left. Of segments that were used at the same time, the
        newest goes first: what it holds continues what the others hold.
        """
        while self.nbytes > nbytes:
            query = "select id from segments order by used, id desc limit 1"
            row = self.db.execute(query).fetchone()
            if row is None:
                break
            self._remove(int(row[0]))
        self._count()

    def clear(self) -> None:
        for segment in list(self._segments.sizes):
            self._remove(segment)
        self.records = 0

    def _count(self) -> None:
        self.records = int(self.db.execute("select count(*) from records").fetchone()[0])

    def _remove(self, segment: int) -> None:
        self._segments.remove(segment)  # first: on a full disk the table cannot change otherwise
        self._forget(segment)

    def _forget(self, segment: int) -> None:
        with self.transaction() as db:
            db.execute("delete from records where segment = ?", (segment,))
            db.execute("delete from segments where id = ?", (segment,))

    def _drop(self, id: RecordId) -> None:
        self.db.execute(f"delete from records where {_RECORD}", (id.key, id.kind, id.start))

    def _along(self, chain: TokenChain) -> Iterator[tuple[RecordId, Place]]:
        """Yield the records of prefixes of `chain`, in no order; ends where none continues."""
        block = self._block_tokens
        for first in range(1, len(chain) + 1, block * _BATCH):
            last = min(len(chain) + 1, first + block * _BATCH)
            starts = {chain.node(end): end - 1 for end in range(first, last, block)}
            ends = self._query("select distinct node, stop from records where node in", starts)
            keys = [
                chain.key(stop)
                for node, stop in ends
                if node in starts and type(stop) is int and starts[node] < stop <= len(chain)
            ]
            if not keys:
                return
            for at in range(0, len(keys), _BATCH):
                yield from self._records(set(keys[at : at + _BATCH]))

    def _records(self, keys: Collection[bytes]) -> Iterator[tuple[RecordId, Place]]:
        for row in self._query(f"select {_FIELDS} from records where key in", keys):
            id, place = RecordId(*row[:5]), Place(*row[5:])
            if not _is_possible(id, place):
                self._drop(id)
            elif id.key in keys:
                yield id, place

    def _query(self, query: str, keys: Collection[bytes]) -> list[tuple[Any, ...]]:
        marks = ",".join("?" * len(keys))
        return self.db.execute(f"{query} ({marks})", list(keys)).fetchall()


def _today() -> str:
    return date.today().isoformat()


def _is_possible(id: RecordId, place: Place) -> bool:
    """Whether these are values of a record."""
    if id.kind not in get_args(Kind) or type(id.key) is not bytes:
        return False
    if not all(type(number) is int for number in (id.start, id.stop, *place)):
        return False
    return 0 <= id.start < id.stop and min(place) >= 0
