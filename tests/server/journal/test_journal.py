"""What several answers write at once is one transaction."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from omlx.server.journal.journal import Journal, Part, Table
from tests.server.journal.streams import DAY_S
from tests.server.journal.test_table import header

NAMES = [f"answer-{number}" for number in range(8)]


async def written_at_once(journal: Journal, names: Sequence[str]) -> list[bool | None]:
    return await asyncio.gather(*(journal.append(Part(name, 0, b"[]")) for name in names))


def test_parts_of_one_turn_are_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = []

    def count(table: Table, parts: Sequence[Part]) -> set[str]:
        transactions.append(len(parts))
        return append(table, parts)

    append = Table.append
    monkeypatch.setattr(Table, "append", count)

    async def write() -> list[bool | None]:
        for name in NAMES:
            await journal.run(
                partial(Table.begin, header=header(name), body=b"{}", now=time.time())
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
    def fail(table: Table, parts: Sequence[Part]) -> set[str]:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Table, "append", fail)
    journal = Journal(tmp_path, 1 << 20, DAY_S)
    assert asyncio.run(written_at_once(journal, NAMES)) == [None] * len(NAMES)
    journal.close()
