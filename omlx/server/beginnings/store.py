"""Beginnings that return, on disk: private, bounded, forgotten after 30 days without use.

One file holds those of all models, beside the prefixes, and is written by a thread every few
seconds. Several servers of one home write it in turns: each applies what changed to what the file
has. What cannot be read or written is a warning in the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeAlias

from omlx.atomic_write import replace_file
from omlx.errors import ConfigError
from omlx.server.beginnings.beginning import Beginning
from omlx.settings.file import locked

FILE: Final = "beginnings.json"
MAX_BEGINNINGS: Final = 64
MAX_CHARACTERS: Final = 8 << 20
"""Of all beginnings."""

MAX_AGE_S: Final = 30 * 86400.0
RETURNS: Final = 2
"""Conversations from which on a beginning returns."""

log = logging.getLogger("omlx.prefix")


@dataclass(frozen=True, slots=True)
class Known:
    """A beginning of a model's prompts: how many conversations had it, the program of the newest
    request (its User-Agent) and the time, in seconds since the epoch.
    """

    model: str
    beginning: Beginning
    conversations: int = 0
    client: str = ""
    used_at: float = 0.0

    @property
    def returns(self) -> bool:
        return self.conversations >= RETURNS


Beginnings: TypeAlias = dict[tuple[str, str], Known]
"""By model, and key of the beginning."""


@dataclass(slots=True)
class Changes:
    """What the file lacks: the models of which all was `forgotten`, then what was `noted`, with the
    conversations since.
    """

    forgotten: set[str] = field(default_factory=set)
    noted: Beginnings = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.forgotten or self.noted)

    def forget(self, model: str) -> None:
        self.forgotten.add(model)
        self.noted = _without({model}, self.noted)

    def applied_to(self, known: Beginnings) -> Beginnings:
        """Return what `known` becomes; does not modify it."""
        changed = _without(self.forgotten, known)
        for one in self.noted.values():
            _add(changed, one)
        return changed

    def followed_by(self, later: Changes) -> Changes:
        return Changes(self.forgotten | later.forgotten, later.applied_to(self.noted))


class BeginningStore:
    """`wall` is the time of day in seconds. Any thread may call."""

    def __init__(self, path: Path, wall: Callable[[], float] = time.time) -> None:
        self._path = path
        self._wall = wall
        self._known: Beginnings = {}
        """What the file had, with the changes since."""
        self._changes = Changes()
        self._lock = Lock()
        """Guards what is known, and the changes."""
        self._file_lock = Lock()
        self._logged = ""

    def note(self, model: str, beginning: Beginning, client: str, conversations: int) -> None:
        """Record a request, which begins so many new conversations."""
        known = Known(model, beginning, conversations, client, self._wall())
        with self._lock:
            for beginnings in (self._known, self._changes.noted):
                _add(beginnings, known)
                self._shrink(beginnings)

    def returning(self, model: str) -> Sequence[Known]:
        """Return a model's beginnings that return, the one used last first."""
        with self._lock:
            known = [one for one in self._known.values() if one.model == model and one.returns]
        return sorted(known, key=lambda one: one.used_at, reverse=True)

    def forget(self, model: str) -> None:
        """Delete a model's beginnings, on disk too."""
        with self._lock:
            self._known = _without({model}, self._known)
            self._changes.forget(model)
        self.flush()

    def read(self) -> None:
        """Read the file."""
        with self._file_lock:
            try:
                self._become(self._stored())
            except OSError as error:
                self._warn("beginnings of prompts not read", error)

    async def flush_every(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Write what has changed; what cannot be written is kept for the next time."""
        with self._file_lock:
            with self._lock:
                changes, self._changes = self._changes, Changes()
            if not changes:
                return
            try:
                with locked(self._path.parent):
                    known = changes.applied_to(self._stored())
                    self._shrink(known)
                    content = json.dumps([*map(_record, known.values())], ensure_ascii=True)
                    replace_file(self._path, content.encode())
            except (OSError, ConfigError) as error:
                with self._lock:
                    self._changes = changes.followed_by(self._changes)
                self._warn("beginnings of prompts not written", error)
                return
            self._become(known)
            self._logged = ""

    def _become(self, stored: Beginnings) -> None:
        """Know what the file has; other servers may have written it."""
        with self._lock:
            self._known = self._changes.applied_to(stored)
            self._shrink(self._known)

    def _stored(self) -> Beginnings:
        """Read the file; what is damaged is begun again. Raises OSError."""
        try:
            known = [_known(record) for record in json.loads(self._path.read_bytes())]
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            self._warn("beginnings of prompts not read", error)
            return {}
        return {(one.model, one.beginning.key): one for one in known}

    def _shrink(self, known: Beginnings) -> None:
        """Forget the beginnings that were not used for longest, and those that are too old."""
        oldest = self._wall() - MAX_AGE_S
        newest = sorted(known.items(), key=lambda item: item[1].used_at, reverse=True)
        known.clear()
        characters = 0
        for name, one in newest[:MAX_BEGINNINGS]:
            characters += len(one.beginning.text)
            if one.used_at < oldest or characters > MAX_CHARACTERS:
                break
            known[name] = one

    def _warn(self, message: str, error: Exception) -> None:
        """Log a warning, once while it stays the same."""
        details = {"file": str(self._path), "detail": str(error)}
        if (warning := f"{message} {error}") != self._logged:
            log.warning(message, extra={"fields": details})
        self._logged = warning


def _add(known: Beginnings, noted: Known) -> None:
    """Add conversations to what is known of a beginning."""
    name = noted.model, noted.beginning.key
    before = known.get(name, replace(noted, conversations=0))
    newest = max(before, noted, key=lambda one: one.used_at)
    known[name] = replace(newest, conversations=before.conversations + noted.conversations)


def _without(models: Container[str], known: Beginnings) -> Beginnings:
    return {name: one for name, one in known.items() if one.model not in models}


def _record(known: Known) -> dict[str, Any]:
    return {
        "model": known.model,
        "beginning": json.loads(known.beginning.text),
        "conversations": known.conversations,
        "client": known.client,
        "used_at": known.used_at,
    }


def _known(record: dict[str, Any]) -> Known:
    """Raises KeyError, TypeError or ValueError for what `_record` has not made."""
    return Known(
        model=str(record["model"]),
        beginning=Beginning.read(record["beginning"]),
        conversations=int(record["conversations"]),
        client=str(record["client"]),
        used_at=float(record["used_at"]),
    )
