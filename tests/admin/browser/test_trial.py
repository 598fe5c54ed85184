"""Trying drafts in a real browser: by keyboard, on a phone, to the end; applied, used, taken back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from omlx.settings.store import Store
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard, check_words
from tests.admin.browser.chromium import PHONE
from tests.admin.browser.site import Site, site
from tests.server.running import DRAFT, TARGET

PAGE = f"/admin/models/{TARGET}"
PATIENCE_MS = 120_000
ANSWERS = 100


def open_card(page: Page) -> None:
    page.goto(PAGE)
    expect(page.locator("[data-estimate]")).to_contain_text("Estimated time")


def try_little(page: Page) -> None:
    """With the smallest draft and one kind of text, begun by keyboard alone."""
    kinds = page.get_by_role("group", name="Kinds of text")
    for kind in ("text edits", "JSON", "prose"):
        kinds.get_by_label(kind, exact=True).uncheck()
    page.get_by_role("button", name="Start").focus()
    page.keyboard.press("Enter")


def to_the_end(page: Page) -> None:
    open_card(page)
    try_little(page)
    expect(page.locator("#try-verdict")).to_be_focused(timeout=PATIENCE_MS)


def comes_to(there: Site, *, drafting: bool) -> bool:
    """Whether answers come to know the draft, or no more. Until it has been read, what was there goes on answering."""
    return any(
        (DRAFT in there.ask()["timings"]["speculation"]["gates"]) == drafting
        for _ in range(ANSWERS)
    )


def test_try_apply_undo(browser: Browser, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.patch({"draft_max": 9}, TARGET)
    with site(browser, tmp_path) as there, there.visit() as visit:
        page = visit.page
        open_card(page)
        assert there.running.engine.submissions == 0
        try_little(page)
        expect(page.get_by_role("button", name="Cancel")).to_be_focused()
        expect(page.get_by_role("progressbar", name="Measuring")).to_be_visible()
        expect(page.get_by_role("button", name="Start")).to_be_hidden()
        expect(page.locator("#try-verdict")).to_be_focused(timeout=PATIENCE_MS)
        assert page.locator("#try-verdict").inner_text().endswith(".")
        expect(page.locator(".bar")).to_have_count(4)
        expect(page.get_by_role("button", name="Start")).to_be_visible()

        page.get_by_text("Figures and spread").click()
        page.get_by_role("button", name="Apply: auto with draft").click()
        expect(page.get_by_role("button", name="Undo")).to_be_focused()
        assert store.read().layer(TARGET).values == {
            "draft_max": 9,
            "speculation": "auto",
            "draft_model": DRAFT,
        }
        expect(page.locator(f'[name="draft_model"][value="{DRAFT}"]')).to_be_checked()
        assert comes_to(there, drafting=True)

        page.keyboard.press("Enter")
        expect(page.get_by_text("Undone")).to_be_visible()
        assert store.read().layer(TARGET).values == {"draft_max": 9}
        assert comes_to(there, drafting=False)
        expect(page.locator(f'[name="draft_model"][value="{DRAFT}"]')).not_to_be_checked()

        page.reload()
        expect(page.locator("#try-verdict")).to_be_visible()


def test_it_can_be_cancelled_and_follows_again_after_a_reload(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        open_card(page)
        page.get_by_role("button", name="Start").click()
        expect(page.get_by_text(re.compile("tokens/s")).first).to_be_visible(timeout=PATIENCE_MS)
        page.reload()
        cancel = page.get_by_role("button", name="Cancel")
        expect(cancel).to_be_visible()
        cancel.click()
        expect(page.locator("omlx-try").get_by_text("The trial was cancelled.")).to_be_visible()
        expect(page.get_by_role("button", name="Start")).to_be_visible()


def test_what_cannot_be_tried_is_said_where_it_is(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        visit.complaints.expect("400")
        open_card(page)
        for box in page.locator('[name="kinds"]:not(:disabled)').all():
            box.uncheck()
        expect(page.locator('[data-field="kinds"] [data-problem]')).to_contain_text(
            "choose at least one"
        )
        expect(page.locator("[data-estimate]")).to_be_empty()
        page.get_by_label("prose", exact=True).check()
        expect(page.locator("[data-estimate]")).to_contain_text("Estimated time")
        expect(page.locator('[data-field="kinds"] [data-problem]')).to_be_hidden()


@pytest.fixture(scope="module")
def tried(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> object:
    """A server on which a trial has come to its end."""
    with site(browser, tmp_path_factory.mktemp("home")) as there:
        with there.visit() as visit:
            to_the_end(visit.page)
        yield there


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "viewport", [PHONE, {"width": 1280, "height": 900}, {"width": 320, "height": 640}]
)
def test_what_was_found_fits_and_is_accessible(
    tried: Site, axe: str, scheme: str, viewport: dict[str, int]
) -> None:
    with tried.visit(viewport=viewport, color_scheme=scheme) as visit:
        open_card(visit.page)
        visit.page.get_by_text("Figures and spread").click()
        check_fits(visit.page)
        check_words(visit.page, "en")
        check_accessible(visit.page, axe)


def test_everything_is_reached_by_keyboard(tried: Site) -> None:
    with tried.visit() as visit:
        open_card(visit.page)
        check_keyboard(visit.page)
