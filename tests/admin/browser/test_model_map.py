"""The rows of the model name mapping in a browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from omlx.catalog import catalog, languages
from omlx.settings.store import Store
from tests.admin.browser.checks import check_accessible, check_fits
from tests.admin.browser.site import SCRIPT, Site, open_site
from tests.server.running import DRAFT, HYBRID, TARGET


def rows_of(page: Page) -> Locator:
    return page.locator('[data-field="model_map"] .map-row')


def store_rows(site: Site, *rules: str) -> None:
    Store(site.home).patch({"model_map": rules})


def stored_rows(site: Site) -> object:
    return Store(site.home).read().layer().values.get("model_map")


def test_rows_are_added_moved_and_removed(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        page.goto("/admin/settings")
        rows, saved = rows_of(page), page.locator("[data-saved]")
        options = page.locator("datalist#models-model_map option")
        values = options.evaluate_all("all => all.map(({ value }) => value)")
        assert values == [TARGET, DRAFT, HYBRID]
        page.get_by_role("button", name="Add a name").click()
        expect(rows.nth(0).get_by_label("Model name in requests")).to_be_focused()
        page.keyboard.type("claude-*")
        page.keyboard.press("Tab")
        page.keyboard.type(TARGET)
        page.get_by_role("button", name="Add a name").focus()
        page.keyboard.press("Enter")
        page.keyboard.type(" gpt-4o ")
        page.keyboard.press("Tab")
        page.keyboard.type("draft")
        page.get_by_role("button", name="Add a name").click()  # an empty row is not sent
        page.get_by_role("button", name="Save").click()
        expect(saved).to_contain_text("Saved and in effect: Model name mapping")
        assert stored_rows(fresh) == (f"claude-*={TARGET}", "gpt-4o=draft")
        expect(rows).to_have_count(2)
        assert fresh.ask(model="gpt-4o")["model"] == DRAFT

        page.get_by_role("button", name="Move row 2 up").click()
        expect(rows.nth(0).get_by_label("Model on this machine")).to_have_value("draft")
        expect(page.get_by_role("button", name="Move row 1 up")).to_be_disabled()
        page.get_by_role("button", name="Save").click()
        expect(saved).to_contain_text("Model name mapping")
        assert stored_rows(fresh) == ("gpt-4o=draft", f"claude-*={TARGET}")

        page.get_by_role("button", name="Remove row 1").focus()
        page.keyboard.press("Enter")
        expect(rows.get_by_label("Model name in requests")).to_be_focused()
        page.get_by_role("button", name="Remove row 1").click()
        expect(page.get_by_role("button", name="Add a name")).to_be_focused()
        page.get_by_role("button", name="Save").click()
        expect(saved).to_contain_text("Model name mapping")
        assert stored_rows(fresh) is None
        page.goto("/admin")  # nothing is left to save: no question


def test_discard_brings_removed_rows_back(fresh: Site) -> None:
    store_rows(fresh, f"claude-*={TARGET}", f"gpt-*={DRAFT}")
    with fresh.visit() as visit:
        page = visit.page
        page.goto("/admin/settings")
        names = rows_of(page).get_by_label("Model name in requests")
        expect(page.get_by_role("button", name="Save")).to_be_hidden()
        page.get_by_role("button", name="Remove row 1").click()
        names.nth(0).fill("other")
        page.get_by_role("button", name="Add a name").click()
        page.get_by_role("button", name="Discard").click()
        expect(names).to_have_count(2)
        expect(names.nth(0)).to_have_value("claude-*")
        expect(names.nth(1)).to_have_value("gpt-*")
        expect(page.get_by_role("button", name="Save")).to_be_hidden()


@pytest.mark.parametrize("language", languages())
def test_an_incomplete_row_is_refused_at_the_row(fresh: Site, language: str) -> None:
    store_rows(fresh, f"claude-*={TARGET}", f"gpt-*={DRAFT}")
    with fresh.visit(locale=language) as visit:
        page = visit.page
        page.goto("/admin/settings")
        row = rows_of(page).nth(1)
        pattern, target = row.locator("[data-pattern]"), row.locator("[data-target]")
        for field, value, code in (
            (pattern, "", "ui.map.no_pattern"),
            (pattern, "a=b", "ui.map.equals"),
            (target, " ", "ui.map.no_target"),
        ):
            before = field.input_value()
            field.fill(value)
            page.locator("#save-all").click()
            expect(row.locator("[data-problem]")).to_have_text(catalog(language)[code])
            expect(field).to_be_focused()
            expect(field).to_have_attribute("aria-invalid", "true")
            expect(field).to_have_accessible_description(catalog(language)[code])
            field.fill(before)
        assert stored_rows(fresh) == (f"claude-*={TARGET}", f"gpt-*={DRAFT}")
        expect(row.locator("[data-problem]")).to_be_hidden()  # nothing is changed any more


def test_a_row_that_has_no_effect_has_its_warning(fresh: Site) -> None:
    store_rows(fresh, f"claude-*={TARGET}", "gpt-*=nope", f"claude-*haiku*={DRAFT}")
    with fresh.visit() as visit:
        page = visit.page
        page.goto("/admin/settings")
        rows = rows_of(page)
        expect(rows.nth(0).locator("[data-warning]")).to_have_count(0)
        missing = "No model on this machine has the name 'nope'."
        expect(rows.nth(1).locator("[data-warning]")).to_have_text(missing)
        expect(rows.nth(2).locator("[data-warning]")).to_contain_text("the row 'claude-*' above")
        expect(rows.nth(1).locator("[data-target]")).to_have_accessible_description(missing)
        page.get_by_role("button", name="Move row 2 up").click()
        page.get_by_role("button", name="Save").click()
        expect(rows.nth(0).locator("[data-warning]")).to_have_text(missing)
        expect(rows.nth(1).locator("[data-warning]")).to_have_count(0)
        said = page.locator("[data-saved]")
        expect(said).to_contain_text("Please check: Model name mapping.")


def test_long_rows_and_their_messages_fit_and_are_accessible(fresh: Site, axe: str) -> None:
    store_rows(fresh, f"claude-*={TARGET}", f"{'long-' * 20}*={'missing/' + 'name-' * 20}")
    with fresh.visit() as visit:
        page = visit.page
        page.goto("/admin/settings")
        page.get_by_role("button", name="Add a name").click()
        page.keyboard.type("x")
        page.get_by_role("button", name="Save").click()
        expect(rows_of(page).nth(2).locator("[data-problem]")).to_be_visible()
        check_fits(page)
        visit.complaints.check()
        visit.complaints.expect("inline")  # axe-core tries to style the page while it looks
        check_accessible(page, axe)


def test_a_row_typed_before_the_script_has_loaded_is_a_change(fresh: Site) -> None:
    store_rows(fresh, f"claude-*={TARGET}")
    with fresh.visit() as visit:
        held: list[Route] = []
        page = visit.page
        page.route(SCRIPT, lambda route: held.append(route))
        with page.expect_request(SCRIPT):
            page.goto("/admin/settings", wait_until="commit")
        expect(page.get_by_role("button", name="Add a name")).to_be_hidden()
        rows_of(page).get_by_label("Model on this machine").fill(DRAFT)
        held[0].continue_()
        page.get_by_role("button", name="Save").click()
        expect(page.locator("[data-saved]")).to_contain_text("Model name mapping")
        assert stored_rows(fresh) == (f"claude-*={DRAFT}",)


def test_rows_of_a_flag_are_shown_and_locked(fresh: Site) -> None:
    rules = (f"claude-*={TARGET}",)
    with (
        open_site(fresh.browser, fresh.home / "other", default=None, model_map=rules) as site,
        site.visit() as visit,
    ):
        page = visit.page
        page.goto("/admin/settings")
        field = page.locator('[data-field="model_map"]')
        expect(field).to_contain_text("Set by --model-map for this run.")
        expect(field.get_by_label("Model on this machine")).to_have_value(TARGET)
        expect(field.get_by_label("Model on this machine")).to_be_disabled()
        expect(field.get_by_role("button")).to_have_count(0)
