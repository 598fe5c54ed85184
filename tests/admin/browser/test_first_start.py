"""The first page and the chat page on a machine with nothing but the bundled models."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, expect

from omlx.models.catalog.discovery import BUNDLED
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard
from tests.admin.browser.chromium import watched
from tests.admin.browser.process import log_in, serving
from tests.models.hub import Hub, running

DEMO = BUNDLED / "omlx-demo"
MODEL, DRAFT = "mlx-community/Qwen3-4B-4bit", "mlx-community/Qwen3-0.6B-4bit"
WAIT_MS = 60_000


def test_a_model_is_offered_and_downloaded_with_its_draft(
    browser: Browser, tmp_path: Path, axe: str
) -> None:
    with running(Hub()) as hub:
        hub.add(MODEL, DEMO / "target")
        hub.add(DRAFT, DEMO / "draft")
        variables = hub.environment(tmp_path / "hub")
        with (
            serving(tmp_path, 0, "--memory-limit", "5600MB", **variables) as (_, link),
            watched(browser, "{0.scheme}://{0.netloc}".format(urlsplit(link))) as (context, seen),
        ):
            page = context.new_page()
            log_in(page, link)
            page.goto("/admin/chat")
            hint = page.locator(".chat-welcome .hint")
            expect(hint).to_contain_text("Only the small bundled demonstration models")
            hint.get_by_role("link", name="Download models").click()
            page.wait_for_url("**/admin/models/get")
            page.goto("/admin")
            expect(page.get_by_role("heading", name="Get a model")).to_be_visible()
            expect(page.locator("[id^='offer-']")).to_have_count(4)
            seen.expect("inline")  # axe-core tries to style the page while it looks
            check_accessible(page, axe)
            check_fits(page)
            check_keyboard(page)
            assert hub.seen == []  # before a person asks
            page.locator(f'[id="offer-{MODEL}"]').get_by_role("button", name="Download").click()
            expect(page.locator("[id^='offer-']")).to_have_count(0, timeout=WAIT_MS)
            for model in (MODEL, DRAFT):
                done = page.locator(f'[id="download-{model}"]')
                expect(done).to_have_attribute("data-state", "done", timeout=WAIT_MS)
                done.get_by_role("button", name="Dismiss").click()
            expect(page.get_by_role("heading", name="Downloads")).to_have_count(0)
            expect(page.locator(".welcome")).to_contain_text(MODEL)
            page.goto("/admin/chat")
            expect(page.locator(".chat-welcome .hint")).to_have_count(0)
            page.close()
