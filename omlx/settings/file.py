"""One JSON file that belongs to omlx: it says so itself, in its `format`.

A file without that mark is someone else's: read as if it were not there, never written, moved or
parsed further. A file with the mark that cannot be read any more is reported, and kept aside before
another takes its place. A file is replaced as a whole (written beside itself, synced, renamed), so
that a reader, or a power cut, meets the old content or the new one.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from omlx.atomic_write import SUFFIX, replace_file
from omlx.errors import ConfigError

FORMAT: Final = "omlx-config/1"
_MARK = re.compile(rb'"format"\s*:\s*"(omlx-config/[^"]*)"')
log = logging.getLogger("omlx.settings")

FileStamp: TypeAlias = tuple[int, int, int, int] | None
"""Inode, size, modification and change time: shows without reading a file that it has changed."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds; `note` says why that is nothing, if it is not simply missing: it is
    `foreign`, or `broken`.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    note: ConfigError | None = None
    foreign: bool = False

    @property
    def broken(self) -> bool:
        return self.note is not None and not self.foreign


def read(path: Path, *, held: bool = False) -> Content:
    """The object in a file. Raises ConfigError if the file is there and cannot be opened.

    `held`: the caller is inside `locked`. Then one of ours that cannot be parsed is renamed to
    `*.corrupt-<time>`, and the log says so.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return Content()
    except OSError as error:
        raise ConfigError(
            "config.unreadable", file=str(path), detail=error.strerror or str(error)
        ) from error
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError) as error:
        if _MARK.search(raw) is None:
            return _foreign(path)
        if not held:  # somebody may be writing it
            return Content(note=ConfigError("config.broken", file=str(path), detail=str(error)))
        kept = _keep_aside(path)
        return Content(
            note=ConfigError("config.corrupt", file=str(path), detail=str(error), kept=str(kept))
        )
    said = values.get("format") if isinstance(values, dict) else None
    if said == FORMAT:
        return Content({key: value for key, value in values.items() if key != "format"})
    if isinstance(said, str) and said.startswith("omlx-config/"):
        return Content(
            note=ConfigError("config.other_format", file=str(path), format=said), foreign=True
        )
    return _foreign(path)


def write(path: Path, values: Mapping[str, Any]) -> None:
    """Replace the file, which must be ours or not there yet; call it inside `locked`. Raises
    ConfigError.

    The folder is closed to others. Where the file is a link, what it leads to is replaced, in a
    folder left as it is.
    """
    try:
        path.parent.chmod(0o700)
        target = path.resolve()
        text = json.dumps({"format": FORMAT, **values}, indent=2, ensure_ascii=False) + "\n"
        _remove_leftovers(target)
        # escapes as JSON does what is not Unicode text, such as a file name
        replace_file(target, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise ConfigError(
            "config.unwritable", file=str(path), detail=error.strerror or str(error)
        ) from error


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Keep other processes from changing files in `home`, which is made if it is missing. Raises
    ConfigError.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = os.open(home, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(
            "config.unwritable", file=str(home), detail=error.strerror or str(error)
        ) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def file_stamp(path: Path) -> FileStamp:
    """Return the stamp of a file; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _foreign(path: Path) -> Content:
    return Content(note=ConfigError("config.foreign", file=str(path)), foreign=True)


def _keep_aside(path: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (
        path.with_name(f"{path.name}.corrupt-{stamp}{more}")
        for more in ("", *(f"-{n}" for n in range(2, 1000)))
    )
    kept = next(name for name in names if not name.exists())
    with suppress(OSError):  # in a folder that cannot be written, it stays where it is
        path.rename(kept)
        log.warning("%s kept aside", path.name, extra={"fields": {"kept": str(kept)}})
        return kept
    return path


def _remove_leftovers(target: Path) -> None:
    """Remove what an interrupted write left behind; call it inside `locked`."""
    for leftover in target.parent.glob(f".{target.name}{SUFFIX}*"):
        leftover.unlink()
