"""Rows whose prefix comes from disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from omlx.engine.disk.fetch import Fetch
from omlx.engine.disk.run import Run
from omlx.engine.disk.tier import DiskTier

LOAD_BYTES: Final = 32 << 20
"""Bytes from disk that one step takes. To copy them takes some 10 ms, less than a chunk of a prompt
that is read beside decoding rows.
"""


class Restores:
    """Fetches by row, from `begin` until all was taken or the row is dropped."""

    def __init__(self, disk: DiskTier) -> None:
        self._disk = disk
        self._fetches: dict[int, Fetch] = {}

    def __contains__(self, row: int) -> bool:
        return row in self._fetches

    def begin(self, row: int, tokens: Sequence[int], cached: int) -> bool:
        """Look for more of a prompt than memory has, `cached` tokens. Return False if that is not
        worth it.
        """
        fetch = self._disk.fetch(tokens, cached)
        if fetch is None:
            return False
        self._fetches[row] = fetch
        return True

    def ready(self, row: int) -> bool:
        """Whether `take` has something."""
        return row in self._fetches and self._fetches[row].ready

    def take(self, row: int, nbytes: int) -> tuple[list[Run], int | None]:
        """Return the next runs, and the prefix's length with the last ones; else None."""
        fetch = self._fetches[row]
        runs = fetch.take(nbytes)
        if not fetch.ended:
            return runs, None
        del self._fetches[row]
        return runs, fetch.length

    def drop(self, row: int) -> None:
        fetch = self._fetches.pop(row, None)
        if fetch is not None:
            fetch.cancel()
