"""A trial with a picture in a real browser: chosen, refused, taken back, measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, FilePayload, Page, expect

from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard, check_words
from tests.admin.browser.chromium import VIEWPORTS
from tests.admin.browser.site import Site, open_site
from tests.admin.browser.test_trial import ESTIMATE, TIMEOUT_MS
from tests.models.vision.loaded import picture
from tests.server.media.pictures import file_of
from tests.server.running import SEEING, TARGET, VISION

pytestmark = pytest.mark.needs_extra


@pytest.fixture(scope="module")
def seeing(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(browser, tmp_path_factory.mktemp("home"), SEEING, default=VISION) as site:
        yield site


def open_card(page: Page, model: str = VISION) -> None:
    page.goto(f"/admin/models/{model}")
    expect(page.locator("[data-estimate]")).to_contain_text(ESTIMATE)


def choose(page: Page, data: bytes) -> None:
    file: FilePayload = {"name": "a.png", "mimeType": "image/png", "buffer": data}
    page.get_by_label("Picture", exact=True).set_input_files([file])


def test_a_picture_is_chosen_refused_and_taken_back(seeing: Site) -> None:
    with seeing.visit() as visit:
        page = visit.page
        open_card(page)
        remove = page.get_by_role("button", name="Remove the picture")
        expect(remove).to_be_hidden()
        visit.complaints.expect("400")
        choose(page, b"no picture")
        field = page.locator('[data-field="picture"]')
        expect(field.locator("[data-problem]")).to_contain_text("PNG")
        check_keyboard(page)
        remove.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_label("Picture", exact=True)).to_be_focused()
        expect(remove).to_be_hidden()
        expect(field.locator("[data-problem]")).to_be_hidden()
        expect(page.locator("[data-estimate]")).to_contain_text(ESTIMATE)


@pytest.mark.slow
def test_questions_about_a_picture_are_measured(seeing: Site, axe: str) -> None:
    with seeing.visit() as visit:
        page = visit.page
        open_card(page)
        choose(page, file_of(picture(60, 50, 1)))
        kinds = page.get_by_role("group", name="Kinds of text")
        for box in kinds.get_by_role("checkbox").all():
            box.uncheck()
        expect(page.locator("[data-estimate]")).to_contain_text(ESTIMATE)
        page.get_by_role("button", name="Start").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#try-verdict")).to_be_focused(timeout=TIMEOUT_MS)
        expect(page.get_by_role("heading", name="questions about the picture")).to_be_visible()
        check_words(page, "en")
        check_fits(page)
        visit.complaints.check()
        expect(page.locator("[data-settling]")).to_have_count(0)  # a faded button
        check_accessible(page, axe, VIEWPORTS)


def test_a_model_without_sight_is_offered_no_picture(seeing: Site) -> None:
    with seeing.visit() as visit:
        open_card(visit.page, TARGET)
        expect(visit.page.get_by_label("Picture", exact=True)).to_have_count(0)
