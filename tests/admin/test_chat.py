"""The API of the chat page: responses for a session, and conversations that the server keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.machine import extra_command
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.models.vision import support
from omlx.server.request.content import MAX_BYTES
from tests.admin.running import API, Administered, administered, change
from tests.server.media.pdfs import encrypted, pdf
from tests.server.running import DRAFT, HYBRID, SEEING, TARGET, VISION

RESPONSES = f"{API}/chat/responses"
BODY: dict[str, Any] = {"model": TARGET, "input": "Count to 20.", "background": True, "seed": 1}


def streamed(client: httpx.Client, method: str, path: str, **options: Any) -> list[dict[str, Any]]:
    with client.stream(method, path, **options) as answer:
        assert answer.status_code == 200
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_images_and_links_of_another_page_start_no_server(server: Administered) -> None:
    """They send no Origin."""
    with server.browser() as client:
        assert client.get(f"{API}/chat/tools/web").status_code == 405


@pytest.mark.parametrize("arguments", ["{", "[]", "[" * 9999])
def test_arguments_of_a_tool_are_an_object(server: Administered, arguments: str) -> None:
    with server.browser() as client:
        call = {"name": "web__search", "arguments": arguments}
        answer = client.post(f"{API}/chat/tools", json=call)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "toolbox.arguments")


def test_an_answer_is_followed_again_until_the_browser_has_it(server: Administered) -> None:
    with server.browser() as client:
        events = streamed(client, "POST", RESPONSES, json=BODY | {"stream": True})
        assert events[-1]["type"] == "response.completed"
        one = f"{RESPONSES}/{events[-1]['response']['id']}"
        following = {"stream": "true", "starting_after": "1"}
        assert streamed(client, "GET", one, params=following) == events[2:]
        for _ in range(2):  # two windows say that they have it
            assert client.delete(one).status_code == 204
        assert client.get(one, params=following).status_code == 404


def test_clients_of_the_api_do_not_see_answers_of_the_chat(server: Administered) -> None:
    with server.browser() as client:
        mine = streamed(client, "POST", RESPONSES, json=BODY | {"stream": True})[-1]["response"]
        theirs = client.post("/v1/responses", json=BODY | {"background": False}).json()
        assert client.get(f"/v1/responses/{mine['id']}").status_code == 404
        assert client.get(f"{RESPONSES}/{theirs['id']}").status_code == 404
        for name in ("previous_response_id", "input"):
            linked: Any = mine["id"]
            if name == "input":
                linked = [{"type": "item_reference", "id": mine["output"][-1]["id"]}]
            assert client.post("/v1/responses", json=BODY | {name: linked}).status_code == 400


def models_of(server: Administered) -> dict[str, Any]:
    with server.browser() as client:
        return {model["id"]: model for model in client.get(f"{API}/chat/models").json()["data"]}


def test_models_come_with_what_the_page_has_to_know(server: Administered) -> None:
    models = models_of(server)
    assert models[TARGET]["input_modalities"] == ["text"]
    assert "reasoning" in models[TARGET]["capabilities"]
    assert models[TARGET]["context_length"] == 4096
    assert models[TARGET]["no_vision"]["code"] == "vision.off.text"
    assert (models[TARGET]["fits"], models[HYBRID]["state"]) == (True, "unloaded")
    assert [name for name, model in models.items() if model["drafts_for_others"]] == [DRAFT]


def test_a_missing_extra_is_named_with_the_command_of_this_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "_PACKAGES", ("no_such_package",))
    with administered(tmp_path, SEEING) as server:
        reason = models_of(server)[VISION]["no_vision"]
    assert reason["message"].endswith(extra_command("vision"))


def read_file(client: httpx.Client, content: bytes, model: str = TARGET) -> httpx.Response:
    params = {"model": model, "name": "a.txt"}
    return client.post(f"{API}/chat/files", params=params, content=content)


def test_a_file_comes_back_as_text_with_its_tokens(server: Administered) -> None:
    with server.browser() as client:
        read = read_file(client, b"\xef\xbb\xbfCount to 20.").json()
        assert (read["text"], read["tokens"] > 2) == ("Count to 20.", True)
        assert read_file(client, pdf("one", "two")).json()["text"] == "one\n\ntwo"
        assert read_file(client, b"x", "no/such").json() == {"text": "x", "tokens": None}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"\0\x01", "file.unknown"),
        (encrypted(pdf("x")), "file.encrypted"),
        (pdf(""), "file.no_text"),
        (pdf("x")[:20], "file.broken"),
        (bytes(MAX_BYTES + 1), "file.limits"),
    ],
)
def test_a_file_without_text_is_refused_by_name(
    server: Administered, content: bytes, code: str
) -> None:
    with server.browser() as client:
        answer = read_file(client, content)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["params"]["name"]) == (400, code, "a.txt")


@pytest.mark.parametrize(
    ("default", "asked"),
    [(None, {"": TARGET, HYBRID: HYBRID, "no/such": TARGET}), (DRAFT, {"": DRAFT})],
)
def test_it_is_the_asked_one_the_default_or_the_largest_that_fits(
    tmp_path: Path, default: str | None, asked: dict[str, str]
) -> None:
    registry = scan_places([Folder("bundled", BUNDLED)])  # by name
    with administered(tmp_path, registry, default) as server, server.browser() as client:
        for name, first in asked.items():
            page = client.get("/admin/chat", params={"model": name}).text
            assert f'data-model="{first}"' in page


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


def test_what_is_no_conversation_is_refused(storing: Administered) -> None:
    with storing.browser() as client:
        for id, body, status in (
            ("a", b"{", 400),
            ("a", b"[]", 400),
            ("a", b'{"head": {"id": "b"}}', 400),
            ("a", b"[" * 9999, 400),
            ("..%2fadmin", b'{"head": {"id": "../admin"}}', 404),
            (".admin", b'{"head": {"id": ".admin"}}', 404),
            ("a" * 65, b'{"head": {"id": "%s"}}' % (b"a" * 65), 404),
        ):
            assert client.put(f"{PATH}/{id}", content=body).status_code == status, (id, body)
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
