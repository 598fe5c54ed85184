"""Beginnings that return, on disk: private, bounded, forgotten after 30 days without use.

A thread writes them every few seconds into the records of the home folder, shared by several
servers. Read and write failures are warnings in the log.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

from omlx import storage
from omlx.server.beginnings.beginning import MAX_AGE_S, Beginning, beginning_of, is_new
from omlx.server.beginnings.compaction import KIND, Compactions
from omlx.server.request.generation_request import GenerationRequest
from omlx.storage import Failure

EARLIER_FILE: Final = "beginnings.json"
"""File of earlier versions, beside the folders of prefixes."""

MAX_BEGINNINGS: Final = 64
TOTAL_CHARACTERS: Final = 8 << 20
"""Characters of all beginnings together."""

RETURNS: Final = 2
"""Conversations — beginnings of a family used less often are not computed ahead."""

_ADD: Final = """
insert into beginnings values (?, ?, ?, ?, ?, ?) on conflict do update set
    conversations = conversations + excluded.conversations,
    beginning = iif(excluded.used_at >= used_at, excluded.beginning, beginning),
    client = iif(excluded.used_at >= used_at, excluded.client, client),
    used_at = max(used_at, excluded.used_at)
"""

log = logging.getLogger("omlx.prefix")


@dataclass(frozen=True, slots=True)
class Known:
    """A beginning of a model's prompts, and its use.

    conversations: how many began with it. client: User-Agent of the newest request. used_at:
    seconds since the epoch.
    """

    model: str
    beginning: Beginning
    conversations: int = 0
    client: str = ""
    used_at: float = 0.0


Beginnings: TypeAlias = dict[tuple[str, str], Known]
"""Beginnings by model and key."""


class BeginningStore:
    """The beginnings and compactions of `home`. Imports the file `earlier`, then deletes the file.

    `wall` returns the time of day in seconds. Thread-safe.
    """

    def __init__(
        self, home: Path, earlier: Path | None = None, wall: Callable[[], float] = time.time
    ) -> None:
        self._home = home
        self._earlier = earlier
        self._wall = wall
        self.compactions = Compactions(home, wall)
        self._known: Beginnings = {}
        """Rows of the table, with the changes since."""
        self._forgotten: set[str] = set()
        """Models to delete from the table before `_noted` is written."""
        self._noted: Beginnings = {}
        self.version = 0
        """Count of changes."""
        self._lock = Lock()  # guards `_known`, `_forgotten`, `_noted`
        self._flushing = Lock()
        self._logged = ""

    def note_request(self, model: str, client: str, request: GenerationRequest) -> None:
        """Record how a conversation begins."""
        beginning = beginning_of(request)
        if beginning is None:
            return
        # A client that prewarms expects it to return.
        conversations = RETURNS if request.prewarm else int(is_new(request))
        self.note(model, beginning, client, conversations)

    def note(self, model: str, beginning: Beginning, client: str, conversations: int) -> None:
        """Record a request with the number of new `conversations`."""
        known = Known(model, beginning, conversations, client, self._wall())
        with self._lock:
            self.version += 1
            for beginnings in (self._known, self._noted):
                _add(beginnings, known)
                self._shrink(beginnings)

    def known(self, model: str) -> Sequence[Known]:
        """Return a model's beginnings, most recently used first."""
        with self._lock:
            known = [one for one in self._known.values() if one.model == model]
        return sorted(known, key=lambda one: one.used_at, reverse=True)

    def forget(self, model: str) -> None:
        """Delete a model's beginnings and compactions, in memory and on disk."""
        self.compactions.forget(model)
        with self._lock:
            self._known = _without({model}, self._known)
            self._noted = _without({model}, self._noted)
            self._forgotten.add(model)
            self.version += 1
        self.flush()

    def read(self) -> None:
        """Load the table, import the earlier file, and delete old compactions."""
        self.compactions.drop_old()
        if self._exchange((), self._read_earlier()) and self._earlier is not None:
            with suppress(OSError):
                self._earlier.unlink(missing_ok=True)

    def flush(self) -> None:
        """Write pending changes; after a failure they stay pending."""
        with self._flushing:
            with self._lock:
                forgotten, self._forgotten = self._forgotten, set()
                noted, self._noted = self._noted, {}
            if (forgotten or noted) and not self._exchange(forgotten, noted):
                with self._lock:
                    noted = _without(self._forgotten, noted)
                    for one in self._noted.values():
                        _add(noted, one)
                    self._forgotten |= forgotten
                    self._noted = noted

    def _exchange(self, forgotten: Collection[str], noted: Beginnings) -> bool:
        """Apply changes to the table, then load the table. Return False for a failure."""
        try:
            known = storage.use(self._home, lambda db: self._change(db, forgotten, noted))
        except Failure as error:
            verb = "written" if forgotten or noted else "read"
            self._warn(f"beginnings of prompts not {verb}", error)
            return False
        self._logged = ""
        with self._lock:
            self.version += self._known.keys() != known.keys()
            self._known = _without(self._forgotten, known)
            for one in self._noted.values():
                _add(self._known, one)
            self._shrink(self._known)
        return True

    def _change(
        self, db: sqlite3.Connection, forgotten: Collection[str], noted: Beginnings
    ) -> Beginnings:
        for model in forgotten:
            db.execute("delete from beginnings where model = ?", (model,))
            db.execute("delete from measurements where (kind, name) = (?, ?)", (KIND, model))
        for name, one in noted.items():
            text = json.dumps(asdict(one.beginning))  # escapes what is not Unicode text
            db.execute(_ADD, (*name, text, one.conversations, one.client, one.used_at))
        rows = db.execute("select * from beginnings").fetchall()
        known: Beginnings = {}
        for model, key, text, *details in rows:
            with suppress(ValueError, KeyError, TypeError):  # damage that SQLite did not notice
                known[model, key] = Known(model, Beginning.read(json.loads(text)), *details)
        self._shrink(known)
        gone = [(model, key) for model, key, *_ in rows if (model, key) not in known]
        db.executemany("delete from beginnings where model = ? and key = ?", gone)
        return known

    def _read_earlier(self) -> Beginnings:
        known: Beginnings = {}
        if self._earlier is None:
            return known
        try:
            for record in json.loads(self._earlier.read_bytes()):
                beginning = Beginning.read(record.pop("beginning"))
                known[record["model"], beginning.key] = Known(beginning=beginning, **record)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._warn("beginnings of prompts not read", error)
        return known

    def _shrink(self, known: Beginnings) -> None:
        """Drop beginnings beyond the limits of age, count and characters, least recently used
        first.
        """
        oldest = self._wall() - MAX_AGE_S
        newest = sorted(known.items(), key=lambda item: item[1].used_at, reverse=True)
        known.clear()
        characters = 0
        for name, one in newest[:MAX_BEGINNINGS]:
            characters += len(one.beginning.text)
            if one.used_at < oldest or characters > TOTAL_CHARACTERS:
                break
            known[name] = one

    def _warn(self, message: str, error: Exception) -> None:
        if (warning := f"{message} {error}") != self._logged:  # once while it stays the same
            fields = {"home": str(self._home), "detail": str(error)}
            log.warning(message, extra={"fields": fields})
        self._logged = warning


def _add(known: Beginnings, noted: Known) -> None:
    name = noted.model, noted.beginning.key
    before = known.get(name, replace(noted, conversations=0))
    newest = max(noted, before, key=lambda one: one.used_at)
    known[name] = replace(newest, conversations=before.conversations + noted.conversations)


def _without(models: Collection[str], known: Beginnings) -> Beginnings:
    return {name: one for name, one in known.items() if one.model not in models}
