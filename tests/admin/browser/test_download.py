"""The download page of a real server, with a hub on the loopback that stalls, lies and fails."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from omlx.catalog import languages
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.package import FILE
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard, check_words
from tests.admin.browser.chromium import PHONE, Complaints, watched
from tests.admin.browser.process import log_in, serving
from tests.models.hub import Hub, running

DEMO = BUNDLED / "omlx-demo"
PAGE = "/admin/models/get"
WEIGHTS = "model.safetensors"
WAIT_MS = 60_000
LARGE = bytes(24 << 20)
PACKAGE = {
    "generation": {
        "speculative_decoding": {
            "default": "small",
            "strategies": {"small": {"type": "draft-model", "draft_model": "org/small"}},
        }
    }
}


@dataclass(frozen=True)
class Shop:
    """A browser that is logged in at a server whose hub is `hub`."""

    hub: Hub
    context: BrowserContext
    complaints: Complaints

    def page(self) -> Page:
        page = self.context.new_page()
        page.goto(PAGE)
        return page


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running(Hub()) as hub:
        hub.add("org/big", DEMO / "target", {FILE: json.dumps(PACKAGE).encode()})
        hub.add("org/small", DEMO / "draft")
        hub.add("org/wrong", DEMO / "draft")
        hub.add("org/slow", DEMO / "draft", {WEIGHTS: LARGE})
        hub.add("org/gated", DEMO / "draft")
        hub.gated |= {"org/gated"}
        hub.add("<img src=x onerror=alert(1)>", DEMO / "draft")
        yield hub


@pytest.fixture(scope="module")
def shop(browser: Browser, hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    home = tmp_path_factory.mktemp("home")
    with (
        serving(home, 0, **hub.environment(home / "hub")) as (_, link),
        watched(browser, "{0.scheme}://{0.netloc}".format(urlsplit(link))) as (context, complaints),
    ):
        log_in(context.new_page(), link)
        yield Shop(hub, context, complaints)


def search(page: Page, text: str) -> None:
    page.get_by_label("Search the hub").fill(text)
    page.keyboard.press("Enter")


def row(page: Page, part: str, model: str) -> Locator:
    return page.locator(f'[id="{part}-{model}"]')


def test_a_model_is_found_downloaded_with_its_draft_and_deleted(shop: Shop) -> None:
    seen = [*shop.hub.seen]
    page = shop.page()
    assert shop.hub.seen == seen  # nothing before a person asks
    search(page, "org/big")
    heading = page.locator("#results")
    expect(heading).to_have_text("1 results for “org/big”", timeout=WAIT_MS)
    expect(heading).to_be_focused()
    offer = row(page, "offer", "org/big")
    expect(offer).to_contain_text("fits: 4k context")
    expect(offer.get_by_role("checkbox")).to_be_checked()
    offer.get_by_role("button", name="Download").click()
    for model in ("org/big", "org/small"):
        done = row(page, "download", model)
        expect(done).to_have_attribute("data-state", "done", timeout=WAIT_MS)
    expect(offer.get_by_role("button")).to_contain_text("On this machine", timeout=WAIT_MS)
    small = row(page, "own", "org/small")
    expect(small).to_contain_text("draft model of org/big", timeout=WAIT_MS)
    small.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("draft model of org/big")
    dialog.get_by_role("button", name="Keep").click()
    small.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(small).to_have_count(0, timeout=WAIT_MS)
    expect(row(page, "own", "org/big")).to_be_visible()
    page.close()


def test_what_the_hub_has_is_shown_as_text(shop: Shop) -> None:
    page = shop.page()
    search(page, "g")
    expect(row(page, "offer", "org/gated")).to_contain_text("is gated", timeout=WAIT_MS)
    strange = page.locator(".model").filter(has_text="<img src=x onerror=alert(1)>")
    expect(strange).to_contain_text("is not a model name")
    expect(strange.get_by_role("button")).to_have_count(0)
    search(page, "nothing-of-this-name")
    expect(page.get_by_text("The hub has no MLX model of this name.")).to_be_visible(
        timeout=WAIT_MS
    )
    page.close()


def test_a_hub_that_fails_is_named_and_the_input_stays(shop: Shop) -> None:
    page = shop.page()
    shop.hub.status = 500
    shop.complaints.expect("400")
    search(page, "org/big")
    problem = page.locator("[data-search-problem]")
    expect(problem).to_contain_text("could not be downloaded", timeout=WAIT_MS)
    field = page.get_by_label("Search the hub")
    expect(field).to_have_value("org/big")
    expect(field).to_be_focused()
    shop.hub.status = None
    page.keyboard.press("Enter")
    expect(row(page, "offer", "org/big")).to_be_visible(timeout=WAIT_MS)
    expect(problem).to_be_hidden()
    page.close()


def test_a_wrong_checksum_fails_and_a_new_attempt_succeeds(shop: Shop) -> None:
    page = shop.page()
    shop.hub.corrupt |= {WEIGHTS}
    search(page, "org/wrong")
    row(page, "offer", "org/wrong").get_by_role("button").click(timeout=WAIT_MS)
    download = row(page, "download", "org/wrong")
    expect(download).to_contain_text("does not match the hub's checksum", timeout=WAIT_MS)
    shop.hub.corrupt.clear()
    expect(page.locator("[data-settling]")).to_have_count(0)
    download.get_by_role("button", name="Try again").click()
    expect(download).to_have_attribute("data-state", "done", timeout=WAIT_MS)
    page.close()


def test_a_full_page_is_readable_reachable_and_in_every_language(shop: Shop, axe: str) -> None:
    page = shop.page()
    shop.hub.stall[WEIGHTS] = 12 << 20
    search(page, "org")
    slow = row(page, "offer", "org/slow")
    slow.get_by_role("button").click(timeout=WAIT_MS)
    download = row(page, "download", "org/slow")
    expect(download).to_contain_text(re.compile(r"10.MB of 2\d.MB"), timeout=WAIT_MS)
    other = shop.page()  # a second window shows the same
    expect(row(other, "download", "org/slow")).to_contain_text("downloading")
    other.close()
    pause = download.get_by_role("button", name="Pause")
    pause.focus()
    page.keyboard.press("Enter")
    resume = download.get_by_role("button", name="Resume")
    expect(resume).to_be_focused(timeout=WAIT_MS)
    check_fits(page)
    check_keyboard(page)
    for language in languages():
        page.context.add_cookies([{"name": "omlx_language", "value": language, "url": page.url}])
        page.goto(PAGE)
        check_words(page, language)
        check_fits(page)
    page.context.clear_cookies(name="omlx_language")
    page.goto(PAGE)
    search(page, "org")
    expect(row(page, "offer", "org/slow")).to_contain_text("paused", timeout=WAIT_MS)
    shop.complaints.expect("inline")  # axe-core tries to style the page while it looks
    check_accessible(page, axe)
    shop.hub.released.set()
    page.set_viewport_size(PHONE)
    download.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(download).to_have_count(0, timeout=WAIT_MS)
    page.close()


@pytest.mark.slow
def test_a_killed_server_is_named_and_the_next_one_continues(
    browser: Browser, tmp_path: Path
) -> None:
    with running(Hub()) as hub:
        hub.add("org/slow", DEMO / "draft", {WEIGHTS: LARGE})
        hub.stall[WEIGHTS] = 12 << 20
        variables = hub.environment(tmp_path / "hub")
        with serving(tmp_path, 0, **variables) as (server, link):
            parts = urlsplit(link)
            with watched(browser, f"{parts.scheme}://{parts.netloc}") as (context, complaints):
                complaints.expect("ERR_|40[14]")
                page = context.new_page()
                log_in(page, link)
                page.goto(PAGE)
                search(page, "org/slow")
                row(page, "offer", "org/slow").get_by_role("button").click(timeout=WAIT_MS)
                download = row(page, "download", "org/slow")
                expect(download).to_contain_text(re.compile("10.MB of"), timeout=WAIT_MS)
                page.get_by_label("Search the hub").fill("typed meanwhile")
                server.kill()
                expect(page.locator("[data-offline]")).to_be_visible(timeout=WAIT_MS)
                with serving(tmp_path, parts.port or 0, **variables) as (_, again):
                    expect(page.locator("[data-logged-out]")).to_be_visible(timeout=WAIT_MS)
                    log_in(context.new_page(), again)
                    expect(download).to_have_attribute("data-state", "paused", timeout=WAIT_MS)
                    expect(page.get_by_label("Search the hub")).to_have_value("typed meanwhile")
                    expect(page.locator("[data-settling]")).to_have_count(0, timeout=WAIT_MS)
                    download.get_by_role("button", name="Resume").click()
                    expect(download).to_have_attribute("data-state", "done", timeout=WAIT_MS)
        starts = [at for method, name, at in hub.seen if (method, name) == ("GET", WEIGHTS)]
        assert starts == [0, 10 << 20]
