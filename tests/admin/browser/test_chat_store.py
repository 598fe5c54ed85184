"""Conversations that the server keeps, in two browsers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.admin.browser.site import Site, open_site
from tests.admin.browser.test_chat import COUNT, answers, ask, button, expect_answers, talking
from tests.admin.browser.test_chat_conversations import organise


@pytest.fixture
def storing(browser: Browser, tmp_path: Path) -> Iterator[Site]:
    with open_site(browser, tmp_path, chat_store=True) as site:
        yield site


def exchange(page: Page) -> None:
    """Reload the page, which asks the server at once, and wait until it has answered."""
    with page.expect_response("**/chat/conversations"):
        page.reload()
    page.locator("omlx-chat[data-ready]").wait_for()


def test_another_browser_has_them_and_deletes_them(storing: Site) -> None:
    with talking(storing) as here, talking(storing) as there:
        expect(here.locator(".chat-welcome")).to_contain_text("in the home folder of the server")
        with here.expect_request(lambda request: request.method == "PUT"):
            ask(here, COUNT)
            expect_answers(here, 1)
        exchange(there)
        there.locator(".conversation a").click()
        expect(there.locator("h1")).to_have_text(COUNT)
        expect_answers(there, 1)
        with there.expect_request(lambda request: request.method == "PUT"):
            ask(there, "Hello")
            expect_answers(there, 2)
        with there.expect_request(lambda request: request.method == "PUT"):
            organise(there, COUNT, title="Numbers")
        exchange(here)
        expect(here.locator("h1")).to_have_text("Numbers")
        expect_answers(here, 2)
        button(there, "delete-all").click()
        dialog = there.get_by_role("dialog")
        expect(dialog).to_contain_text("from other browsers")
        with there.expect_request(lambda request: request.method == "DELETE"):
            dialog.get_by_role("button", name="Delete all").click()
        exchange(here)
        expect(here.locator(".conversation")).to_have_count(0)
        expect(answers(here)).to_have_count(0)


def test_what_could_not_be_sent_is_sent_later(storing: Site) -> None:
    with talking(storing, "ERR_") as page:
        page.route("**/chat/conversations**", lambda route: route.abort())
        with page.expect_event("requestfailed"):
            ask(page, COUNT)
            expect_answers(page, 1)
        page.unroute("**/chat/conversations**")
        with page.expect_request(lambda request: request.method == "PUT") as sent:
            page.reload()
        messages = sent.value.post_data_json["messages"]
        assert COUNT in [message["text"] for message in messages]
        expect_answers(page, 1)


def test_what_the_server_refuses_is_named_and_does_not_hold_up_the_rest(storing: Site) -> None:
    (storing.home / "chats").write_text("a file in the place of the folder")
    notice = '[data-chat="unsent"]'
    with talking(storing, "Failed to load resource") as page:
        ask(page, COUNT)
        expect_answers(page, 1)
        expect(page.locator(notice)).to_contain_text("not on the server")
        (storing.home / "chats").unlink()
        exchange(page)
        expect(page.locator(notice)).to_be_hidden()
