"""Profiles in a browser: made, used, deleted."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.admin.browser.checks import check_accessible, check_fits
from tests.admin.browser.site import Site
from tests.server.running import TARGET


def test_a_profile_from_its_name_to_its_end(fresh: Site, axe: str) -> None:
    with fresh.visit() as visit:
        page = visit.page
        page.goto(f"/admin/models/{TARGET}")
        name = page.get_by_label("Name of a new profile")
        name.fill("a b")
        page.keyboard.press("Enter")
        assert name.evaluate("input => !input.validity.valid"), "the browser says so"
        name.fill("fast")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text(f"{TARGET}:fast")
        expect(page.get_by_text("does not exist yet")).to_be_visible()
        expect(page.get_by_role("button", name="Delete profile")).to_have_count(0)

        page.get_by_label("Temperature").fill("0.25")
        page.get_by_label("Max output tokens").fill("3")
        page.get_by_role("button", name="Save").click()
        expect(page.locator("[data-saved]")).to_contain_text("Saved and in effect")
        expect(page.get_by_text("does not exist yet")).to_have_count(0)
        answer = fresh.ask(model=f"{TARGET}:fast", max_tokens=None)
        assert (answer["model"], answer["usage"]["completion_tokens"]) == (f"{TARGET}:fast", 3)

        page.get_by_role("link", name=TARGET).click()
        row = page.locator(".profile")
        expect(row).to_contain_text(f"{TARGET}:fast")
        expect(row).to_contain_text("Temperature: 0.25")
        check_accessible(page, axe)
        check_fits(page)

        row.get_by_role("link").click()
        page.locator("omlx-profile:defined").wait_for()
        page.get_by_role("button", name="Delete profile").click()
        page.get_by_role("button", name="Keep it").click()
        expect(page.locator("h1")).to_have_text(f"{TARGET}:fast")
        page.get_by_role("button", name="Delete profile").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete profile").click()
        expect(page.locator("#profiles-title")).to_be_visible()
        expect(page.locator(".profile")).to_have_count(0)
        assert fresh.ask(model=TARGET)["model"] == TARGET
