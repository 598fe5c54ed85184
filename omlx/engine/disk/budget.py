"""How many bytes prefixes may take on disk."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omlx.errors import Reason

MAX_BYTES: Final = 30 << 30
MIN_FREE: Final = 10 << 30

DAILY: Final = 3
"""Budgets that may be written a day: 90 GiB at most unless configured. An SSD of 1 TB is made for
some 300 GB a day over five years.
"""


@dataclass(frozen=True, slots=True)
class DiskBudget:
    """`size` is what the user allows in bytes. None: a quarter of what is free, up to `MAX_BYTES`;
    below `MIN_FREE` nothing is written.
    """

    size: int | None = None

    def of(self, root: Path, taken: int) -> tuple[int, Reason | None]:
        """Return the bytes that all folders in `root` may take, which take `taken` now, and why
        nothing may be written, if so. Raises OSError.
        """
        free = shutil.disk_usage(root).free
        if self.size is not None:
            return min(self.size, free + taken), None
        room = min(MAX_BYTES, (free + taken) // 4)
        if free < MIN_FREE:
            return room, Reason(
                "prefix.disk.off.space", {"free": free >> 20, "least": MIN_FREE >> 20}
            )
        return room, None
