"""Trials in a browser: by keyboard, to the end; applied and undone; cancelled; with a picture."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, expect

from omlx.settings.store import Store
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard, check_words
from tests.admin.browser.chromium import VIEWPORTS
from tests.admin.browser.site import Site, open_site, settled, stored
from tests.models.vision.loaded import picture
from tests.server.media.pictures import file_of
from tests.server.running import DRAFT, SEEING, TARGET, VISION

TIMEOUT_MS = 120_000
MAX_ANSWERS = 100


def estimate(page: Page) -> None:
    expect(page.locator("[data-estimate]")).to_contain_text("Estimated time")


def open_card(page: Page, model: str = TARGET) -> None:
    page.goto(f"/admin/models/{model}")
    estimate(page)


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name)


def start_by_keyboard(page: Page) -> None:
    button(page, "Start").focus()
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
        with site.open() as page:
            open_card(page)
            assert site.running.engine.submissions == 0
            kinds = page.get_by_role("group", name="Kinds of text")
            for kind in ("text edits", "JSON", "prose"):  # one is left
                kinds.get_by_label(kind, exact=True).uncheck()
            start_by_keyboard(page)
            expect(button(page, "Cancel")).to_be_focused()
            expect(page.get_by_role("progressbar", name="Measuring")).to_be_visible()
            expect(button(page, "Start")).to_be_hidden()
            expect(page.locator("#try-verdict")).to_be_focused(timeout=TIMEOUT_MS)
            expect(button(page, "Start")).to_be_visible()
        yield site


def test_a_result_is_applied_and_undone(tried: Site) -> None:
    with tried.open(f"/admin/models/{TARGET}") as page:
        verdict = page.locator("#try-verdict")
        chosen = page.locator(f'[name="draft_model"][value="{DRAFT}"]')
        assert verdict.inner_text().endswith(".")
        expect(page.locator(".bar")).to_have_count(4)
        page.get_by_text("Figures and spread").click()
        button(page, "Apply: auto with draft").last.click()
        expect(button(page, "Undo")).to_be_focused()
        applied = {"draft_max": 9, "speculation": "auto", "draft_model": DRAFT}
        assert stored(tried, TARGET) == applied
        expect(chosen).to_be_checked()
        assert drafts_soon(tried, drafting=True)

        page.keyboard.press("Enter")
        expect(page.get_by_text("Undone")).to_be_visible()
        assert stored(tried, TARGET) == {"draft_max": 9}
        assert drafts_soon(tried, drafting=False)
        expect(chosen).not_to_be_checked()
        page.reload()
        expect(verdict).to_be_visible()


@pytest.mark.slow
def test_a_result_fits_and_is_reachable_and_accessible(tried: Site) -> None:
    with tried.open() as page:
        open_card(page)
        check_keyboard(page)
        page.get_by_text("Figures and spread").click()
        check_words(page, "en")
        check_fits(page)
        check_accessible(page, VIEWPORTS)


def test_a_trial_is_followed_after_a_reload_and_cancelled(fresh: Site) -> None:
    with fresh.open("", "400") as page:
        open_card(page)
        expect(page.locator(".try-outcome")).to_be_hidden()  # no place is left for one
        for box in page.locator('[name="kinds"]:not(:disabled)').all():
            box.uncheck()
        problem = page.locator('[data-field="kinds"] [data-problem]')
        expect(problem).to_contain_text("Choose at least one")
        expect(page.locator("[data-estimate]")).to_be_empty()
        page.get_by_label("prose", exact=True).check()
        estimate(page)
        expect(problem).to_be_hidden()
        button(page, "Start").click()
        expect(page.get_by_text(re.compile("tokens/s")).first).to_be_visible(timeout=TIMEOUT_MS)
        page.reload()
        expect(button(page, "Cancel")).to_be_visible()
        button(page, "Cancel").click()
        expect(page.locator("omlx-try").get_by_text("The trial was cancelled.")).to_be_visible()
        expect(button(page, "Start")).to_be_visible()


@pytest.mark.slow
def test_the_overview_shows_the_trial_while_it_runs_and_after_its_end(fresh: Site) -> None:
    with fresh.open() as model, fresh.open() as page:
        open_card(model)
        button(model, "Start").click()
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
            check_accessible(page)
        button(model, "Cancel").click()
        expect(ended).to_contain_text(f"The trial of {TARGET} was cancelled.")
        expect(row).to_have_count(0)
        expect(page.locator("section[aria-labelledby=requests]")).not_to_contain_text("Measuring")


@pytest.mark.slow
def test_the_overview_leads_to_the_result_of_a_finished_trial(tried: Site) -> None:
    with tried.open("/admin") as page:
        ended = page.locator("#trial-ended")
        expect(ended).to_contain_text(f"The trial of {TARGET} has finished.")
        expect(page.locator("tr#trial")).to_have_count(0)
        check_fits(page)
        check_accessible(page)
        ended.get_by_role("link").click()
        expect(page.locator("#try-verdict")).to_be_visible()


@pytest.fixture(scope="module")
def seeing(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(browser, tmp_path_factory.mktemp("home"), SEEING, default=VISION) as site:
        yield site


def field(page: Page) -> Locator:
    return page.get_by_label("Picture", exact=True)


def choose(page: Page, data: bytes) -> None:
    file: FilePayload = {"name": "a.png", "mimeType": "image/png", "buffer": data}
    field(page).set_input_files([file])


@pytest.mark.slow
@pytest.mark.needs_extra
def test_a_picture_is_chosen_refused_and_taken_back(seeing: Site) -> None:
    with seeing.open("", "400") as page:
        open_card(page, VISION)
        remove = button(page, "Remove the picture")
        problem = page.locator('[data-field="picture"] [data-problem]')
        expect(remove).to_be_hidden()
        choose(page, b"no picture")
        expect(problem).to_contain_text("PNG")
        check_keyboard(page)
        remove.focus()
        page.keyboard.press("Enter")
        expect(field(page)).to_be_focused()
        expect(remove).to_be_hidden()
        expect(problem).to_be_hidden()
        estimate(page)
        open_card(page, TARGET)  # a model without sight is offered no picture
        expect(field(page)).to_have_count(0)


@pytest.mark.slow
@pytest.mark.needs_extra
def test_questions_about_a_picture_are_measured(seeing: Site) -> None:
    with seeing.open() as page:
        open_card(page, VISION)
        choose(page, file_of(picture(60, 50, 1)))
        for box in page.get_by_role("group", name="Kinds of text").get_by_role("checkbox").all():
            box.uncheck()
        estimate(page)
        start_by_keyboard(page)
        expect(page.locator("#try-verdict")).to_be_focused(timeout=TIMEOUT_MS)
        expect(page.get_by_role("heading", name="questions about the picture")).to_be_visible()
        check_words(page, "en")
        check_fits(page)
        settled(page)  # a faded button
        check_accessible(page, VIEWPORTS)
