"""Output for people: aligned columns, sizes as on the dashboard, progress bars.

Bars are on standard error, with speed and time left; silent where that is no terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, NoReturn

from tqdm import tqdm

from omlx.admin.web.formats import THIN, disk, memory
from omlx.catalog import escaped, sentence
from omlx.models.catalog.discovery import hub_root
from omlx.models.catalog.reference import MissingDraft
from omlx.models.hub.job import Job

if TYPE_CHECKING:
    from omlx.models.catalog.registry import ModelEntry
    from omlx.models.pool.opening import LoadProgress


def columns(rows: Sequence[tuple[str, ...]], head: Sequence[str] = ()) -> str:
    """Return the rows with aligned cells, below `head`; rows may differ in length.

    Control characters are escaped: folder names and config fields are untrusted text.
    """
    if not rows:
        return ""
    rows = [tuple(map(escaped, row)) for row in (head, *rows)]
    count = max(map(len, rows), default=0)
    padded = [row + ("",) * (count - len(row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*padded, strict=True)]
    lines = []
    for row in padded:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip() + "\n")
    if head:
        lines[0] = styled(lines[0].rstrip(), BOLD) + "\n"
    return "".join(lines if head else lines[1:])


def say(code: str, **params: object) -> None:
    """Write a sentence of the catalog to standard output, at once."""
    sys.stdout.write(sentence(code, params) + "\n")
    sys.stdout.flush()


def warn(code: str, **params: object) -> None:
    """Write a sentence of the catalog to standard error, behind the program's name."""
    sys.stderr.write(f"omlx: {sentence(code, params)}\n")


BOLD: Final = "1"
DIM: Final = "2"
UNDERLINE: Final = "4"
YELLOW: Final = "33"
_RESET: Final = "\x1b[0m"


def styled(text: str, style: str) -> str:
    """Return `text` in an ANSI style where standard output is a terminal with colours."""
    if not text or not has_colours():
        return text
    return f"\x1b[{style}m{text}{_RESET}"


def has_colours() -> bool:
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def size(nbytes: int) -> str:
    """Return the bytes of files as the dashboard writes them: `17 GB`."""
    return str(disk(nbytes)).replace(THIN, " ")


def memory_size(nbytes: int) -> str:
    """Return bytes of memory as the dashboard writes them, in units of 1,024."""
    return str(memory(nbytes)).replace(THIN, " ")


def download_hint(missing: MissingDraft) -> str:
    """Return a sentence with a missing draft's download command and size."""
    known = "?"
    if missing.size_bytes is not None:
        known = size(missing.size_bytes)
    return sentence("cli.package.wanted", {"draft": str(missing.reference), "size": known})


_POLL_S: Final = 0.25


class LoadingBars:
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
