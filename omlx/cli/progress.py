"""A bar on the terminal while a model loads; nothing where standard error is not a terminal."""

from __future__ import annotations

from typing import NoReturn

from tqdm import tqdm

from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.load_weights import LoadProgress


class LoadingBars:
    """Called with the progress of one model after another."""

    def __init__(self) -> None:
        tqdm.monitor_interval = 0  # no thread of its own
        self._bar: tqdm[NoReturn] | None = None

    def __call__(self, entry: ModelEntry, progress: LoadProgress) -> None:
        if progress.done == 0:
            self._bar = tqdm(
                desc=entry.id,
                total=progress.total,
                unit="B",
                unit_scale=True,
                disable=None,
                leave=False,
                ncols=80,
            )
        if self._bar is not None:
            self._bar.update(progress.done - self._bar.n)
            if progress.done == progress.total:
                self._bar.close()
                self._bar = None
