"""Every page in every language, size and theme, by keyboard, without scripts, as an app."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from struct import unpack
from typing import Any, TypeAlias

import pytest
from playwright.sync_api import Browser, Page, expect

from omlx.admin.web.rendering import ENTRIES, ICONS, Scripts
from omlx.catalog import data_dir, languages
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard, check_words
from tests.admin.browser.chromium import EVERY_SIZE, WIDE, watched
from tests.admin.browser.pages import PAGES, Listed
from tests.admin.browser.process import log_in, origin_of, serving
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


@pytest.mark.parametrize("listed", few(PAGES, *PAGES[::8]), ids=lambda listed: listed.name)
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


CONTROLLED = "navigator.serviceWorker.controller !== null"
LOST = "net::ERR_|Failed to load|the server responded|inline"
STORED = """async () => {
  const names = await caches.keys();
  const stored = await Promise.all(names.map(async (name) => (await caches.open(name)).keys()));
  return stored.flat().map(({ url }) => new URL(url).pathname).sort();
}"""


def test_browsers_may_install_it(busy: Site) -> None:
    with busy.open("/admin", logged_in=False) as page:
        link = page.locator("link[rel=manifest]").get_attribute("href")
        content = page.request.get(str(link), headers={"Accept-Language": "ko"}).json()
        for icon in content["icons"]:
            file = page.request.get(icon["src"]).body()
            assert unpack(">II", file[16:24]) == tuple(map(int, icon["sizes"].split("x")))
    assert content["start_url"] == content["scope"] == "/admin"
    assert content["display"] == "standalone"
    assert content["lang"] == "ko"
    assert re.search("[가-힣]", content["description"])
    assert {"192x192", "512x512"} <= {icon["sizes"] for icon in content["icons"]}
    assert {purpose for _, _, purpose in ICONS} == {"any", "maskable"}
    assert (data_dir("static") / "img/icon-180.png").is_file()


def test_a_page_says_that_the_server_is_away(browser: Browser, tmp_path: Path) -> None:
    """No answer of a page or of the API is stored: they hold models, requests, settings."""
    with (
        serving(tmp_path, 0) as (server, link),
        watched(browser, origin_of(link), LOST, service_workers="allow") as context,
    ):
        page = context.new_page()
        log_in(page, link)
        page.goto("/admin/models")
        for turn in count(1):
            if page.evaluate(CONTROLLED):  # waiting in the page would need `eval`
                break
            page.wait_for_timeout(50)
            if turn % 100 == 0:
                page.reload()  # installs again what a busy machine has broken off
        page.goto("/admin/activity")
        server.kill()
        server.wait()
        page.goto("/admin/activity/statistics")
        expect(page.locator("h1")).to_have_text("omlx is not running")
        assert page.evaluate(STORED) == [
            "/admin/offline",
            "/admin/static/css/app.css",
            "/admin/static/img/icon.svg",
        ]
        assert page.locator("main").evaluate("(main) => getComputedStyle(main).maxWidth") != "none"
        check_fits(page)
        expect(page.get_by_role("link")).to_have_attribute("href", "/admin")


@pytest.mark.slow
def test_the_page_without_a_server_is_readable(busy: Site) -> None:
    with busy.open("/admin/offline", logged_in=False) as page:
        check_words(page, "en")
        check_fits(page)
        check_accessible(page)
