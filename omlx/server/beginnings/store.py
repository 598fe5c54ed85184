"""Beginnings that return, on disk: private, bounded, forgotten after 30 days without use.

One file holds those of all models, beside the prefixes, and is written by a thread every few
seconds. What cannot be read or written is a warning in the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

from omlx.atomic_write import replace_file
from omlx.server.beginnings.beginning import Beginning

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


class BeginningStore:
    """`wall` is the time of day in seconds. Any thread may call."""

    def __init__(self, path: Path, wall: Callable[[], float] = time.time) -> None:
        self._path = path
        self._wall = wall
        self._known: dict[tuple[str, str], Known] = {}
        self._changed = False
        self._lock = Lock()
        """Guards what is known."""
        self._file_lock = Lock()

    def note(self, model: str, beginning: Beginning, client: str, conversations: int) -> None:
        """Record a request, which begins so many new conversations."""
        name = model, beginning.key
        with self._lock:
            before = self._known.pop(name, Known(model, beginning))
            count = before.conversations + conversations
            self._known[name] = replace(
                before, conversations=count, client=client, used_at=self._wall()
            )
            self._shrink()
            self._changed = True

    def returning(self, model: str) -> Sequence[Known]:
        """Return a model's beginnings that return, the one used last first."""
        with self._lock:
            known = [one for one in self._known.values() if one.model == model and one.returns]
        return sorted(known, key=lambda one: one.used_at, reverse=True)

    def forget(self, model: str) -> None:
        """Delete a model's beginnings, on disk too."""
        with self._lock:
            self._known = {name: one for name, one in self._known.items() if one.model != model}
            self._changed = True
        self.flush()

    def read(self) -> None:
        """Read the file, once."""
        try:
            records = json.loads(self._path.read_bytes())
            known = [_known(record) for record in records]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._warn("beginnings of prompts not read", error)
            return
        with self._lock:
            read = {(one.model, one.beginning.key): one for one in known}
            self._known = read | self._known
            self._shrink()

    async def flush_every(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Write what has changed."""
        with self._file_lock:
            with self._lock:
                known, changed, self._changed = [*self._known.values()], self._changed, False
            if not changed:
                return
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                content = json.dumps([_record(one) for one in known], ensure_ascii=True)
                replace_file(self._path, content.encode())
            except OSError as error:
                self._warn("beginnings of prompts not written", error)

    def _shrink(self) -> None:
        """Forget the beginnings that were not used for longest, and those that are too old."""
        oldest = self._wall() - MAX_AGE_S
        newest = sorted(self._known.items(), key=lambda item: item[1].used_at, reverse=True)
        kept, characters = dict[tuple[str, str], Known](), 0
        for name, one in newest[:MAX_BEGINNINGS]:
            characters += len(one.beginning.text)
            if one.used_at < oldest or characters > MAX_CHARACTERS:
                break
            kept[name] = one
        self._known = kept

    def _warn(self, message: str, error: Exception) -> None:
        details = {"file": str(self._path), "detail": str(error)}
        log.warning(message, extra={"fields": details})


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
