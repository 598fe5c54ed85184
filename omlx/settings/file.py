"""JSON files of omlx, marked as such by their `format`.

A file without the mark belongs to another program: such a file counts as missing and is never
written or moved. An unparsable marked file is reported, and renamed before another takes its place.
Files are replaced atomically: a reader, or a power cut, finds the old content or the new.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from omlx.errors import ConfigError
from omlx.storage import TEMPORARY, replace_file

FORMAT: Final = "omlx-config/1"
_MARK = re.compile(rb'"format"\s*:\s*"(omlx-config/[^"]*)"')
log = logging.getLogger("omlx.settings")

FileStamp: TypeAlias = tuple[int, int, int, int] | None
"""Inode, size, modification and change time: show a change without reading the file."""


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a file; `note` is the reason why an existing file is ignored.

    An ignored file is `foreign` (of another program, or of another version) or broken.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    note: ConfigError | None = None
    foreign: bool = False

    @property
    def broken(self) -> bool:
        return self.note is not None and not self.foreign


def read(path: Path, *, held: bool = False) -> Content:
    """Read a file. Raises ConfigError if the file exists and cannot be opened.

    `held`: the caller is inside `locked`, hence no other process is writing the file now. An
    unparsable marked file is then renamed to `*.corrupt-<time>`, and logged.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return Content()
    except OSError as error:
        raise _error("config.unreadable", path, error) from error
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError) as error:
        if _MARK.search(raw) is None:
            return _foreign("config.foreign", path)
        params = {"file": str(path), "detail": str(error)}
        if not held:
            return Content(note=ConfigError("config.broken", **params))
        kept = _set_aside(path)
        return Content(note=ConfigError("config.corrupt", **params, kept=str(kept)))
    mark = values.get("format") if isinstance(values, dict) else None
    if mark == FORMAT:
        return Content({key: value for key, value in values.items() if key != "format"})
    if isinstance(mark, str) and mark.startswith("omlx-config/"):
        return _foreign("config.other_format", path, format=mark)
    return _foreign("config.foreign", path)


def write(path: Path, values: Mapping[str, Any]) -> None:
    """Replace a file of omlx, or create it; call inside `locked`. Raises ConfigError.

    The folder is made private. For a link, the target is replaced, and the target's folder keeps
    its mode.
    """
    try:
        path.parent.chmod(0o700)
        target = path.resolve()
        interrupted = f".{target.name}{TEMPORARY}*"
        for leftover in target.parent.glob(interrupted):
            leftover.unlink()
        text = json.dumps({"format": FORMAT, **values}, indent=2, ensure_ascii=False) + "\n"
        # Lone surrogates, as in file names, are escaped like in JSON.
        replace_file(target, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise _error("config.unwritable", path, error) from error


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Lock the files in `home`, which is created if missing, against other processes.

    Raises ConfigError.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(home, os.O_RDONLY)
    except OSError as error:
        raise _error("config.unwritable", home, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def file_stamp(path: Path | str) -> FileStamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _error(code: str, path: Path, error: OSError) -> ConfigError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        code = "config.disk_full"
    return ConfigError(code, file=str(path), detail=error.strerror or str(error))


def _foreign(code: str, path: Path, **params: str) -> Content:
    return Content(note=ConfigError(code, file=str(path), **params), foreign=True)


def _set_aside(path: Path) -> Path:
    free = renamed = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}")
    number = 1
    while free.exists():
        number += 1
        free = renamed.with_name(f"{renamed.name}-{number}")
    try:
        path.rename(free)
    except OSError:
        return path  # a read-only folder: the file keeps its name
    log.warning("%s kept aside", path.name, extra={"fields": {"kept": str(free)}})
    return free
