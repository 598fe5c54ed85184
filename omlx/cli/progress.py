"""Progress bars on standard error, with speed and time left; silent where that is no terminal."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, NoReturn

from tqdm import tqdm

from omlx.models.catalog.discovery import hub_root
from omlx.models.hub.job import Job
from omlx.terminal_text import escaped

if TYPE_CHECKING:
    from omlx.models.catalog.registry import ModelEntry
    from omlx.models.pool.opening import LoadProgress

_POLL_S: Final = 0.25


class LoadingBars:
    """Progress bar of a loading model."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None

    def __call__(self, entry: ModelEntry, progress: LoadProgress) -> None:
        if progress.done == 0:
            self._bar = _bar(entry.id, progress.total)
        if self._bar is not None:
            self._bar.update(progress.done - self._bar.n)
            if progress.done == progress.total:
                self._bar.close()
                self._bar = None


class DownloadBar:
    """Progress bar of a download during a `with` block, over the bytes of all files.

    Follows the record of the download and the files on disk, in a thread.
    """

    def __init__(self, home: Path, repository: str) -> None:
        self._repository = repository
        self._job = Job(home, repository)
        self._ended = Event()
        self._thread = Thread(target=self._follow, name="omlx-progress", daemon=True)

    def __enter__(self) -> DownloadBar:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        bar: tqdm[NoReturn] | None = None
        cache = hub_root(os.environ)
        while not self._ended.wait(_POLL_S):
            record = self._job.read()
            if record is None or not record.files:  # the hub has not answered yet
                continue
            done = record.done_bytes(cache, self._job.parts)
            if bar is None:
                bar = _bar(self._repository, record.total_bytes, done)
            bar.update(done - bar.n)
        if bar is not None:
            bar.close()


def _bar(name: str, total: int, done: int = 0) -> tqdm[NoReturn]:
    tqdm.monitor_interval = 0  # no thread of its own
    return tqdm(
        desc=escaped(name),
        total=total,
        initial=done,
        unit="B",
        unit_scale=True,
        disable=None,
        leave=False,
        smoothing=0.05,  # files grow by pieces of 10 MB
        ncols=80,
    )
