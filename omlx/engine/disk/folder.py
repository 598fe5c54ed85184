"""The folders of prefixes on disk: one per fingerprint, each used by one process at a time.

OMLX_HOME/cache/lock                guards the creation and removal of folders
OMLX_HOME/cache/FINGERPRINT/about   the model, for people and for staleness
                           /lock    held by the process that uses the folder
                           /…       segments and their table
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from omlx.atomic_write import replace_file

_ABOUT: Final = "about.json"
_LOCK: Final = "lock"
_NAME: Final = re.compile("[0-9a-f]{32}")
_UNUSED_S: Final = 30 * 86400.0
"""Folders that were not opened for so long are deleted."""


class Locked(Exception):
    """Another process uses the folder."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What cached prefixes of prompts to `model` depend on. Of one model and `role` only the newest
    is kept, of all those of one `format`, a fact.
    """

    model: str
    role: str
    facts: Mapping[str, str]

    @property
    def name(self) -> str:
        text = json.dumps([self.model, self.role, dict(sorted(self.facts.items()))])
        return blake2b(text.encode(), digest_size=16).hexdigest()


class CacheFolder:
    """The locked folder of one fingerprint, until `close`."""

    def __init__(self, root: Path, fingerprint: Fingerprint) -> None:
        """Create it if need be, and delete stale ones. Raises Locked, OSError."""
        self._root = root
        self.path = root / fingerprint.name
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked_root(root):
            self.path.mkdir(mode=0o700, exist_ok=True)
            self._lock = _lock(self.path)
            about = {"model": fingerprint.model, "role": fingerprint.role, **fingerprint.facts}
            try:
                replace_file(self.path / _ABOUT, json.dumps(about, indent=1).encode())
            except OSError:
                self.close()
                raise
            self._remove_stale(fingerprint)

    def close(self) -> None:
        os.close(self._lock)

    @property
    def exists(self) -> bool:
        """Whether this is still the folder that was locked."""
        try:
            return os.path.samestat(os.stat(self.path / _LOCK), os.fstat(self._lock))
        except OSError:
            return False

    def others_bytes(self) -> int:
        """Bytes of the other fingerprints."""
        return sum(_bytes_of(folder) for folder in self._others())

    def shrink_others(self, nbytes: int) -> tuple[int, int]:
        """Delete folders that no process uses, the one unused for longest first, until the others
        take `nbytes`. Return what they take, and how many they are. Raises OSError.
        """
        with _locked_root(self._root):
            sizes = {folder: _bytes_of(folder) for folder in self._others()}
            for folder in sorted(sizes, key=_opened_at):
                if sum(sizes.values()) <= nbytes:
                    break
                if _remove(folder):
                    del sizes[folder]
            return sum(sizes.values()), len(sizes)

    def _remove_stale(self, fingerprint: Fingerprint) -> None:
        for folder in self._others():
            about = _about(folder)
            replaced = (about.get("model"), about.get("role")) == (
                fingerprint.model,
                fingerprint.role,
            )
            unreadable = about.get("format") != fingerprint.facts.get("format")
            if replaced or unreadable or time.time() - _opened_at(folder) > _UNUSED_S:
                _remove(folder)

    def _others(self) -> list[Path]:
        with suppress(OSError):
            return [path for path in _folders(self._root) if path != self.path]
        return []


def remove_unused(root: Path, model: str) -> None:
    """Delete the folders of a model that no process uses."""
    with suppress(OSError), _locked_root(root):
        for folder in _folders(root):
            if _about(folder).get("model") == model:
                _remove(folder)


def _folders(root: Path) -> Iterator[Path]:
    """Yield the folders of fingerprints; `root` may hold others. Raises OSError."""
    for path in root.iterdir():
        if _NAME.fullmatch(path.name) and path.is_dir():
            yield path


def _lock(folder: Path) -> int:
    """Lock a folder. Raises Locked, OSError."""
    file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise Locked from None
    except BaseException:
        os.close(file)
        raise
    return file


@contextmanager
def _locked_root(root: Path) -> Iterator[None]:
    """Wait for other processes that create or remove folders."""
    file = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _remove(folder: Path) -> bool:
    """Delete a folder unless a process uses it. Return whether it is gone."""
    try:
        lock = _lock(folder)
    except (Locked, OSError):
        return False
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
    return not folder.exists()


def _about(folder: Path) -> dict[str, object]:
    try:
        about = json.loads((folder / _ABOUT).read_bytes())
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _opened_at(folder: Path) -> float:
    with suppress(OSError):
        return (folder / _ABOUT).stat().st_mtime
    return 0.0


def _bytes_of(folder: Path) -> int:
    total = 0
    with suppress(OSError):
        for path in folder.iterdir():
            total += path.stat().st_size
    return total
