"""The dashboard's API of named keys, and the names of keys in the list of requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.admin.connect import KeysView, keys_view
from omlx.server.http.guard import ApiKeys
from omlx.settings.keys import KeyFile
from tests.admin.running import API, Administered, administered
from tests.server.running import TARGET

MAIN = "the-main-key"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with administered(tmp_path_factory.mktemp("home"), api_key=MAIN) as running:
        yield running


def ask(server: Administered, key: str) -> httpx.Response:
    body: dict[str, Any] = {"model": TARGET, "messages": [{"role": "user", "content": "a"}]}
    headers = {"Authorization": f"Bearer {key}", "User-Agent": "robot/1"}
    return httpx.post(
        f"{server.running.url}{CHAT}", json=body | {"max_tokens": 1}, headers=headers, timeout=60
    )


def test_a_key_is_made_used_shown_by_name_and_revoked(
    server: Administered, browser: httpx.Client
) -> None:
    wanted = {"name": "phone", "models": ["target", "org/*"], "requests_per_minute": 60}
    answer = browser.post(f"{API}/keys", json=wanted)
    assert answer.status_code == 201
    made = answer.json()
    assert made["unmatched"] == ["org/*"]
    listed = browser.get(f"{API}/keys")
    assert made["key"] not in listed.text
    (record,) = [key for key in listed.json()["keys"] if key["name"] == "phone"]
    assert {name: record[name] for name in wanted} == wanted
    assert ask(server, made["key"]).status_code == 200
    assert ask(server, MAIN).status_code == 200
    newest = browser.get(f"{API}/live?since=0").json()["answers"][-2:]
    assert [answer["key"] for answer in newest] == ["phone", "api_key"]
    for path in ("/admin/activity", "/admin/parts/overview"):
        page = browser.get(path).text
        assert page.count("robot/1 · phone") == 1
        assert "robot/1\n" in page or "robot/1<" in page
    by_key = browser.get(f"{API}/statistics").json()["by_key"]
    assert {line["name"] for line in by_key} == {"phone", "api_key"}
    assert browser.delete(f"{API}/keys/phone").status_code == 204
    assert ask(server, made["key"]).status_code == 401


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"name": "taken"}, 409, "name"),
        ({"name": "dashboard"}, 400, "name"),
        ({"name": "<b>"}, 400, "name"),
        ({"name": ""}, 400, "name"),
        ({"models": []}, 400, "models"),
        ({"models": ["a b"]}, 400, "models"),
        ({"requests_per_minute": 0}, 400, "requests_per_minute"),
        ({"requests_per_minute": "many"}, 400, "requests_per_minute"),
        ({"sha256": "0"}, 400, "sha256"),
    ],
)
def test_a_refusal_names_its_field(
    browser: httpx.Client, changes: dict[str, Any], status: int, field: str
) -> None:
    browser.post(f"{API}/keys", json={"name": "taken"})
    refused = browser.post(f"{API}/keys", json={"name": "new"} | changes)
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, field)
    assert "new" not in [key["name"] for key in browser.get(f"{API}/keys").json()["keys"]]
    assert browser.delete(f"{API}/keys/new").status_code == 404


def test_the_view_says_what_is_in_force(tmp_path: Path) -> None:
    file = KeyFile(tmp_path)
    keys = ApiKeys(None, file)
    assert keys_view(keys) == KeysView((), None, required=False, has_main=False)
    file.add("all")
    key = file.add("some", ["org/*"], 7)
    rows = keys_view(keys).rows
    assert [row.name for row in rows] == ["all", "some"]
    some = rows[1]
    assert (some.ending, some.models, some.may_use_all) == (key[-4:], ("org/*",), False)
    assert some.requests_per_minute == 7
    assert rows[0].may_use_all
    file.path.write_text("{}")
    damaged = keys_view(keys)
    assert damaged.rows == rows
    assert damaged.problem is not None
    assert damaged.problem.code == "keys.invalid"
    file.path.unlink()
    assert keys_view(keys) == KeysView((), None, required=True, has_main=False)
