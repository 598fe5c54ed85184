"""Tools of MCP servers in chat, in a browser: a server of the official SDK over stdio."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.admin.browser.checks import check_accessible, check_fits
from tests.admin.browser.chromium import DESKTOP, NARROW, PHONE
from tests.admin.browser.site import Site, open_site
from tests.admin.browser.test_chat import answers, ask, expect_answers, fill, talking
from tests.tools.test_tools import COMMAND, needs_mcp

pytestmark = needs_mcp

ADD: Final = "probe__add"


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    servers = (f"probe={COMMAND} few", "broken=no-such-program-here")
    with open_site(browser, tmp_path_factory.mktemp("home"), mcp_server=servers) as opened:
        yield opened


def switch_on(page: Page, server: str) -> None:
    page.get_by_role("button", name="Chat settings").click()
    page.get_by_label(server, exact=True).check()


def calling(page: Page, **arguments: int) -> None:
    """The next answer calls the tool `add`: the page gets the events of such an answer."""
    given = json.dumps(arguments)
    item = {"type": "function_call", "call_id": "call_1", "name": ADD, "arguments": given}
    ended = {"status": "completed", "usage": None, "timings": None, "incomplete_details": None}
    created = {"id": "resp_made", "model": "made", "warnings": []}
    events = [
        {"type": "response.created", "response": created},
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": created | ended},
    ]
    lines = [
        f"data: {json.dumps(event | {'sequence_number': number})}\n\n"
        for number, event in enumerate(events)
    ]
    body = "".join(lines)
    page.route(
        "**/admin/api/chat/responses",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
        times=1,
    )


def call(page: Page) -> Locator:
    return page.locator(".call").last


def sent(page: Page, click: str) -> dict[str, Any]:
    """Click a button of the call; return the body of the request that follows."""
    expect(call(page)).to_contain_text("waits for you")
    with page.expect_request("**/chat/responses") as request:
        call(page).get_by_role("button", name=click).click()
    body: dict[str, Any] = request.value.post_data_json
    return body


def test_a_call_waits_for_the_user_and_its_result_goes_to_the_model(site: Site) -> None:
    with talking(site) as page:
        fill(page, maxTokens="8")
        switch_on(page, "probe")
        expect(page.locator("[data-chat=tools]")).to_contain_text("Tools the model may call: ")
        calling(page, a=2, b=40)
        with page.expect_request("**/chat/responses") as request:
            ask(page, "Add 2 and 40.")
        names = [tool["name"] for tool in request.value.post_data_json["tools"]]
        assert ADD in names
        expect(call(page)).to_contain_text("waits for you")
        expect(call(page).locator("[data-arguments]")).to_contain_text('"b": 40')
        check_accessible(page, [DESKTOP, PHONE])
        check_fits(page, [NARROW])
        page.set_viewport_size(DESKTOP)

        page.reload()  # the call still waits
        body = sent(page, "Allow once")
        items, tools = body["input"], body["tools"]
        assert ADD in [tool["name"] for tool in tools]
        assert [item.get("type") for item in items[1:]] == ["function_call", "function_call_output"]
        assert items[2]["output"] == "42"
        expect_answers(page, 2)
        expect(call(page)).to_contain_text("done")
        expect(call(page).locator("[data-result]")).to_have_text("42")


def test_a_refused_call_is_said_to_the_model(site: Site) -> None:
    with talking(site) as page:
        fill(page, maxTokens="8")
        switch_on(page, "probe")
        calling(page, a=1, b=1)
        ask(page, "Add.")
        body = sent(page, "Refuse")
        assert "refused" in body["input"][2]["output"]
        expect_answers(page, 2)
        expect(call(page)).to_contain_text("refused")


def test_a_tool_that_is_always_allowed_is_not_asked_about_until_that_is_taken_back(
    site: Site,
) -> None:
    with talking(site) as page:
        fill(page, maxTokens="8")
        switch_on(page, "probe")
        calling(page, a=1, b=1)
        ask(page, "Add.")
        sent(page, "Always allow")
        expect_answers(page, 2)
        calling(page, a=2, b=2)
        ask(page, "Again.")
        expect_answers(page, 4)
        expect(call(page).locator("[data-result]")).to_have_text("4")
        page.get_by_role("button", name="Ask again before every call").click()
        calling(page, a=3, b=3)
        ask(page, "And again.")
        expect(call(page)).to_contain_text("waits for you")


def test_a_server_that_does_not_start_is_said_and_the_question_stays(site: Site) -> None:
    with talking(site, "502") as page:
        switch_on(page, "broken")
        sentence = re.compile("tool server broken does not start")
        expect(page.locator("[data-chat=tools]")).to_have_text(sentence)
        ask(page, "Kept.")
        expect(page.locator(".composer .problem")).to_have_text(sentence)
        expect(page.locator("[name=question]")).to_have_value("Kept.")
        expect(answers(page)).to_have_count(0)


def test_nothing_is_contacted_unless_it_is_switched_on(browser: Browser, tmp_path: Path) -> None:
    mark = tmp_path / "started"
    servers = (f"probe=touch {mark}",)
    with open_site(browser, tmp_path / "home", mcp_server=servers) as site, talking(site) as page:
        fill(page, maxTokens="4")
        ask(page, "Hello")
        expect_answers(page, 1)
        assert not mark.exists()
