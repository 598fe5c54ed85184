"""The button that verifies an answer: what `omlx verify` finds, over the dashboard's API."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

import httpx
import pytest

from omlx.engine.loop import ModelForTexts
from tests.admin.running import API, Administered, administered
from tests.server.running import DRAFT, PATIENCE_S, TARGET
from tests.storage import homes

CHAT = "/v1/chat/completions"
PART = "/admin/parts/activity/ended"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with administered(tmp_path_factory.mktemp("home"), draft_model=DRAFT) as running:
        yield running


def answer(browser: httpx.Client, text: str = "Count to nine.", **fields: Any) -> str:
    """The id of an answer with a receipt, unless `fields` refuse it."""
    messages = [{"role": "user", "content": text}]
    body = {"model": TARGET, "messages": messages, "max_tokens": 16, "receipt": True, **fields}
    made = browser.post(CHAT, json=body)
    assert made.status_code == 200, made.text
    return str(made.json()["id"])


def verify(browser: httpx.Client, id: str) -> httpx.Response:
    return browser.post(f"{API}/requests/{id}/verify")


def test_all_choices_are_verified_beside_a_running_request(server: Administered) -> None:
    with server.browser() as browser, server.browser() as client:
        id = answer(browser, n=2, temperature=1, seed=4)
        body = {"model": TARGET, "messages": [{"role": "user", "content": "Go on."}]}
        endless = {"max_tokens": 3000, "stream": True, "logit_bias": server.running.endless()}
        with client.stream("POST", CHAT, json={**body, **endless}) as stream:
            lines = stream.iter_lines()
            next(lines)
            verified = verify(browser, id)
            next(lines)
        record = verified.json()
        assert (verified.status_code, record["same"]) == (200, True)
        assert [choice["id"] for choice in record["choices"]] == [f"{id}-0", f"{id}-1"]
        codes = [choice["reasons"][0]["code"] for choice in record["choices"]]
        assert codes == ["verify.identical"] * 2


def test_the_first_token_that_differs_is_named_with_its_margin(server: Administered) -> None:
    with server.browser() as browser:
        id = answer(browser, temperature=0, ignore_eos=True)
        homes.alter(server.home, f"{id}-0", homes.another_token)
        record = verify(browser, id).json()
    assert record["same"] is False
    (choice,) = record["choices"]
    assert choice["difference"]["place"] == 5
    assert choice["difference"]["margin"] > choice["tolerance"]
    assert "verify.differs" in [reason["code"] for reason in choice["reasons"]]


def test_only_kept_answers_have_a_button(server: Administered) -> None:
    with server.browser() as browser:
        kept, gone, without = answer(browser), answer(browser), answer(browser, receipt=False)
        homes.rows(server.home, "delete from receipts where id = ?", f"{gone}-0")
        part = browser.get(PART).text
        assert f'data-verify="{kept}"' in part
        assert f'data-verify="{gone}"' not in part
        assert f'data-verify="{without}"' not in part
        assert without in part
        missing = verify(browser, without)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "receipt.not_found")


def test_one_answer_is_verified_at_a_time(server: Administered) -> None:
    with server.browser() as browser, ThreadPoolExecutor(2) as pool:
        id = answer(browser)
        with server.running.engine.held():
            posts = [pool.submit(verify, browser, id) for _ in range(2)]
            (refused,), (accepted,) = wait(posts, return_when=FIRST_COMPLETED)
        error = refused.result()
        assert (error.status_code, error.json()["error"]["code"]) == (409, "verify.busy")
        assert accepted.result().json()["same"] is True


def leave(browser: httpx.Client, id: str) -> None:
    """Request a verification until it is accepted, and disconnect after half a second."""
    hurried = httpx.Timeout(PATIENCE_S, read=0.5)
    while True:
        browser.post(f"{API}/requests/{id}/verify", timeout=hurried)


def test_a_verification_ends_with_its_browser(server: Administered) -> None:
    with server.browser() as browser:
        id = answer(browser)
        with server.running.engine.held():
            for _ in range(2):  # the second one is accepted once the first has ended
                with pytest.raises(httpx.ReadTimeout):
                    leave(browser, id)
        while (last := verify(browser, id)).status_code == 409:
            pass
        assert last.json()["same"] is True


def test_an_answer_whose_cache_does_not_fit_is_refused(server: Administered) -> None:
    def limit(size: int | None) -> None:
        def configure(loaded: ModelForTexts) -> None:
            loaded.memory.configure(size, 0)

        server.running.engine.read_text(TARGET, configure).result()

    with server.browser() as browser:
        id = answer(browser, "word " * 520, max_tokens=2)
        limit(1)
        try:
            refused = verify(browser, id)
        finally:
            limit(None)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "memory.full")
        assert verify(browser, id).json()["same"] is True
