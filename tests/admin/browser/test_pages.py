"""Every page in every language, window size and theme, by keyboard alone and without scripts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from omlx.admin.scripts import ENTRIES, Scripts
from omlx.catalog import languages
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard, check_words
from tests.admin.browser.chromium import NARROW, VIEWPORTS
from tests.admin.browser.pages import PAGES, Listed
from tests.admin.browser.site import Site, Visit

EACH_PAGE = pytest.mark.parametrize("listed", PAGES, ids=lambda listed: listed.name)


def open_page(visit: Visit, listed: Listed) -> None:
    if listed.name == "not-found":
        visit.complaints.expect("404")
    visit.page.goto(listed.path)


LANGUAGES = [
    pytest.param(language, marks=() if language == "en" else pytest.mark.slow)
    for language in languages()
]


@pytest.mark.parametrize("language", LANGUAGES)
def test_they_fit_and_have_all_their_words(
    busy: Site, language: str, subtests: pytest.Subtests
) -> None:
    """One profile for each language: a new one for each page costs as much as the checks."""
    with (
        busy.visit(locale=language) as inside,
        busy.visit(locale=language, logged_in=False) as outside,
    ):
        for listed in PAGES:
            visit = inside if listed.logged_in else outside
            with subtests.test(listed.name):
                open_page(visit, listed)
                check_words(visit.page, language)
                check_fits(visit.page, VIEWPORTS if language == "en" else (NARROW,))


def test_they_can_be_used_by_keyboard_alone(busy: Site, subtests: pytest.Subtests) -> None:
    with busy.visit() as inside, busy.visit(logged_in=False) as outside:
        for listed in PAGES:
            visit = inside if listed.logged_in else outside
            with subtests.test(listed.name):
                open_page(visit, listed)
                check_keyboard(visit.page)


@EACH_PAGE
def test_it_is_accessible(busy: Site, axe: str, listed: Listed) -> None:
    with busy.visit(logged_in=listed.logged_in) as visit:
        open_page(visit, listed)
        visit.complaints.check()
        visit.complaints.expect("inline")  # axe-core tries to style the page while it looks
        check_accessible(visit.page, axe)


def test_they_work_with_scripts_that_are_not_bundled(
    busy: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx.admin.rendering._scripts", lambda: Scripts(tmp_path))
    with busy.visit() as visit:
        visit.page.goto("/admin")
        script = visit.page.locator("script[type=module]")
        expect(script).to_have_attribute("src", re.compile(f"{ENTRIES['app']}$"))
        visit.page.goto("/admin/chat")
        expect(script).to_have_attribute("src", re.compile(f"{ENTRIES['chat']}$"))
        expect(visit.page.locator("omlx-chat[data-ready]")).to_be_attached()


def test_they_can_be_read_without_scripts(busy: Site, subtests: pytest.Subtests) -> None:
    with (
        busy.visit(java_script_enabled=False) as inside,
        busy.visit(java_script_enabled=False, logged_in=False) as outside,
    ):
        for listed in PAGES:
            visit = inside if listed.logged_in else outside
            with subtests.test(listed.name):
                open_page(visit, listed)
                assert visit.page.locator("h1").count() == 1
                assert visit.page.locator("main").inner_text().strip()
