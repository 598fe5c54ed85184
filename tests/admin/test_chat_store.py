"""Conversations that the server keeps, for all browsers that log in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.admin.running import API, Administered, administered, change

PATH = f"{API}/chat/conversations"


def conversation(id: str, text: str = "Hello") -> dict[str, Any]:
    message = {"id": "1", "conversation": id, "role": "user", "text": text}
    return {"head": {"id": id, "title": text}, "messages": [message], "images": []}


@pytest.fixture
def storing(tmp_path: Path) -> Iterator[Administered]:
    with administered(tmp_path, chat_store=True) as server:
        yield server


def test_nothing_is_kept_unless_the_setting_says_so(tmp_path: Path) -> None:
    with administered(tmp_path) as server, server.browser() as client:
        for method, path in (("GET", PATH), ("PUT", f"{PATH}/a"), ("DELETE", PATH)):
            answer = client.request(method, path, json=conversation("a"))
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "chat.store_off")
        assert not (tmp_path / "chats").exists()
        assert "data-stored" not in client.get("/admin/chat").text
        assert change(client, "settings", chat_store=True).json()["applied"] == {
            "chat_store": "at_once"
        }
        assert client.get(PATH).json() == {"data": []}
        assert "data-stored" in client.get("/admin/chat").text
    with administered(tmp_path) as server, server.browser(logged_in=False) as client:
        assert client.get(PATH).status_code == 401


def test_a_conversation_is_kept_replaced_and_deleted(storing: Administered) -> None:
    with storing.browser() as client:
        first = client.put(f"{PATH}/a", json=conversation("a")).json()["version"]
        second = client.put(f"{PATH}/a", json=conversation("a", "Again")).json()["version"]
        assert first != second
        assert client.get(PATH).json()["data"] == [{"id": "a", "version": second, "deleted": False}]
        file = storing.home / "chats" / "a.json"
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
    with storing.browser() as other:
        assert other.get(f"{PATH}/a").json() == conversation("a", "Again")
        assert other.delete(f"{PATH}/a").status_code == 204
        (left,) = other.get(PATH).json()["data"]
        assert left["deleted"]
        assert left["version"] != second
        assert other.get(f"{PATH}/a").status_code == 404
        other.put(f"{PATH}/b", json=conversation("b"))
        assert other.delete(PATH).status_code == 204
        assert all(entry["deleted"] for entry in other.get(PATH).json()["data"])


@pytest.mark.parametrize(
    ("id", "body", "status"),
    [
        ("a", b"{", 400),
        ("a", b"[]", 400),
        ("a", b'{"head": {"id": "b"}}', 400),
        ("a", b"[" * 9999, 400),
        ("..%2fadmin", b'{"head": {"id": "../admin"}}', 404),
        (".admin", b'{"head": {"id": ".admin"}}', 404),
        ("a" * 65, b'{"head": {"id": "%s"}}' % (b"a" * 65), 404),
    ],
)
def test_what_is_no_conversation_is_refused(
    storing: Administered, id: str, body: bytes, status: int
) -> None:
    with storing.browser() as client:
        assert client.put(f"{PATH}/{id}", content=body).status_code == status
        assert client.get(PATH).json() == {"data": []}


def test_other_files_in_the_folder_are_no_conversations(storing: Administered) -> None:
    with storing.browser() as client:
        client.put(f"{PATH}/a", json=conversation("a"))
        for name in ("._a.json", "a copy.json"):
            (storing.home / "chats" / name).write_text("{}")
        assert [entry["id"] for entry in client.get(PATH).json()["data"]] == ["a"]
        assert client.delete(PATH).status_code == 204
        assert [entry["deleted"] for entry in client.get(PATH).json()["data"]] == [True]


def test_a_disk_that_fails_is_named(storing: Administered) -> None:
    (storing.home / "chats").write_text("a file in the place of the folder")
    with storing.browser() as client:
        answer = client.put(f"{PATH}/a", json=conversation("a"))
        assert answer.json()["error"]["code"] == "config.unwritable"
        assert answer.status_code >= 400
