"""The records of one model in one folder. Used by one thread of one process.

put      append to the newest segment, then enter into the table
evict    whole segments, the least recently used one first
open     segments without an entry and entries without a segment are deleted
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from datetime import date
from pathlib import Path

from omlx.engine.disk.chain import TokenChain
from omlx.engine.disk.cover import Part, longest_cover
from omlx.engine.disk.record import Damaged, Record, RecordId, decode
from omlx.engine.disk.segments import SEGMENT_BYTES, Segments
from omlx.engine.disk.table import FILE, Table, TableFailure, is_damaged
from omlx.engine.piece import Layout

log = logging.getLogger("omlx.prefix")

Failure = (OSError, *TableFailure)
"""What a missing or full disk and a damaged table raise."""


class DiskStore:
    """Every method may raise a `Failure`; the store can then be closed and opened again, with
    `begin_again` in between if its table is damaged. Opening begins again by itself.

    `records` counts what the table has; `damaged` what was dropped because of its checksum.
    """

    def __init__(self, folder: Path, block_tokens: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._block_tokens = block_tokens
        self.damaged = 0
        try:
            self._open(folder, segment_bytes)
        except Failure as error:
            if not is_damaged(error):
                raise
            begin_again(folder, error)
            self._open(folder, segment_bytes)

    def _open(self, folder: Path, segment_bytes: int) -> None:
        self._table = Table(folder)
        try:
            self._segments = Segments(folder, segment_bytes)
            self._reconcile()
            self.records = self._table.count
        except Failure:
            self._table.close()
            raise

    @property
    def nbytes(self) -> int:
        """Bytes of the segments."""
        return self._segments.nbytes

    @property
    def written_today(self) -> int:
        return self._table.written(_today())

    def close(self) -> None:
        self._segments.close()
        self._table.close()

    def has(self, id: RecordId) -> bool:
        return self._table.has(id)

    def put(self, record: Record) -> int:
        """Write a record. Return how many bytes that took."""
        place = self._segments.append(record.encode())
        self._table.add(record.id, place, time.time(), _today())
        self.records += 1
        return place.nbytes

    def find(self, chain: TokenChain, layout: Layout, longest: int) -> tuple[int, list[Part]]:
        """Return the longest prefix of at most `longest` tokens that can be read, and its parts."""
        records = list(self._table.along(chain, self._block_tokens))
        return longest_cover(records, layout, longest)

    def touch(self, parts: Iterable[Part]) -> None:
        """Note that these parts are in use."""
        self._table.use({part.place.segment for part in parts}, time.time())

    def read(self, part: Part) -> Record | None:
        """Return a record; None, once it has been dropped, if it is damaged or missing."""
        try:
            return decode(self._segments.read(part.place), part.id)
        except (Damaged, FileNotFoundError, ValueError) as error:
            self._drop(part, error)
            return None

    def shrink(self, nbytes: int) -> None:
        """Evict segments until `nbytes` are left."""
        while self.nbytes > nbytes:
            segment = self._table.least_used()
            if segment is None:
                break
            self._remove(segment)
        self.records = self._table.count

    def clear(self) -> None:
        """Delete every record."""
        for segment in list(self._segments.sizes):
            self._remove(segment)
        self.records = 0

    def _remove(self, segment: int) -> None:
        self._segments.remove(segment)  # first: on a full disk the table cannot change otherwise
        self._table.drop_segment(segment)

    def _drop(self, part: Part, error: Exception) -> None:
        self._table.drop(part.id)
        self.records -= 1
        self.damaged += 1
        fields = {"segment": part.place.segment, "at": part.place.offset, "detail": str(error)}
        if self.damaged == 1:
            log.warning("a damaged prefix on disk was dropped", extra={"fields": fields})

    def _reconcile(self) -> None:
        """Delete what the death of a process left: segments that the table does not know, and the
        other way round.
        """
        entered, there = self._table.segments, set(self._segments.sizes)
        for segment in there - entered:
            self._segments.remove(segment)
        for segment in entered - there:
            self._table.drop_segment(segment)


def begin_again(folder: Path, error: Exception) -> None:
    """Delete a damaged table, which is closed; all segments go when a new one is opened. Raises
    OSError.
    """
    log.warning(
        "the index of prefixes on disk is damaged: begun again",
        extra={"fields": {"detail": str(error)}},
    )
    for path in folder.glob(f"{FILE}*"):
        path.unlink()


def _today() -> str:
    return date.today().isoformat()
