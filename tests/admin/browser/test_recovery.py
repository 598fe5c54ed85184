"""Pages while their server is killed and started again, and behind a network that falls silent:
each says so where a person sees it, keeps what was typed, and recovers without a reload."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Response, expect

from omlx.models.catalog.discovery import BUNDLED
from tests.admin.browser.chromium import watched
from tests.admin.browser.lossy import Network, network
from tests.admin.browser.pages import PAGES
from tests.admin.browser.process import log_in, logged_in, origin_of, serving
from tests.admin.browser.site import Site, settled
from tests.admin.browser.test_chat import (
    LONG,
    answers,
    ask,
    button,
    expect_answers,
    fill,
    held,
    open_chat,
    talking,
)
from tests.admin.browser.test_download import LARGE, PAGE, WEIGHTS, row, search
from tests.models.hub import Hub, running
from tests.server.running import TARGET

GONE = "ERR_|40[14]"
OFFLINE, LOGGED_OUT = "[data-offline]", "[data-logged-out]"
SLOW_S = 0.02
TYPED = {
    "chat": ("[name=question]", "Count to 20."),
    "download": ("[type=search]", "org/big"),
    "profile": ("[name=temperature]", "0.5"),
    "settings": ("[name=draft_max]", "9"),
    "keys": ("[name=name]", "editor"),
    "password": ("[name=password]", "correct horse"),
}
"""By page, a field and what a person has typed there."""

Windows = dict[str, Page]


def port_of(link: str) -> int:
    return urlsplit(link).port or 0


def is_answered(response: Response) -> bool:
    """Whether the server has answered what a page asks for by itself."""
    asks = "/admin/parts/" in response.url or response.url.endswith("/admin/api/session")
    return asks and response.status in (200, 304)


@pytest.mark.slow
def test_a_killed_server_is_named_and_the_next_one_is_found(
    browser: Browser, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    with (
        logged_in(browser, tmp_path, TARGET, expected=GONE) as (inside, server, link),
        watched(browser, origin_of(link), GONE) as outside,
    ):
        windows: Windows = {}
        for listed in PAGES:
            page = windows[listed.name] = (inside if listed.logged_in else outside).new_page()
            page.goto(listed.path)
        for name, (field, text) in TYPED.items():
            windows[name].locator(field).first.fill(text)
        server.kill()
        server.wait()
        for name, page in windows.items():
            with subtests.test(name, server="killed"):
                page.mouse.wheel(0, 10_000)
                expect(page.locator(OFFLINE)).to_be_in_viewport()
        for name in ("profile", "settings", "keys", "password"):
            with subtests.test(name, sent="while there is no server"):
                send(windows[name])
                field, text = TYPED[name]
                expect(windows[name].locator(field).first).to_have_value(text)
        with serving(tmp_path, port_of(link), TARGET):
            for name, page in windows.items():
                with subtests.test(name, server="started again"):
                    expect(page.locator(OFFLINE)).to_be_hidden()
                    expect(page.locator(LOGGED_OUT).locator("visible=true")).to_have_count(0)
                    with page.expect_response(is_answered):
                        pass
            go_on(windows)


def send(page: Page) -> None:
    """Press the button of the form with a changed field; the first key is made after a question."""
    page.locator("main button[type=submit]:visible").first.click()
    if page.url.endswith("/keys"):
        page.locator("dialog[open] button[value=yes]").click()


def go_on(windows: Windows) -> None:
    """What was typed before is sent to the new server."""
    send(windows["settings"])
    expect(windows["settings"].locator("[data-saved]").last).to_contain_text("Max draft tokens")
    send(windows["keys"])
    expect(windows["keys"].get_by_role("heading", name="editor")).to_be_visible()
    windows["chat"].keyboard.press("Enter")
    expect_answers(windows["chat"], 1)
    send(windows["password"])
    expect(windows["password"].get_by_role("heading", name="Overview")).to_be_visible()
    windows["password"].wait_for_load_state("networkidle")


TEXT = '[data-part="text"]'


def ask_for_words(page: Page, count: int) -> None:
    open_chat(page)
    fill(page, schema=LONG.replace("100", str(count)), thinking="off")
    ask(page, "Write words.")
    expect(answers(page, "running").locator(TEXT)).to_contain_text("word")


@pytest.mark.slow
def test_the_answer_of_a_killed_server_is_continued_by_the_next(
    browser: Browser, tmp_path: Path
) -> None:
    with logged_in(browser, tmp_path, TARGET, expected=GONE) as (context, server, link):
        page = context.new_page()
        ask_for_words(page, 300)
        server.kill()
        server.wait()
        expect(page.locator(".answer-problem")).to_contain_text("connection to the server")
        kept = answers(page, "running").locator(TEXT).inner_text()
        assert kept.count("word") < 300
        with serving(tmp_path, port_of(link), TARGET):
            expect_answers(page, 1)
            text = answers(page).locator(TEXT).inner_text()
            assert text.startswith(kept)
            assert json.loads(text.replace("\n", " ")) == ["word"] * 300


@pytest.mark.slow
def test_without_a_record_the_text_of_a_killed_server_stays_and_goes_on_by_a_button(
    browser: Browser, tmp_path: Path
) -> None:
    settings = (TARGET, "--answer-disk", "off")
    with logged_in(browser, tmp_path, *settings, expected=GONE) as (context, server, link):
        page = context.new_page()
        ask_for_words(page, 900)
        server.kill()
        server.wait()
        (tmp_path / "admin.json").unlink()
        problem = page.locator(".answer-problem")
        expect(problem).to_contain_text("connection to the server")
        kept = answers(page, "running").locator(TEXT).inner_text()
        with serving(tmp_path, port_of(link), *settings) as (_, again):
            expect(page.locator(LOGGED_OUT)).to_be_visible()
            expect(problem).to_contain_text("Log in to go on")
            log_in(context.new_page(), again)
            expect(page.locator(LOGGED_OUT)).to_be_hidden()
            expect_answers(page, 1, "lost")
            assert answers(page, "lost").locator(TEXT).inner_text() == kept
            fill(page, schema="")
            expect(button(page, "retry")).to_be_visible()
            with page.expect_request("**/chat/responses") as sent:
                button(page, "continue").click()
            body = sent.value.post_data_json
            assert body["continue_final_message"] is True
            assert body["input"][-1]["content"] == kept.rstrip()
            expect(page.locator(TEXT)).to_contain_text(kept[:20])
            expect_answers(page, 0, "lost")
            page.keyboard.press("Escape")


@pytest.mark.slow
def test_the_download_of_a_killed_server_is_continued(browser: Browser, tmp_path: Path) -> None:
    with running(Hub()) as hub:
        hub.add("org/slow", BUNDLED / "omlx-demo" / "draft", {WEIGHTS: LARGE})
        hub.stall[WEIGHTS] = 12 << 20
        variables = hub.environment(tmp_path / "hub")
        with logged_in(browser, tmp_path, expected=GONE, **variables) as (context, server, link):
            page = context.new_page()
            page.goto(PAGE)
            search(page, "org/slow")
            row(page, "offer", "org/slow").get_by_role("button").click()
            download, field = row(page, "download", "org/slow"), page.get_by_label("Search the hub")
            expect(download).to_contain_text(re.compile("10.MB of"))
            field.fill("typed meanwhile")
            server.kill()
            expect(page.locator(OFFLINE)).to_be_visible()
            with serving(tmp_path, port_of(link), **variables):
                expect(page.locator(OFFLINE)).to_be_hidden()
                expect(download).to_have_attribute("data-state", "paused")
                expect(field).to_have_value("typed meanwhile")
                settled(page)
                download.get_by_role("button", name="Resume").click()
                expect(download).to_have_attribute("data-state", "done")
        starts = [at for method, name, at in hub.seen if (method, name) == ("GET", WEIGHTS)]
        assert starts == [0, 10 << 20]


@contextmanager
def behind_a_network(site: Site) -> Iterator[tuple[Site, Network]]:
    """The site as it is seen through a slow network, which a test can cut."""
    with network(site.running.port) as between:
        between.pause_s = SLOW_S
        yield replace(site, running=replace(site.running, url=between.url)), between


@pytest.mark.slow
def test_a_network_that_is_slow_and_then_silent(busy: Site, subtests: pytest.Subtests) -> None:
    expected = "ERR_|404"
    with (
        behind_a_network(busy) as (site, between),
        site.open("", expected) as inside,
        site.open("", expected, logged_in=False) as outside,
    ):
        windows: Windows = {}
        for listed in PAGES:
            context = (inside if listed.logged_in else outside).context
            page = windows[listed.name] = context.new_page()
            page.goto(listed.path)
            with page.expect_response(is_answered):
                pass
            expect(page.locator(OFFLINE)).to_be_hidden()
        between.pause_s = 3600.0
        for name, page in windows.items():
            with subtests.test(name, network="silent"):
                expect(page.locator(OFFLINE)).to_be_in_viewport()
        between.cut()
        between.pause_s = SLOW_S
        between.mend()
        for name, page in windows.items():
            with subtests.test(name, network="back"):
                expect(page.locator(OFFLINE)).to_be_hidden()


def test_a_lost_server_leaves_the_text_and_a_retry(chatting: Site) -> None:
    stored = """async () => {
      const store = await import("/admin/static/js/chat/store.js");
      const messages = await store.messagesOf(location.hash.slice(1));
      return [...messages.values()].find(({ role }) => role === "assistant").response;
    }"""
    with behind_a_network(chatting) as (site, between), talking(site, "404|ERR_") as page:
        with held(site, page):
            response = page.evaluate(stored)
            between.cut()
            problem = page.locator(".answer-problem")
            expect(problem).to_contain_text("connection to the server was lost")
        expect(answers(page, "running")).to_contain_text("word")
        retry = button(page, "retry")
        expect(retry).to_be_visible()
        # It is started again meanwhile, without the answer.
        address = f"{chatting.url}/admin/api/chat/responses/{response}"
        origin = {"Origin": chatting.url}
        page.context.request.post(f"{address}/cancel", headers=origin)
        while page.context.request.get(address).ok:
            page.context.request.delete(address, headers=origin)
        between.mend()
        retry.click()
        expect_answers(page, 1, "lost")
        expect(answers(page, "lost")).to_contain_text("word")
        fill(page, schema="")
        retry.click()
        expect_answers(page, 1, "running")
        page.keyboard.press("Escape")
