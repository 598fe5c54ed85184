"""Records of a home folder: one SQLite file, `omlx.sqlite`, that all its processes share.

    usage         sums by day, model and API key
    measurements  costs of passes, trials, benchmarks: JSON by kind and name
    receipts      kept answers: JSON by id
    beginnings    of prompts, by model and key

Every use has a connection of its own and is one transaction, durable when it returns. Earlier
versions had a file or a folder for each: it is taken over once, then deleted.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from omlx.storage.database import Database, Schema

T = TypeVar("T")

FILE: Final = "omlx.sqlite"

SCHEMA: Final = Schema(
    "the file of records",
    version=1,
    script="""
create table usage (
    day text not null, model text not null, key text not null, requests numeric not null,
    failed numeric not null, prompt numeric not null, cached numeric not null,
    predicted numeric not null, accepted numeric not null, measured_n numeric not null,
    measured_s numeric not null, draft_saved_s numeric not null,
    primary key (day, model, key)) without rowid;
create table measurements (
    kind text not null, name text not null, content text not null, primary key (kind, name));
create table receipts (id text primary key, at real not null, content text not null);
create index by_age on receipts (at);
create table beginnings (
    model text not null, key text not null, beginning text not null,
    conversations integer not null, client text not null, used_at real not null,
    primary key (model, key));
create table earlier_files (taken_over integer not null)
""",
    # deleted texts leave no trace, and their pages go back to the disk
    pragmas=("auto_vacuum = full", "synchronous = full", "secure_delete = on"),
    mark=int.from_bytes(b"omlx", "big"),
    kept=True,
)

_NOT_OURS: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def use(home: Path, work: Callable[[sqlite3.Connection], T], *, create: bool = True) -> T:
    """Return the result of `work` on the records of `home`. Any thread may call.

    Raises a `Failure`, after which nothing is changed: FileNotFoundError unless `home` exists or
    may be created.
    """
    if create:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    records = _Records(home)

    def change() -> T:
        with records.transaction() as db:
            return work(db)

    try:
        return records.run(change)
    finally:
        records.disconnect()


@dataclass(frozen=True, slots=True)
class Measurements:
    """JSON texts of one `kind`, by name. Any thread may call; raises a `Failure`."""

    home: Path
    kind: str

    def load(self, name: str) -> str | None:
        try:
            return use(self.home, lambda db: self._load(db, name), create=False)
        except FileNotFoundError:
            return None

    def change(self, name: str, change: Callable[[str | None], str]) -> None:
        """Replace a text by what `change` makes of it."""

        def replace(db: sqlite3.Connection) -> None:
            row = (self.kind, name, change(self._load(db, name)))
            db.execute("insert or replace into measurements values (?, ?, ?)", row)

        use(self.home, replace)

    def _load(self, db: sqlite3.Connection, name: str) -> str | None:
        query = "select content from measurements where kind = ? and name = ?"
        row = db.execute(query, (self.kind, name)).fetchone()
        return None if row is None else str(row[0])


class _Records(Database):
    def __init__(self, home: Path) -> None:
        super().__init__(home / FILE, SCHEMA)
        self._home = home

    def prepare(self) -> None:
        """Take over what earlier versions have stored in files.

        They are deleted after what they hold is durable, and noted as taken over after that: if the
        process ends in between, the next one does the rest.
        """
        if self.db.execute("select * from earlier_files").fetchone():
            return
        with self.transaction() as db:
            files = [path for path in self._earlier() if _take_over(db, path)]
        for path in files:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in files} - {self._home}:
            with suppress(OSError):  # others are there: files that were not ours, or damaged
                folder.rmdir()
        self.db.execute("insert into earlier_files values (?)", (len(files),))

    def _earlier(self) -> Iterator[Path]:
        for folder in ("costs", "trials", "benchmarks", "receipts"):
            yield from (self._home / folder).glob("*.json")
        if (usage := self._home / "statistics.sqlite").is_file():
            yield usage


def _take_over(db: sqlite3.Connection, path: Path) -> bool:
    """Return whether a file was one of ours. A row that is there already stays."""
    try:
        table, rows = _rows(path)
    except (OSError, sqlite3.Error, *_NOT_OURS):
        return False
    marks = ", ".join("?" * len(rows[0])) if rows else ""
    db.executemany(f"insert or ignore into {table} values ({marks})", rows)
    return True


def _rows(path: Path) -> tuple[str, list[tuple[Any, ...]]]:
    """Return a table and rows for it. Raises one of `_NOT_OURS` for other files."""
    kind = path.parent.name
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as earlier:
            columns = "requests, failed, prompt, cached, predicted, accepted"
            columns += ", measured_n, measured_s, draft_saved_s"
            query = f"select day, model, key, {columns} from usage"
            return "usage", earlier.execute(query).fetchall()
    values = json.loads(path.read_bytes())
    if kind == "receipts":
        text = json.dumps({name: values[name] for name in ("answer", "receipt")})
        return kind, [(path.stem, path.stat().st_mtime, text)]
    if values.pop("format") != ("omlx-costs/1" if kind == "costs" else "omlx-config/1"):
        raise ValueError(f"{path.name} has another format")
    name = path.stem if kind == "costs" else values["model"]
    return "measurements", [(kind, name, json.dumps(values))]
