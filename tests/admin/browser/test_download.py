"""Downloads in a browser, with a hub on the loopback that stalls, lies and fails; a first start."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.package import FILE
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard, check_languages
from tests.admin.browser.chromium import PHONE
from tests.admin.browser.process import logged_in
from tests.admin.browser.site import settled
from tests.models.hub import Hub, running

DEMO = BUNDLED / "omlx-demo"
PAGE = "/admin/models/get"
WEIGHTS = "model.safetensors"
LARGE = bytes(24 << 20)
PACKAGE = {
    "generation": {
        "speculative_decoding": {
            "default": "small",
            "strategies": {"small": {"type": "draft-model", "draft_model": "org/small"}},
        }
    }
}


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running(Hub()) as hub:
        hub.add("org/big", DEMO / "target", {FILE: json.dumps(PACKAGE).encode()})
        for name in ("org/small", "org/wrong", "org/gated", "<img src=x onerror=alert(1)>"):
            hub.add(name, DEMO / "draft")
        hub.add("org/slow", DEMO / "draft", {WEIGHTS: LARGE})
        hub.gated |= {"org/gated"}
        yield hub


@pytest.fixture(scope="module")
def shop(
    browser: Browser, hub: Hub, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrowserContext]:
    """A browser that is logged in at a server with this hub."""
    home = tmp_path_factory.mktemp("home")
    variables = hub.environment(home / "hub")
    with logged_in(browser, home, expected="400", **variables) as (context, _, _):
        yield context


@pytest.fixture
def page(shop: BrowserContext) -> Iterator[Page]:
    page = shop.new_page()
    page.goto(PAGE)
    yield page
    page.close()


def search(page: Page, text: str) -> None:
    page.get_by_label("Search the hub").fill(text)
    page.keyboard.press("Enter")


def row(page: Page, part: str, model: str) -> Locator:
    return page.locator(f'[id="{part}-{model}"]')


def test_a_model_is_found_downloaded_with_its_draft_and_deleted(page: Page, hub: Hub) -> None:
    seen = [*hub.seen]
    page.reload()
    assert hub.seen == seen  # nothing before a person asks
    search(page, "org/big")
    heading = page.locator("#results")
    expect(heading).to_have_text("1 results for “org/big”")
    expect(heading).to_be_focused()
    offer = row(page, "offer", "org/big")
    expect(offer).to_contain_text("fits: 4k context")
    expect(offer.get_by_role("checkbox")).to_be_checked()
    offer.get_by_role("button", name="Download").click()
    for model in ("org/big", "org/small"):
        done = row(page, "download", model)
        expect(done).to_have_attribute("data-state", "done")
    expect(offer.get_by_role("button")).to_contain_text("On this machine")
    small = row(page, "own", "org/small")
    expect(small).to_contain_text("draft model of org/big")
    small.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("draft model of org/big")
    dialog.get_by_role("button", name="Keep").click()
    small.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(small).to_have_count(0)
    expect(row(page, "own", "org/big")).to_be_visible()


def test_what_the_hub_has_is_shown_as_text(page: Page, hub: Hub) -> None:
    search(page, "g")
    expect(row(page, "offer", "org/gated")).to_contain_text("is gated")
    strange = page.locator(".model").filter(has_text="<img src=x onerror=alert(1)>")
    expect(strange).to_contain_text("is not a model name")
    expect(strange.get_by_role("button")).to_have_count(0)
    search(page, "nothing-of-this-name")
    expect(page.get_by_text("The hub has no MLX model of this name.")).to_be_visible()


def test_a_hub_that_fails_is_named_and_the_input_stays(page: Page, hub: Hub) -> None:
    hub.status = 500
    search(page, "org/big")
    problem = page.locator("[data-search-problem]")
    expect(problem).to_contain_text("could not be downloaded")
    field = page.get_by_label("Search the hub")
    expect(field).to_have_value("org/big")
    expect(field).to_be_focused()
    hub.status = None
    page.keyboard.press("Enter")
    expect(row(page, "offer", "org/big")).to_be_visible()
    expect(problem).to_be_hidden()


def test_a_wrong_checksum_fails_and_a_new_attempt_succeeds(page: Page, hub: Hub) -> None:
    hub.corrupt |= {WEIGHTS}
    search(page, "org/wrong")
    row(page, "offer", "org/wrong").get_by_role("button").click()
    download = row(page, "download", "org/wrong")
    expect(download).to_contain_text("does not match the hub's checksum")
    hub.corrupt.clear()
    settled(page)
    download.get_by_role("button", name="Try again").click()
    expect(download).to_have_attribute("data-state", "done")


@pytest.mark.slow
def test_a_full_page_is_readable_reachable_and_in_every_language(page: Page, hub: Hub) -> None:
    hub.stall[WEIGHTS] = 12 << 20
    search(page, "org")
    slow = row(page, "offer", "org/slow")
    slow.get_by_role("button").click()
    download = row(page, "download", "org/slow")
    expect(download).to_contain_text(re.compile(r"10.MB of 2\d.MB"))
    other = page.context.new_page()  # a second window shows the same
    other.goto(PAGE)
    expect(row(other, "download", "org/slow")).to_contain_text("downloading")
    other.close()
    pause = download.get_by_role("button", name="Pause")
    pause.focus()
    page.keyboard.press("Enter")
    resume = download.get_by_role("button", name="Resume")
    expect(resume).to_be_focused()
    check_fits(page)
    check_keyboard(page)
    check_languages(page, PAGE)
    search(page, "org")
    expect(row(page, "offer", "org/slow")).to_contain_text("paused")
    check_accessible(page)
    hub.released.set()
    page.set_viewport_size(PHONE)
    download.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(download).to_have_count(0)


@pytest.mark.slow
def test_a_first_start_offers_a_model_with_its_draft(browser: Browser, tmp_path: Path) -> None:
    """A machine with nothing but the bundled models."""
    model, draft = "mlx-community/Qwen3-4B-4bit", "mlx-community/Qwen3-0.6B-4bit"
    with running(Hub()) as hub:
        hub.add(model, DEMO / "target")
        hub.add(draft, DEMO / "draft")
        variables = hub.environment(tmp_path / "hub")
        with logged_in(browser, tmp_path, "--memory-limit", "5600MB", **variables) as (context, *_):
            page = context.new_page()
            page.goto("/admin/chat")
            hint, offers = page.locator(".chat-welcome .hint"), page.locator("[id^='offer-']")
            expect(hint).to_contain_text("Only the small bundled demonstration models")
            hint.get_by_role("link", name="Download models").click()
            page.wait_for_url(f"**{PAGE}")
            page.goto("/admin")
            expect(page.get_by_role("heading", name="Get a model")).to_be_visible()
            expect(offers).to_have_count(4)
            check_accessible(page)
            check_fits(page)
            check_keyboard(page)
            assert hub.seen == []  # before a person asks
            row(page, "offer", model).get_by_role("button", name="Download").click()
            expect(offers).to_have_count(0)
            for name in (model, draft):
                done = row(page, "download", name)
                expect(done).to_have_attribute("data-state", "done")
                done.get_by_role("button", name="Dismiss").click()
            expect(page.get_by_role("heading", name="Downloads")).to_have_count(0)
            expect(page.locator(".welcome")).to_contain_text(model)
            page.goto("/admin/chat")
            expect(hint).to_have_count(0)
            page.close()
