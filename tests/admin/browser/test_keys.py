"""The page of API keys in a browser: make one, see it once, copy, revoke; by keyboard."""

from __future__ import annotations

from pathlib import Path

import httpx
from playwright.sync_api import Browser, expect

from omlx.settings.keys import KeyFile
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard
from tests.admin.browser.site import open_site

KEYS = "/admin/settings/keys"


def test_a_key_is_made_shown_once_and_revoked(browser: Browser, tmp_path: Path, axe: str) -> None:
    with (
        open_site(browser, tmp_path, api_key="main") as site,
        site.visit(permissions=["clipboard-read", "clipboard-write"]) as visit,
    ):
        page = visit.page

        def status(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return httpx.get(f"{site.url}/v1/models", headers=headers, timeout=60).status_code

        page.goto("/admin/settings")
        page.get_by_role("link", name="API keys").press("Enter")
        page.wait_for_url(f"**{KEYS}")
        name = page.get_by_label("Name", exact=True)
        name.fill("api_key")
        visit.complaints.expect("400")
        name.press("Enter")
        expect(page.locator("#problem-name")).to_contain_text("not a valid name")
        expect(name).to_be_focused()
        name.fill("phone")
        page.get_by_label("Models").fill("target\norg/*")
        page.get_by_label("Requests per minute").fill("30")
        name.press("Enter")
        created = page.get_by_role("region", name="Key “phone”")
        expect(created.get_by_role("heading")).to_be_focused()
        expect(created).to_contain_text("No model on this machine matches 'org/*'")
        key = created.locator("code").inner_text()
        assert status(key) == 200
        created.get_by_role("button", name="Copy").press("Enter")
        assert page.evaluate("navigator.clipboard.readText()") == key
        row = page.locator("#key-phone")
        expect(row).to_contain_text(key[-4:])
        expect(row).to_contain_text("org/*")
        check_fits(page)
        check_keyboard(page)
        visit.complaints.check()
        visit.complaints.expect("inline")  # axe-core tries to style the page while it looks
        check_accessible(page, axe)
        created.get_by_role("button", name="Done").press("Enter")
        expect(created).to_be_hidden()
        assert key not in page.content()
        revoke = page.get_by_role("button", name="Revoke phone")
        dialog = page.get_by_role("dialog")
        revoke.press("Enter")
        dialog.get_by_role("button", name="Keep").press("Enter")
        expect(row).to_be_visible()
        assert status(key) == 200
        revoke.press("Enter")
        dialog.get_by_role("button", name="Revoke").press("Enter")
        expect(page.locator("[data-announcer]")).to_have_text("Revoked: phone")
        expect(row).to_have_count(0)
        assert status(key) == 401
        # One that is made in another process appears.
        file = KeyFile(tmp_path)
        file.add("tablet")
        page.evaluate("document.dispatchEvent(new CustomEvent('omlx:changed'))")
        expect(page.locator("#key-tablet")).to_be_visible()
