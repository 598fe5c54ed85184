"""SQLite files: opened privately, checked for their version, begun again when damaged.

    answers/answers.sqlite          one process, one thread: answers, before a client sees them
    cache/FINGERPRINT/index.sqlite  one process, one thread for each model: prefixes
    omlx.sqlite                     all processes of a home, a connection for each use (`home`)

They are apart because their owners are: each of the first two belongs to the process that has
locked its folder (`lock`), and damage to one costs nothing of the others.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

Failure: Final = (OSError, sqlite3.Error, UnicodeError)
"""What every use of a file may raise; the last where SQLite's message quotes damaged bytes, or a
text is none."""

_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""The last one: our queries are correct, unless what the file says of its tables is not."""

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
        """Do what else belongs to opening; may notice damage. For subclasses."""

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
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    with db:
        db.execute("begin immediate")
        yield
