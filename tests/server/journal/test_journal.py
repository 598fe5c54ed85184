"""The file of answers and its thread: bounds, mode, damage, parts that are written together."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from omlx.server.journal import journal
from omlx.server.journal.journal import AnswerFile, Header, Journal, Part, StoredRow
from omlx.storage import Locked
from tests.server.journal.streams import DAY_S

NOW = 1e9


def header(id: str, key: str | None = None) -> Header:
    return Header(id, "", key, b"body", b"digest", str(2**64 - 1), 7, background=False)


def opened(folder: Path, max_bytes: int = 1000, max_age_s: float = 1e12) -> AnswerFile:
    return AnswerFile(folder, max_bytes, max_age_s)


def ids(file: AnswerFile) -> list[str]:
    return [id for (id,) in file.db.execute("select id from answers order by id")]


def test_what_was_written_is_read_by_the_next_process(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.begin(header("a", "key"), b"{}", NOW)
    assert file.append([Part("a", number, b"[]") for number in range(2)]) == {"a"}
    file.close()
    entry = opened(tmp_path).find(NOW, "", key="key")
    assert entry is not None
    assert entry.header == header("a", "key")
    assert (entry.body, entry.parts) == (b"{}", (b"[]", b"[]"))


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    file = opened(tmp_path / "answers")
    file.begin(header("a"), b"{}", NOW)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "answers").iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "answers").stat().st_mode) == 0o700


def test_a_finished_answer_has_one_part(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.begin(header("a"), b"{}", NOW)
    file.append([Part("a", 0, b"[1]")])
    file.finish("a", b"whole", NOW)
    entry = file.find(NOW, "", id="a")
    assert entry is not None
    assert (entry.header.finished, entry.parts, file.nbytes) == (True, (b"whole",), 7)


def test_finished_answers_make_room_first(tmp_path: Path) -> None:
    file = opened(tmp_path)
    for at, id in enumerate("abc"):
        file.begin(header(id), bytes(300), NOW + at)
    file.finish("b", b"", NOW + 3)
    file.begin(header("d"), bytes(300), NOW + 4)
    assert ids(file) == ["a", "c", "d"]
    file.begin(header("e"), bytes(300), NOW + 5)
    assert ids(file) == ["c", "d", "e"]
    lost = file.append([Part("a", 0, b"[]"), Part("d", 0, b"[]")])
    assert lost == {"d"}  # its writer hears of it
    assert file.begin(header("f"), bytes(501), NOW) is False
    assert ids(file) == ["c", "d", "e"]


def test_what_answers_grow_by_counts(tmp_path: Path) -> None:
    """While they are generated, and in the next process."""
    file = opened(tmp_path)
    for at, id in enumerate("abc"):
        file.begin(header(id), bytes(200), NOW + at)
    file.append([Part("b", 0, bytes(300))])
    file.close()
    file = opened(tmp_path)
    assert file.nbytes == 900
    file.append([Part("a", 0, bytes(150))])
    file.begin(header("d"), b"", NOW + 3)
    assert ids(file) == ["a", "c", "d"]  # "a" was written to after "b"
    assert file.nbytes == 550


def test_the_number_of_answers_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_ANSWERS", 2)
    file = opened(tmp_path)
    for at, id in enumerate("abc"):
        file.begin(header(id), b"", NOW + at)
    assert ids(file) == ["b", "c"]


def test_answers_and_responses_expire(tmp_path: Path) -> None:
    file = opened(tmp_path, max_age_s=10)
    file.begin(header("a", "key"), b"{}", NOW)
    file.keep(StoredRow("resp_1", "", b"{}", b"[]", b"[]", NOW), {"image": "data:"})
    assert file.find(NOW + 9, "", key="key") is not None
    assert file.find(NOW + 10, "", key="key") is None
    file.begin(header("b", "key"), b"{}", NOW + 10)  # the key is free again
    assert ids(file) == ["b"]
    assert file.responses() == ([], {"image": "data:"})
    assert file.responses() == ([], {})


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(Locked):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_a_file_that_is_none_is_begun_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / journal.FILE).write_bytes(b"something else" * 100)
    file = opened(tmp_path)
    file.begin(header("a"), b"{}", NOW)
    assert [record.getMessage() for record in caplog.records] == [
        "the file of answers is damaged: begun again"
    ]
    with pytest.raises(Locked):  # the folder was kept all the time
        opened(tmp_path)


def test_damage_that_is_noticed_late_costs_what_was_stored(tmp_path: Path) -> None:
    file = opened(tmp_path, max_bytes=1 << 30)
    for number in range(40):
        file.begin(header(f"{number}"), bytes(8000), NOW)
    file.close()
    content = bytearray((tmp_path / journal.FILE).read_bytes())
    content[4096 * 20 :] = bytes(len(content) - 4096 * 20)
    (tmp_path / journal.FILE).write_bytes(content)
    file = opened(tmp_path, max_bytes=1 << 30)
    for number in range(40):
        file.run(lambda number=number: file.find(NOW, "", id=f"{number}"))
    assert file.run(lambda: file.begin(header("a"), b"{}", NOW))
    assert "a" in ids(file)


def test_a_removed_file_is_noticed(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.check()
    (tmp_path / journal.FILE).unlink()
    with pytest.raises(FileNotFoundError):
        file.check()


NAMES = [f"answer-{number}" for number in range(8)]


async def written_at_once(journal: Journal, names: Sequence[str]) -> list[bool | None]:
    return await asyncio.gather(*(journal.append(Part(name, 0, b"[]")) for name in names))


def test_parts_of_one_turn_are_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = []

    def count(table: AnswerFile, parts: Sequence[Part]) -> set[str]:
        transactions.append(len(parts))
        return append(table, parts)

    append = AnswerFile.append
    monkeypatch.setattr(AnswerFile, "append", count)

    async def write() -> list[bool | None]:
        for name in NAMES:
            await journal.run(
                partial(AnswerFile.begin, header=header(name), body=b"{}", now=time.time())
            )
        assert await journal.append(Part(NAMES[0], 1, b"[]"))
        return await written_at_once(journal, [*NAMES, "dropped"])

    journal = Journal(tmp_path, 1 << 20, DAY_S)
    assert asyncio.run(write()) == [*(True for _ in NAMES), False]
    journal.close()
    assert transactions == [1, len(NAMES) + 1]


def test_a_transaction_that_fails_is_written_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(table: AnswerFile, parts: Sequence[Part]) -> set[str]:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(AnswerFile, "append", fail)
    journal = Journal(tmp_path, 1 << 20, DAY_S)
    assert asyncio.run(written_at_once(journal, NAMES)) == [None] * len(NAMES)
    journal.close()
