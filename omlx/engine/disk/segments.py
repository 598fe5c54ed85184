"""Append-only files of records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
