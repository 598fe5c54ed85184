"""Events that a client has and the record lacks: the stitched stream is whole, or refused."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.server.journal import answers
from omlx.server.journal.answer import Replay
from omlx.server.journal.journal import Part, Table
from omlx.server.request.dialect import RESPONSES
from tests.server.journal.streams import (
    PATHS,
    Event,
    alike,
    body_of,
    copy_files,
    journaled,
    numbered,
    said,
)
from tests.server.running import PATIENCE_S, TARGET, Running

KEY = {"Idempotency-Key": "one"}


def long_body(speller: Running, dialect: str) -> Event:
    """A stream of some 400 tokens: it has not ended when a client has its first events."""
    httpx.post(f"{speller.url}/v1/models/{TARGET}/load", timeout=PATIENCE_S).raise_for_status()
    body = body_of(dialect, "text", model=TARGET, seed=1, speculation="off")
    if dialect == "responses":
        return body | {"input": "word " * 90, "max_output_tokens": 400}
    return body | {"logit_bias": speller.endless(), "max_tokens": 400}


def returns(client: httpx.Client, dialect: str, body: Event, id: str, last: int) -> httpx.Response:
    """Ask for the events behind number `last`."""
    if dialect == "responses":
        url = f"{PATHS[dialect]}/{id}?stream=true&starting_after={last}"
        return client.get(url)
    return client.post(PATHS[dialect], json=body, headers=KEY | {"Last-Event-ID": str(last)})


def refused(response: httpx.Response) -> None:
    assert (response.status_code, response.json()["error"]["code"]) == (409, "answer.lost")


def words(dialect: str, events: list[tuple[int, Event]]) -> Any:
    return said(dialect, alike([event for _, event in events]))


def id_of(event: Event) -> str:
    return str(event.get("id") or event["response"]["id"])


def read(client: httpx.Client, dialect: str, body: Event) -> list[tuple[int, Event]]:
    with client.stream("POST", PATHS[dialect], json=body, headers=KEY) as stream:
        return list(numbered(stream))


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_events_that_could_not_be_written(
    speller: Running, tmp_path: Path, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full behind the first tokens, and the process is killed when a client has all."""
    body, written = long_body(speller, dialect), []

    def write_once(table: Table, parts: Sequence[Part]) -> set[str]:
        if written:
            raise sqlite3.OperationalError("database or disk is full")
        written.extend(parts)
        return append(table, parts)

    append = Table.append
    monkeypatch.setattr(Table, "append", write_once)
    with journaled(speller, tmp_path / "a") as (client, _):
        events = read(client, dialect, body)
    monkeypatch.setattr(Table, "append", append)
    numbers = [number for number, _ in events]
    assert numbers == sorted(set(numbers))
    kept = sum(number < len(numbers) for number in numbers)
    assert 0 < kept < len(numbers)
    with journaled(speller, tmp_path / "a") as (client, _):
        id = id_of(events[0][1])
        refused(returns(client, dialect, body, id, numbers[-1]))
        rest = list(numbered(returns(client, dialect, body, id, kept - 1)))
        stitched = [*events[:kept], *rest]
        assert [number for number, _ in stitched] == list(range(len(stitched)))
        assert words(dialect, stitched) == words(dialect, events)
        refused(returns(client, dialect, body, id, numbers[-1]))  # it has ended here, too


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_events_that_a_power_cut_has_taken(
    speller: Running, tmp_path: Path, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client has all, the record only the first tokens; the machine was started since then."""
    body = long_body(speller, dialect)

    def write_and_copy(table: Table, parts: Sequence[Part]) -> set[str]:
        here = append(table, parts)
        if not (tmp_path / "b").exists():
            copy_files(tmp_path / "a", tmp_path / "b")
        return here

    append = Table.append
    monkeypatch.setattr(Table, "append", write_and_copy)
    with journaled(speller, tmp_path / "a") as (client, _):
        events = read(client, dialect, body)
    monkeypatch.setattr(Table, "append", append)
    monkeypatch.setattr(answers, "booted_at", time.time)
    with journaled(speller, tmp_path / "b") as (client, _):
        id = id_of(events[0][1])
        rest = list(numbered(returns(client, dialect, body, id, 0)))
        assert words(dialect, [events[0], *rest]) == words(dialect, events)
        refused(returns(client, dialect, body, id, events[-1][0]))  # though as many events are here
        assert rest[-1][0] > events[-1][0]
        assert not list(numbered(returns(client, dialect, body, id, rest[-1][0])))


def test_this_process_knows_its_own_events() -> None:
    replay = Replay(RESPONSES)
    replay.add([{"type": "a", "sequence_number": 0}] * 2)
    replay.jump()
    first = replay.next
    replay.add([{"type": "b", "sequence_number": 2}] * 2)
    replay.finish()
    for one in (replay, Replay.of(RESPONSES, replay.content)):
        known = [one.after(number) for number in (-1, 0, 1, first, first + 1)]
        assert known == [0, 1, 2, 3, 4]
        assert [one.after(number) for number in (2, first - 1, first + 2)] == [None] * 3
    assert b'"sequence_number":%d' % first in replay.content
