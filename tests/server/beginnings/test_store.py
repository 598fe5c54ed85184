"""The file of beginnings: private, bounded, and no reason to fail."""

from __future__ import annotations

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
from omlx.server.request.generation_request import GenerationRequest
from omlx.text.tools import ToolUse

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


def test_it_returns_what_two_conversations_had_over_processes(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "cache" / "beginnings.json"
    store = BeginningStore(file, clock)
    store.note("m", beginning("a"), "agent/1", 1)
    store.note("m", beginning("a"), "agent/1", 0)
    store.note("m", beginning("b \ud800"), "agent/1", 2)
    store.flush()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    again = BeginningStore(file, clock)
    again.read()
    assert [known.beginning for known in again.returning("m")] == [beginning("b \ud800")]
    clock.now += 1
    again.note("m", beginning("a"), "agent/2", 1)
    assert [known.beginning for known in again.returning("m")] == [
        beginning("a"),
        beginning("b \ud800"),
    ]
    assert again.returning("m")[0].client == "agent/2"
    assert again.returning("n") == []
    again.forget("m")
    assert b"agent" not in file.read_bytes()


def test_two_servers_of_one_home_write_into_one_file(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "cache" / "beginnings.json"
    first, second = BeginningStore(file, clock), BeginningStore(file, clock)
    first.read()
    second.read()
    first.note("m", beginning("a"), "agent/1", 2)
    first.note("m", beginning("both"), "agent/1", 1)
    first.flush()
    clock.now += 1
    second.note("n", beginning("b"), "agent/2", 2)
    second.note("m", beginning("both"), "agent/2", 1)
    second.flush()
    third = BeginningStore(file, clock)
    third.read()
    assert [known.beginning for known in third.returning("m")] == [
        beginning("both"),
        beginning("a"),
    ]
    assert third.returning("m")[0].client == "agent/2"
    assert [known.beginning for known in third.returning("n")] == [beginning("b")]
    second.forget("m")
    first.note("n", beginning("c"), "agent/1", 2)
    first.flush()
    assert first.returning("m") == []  # what another server has deleted does not come back
    assert len(first.returning("n")) == 2


def test_it_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    store = BeginningStore(tmp_path / "a", clock)
    for number in range(100):
        clock.now += 1
        store.note("m", beginning(f"{number}"), "", 2)
    kept = [known.beginning for known in store.returning("m")]
    assert kept == [beginning(f"{99 - i}") for i in range(stores.MAX_BEGINNINGS)]
    monkeypatch.setattr(stores, "MAX_CHARACTERS", 2_000)
    store.note("m", beginning("x" * 500), "", 2)
    assert 1 < len(store.returning("m")) < 30
    clock.now += 31 * DAY_S
    store.note("m", beginning("new"), "", 2)
    assert [known.beginning for known in store.returning("m")] == [beginning("new")]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'[{"model": "m"}]', b"\xff"])
def test_a_damaged_file_is_begun_again(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "beginnings.json"
    file.write_bytes(content)
    store = BeginningStore(file)
    store.read()
    store.note("m", beginning("a"), "", 2)
    store.flush()
    again = BeginningStore(file)
    again.read()
    assert len(again.returning("m")) == 1


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = BeginningStore(tmp_path / "file" / "beginnings.json")
    store.read()
    store.note("m", beginning("a"), "", 2)
    store.flush()
    assert len(store.returning("m")) == 1
    (tmp_path / "file").unlink()
    store.flush()
    again = BeginningStore(tmp_path / "file" / "beginnings.json")
    again.read()
    assert len(again.returning("m")) == 1


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
