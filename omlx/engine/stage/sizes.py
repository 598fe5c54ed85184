"""The caches of a model in stages, as the memory guard counts them. Pure Python.

This rank holds a part of each cache, perhaps the smallest. So caches are measured by a layout under
which a cache that fits here fits on every rank, and what this process does not hold of it counts as
reserved.
"""

from __future__ import annotations

from collections.abc import Callable

from omlx.engine.memory.guard import stepped
from omlx.engine.piece import Layout


class StageSizes:
    """`CacheSizes` by arithmetic: `length` returns the tokens of a row, `own` is the layout of this
    rank's layers, `whole` the one for all ranks.
    """

    def __init__(self, length: Callable[[int], int], own: Layout, whole: Layout) -> None:
        self._length = length
        self._whole = whole
        pairs = (
            (own.row_bytes, whole.row_bytes),
            (own.window_bytes, whole.window_bytes),
            (own.state_bytes, whole.state_bytes),
        )
        self.unseen = max(1 - held / nbytes if nbytes else 0.0 for held, nbytes in pairs)

    def row_bytes(self, row: int) -> int:
        length = self._length(row)
        return self._whole.cache_bytes(stepped(length)) if length else 0
