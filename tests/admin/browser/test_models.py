"""Models in a browser: load, unload, pin, drafts; saved settings apply to the next request."""

from __future__ import annotations

import httpx
from playwright.sync_api import Page, expect

from omlx.settings.store import Store
from tests.admin.browser.chromium import PHONE
from tests.admin.browser.site import Site
from tests.server.running import DRAFT, HYBRID, TARGET

LONG_MS = 60_000


def saved(page: Page, *, applied: str) -> None:
    """Save the form, and wait for the confirmation."""
    page.get_by_role("button", name="Save").click()
    expect(page.locator("[data-saved]:visible")).to_contain_text(applied)


def settled(page: Page) -> None:
    """Wait until buttons that have changed their meaning can be clicked."""
    expect(page.locator("[data-settling]")).to_have_count(0)


def test_a_model_is_loaded_pinned_and_unloaded(fresh: Site) -> None:
    with fresh.visit(viewport=PHONE) as visit:
        page = visit.page
        page.goto("/admin/models")
        page.get_by_role("button", name=f"Load {HYBRID}").click()
        unload = page.get_by_role("button", name=f"Unload {HYBRID}")
        expect(unload).to_be_visible(timeout=LONG_MS)
        assert httpx.get(f"{fresh.url}/v1/models/{HYBRID}").json()["state"] == "ready"

        page.get_by_role("button", name=f"Pin {HYBRID}", exact=True).click()
        unpin = page.get_by_role("button", name=f"Unpin {HYBRID}")
        expect(unpin).to_be_focused()
        assert Store(fresh.home).read().layer(HYBRID).values == {"pinned": True}
        settled(page)
        unpin.click()
        expect(page.get_by_role("button", name=f"Pin {HYBRID}", exact=True)).to_be_visible()
        assert Store(fresh.home).read().layer(HYBRID).values == {}

        settled(page)
        unload.click()
        expect(page.get_by_role("button", name=f"Load {HYBRID}")).to_be_visible(timeout=LONG_MS)
        assert httpx.get(f"{fresh.url}/v1/models/{HYBRID}").json()["state"] == "unloaded"


def test_pinning_a_model_loads_it(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        page.goto("/admin/models")
        page.get_by_role("button", name=f"Pin {HYBRID}", exact=True).click()
        row = page.locator(f'[id="model-{HYBRID}"]')
        expect(row).to_contain_text("in memory", timeout=LONG_MS)
        expect(row.get_by_role("button", name="Unpin")).to_be_focused()


def test_a_chosen_draft_drafts_for_the_next_request(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        page.goto(f"/admin/models/{TARGET}")
        expect(page.get_by_role("radio", name="No draft model")).to_be_checked()
        page.get_by_role("radio", name=DRAFT).check()
        page.get_by_label("Strategy").select_option("draft")
        page.get_by_text("Draft length", exact=True).click()
        page.get_by_label("Draft tokens (fixed)").fill("4")
        saved(page, applied="Saved")
        page.reload()
        expect(page.get_by_role("radio", name=DRAFT)).to_be_checked()
        expect(page.get_by_label("Strategy")).to_have_value("draft")
        details = fresh.ask(max_tokens=48)["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > 0

        switch = page.get_by_role("switch", name="Speculation")
        switch.focus()
        page.keyboard.press("Space")
        expect(page.get_by_label("Strategy")).to_have_value("off")
        saved(page, applied="Strategy")
        expect(page.locator(".head .chip")).to_have_text("off")
        details = fresh.ask(max_tokens=48)["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] == 0
        assert (
            Store(fresh.home).read().layer(TARGET).values["draft_model"] == DRAFT
        )  # kept while speculation is off


def test_switch_draft_and_strategy_stay_consistent(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        page.goto(f"/admin/models/{TARGET}")
        strategy, switch = (
            page.get_by_label("Strategy"),
            page.get_by_role("switch", name="Speculation"),
        )
        strategy.select_option("ngram")
        page.get_by_role("radio", name=DRAFT).check()
        expect(strategy).to_have_value("")
        strategy.select_option("ngram;draft")
        page.get_by_role("radio", name="No draft model").check()
        expect(strategy).to_have_value("ngram")
        strategy.select_option("off")
        expect(switch).not_to_be_checked()
        switch.check()
        expect(strategy).to_have_value("")
        expect(page.get_by_role("button", name="Save")).to_be_hidden()  # nothing has changed
        switch.uncheck()
        page.get_by_role("button", name="Discard").click()
        expect(switch).to_be_checked()
        expect(page.get_by_role("button", name="Save")).to_be_hidden()
