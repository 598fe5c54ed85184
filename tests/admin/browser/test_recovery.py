"""Every page while its server is killed and started again, and behind a network that falls silent:
each says so where a person sees it, keeps what was typed, and recovers without a reload."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Response, expect

from tests.admin.browser.chromium import watched
from tests.admin.browser.lossy import network
from tests.admin.browser.pages import PAGES
from tests.admin.browser.process import log_in, serving
from tests.admin.browser.site import Site
from tests.admin.browser.test_chat import answers
from tests.server.running import TARGET

WAIT_MS = 60_000
OFFLINE, LOGGED_OUT = "[data-offline]", "[data-logged-out]"
TYPED = {
    "chat": ("[name=question]", "Count to 20."),
    "download": ("[type=search]", "org/big"),
    "profile": ("[name=temperature]", "0.5"),
    "settings": ("[name=draft_max]", "9"),
    "keys": ("[name=name]", "editor"),
    "password": ("[name=password]", "correct horse"),
}
"""By page, a field and what a person has typed there."""

Windows = dict[str, Page]

pytestmark = pytest.mark.slow


@contextmanager
def every_page(browser: Browser, origin: str, link: str) -> Iterator[Windows]:
    """A window of each page, at its end; those that need it are logged in."""
    with watched(browser, origin) as (inside, seen), watched(browser, origin) as (outside, others):
        for complaints in (seen, others):
            complaints.expect("ERR_|40[14]")
        log_in(inside.new_page(), link)
        windows: Windows = {}
        for listed in PAGES:
            page = windows[listed.name] = (inside if listed.logged_in else outside).new_page()
            page.goto(listed.path)
        yield windows


def is_answered(response: Response) -> bool:
    """Whether the server has answered what a page asks for by itself."""
    asks = "/admin/parts/" in response.url or response.url.endswith("/admin/api/session")
    return asks and response.status in (200, 304)


def test_a_killed_server_is_named_and_the_next_one_is_found(
    browser: Browser, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    with serving(tmp_path, 0, TARGET) as (server, link):
        parts = urlsplit(link)
        origin = f"{parts.scheme}://{parts.netloc}"
        with every_page(browser, origin, link) as windows:
            for name, (field, text) in TYPED.items():
                windows[name].locator(field).first.fill(text)
            server.kill()
            server.wait()
            for name, page in windows.items():
                with subtests.test(name, server="killed"):
                    page.mouse.wheel(0, 10_000)
                    expect(page.locator(OFFLINE)).to_be_in_viewport(timeout=WAIT_MS)
            for name in ("profile", "settings", "keys", "password"):
                with subtests.test(name, sent="while there is no server"):
                    send(windows[name])
                    expect(windows[name].locator(TYPED[name][0]).first).to_have_value(
                        TYPED[name][1]
                    )
            with serving(tmp_path, parts.port or 0, TARGET) as (_, again):
                for name, page in windows.items():
                    with subtests.test(name, server="started again"):
                        expect(page.locator(OFFLINE)).to_be_hidden(timeout=WAIT_MS)
                        if page.locator(LOGGED_OUT).count():
                            expect(page.locator(LOGGED_OUT)).to_be_in_viewport(timeout=WAIT_MS)
                log_in(windows["settings"].context.new_page(), again)
                for name, page in windows.items():
                    with subtests.test(name, server="logged in"):
                        expect(page.locator(LOGGED_OUT)).to_be_hidden(timeout=WAIT_MS)
                        with page.expect_response(is_answered, timeout=WAIT_MS):
                            pass
                go_on(windows)


def send(page: Page) -> None:
    """Press the button of the form with a changed field."""
    page.locator("main button[type=submit]:visible").first.click()


def go_on(windows: Windows) -> None:
    """What was typed before is sent to the new server."""
    send(windows["settings"])
    expect(windows["settings"].locator("[data-saved]").last).to_contain_text("Max draft tokens")
    send(windows["keys"])
    expect(windows["keys"].get_by_role("heading", name="editor")).to_be_visible()
    windows["chat"].keyboard.press("Enter")
    expect(answers(windows["chat"])).to_have_count(1, timeout=WAIT_MS)
    send(windows["password"])
    expect(windows["password"].get_by_role("heading", name="Overview")).to_be_visible()
    windows["password"].wait_for_load_state("networkidle")


def test_a_network_that_is_slow_and_then_silent(busy: Site, subtests: pytest.Subtests) -> None:
    with network(busy.running.port) as between:
        site = replace(busy, running=replace(busy.running, url=between.url))
        between.pause_s = 0.02
        with site.visit() as inside, site.visit(logged_in=False) as outside:
            windows: Windows = {}
            for listed in PAGES:
                visit = inside if listed.logged_in else outside
                visit.complaints.expect("ERR_|404")
                page = windows[listed.name] = visit.page.context.new_page()
                page.goto(listed.path)
                with page.expect_response(is_answered, timeout=WAIT_MS):
                    pass
                expect(page.locator(OFFLINE)).to_be_hidden()
            between.pause_s = 3600.0
            for name, page in windows.items():
                with subtests.test(name, network="silent"):
                    expect(page.locator(OFFLINE)).to_be_in_viewport(timeout=WAIT_MS)
            between.cut()
            between.pause_s = 0.02
            between.mend()
            for name, page in windows.items():
                with subtests.test(name, network="back"):
                    expect(page.locator(OFFLINE)).to_be_hidden(timeout=WAIT_MS)
