"""The dashboard as an installed app: what browsers require, and the page without a server."""

from __future__ import annotations

import re
from pathlib import Path
from struct import unpack

import pytest
from playwright.sync_api import Browser, expect

from omlx.admin.web.rendering import ICONS
from omlx.catalog import data_dir
from tests.admin.browser.checks import check_accessible, check_fits, check_words
from tests.admin.browser.chromium import watched
from tests.admin.browser.process import log_in, origin_of, serving
from tests.admin.browser.site import Site

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
        while not page.evaluate(CONTROLLED):  # waiting in the page would need `eval`
            page.wait_for_timeout(50)
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
