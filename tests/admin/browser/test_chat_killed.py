"""kill -9 of `omlx serve` while it answers on the chat page, and a second start."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from tests.admin.browser.chromium import watched
from tests.admin.browser.process import log_in, serving
from tests.admin.browser.test_chat import LONG, WAIT_MS, answers, ask, button, fill, open_chat
from tests.server.running import TARGET

pytestmark = pytest.mark.slow


def test_the_text_stays_and_is_generated_again(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path, 0, TARGET) as (server, link):
        parts = urlsplit(link)
        with watched(browser, f"{parts.scheme}://{parts.netloc}") as (context, complaints):
            complaints.expect("ERR_|40[14]")
            page = context.new_page()
            log_in(page, link)
            open_chat(page)
            fill(page, schema=LONG.replace("100", "900"), thinking="off")
            ask(page, "Write words.")
            text = answers(page, "running").locator('[data-part="text"]')
            expect(text).to_contain_text("word", timeout=WAIT_MS)
            server.kill()
            expect(page.locator(".answer-problem")).to_contain_text("connection to the server")
            kept = text.inner_text()
            with serving(tmp_path, parts.port or 0, TARGET) as (_, again):
                expect(page.locator("[data-logged-out]")).to_be_visible(timeout=WAIT_MS)
                log_in(context.new_page(), again)
                expect(page.locator("[data-logged-out]")).to_be_hidden(timeout=WAIT_MS)
                expect(answers(page, "lost")).to_have_count(1, timeout=WAIT_MS)
                assert answers(page, "lost").locator('[data-part="text"]').inner_text() == kept
                button(page, "retry").click()
                expect(answers(page, "running")).to_contain_text(kept[:20], timeout=WAIT_MS)
