"""Every page in every language, window size and theme, by keyboard alone and without scripts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from playwright.sync_api import Page, expect

from omlx.admin.web.rendering import ENTRIES, Scripts
from omlx.catalog import languages
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard, check_words
from tests.admin.browser.chromium import EVERY_SIZE, WIDE
from tests.admin.browser.pages import PAGES, Listed
from tests.admin.browser.site import Site
from tests.lanes import few

CheckEach: TypeAlias = Callable[..., None]
NOT_FOUND = f"404.*{PAGES[-1].path}$"


@pytest.fixture
def each_page(busy: Site, subtests: pytest.Subtests) -> CheckEach:
    """Check every page, each as a test of its own, in windows with the options `how`.

    There is one profile for the pages behind the login and one for the others: a new one for each
    page costs as much as the checks.
    """

    def check_each(check: Callable[[Page], None], **how: Any) -> None:
        with (
            busy.open("", NOT_FOUND, **how) as inside,
            busy.open("", logged_in=False, **how) as outside,
        ):
            for listed in PAGES:
                page = inside if listed.logged_in else outside
                with subtests.test(listed.name):
                    page.goto(listed.path)
                    check(page)

    return check_each


def test_they_fit_and_have_all_their_words(each_page: CheckEach) -> None:
    def check(page: Page) -> None:
        check_words(page, "en")
        check_fits(page)

    each_page(check)


@pytest.mark.slow
@pytest.mark.parametrize("language", languages())
def test_in_every_language_at_every_size(each_page: CheckEach, language: str) -> None:
    def check(page: Page) -> None:
        check_words(page, language)
        check_keyboard(page)
        check_fits(page, EVERY_SIZE)
        check_accessible(page, [WIDE])

    each_page(check, locale=language)


@pytest.mark.slow
def test_they_can_be_used_by_keyboard_alone(each_page: CheckEach) -> None:
    each_page(check_keyboard)


@pytest.mark.parametrize("listed", few(PAGES, *PAGES[::4]), ids=lambda listed: listed.name)
def test_it_is_accessible(busy: Site, listed: Listed) -> None:
    with busy.open(listed.path, NOT_FOUND, logged_in=listed.logged_in) as page:
        check_accessible(page)


def test_they_work_with_scripts_that_are_not_bundled(
    busy: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx.admin.web.rendering._scripts", lambda: Scripts(tmp_path))
    with busy.open("/admin") as page:
        script = page.locator("script[type=module]")
        expect(script).to_have_attribute("src", re.compile(f"{ENTRIES['app']}$"))
        page.goto("/admin/chat")
        expect(script).to_have_attribute("src", re.compile(f"{ENTRIES['chat']}$"))
        expect(page.locator("omlx-chat[data-ready]")).to_be_attached()


def test_they_can_be_read_without_scripts(each_page: CheckEach) -> None:
    def check(page: Page) -> None:
        assert page.locator("h1").count() == 1
        assert page.locator("main").inner_text().strip()

    each_page(check, java_script_enabled=False)
