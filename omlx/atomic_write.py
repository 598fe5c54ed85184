"""Atomic replacement of files."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

SUFFIX = ".omlx-"


def replace_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file durably: readers see the old content or the new, also after a power cut.

    A link is replaced, not the file that the link points to. Raises OSError.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}{SUFFIX}", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # makes the rename durable
    finally:
        os.close(folder)
