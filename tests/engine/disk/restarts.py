"""Engine loops with prefixes on disk, one after another: what a restart of the server leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mlx import nn

from omlx.engine.disk.folder import DiskBudget, Fingerprint
from omlx.engine.disk.tier import DiskCache, DiskThresholds
from omlx.engine.types import Request
from tests.engine.harness import LIMITS, Bench, facts, loop_of

PATIENCE_S = 60
LONG = replace(LIMITS, context_length=4096)


class DiskBench(Bench):
    """A bench that waits for the disk where there is no other work."""

    def __init__(self, loop, woken: threading.Event) -> None:
        super().__init__(loop)
        self._woken = woken

    def until(self, reached: Callable[[], bool]) -> DiskBench:
        while not reached():
            self._woken.clear()
            if self.loop.has_work:
                self.step()
            else:
                assert self._woken.wait(PATIENCE_S), "the disk does not answer"
        return self

    def wait(self, arrived: Callable[[], bool]) -> None:
        """Wait for the disk without a step."""
        self._woken.clear()
        while not arrived():
            assert self._woken.wait(PATIENCE_S), "the disk does not answer"
            self._woken.clear()

    def written(self) -> DiskBench:
        """Wait until all that was handed to the disk is on it."""
        for disk in self.loop.disks:
            worker = disk.worker
            with worker._changed:
                assert worker._changed.wait_for(lambda w=worker: not w._waiting, PATIENCE_S)
        return self

    def run(self, *requests: Request) -> DiskBench:
        """Submit, and step until every request has ended and all is handed to the disk."""
        self.submit(*requests)
        scheduler = self.loop.scheduler
        rows = [*scheduler.running, *scheduler.queue.waiting]
        names = {row.request.id for row in rows}
        ended = (self.finished, self.failed)
        return self.until(lambda: names <= {*ended[0], *ended[1]} and not self.loop.has_work)


@contextmanager
def started(
    family: str,
    root: Path,
    draft: nn.Module | None = None,
    limits=LONG,
    budget: DiskBudget = DiskBudget(1 << 30),  # noqa: B008 — frozen
    thresholds: DiskThresholds = DiskThresholds(8, 8),  # noqa: B008 — frozen
) -> Iterator[DiskBench]:
    """A loop over the tiny model `family` whose prefixes are stored below `root`; at the end of the
    block they are on disk."""
    woken = threading.Event()
    disks = DiskCache(root, budget, woken.set, thresholds)
    known = facts(family)
    tier = disks.open(Fingerprint(family, "target", {}), known.layout, limits.block_tokens)
    draft_tier = None
    if draft is not None:  # of the same architecture: its caches have the same layout
        fingerprint = Fingerprint(family, "draft", {})
        draft_tier = disks.open(fingerprint, known.layout, limits.block_tokens)
    bench = DiskBench(loop_of(family, draft, limits=limits, disks=(tier, draft_tier)), woken)
    try:
        yield bench
    finally:
        disks.close()
        bench.written()
        disks.join()
