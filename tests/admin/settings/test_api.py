"""API of the settings of all models; those of one model are in tests/test_model_settings.py."""

from __future__ import annotations

import html
import json
from pathlib import Path

import httpx
import pytest

from omlx.process_memory import machine_bytes
from omlx.settings.store import GLOBAL_FILE, MODELS_FILE, Store
from tests.admin.running import API, administered, change
from tests.server.running import TARGET


def test_a_flag_wins_and_the_answer_says_so(tmp_path: Path) -> None:
    with administered(tmp_path, draft_max=5) as running, running.browser() as client:
        answer = change(client, "settings", draft_max=9).json()
        assert answer["applied"] == {"draft_max": "overridden"}
        view = answer["settings"]["draft_max"]
        assert (view["value"], view["source"], view["stored"], view["locked"]) == (
            5,
            "cli",
            9,
            True,
        )


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("memory_limit", 2 * machine_bytes(), "config.above_machine"),
        ("default_model", "none", "config.no_model"),
        ("draft_model", "none", "draft.not_here"),
    ],
)
def test_a_doubtful_value_is_stored_with_a_warning(
    tmp_path: Path, name: str, value: object, code: str
) -> None:
    with administered(tmp_path) as running, running.browser() as client:
        answer = change(client, "settings", **{name: value})
        assert answer.status_code == 200
        setting = answer.json()["settings"][name]
        assert (setting["stored"], setting["warning"]["code"]) == (value, code)


def test_an_exposed_server_keeps_its_key(tmp_path: Path) -> None:
    with administered(tmp_path, host="0.0.0.0") as running, running.browser() as client:
        assert change(client, "settings", api_key="k").status_code == 200
        answer = change(client, "settings", api_key=None)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "config.exposed")
        assert client.get("/v1/models").status_code == 401


def test_a_server_cannot_be_exposed_without_a_key(tmp_path: Path) -> None:
    with administered(tmp_path) as running, running.browser() as client:
        answer = change(client, "settings", host="0.0.0.0")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "config.exposed")
        assert change(client, "settings", host="0.0.0.0", api_key="k").status_code == 200
        answer = change(client, "settings", api_key=None)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "config.exposed")
        assert change(client, "settings", host=None, api_key=None).status_code == 200


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("api_key", "a\r\nb", "config.secret"),
        ("chat_template_kwargs", {"chat_template": "x"}, "config.reserved"),
        ("mcp_server", ["files=sh -c id"], "config.confirm"),
    ],
)
def test_a_value_that_breaks_requests_or_runs_a_program_unasked_is_refused(
    tmp_path: Path, name: str, value: object, code: str
) -> None:
    with administered(tmp_path) as running, running.browser() as client:
        error = change(client, "settings", **{name: value}).json()["error"]
        assert (error["code"], error["param"]) == (code, name)


def test_a_key_stays_until_an_exposed_server_has_ended(tmp_path: Path) -> None:
    Store(tmp_path).patch({"host": "0.0.0.0", "api_key": "k"})
    with administered(tmp_path) as running, running.browser() as client:
        assert change(client, "settings", host="127.0.0.1").json()["applied"] == {"host": "restart"}
        answer = change(client, "settings", api_key=None)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "config.exposed")


def test_a_corrupt_file_removes_no_key_and_is_reported(tmp_path: Path) -> None:
    Store(tmp_path).patch({"api_key": "k", "draft_max": 9})
    with administered(tmp_path) as running, running.browser() as client:
        assert change(client, "settings", api_key="other").status_code == 200
        file = tmp_path / GLOBAL_FILE
        file.write_bytes(file.read_bytes()[:-10])
        answer = change(client, "settings", port=9000)
        assert answer.status_code == 200
        for key, status in (("other", 200), ("k", 401)):
            assert (
                client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code
                == status
            )
        (note,) = answer.json()["notes"]
        assert note["code"] == "config.corrupt"
        assert note["message"] in html.unescape(client.get("/admin/settings").text)


def test_an_unknown_key_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    with administered(tmp_path) as running, running.browser() as client:
        answer = change(client, "settings", porrt=1)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "porrt")
        (tmp_path / GLOBAL_FILE).write_text(json.dumps({"model_dirs": []}))
        answer = change(client, "settings", port=1)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "config.not_ours")
        assert json.loads((tmp_path / GLOBAL_FILE).read_text()) == {"model_dirs": []}


def test_models_are_listed_loaded_and_unloaded(browser: httpx.Client) -> None:
    address = f"{API}/models/omlx-demo/hybrid"
    assert browser.post(f"{address}/load").json()["state"] == "ready"
    listed = browser.get(f"{API}/models").json()
    states = {model["id"]: model["state"] for model in listed["models"]}
    assert states["omlx-demo/hybrid"] == "ready"
    assert 0 < listed["memory"]["used_bytes"] <= listed["memory"]["limit_bytes"]
    assert browser.post(f"{address}/unload").json()["state"] == "unloaded"


def test_numbers_that_are_not_json_are_refused_and_not_stored(tmp_path: Path) -> None:
    path = f"models/{TARGET}/settings"
    with administered(tmp_path) as running, running.browser() as client:
        revision = client.get(f"{API}/{path}").headers["etag"]
        body = '{"changes": {"chat_template_kwargs": {"a": [NaN]}}}'
        answer = client.patch(f"{API}/{path}", content=body, headers={"If-Match": revision})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request.json")
        assert client.get(f"{API}/{path}").headers["etag"] == revision
    assert not (tmp_path / MODELS_FILE).exists()
