"""The prefix cache in a real browser: status, probe of a prompt, clearing."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from omlx.catalog import languages
from tests.admin.browser.checks import check_accessible, check_fits, check_words
from tests.admin.browser.chromium import PHONE, VIEWPORTS
from tests.admin.browser.site import Site, open_site
from tests.server.running import TARGET

PAGE = f"/admin/models/{TARGET}"
PROMPT = "Name three rivers of Europe, and the seas that they flow into."


def kept_bytes(page: Page) -> int:
    return int(page.locator("#prefixes-memory").get_attribute("value") or 0)


def test_cached_prefixes_are_shown_probed_and_cleared(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        page.goto(PAGE)
        card = page.get_by_role("region", name="Prefix cache")
        expect(card).to_contain_text("The model is not loaded, so its prefix cache is empty.")
        status, clear = card.get_by_role("status"), card.get_by_role("button", name="Clear")
        expect(clear).to_have_count(0)

        fresh.ask(PROMPT)
        expect(clear).to_be_visible(timeout=30_000)  # without a reload
        assert kept_bytes(page) > 0
        expect(card).to_contain_text("0 of 1")

        card.get_by_label("Prompt").fill(PROMPT)
        card.get_by_role("button", name="Check a prompt").click()
        expect(status).to_contain_text("tokens of this prompt are cached.")
        cached, _, length, *_ = status.inner_text().split()
        assert int(cached) == int(length) - 1

        clear.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#prefixes-memory")).to_have_attribute("value", "0")
        expect(clear).to_be_focused()
        expect(status).to_be_empty()
        card.get_by_role("button", name="Check a prompt").click()
        expect(status).to_have_text(f"0 of {length} tokens of this prompt are cached.")


def test_an_empty_prompt_is_reported_beside_the_field(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        visit.complaints.expect("400")
        page.goto(PAGE)
        page.get_by_role("button", name="Check a prompt").click()
        expect(page.locator('[data-field="prompt"] [data-problem]')).to_be_visible()
        expect(page.get_by_role("textbox", name="Prompt")).to_be_focused()


def test_the_card_fits_and_is_accessible(busy: Site, axe: str) -> None:
    with busy.visit() as visit:
        visit.page.goto(PAGE)
        expect(visit.page.locator("#prefixes-clear")).to_be_visible()
        check_fits(visit.page)
        check_words(visit.page, "en")
        check_accessible(visit.page, axe, VIEWPORTS)


def test_beginnings_that_return_are_listed(browser: Browser, tmp_path: Path, axe: str) -> None:
    system = {"role": "system", "content": "You edit small programs with care. " * 70}
    with (
        open_site(browser, tmp_path, default=None, record_prompts=True) as site,
        site.visit() as visit,
    ):
        page = visit.page
        page.goto(PAGE)
        listed = page.get_by_role("region", name="Beginnings that return")
        expect(listed).to_have_count(0)
        site.ask(PROMPT)
        expect(listed).to_contain_text("Begin two conversations with the same system message")

        for question in ("Name a hill.", "Name a river."):
            site.ask(messages=[system, {"role": "user", "content": question}])
        row = page.locator(".beginnings-list li")
        expect(row).to_contain_text("python-httpx/")
        expect(row).to_contain_text("You edit small programs with care. You edit")
        expect(row).to_contain_text(re.compile(r"\d+ tokens ·\s+last used 20\d\d-.* ·\s"))
        expect(row).to_contain_text("Cached", timeout=30_000)  # computed while idle
        expect(listed).to_contain_text("tokens computed while idle")
        check_accessible(page, axe, [PHONE])
        for language in languages():
            page.context.add_cookies(
                [{"name": "omlx_language", "value": language, "url": page.url}]
            )
            page.goto(PAGE)
            expect(row).to_have_count(1)
            check_words(page, language)
            check_fits(page, [PHONE])
