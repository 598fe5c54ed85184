"""Stored beginnings: private, bounded, and no reason to fail."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from omlx.server.beginnings import store as stores
from omlx.server.beginnings.beginning import (
    MAX_CHARACTERS,
    MIN_CHARACTERS,
    Beginning,
    beginning_of,
    is_new,
)
from omlx.server.beginnings.store import BeginningStore
from omlx.server.request.content import ATTRIBUTION
from omlx.server.request.generation_request import GenerationRequest
from omlx.text.tools import ToolUse
from tests.storage import homes

DAY_S = 86400.0


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


def beginning(text: str) -> Beginning:
    return Beginning(({"role": "system", "content": text},), (), {})


def request(*messages: tuple[str, object], tools: ToolUse | None = None) -> GenerationRequest:
    shown = [{"role": role, "content": content} for role, content in messages]
    return GenerationRequest(messages=shown, tools=tools)


def test_it_knows_the_beginnings_of_conversations_over_processes(tmp_path: Path) -> None:
    clock, home = Clock(), tmp_path / "home"
    store = BeginningStore(home, wall=clock)
    store.note("m", beginning("a"), "agent/1", 1)
    store.note("m", beginning("a"), "agent/1", 0)
    clock.now += 1
    store.note("m", beginning("b \ud800"), "agent/1", 2)
    store.flush()
    assert {stat.S_IMODE(file.stat().st_mode) for file in home.iterdir()} == {0o600}
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    again = BeginningStore(home, wall=clock)
    again.read()
    assert [(known.beginning, known.conversations) for known in again.known("m")] == [
        (beginning("b \ud800"), 2),
        (beginning("a"), 1),
    ]
    clock.now += 1
    again.note("m", beginning("a"), "agent/2", 1)
    assert [known.beginning for known in again.known("m")] == [
        beginning("a"),
        beginning("b \ud800"),
    ]
    assert again.known("m")[0].client == "agent/2"
    assert again.known("n") == []
    again.forget("m")
    assert all(b"agent" not in file.read_bytes() for file in home.iterdir())


def test_two_servers_of_one_home_add_to_one_table(tmp_path: Path) -> None:
    clock = Clock()
    first, second = (BeginningStore(tmp_path, wall=clock) for _ in range(2))
    first.read()
    second.read()
    first.note("m", beginning("a"), "agent/1", 2)
    first.note("m", beginning("both"), "agent/1", 1)
    first.flush()
    clock.now += 1
    second.note("n", beginning("b"), "agent/2", 2)
    second.note("m", beginning("both"), "agent/2", 1)
    second.flush()
    third = BeginningStore(tmp_path, wall=clock)
    third.read()
    assert [known.beginning for known in third.known("m")] == [beginning("both"), beginning("a")]
    assert third.known("m")[0].client == "agent/2"
    assert [known.beginning for known in third.known("n")] == [beginning("b")]
    second.forget("m")
    first.note("n", beginning("c"), "agent/1", 2)
    first.flush()
    assert first.known("m") == []  # what another server has deleted does not come back
    assert len(first.known("n")) == 2


def test_it_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    store = BeginningStore(tmp_path, wall=clock)
    for number in range(100):
        clock.now += 1
        store.note("m", beginning(f"{number}"), "", 2)
    kept = [known.beginning for known in store.known("m")]
    assert kept == [beginning(f"{99 - i}") for i in range(stores.MAX_BEGINNINGS)]
    monkeypatch.setattr(stores, "TOTAL_CHARACTERS", 2_000)
    store.note("m", beginning("x" * 500), "", 2)
    assert 1 < len(store.known("m")) < 30
    clock.now += 31 * DAY_S
    store.note("m", beginning("new"), "", 2)
    assert [known.beginning for known in store.known("m")] == [beginning("new")]


EARLIER = {"conversations": 2, "client": "agent/1", "used_at": 1e9}


def earlier(model: str, text: str) -> dict[str, object]:
    """A record in a file of an earlier version."""
    return {"model": model, "beginning": json.loads(beginning(text).text), **EARLIER}


def test_the_file_of_an_earlier_version_is_taken_over_and_deleted(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "cache" / "beginnings.json"
    file.parent.mkdir()
    file.write_text(json.dumps([earlier("m", "a"), earlier("n", "b \ud800")]))
    BeginningStore(tmp_path, file, clock).read()
    assert not file.exists()
    again = BeginningStore(tmp_path, file, clock)
    again.read()
    assert [known.beginning for known in again.known("m")] == [beginning("a")]
    assert again.known("n")[0].beginning == beginning("b \ud800")
    assert again.known("n")[0].conversations == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'[{"model": "m"}]', b"\xff"])
def test_a_damaged_file_of_an_earlier_version_costs_nothing(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "beginnings.json"
    file.write_bytes(content)
    store = BeginningStore(tmp_path, file)
    store.read()
    store.note("m", beginning("a"), "", 2)
    store.flush()
    assert [record.getMessage() for record in caplog.records] == ["beginnings of prompts not read"]
    assert not file.exists()
    again = BeginningStore(tmp_path, file)
    again.read()
    assert len(again.known("m")) == 1


def test_a_row_that_is_damaged_is_dropped(tmp_path: Path) -> None:
    store = BeginningStore(tmp_path)
    store.note("m", beginning("a"), "", 2)
    store.note("m", beginning("b"), "", 2)
    store.flush()
    homes.rows(tmp_path, "update beginnings set beginning = '{' where beginning glob '*\"a\"*'")
    store.read()
    assert [known.beginning for known in store.known("m")] == [beginning("b")]
    assert len(homes.rows(tmp_path, "select * from beginnings")) == 1


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    home = tmp_path / "file" / "home"
    (tmp_path / "file").write_text("")
    store = BeginningStore(home)
    store.read()
    store.note("m", beginning("a"), "", 1)
    store.flush()
    store.note("m", beginning("a"), "", 1)
    assert len(store.known("m")) == 1
    (tmp_path / "file").unlink()
    store.flush()
    again = BeginningStore(home)
    again.read()
    assert again.known("m")[0].conversations == 2


def test_the_beginning_of_a_conversation() -> None:
    long = "x" * MIN_CHARACTERS
    tools = ToolUse(({"type": "function", "function": {"name": "look", "description": long}},))
    told = request(("system", long), ("user", "a"))
    begun = beginning_of(told)
    assert begun is not None
    assert begun.messages == ({"role": "system", "content": long},)
    assert is_new(told)
    answered = request(("system", long), ("user", "a"), ("assistant", "b"), ("user", "c"))
    assert beginning_of(answered) == begun
    assert not is_new(answered)
    with_tools = beginning_of(request(("user", "a"), tools=tools))
    assert with_tools is not None
    assert with_tools.key != begun.key
    assert beginning_of(request(("system", "short"), ("user", long))) is None
    assert beginning_of(request(("system", "x" * MAX_CHARACTERS), ("user", "a"))) is None
    assert beginning_of(request(("system", [{"type": "image"}]), ("user", long))) is None
    assert beginning_of(GenerationRequest(prompts=(long,))) is None
    billed = request(("system", f"{ATTRIBUTION} cch=1;"), ("system", long), ("user", "a"))
    assert beginning_of(billed) == begun  # its first line changes with every request
