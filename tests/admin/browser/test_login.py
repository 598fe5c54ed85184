"""Login and keys in a browser: link, password, session, theme; a key made, seen once, revoked."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from omlx.admin.credentials import Credentials
from omlx.settings.keys import KeyFile
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard
from tests.admin.browser.site import CLIPBOARD, Site, copied, open_site, save
from tests.admin.running import PASSWORD
from tests.server.running import TARGET

KEYS = "/admin/settings/keys"
MODEL = f"/admin/models/{TARGET}"
BACKGROUND = "getComputedStyle(document.documentElement).backgroundColor"


def test_a_link_then_a_password(fresh: Site) -> None:
    with fresh.open(MODEL, "401", logged_in=False, permissions=CLIPBOARD) as page:
        log_in = page.get_by_role("button", name="Log in")
        command = page.locator("pre", has_text="omlx dashboard")
        expect(command).to_be_visible()
        page.get_by_role("button", name="Copy").click()
        assert copied(page) == command.text_content()
        page.goto(Credentials(fresh.home).link(fresh.url) + "&next=/admin/models")
        log_in.click()
        page.get_by_label("New password").fill(PASSWORD)
        page.get_by_role("button", name="Set a password").click()
        expect(page.get_by_role("heading", name="Models")).to_be_visible()

        page.locator(".menu summary").click()
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Password").fill("a wrong one")
        log_in.click()
        expect(page.get_by_role("alert")).to_have_text("The password is wrong.")
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")
        expect(page.get_by_role("navigation")).to_be_visible()
    with fresh.open("/admin/login?token=used", "401", logged_in=False) as page:
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("has been used or has expired")
    for path, logged_in in (("/admin/login", False), ("/admin/password", True)):
        with fresh.open(path, logged_in=logged_in) as page:  # for password managers
            form = page.locator("form").filter(has=page.locator("input[type=password]"))
            account = form.locator('input[autocomplete="username"]')
            expect(account).to_have_count(1)
            expect(account).to_have_value("omlx")
            expect(account).to_be_hidden()
            types = form.evaluate("form => [...form.elements].map(({ type }) => type)")
            assert next(kind for kind in types if kind in ("text", "password")) == "text"


def test_a_theme_applies_at_once_and_is_stored(busy: Site) -> None:
    with busy.open("/admin/settings", color_scheme="light") as page:
        day = page.evaluate(BACKGROUND)
        page.get_by_label("Port").fill("9000")
        page.locator(".menu summary").click()
        with page.expect_response("**/admin/preferences"):
            page.get_by_label("Appearance").select_option("dark")
        night = page.evaluate(BACKGROUND)
        assert night != day
        expect(page.get_by_label("Port")).to_have_value("9000")  # the input stays
        page.keyboard.press("Escape")
        expect(page.get_by_label("Appearance")).to_be_hidden()
        page.get_by_role("button", name="Discard").click()
        page.goto("/admin/models")
        assert page.evaluate(BACKGROUND) == night


def test_an_ended_session_is_said_and_keeps_the_input(fresh: Site) -> None:
    with fresh.open(MODEL, "401") as page:
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: dialogs.append(dialog.type))
        temperature, notice = page.get_by_label("Temperature"), page.locator("[data-logged-out]")
        temperature.evaluate("(field) => field.closest('details').open = true")
        temperature.fill("0.5")
        page.context.clear_cookies(name="omlx_session")
        expect(notice).to_contain_text("You are logged out.")
        expect(notice).to_contain_text("omlx dashboard")
        page.get_by_role("button", name="Save").click()
        # A part of the page that reloads at this moment may say so too.
        said = page.get_by_role("alert").filter(has_text="You are logged out.")
        expect(said.nth(1)).to_be_visible()
        expect(temperature).to_have_value("0.5")

        Credentials(fresh.home).set_password(PASSWORD)
        login = notice.get_by_role("link", name="Log in")
        expect(login).to_be_visible()
        with page.context.expect_page() as opened:
            login.click()
        tab = opened.value
        tab.get_by_label("Password").fill(PASSWORD)
        tab.keyboard.press("Enter")
        expect(tab).to_have_url(f"{fresh.url}{MODEL}")
        expect(notice).to_be_hidden()
        save(page, "Temperature")
        assert dialogs == []


def test_a_key_is_made_shown_once_and_revoked(browser: Browser, tmp_path: Path) -> None:
    with (
        open_site(browser, tmp_path, api_key="main") as site,
        site.open("/admin/settings", "400", permissions=CLIPBOARD) as page,
    ):

        def status(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return httpx.get(f"{site.url}/v1/models", headers=headers, timeout=60).status_code

        page.get_by_role("link", name="API keys").press("Enter")
        page.wait_for_url(f"**{KEYS}")
        name = page.get_by_label("Name", exact=True)
        name.fill("api_key")
        name.press("Enter")
        expect(page.locator("#problem-name")).to_contain_text("not a valid name")
        expect(name).to_be_focused()
        name.fill("phone")
        page.get_by_label("Models").fill("target\norg/*")
        page.get_by_label("Requests per minute").fill("30")
        name.press("Enter")
        created, row = page.get_by_role("region", name="Key “phone”"), page.locator("#key-phone")
        expect(created.get_by_role("heading")).to_be_focused()
        expect(created).to_contain_text("No model on this machine matches 'org/*'")
        key = created.locator("code").inner_text()
        assert status(key) == 200
        created.get_by_role("button", name="Copy").press("Enter")
        assert copied(page) == key
        expect(row).to_contain_text(key[-4:])
        expect(row).to_contain_text("org/*")
        check_fits(page)
        check_keyboard(page)
        check_accessible(page)
        created.get_by_role("button", name="Done").press("Enter")
        expect(created).to_be_hidden()
        assert key not in page.content()
        revoke, dialog = page.get_by_role("button", name="Revoke phone"), page.get_by_role("dialog")
        revoke.press("Enter")
        dialog.get_by_role("button", name="Keep").press("Enter")
        expect(row).to_be_visible()
        assert status(key) == 200
        revoke.press("Enter")
        dialog.get_by_role("button", name="Revoke").press("Enter")
        expect(page.locator("[data-announcer]")).to_have_text("Revoked: phone")
        expect(row).to_have_count(0)
        assert status(key) == 401
        KeyFile(tmp_path).add("tablet")  # one that is made in another process appears
        page.evaluate("document.dispatchEvent(new CustomEvent('omlx:changed'))")
        expect(page.locator("#key-tablet")).to_be_visible()


@pytest.mark.slow
def test_the_first_key_is_made_after_a_question(browser: Browser, tmp_path: Path) -> None:
    with open_site(browser, tmp_path) as site, site.open(KEYS) as page:
        site.post(agent="probe/2.0", max_tokens=1)
        page.reload()
        name, dialog = page.get_by_label("Name", exact=True), page.get_by_role("dialog")
        name.fill("phone")
        name.press("Enter")
        expect(dialog).to_contain_text("every program needs one")
        expect(dialog).to_contain_text("probe/2.0")
        check_fits(page)
        dialog.get_by_role("button", name="Keep it open").press("Enter")
        assert site.post(max_tokens=1).status_code == 200
        name.press("Enter")
        dialog.get_by_role("button", name="Create key").press("Enter")
        expect(page.get_by_role("region", name="Key “phone”")).to_be_visible()
        assert site.post(max_tokens=1).status_code == 401
        expect(page.locator("[data-open]")).to_have_count(0)
        name.fill("tablet")
        name.press("Enter")  # there is nothing left to close
        expect(page.get_by_role("region", name="Key “tablet”")).to_be_visible()
