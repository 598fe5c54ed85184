"""Live parts in a browser: focus, selection and places stay while requests run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event

import pytest
from playwright.sync_api import Browser, Page, expect

from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.opening import Dtype, LoadProgress
from tests.admin.browser.checks import check_accessible
from tests.admin.browser.site import Site, settled
from tests.admin.browser.test_chat import COUNT, ask, expect_answers, open_chat
from tests.admin.running import administered
from tests.server.running import DRAFT, HYBRID, TARGET

REFRESHES = 1
_COUNTED = """(count) => new Promise((resolve) => {
  let seen = 0;
  document.addEventListener("omlx:refreshed", () => ++seen === count && resolve());
})"""
_ORDER = """() => [...document.querySelectorAll(".model")].map(({ id }) => id)"""


@contextmanager
def traffic(site: Site) -> Iterator[None]:
    """Run the block while a request changes every live part at each refresh."""
    endless = {"logit_bias": site.running.endless(), "speculation": "off"}
    with site.asking(max_tokens=3900, **endless):
        yield


def wait_for_refreshes(page: Page, count: int = REFRESHES) -> None:
    """Wait until parts of the page have changed."""
    page.evaluate(_COUNTED, count)


def test_a_click_at_the_same_place_does_not_reach_another_action(fresh: Site) -> None:
    with fresh.open() as page:
        page.clock.install()
        page.goto("/admin/models")
        order = page.evaluate(_ORDER)
        row = page.locator(f'[id="model-{HYBRID}"]')
        move = row.locator(".button-move")
        box = move.bounding_box()
        assert box is not None
        point = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.clock.pause_at(datetime.now() + timedelta(minutes=1))
        page.mouse.dblclick(*point)
        while move.get_attribute("data-action") != "unload":
            page.clock.run_for(100)
        page.mouse.click(*point)  # within a second of the change
        assert page.evaluate(_ORDER) == order
        page.clock.run_for(1000)
        expect(row.locator("[data-settling]")).to_have_count(0)
        page.clock.resume()
        expect(row).to_contain_text("in memory")
        assert {served.id for served in fresh.running.pool.loaded} == {HYBRID}

        page.mouse.click(*point)
        expect(row).to_contain_text("not loaded")
        assert page.evaluate(_ORDER) == order


def test_loading_shows_its_progress_and_is_stopped(browser: Browser, tmp_path: Path) -> None:
    def stuck(entry: ModelEntry, dtype: Dtype, _: object) -> Iterator[LoadProgress]:
        while True:
            yield LoadProgress(34, 100)
            Event().wait(0.05)  # the engine thread would do nothing else

    with administered(tmp_path, read=stuck) as server:
        site = Site(browser, server.running, tmp_path)
        with site.open("/admin/models", "503") as page:
            button = page.locator(f'[id="move-{HYBRID}"]')
            button.focus()
            page.keyboard.press("Enter")
            expect(button).to_contain_text(re.compile(r"^Loading 34.% · Stop"))
            settled(page)
            expect(button).to_be_focused()
            page.keyboard.press("Enter")
            expect(button).to_have_text(f"Load {HYBRID}")
            expect(page.locator("[data-announcer]")).to_have_text(f"Loading {HYBRID} was stopped.")
            expect(page.get_by_role("alert")).to_have_count(0)
            open_chat(page)
            ask(page, COUNT)
            progress = page.locator(".answer-progress")
            expect(progress).to_contain_text(f"Loading {TARGET}")
            expect(progress.get_by_role("progressbar")).to_have_attribute("value", "0.34")
            page.keyboard.press("Escape")
            expect_answers(page, 1, "stopped")


@pytest.mark.slow
def test_tab_goes_through_models_while_requests_run(busy: Site) -> None:
    with busy.open("/admin/models") as page, traffic(busy):
        for name in (TARGET, DRAFT, HYBRID):
            link = page.locator(f'[id="model-{name}"] a')
            link.focus()
            wait_for_refreshes(page, 1)
            expect(link).to_be_focused()
            page.keyboard.press("Tab")
            wait_for_refreshes(page, 1)
            expect(page.locator(f'[id="move-{name}"]')).to_be_focused()


def test_focus_and_selected_text_of_the_overview_stay(busy: Site) -> None:
    with busy.open("/admin") as page, traffic(busy):
        row = page.locator("section[aria-labelledby=requests] tbody th")
        expect(row).to_contain_text(TARGET)
        row.evaluate("(cell) => getSelection().selectAllChildren(cell)")
        selected = page.evaluate("getSelection().toString()")
        assert TARGET in selected
        link = page.locator(".here a").first
        link.focus()
        wait_for_refreshes(page)
        expect(link).to_be_focused()
        assert page.evaluate("getSelection().toString()") == selected


@pytest.mark.slow
def test_text_selected_in_a_table_stays_selected(busy: Site) -> None:
    with busy.open("/admin") as page:
        rows = page.locator("section[aria-labelledby=answers] tbody tr")
        cell = rows.first.locator("td").first
        text = cell.inner_text()
        cell.evaluate("(cell) => getSelection().selectAllChildren(cell)")
        busy.ask(max_tokens=7)
        expect(rows.nth(1).locator("td").first).to_have_text(text)
        assert page.evaluate("getSelection().toString().trim()") == text


def test_two_windows_show_the_same_and_keep_their_places(fresh: Site) -> None:
    with fresh.open("/admin/models") as first, fresh.open("/admin/models") as second:
        order = second.evaluate(_ORDER)
        buttons = [page.locator(f'[id="move-{HYBRID}"]') for page in (first, second)]
        for button in buttons:
            button.focus()
        first.keyboard.press("Enter")
        for button in buttons:
            expect(button).to_have_text(f"Unload {HYBRID}")
            expect(button).to_be_focused()
        expect(first.locator("[data-announcer]")).to_have_text(f"{HYBRID} was loaded.")
        assert second.evaluate(_ORDER) == order


def test_a_model_in_use_is_unloaded_after_a_question(busy: Site) -> None:
    with busy.open("/admin/models", "409") as page, traffic(busy):
        button = page.locator(f'[id="move-{TARGET}"]')
        button.click()
        dialog = page.get_by_role("dialog", name="Unload a model in use?")
        expect(dialog).to_contain_text(f"{TARGET} has active requests (1).")
        check_accessible(page)
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(button).to_be_focused()
        assert busy.running.pool.status(TARGET).state == "ready"
