"""The API of the chat page: the server's responses, for a session and apart from API clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.installation import extra_command
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.models.vision import support
from omlx.server.request.content import MAX_BYTES
from tests.admin.running import API, Administered, administered
from tests.server.media.pdfs import encrypted, pdf
from tests.server.running import DRAFT, HYBRID, SEEING, TARGET, VISION

RESPONSES = f"{API}/chat/responses"
BODY: dict[str, Any] = {"model": TARGET, "input": "Count to 20.", "background": True, "seed": 1}


def streamed(client: httpx.Client, method: str, path: str, **options: Any) -> list[dict[str, Any]]:
    with client.stream(method, path, **options) as answer:
        assert answer.status_code == 200
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{API}/chat/models"),
        ("POST", f"{API}/chat/files?model=m&name=n"),
        ("POST", f"{API}/chat/tools/web"),
        ("POST", f"{API}/chat/tools"),
        ("POST", RESPONSES),
        ("GET", f"{RESPONSES}/resp_1"),
        ("DELETE", f"{RESPONSES}/resp_1"),
        ("POST", f"{RESPONSES}/resp_1/cancel"),
    ],
)
def test_nothing_is_answered_without_a_session(
    server: Administered, method: str, path: str
) -> None:
    with server.browser(logged_in=False) as client:
        answer = client.request(method, path)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "auth.session"


def test_a_page_on_another_port_is_refused(server: Administered) -> None:
    with server.browser() as client:
        other = {"Origin": "http://127.0.0.1:1"}
        assert client.post(RESPONSES, json=BODY, headers=other).status_code == 403
        assert client.post(f"{API}/chat/tools/web", headers=other).status_code == 403
        # Images and links of such a page send no Origin, and start no server.
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


def test_models_come_with_what_the_page_has_to_know(server: Administered) -> None:
    with server.browser() as client:
        models = {model["id"]: model for model in client.get(f"{API}/chat/models").json()["data"]}
        assert models[TARGET]["input_modalities"] == ["text"]
        assert "reasoning" in models[TARGET]["capabilities"]
        assert models[TARGET]["context_length"] == 4096


def models_of(server: Administered) -> dict[str, Any]:
    with server.browser() as client:
        return {model["id"]: model for model in client.get(f"{API}/chat/models").json()["data"]}


def test_models_say_what_they_cannot_do_and_which_only_draft(server: Administered) -> None:
    models = models_of(server)
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
    ("default", "asked", "first"),
    [(None, "", TARGET), (DRAFT, "", DRAFT), (None, HYBRID, HYBRID), (None, "no/such", TARGET)],
)
def test_it_is_the_asked_one_the_default_or_the_largest_that_fits(
    tmp_path: Path, default: str | None, asked: str, first: str
) -> None:
    registry = scan_places([Folder("bundled", BUNDLED)])  # by name
    with administered(tmp_path, registry, default) as server, server.browser() as client:
        page = client.get("/admin/chat", params={"model": asked}).text
        assert f'data-model="{first}"' in page
