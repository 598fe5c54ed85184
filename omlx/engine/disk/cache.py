"""All prefixes on disk: one worker for each fingerprint that is in use."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from omlx.engine.disk.budget import DiskBudget
from omlx.engine.disk.folder import Fingerprint, remove_unused
from omlx.engine.disk.tier import DiskTier, Worth
from omlx.engine.disk.worker import DiskWorker
from omlx.engine.piece import Layout

WORTH: Final = Worth()

HAND_OVER_S: Final = 2.0
WRITE_S: Final = 3.0
"""Seconds that the end of the server may wait, for each model."""


class DiskCache:
    """Opens and closes tiers in folders below `root`. `wake` has the engine thread look again.

    Only the engine thread may call, except for `join` and `remove`.
    """

    def __init__(
        self, root: Path, budget: DiskBudget, wake: Callable[[], None], worth: Worth = WORTH
    ) -> None:
        self._root = root
        self._worth = worth
        self._budget = budget
        self._wake = wake
        self._workers: dict[str, DiskWorker] = {}
        self._users: dict[str, int] = {}
        self._tiers: list[DiskTier] = []

    def open(self, fingerprint: Fingerprint, layout: Layout, block_tokens: int) -> DiskTier:
        """Return a tier of its own; tiers of one fingerprint share a worker."""
        name = fingerprint.name
        if not self._users.get(name):
            self._workers[name] = DiskWorker(
                self._root,
                fingerprint,
                layout,
                block_tokens,
                self._budget,
                self._wake,
                after=self._workers.get(name),
            )
        self._users[name] = self._users.get(name, 0) + 1

        def close() -> None:
            self._tiers.remove(tier)
            self._users[name] -= 1
            if not self._users[name]:
                self._workers[name].close()

        tier = DiskTier(self._workers[name], block_tokens, self._worth, close)
        self._tiers.append(tier)
        return tier

    def close(self) -> None:
        """Hand over what waits to be written, and close every tier."""
        for tier in [*self._tiers]:
            tier.hand_over(HAND_OVER_S)
            tier.close()

    def join(self, seconds: float = math.inf) -> None:
        """Wait until what was handed over is written, at most so many seconds. Requires that the
        engine thread has ended, be it that it died or hung before it could close the tiers. Any
        thread may call.
        """
        until = time.monotonic() + seconds
        for worker in self._workers.values():
            worker.close()
        for worker in self._workers.values():
            worker.join(max(0.0, min(WRITE_S, until - time.monotonic())))

    def remove(self, model: str) -> None:
        """Delete the prefixes of a model that no process has loaded. Any thread may call."""
        remove_unused(self._root, model)
