"""Stamps of folders: show, without reading a file, that one of its files has changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from omlx.settings.file import FileStamp, file_stamp

FolderStamp: TypeAlias = tuple[tuple[str, FileStamp], ...]


def folder_stamp(folder: Path) -> FolderStamp:
    """Return the stamps of all files in a folder; none for a missing folder."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ()
    return tuple((name, file_stamp(os.path.join(folder, name))) for name in names)
