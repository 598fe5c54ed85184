"""Output for people: aligned columns, sizes, progress bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from tqdm import tqdm

from omlx.catalog import sentence
from omlx.models.catalog.reference import MissingDraft
from omlx.terminal_text import escaped

if TYPE_CHECKING:
    from omlx.models.catalog.registry import ModelEntry
    from omlx.models.pool.opening import LoadProgress


def columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Return the rows with aligned cells; rows may differ in length.

    Control characters are escaped: folder names and config fields are untrusted text.
    """
    rows = [tuple(map(escaped, row)) for row in rows]
    count = max(map(len, rows), default=0)
    padded = [row + ("",) * (count - len(row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*padded, strict=True)]
    lines = []
    for row in padded:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


def size(size_bytes: int) -> str:
    """Return a size in decimal megabytes or gigabytes."""
    if size_bytes >= 1e8:
        return f"{size_bytes / 1e9:.1f} GB"
    return f"{size_bytes / 1e6:.1f} MB"


class LoadingBars:
    """Progress bar of a loading model; silent if standard error is no terminal."""

    def __init__(self) -> None:
        tqdm.monitor_interval = 0  # no thread of its own
        self._bar: tqdm[NoReturn] | None = None

    def __call__(self, entry: ModelEntry, progress: LoadProgress) -> None:
        if progress.done == 0:
            self._bar = tqdm(
                desc=escaped(entry.id),
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


def download_hint(missing: MissingDraft) -> str:
    """Return a sentence with a missing draft's download command and size."""
    known = "?"
    if missing.size_bytes is not None:
        known = size(missing.size_bytes)
    return sentence("cli.package.wanted", {"draft": str(missing.reference), "size": known})
