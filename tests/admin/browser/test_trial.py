"""Trials in a real browser: by keyboard, to the end; applied and undone; cancelled; on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from omlx.settings.store import Store
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard, check_words
from tests.admin.browser.chromium import VIEWPORTS
from tests.admin.browser.site import Site, open_site
from tests.server.running import DRAFT, TARGET

PAGE = f"/admin/models/{TARGET}"
TIMEOUT_MS = 120_000
MAX_ANSWERS = 100
ESTIMATE = "Estimated time"


def open_card(page: Page) -> None:
    page.goto(PAGE)
    expect(page.locator("[data-estimate]")).to_contain_text(ESTIMATE)


def start_short_trial(page: Page) -> None:
    """Start with the smallest draft and one kind of text, by keyboard alone."""
    kinds = page.get_by_role("group", name="Kinds of text")
    for kind in ("text edits", "JSON", "prose"):
        kinds.get_by_label(kind, exact=True).uncheck()
    page.get_by_role("button", name="Start").focus()
    page.keyboard.press("Enter")


def drafts_soon(site: Site, *, drafting: bool) -> bool:
    """Whether answers soon use the draft, or no longer use it."""
    return any(
        (DRAFT in site.ask()["timings"]["speculation"]["gates"]) == drafting
        for _ in range(MAX_ANSWERS)
    )


@pytest.fixture(scope="module")
def tried(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with a setting of its own, on which a trial was run to its end in the browser."""
    home = tmp_path_factory.mktemp("home")
    Store(home).patch({"draft_max": 9}, TARGET)
    with open_site(browser, home) as site:
        with site.visit() as visit:
            page = visit.page
            open_card(page)
            assert site.running.engine.submissions == 0
            start_short_trial(page)
            expect(page.get_by_role("button", name="Cancel")).to_be_focused()
            expect(page.get_by_role("progressbar", name="Measuring")).to_be_visible()
            expect(page.get_by_role("button", name="Start")).to_be_hidden()
            expect(page.locator("#try-verdict")).to_be_focused(timeout=TIMEOUT_MS)
            expect(page.get_by_role("button", name="Start")).to_be_visible()
        yield site


def test_a_result_is_applied_and_undone(tried: Site) -> None:
    store = Store(tried.home)
    with tried.visit() as visit:
        page = visit.page
        page.goto(PAGE)
        assert page.locator("#try-verdict").inner_text().endswith(".")
        expect(page.locator(".bar")).to_have_count(4)

        page.get_by_text("Figures and spread").click()
        page.get_by_role("button", name="Apply: auto with draft").click()
        expect(page.get_by_role("button", name="Undo")).to_be_focused()
        applied = {"draft_max": 9, "speculation": "auto", "draft_model": DRAFT}
        assert store.read().layer(TARGET).values == applied
        expect(page.locator(f'[name="draft_model"][value="{DRAFT}"]')).to_be_checked()
        assert drafts_soon(tried, drafting=True)

        page.keyboard.press("Enter")
        expect(page.get_by_text("Undone")).to_be_visible()
        assert store.read().layer(TARGET).values == {"draft_max": 9}
        assert drafts_soon(tried, drafting=False)
        expect(page.locator(f'[name="draft_model"][value="{DRAFT}"]')).not_to_be_checked()

        page.reload()
        expect(page.locator("#try-verdict")).to_be_visible()


def test_a_result_fits_and_is_accessible(tried: Site, axe: str) -> None:
    with tried.visit() as visit:
        open_card(visit.page)
        visit.page.get_by_text("Figures and spread").click()
        check_words(visit.page, "en")
        check_fits(visit.page)
        check_accessible(visit.page, axe, VIEWPORTS)


def test_everything_is_reached_by_keyboard(tried: Site) -> None:
    with tried.visit() as visit:
        open_card(visit.page)
        check_keyboard(visit.page)


def test_a_trial_is_followed_after_a_reload_and_cancelled(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        open_card(page)
        page.get_by_role("button", name="Start").click()
        expect(page.get_by_text(re.compile("tokens/s")).first).to_be_visible(timeout=TIMEOUT_MS)
        page.reload()
        cancel = page.get_by_role("button", name="Cancel")
        expect(cancel).to_be_visible()
        cancel.click()
        expect(page.locator("omlx-try").get_by_text("The trial was cancelled.")).to_be_visible()
        expect(page.get_by_role("button", name="Start")).to_be_visible()


def test_before_the_first_trial_no_place_is_left_for_its_outcome(fresh: Site) -> None:
    with fresh.visit() as visit:
        open_card(visit.page)
        expect(visit.page.locator(".try-outcome")).to_be_hidden()


@pytest.mark.slow
def test_the_overview_shows_the_trial_while_it_runs_and_after_its_end(
    fresh: Site, axe: str
) -> None:
    with fresh.visit() as visit, fresh.visit() as second:
        open_card(visit.page)
        visit.page.get_by_role("button", name="Start").click()
        page = second.page
        page.goto("/admin")
        row, ended = page.locator("tr#trial"), page.locator("#trial-ended")
        expect(row).to_contain_text("Measuring")
        expect(row.get_by_role("link", name=TARGET)).to_be_visible()
        expect(row.get_by_role("progressbar", name="Try a draft")).to_be_visible()
        expect(row).to_contain_text(re.compile("about .* left"), timeout=TIMEOUT_MS)
        with fresh.asking(max_tokens=3900, logit_bias=fresh.running.endless()):
            expect(row).to_contain_text("Waiting for other requests")
            expect(ended).to_have_count(0)
            check_words(page, "en")
            check_fits(page)
            second.complaints.check()
            second.complaints.expect("inline")  # axe-core tries to style the page while it looks
            check_accessible(page, axe)
        visit.page.get_by_role("button", name="Cancel").click()
        expect(ended).to_contain_text(f"The trial of {TARGET} was cancelled.")
        expect(row).to_have_count(0)
        expect(page.locator("section[aria-labelledby=requests]")).not_to_contain_text("Measuring")


def test_the_overview_leads_to_the_result_of_a_finished_trial(tried: Site, axe: str) -> None:
    with tried.visit() as visit:
        page = visit.page
        page.goto("/admin")
        ended = page.locator("#trial-ended")
        expect(ended).to_contain_text(f"The trial of {TARGET} has finished.")
        expect(page.locator("tr#trial")).to_have_count(0)
        check_fits(page)
        visit.complaints.check()
        visit.complaints.expect("inline")
        check_accessible(page, axe)
        ended.get_by_role("link").click()
        expect(page.locator("#try-verdict")).to_be_visible()


def test_an_invalid_choice_is_reported_beside_its_field(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        visit.complaints.expect("400")
        open_card(page)
        for box in page.locator('[name="kinds"]:not(:disabled)').all():
            box.uncheck()
        problem = page.locator('[data-field="kinds"] [data-problem]')
        expect(problem).to_contain_text("Choose at least one")
        expect(page.locator("[data-estimate]")).to_be_empty()
        page.get_by_label("prose", exact=True).check()
        expect(page.locator("[data-estimate]")).to_contain_text(ESTIMATE)
        expect(problem).to_be_hidden()
