"""Files that outlive the process: SQLite, and plain ones, which are replaced atomically.

SQLite files are opened privately, checked for their version, begun again when damaged:

    answers/answers.sqlite          one process, one thread: answers, before a client sees them
    cache/FINGERPRINT/index.sqlite  one process, one thread for each model: prefixes
    omlx.sqlite                     all processes of a home, a connection for each use (`use`)

They are apart because their owners are: each of the first two belongs to the process that has
locked its folder (`lock`), and damage to one costs nothing of the others. Tables of `omlx.sqlite`:

    usage         sums by day, model and API key
    measurements  costs of passes, trials, benchmarks, compactions: JSON by kind and name
    receipts      kept answers: JSON by id
    beginnings    of prompts, by model and key

Each use of it is one transaction, durable when it returns. Earlier versions had a file or a folder
for each table: it is taken over once, then deleted.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")

Failure: Final = (OSError, sqlite3.Error, UnicodeError)
"""Errors of every use of a file; UnicodeError for damaged bytes in texts or messages."""

_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""Codes of damage. `SQLITE_ERROR`, too: the queries fit the tables unless the file is damaged."""

log = logging.getLogger("omlx.storage")


class Locked(OSError):
    """Another process uses the folder."""


class OtherFormat(sqlite3.DatabaseError):
    """The file is of another program, or of another version that no step leads from."""


@dataclass(frozen=True, slots=True)
class Schema:
    """Tables of a file, called `name` in the log. `steps`: scripts that lead from one version to
    the next, by the version before.

    `mark` distinguishes the file from those of other programs. A damaged file is renamed if
    `kept`, else deleted; then one of another format is never changed.
    """

    name: str
    version: int
    script: str
    steps: Mapping[int, str] = field(default_factory=dict)
    pragmas: tuple[str, ...] = ("synchronous = normal",)
    mark: int = 0
    kept: bool = False


class Database:
    """An SQLite file that is opened when first used. Every method may raise a `Failure`.

    Other connections are waited for, 5 s at most. Any thread may use it, one at a time.
    """

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path = path
        self.schema = schema
        self._db: sqlite3.Connection | None = None

    def prepare(self) -> None:
        """Complete the opening, in subclasses; may notice damage."""

    @property
    def db(self) -> sqlite3.Connection:
        """The open connection."""
        if self._db is None:
            self._db = _connect(self.path, self.schema)
            try:
                self.prepare()
            except BaseException:
                self.disconnect()
                raise
        return self._db

    def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`; where the file is damaged, of `work` on an empty one."""
        try:
            return work()
        except Failure as error:
            if not self._is_damaged(error):
                raise
            self.disconnect()
            self._begin_again(error)
            return work()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all that is done inside, or nothing of it."""
        with _transaction(self.db):
            yield self.db

    def disconnect(self) -> None:
        """Close the connection; the next use opens another one."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def sync(self) -> None:
        """Make durable what was committed. Any thread may call."""
        with suppress(FileNotFoundError):
            file = os.open(f"{self.path}-wal", os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def _is_damaged(self, error: Exception) -> bool:
        """Whether an error says that only a new file helps."""
        if isinstance(error, OtherFormat):
            return not self.schema.kept
        if isinstance(error, sqlite3.Error):
            # the module's own errors, such as that of a closed connection, have no code
            return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
        return isinstance(error, UnicodeDecodeError)

    def _begin_again(self, error: Exception) -> None:
        details = {"detail": str(error)}
        if self.schema.kept:
            at = time.strftime("%Y%m%d-%H%M%S")
            kept = self.path.with_name(f"{self.path.name}.corrupt-{at}")
            self.path.replace(kept)
            details["kept"] = str(kept)
        log.warning("%s is damaged: begun again", self.schema.name, extra={"fields": details})
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)


def lock(folder: Path) -> int:
    """Lock a folder for this process, until the returned file is closed. Raises Locked, OSError."""
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(file)
        if isinstance(error, BlockingIOError):
            raise Locked(str(folder)) from None
        raise
    return file


def _connect(path: Path, schema: Schema) -> sqlite3.Connection:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # -wal and -shm get its mode
    try:
        os.fchmod(file, 0o600)
    finally:
        os.close(file)
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.text_factory = partial(str, encoding="utf-8", errors="replace")
    try:
        if _version(db, schema) not in (0, schema.version, *schema.steps):
            raise OtherFormat(f"{path.name} is not a file of this version of omlx")
        for pragma in (*schema.pragmas, "journal_mode = wal", "foreign_keys = on"):
            db.execute(f"pragma {pragma}")
        while (version := _version(db, schema)) != schema.version:
            with _transaction(db):
                if _version(db, schema) == version:  # else another process was first
                    _migrate(db, schema, version)
    except BaseException:
        db.close()
        raise
    return db


def _version(db: sqlite3.Connection, schema: Schema) -> int:
    """Return the version of a file, 0 for an empty one, -1 for that of another program."""
    reads = nullcontext() if db.in_transaction else _transaction(db, "deferred")
    with reads:  # as one state: another process may create the tables meanwhile
        (version,) = db.execute("pragma user_version").fetchone()
        (mark,) = db.execute("pragma application_id").fetchone()
        (tables,) = db.execute("select count(*) from sqlite_master").fetchone()
    is_empty = not (version or mark or tables)
    return int(version) if is_empty or (version and mark == schema.mark) else -1


def _migrate(db: sqlite3.Connection, schema: Schema, version: int) -> None:
    script, reached = schema.script, schema.version
    if version:
        script, reached = schema.steps[version], version + 1
    for statement in script.split(";"):
        db.execute(statement)
    db.execute(f"pragma application_id = {schema.mark}")
    db.execute(f"pragma user_version = {reached}")


@contextmanager
def _transaction(db: sqlite3.Connection, kind: str = "immediate") -> Iterator[None]:
    with db:
        db.execute(f"begin {kind}")
        yield


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
        """Replace a text by the result of `change`, which takes the text, or None."""

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
        """Import the files of earlier versions.

        The files are deleted once their content is durable, and noted as imported after that: if
        the process ends in between, the next one does the rest.
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


TEMPORARY: Final = ".omlx-"
"""Part of the name of a file being written."""


def replace_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file durably: readers see the old content or the new, also after a power cut.

    A link is replaced, not the file that the link points to. Raises OSError.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}{TEMPORARY}", dir=path.parent)
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
