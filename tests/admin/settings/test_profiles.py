"""API and page of a model's profiles."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from omlx.settings.store import Store
from tests.admin.running import API, Administered, administered, change
from tests.server.running import TARGET

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
