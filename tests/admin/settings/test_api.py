"""Settings of all models and of profiles; those of one model: tests/test_model_settings.py."""

from __future__ import annotations

import html
import json
from pathlib import Path

import httpx
import pytest

from omlx.admin.models.model_page import SETTINGS
from omlx.admin.settings.view import SettingsView, SettingView, setting_views
from omlx.catalog import catalog
from omlx.machine import machine_bytes
from omlx.settings.layers import Layer, Source, resolve
from omlx.settings.schema import Group, Scope, Value, table
from omlx.settings.store import GLOBAL_FILE, Store
from tests.admin.running import API, Administered, administered, change
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


def test_a_doubtful_value_is_stored_with_a_warning(fresh: Administered) -> None:
    with fresh.browser() as client:
        for name, value, code in (
            ("memory_limit", 2 * machine_bytes(), "config.above_machine"),
            ("default_model", "none", "config.no_model"),
            ("draft_model", "none", "draft.not_here"),
        ):
            answer = change(client, "settings", **{name: value})
            assert answer.status_code == 200
            setting = answer.json()["settings"][name]
            assert (setting["stored"], setting["warning"]["code"]) == (value, code)


def exposed(answer: httpx.Response) -> bool:
    """Whether a change is refused that would open an exposed server to all."""
    return (answer.status_code, answer.json().get("error", {}).get("code")) == (
        400,
        "config.exposed",
    )


def test_an_exposed_server_keeps_its_key(tmp_path: Path) -> None:
    with administered(tmp_path, host="0.0.0.0") as running, running.browser() as client:
        assert change(client, "settings", api_key="k").status_code == 200
        assert exposed(change(client, "settings", api_key=None))
        assert client.get("/v1/models").status_code == 401


def test_a_server_cannot_be_exposed_without_a_key(fresh: Administered) -> None:
    with fresh.browser() as client:
        assert exposed(change(client, "settings", host="0.0.0.0"))
        assert change(client, "settings", host="0.0.0.0", api_key="k").status_code == 200
        assert exposed(change(client, "settings", api_key=None))
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
    browser: httpx.Client, name: str, value: object, code: str
) -> None:
    error = change(browser, "settings", **{name: value}).json()["error"]
    assert (error["code"], error["param"]) == (code, name)


def test_a_key_stays_until_an_exposed_server_has_ended(tmp_path: Path) -> None:
    Store(tmp_path).patch({"host": "0.0.0.0", "api_key": "k"})
    with administered(tmp_path) as running, running.browser() as client:
        assert change(client, "settings", host="127.0.0.1").json()["applied"] == {"host": "restart"}
        assert exposed(change(client, "settings", api_key=None))


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


def test_numbers_that_are_not_json_are_refused_and_not_stored(browser: httpx.Client) -> None:
    path = f"{API}/models/{TARGET}/settings"
    revision = browser.get(path).headers["etag"]
    body = '{"changes": {"chat_template_kwargs": {"a": [NaN]}}}'
    answer = browser.patch(path, content=body, headers={"If-Match": revision})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request.json")
    assert browser.get(path).headers["etag"] == revision


def view(
    name: str, scope: Scope = Scope.GLOBAL, *, cli: dict[str, Value] | None = None, **stored: Value
) -> SettingView:
    own = Layer(Source.MODEL if scope is Scope.MODEL else Source.GLOBAL, stored)
    return setting_views(scope, resolve([own, Layer(Source.CLI, cli or {})]), own)[name]


@pytest.mark.parametrize(
    ("name", "stored", "control", "text"),
    [
        ("port", None, "number", ""),
        ("port", 8080, "number", "8080"),
        ("temperature", 0.7, "number", "0.7"),
        ("lmstudio", False, "switch", "false"),
        ("log_level", "debug", "choice", "debug"),
        ("allow_host", ("a", "b"), "lines", "a\nb"),
        ("chat_template_kwargs", {"深": 1}, "object", '{"深": 1}'),
        ("memory_limit", 3 << 30, "size", "3GB"),
        ("memory_limit", 1_000_000, "size", "1000000"),
        ("memory_limit", 0, "size", "0"),
        ("default_model", "org/x", "model", "org/x"),
        ("api_key", "secret", "secret", ""),
    ],
)
def test_a_field_holds_the_stored_value_as_it_is_typed(
    name: str, stored: Value, control: str, text: str
) -> None:
    field = view(name, **({} if stored is None else {name: stored}))
    assert (field.control, field.text, field.is_set) == (control, text, stored is not None)


def test_a_field_that_a_flag_overrides() -> None:
    field = view("draft_max", Scope.MODEL, cli={"draft_max": 5}, draft_max=9)
    assert (field.name, field.control, field.keyboard) == ("draft_max", "number", "numeric")
    assert (field.text, field.effect, field.is_set) == ("9", "5", True)
    assert (field.source, field.locked, field.lock) == (Source.CLI, True, "--draft-max")
    assert (field.record()["low"], field.record()["high"]) == (1, 64)
    assert not field.confirm


def test_a_number_that_may_be_a_fraction_or_negative_gets_the_full_keyboard() -> None:
    assert view("temperature").keyboard == "text"
    assert view("presence_penalty").keyboard == "text"


def field_names(groups: dict[Group, list[SettingView]]) -> list[str]:
    return [field.name for fields in groups.values() for field in fields]


@pytest.mark.parametrize("scope", [Scope.GLOBAL, Scope.MODEL])
def test_every_setting_that_can_be_stored_has_a_field_once(scope: Scope) -> None:
    settings = SettingsView("r", setting_views(scope, resolve(), Layer(Source.GLOBAL, {})))
    names = field_names(settings.groups())
    assert sorted(names) == sorted(row.name for row in table().values() if row.allowed_in(scope))
    others = field_names(settings.groups(without=SETTINGS))
    assert set(names) - set(others) == SETTINGS


def test_every_field_has_a_label_and_every_label_a_field() -> None:
    stored = {
        row.name
        for row in table().values()
        if any(map(row.allowed_in, (Scope.GLOBAL, Scope.MODEL, Scope.PROFILE)))
    }
    keys = [key.split(".") for key in catalog()]
    assert {key[1] for key in keys if key[0] == "settings" and key[-1] == "label"} == stored


MODEL = f"models/{TARGET}/settings"
FAST = f"{MODEL}?profile=fast"
PAGE = f"/admin/profiles/{TARGET}"


def completed(client: httpx.Client, model: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi."}]}
    return client.post("/v1/chat/completions", json=body)


def test_a_profile_is_made_changed_used_and_removed(tmp_path: Path) -> None:
    with administered(tmp_path, max_tokens=4) as server, server.browser() as client:
        before = client.get(f"{API}/{FAST}").json()
        assert (before["profile"], before["settings"]["max_tokens"]["set"]) == ("fast", False)
        assert before["settings"]["max_tokens"]["locked"] is False, "a profile goes before flags"
        assert {"draft_model", "alias", "port"}.isdisjoint(before["settings"])
        assert completed(client, f"{TARGET}:fast").status_code == 404
        answer = change(client, FAST, max_tokens=2, speculation="off").json()
        assert answer["applied"] == {"max_tokens": "at_once", "speculation": "at_once"}
        assert answer["settings"]["max_tokens"]["source"] == "profile"
        used = completed(client, f"{TARGET}:fast").json()
        assert used["usage"]["completion_tokens"] == 2
        assert completed(client, TARGET).json()["usage"]["completion_tokens"] == 4
        assert client.get(f"{API}/{MODEL}").json()["settings"]["speculation"]["set"] is False
        assert client.delete(f"{API}/{FAST}").status_code == 204
        assert completed(client, f"{TARGET}:fast").status_code == 404
        assert Store(tmp_path).read().layer(TARGET, "fast").values == {}


def test_two_editors_of_a_profile_do_not_overwrite_each_other(
    server: Administered, browser: httpx.Client
) -> None:
    revision = browser.get(f"{API}/{FAST}").headers["etag"]
    change(browser, FAST, top_k=5)
    body = {"changes": {"top_k": 6}}
    late = browser.patch(f"{API}/{FAST}", json=body, headers={"If-Match": revision})
    assert late.status_code == 412
    change(browser, MODEL, top_k=9)
    assert browser.get(f"{API}/{FAST}").json()["settings"]["top_k"]["value"] == 5


@pytest.mark.parametrize(
    ("query", "changes", "code"),
    [
        ("?profile=latest", {"top_k": 1}, "config.profile_name"),
        ("?profile=a:b", {"top_k": 1}, "config.profile_name"),
        ("?profile=", {"top_k": 1}, "config.profile_name"),
        ("?profile=x", {"draft_model": "a/b"}, "config.not_stored"),
        ("?profile=x", {"temperature": 9}, "config.float"),
        ("?profile=x", {"speculation": "medusa"}, "config.strategy"),
        ("?profile=x", {"draft_min": 9, "draft_max": 2}, "config.bounds"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(
    server: Administered, browser: httpx.Client, query: str, changes: dict[str, object], code: str
) -> None:
    etag = browser.get(f"{API}/{MODEL}?profile=x").headers["etag"]
    body = {"changes": changes}
    answer = browser.patch(f"{API}/{MODEL}{query}", json=body, headers={"If-Match": etag})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert "x" not in Store(server.home).read().profiles(TARGET)


def test_what_is_removed_must_be_named(server: Administered, browser: httpx.Client) -> None:
    change(browser, MODEL, top_p=0.5)
    answer = browser.delete(f"{API}/{MODEL}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request.missing")
    assert Store(server.home).read().layer(TARGET).values["top_p"] == 0.5


def test_pages_name_profiles_and_refuse_bad_names(
    server: Administered, browser: httpx.Client
) -> None:
    change(browser, f"{MODEL}?profile=my.deep-1", temperature=0.25)
    model = browser.get(f"/admin/models/{TARGET}").text
    assert f'href="{PAGE}?profile=my.deep-1"' in model
    assert f"{TARGET}:my.deep-1" in model
    page = browser.get(f"{PAGE}?profile=my.deep-1").text
    assert 'value="0.25"' in page
    opened = browser.post(PAGE, data={"profile": "a b&c"})
    assert opened.headers["location"] == f"{PAGE}?profile=a+b%26c"
    for query in ("", "?profile=", "?profile=latest", "?profile=%3Cb%3E"):
        answer = browser.get(PAGE + query)
        assert (answer.status_code, "cannot be the name" in answer.text) == (404, True)
        assert "<b>" not in answer.text
    assert browser.get("/admin/profiles/no/model?profile=a").status_code == 404


def test_a_profile_can_be_chosen_where_a_model_can(
    server: Administered, browser: httpx.Client
) -> None:
    change(browser, f"{MODEL}?profile=chosen", temperature=0.25)
    option = f'<option value="{TARGET}:chosen"'
    for page in ("/admin/settings", "/admin/connect"):
        assert option in browser.get(page).text
    assert option not in browser.get(f"/admin/models/{TARGET}").text, "no draft model"
    asked = browser.get(f"/admin/chat?model={TARGET}:chosen").text
    assert f'data-model="{TARGET}:chosen"' in asked
    models = browser.get("/admin/api/chat/models").json()["data"]
    (profile,) = (model for model in models if model["id"] == f"{TARGET}:chosen")
    assert (profile["parent"], profile["profile"]) == (TARGET, {"temperature": 0.25})
