"""kill -9 of `omlx serve` while it answers on the chat page, and a second start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.admin.browser.chromium import watched
from tests.admin.browser.test_chat import LONG, WAIT_MS, answers, ask, button, fill, open_chat
from tests.server.running import TARGET

pytestmark = pytest.mark.slow


@contextmanager
def serving(home: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and its link that logs in. It is killed at the end."""
    command = [sys.executable, "-m", "omlx", "serve", TARGET, "--home", str(home)]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.PIPE, text=True, env=environ
    ) as server:
        try:
            assert server.stdout is not None
            words = chain.from_iterable(line.split() for line in server.stdout)
            yield server, next(word for word in words if "/admin/login?token=" in word)
        finally:
            server.kill()


def log_in(page: Page, link: str) -> None:
    page.goto(link)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/admin/password*")  # which a first login offers to set


def test_the_text_stays_and_is_generated_again(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path, 0) as (server, link):
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
            with serving(tmp_path, parts.port or 0) as (_, again):
                expect(page.locator("[data-logged-out]")).to_be_visible(timeout=WAIT_MS)
                log_in(context.new_page(), again)
                expect(page.locator("[data-logged-out]")).to_be_hidden(timeout=WAIT_MS)
                expect(answers(page, "lost")).to_have_count(1, timeout=WAIT_MS)
                assert answers(page, "lost").locator('[data-part="text"]').inner_text() == kept
                button(page, "retry").click()
                expect(answers(page, "running")).to_contain_text(kept[:20], timeout=WAIT_MS)
