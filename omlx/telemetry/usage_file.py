"""The file of the usage history: an SQLite table with a row for each day, model and key."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple, fields
from pathlib import Path
from typing import Final

from omlx.telemetry.usage import Sums, Usage

FILE: Final = "statistics.sqlite"
MAX_ROWS: Final = 50_000
"""About 5 MB."""

FORMAT: Final = 1
_APPLICATION: Final = int.from_bytes(b"omlx", "big")
_TIMEOUT_S: Final = 5.0
_NAMES: Final = tuple(field.name for field in fields(Usage))
_ADDED: Final = ", ".join(f"{name} = {name} + excluded.{name}" for name in _NAMES)
_ADD: Final = (
    f"insert into usage values (?, ?, ?, {', '.join('?' * len(_NAMES))})"
    f" on conflict do update set {_ADDED}"
)
_SCHEMA: Final = f"""
begin;
create table usage (day text not null, model text not null, key text not null,
    {", ".join(f"{name} numeric not null" for name in _NAMES)},
    primary key (day, model, key)) without rowid;
pragma application_id = {_APPLICATION};
pragma user_version = {FORMAT};
commit;
"""

log = logging.getLogger("omlx.telemetry")


class ForeignFile(Exception):
    """A file of another program, or of another version, which is never changed."""


def add(path: Path, sums: Sums, oldest: str) -> None:
    """Add sums, and delete days before `oldest`.

    A damaged file is renamed and begun again. Raises OSError, sqlite3.Error, ForeignFile; then
    nothing is written.
    """
    try:
        _add(path, sums, oldest)
    except sqlite3.OperationalError:  # locked, or the disk is full
        raise
    except sqlite3.DatabaseError as error:
        renamed = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}")
        path.replace(renamed)
        details = {"kept": str(renamed), "detail": str(error)}
        log.warning("statistics begin again", extra={"fields": details})
        _add(path, sums, oldest)


def read(path: Path, first: str) -> dict[tuple[str, str, str], Usage]:
    """Return the sums from the day `first` on. Raises OSError, sqlite3.Error, ForeignFile."""
    if not path.exists():
        return {}
    with _opened(path) as table:
        rows = table.execute("select * from usage where day >= ?", (first,))
        return {(day, model, key): Usage(*sums) for day, model, key, *sums in rows}


def _add(path: Path, sums: Sums, oldest: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    with _opened(path) as table, table:
        rows = [(*name, *astuple(usage)) for name, usage in sums.items()]
        table.executemany(_ADD, rows)
        table.execute("delete from usage where day < ?", (oldest,))
        (count,) = table.execute("select count(*) from usage").fetchone()
        if count > MAX_ROWS:
            days = "select day from usage order by day limit ?"
            table.execute(f"delete from usage where day in ({days})", (count - MAX_ROWS,))


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, timeout=_TIMEOUT_S)) as table:
        mark = table.execute("pragma application_id").fetchone()[0]
        version = table.execute("pragma user_version").fetchone()[0]
        (tables,) = table.execute("select count(*) from sqlite_master").fetchone()
        if (mark, version, tables) == (0, 0, 0):
            table.executescript(_SCHEMA)
        elif (mark, version) != (_APPLICATION, FORMAT):
            raise ForeignFile(f"{path.name} is not a file of this version of omlx")
        yield table
