"""Kept answers on disk, in the records of the home folder.

Bounded in number and bytes (the oldest are deleted first) and in age by `MAX_AGE_S`.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from omlx.errors import BadRequest, NotFound
from omlx.receipts.kept import KeptAnswer
from omlx.records import Receipt
from omlx.storage import home as records
from omlx.storage.database import Failure

MAX_ANSWERS: Final = 4096
MAX_BYTES: Final = 128 << 20
MAX_AGE_S: Final = 30 * 86400
_SWEEP_EVERY: Final = 64
"""Answers kept between two sweeps."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SWEEP: Final = """
delete from receipts where at < ? or id in (
    select id from (
        select id, row_number() over newest as number, sum(length(content)) over newest as total
        from receipts window newest as (order by at desc, id))
    where number > ? or total > ?)
"""

log = logging.getLogger("omlx.receipts")


@dataclass(frozen=True, slots=True)
class _Content:
    answer: KeptAnswer
    receipt: Receipt


_JSON: Final = TypeAdapter(_Content)


class AnswerStore:
    """The kept answers of `home`. Thread-safe."""

    def __init__(
        self, home: Path, *, max_answers: int = MAX_ANSWERS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._home = home
        self._max_answers, self._max_bytes = max_answers, max_bytes
        self._kept = count()

    def keep(self, answer: KeptAnswer, receipt: Receipt) -> None:
        """Write an answer, and sweep every `_SWEEP_EVERY` answers. Raises a `Failure`."""
        text = _JSON.dump_json(_Content(answer, receipt)).decode()
        row = (answer.id, time.time(), text)
        query = "insert or replace into receipts values (?, ?, ?)"
        records.use(self._home, lambda db: db.execute(query, row))
        if next(self._kept) % _SWEEP_EVERY == 0:
            self.sweep()

    def get(self, id: str) -> tuple[KeptAnswer, Receipt]:
        """Return a kept answer and its receipt as written.

        Raises NotFound, and BadRequest for damaged content.
        """
        rows = self._query("select content from receipts where id = ?", [id])
        if not rows:
            raise NotFound("receipt.not_found", id=id)
        try:
            content = _JSON.validate_json(rows[0][0])
        except ValueError as error:
            raise BadRequest("receipt.damaged", id=id) from error
        return content.answer, content.receipt

    def ids(self, id: str) -> list[str]:
        """Return the ids of an answer's kept choices, or `[id]` if `id` names a choice."""
        of_answer = "id = ?1 or substr(id, 1, length(?1) + 1) = ?1 || '-'"
        rows = self._query(f"select id from receipts where {of_answer}", [id])
        found = [name for (name,) in rows]
        return [id] if id in found else sorted(found, key=lambda name: (len(name), name))

    def kept(self, ids: Iterable[str]) -> frozenset[str]:
        """Return the ids of answers whose first choice is kept."""
        firsts = {f"{id}-0": id for id in ids if _ID.fullmatch(id)}
        marks = ", ".join("?" * len(firsts))
        found = self._query(f"select id from receipts where id in ({marks})", list(firsts))
        return frozenset(firsts[first] for (first,) in found)

    def sweep(self) -> None:
        bounds = (time.time() - MAX_AGE_S, self._max_answers, self._max_bytes)
        records.use(self._home, lambda db: db.execute(_SWEEP, bounds))

    def _query(self, query: str, ids: Sequence[str]) -> list[tuple[Any, ...]]:
        def read(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
            return db.execute(query, ids).fetchall()

        if not all(map(_ID.fullmatch, ids)):
            return []
        try:
            return records.use(self._home, read, create=False)
        except FileNotFoundError:
            return []
        except Failure as error:
            log.warning("kept answers not read", extra={"fields": {"detail": str(error)}})
            return []
