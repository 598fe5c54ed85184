"""Login in a browser: link, password, theme."""

from __future__ import annotations

from playwright.sync_api import expect

from omlx.admin.credentials import Credentials
from tests.admin.browser.site import Site
from tests.admin.running import PASSWORD


def test_a_link_then_a_password(fresh: Site) -> None:
    with fresh.visit(logged_in=False) as visit:
        page = visit.page
        page.goto("/admin/models/omlx-demo/target")
        command = page.locator("pre", has_text="omlx dashboard")
        expect(command).to_be_visible()
        visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy").click()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == command.text_content()
        page.goto(Credentials(fresh.home).link(fresh.url) + "&next=/admin/models")
        page.get_by_role("button", name="Log in").click()
        page.get_by_label("New password").fill(PASSWORD)
        page.get_by_role("button", name="Set a password").click()
        expect(page.get_by_role("heading", name="Models")).to_be_visible()

        page.locator(".menu summary").click()
        page.get_by_role("button", name="Log out").click()
        visit.complaints.expect("401")
        page.get_by_label("Password").fill("a wrong one")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_have_text("The password is wrong.")
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")
        expect(page.get_by_role("navigation")).to_be_visible()


def test_password_managers_find_the_account_of_each_password(fresh: Site) -> None:
    Credentials(fresh.home).set_password(PASSWORD)
    for path, logged_in in (("/admin/login", False), ("/admin/password", True)):
        with fresh.visit(logged_in=logged_in) as visit:
            page = visit.page
            page.goto(path)
            form = page.locator("form").filter(has=page.locator("input[type=password]"))
            account = form.locator('input[autocomplete="username"]')
            expect(account).to_have_count(1)
            expect(account).to_have_value("omlx")
            expect(account).to_be_hidden()
            order = "form => [...form.elements].map(({ type }) => type)"
            kinds = [kind for kind in form.evaluate(order) if kind in ("text", "password")]
            assert kinds[0] == "text"


def test_a_used_link_is_reported(fresh: Site) -> None:
    with fresh.visit(logged_in=False) as visit:
        visit.complaints.expect("401")
        visit.page.goto(f"{fresh.url}/admin/login?token=used")
        visit.page.get_by_role("button", name="Log in").click()
        expect(visit.page.get_by_role("alert")).to_contain_text("has been used or has expired")


def test_a_theme_applies_at_once_and_is_stored(busy: Site) -> None:
    with busy.visit(color_scheme="light") as visit:
        page = visit.page
        page.goto("/admin/settings")
        day = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        page.get_by_label("Port").fill("9000")
        page.locator(".menu summary").click()
        with page.expect_response("**/admin/preferences"):
            page.get_by_label("Appearance").select_option("dark")
        night = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert night != day
        expect(page.get_by_label("Port")).to_have_value("9000")  # the input stays
        page.keyboard.press("Escape")
        expect(page.get_by_label("Appearance")).to_be_hidden()
        page.get_by_role("button", name="Discard").click()
        page.goto("/admin/models")
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == night


def test_an_ended_session_is_said_and_keeps_the_input(fresh: Site) -> None:
    with fresh.visit() as visit:
        page, context = visit.page, visit.page.context
        visit.complaints.expect("401")
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: dialogs.append(dialog.type))
        page.goto("/admin/models/omlx-demo/target")
        page.get_by_label("Temperature").evaluate("(field) => field.closest('details').open = true")
        page.get_by_label("Temperature").fill("0.5")
        context.clear_cookies(name="omlx_session")
        notice = page.locator("[data-logged-out]")
        expect(notice).to_contain_text("You are logged out.")
        expect(notice).to_contain_text("omlx dashboard")
        page.get_by_role("button", name="Save").click()
        # A part of the page that reloads at this moment may say so too.
        said = page.get_by_role("alert").filter(has_text="You are logged out.")
        expect(said.nth(1)).to_be_visible()
        expect(page.get_by_label("Temperature")).to_have_value("0.5")

        Credentials(fresh.home).set_password(PASSWORD)
        login = notice.get_by_role("link", name="Log in")
        expect(login).to_be_visible()
        with context.expect_page() as opened:
            login.click()
        tab = opened.value
        tab.get_by_label("Password").fill(PASSWORD)
        tab.keyboard.press("Enter")
        expect(tab).to_have_url(f"{fresh.url}/admin/models/omlx-demo/target")

        expect(notice).to_be_hidden()
        page.get_by_role("button", name="Save").click()
        expect(page.locator("[data-saved]").last).to_contain_text("Temperature")
        assert dialogs == []
