"""Files of any store: private, migrated, locked, begun again when damaged; others' left alone."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from omlx.storage import Database, Locked, OtherFormat, Schema, lock

FIRST = Schema("words", version=1, script="create table words (word text)", mark=7)
SECOND = replace(
    FIRST,
    version=2,
    script="create table words (word text, letters integer)",
    steps={1: "alter table words add letters integer; update words set letters = length(word)"},
)
KEPT = replace(FIRST, kept=True)
DAMAGED = b"not a database" * 400

_ADD = """
import sys
import threading
from pathlib import Path
from typing import Any
from omlx.storage import Database
from tests.storage.test_database import FIRST
file = Database(Path(sys.argv[1]), FIRST)
for number in range(20):
    with file.transaction() as db:
        db.execute("insert into words values (?)", (f"{sys.argv[2]} {number}",))
file.disconnect()
"""


def ask(path: Path, schema: Schema, query: str) -> list[tuple[object, ...]]:
    file = Database(path, schema)
    try:
        return file.run(lambda: file.db.execute(query).fetchall())
    finally:
        file.disconnect()


def add(path: Path, schema: Schema = FIRST) -> None:
    ask(path, schema, "insert into words (word) values ('a')")


def words(path: Path, schema: Schema = FIRST) -> list[tuple[object, ...]]:
    return ask(path, schema, "select * from words")


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(0o644)
    file = Database(path, FIRST)
    with file.transaction() as db:
        db.execute("insert into words values ('a')")
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}
    file.disconnect()
    assert words(path) == [("a",)]


def test_what_fails_inside_a_transaction_leaves_nothing(tmp_path: Path) -> None:
    file = Database(tmp_path / "file", FIRST)

    def write() -> None:
        with file.transaction() as db:
            db.execute("insert into words values ('a')")
            db.execute("insert into others values ('a')")

    with pytest.raises(sqlite3.OperationalError):
        write()
    file.disconnect()
    assert words(tmp_path / "file") == []


def test_a_file_of_an_earlier_version_is_migrated(tmp_path: Path) -> None:
    add(tmp_path / "file")
    assert words(tmp_path / "file", SECOND) == [("a", 1)]
    assert words(tmp_path / "file", SECOND) == [("a", 1)]
    add(tmp_path / "other", SECOND)
    assert words(tmp_path / "other", SECOND) == [("a", None)]


def test_processes_that_create_one_file_at_once_share_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _ADD, str(tmp_path / "file")]
    writers = [subprocess.Popen([*command, name]) for name in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(words(tmp_path / "file")) == 60


def test_a_file_that_another_process_creates_meanwhile_is_read_as_one_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = threading.Thread(target=add, args=(tmp_path / "file",))

    class Overtaken(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            found = super().execute(sql, *args)
            if sql == "pragma user_version" and other.ident is None:
                monkeypatch.undo()
                other.start()
                other.join(0.3)  # it waits for the reader, which has a state of its own
            return found

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Overtaken))
    assert words(tmp_path / "file") in ([], [("a",)])
    other.join()
    assert words(tmp_path / "file") == [("a",)]


@pytest.mark.parametrize("schema", [FIRST, KEPT])
def test_a_damaged_file_is_begun_again(
    tmp_path: Path, schema: Schema, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file"
    path.write_bytes(DAMAGED)
    add(path, schema)
    assert words(path, schema) == [("a",)]
    assert [record.getMessage() for record in caplog.records] == ["words is damaged: begun again"]
    aside = [each.read_bytes() for each in tmp_path.glob("*.corrupt-*")]
    assert aside == ([DAMAGED] if schema.kept else [])


@pytest.mark.parametrize(
    "script",
    [
        "create table words (word text)",
        "create table words (word text); pragma user_version = 1",
        "create table words (word text); pragma user_version = 9; pragma application_id = 7",
    ],
    ids=["of no version", "of another program", "of a later version"],
)
def test_a_file_of_another_format_is_changed_only_if_it_can_be_lost(
    tmp_path: Path, script: str
) -> None:
    path = tmp_path / "file"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script)
    before = path.read_bytes()
    with pytest.raises(OtherFormat, match="not a file of this version"):
        words(path, KEPT)
    assert path.read_bytes() == before
    assert words(path, FIRST) == []


def test_a_folder_is_locked_until_it_is_given_back(tmp_path: Path) -> None:
    first = lock(tmp_path)
    with pytest.raises(Locked, match=tmp_path.name):
        lock(tmp_path)
    os.close(first)
    os.close(lock(tmp_path))
