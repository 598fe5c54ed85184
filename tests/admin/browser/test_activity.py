"""Requests and log in a browser: stop, search, pause; HTML in names is text."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from omlx.telemetry import log
from tests.admin.browser.checks import check_accessible, check_fits, check_words
from tests.admin.browser.chromium import NARROW
from tests.admin.browser.site import CLIPBOARD, Site, copied, open_site
from tests.admin.browser.test_chat import answers, button, expect_answers
from tests.server.running import PATIENCE_S, TARGET
from tests.storage import homes

HOSTILE = "<img src=x onerror=document.title='pwned'>"


@pytest.fixture(scope="module")
def logging_site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home: Path = tmp_path_factory.mktemp("home")
    log.set_up(home)
    try:
        with open_site(browser, home) as site:
            site.ask(max_tokens=1)
            yield site
    finally:
        log.tear_down()


def ended(page: Page) -> Any:
    return page.locator("section[aria-labelledby=answers] tbody tr:visible")


def test_a_request_is_stopped_by_keyboard_and_its_client_is_told(logging_site: Site) -> None:
    site, stopped = logging_site, Event()
    with site.open("/admin") as page, ThreadPoolExecutor(2) as pool:
        pool.submit(site.running.engine.call, lambda: stopped.wait(PATIENCE_S))
        asked = pool.submit(site.post, max_tokens=900, ignore_eos=True)
        stop = page.get_by_role("button", name=f"Stop {TARGET}")
        stop.focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Stop this request?")
        expect(dialog).to_contain_text(TARGET)
        dialog.get_by_role("button", name="Stop").press("Enter")
        expect(page.locator("[data-announcer]")).to_have_text("The request was stopped.")
        stopped.set()
        assert asked.result().json()["error"]["code"] == "request.stopped"
        expect(stop).to_have_count(0)
        page.goto("/admin/activity")
        newest = ended(page).first
        expect(newest).to_contain_text("probe/1.0")
        expect(newest).to_contain_text("The request was stopped in the dashboard.")


def test_requests_are_searched_and_filtered_and_updates_wait(logging_site: Site) -> None:
    site = logging_site
    with site.open() as page:
        assert site.post(HOSTILE, model=HOSTILE).status_code == 404
        assert site.post(max_tokens=2, ignore_eos=True).status_code == 200
        page.goto("/admin/activity")
        count = page.locator("[data-shown]")
        result, search = page.get_by_label("Result"), page.get_by_label("Search requests")
        result.select_option("failed")
        expect(ended(page)).to_have_count(1)
        expect(ended(page)).to_contain_text(HOSTILE)
        result.select_option("")
        search.fill("probe TARGET")
        expect(ended(page).first).to_contain_text("Token limit")
        shown = ended(page).count()
        pause = page.get_by_role("button", name="Pause updates")
        pause.click()
        expect(pause).to_have_attribute("aria-pressed", "true")
        site.post(max_tokens=1)
        page.evaluate("document.dispatchEvent(new CustomEvent('omlx:changed'))")
        before = count.inner_text()
        pause.click()
        expect(ended(page)).to_have_count(shown + 1)
        assert count.inner_text() != before
        expect(search).to_have_value("probe TARGET")
        assert page.title() == "Activity · omlx"


@pytest.mark.slow
def test_a_row_opens_the_request(logging_site: Site) -> None:
    site = logging_site
    with site.open("/admin/activity", permissions=CLIPBOARD) as page:
        assert site.post(HOSTILE, model=HOSTILE).status_code == 404
        made = site.ask(max_tokens=2, ignore_eos=True)
        rows, dialog = ended(page), page.get_by_role("dialog")
        expect(rows.first).to_contain_text(made["id"])
        rows.first.get_by_text("Token limit").click()
        expect(dialog).to_contain_text("Prefill")
        expect(dialog).to_contain_text("Max output tokens")
        dialog.get_by_role("button", name="Copy").click()
        assert copied(page) == made["id"]
        check_fits(page, [NARROW])
        check_words(page, "en")
        check_accessible(page)
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        rows.nth(1).get_by_role("link").press("Enter")
        expect(dialog.get_by_role("heading").first).to_have_text(HOSTILE)
        expect(dialog).to_contain_text("model.not_found")
        dialog.get_by_role("link", name="Open as a page").click()
        expect(page.locator("h1")).to_have_text(HOSTILE)
        check_fits(page)
        check_accessible(page)


@pytest.mark.slow
def test_a_recorded_request_is_replayed_in_chat(browser: Browser, tmp_path: Path) -> None:
    with open_site(browser, tmp_path, record_prompts=True, host="0.0.0.0") as site:
        said = site.ask("Count to 20.", temperature=0.5, seed=7, max_tokens=40)
        text = said["choices"][0]["message"]["content"].strip()
        with site.open("/admin/activity", "404") as page:
            ended(page).first.get_by_text("Token limit").click()
            check_fits(page, [NARROW])
            check_accessible(page)
            page.get_by_role("link", name="Replay in chat").click()
            expect_answers(page, 1)
            expect(page.locator("h1")).to_have_text("Count to 20.")
            expect(page.locator("[name=seed]")).to_have_value("7")
            expect(page.locator("[name=temperature]")).to_have_value("0.5")
            button(page, "regenerate").click()
            expect(page.locator(".answer .branches")).to_contain_text("2")
            expect_answers(page, 1)
            shown = answers(page).locator('[data-part="text"]').inner_text()
            assert shown.split() == text.split()
            page.goto("/admin/chat?request=999")
            expect(page.locator(".composer")).to_contain_text("no longer among the newest")
            page.goto("/admin/connect")
            expect(page.locator("omlx-qr path")).to_have_attribute("d", re.compile("M3 3h1v1"))
            check_fits(page)
            check_accessible(page)


@pytest.mark.slow
def test_the_table_of_requests_has_the_height_of_the_page(logging_site: Site) -> None:
    site = logging_site
    with site.open("/admin/activity") as page:
        for _ in range(12):
            site.post(model="no/such")
        page.reload()
        box = page.locator("#answers-scroll")
        assert box.evaluate("(box) => box.scrollHeight <= box.clientHeight + 1")


def test_the_log_is_followed_and_filtered(logging_site: Site) -> None:
    logger = logging.getLogger("omlx.probe")
    with logging_site.open() as page:
        logger.warning(HOSTILE)
        page.goto("/admin/activity/log")
        rows = page.locator(".log tbody tr")
        expect(rows.first).to_contain_text(HOSTILE)
        search = page.get_by_label("Search log")
        search.press_sequentially("probe")
        expect(rows).to_have_count(1)
        expect(search).to_be_focused()
        logger.error("the disk of the probe is full")
        expect(rows).to_have_count(2)
        page.get_by_label("Level").select_option("error")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("the disk of the probe is full")
        page.reload()
        expect(page.get_by_label("Search log")).to_have_value("probe")
        expect(rows).to_have_count(1)
        assert page.title() == "Log · omlx"


@pytest.mark.slow
def test_an_answer_is_verified_in_words(browser: Browser, tmp_path: Path) -> None:
    """Identical; then, one token altered, the first one that differs with its margin."""
    with open_site(browser, tmp_path) as site, site.open(locale="ko") as page:
        made = site.ask(temperature=0, ignore_eos=True, receipt=True)
        page.goto("/admin/activity")
        verify = page.locator(f"[data-verify='{made['id']}']")
        dialog = page.get_by_role("dialog")
        verify.focus()
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("토큰 24개가 모두 같습니다")
        expect(dialog.get_by_text("같은 응답")).to_be_visible()
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()

        ((kept,),) = homes.rows(tmp_path, "select id from receipts")
        homes.alter(tmp_path, kept, homes.another_token)
        verify.click()
        expect(dialog).to_contain_text("토큰 5번에서 다릅니다")
        expect(dialog).to_contain_text("로짓입니다")
        expect(dialog.get_by_text("같은 응답")).to_be_hidden()
        check_words(page, "ko")
        check_accessible(page)
