"""The page of a model in a browser: its draft, its profiles, its prefix cache."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.admin.browser.checks import check_accessible, check_fits, check_languages
from tests.admin.browser.chromium import PHONE
from tests.admin.browser.site import Site, open_site, save, stored
from tests.server.running import DRAFT, TARGET

MODEL = f"/admin/models/{TARGET}"
PROMPT = "Name three rivers of Europe, and the seas that they flow into."


def test_a_chosen_draft_drafts_for_the_next_request(fresh: Site) -> None:
    with fresh.open(MODEL) as page:
        strategy = page.get_by_label("Strategy")
        expect(page.get_by_role("radio", name="No draft model")).to_be_checked()
        page.get_by_role("radio", name=DRAFT).check()
        strategy.select_option("draft")
        page.get_by_text("Draft length", exact=True).click()
        page.get_by_label("Draft tokens (fixed)").fill("4")
        save(page, "Saved")
        page.reload()
        expect(page.get_by_role("radio", name=DRAFT)).to_be_checked()
        expect(strategy).to_have_value("draft")
        details = fresh.ask(max_tokens=48)["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > 0

        page.get_by_role("switch", name="Speculation").focus()
        page.keyboard.press("Space")
        expect(strategy).to_have_value("off")
        save(page, "Strategy")
        expect(page.locator(".head .chip")).to_have_text("off")
        details = fresh.ask(max_tokens=48)["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] == 0
        assert stored(fresh, TARGET)["draft_model"] == DRAFT  # kept while speculation is off


def test_switch_draft_and_strategy_stay_consistent(fresh: Site) -> None:
    with fresh.open(MODEL) as page:
        strategy = page.get_by_label("Strategy")
        switch = page.get_by_role("switch", name="Speculation")
        button = page.get_by_role("button", name="Save")
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
        expect(button).to_be_hidden()  # nothing has changed
        switch.uncheck()
        page.get_by_role("button", name="Discard").click()
        expect(switch).to_be_checked()
        expect(button).to_be_hidden()


def test_a_profile_from_its_name_to_its_end(fresh: Site) -> None:
    profile = f"{TARGET}:fast"
    with fresh.open(MODEL) as page:
        name, title = page.get_by_label("Name of a new profile"), page.locator("h1")
        new = page.get_by_text("does not exist yet")
        delete = page.get_by_role("button", name="Delete profile")
        name.fill("a b")
        page.keyboard.press("Enter")
        assert name.evaluate("input => !input.validity.valid"), "the browser says so"
        name.fill("fast")
        page.keyboard.press("Enter")
        expect(title).to_have_text(profile)
        expect(new).to_be_visible()
        expect(delete).to_have_count(0)

        page.get_by_label("Temperature").fill("0.25")
        page.get_by_label("Max output tokens").fill("3")
        save(page, "Saved and in effect")
        expect(new).to_have_count(0)
        answer = fresh.ask(model=profile, max_tokens=None)
        assert answer["model"] == profile
        assert answer["usage"]["completion_tokens"] == 3

        page.get_by_role("link", name=TARGET).click()
        row = page.locator(".profile")
        expect(row).to_contain_text(profile)
        expect(row).to_contain_text("Temperature: 0.25")
        check_accessible(page)
        check_fits(page)

        row.get_by_role("link").click()
        page.locator("omlx-profile:defined").wait_for()
        delete.click()
        page.get_by_role("button", name="Keep it").click()
        expect(title).to_have_text(profile)
        delete.click()
        page.get_by_role("dialog").get_by_role("button", name="Delete profile").click()
        expect(page.locator("#profiles-title")).to_be_visible()
        expect(row).to_have_count(0)
        assert fresh.ask(model=TARGET)["model"] == TARGET


@pytest.mark.slow
def test_cached_prefixes_are_shown_probed_and_cleared(fresh: Site) -> None:
    with fresh.open(MODEL, "400") as page:
        card = page.get_by_role("region", name="Prefix cache")
        expect(card).to_contain_text("The model is not loaded, so its prefix cache is empty.")
        status, clear = card.get_by_role("status"), card.get_by_role("button", name="Clear")
        probe, prompt = (
            card.get_by_role("button", name="Check a prompt"),
            card.get_by_label("Prompt"),
        )
        expect(clear).to_have_count(0)
        probe.click()  # an empty prompt is reported beside the field
        expect(page.locator('[data-field="prompt"] [data-problem]')).to_be_visible()
        expect(page.get_by_role("textbox", name="Prompt")).to_be_focused()

        fresh.ask(PROMPT)
        expect(clear).to_be_visible()  # without a reload
        expect(page.locator("#prefixes-memory")).not_to_have_attribute("value", "0")
        expect(card).to_contain_text("0 of 1")
        prompt.fill(PROMPT)
        probe.click()
        expect(status).to_contain_text("tokens of this prompt are cached.")
        cached, _, length, *_ = status.inner_text().split()
        assert int(cached) == int(length) - 1

        clear.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#prefixes-memory")).to_have_attribute("value", "0")
        expect(clear).to_be_focused()
        expect(status).to_be_empty()
        probe.click()
        expect(status).to_have_text(f"0 of {length} tokens of this prompt are cached.")


@pytest.mark.slow
def test_beginnings_that_return_are_listed(browser: Browser, tmp_path: Path) -> None:
    system = {"role": "system", "content": "You edit small programs with care. " * 70}
    with (
        open_site(browser, tmp_path, default=None, record_prompts=True) as site,
        site.open(MODEL) as page,
    ):
        listed = page.get_by_role("region", name="Beginnings that return")
        expect(listed).to_have_count(0)
        site.ask(PROMPT)
        expect(listed).to_contain_text("Begin two conversations with the same or nearly the same")
        for question in ("Name a hill.", "Name a river."):
            site.ask(messages=[system, {"role": "user", "content": question}])
        row = page.locator(".beginnings-list li")
        expect(row).to_contain_text("python-httpx/")
        expect(row).to_contain_text("You edit small programs with care. You edit")
        expect(row).to_contain_text(re.compile(r"\d+ tokens ·\s+last used 20\d\d-.* ·\s"))
        expect(row).to_contain_text("Cached")  # computed while idle
        expect(listed).to_contain_text("tokens computed while idle")
        check_accessible(page, [PHONE])
        check_languages(page, MODEL, [PHONE])
        expect(row).to_have_count(1)
