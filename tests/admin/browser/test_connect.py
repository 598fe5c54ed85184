"""The page that connects programs, in a browser: copy, choose a model, search, see requests."""

from __future__ import annotations

import re
import shlex

from playwright.sync_api import expect

from omlx.machine import program_words
from tests.admin.browser.site import CLIPBOARD, Site, copied
from tests.server.running import HYBRID, TARGET

CONNECT = "/admin/connect"


def test_a_copied_snippet_is_the_shown_one(busy: Site) -> None:
    with busy.open(CONNECT, permissions=CLIPBOARD) as page:
        app = page.locator("#app-claude")
        app.locator("summary").focus()
        page.keyboard.press("Enter")
        app.get_by_role("button", name="Copy Claude Code").press("Enter")
        assert copied(page) == app.locator("pre code").text_content()
        assert f"ANTHROPIC_BASE_URL={busy.url}\n" in copied(page)
        expect(page.locator("[data-announcer]")).to_have_text("Copied")
        app.get_by_role("button", name=re.compile(r"Copy .* launch")).click()
        launch = [*program_words(), "launch", "--model", TARGET, "claude"]
        assert copied(page) == shlex.join(launch)


def test_snippets_are_shown_for_another_model(busy: Site) -> None:
    with busy.open(CONNECT) as page:
        app = page.locator("#app-codex")
        app.locator("summary").click()
        expect(app.locator("pre code")).to_contain_text(f'model = "{TARGET}"')
        page.get_by_label("Model").select_option(HYBRID)
        expect(app.locator("pre code")).to_contain_text(f'model = "{HYBRID}"')
        expect(app).to_have_attribute("open", "")
        page.reload()
        expect(page.get_by_label("Model")).to_have_value(HYBRID)


def test_another_model_needs_no_script(busy: Site) -> None:
    with busy.open(f"{CONNECT}?model={HYBRID}", java_script_enabled=False) as page:
        expect(page.locator("#connect-model")).to_have_value(HYBRID)
        expect(page.locator("#app-curl code")).to_contain_text(HYBRID)
        page.goto(f"{CONNECT}?model=no/such")
        expect(page.locator("#connect-model")).to_have_value(TARGET)


def test_the_first_request_of_a_program_appears_and_programs_are_searched(busy: Site) -> None:
    hostile = "<img/src=x>"
    with busy.open(CONNECT) as page:
        codex = page.locator("#app-codex summary")
        expect(codex).not_to_contain_text("Last request")
        codex.click()
        waiting = page.locator("#app-codex").get_by_text("Waiting for its first request")
        expect(waiting).to_be_visible()
        for agent in ("codex_exec/0.169.0 (Debian)", hostile):
            busy.post(agent, max_tokens=1)
        expect(codex).to_contain_text("Last request")
        expect(codex).to_contain_text("0.169.0")
        expect(waiting).to_have_count(0)
        expect(page.get_by_role("region", name="Other programs")).to_contain_text(hostile)
        shown = page.locator("details.snippet:visible")
        search = page.get_by_label("Search apps")
        search.fill("codex")
        expect(shown).to_have_count(1)
        expect(page.get_by_role("heading", name="Libraries")).to_be_hidden()
        page.evaluate("document.dispatchEvent(new CustomEvent('omlx:changed'))")
        expect(page.locator("omlx-connect [data-shown]")).to_contain_text("1 of")
        expect(search).to_have_value("codex")
        search.fill("")
        expect(page.get_by_role("heading", name="Libraries")).to_be_visible()
